"""What `flwr run --stream` shows when a run is refused: one sentence, and no traceback.

Flower logs whatever a server app raises with its traceback. A refusal of ours is interface: its sentence says what to
do, and lines of code around it only bury it. A mistake of ours keeps its traceback.
"""

from __future__ import annotations

import logging

from unfed.errors import UnfedError


def one_sentence(record: logging.LogRecord) -> bool:
    """A filter for Flower's log: it lets everything through, but a refusal of ours without its traceback."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, UnfedError):
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def speak_plainly() -> None:
    """Have Flower's log of this process show refusals as sentences; done twice is done once."""
    log = logging.getLogger("flwr")
    if one_sentence not in log.filters:
        log.addFilter(one_sentence)
