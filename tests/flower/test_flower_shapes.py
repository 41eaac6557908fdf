"""`Unlearn` in apps of shapes that it was not written around, and in the hands of somebody with a second request."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedXgbBagging

from flower_grid import InProcessGrid, ReadLedger, echoing, foreign_grid
from unfed.errors import Refused, UnfedError
from unfed.flower import SubsetGrid, Unlearn, denied, introduce, introduce_mod, negate_arrays, node_with, registered
from unfed.folder.deny import on_list

LEAVER = 1000
ARRAYS = ArrayRecord({"w": torch.ones(2)})


def unlearn(strategy: Callable[[], FedAvg] = FedAvg, leaves: int = 0, **more: Any) -> Unlearn:
    return Unlearn(strategy, negate_arrays("w"), node_with(partition_id=leaves), **{"wait": 0, "ledger": None, **more})


def trained(grid: InProcessGrid) -> set[int]:
    return {message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == "train"}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("INFO", "flwr"):
        yield caplog


# --- client apps ------------------------------------------------------------------------------------------------------


def needs_a_model(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod such as apps have: every message of theirs has arrays in it, and every reply metrics."""
    size = sum(len(array.data) for array in message.content.array_records["arrays"].values())
    reply = call_next(message, context)
    reply.content.metric_records["metrics"]["bytes"] = size
    return reply


def test_an_apps_own_mods_do_not_see_the_question_who_a_node_is() -> None:
    app = introduce(introduce(ClientApp(mods=[needs_a_model])))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 2})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    grid = foreign_grid(app=app)
    unlearn(lambda: FedAvg(fraction_evaluate=0)).start(grid, ARRAYS, num_rounds=1)
    assert trained(grid) == {1001, 1002, 1003}
    assert all("bytes" in metrics for reply in grid.replies for metrics in reply.content.metric_records.values())


def test_an_app_of_a_client_function_is_introduced_in_the_same_way() -> None:
    def client_fn(context: Context) -> Any:
        raise AssertionError("not asked to work")

    for app in (ClientApp(client_fn), ClientApp(client_fn, mods=[needs_a_model])):
        assert list(SubsetGrid(foreign_grid(app=introduce(app)), node_with(partition_id=3)).get_node_ids()) == [
            1000,
            1001,
            1002,
        ]


def test_why_a_client_app_could_not_say_who_it_is_is_what_the_sentence_says() -> None:
    def client_fn(context: Context) -> Any:
        raise AssertionError("not asked to work")

    broken = ClientApp(client_fn, mods=[needs_a_model, introduce_mod])
    with pytest.raises(UnfedError, match=r"4 of 4 connected nodes .* failed when it was asked who it is \('arrays'\)"):
        SubsetGrid(foreign_grid(app=broken), node_with(partition_id=0), wait=0).settle()
    with pytest.raises(UnfedError, match="1 of 1 connected nodes .* its node config does not say who it is; give"):
        SubsetGrid(InProcessGrid([{}], echoing()), node_with(partition_id=0), wait=0).settle()


def test_a_name_is_said_as_it_was_given() -> None:
    with pytest.raises(UnfedError, match="A node with client=Ward North is not among the 4 connected nodes"):
        SubsetGrid(foreign_grid(), node_with(client="Ward North"), wait=0).settle()


def test_a_part_of_a_data_set_that_is_dealt_to_fewer_nodes_is_not_taken_for_the_leaver() -> None:
    fewer = InProcessGrid([{"partition-id": k, "num-partitions": 2} for k in range(2)], echoing())
    leaver = {"partition_id": 0, "num_partitions": 4}
    with pytest.raises(UnfedError, match=r"2 of 2 connected nodes might be it\. .* one of 2 parts, not of 4: rows are"):
        SubsetGrid(fewer, node_with(**leaver), wait=0).settle()
    as_before = InProcessGrid([{"partition-id": k, "num-partitions": 4} for k in range(4)], echoing())
    subset = SubsetGrid(as_before, node_with(**leaver), wait=0)
    assert list(subset.get_node_ids()) == [1001, 1002, 1003]
    assert subset.leavers[0].words == "a node with partition-id=0 of 4" and list(subset.leavers[0].names) == ["0"]
    as_before.nodes[9] = {"partition-id": 1, "num-partitions": 2}
    assert list(subset.get_node_ids()) == [1001, 1002, 1003], "some of the leaver's rows may be its"
    with pytest.raises(UnfedError, match="num_partitions says of how many parts partition_id is one"):
        node_with(client="north", num_partitions=4)
    with pytest.raises(UnfedError, match="There is no partition 4 of 4: they are 0 to 3"):
        node_with(partition_id=4, num_partitions=4)  # gone=True would take it for somebody who is not there any more


def test_a_partition_without_the_number_of_partitions_is_refused_where_nodes_state_one() -> None:
    stating = InProcessGrid([{"partition-id": k, "num-partitions": 3} for k in range(3)], echoing())
    with pytest.raises(UnfedError, match=r"Partition 0 of how many\? The nodes state num-partitions=3; pass"):
        Unlearn(FedAvg, None, node_with(partition_id=0), gone=True, ledger=None).start(stating, ARRAYS, num_rounds=1)
    assert all(m.metadata.message_type == "query.unfed" for m in stating.sent)
    subset = SubsetGrid(foreign_grid(), node_with(partition_id=0), wait=0)
    assert list(subset.get_node_ids()) == [1001, 1002, 1003], "these state none"
    foreign: Any = subset.whole
    foreign.nodes[9] = {"partition-id": 7, "num-partitions": 8}
    assert list(subset.get_node_ids()) == [1001, 1002, 1003], "it may hold the leaver's rows, and ends no run"
    assert list(SubsetGrid(stating, node_with(client="x"), gone=True).get_node_ids()) == [1000, 1001, 1002]


def test_a_leaver_that_comes_back_by_its_partition_alone_stays_out() -> None:
    configs = [{"client": f"site-{k}", "partition-id": k, "client-name": "shared"} for k in range(4)]
    grid = InProcessGrid(configs, echoing())
    subset = SubsetGrid(grid, node_with(client="site-0"), wait=0)
    assert list(subset.get_node_ids()) == [1001, 1002, 1003]
    assert list(subset.leavers[0].names) == ["site-0", "0"], "what all share says nothing"
    del grid.nodes[1000]
    grid.nodes[7] = {"client": "site-9", "partition-id": 0}
    grid.nodes[8] = {"client": "site-8", "partition-id": 8, "client-name": "shared"}
    assert list(subset.get_node_ids()) == [1001, 1002, 1003, 8]


# --- who is who, at every moment --------------------------------------------------------------------------------------


class Busy(InProcessGrid):
    """A grid on which somebody connects just after somebody looked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.comes: dict[int, dict[str, Any]] = {}

    def get_node_ids(self) -> Iterable[int]:
        found = list(self.nodes)
        self.nodes |= self.comes
        return found


@pytest.mark.parametrize("by_name", [False, True])
def test_a_leaver_that_connects_while_somebody_looks_is_not_listed(by_name: bool) -> None:
    grid = Busy([{"partition-id": k} for k in range(4)], echoing())
    grid.names = {1000: "0", 1001: "1", 1002: "2", 1003: "3", 9: "0"}
    exclude = registered(0) if by_name else node_with(partition_id=0)
    subset = SubsetGrid(grid, exclude)
    subset.settle()
    grid.comes = {9: {"partition-id": 0}}
    for _ in range(3):
        assert list(subset.get_node_ids()) == [1001, 1002, 1003]


def test_a_leaver_that_connects_while_the_others_are_asked_is_asked_before_anybody_gives_up() -> None:
    grid = InProcessGrid([{"partition-id": k} for k in range(1, 4)], echoing())

    def meanwhile(ask: Message, reply: Message) -> Message | None:
        grid.nodes[9] = {"partition-id": 0}
        return reply

    grid.tamper[1001] = meanwhile
    assert list(SubsetGrid(grid, node_with(partition_id=0), wait=0).get_node_ids()) == [1000, 1001, 1002]


def test_who_left_and_comes_back_in_the_middle_is_named_in_the_log(log: pytest.LogCaptureFixture) -> None:
    grid = foreign_grid()
    subset = SubsetGrid(grid, node_with(partition_id=0))
    subset.settle()
    grid.nodes[9], grid.nodes[10] = {"partition-id": 0}, {}
    assert list(subset.get_node_ids()) == list(subset.get_node_ids()) == [1001, 1002, 1003]
    assert log.text.count("a node with partition-id=0 has left, and is connected again: 9") == 1
    assert log.text.count("node 10 is left out, for it might be the leaver: its node config does not say") == 1


def test_a_node_that_did_not_say_who_it_is_is_asked_again_when_it_is_back_and_not_let_in_without() -> None:
    grid = foreign_grid()
    subset = SubsetGrid(grid, node_with(partition_id=0))
    own = grid.nodes.pop(1003)

    def silent(ask: Message, reply: Message) -> Message | None:
        return Message(Error(5, "Unavailable"), reply_to=ask)

    grid.tamper[1003] = silent
    for answers in (False, False, True):
        if answers:
            del grid.tamper[1003]
        grid.nodes[1003] = own
        assert list(subset.get_node_ids()) == [1001, 1002, *([1003] if answers else [])]
        del grid.nodes[1003]
        assert list(subset.get_node_ids()) == [1001, 1002]


def test_a_key_that_comes_back_with_the_leavers_data_is_out() -> None:
    grid = foreign_grid()
    subset = SubsetGrid(grid, node_with(partition_id=0))
    assert list(subset.get_node_ids()) == [1001, 1002, 1003]
    del grid.nodes[1003]
    assert list(subset.get_node_ids()) == [1001, 1002]
    grid.nodes[1003] = {"partition-id": 0}
    grid.contexts.clear()
    assert list(subset.get_node_ids()) == [1001, 1002]


def test_a_key_that_comes_back_with_the_leavers_data_before_anybody_looks_is_out() -> None:
    grid = foreign_grid()
    subset = SubsetGrid(grid, node_with(partition_id=0))
    assert list(subset.get_node_ids()) == [1001, 1002, 1003]
    grid.restart(1003, **{"partition-id": 0})
    assert list(subset.get_node_ids()) == [1001, 1002]


def test_a_node_that_dies_in_a_round_is_named_though_the_superlink_answers_for_it() -> None:
    grid = foreign_grid()

    def superlinks(ask: Message, reply: Message) -> Message | None:
        if ask.metadata.message_type != "train":
            return reply
        told = Message(Error(5, "Node Unavailable"), reply_to=ask)
        told.metadata.__dict__["_src_node_id"] = 1  # so a SuperLink signs it
        return told

    def lost(ask: Message, reply: Message) -> Message | None:
        return None if ask.metadata.message_type == "train" else reply

    grid.tamper = {1002: lost, 1003: superlinks}
    strategy = unlearn()
    strategy.start(grid, ARRAYS, num_rounds=1)
    found = {r.client: r.reason for r in strategy.refusals}
    assert found.keys() == {"1002", "1003"}
    assert sorted(found.values()) == ["it did not answer", "it failed: Node Unavailable"]


# --- strategies of one's own ------------------------------------------------------------------------------------------


def test_a_strategy_that_waits_by_a_number_of_its_own_does_not_wait_for_ever() -> None:
    class Patient(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            for _ in range(50):
                if len(list(grid.get_node_ids())) >= 4:
                    break
            else:
                raise AssertionError("it would wait for ever")
            return super().configure_train(server_round, arrays, config, grid)

    with pytest.raises(Refused, match="asked no node; 3 nodes remain without the leaver: lower"):
        unlearn(Patient).start(foreign_grid(), ARRAYS, num_rounds=1)


def test_a_wait_that_only_hidden_nodes_would_end_is_explained_in_the_log(log: pytest.LogCaptureFixture) -> None:
    subset = SubsetGrid(foreign_grid(), node_with(partition_id=0), wait=0)
    for _ in range(5):  # as Flower's own sampling does, for ever, where a strategy waits for four
        list(subset.get_node_ids())
    assert log.text.count("1 connected node stays out: wait for at most 3 nodes") == 1
    calm = SubsetGrid(foreign_grid(), node_with(partition_id=0), wait=0)
    log.clear()
    for _ in range(5):
        (node, *_), ask = calm.get_node_ids(), RecordDict({"arrays": ARRAYS})
        assert len(list(calm.send_and_receive([Message(ask, node, "train")], timeout=1))) == 1
    assert "has asked no node" not in log.text


class Halves(FedAvg):
    """Clients send half of what changed in float16 and no weights; the strategy puts it together."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        sent = [reply.content.array_records["arrays"]["delta"].numpy() for reply in replies]
        new = -np.ones(2, np.float32) + np.mean(sent, axis=0).astype(np.float32)
        return ArrayRecord(OrderedDict(w=Array(new))), None


def halving(value: float = 1.0) -> ClientApp:
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        odd = float("nan") if context.node_config["partition-id"] == 3 else value
        arrays = ArrayRecord(OrderedDict(delta=Array(np.full(2, odd, np.float16))))
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    return app


def growing() -> ClientApp:
    """Clients add one to every number, and evaluate as those that only echo do."""
    app, echo = introduce(ClientApp()), echoing()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent = message.content.array_records["arrays"].to_torch_state_dict()
        arrays = ArrayRecord({name: tensor + 1 for name, tensor in sent.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return echo(message, context)

    return app


def test_replies_of_a_form_of_its_own_go_to_a_strategy_that_aggregates_by_itself() -> None:
    strategy = unlearn(lambda: Halves(fraction_evaluate=0))
    result = strategy.start(foreign_grid(app=halving(0.5)), ARRAYS, num_rounds=1)
    assert result.arrays["w"].numpy().tolist() == [-0.5, -0.5]
    assert [(r.client, "NaN" in r.reason or "finite" in r.reason) for r in strategy.refusals] == [("1003", True)]
    with pytest.raises(Refused, match="None of 1 rounds had a usable update"):  # Flower's own knows nothing of them
        unlearn(lambda: FedAvg(fraction_evaluate=0)).start(foreign_grid(app=halving()), ARRAYS, num_rounds=1)


def test_a_result_that_is_another_model_is_not_kept() -> None:
    class Growing(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            return ArrayRecord({"w": torch.ones(2 + server_round)}), None

    with pytest.raises(Refused, match="its result is not of the model's form"):
        unlearn(Growing).start(foreign_grid(), ARRAYS, num_rounds=2)


def test_whatever_averaging_made_float64_of_comes_back_in_the_clients_own_types() -> None:
    own = {"seen": torch.bool, "code": torch.uint8, "level": torch.int16, "scale": torch.float16}
    model = {"w": torch.ones(2), **{name: torch.ones(3, dtype=kind) for name, kind in own.items()}}
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent = message.content.array_records["arrays"].to_torch_state_dict()
        arrays = ArrayRecord({name: sent[name].to(tensor.dtype) for name, tensor in model.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    only_training: Callable[[], FedAvg] = lambda: FedAdam(fraction_evaluate=0)  # noqa: E731
    left = only_training().start(foreign_grid(app=app), ArrayRecord(model), num_rounds=1).arrays
    assert {array.dtype for array in left.values()} == {"float64"}  # as FedAdam leaves them
    strategy = unlearn(only_training)
    found = strategy.start(foreign_grid(app=app), left, num_rounds=1).arrays.to_torch_state_dict()
    assert strategy.refusals == []
    assert {name: tensor.dtype for name, tensor in found.items()} == {"w": torch.float32, **own}


def test_trees_cannot_be_forgotten_by_going_on_and_what_can_be_done_is_said() -> None:
    grid = foreign_grid()
    with pytest.raises(UnfedError, match="FedXgbBagging keeps the trees .*; train a new model"):
        Unlearn(FedXgbBagging, None, node_with(partition_id=0), ledger=None).start(grid, ARRAYS, num_rounds=1)
    assert grid.sent == []
    with pytest.raises(UnfedError, match=r"The array '0' holds torch.uint8, which are no weights"):
        negate_arrays("0")({"0": torch.zeros(3, dtype=torch.uint8)})


# --- a second request, and a day after a crash ------------------------------------------------------------------------


def test_a_request_that_would_turn_an_earlier_one_back_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    first = unlearn(ledger=tmp_path / "first").start(foreign_grid(), ARRAYS, num_rounds=1).arrays
    for leaves in (0, 1):  # whoever asks twice, and somebody else
        grid = foreign_grid()
        with pytest.raises(UnfedError, match=r"were unlearned before, says .*: changing 'w' .* brings 0 back; perturb"):
            unlearn(leaves=leaves, ledger=tmp_path / "first").start(grid, first, num_rounds=1)
        assert grid.sent == []
    grid = foreign_grid()
    unlearn(leaves=1, ledger=tmp_path / "first").start(grid, ARRAYS, num_rounds=1)  # from the model before it
    assert trained(grid) == {1002, 1003}


def test_what_was_turned_by_all_earlier_requests_is_known(tmp_path: Path) -> None:
    def forget(name: str, leaves: int, arrays: ArrayRecord, perturb: Any = None) -> ArrayRecord:
        strategy = Unlearn(
            lambda: FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1),
            perturb or negate_arrays(name),
            node_with(partition_id=leaves),
            ledger=tmp_path / "e",
            wait=0,
        )
        return strategy.start(foreign_grid(), arrays, num_rounds=1).arrays

    one = forget("w", 0, ArrayRecord({"w": torch.ones(2), "v": torch.ones(2)}))
    two = forget("v", 1, one)
    with pytest.raises(UnfedError, match="changing 'w' .* brings 0 and 1 back"):
        forget("w", 2, two)
    with pytest.raises(UnfedError, match="changing 'w'"):  # v is as it was there, w is not
        forget("w", 2, one)
    forget("", 2, two, lambda arrays: {name: old + 1 for name, old in arrays.items()})
    assert ReadLedger(tmp_path / "e").numbers["app"]["turns"] == []  # noise and the like turns nothing


def test_of_arrays_that_nobody_has_seen_the_log_says_what_they_must_not_come_from(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    unlearn(ledger=tmp_path / "first").start(foreign_grid(), ARRAYS, num_rounds=1)
    trained_on = ArrayRecord({"w": torch.full((2,), 0.5)})
    unlearn(leaves=1, ledger=tmp_path / "first").start(foreign_grid(), trained_on, num_rounds=1)
    said = [record.getMessage() for record in log.records if record.levelname == "WARNING"]
    assert any("if these arrays come from the unlearning in" in line and "brings 0 back" in line for line in said)


def test_a_request_that_was_broken_off_begins_again_where_another_left_meanwhile(tmp_path: Path) -> None:
    def ends(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 1:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        unlearn(ledger=tmp_path / "e").start(foreign_grid(), ARRAYS, num_rounds=2, evaluate_fn=ends)
    unlearn(leaves=1, ledger=tmp_path / "e").start(grid := foreign_grid(), ARRAYS, num_rounds=1)
    assert trained(grid) == {1002, 1003}, "who asked first stays out too"
    unlearn(ledger=tmp_path / "e").start(grid := foreign_grid(), ARRAYS, num_rounds=2)
    assert trained(grid) == {1002, 1003} and len(grid.asked(1002, "train")) == 2, "round 1 had trained with who left"
    assert ReadLedger(tmp_path / "e", "client-0").numbers["start"] == 2


def test_a_ledger_keeps_the_deny_list_that_it_began_with(tmp_path: Path) -> None:
    for place, names in (("one", "2\n"), ("another", "2\n"), ("longer", "2\n3\n")):
        (tmp_path / place).write_text(names)
    few: Any = lambda: FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1)  # noqa: E731

    def forget(leaves: int, place: str) -> None:
        who = [node_with(partition_id=leaves), denied(tmp_path / place)]
        Unlearn(few, None, who, tmp_path / "e", wait=0).start(foreign_grid(5), ARRAYS, num_rounds=1)

    forget(0, "one")
    forget(1, "another")
    with pytest.raises(UnfedError, match="began with another deny list"):
        forget(4, "longer")
    assert on_list(tmp_path / "e").clients == ("0", "1", "2")


def test_a_start_that_was_refused_leaves_no_wrong_name_on_the_deny_list(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="reports no metric 'accuracy'"):
        unlearn(leaves=1, ledger=tmp_path / "e", recover="accuracy").start(foreign_grid(), ARRAYS, num_rounds=1)
    unlearn(leaves=0, ledger=tmp_path / "e", recover="acc").start(foreign_grid(), ARRAYS, num_rounds=1)
    assert on_list(tmp_path / "e").clients == ("0",)


def test_after_a_round_that_changed_nothing_the_rounds_keep_their_numbers(tmp_path: Path) -> None:
    grid, times = foreign_grid(), {"train": 0}

    def fails_in_round_two(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train":
            return reply
        times["train"] += 1
        if times["train"] > 9:
            raise KeyboardInterrupt
        return Message(Error(2, "a bad day"), reply_to=message) if 3 < times["train"] <= 6 else reply

    grid.tamper = dict.fromkeys((1001, 1002, 1003), fails_in_round_two)
    with pytest.raises(KeyboardInterrupt):
        unlearn(ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=4)
    assert [line["round"] for line in ReadLedger(tmp_path / "e").rounds] == [1, 2, 3]
    grid = foreign_grid()
    grid.tamper[1002] = lambda ask, reply: None if ask.metadata.message_type == "train" else reply
    unlearn(ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=4)
    lines = ReadLedger(tmp_path / "e").rounds
    assert lines[-1]["refused"] == [{"round": 4, "client": "2", "reason": "it did not answer"}]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]


def test_a_page_says_which_rounds_changed_nothing(tmp_path: Path) -> None:
    grid = foreign_grid(app=growing())

    def fails_in_round_two(message: Message, reply: Message) -> Message:
        training = message.metadata.message_type == "train"
        return Message(Error(2, "a bad day"), reply_to=message) if training and len(trainings()) > 3 else reply

    def trainings() -> list[Message]:
        return [message for message in grid.sent if message.metadata.message_type == "train"]

    grid.tamper = dict.fromkeys((1001, 1002, 1003), fails_in_round_two)
    unlearn(ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=2)
    page = ReadLedger(tmp_path / "e").page()
    assert "Round 2 changed nothing." in page and "Round 1 changed nothing." not in page


def test_a_leaver_that_goes_by_no_name_is_kept_out_by_its_id(tmp_path: Path) -> None:
    who: Any = [node_with(partition_id=0), 1003]
    Unlearn(FedAvg, negate_arrays("w"), who, wait=0, ledger=tmp_path / "e").start(foreign_grid(), ARRAYS, num_rounds=1)
    assert on_list(tmp_path / "e").clients == ("0", "3", "node-1003")
    assert list(SubsetGrid(foreign_grid(), deny=tmp_path / "e").get_node_ids()) == [1001, 1002]


def test_a_page_says_that_others_were_asked_before_than_after(tmp_path: Path) -> None:
    class Sampling(FedAvg):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            asked = [1001, 1002] if server_round == 0 else [1003]
            return [Message(RecordDict({"arrays": arrays, "config": config}), node, "evaluate") for node in asked]

    for strategy, who in ((Sampling, "2 before and 1 after, not the same ones"), (FedAvg, ">the clients that stay<")):
        folder = tmp_path / strategy.__name__
        unlearn(strategy, ledger=folder).start(foreign_grid(), ARRAYS, num_rounds=1)
        assert who in ReadLedger(folder).page()


def test_a_page_says_that_nobody_was_asked_of_the_last_model(tmp_path: Path) -> None:
    class Rarely(FedAvg):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return super().configure_evaluate(server_round, arrays, config, grid) if server_round < 2 else []

    for app, said in ((growing(), True), (echoing(), False)):
        folder = tmp_path / str(said)
        unlearn(Rarely, ledger=folder).start(foreign_grid(app=app), ARRAYS, num_rounds=2)
        page = ReadLedger(folder).page()
        assert (">the clients that stay, after round 1; the last model was not evaluated<" in page) == said
