"""PyTorch: a state dict under 'arrays'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from quickstarts.shared import digits_of, note, part, server_app
from unfed.flower import introduce, negate, staying_rows

if TYPE_CHECKING:
    from unfed.flower import Probes


class Net(torch.nn.Module):
    """Two layers, the first of which is negated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 16), torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        return out


def rows(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    return tensors(*part(context))


def tensors(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def probes() -> Probes:
    """A server that holds rows like those of partitions 1, 2 and, to see what comes back, of the leaver."""
    from unfed.flower import Probes  # not at the top: a client's process imports this file for every message
    from unfed.measures.undo.measure import Effort
    from unfed.measures.undo.refits import Grid
    from unfed.measures.undo.scene import Budget

    effort = Effort(rounds=1, batch=8, grid=Grid(rows=(16,), budget=Budget(stops=(2,)), rates=(0.1,)))
    retain, test, forget = (tensors(*digits_of(k)) for k in (1, 2, 0))
    return Probes(Net, retain, test, forget, effort=effort)


def step(net: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimiser.step()


def client_app(*mods: Any) -> ClientApp:
    app = introduce(ClientApp())

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        note(context, "train")
        net, (x, y) = Net(), rows(context)
        stays = staying_rows(message, y)
        x, y = x[stays], y[stays]
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        step(net, x, y)
        metrics = MetricRecord({"num-examples": len(x)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        note(context, "evaluate")
        net, (x, y) = Net(), rows(context)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        right = float((net(x).argmax(1) == y).float().mean())
        return Message(RecordDict({"m": MetricRecord({"accuracy": right, "num-examples": len(x)})}), reply_to=message)

    return app


client = client_app()
server = server_app(lambda: ArrayRecord(Net().state_dict()), FedAvg, negate(Net()), probes)
