"""The client app: Flower's messages in, the answers of `unfed.remote.client` out.

    train      a plan
    evaluate   measures, or one score per row
    query      a census

`flwr run` starts it by `clientapp = "unfed.flower.client:app"`. It keeps nothing between messages.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unfed.flower import wire
from unfed.flower.transport import log
from unfed.remote.client import answered

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a plan on this client's own rows."""
    return _replied(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count what a model gets right, or give sums of gradients, or scores of single rows."""
    return _replied(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is and how many rows it holds; no model is involved."""
    return _replied(message, context)


def _replied(message: Message, context: Context) -> Message:
    """A refusal is an answer; a mistake of ours is Flower's own error."""
    found = answered(lambda: wire.ask_of(message), dict(context.node_config), log)
    return Message(wire.to_records(found.words, found.numbers, found.tensors), reply_to=message)
