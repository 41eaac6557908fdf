"""An existing Flower app forgets a client: stock strategies over a grid without the leaver."""

from __future__ import annotations

import importlib
import logging
import random
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    Krum,
    Result,
    Strategy,
)
from sklearn.datasets import load_digits

from flower_grid import InProcessGrid, Reply, foreign_grid
from unfed.errors import Refused, UnfedError, UnfedWarning
from unfed.flower import SubsetGrid, Unlearn, introduce_mod, negate, negate_arrays, node_with, registered

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
LEAVER = 1000
FEW = SimpleNamespace(images=load_digits().images[:160], target=load_digits().target[:160])
STOCK: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedavgm": lambda: FedAvgM(server_momentum=0.9),
    "fedadam": FedAdam,
    "fedprox": lambda: FedProx(proximal_mu=0.1),
    "fedmedian": FedMedian,
    "krum": lambda: Krum(num_malicious_nodes=0),
    "dp": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 10.0, 3),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example app; its clients hold forty images each, and read them once."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import digits.after
    import digits.before
    import digits.client
    import digits.task

    monkeypatch.setattr(digits.task, "load_digits", lambda: FEW)
    yield digits
    for name in [name for name in sys.modules if name.split(".")[0] == "digits"]:
        del sys.modules[name]


def nodes(app: Any, count: int = 4, first: int = LEAVER) -> InProcessGrid:
    return InProcessGrid([{"partition-id": k, "num-partitions": count} for k in range(count)], app, first)


TRAINED: dict[str, torch.Tensor] = {}


def trained(example: Any) -> ArrayRecord:
    """What one round of training left; it is the same for every test, and made once."""
    torch.manual_seed(0)
    arrays = ArrayRecord(example.task.Net().state_dict())
    if not TRAINED:
        found = FedAvg().start(nodes(example.client.app), arrays, num_rounds=1).arrays
        TRAINED.update(found.to_torch_state_dict())
    return ArrayRecord({name: tensor.clone() for name, tensor in TRAINED.items()})


@pytest.mark.parametrize("name", list(STOCK))
def test_a_stock_strategy_goes_on_without_the_leaver_from_the_negated_model(name: str, example: Any) -> None:
    grid, arrays = nodes(example.client.app), ArrayRecord(example.task.Net().state_dict())
    result = Unlearn(STOCK[name], negate(example.task.Net()), [LEAVER], ledger=None).start(grid, arrays, num_rounds=2)
    assert grid.asked(LEAVER) == [] and len(grid.asked(LEAVER + 1, "train")) == 2
    start = grid.asked(LEAVER + 1, "train")[0].content.array_records["arrays"].to_torch_state_dict()
    before = arrays.to_torch_state_dict()
    assert bool((start["0.weight"] == -before["0.weight"]).all())
    assert all(bool((start[n] == before[n]).all()) for n in before if n != "0.weight")
    after = result.arrays.to_torch_state_dict()
    assert all(after[n].dtype == before[n].dtype for n in before)  # counters stay whole numbers
    example.task.Net().load_state_dict(after)


def test_a_perturbation_that_is_its_own_inverse_is_said_to_be_one(example: Any) -> None:
    grid, arrays = nodes(example.client.app), ArrayRecord(example.task.Net().state_dict())
    with pytest.warns(UnfedWarning, match="This perturbation can be undone; use a training without the leaver where"):
        Unlearn(FedAvg, negate(example.task.Net()), [LEAVER], ledger=None).start(grid, arrays, num_rounds=1)


@pytest.mark.parametrize("name", list(STOCK))
def test_it_is_the_strategy_alone_on_a_federation_that_never_had_the_leaver(name: str, example: Any) -> None:
    arrays = ArrayRecord(example.task.Net().state_dict())
    without = nodes(example.client.app)
    del without.nodes[LEAVER]
    random.seed(0)  # stock strategies sample with it, and average in the order in which they sampled
    plain = STOCK[name]().start(without, negated(example, arrays), num_rounds=2).arrays.to_torch_state_dict()
    random.seed(0)
    forgetful = Unlearn(STOCK[name], negate(example.task.Net()), [LEAVER], ledger=None)
    found = forgetful.start(nodes(example.client.app), arrays, num_rounds=2).arrays.to_torch_state_dict()
    for tensor, value in found.items():
        if value.is_floating_point():  # a counter is a whole number again, which it is not in a stock strategy
            torch.testing.assert_close(plain[tensor].to(value.dtype), value, rtol=1e-4, atol=1e-5)


def negated(example: Any, arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord(negate(example.task.Net())(dict(arrays.to_torch_state_dict())))


def test_who_is_connected_is_asked_as_often_for_many_nodes_as_for_few(example: Any) -> None:
    def questions(count: int) -> int:
        grid, times = nodes(example.client.app, count), [0]
        listed = grid.get_node_ids

        def counted() -> Any:
            times[0] += 1
            return listed()

        grid.get_node_ids = counted  # type: ignore[method-assign]
        arrays = ArrayRecord(example.task.Net().state_dict())
        Unlearn(FedAvg, None, [LEAVER], ledger=None).start(grid, arrays, num_rounds=1)
        return times[0]

    assert questions(9) == questions(4)  # each is a request to the SuperLink


def test_a_strategy_that_may_have_been_used_is_refused_before_anybody_is_asked(example: Any) -> None:
    used: Any = FedAvgM(server_momentum=0.9)
    grid, arrays = nodes(example.client.app), used.start(nodes(example.client.app), trained(example), 1).arrays
    for factory in (lambda: used, used):
        with pytest.raises(UnfedError, match=r"new strategy on every call, as lambda: FedAvgM\(…\) does"):
            Unlearn(factory, None, [LEAVER], ledger=None).start(grid, arrays, num_rounds=1)
    assert grid.sent == []


def test_a_strategy_of_flowers_older_api_is_told_where_to_go(example: Any) -> None:
    older: Any = importlib.import_module("flwr.server.strategy").FedAvg
    grid = nodes(example.client.app)
    with pytest.raises(UnfedError, match=r"flwr.server.strategy.*FedAvg, which is no strategy of flwr.serverapp; take"):
        Unlearn(older, None, [LEAVER], ledger=None).start(grid, trained(example), num_rounds=1)
    assert grid.sent == []


def test_arrays_of_another_model_or_of_a_spoilt_one_are_refused_before_anybody_is_asked(example: Any) -> None:
    own = ArrayRecord(example.task.Net().state_dict()).to_torch_state_dict()
    wider = {**own, "5.bias": torch.zeros(11)}
    spoilt = {**own, "5.bias": torch.full((10,), float("nan"))}
    for arrays, said in (
        (wider, r"have '5.bias' with the shape \(11,\), the model with \(10,\)"),
        (spoilt, r"have NaN or infinite values in '5.bias'"),
    ):
        grid = nodes(example.client.app)
        with pytest.raises(UnfedError, match=said):
            Unlearn(FedAvg, negate(example.task.Net()), node_with(partition_id=0, num_partitions=4), ledger=None).start(
                grid, ArrayRecord(arrays)
            )
        assert grid.sent == []


def test_without_a_perturbation_a_saved_round_is_gone_on_with(example: Any) -> None:
    grid, arrays = nodes(example.client.app), ArrayRecord(example.task.Net().state_dict())
    Unlearn(FedAvg, None, [LEAVER], ledger=None).start(grid, arrays, num_rounds=1)
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


def with_metrics(**metrics: Any) -> Reply:
    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            named = {name.replace("num_", "num-"): value for name, value in metrics.items()}
            reply.content["metrics"] = MetricRecord({"train_loss": 1.0, **named})
        return reply

    return changed


def as_zip(question: Message, reply: Message) -> Message:
    if "arrays" in reply.content:
        arrays = dict(reply.content.array_records["arrays"])
        name, array = next(iter(arrays.items()))
        arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, b"PK\x03\x04" + array.data[4:])
        reply.content["arrays"] = ArrayRecord(arrays)
    return reply


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (spoiling(lambda p: {n: t * float("nan") if t.is_floating_point() else t for n, t in p.items()}), "NaN"),
        (spoiling(lambda p: {n: t[None] for n, t in p.items()}), "its '0.weight' has shape"),
        (spoiling(lambda p: {n: t.double() for n, t in p.items()}), "its '0.weight' is float64, not float32"),
        (spoiling(lambda p: dict(list(p.items())[1:])), "lacks the tensor '0.weight'"),
        (as_zip, "its '0.weight' cannot be read"),
        (with_metrics(num_examples=0), "its weight 'num-examples' is 0, which is not a positive number"),
        (with_metrics(num_examples=-30), "its weight 'num-examples' is -30"),
        (with_metrics(num_examples=float("inf")), "its weight 'num-examples' is inf"),
        (with_metrics(), "its metrics lack the weight 'num-examples'"),
        (lambda q, r: Message(Error(2, "ValueError: oh"), reply_to=q), "it failed: ValueError: oh"),
    ],
)
def test_a_spoilt_update_is_named_and_not_aggregated(tamper: Reply, reason: str, example: Any) -> None:
    grid, strategy = nodes(example.client.app), Unlearn(FedAvg, None, [LEAVER], ledger=None)
    grid.tamper[1002] = tamper
    result = strategy.start(grid, trained(example), num_rounds=1)
    assert strategy.refusals[0].client == "1002" and reason in strategy.refusals[0].reason
    assert all(bool(t.isfinite().all()) for t in result.arrays.to_torch_state_dict().values())


def failing(question: Message, reply: Message) -> Message:
    return Message(Error(2, "oh"), reply_to=question) if question.metadata.message_type == "train" else reply


def test_metrics_are_none_of_our_business(example: Any) -> None:
    grid, strategy = nodes(example.client.app), Unlearn(FedAvg, None, [LEAVER], ledger=None)
    grid.tamper[1002] = with_metrics(train_loss=float("nan"), num_examples=3)
    strategy.start(grid, trained(example), num_rounds=1)
    assert strategy.refusals == []
    grid.tamper[1002] = with_metrics(num_examples=3, another=1.0)  # which stock Flower cannot average
    with pytest.raises(Refused, match="None of 1 rounds had a usable update"):
        strategy.start(grid, trained(example), num_rounds=1)


def test_an_unlearning_in_which_nobody_ever_answers_is_an_error_not_an_empty_model(example: Any) -> None:
    grid = nodes(example.client.app)
    grid.tamper = dict.fromkeys(grid.nodes, failing)
    with pytest.raises(Refused, match="None of 2 rounds had a usable update .node 100.: it failed: oh"):
        Unlearn(FedAvg, None, [LEAVER], ledger=None).start(grid, trained(example), num_rounds=2)


class Moody(InProcessGrid):
    """Training fails in some of its rounds."""

    bad: frozenset[int] = frozenset()
    round = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        asked = list(messages)
        training = any(m.metadata.message_type == "train" for m in asked)
        self.round += training
        self.tamper = dict.fromkeys(self.nodes, failing) if self.round in self.bad and training else {}
        return super().send_and_receive(asked, timeout=timeout)


def test_a_round_without_replies_changes_nothing_and_the_run_goes_on(example: Any) -> None:
    grid = Moody(nodes(example.client.app).nodes.values(), example.client.app)
    grid.bad = frozenset({2})
    strategy = Unlearn(FedAvg, negate(example.task.Net()), [LEAVER], ledger=None)
    result = strategy.start(grid, trained(example), num_rounds=3)
    sent = [m.content.array_records["arrays"].to_torch_state_dict() for m in grid.asked(1001, "train")]
    second, third = sent[1:]
    assert all(bool((third[name] == value).all()) for name, value in second.items())
    assert strategy.arrays is result.arrays and len(strategy.refusals) == 3


def test_the_last_good_arrays_are_kept_and_gone_on_from_without_negating_twice(example: Any, tmp_path: Path) -> None:
    arrays, file = trained(example), tmp_path / "ledger"
    net = example.task.Net()
    random.seed(0)
    whole = Unlearn(FedAvg, negate(net), [LEAVER], ledger=None).start(nodes(example.client.app), arrays, num_rounds=4)

    class Dying(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            if len(self.asked(1001, "train")) == 2 and any(m.metadata.message_type == "train" for m in messages):
                raise ConnectionError("the SuperLink is gone")
            return super().send_and_receive(messages, timeout=timeout)

    random.seed(0)
    dying = Dying(nodes(example.client.app).nodes.values(), example.client.app)
    with pytest.raises(ConnectionError):
        Unlearn(FedAvg, negate(net), [LEAVER], ledger=file).start(dying, arrays, num_rounds=4)
    grid = nodes(example.client.app)
    again = Unlearn(FedAvg, negate(net), [LEAVER], ledger=file)
    result = again.start(grid, arrays, num_rounds=4)
    asked = grid.asked(1001, "train")
    assert [m.content.config_records["config"]["server-round"] for m in asked][-1] == 4 and len(asked) == 2
    for name, value in whole.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(result.arrays.to_torch_state_dict()[name], value, rtol=1e-4, atol=1e-4)
    assert again.start(nodes(example.client.app), arrays, num_rounds=4).arrays is again.arrays  # nothing is left to do
    other = Unlearn(FedAvg, negate_arrays("5.weight"), [LEAVER], ledger=file)
    with pytest.raises(UnfedError, match="Request 'client-node-1000' .* began at another model"):
        other.start(nodes(example.client.app), result.arrays, num_rounds=4)


def test_an_average_that_is_not_finite_is_not_kept(example: Any) -> None:
    class Broken(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            spoilt = {n: t * float("inf") for n, t in arrays.to_torch_state_dict().items()}
            return (ArrayRecord(spoilt) if server_round == 2 else arrays), metrics

    strategy = Unlearn(Broken, None, [LEAVER], ledger=None)
    result = strategy.start(nodes(example.client.app), trained(example), num_rounds=2)
    assert all(bool(t.isfinite().all()) for t in result.arrays.to_torch_state_dict().values())


TOO_FEW: dict[str, Callable[[], Strategy]] = {
    "available": lambda: FedAvg(min_available_nodes=4),
    "evaluate": lambda: FedAvg(min_evaluate_nodes=4),
    "train": lambda: FedAvg(min_train_nodes=4),
    "wrapped": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(min_available_nodes=4), 0.1, 1.0, 3),
}


@pytest.mark.parametrize("which", list(TOO_FEW))
def test_too_few_nodes_left_is_said_before_waiting_for_ever(which: str, example: Any) -> None:
    strategy = Unlearn(TOO_FEW[which], None, [LEAVER], wait=0, ledger=None)
    with pytest.raises(Refused, match="The strategy waits for 4 nodes, but without the leaver 3 are connected"):
        strategy.start(nodes(example.client.app), trained(example), num_rounds=1)


def test_nodes_that_leave_in_the_middle_end_the_wait_and_not_the_arrays(example: Any) -> None:
    class Shrinking(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            found = super().send_and_receive(messages, timeout=timeout)
            if self.asked(1001, "evaluate"):
                self.nodes.pop(1003, None)
            return found

    grid = Shrinking(nodes(example.client.app).nodes.values(), example.client.app)
    strategy = Unlearn(lambda: FedAvg(min_available_nodes=3), None, [LEAVER], wait=0, ledger=None)
    with pytest.raises(Refused, match="waits for 3 nodes, but without the leaver 2 are connected"):
        strategy.start(grid, trained(example), num_rounds=3)
    assert strategy.arrays is not None and len(grid.asked(1001, "train")) == 1


# --- who leaves -------------------------------------------------------------------------------------------------------


def test_in_a_later_run_with_other_node_ids_the_leaver_is_found_by_its_partition(example: Any) -> None:
    arrays = trained(example)
    grid = nodes(example.client.app, first=77000)
    strategy = Unlearn(FedAvg, negate(example.task.Net()), node_with(partition_id=0, num_partitions=4), ledger=None)
    strategy.start(grid, arrays, num_rounds=2)
    assert [m.metadata.message_type for m in grid.asked(77000)] == ["query.unfed"]  # who it is, and nothing else
    assert len(grid.asked(77001, "train")) == 2


@pytest.mark.parametrize("key", ["client", "client-name", "partition-id"])
def test_a_node_is_known_by_what_its_config_says(key: str, example: Any) -> None:
    base = [{"partition-id": k, "num-partitions": 4} for k in range(4)]
    configs = [{**own, **({} if key == "partition-id" else {key: f"site-{k}"})} for k, own in enumerate(base)]
    grid = InProcessGrid(configs, example.client.app)
    named: dict[str, Any] = {key.replace("-", "_"): "site-2"}
    if key == "partition-id":
        named = {"partition_id": 2, "num_partitions": 4}
    subset = SubsetGrid(grid, node_with(**named))
    assert list(subset.get_node_ids()) == [1000, 1001, 1003]
    grid.nodes[7] = grid.nodes.pop(1002)  # it comes back under another id
    assert 7 not in subset.get_node_ids() and 1002 not in subset.get_node_ids()


NOBODY: dict[str, tuple[Any, str]] = {
    "an id of another run": ([424242], "Node 424242 is not among the 4 connected nodes.*ids are drawn again"),
    "one of two ids": ([LEAVER, 5], "Node 5 is not among"),
    "no id": ([], "exclude is empty"),
    "a partition that is not there": (
        node_with(client="9"),
        "A node with client=9 is not among the 4 connected nodes; name one of partition-id=0, partition-id=1,",
    ),
    "a misspelt name": (registered("nroth"), "A node registered as 'nroth' is not among .* name one of north, or"),
}


@pytest.mark.parametrize("who", list(NOBODY))
def test_an_exclusion_that_matches_nobody_is_an_error_before_the_first_message(who: str, example: Any) -> None:
    grid = nodes(example.client.app)
    grid.names = {LEAVER: "north"}
    exclude, sentence = NOBODY[who]
    with pytest.raises(UnfedError, match=sentence):
        Unlearn(FedAvg, None, exclude, wait=0, ledger=None).start(grid, trained(example), num_rounds=1)
    assert all(m.metadata.message_type == "query.unfed" for m in grid.sent)


def test_a_leaver_that_is_gone_need_not_be_there_and_stays_out_if_it_comes_back(example: Any) -> None:
    grid = nodes(example.client.app)
    away = grid.nodes.pop(LEAVER)
    strategy = Unlearn(FedAvg, None, node_with(partition_id=0, num_partitions=4), gone=True, wait=0, ledger=None)
    strategy.start(grid, trained(example), num_rounds=1)
    grid.nodes[9] = away
    assert 9 not in SubsetGrid(grid, node_with(partition_id=0, num_partitions=4), gone=True).get_node_ids()
    assert grid.asked(9, "train", "evaluate") == []


def test_a_client_app_that_cannot_say_who_it_is_is_told_how(example: Any) -> None:
    mute = ClientApp()
    mute.train()(example.client.train)
    with pytest.raises(UnfedError, match=r"4 of 4 connected nodes might be it.* make that with introduce\("):
        Unlearn(FedAvg, None, node_with(partition_id=0, num_partitions=4), wait=0, ledger=None).start(
            nodes(mute), trained(example), num_rounds=1
        )
    with pytest.raises(UnfedError, match="node_with takes client, client_name, partition_id, not colour"):
        node_with(colour="red")


def test_a_node_that_will_not_say_who_it_is_is_left_out_too(example: Any) -> None:
    grid = nodes(example.client.app)
    del grid.nodes[1003]["partition-id"]
    subset = SubsetGrid(grid, node_with(partition_id=0, num_partitions=4))
    assert list(subset.get_node_ids()) == [1001, 1002]


def test_an_app_made_of_a_client_function_answers_by_a_mod(example: Any) -> None:
    def client_fn(context: Context) -> Any:
        raise AssertionError("not asked to work")

    grid = nodes(ClientApp(client_fn, mods=[introduce_mod]))
    assert list(SubsetGrid(grid, node_with(partition_id=3, num_partitions=4)).get_node_ids()) == [1000, 1001, 1002]


def test_the_log_names_who_was_found(example: Any, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("INFO", "flwr"):
        list(SubsetGrid(nodes(example.client.app), node_with(partition_id=0, num_partitions=4)).get_node_ids())
    assert "unfed: a node with partition-id=0 of 4 has left: 1000" in caplog.text


# --- what is wrapped --------------------------------------------------------------------------------------------------


def test_the_log_says_what_is_perturbed_and_how_much_of_the_model_that_is(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    rows = torch.nn.ModuleDict({"colour": torch.nn.Embedding(3, 2), "shape": torch.nn.Embedding(5, 2)})
    arrays = ArrayRecord(rows.state_dict())
    for layers, said in (
        (["first"], "colour.weight: 6 of 16"),
        (["embedding"], "colour.weight and shape.weight: 16 of 16"),
    ):
        with caplog.at_level("INFO", "flwr"):
            Unlearn(FedAvg, negate(rows, layers), node_with(partition_id=0, num_partitions=4), ledger=None).start(
                foreign_grid(), arrays, num_rounds=1
            )
        assert f"unfed: the perturbation changes {said} numbers" in caplog.text


def test_a_strategy_with_its_own_start_is_refused(example: Any) -> None:
    class Own(FedAvg):
        def start(self, *args: Any, **kwargs: Any) -> Result:
            raise AssertionError

    with pytest.raises(UnfedError, match="Own has a start\\(\\) of its own"):
        Unlearn(Own, None, [LEAVER], ledger=None).start(nodes(example.client.app), trained(example), num_rounds=1)


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


def test_the_example_forgets_in_five_lines(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example.task, "load_digits", load_digits)  # enough to learn from
    before, after = ((EXAMPLE / "digits" / f"{name}.py").read_text().splitlines() for name in ("before", "after"))
    new = [line for line in after if line.rstrip().endswith("# new")]
    assert len(new) == 5
    rest = [line for line in after[1:] if line not in new and '"""' not in line]
    assert all(line in before for line in rest)
    shipped = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config: Any = {**shipped, "rounds": 2, "model": str(tmp_path / "model.pt"), "ledger": str(tmp_path / "e")}
    example.before.app(nodes(example.client.app), Context(1, 1, {}, RecordDict(), config))
    grid = nodes(example.client.app, first=500)  # another run: Flower's simulator draws other ids
    example.after.app(grid, Context(1, 1, {}, RecordDict(), config))
    assert grid.asked(500, "train", "evaluate") == [] and len(grid.asked(501, "train")) == 2
    model = example.task.Net()
    model.load_state_dict(torch.load(tmp_path / "model.pt.unlearned", weights_only=True))
    assert example.task.accuracy(model, *example.task.data(1, 4)) > 0.5
