"""The client app: it trains and evaluates, and says who it is; it knows nothing else of unlearning."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from unfed.flower import introduce  # new

app = introduce(ClientApp())  # new: it was ClientApp()


def own_part(context: Context):
    return task.data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch from the server's model."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = own_part(context)
    loss = task.train(model, x, y)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The accuracy of the server's model here."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = own_part(context)
    metrics = MetricRecord({"accuracy": task.accuracy(model, x, y), "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
