"""What Flower's log shows of a refusal. Importing this filters nothing.

    speak_plainly()     in unfed's own server app: a refusal is one sentence without its traceback
    asking()            while nodes are asked who they are: the errors of client apps that cannot answer are hidden

Flower logs with its traceback whatever a server app raises. In unfed's own app, the sentence of a refusal says what to
do; a mistake of ours keeps its traceback. The log of an app that is not ours stays as Flower writes it.

In Flower's simulator, clients' errors stand in the server's log. A client app without `introduce` answers our question
with an error, once per node; the server says that in a sentence of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from unfed.errors import UnfedError

log = logging.getLogger("flwr")

UNANSWERED = ("No query function registered with name 'unfed'", "Invalid message type: query.unfed")
"""How Flower's client apps, of functions and of a client function, say that they cannot answer who they are."""


def one_sentence(record: logging.LogRecord) -> bool:
    """A filter for Flower's log: a refusal of ours goes through without its traceback."""
    error = _refusal(record.exc_info[1] if isinstance(record.exc_info, tuple) else None)
    if error is not None:
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
        return True
    return record.levelno < logging.ERROR or not _only_traceback(record.getMessage())


def _refusal(error: BaseException | None) -> UnfedError | None:
    """The refusal that Flower logs, or that was the cause of what it logs."""
    while error is not None and not isinstance(error, UnfedError):
        error = error.__cause__
    return error


def _only_traceback(text: str) -> bool:
    """Whether this is the traceback, as text, of a refusal whose sentence stands in another line."""
    last = text.rstrip().rpartition("\n")[2]
    return text.startswith("Traceback") and last.startswith(f"{UnfedError.__module__}.")


def _answerable(record: logging.LogRecord) -> bool:
    """A filter for Flower's log: hide that a client app cannot say who it is."""
    return record.levelno < logging.ERROR or not any(words in record.getMessage() for words in UNANSWERED)


def speak_plainly() -> None:
    """Show refusals as sentences in Flower's log of this process, which runs unfed's own app."""
    log.addFilter(one_sentence)


@contextmanager
def asking() -> Iterator[None]:
    """Hide the errors of client apps that cannot say who they are, as long as they are asked."""
    log.addFilter(_answerable)
    try:
        yield
    finally:
        log.removeFilter(_answerable)
