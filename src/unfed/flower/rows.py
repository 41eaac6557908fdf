"""Rows of a class that leaves are left out where they lie: how a client is told, and says it.

    server   in the config of every message        unfed-forget-classes = [3]
    client   stays = staying_rows(message, y)      the app trains on x[stays], y[stays]; how many are left out is noted
             introduce(ClientApp())                puts the note into the reply
    server   a reply to train without the note     is refused by name (classes.py)

A client imports this for every message, so there is no PyTorch in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType

from unfed.errors import UnfedError

ASKED = "unfed-forget-classes"
"""In the config of a message: the classes whose rows are not to be trained on."""
LEFT_OUT, ALL_ROWS = "unfed-left-out", "unfed-rows"
"""Beside it, once labels were looked at: how many rows of each of these classes there were, and how many in all."""
NOTE = "unfed.rows"
"""The record of a reply that says the same to the server."""


def staying_rows(message: Message, labels: Iterable[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may be trained on: `x[stays]`, with False for every row of a class that leaves.

    `labels`: one class number for each row, as a tensor, an array or a list. Where no class leaves, all rows stay.
    """
    own = np.asarray(labels)
    if own.ndim != 1 or (own.size and (own.dtype.kind not in "biuf" or bool((own != np.floor(own)).any()))):
        raise UnfedError(
            f"staying_rows takes the class number of every row, one after another, not {own.dtype} of the shape"
            f" {own.shape}; give it the labels as whole numbers."
        )
    config = _config(message)
    if config is None:
        return np.ones(len(own), dtype=bool)
    gone: list[int] = list(config[ASKED])  # type: ignore[arg-type]
    found = [int((own == number).sum()) for number in gone]
    before: list[int] = list(config.get(LEFT_OUT, [0] * len(gone)))  # type: ignore[arg-type]
    config[LEFT_OUT] = [was + now for was, now in zip(before, found, strict=True)]
    config[ALL_ROWS] = int(config.get(ALL_ROWS, 0)) + len(own)  # type: ignore[arg-type]
    return ~np.isin(own, gone)


def noted(message: Message, reply: Message) -> Message:
    """A reply to train, with what was left out of the rows; without it where nobody looked at labels."""
    config = _config(message) if is_training(message) else None
    if config is not None and LEFT_OUT in config and reply.has_content():
        reply.content[NOTE] = ConfigRecord({key: config[key] for key in (ASKED, LEFT_OUT, ALL_ROWS)})
    return reply


def is_training(message: Message) -> bool:
    """Whether a message, or the reply to it, is about training: Flower's `train`, or an app's `train.…`."""
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def _config(message: Message) -> ConfigRecord | None:
    """The config of a message that names classes, if one does."""
    return next((config for config in message.content.config_records.values() if ASKED in config), None)
