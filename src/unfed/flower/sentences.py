"""What `flwr run --stream` shows when a run is refused: one sentence, and no traceback.

Flower logs whatever a server app raises with its traceback. A refusal of ours is interface: its sentence says what to
do, and lines of code around it only bury it. A mistake of ours keeps its traceback.

In Flower's simulator the clients' errors are logged in the same process. A client app that was not told to introduce
itself answers our question with an error, once per node; the server says that in a sentence of its own.
"""

from __future__ import annotations

import logging

from unfed.errors import UnfedError

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
    ours = text.startswith("Traceback") and last.startswith(f"{UnfedError.__module__}.")
    return ours or any(words in text for words in UNANSWERED)


def speak_plainly() -> None:
    """Have Flower's log of this process show refusals as sentences; done twice is done once."""
    log = logging.getLogger("flwr")
    if one_sentence not in log.filters:
        log.addFilter(one_sentence)
