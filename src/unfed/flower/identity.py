"""Let a client app say who its node is: one line in an app that knows nothing else of unfed.

    app = introduce(ClientApp())                                after it is made, of functions or of a client function
    app = ClientApp(client_fn, mods=[introduce_mod, …])         the same as the first of its mods

Flower draws node ids anew for every run of its simulator, and for a SuperNode without a key whenever it connects. What
stays is what the one who runs a node wrote into its config: `client`, `client-name` (NVFlare's bridge writes that) or
`partition-id`. Asked by the server, the node answers with these, with `num-partitions`, and with what its config allows
(`allow="forget"`: to be asked, after it has left, what a model is worth on its rows), and nothing else; no model is
involved. In an app that leaves rows of a class out (rows.py) it also puts how many these were into the reply.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from unfed.flower.rows import noted
from unfed.remote.messages import NAMED_BY

QUESTION = "query.unfed"
ANSWER = "who"
ALLOW = "allow"
PARTS = "num-partitions"


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
    own = {key: str(context.node_config[key]) for key in (*NAMED_BY, PARTS, ALLOW) if key in context.node_config}
    return Message(RecordDict({ANSWER: ConfigRecord(dict(own))}), reply_to=message)
