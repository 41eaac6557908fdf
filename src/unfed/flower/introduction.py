"""What a client app needs of unfed: to say who its node is, and to leave the rows of a class out.

    app = introduce(ClientApp())                                after it is made, of functions or of a client function
    app = ClientApp(client_fn, mods=[introduce_mod, …])         the same as the first of its mods
    stays = staying_rows(message, y)                            the app trains on x[stays], y[stays]

Flower draws new node ids for every run of its simulator, and for a SuperNode without a key whenever it connects. What
stays is what the one who runs a node wrote into its config: `client`, `client-name` (NVFlare's bridge writes that) or
`partition-id`. Asked by the server, the node answers with these, with `num-partitions`, and with what its config allows
(`allow="forget"`: to be asked, after it has left, what a model is worth on its rows), and nothing else; no model is
involved.

Rows of a class that leaves are left out where they lie. The server names the class in the config of every message
(`unfed-forget-classes`), `staying_rows` counts what it leaves out, and `introduce` puts the counts into the reply. A
reply to train without them is refused by name (classes.py).

A client imports this for every message, so there is no PyTorch in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from unfed.remote.rows import ALL_ROWS, ASKED, LEFT_OUT, staying

KEYS = ("client", "client-name", "partition-id")
"""What names a node in its config: `NAMED_BY` of remote/messages.py, which imports PyTorch."""
QUESTION = "query.unfed"
ANSWER = "who"
ALLOW = "allow"
PARTS = "num-partitions"
NOTE = "unfed.rows"
"""The record of a reply that says the same to the server."""


class _Introduced(ClientApp):
    """A client app that answers one question itself."""

    def __call__(self, message: Message, context: Context) -> Message:
        return introduce_mod(message, context, super().__call__)


def introduce(app: ClientApp) -> ClientApp:
    """The same app, which now answers when a server asks who its node is.

    It answers before the app's own mods and lifespan see the question: they are written for messages with a model.
    """
    if not issubclass(type(app), _Introduced):
        app.__class__ = type("Introduced", (_Introduced, type(app)), {})
    return app


def introduce_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """The same as a mod, which answers this one question itself; mods before it see the question too."""
    if message.metadata.message_type == QUESTION:
        return _answered(message, context)
    return noted(message, call_next(message, context))


def _answered(message: Message, context: Context) -> Message:
    own = {key: str(context.node_config[key]) for key in (*KEYS, PARTS, ALLOW) if key in context.node_config}
    return Message(RecordDict({ANSWER: ConfigRecord(dict(own))}), reply_to=message)


def staying_rows(message: Message, labels: Iterable[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may be trained on: `x[stays]`, with False for every row of a class that leaves.

    `labels`: one class number for each row, as a tensor, an array or a list. Where no class leaves, all rows stay.
    """
    config: Any = _config(message)
    return staying({} if config is None else config, labels)


def noted(message: Message, reply: Message) -> Message:
    """A reply to train, with what was left out of the rows; without it where no labels were looked at."""
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
