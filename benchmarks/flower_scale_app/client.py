"""Clients that answer at once: every array a little larger; they say who they are."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from unfed.flower import introduce

app = introduce(ClientApp())


@app.train()
def train(message: Message, context: Context) -> Message:
    """The server's arrays and one part in a thousand of the partition's number."""
    moved = 1e-3 * float(context.node_config["partition-id"])
    arrays = {
        name: Array(array.numpy() + array.numpy().dtype.type(moved))
        for name, array in message.content["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A number."""
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 10})}), reply_to=message)
