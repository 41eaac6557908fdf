"""`Unlearn` in the hands of somebody who makes mistakes, and on a day when nodes do: sentences, and no lost model."""

from __future__ import annotations

import html
import logging
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from flower_grid import InProcessGrid, ReadLedger, foreign_grid
from hostile import Attacker
from unfed.errors import Refused, UnfedError
from unfed.flower import SubsetGrid, Unlearn, introduce, negate, negate_arrays, node_with, registered
from unfed.flower.wire import from_arrays
from unfed.model.params import digests, fingerprint
from unfed.remote.ledger import AppLedger

LEAVER = 1000
ARRAYS = ArrayRecord({"w": torch.ones(2)})


def model_of(arrays: ArrayRecord) -> str:
    return fingerprint(digests(from_arrays(arrays)))


def unlearn(strategy: Callable[[], Strategy] = FedAvg, **more: Any) -> Unlearn:
    return Unlearn(strategy, negate_arrays("w"), node_with(partition_id=0), **{"wait": 0, "ledger": None, **more})


# --- who leaves -------------------------------------------------------------------------------------------------------


def test_one_node_id_needs_no_list() -> None:
    assert list(SubsetGrid(foreign_grid(), LEAVER).get_node_ids()) == [1001, 1002, 1003]


@pytest.mark.parametrize("exclude", ["north", ["north"], [LEAVER, "north"]])
def test_a_bare_word_is_no_id_and_what_to_write_is_said(exclude: Any) -> None:
    with pytest.raises(UnfedError, match=r"as numbers, not 'north'; a name is registered\('north'\) or node_with"):
        SubsetGrid(foreign_grid(), exclude)


def test_nobody_is_nobody_in_every_spelling() -> None:
    spellings: list[Any] = [[], (), None, ""]
    for nobody in spellings:
        with pytest.raises(UnfedError, match="exclude (is empty|takes node ids)"):
            SubsetGrid(foreign_grid(), nobody)


LAYER = torch.nn.Linear(2, 2)
WRONG: dict[str, tuple[Any, Any, str]] = {
    "the model for what perturbs it": (LAYER, ARRAYS, r"a function of a state dict, as negate\(Net\(\)\) is, and not"),
    "a perturbation that loses arrays": (lambda arrays: {}, ARRAYS, "returned has no 'w'; return all arrays"),
    "one that returns nothing": (lambda arrays: None, ARRAYS, "returned has no 'w'; return all arrays"),
    "a state dict for a record": (None, {"w": torch.ones(2)}, r"takes an ArrayRecord, not a dict; .* by ArrayRecord\("),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_given_in_the_place_of_another_thing_is_told_apart_before_anybody_is_asked(what: str) -> None:
    grid, (perturb, arrays, sentence) = foreign_grid(), WRONG[what]
    with pytest.raises(UnfedError, match=sentence):
        Unlearn(FedAvg, perturb, node_with(partition_id=0), wait=0, ledger=None).start(grid, arrays, num_rounds=1)
    assert grid.sent == []


def test_a_class_for_a_model_is_told_apart() -> None:
    wrong: Any = torch.nn.Linear
    with pytest.raises(UnfedError, match=r"the model itself, as in negate\(Net\(\)\), not <class"):
        negate(wrong)


def test_an_id_that_is_gone_is_not_said_to_stay_out(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("INFO", "flwr"):
        SubsetGrid(foreign_grid(), [7], gone=True).settle()
        assert "without a key it would come back under another one, and be asked" in caplog.text
        SubsetGrid(foreign_grid(), node_with(partition_id=9), gone=True).settle()
        assert "a node with partition-id=9 has left: it is not connected, and stays out" in caplog.text


@pytest.mark.parametrize("by_name", [False, True])
def test_a_second_node_of_the_same_name_is_out_too_and_both_are_named(
    by_name: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    grid = foreign_grid()
    grid.nodes[7] = dict(grid.nodes[LEAVER])
    grid.names = {LEAVER: "north", 7: "north", 1001: "south"}
    with caplog.at_level("INFO", "flwr"):
        who = registered("north") if by_name else node_with(partition_id=0)
        Unlearn(FedAvg, None, who, wait=0, ledger=None).start(grid, ARRAYS, num_rounds=1)
    assert not grid.asked(LEAVER, "train", "evaluate") and not grid.asked(7, "train", "evaluate")
    assert "has left: 7, 1000" in caplog.text and len(grid.asked(1001, "train")) == 1


# --- what is wrapped --------------------------------------------------------------------------------------------------


class Around(Strategy):
    """Somebody's own wrapper, which calls what it wraps by a name of its own."""

    def __init__(self, mine: Strategy) -> None:
        self._mine = mine

    def configure_train(self, *args: Any) -> Iterable[Message]:
        return self._mine.configure_train(*args)

    def aggregate_train(self, *args: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._mine.aggregate_train(*args)

    def configure_evaluate(self, *args: Any) -> Iterable[Message]:
        return self._mine.configure_evaluate(*args)

    def aggregate_evaluate(self, *args: Any) -> MetricRecord | None:
        return self._mine.aggregate_evaluate(*args)

    def summary(self) -> None:
        """Nothing to say."""


def private(strategy: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 3)


WRAPPED: dict[str, Callable[[Strategy], Strategy]] = {
    "by another name": Around,
    "twice": lambda inner: private(private(inner)),
    "both": lambda inner: Around(private(inner)),
}


@pytest.mark.parametrize("how", list(WRAPPED))
def test_a_minimum_that_only_the_leaver_made_up_is_found_under_every_wrapper(how: str) -> None:
    def strategy() -> Strategy:
        return WRAPPED[how](FedAvg(min_available_nodes=4))

    with pytest.raises(Refused, match="waits for 4 nodes, but without the leaver 3 are connected"):
        unlearn(strategy).start(foreign_grid(), ARRAYS, num_rounds=1)


def test_what_is_aggregated_is_judged_under_every_wrapper() -> None:
    grid = foreign_grid()
    grid.tamper[1002] = without("metrics", "train")
    strategy = unlearn(lambda: Around(FedAvg()))
    strategy.start(grid, ARRAYS, num_rounds=1)
    assert [r.reason for r in strategy.refusals] == ["its metrics lack the weight 'num-examples'"]


def weighing(weight: float, value: float = 9.0) -> Any:
    """A client that says its update has this weight."""

    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            reply.content["metrics"] = MetricRecord({"num-examples": weight})
            reply.content["arrays"] = ArrayRecord({"w": torch.full((2,), value)})
        return reply

    return changed


def test_a_weight_out_of_all_proportion_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    grid, strategy = foreign_grid(), unlearn()
    grid.tamper[1002] = weighing(1e12)
    after = strategy.start(grid, ARRAYS, num_rounds=1).arrays.to_torch_state_dict()["w"]
    assert after.tolist() == [-1.0, -1.0], "the others sent back what they got"
    assert [(r.client, r.reason) for r in strategy.refusals] == [
        ("1002", "its weight 'num-examples' is 1e+12, over 10000 times the others' median (2)")
    ]
    honest = unlearn()
    grid.tamper[1002] = weighing(2 * 10_000)
    honest.start(grid, ARRAYS, num_rounds=1)
    assert honest.refusals == [], "clients may differ much"


def test_a_reply_with_more_than_half_of_the_weight_is_named_in_log_evidence_and_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    grid = foreign_grid()
    grid.tamper[1002] = weighing(4)
    with caplog.at_level("WARNING", "flwr"):
        unlearn(ledger=tmp_path / "half").start(grid, ARRAYS, num_rounds=1)
    assert "heavy" not in ReadLedger(tmp_path / "half").told[0] and "of the weight" not in caplog.text, "4 of 2 + 4 + 2"
    grid.tamper[1002] = weighing(6)
    with caplog.at_level("WARNING", "flwr"):
        unlearn(ledger=tmp_path / "more").start(grid, ARRAYS, num_rounds=1)
    said = "node 1002 in round 1: it has 60.0% of the weight of all 3 replies"
    assert ReadLedger(tmp_path / "more").told[0]["heavy"] == [said] and f"unfed: {said}" in caplog.text
    assert said in ReadLedger(tmp_path / "more").page()


def learning(step: float = 0.1) -> ClientApp:
    """A foreign app whose clients take a step of their own, longer for a higher partition."""
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"].to_torch_state_dict()["w"]
        arrays = ArrayRecord({"w": w + step * int(context.node_config["partition-id"])})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 2, "acc": 0.5})}), reply_to=message)

    return app


def sending(attack: str, begins: int = 1) -> Any:
    """A client that attacks from one of the rounds on."""
    attacker, rounds = Attacker(attack, begins), count(1)

    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            start, honest = (m.content.array_records["arrays"].to_torch_state_dict() for m in (question, reply))
            reply.content["arrays"] = ArrayRecord(OrderedDict(attacker.model(start, honest, next(rounds))))
        return reply

    return changed


@pytest.mark.parametrize("attack", ["scale", "3.4e38"])
@pytest.mark.parametrize("begins", [1, 2])
def test_an_update_of_an_absurd_length_is_dropped_and_named_in_log_and_evidence(
    attack: str, begins: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    grid, silent, strategy = (
        foreign_grid(app=learning()),
        foreign_grid(app=learning()),
        unlearn(ledger=tmp_path / "e"),
    )
    grid.tamper[1003] = sending(attack, begins)
    silent.tamper[1003] = silent_from(begins)
    with caplog.at_level("WARNING", "flwr"):
        after = rounds_of(strategy, grid, 3)
    assert after == rounds_of(unlearn(ledger=tmp_path / "silent"), silent, 3), "as if it had not answered"
    assert [(r.round, r.client) for r in strategy.refusals] == [(n, "1003") for n in range(begins, 4)]
    said = {"scale": "its update has norm 4.24e+05, where ", "3.4e38": "its update has norm 3.4e+38, where "}[attack]
    for line in ReadLedger(tmp_path / "e").rounds[begins - 1 :]:
        (refused,) = line["refused"]
        assert said in refused["reason"] and "is allowed (see Unlearn's refuse_above)" in refused["reason"]
        assert f"unfed: node 1003 in round {refused['round']}: {refused['reason']}" in caplog.text
        assert refused["reason"] in html.unescape(ReadLedger(tmp_path / "e").page())


def rounds_of(strategy: Unlearn, grid: Grid, rounds: int) -> str:
    """The digest of the arrays after some rounds; Flower draws the order in which it asks, and so that of the sum."""
    random.seed(0)
    return model_of(strategy.start(grid, ARRAYS, num_rounds=rounds).arrays)


def silent_from(begins: int) -> Any:
    rounds = count(1)
    return lambda question, reply: (
        None if question.metadata.message_type == "train" and next(rounds) >= begins else reply
    )


def test_the_bound_on_lengths_by_hand() -> None:
    """Node 1003 sends −1 + x: x·√2 may be as long as the model (√2), or 10 times what was usual."""

    def refused(x: float, count: int, rounds: int = 1, step: float = 0.1, **more: Any) -> list[int]:
        grid, strategy, sent = foreign_grid(count, learning(step)), unlearn(**more), iter([0.3] * (rounds - 1) + [x])

        def changed(question: Message, reply: Message) -> Message:
            if question.metadata.message_type == "train":
                start = question.content.array_records["arrays"].to_torch_state_dict()["w"]
                reply.content["arrays"] = ArrayRecord({"w": start + next(sent)})
            return reply

        grid.tamper[1000 + count - 1] = changed
        strategy.start(grid, ARRAYS, num_rounds=rounds)
        return [r.round for r in strategy.refusals]

    assert refused(1.9, 4) == [] and refused(2.1, 4) == [1], "the first round's own median is 0.2"
    assert refused(9.9, 3) == [] and refused(10.1, 3) == [1], "two replies: the model's length counts"
    assert refused(0.9, 4, step=0.01) == [] and refused(1.1, 4, step=0.01) == [1], "as long as the model is too long"
    assert refused(0.9, 3, 2) == [] and refused(1.1, 3, 2) == [2], "the round before says what is usual"
    assert refused(1e6, 4, refuse_above=0) == [], "switched off"


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "10", True, None])
def test_a_bound_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UnfedError, match="refuse_above is a number from 0 on, not"):
        unlearn(refuse_above=wrong)


def test_honest_updates_are_averaged_to_the_same_bits_with_and_without_the_bound() -> None:
    bounded, unbounded = unlearn(), unlearn(refuse_above=0.0)
    found = [rounds_of(one, foreign_grid(app=learning()), 4) for one in (bounded, unbounded)]
    assert found[0] == found[1] != model_of(ARRAYS) and bounded.refusals == []


def test_unlearn_around_unlearn_is_refused() -> None:
    with pytest.raises(UnfedError, match=r"Unlearn has a start\(\) of its own"):
        unlearn(unlearn).start(foreign_grid(), ARRAYS, num_rounds=1)


# --- bad replies, bad rounds ------------------------------------------------------------------------------------------


def without(record: str, kind: str) -> Callable[[Message, Message], Message]:
    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == kind:
            del reply.content[record]
        return reply

    return changed


def test_a_client_that_sends_no_arrays_does_not_cost_the_others_their_round() -> None:
    grid, strategy = foreign_grid(), unlearn()
    grid.tamper[1002] = without("arrays", "train")
    result = strategy.start(grid, ARRAYS, num_rounds=2)
    assert [(r.client, r.reason) for r in strategy.refusals] == [("1002", "it sent no arrays")] * 2
    assert result.arrays.to_torch_state_dict()["w"].tolist() == [-1.0, -1.0]


def test_replies_that_flower_cannot_average_are_the_reason_that_is_given() -> None:
    def another(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            reply.content["metrics"] = MetricRecord({"num-examples": 2, "mine": 1.0})
        return reply

    grid = foreign_grid()
    grid.tamper[1002] = another
    with pytest.raises(Refused, match="None of 1 rounds had a usable update .round 1: .*[Mm]etric"):
        unlearn().start(grid, ARRAYS, num_rounds=1)


def test_no_rounds_are_no_unlearning() -> None:
    grid = foreign_grid()
    with pytest.raises(UnfedError, match="num_rounds = 0, but nothing is forgotten before those who stay have trained"):
        unlearn().start(grid, ARRAYS, num_rounds=0)
    assert grid.sent == []


# --- going on ---------------------------------------------------------------------------------------------------------


class Dying(InProcessGrid):
    """Breaks down when it is to carry the n-th round of training."""

    def __init__(self, at: int) -> None:
        grid = foreign_grid()
        super().__init__(grid.nodes.values(), grid.app)
        self.left = at

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        found = list(messages)
        self.left -= any(m.metadata.message_type == "train" for m in found)
        if self.left == 0:
            raise ConnectionError("the SuperLink is gone")
        return super().send_and_receive(found, timeout=timeout)


def test_the_servers_own_evaluation_goes_on_counting_after_a_crash(tmp_path: Path) -> None:
    seen: list[int] = []
    for grid in (Dying(3), foreign_grid()):
        strategy = unlearn(ledger=tmp_path / "e")
        try:
            strategy.start(grid, ARRAYS, num_rounds=4, evaluate_fn=lambda round, arrays: seen.append(round))
        except ConnectionError:
            seen.append(-1)
    # First the model before, then round 0 of the first start, and what was kept of round 2 at the second.
    assert seen == [0, 0, 1, 2, -1, 2, 3, 4]
    assert [line["round"] for line in ReadLedger(tmp_path / "e").rounds] == [1, 2, 3, 4]


def test_the_same_call_goes_on_after_a_crash_in_the_first_round(tmp_path: Path) -> None:
    def start(grid: InProcessGrid) -> None:
        unlearn(ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=1)

    with pytest.raises(ConnectionError):
        start(Dying(1))
    start(foreign_grid())
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "all rounds" and len(found.rounds) == 1 and found.entry.state == "fulfilled"


def test_a_ledger_that_was_cut_off_after_the_last_round_is_closed_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*given: Any) -> None:
        raise SystemExit(0)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(AppLedger, "end", cut)
        unlearn(ledger=tmp_path / "e").start(foreign_grid(allow="forget"), ARRAYS, num_rounds=1)
    grid = foreign_grid(allow="forget")
    result = unlearn(ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=1)
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "all rounds" and not grid.asked(1001, "train")
    assert found.told[0]["leaver"]["0"]["acc"] == 0.5
    assert result.arrays.to_torch_state_dict()["w"].tolist() == [-1.0, -1.0]
    again = foreign_grid(allow="forget")
    unlearn(ledger=tmp_path / "e").start(again, ARRAYS, num_rounds=1)
    assert not again.asked(LEAVER, "train", "evaluate")  # all is done, and nobody is asked once more


# --- measuring --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_measured_after_the_last_round_costs_no_model(tmp_path: Path) -> None:
    class Leaving(InProcessGrid):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            found = super().send_and_receive(messages, timeout=timeout)
            if len(self.asked(1001, "evaluate")) == 2:  # the model before, and the only round
                self.nodes.pop(1003, None)
            return found

    grid = Leaving(foreign_grid().nodes.values(), foreign_grid().app)
    strategy = unlearn(lambda: FedAvg(min_available_nodes=3), ledger=tmp_path / "e", undo=True)
    result = strategy.start(grid, ARRAYS, num_rounds=1, timeout=None)
    assert result.arrays.to_torch_state_dict()["w"].tolist() == [-1.0, -1.0]
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "all rounds"
    assert "not measured: The strategy waits for 3 nodes, but without the leaver 2 are" in found.page()


def test_a_strategy_that_asks_nobody_to_evaluate_is_the_reason_that_is_given(tmp_path: Path) -> None:
    grid = foreign_grid(allow="forget")
    unlearn(lambda: FedAvg(fraction_evaluate=0.0), ledger=tmp_path / "e").start(grid, ARRAYS, num_rounds=1)
    assert not grid.asked(LEAVER, "train", "evaluate")
    shown = ReadLedger(tmp_path / "e").page()
    assert "not measured: the strategy asks no client to evaluate" in shown and "gave no leave" not in shown


def test_a_leaver_that_gave_leave_is_asked_in_the_apps_own_words(tmp_path: Path) -> None:
    """Under the app's own name for an evaluation, and with the model alone exchanged among several records."""
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    @app.evaluate("quickly")
    def evaluate(message: Message, context: Context) -> Message:
        records = message.content.array_records
        w, scale = (float(records[name].to_torch_state_dict()["w"][0]) for name in ("arrays", "scale"))
        return Message(RecordDict({"m": MetricRecord({"acc": w * scale, "num-examples": 1})}), reply_to=message)

    class Quick(FedAvg):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            scale = ArrayRecord({"w": torch.full((2,), 10.0)})
            content = RecordDict({"scale": scale, "arrays": arrays, "config": config})
            return [Message(content, node, "evaluate.quickly") for node in grid.get_node_ids()]

    unlearn(Quick, ledger=tmp_path / "e").start(foreign_grid(app=app, allow="forget"), ARRAYS, num_rounds=1)
    found = ReadLedger(tmp_path / "e")
    assert [one["leaver"]["0"]["acc"] for one in (found.before, found.told[0])] == [10.0, -10.0]
