"""An existing Flower app forgets a client: stock strategies over a grid without the leaver."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Result, Strategy

from flower_grid import InProcessGrid, Reply
from unfed.errors import Refused, UnfedError
from unfed.flower import SubsetGrid, Unlearn, negate, registered

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower"
LEAVER = 1000
STOCK: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedavgm": lambda: FedAvgM(server_momentum=0.9),
    "fedadam": FedAdam,
    "fedprox": lambda: FedProx(proximal_mu=0.1),
    "fedmedian": FedMedian,
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example app."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import digits.after
    import digits.before
    import digits.client
    import digits.task

    yield digits
    for name in [name for name in sys.modules if name.split(".")[0] == "digits"]:
        del sys.modules[name]


def nodes(app: Any, count: int = 4) -> InProcessGrid:
    return InProcessGrid([{"partition-id": k, "num-partitions": count} for k in range(count)], app)


def trained(example: Any, rounds: int = 2) -> ArrayRecord:
    torch.manual_seed(0)
    arrays = ArrayRecord(example.task.Net().state_dict())
    return FedAvg().start(nodes(example.client.app), arrays, num_rounds=rounds).arrays


@pytest.mark.parametrize("name", list(STOCK))
def test_a_stock_strategy_goes_on_without_the_leaver_from_the_negated_model(name: str, example: Any) -> None:
    grid, arrays = nodes(example.client.app), ArrayRecord(example.task.Net().state_dict())
    result = Unlearn(STOCK[name], negate(example.task.Net()), [LEAVER]).start(grid, arrays, num_rounds=2)
    assert grid.asked(LEAVER) == [] and len(grid.asked(LEAVER + 1, "train")) == 2
    start = grid.asked(LEAVER + 1, "train")[0].content.array_records["arrays"].to_torch_state_dict()
    before = arrays.to_torch_state_dict()
    assert bool((start["0.weight"] == -before["0.weight"]).all())
    assert all(bool((start[n] == before[n]).all()) for n in before if n != "0.weight")
    after = result.arrays.to_torch_state_dict()
    assert all(after[n].dtype == before[n].dtype for n in before)  # counters stay whole numbers
    example.task.Net().load_state_dict(after)


@pytest.mark.parametrize("name", list(STOCK))
def test_it_is_the_strategy_alone_on_a_federation_that_never_had_the_leaver(name: str, example: Any) -> None:
    arrays = ArrayRecord(example.task.Net().state_dict())
    without = nodes(example.client.app)
    del without.nodes[LEAVER]
    random.seed(0)  # stock strategies sample with it, and average in the order in which they sampled
    plain = STOCK[name]().start(without, negated(example, arrays), num_rounds=2).arrays.to_torch_state_dict()
    random.seed(0)
    forgetful = Unlearn(STOCK[name], negate(example.task.Net()), [LEAVER])
    found = forgetful.start(nodes(example.client.app), arrays, num_rounds=2).arrays.to_torch_state_dict()
    for tensor, value in found.items():
        if value.is_floating_point():  # a counter is a whole number again, which it is not in a stock strategy
            torch.testing.assert_close(plain[tensor].to(value.dtype), value, rtol=1e-4, atol=1e-5)


def negated(example: Any, arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord(negate(example.task.Net())(dict(arrays.to_torch_state_dict())))


def test_a_used_strategy_is_not_used_again(example: Any) -> None:
    used, arrays = FedAvgM(server_momentum=0.9), trained(example, 1)
    again = Unlearn(lambda: used, None, [LEAVER])
    again.start(nodes(example.client.app), arrays, num_rounds=1)
    with pytest.raises(UnfedError, match="new strategy on every call"):
        again.start(nodes(example.client.app), arrays, num_rounds=1)


def test_without_a_perturbation_a_saved_round_is_gone_on_with(example: Any) -> None:
    grid, arrays = nodes(example.client.app), ArrayRecord(example.task.Net().state_dict())
    Unlearn(FedAvg, None, [LEAVER]).start(grid, arrays, num_rounds=1)
    sent = grid.asked(LEAVER + 1, "train")[0].content.array_records["arrays"].to_torch_state_dict()
    assert all(bool((sent[n] == t).all()) for n, t in arrays.to_torch_state_dict().items())


def test_an_excluded_node_is_hidden_and_cannot_be_spoken_to(example: Any) -> None:
    grid = nodes(example.client.app)
    subset = SubsetGrid(grid, [LEAVER])
    assert list(subset.get_node_ids()) == [1001, 1002, 1003]
    assert [node.node_id for node in subset.get_nodes()] == [1001, 1002, 1003]
    message = Message(RecordDict({}), LEAVER, "train")
    for send in (subset.send_and_receive, subset.push_messages):
        with pytest.raises(UnfedError, match="Node 1000 has left this federation"):
            send([message])
    with pytest.raises(UnfedError, match="has left"):
        subset.create_message(RecordDict({}), "train", LEAVER, "1")
    heard: Any = lambda messages, timeout=None: [Message(RecordDict({}), reply_to=message)]  # noqa: E731
    grid.send_and_receive = heard  # type: ignore[method-assign]  # the leaver answers all the same
    assert subset.send_and_receive([]) == []  # a reply of the leaver is not heard


def test_a_leaver_is_found_by_its_registered_name_wherever_it_connects(example: Any) -> None:
    grid = nodes(example.client.app)
    with pytest.raises(UnfedError, match="No connected node has a registered name"):
        list(SubsetGrid(grid, registered("north")).get_node_ids())
    grid.names = {LEAVER: "north", 1001: "south"}
    subset = SubsetGrid(grid, registered("north"))
    assert LEAVER not in subset.get_node_ids()
    grid.nodes[7], grid.names = grid.nodes.pop(LEAVER), {7: "north", 1001: "south"}
    assert 7 not in subset.get_node_ids()


def spoiling(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        if "arrays" in reply.content:
            arrays: Any = change(dict(reply.content.array_records["arrays"].to_torch_state_dict()))
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return changed


def bad_metric(question: Message, reply: Message) -> Message:
    if question.metadata.message_type == "train":
        reply.content["metrics"] = MetricRecord({"train_loss": float("nan"), "num-examples": 3})
    return reply


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (spoiling(lambda p: {n: t * float("nan") if t.is_floating_point() else t for n, t in p.items()}), "NaN"),
        (spoiling(lambda p: {n: t[None] for n, t in p.items()}), "another '0.weight'"),
        (spoiling(lambda p: dict(list(p.items())[1:])), "another '0.weight'"),
        (bad_metric, "its metric 'train_loss' is nan"),
        (lambda q, r: Message(Error(2, "ValueError: oh"), reply_to=q), "it failed: ValueError: oh"),
    ],
)
def test_a_spoilt_update_is_named_and_not_aggregated(tamper: Reply, reason: str, example: Any) -> None:
    grid, strategy = nodes(example.client.app), Unlearn(FedAvg, None, [LEAVER])
    grid.tamper[1002] = tamper
    result = strategy.start(grid, trained(example, 1), num_rounds=1)
    assert strategy.refusals[0].client == "1002" and reason in strategy.refusals[0].reason
    assert all(bool(t.isfinite().all()) for t in result.arrays.to_torch_state_dict().values())


def test_a_round_in_which_everybody_fails_is_an_error_not_an_empty_model(example: Any) -> None:
    grid = nodes(example.client.app)
    grid.tamper = {node: lambda q, r: Message(Error(2, "oh"), reply_to=q) for node in grid.nodes}
    with pytest.raises(Refused, match="Round 1 got no usable update of 3 replies"):
        Unlearn(FedAvg, None, [LEAVER]).start(grid, trained(example, 1), num_rounds=1)


def test_too_few_nodes_left_is_said_before_waiting_for_ever(example: Any) -> None:
    strategy = Unlearn(lambda: FedAvg(min_available_nodes=4), None, [LEAVER])
    with pytest.raises(Refused, match="FedAvg waits for 4 nodes, but without the leaver 3 are connected"):
        strategy.start(nodes(example.client.app), trained(example, 1), num_rounds=1)


def test_a_strategy_with_its_own_start_is_refused(example: Any) -> None:
    class Own(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            raise AssertionError

    with pytest.raises(UnfedError, match="Own has a start\\(\\) of its own"):
        Unlearn(Own, None, [LEAVER]).start(nodes(example.client.app), trained(example, 1), num_rounds=1)


def test_a_tied_weight_is_negated_under_all_its_names() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(4, 4, bias=False)
            self.two = torch.nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

    model = Tied()
    arrays = {name: t.clone() for name, t in model.state_dict().items()}
    changed = negate(model, ["one.weight"])(arrays)
    assert bool((changed["one.weight"] == -arrays["one.weight"]).all())
    assert bool((changed["two.weight"] == -arrays["two.weight"]).all())
    with pytest.raises(UnfedError, match="not of this model"):
        negate(model, ["one.weight"])({"x": torch.zeros(1)})


def test_the_example_forgets_in_five_lines(example: Any, tmp_path: Path) -> None:
    before, after = ((EXAMPLE / "digits" / f"{name}.py").read_text().splitlines() for name in ("before", "after"))
    new = [line for line in after if line.rstrip().endswith("# new")]
    assert len(new) == 5
    rest = [line for line in after[1:] if line not in new and '"""' not in line]
    assert all(line in before for line in rest)
    config: Any = {"rounds": 2, "model": str(tmp_path / "model.pt"), "forget-node": LEAVER}
    grid = nodes(example.client.app)
    example.before.app(grid, Context(1, 1, {}, RecordDict(), config))
    seen = len(grid.asked(LEAVER))
    example.after.app(grid, Context(1, 1, {}, RecordDict(), config))
    assert len(grid.asked(LEAVER)) == seen > 0
    model = example.task.Net()
    model.load_state_dict(torch.load(tmp_path / "model.pt.unlearned", weights_only=True))
    assert example.task.accuracy(model, *example.task.data(1, 4)) > 0.5
