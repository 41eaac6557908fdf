"""A foreign Flower app adds Led's hint to its own loss: the same arithmetic as written out by hand."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_grid import InProcessGrid
from unfed.errors import UnfedError
from unfed.flower import Unlearn, hinted, introduce, led_by, of_class, staying_rows, teacher_in
from unfed.flower.led import TEACHER, Teacher

LEAVER = 1000


class Net(nn.Module):
    """Two layers; what enters the second are the features."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x)))
        return out


def rows(partition: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(partition)
    x = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(9) % 3


def client_app() -> ClientApp:
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, (x, y) = Net(), rows(int(context.node_config["partition-id"]))
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        stays = torch.from_numpy(staying_rows(message, y))
        logits, extra = hinted(net, teacher_in(message, Net()), x[stays])
        (F.cross_entropy(logits, y[stays]) + extra).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        metrics = MetricRecord({"num-examples": int(stays.sum())})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def grid() -> InProcessGrid:
    return InProcessGrid([{"partition-id": k, "num-partitions": 4} for k in range(4)], client_app(), LEAVER)


def by_hand(rounds: list[bool], clients: list[int], away: list[int]) -> dict[str, Tensor]:
    """FedAvg with the led loss written out; the classes are taken out by QR, and the rows of these at the clients."""
    state: dict[str, Tensor] = Net(7).state_dict()
    teacher = Net(1)
    for led in rounds:
        found = []
        for k in clients:
            net, (x, y) = Net(), rows(k)
            net.load_state_dict(state)
            stays = torch.tensor([int(c) not in away for c in y])
            x, y = x[stays], y[stays]
            loss = F.cross_entropy(net(x), y)
            if led:
                taught = torch.relu(teacher.first(x)).detach()
                if away:
                    basis = torch.linalg.qr(teacher.second.weight[away].detach().T)[0]
                    taught = taught - taught @ basis @ basis.T
                loss = loss + 10 * (1 - F.cosine_similarity(torch.relu(net.first(x)), taught, dim=1)).mean()
            loss.backward()
            torch.optim.SGD(net.parameters(), lr=0.1).step()
            found.append(net.state_dict())
        state = {name: torch.stack([one[name] for one in found]).mean(0) for name in state}
    return state


@pytest.mark.parametrize("away", [[], [2]])
def test_a_fresh_model_is_led_for_some_rounds_and_goes_on_alone(away: list[int]) -> None:
    nodes, old = grid(), ArrayRecord(OrderedDict(Net(3).state_dict()))
    factory = led_by(FedAvg, ArrayRecord(OrderedDict(Net(1).state_dict())), rounds=2)
    leaves: Any = of_class(2) if away else [LEAVER]
    unlearn = Unlearn(factory, lambda arrays: Net(7).state_dict(), leaves, ledger=None)
    found = unlearn.start(nodes, old, num_rounds=3).arrays.to_torch_state_dict()
    meant = by_hand([True, True, False], [0, 1, 2, 3] if away else [1, 2, 3], away)
    for name, tensor in meant.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-9)
    led = [TEACHER in message.content.array_records for message in nodes.asked(LEAVER + 1, "train")]
    assert led == [True, True, False]
    assert away or nodes.asked(LEAVER) == []


def test_without_a_number_every_round_is_led_and_without_a_teacher_nothing_is_added() -> None:
    nodes, teacher = grid(), ArrayRecord(OrderedDict(Net(1).state_dict()))
    led_by(FedAvg, teacher)().start(nodes, ArrayRecord(OrderedDict(Net(7).state_dict())), num_rounds=2)
    assert all(TEACHER in message.content.array_records for message in nodes.asked(LEAVER, "train"))
    net, (x, _) = Net(), rows(0)
    logits, extra = hinted(net, None, x)
    assert torch.equal(logits, net(x)) and extra.item() == 0.0


def test_the_teacher_stays_as_it_is_and_a_head_that_runs_twice_is_refused() -> None:
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + super().forward(x)

    net, guide, (x, y) = Net(), Net(1).eval().requires_grad_(False), rows(0)
    logits, extra = hinted(net, Teacher(guide), x)
    (F.cross_entropy(logits, y) + extra).backward()
    assert all(p.grad is None for p in guide.parameters()) and net.first.weight.grad is not None
    with pytest.raises(UnfedError, match="The head 'second' ran 2 times in one pass; set head_name on the model"):
        hinted(Twice(), None, x)


def test_the_lines_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods" / "led.md").read_text(encoding="utf-8")
    server, client = page.split("```python\n")[1].split("```")[0].split("# client app")
    names: dict[str, Any] = {"Net": Net, "FedAvg": FedAvg, "Unlearn": Unlearn, "led_by": led_by, "ledger": None}
    names |= {"node_with": lambda client: [LEAVER], "cleaned": ArrayRecord(OrderedDict(Net(1).state_dict()))}
    exec(server, names)
    nodes = grid()
    names["strategy"].start(nodes, ArrayRecord(OrderedDict(Net(3).state_dict())), num_rounds=1)
    (x, y), (message,) = rows(1), nodes.asked(LEAVER + 1, "train")
    own = {"teacher_in": teacher_in, "hinted": hinted, "cross_entropy": F.cross_entropy, "net": Net(), "Net": Net}
    told: dict[str, Any] = {"message": message, "x": x, "y": y, **own}
    exec(f"# {client}", told)
    assert told["guide"].away == () and told["loss"].item() > F.cross_entropy(Net()(x), y).item()
