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
    """A filter for Flower's log: a refusal of ours goes through without its traceback, everything else as it is."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, UnfedError):
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
        return True
    return not (record.levelno >= logging.ERROR and any(words in record.getMessage() for words in UNANSWERED))


def speak_plainly() -> None:
    """Have Flower's log of this process show refusals as sentences; done twice is done once."""
    log = logging.getLogger("flwr")
    if one_sentence not in log.filters:
        log.addFilter(one_sentence)
