"""A class leaves a foreign Flower app: every client is told, says what it left out, and is refused if it does not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from command_line import called
from conftest import SMALL
from flower_grid import InProcessGrid, ReadLedger, Reply
from unfed.config.config import Config
from unfed.errors import Refused, UnfedError
from unfed.flower import SubsetGrid, Unlearn, denied, introduce, negate_arrays, node_with, of_class, staying_rows
from unfed.folder.deny import imported, on_list
from unfed.runs.run import Run

LABELS = {0: [0, 1, 2, 3], 1: [0, 3, 3, 5, 1], 2: [1, 1, 2, 0], 3: [3, 3, 3, 3, 2, 2]}
"""What the partitions hold; class 3 lies at three of them, class 5 at one."""

Staying = Callable[[Message, list[int]], Any]


def nobody_leaves(message: Message, labels: list[int]) -> Any:
    """What an app does that knows nothing of classes."""
    return np.ones(len(labels), dtype=bool)


def only_asks(message: Message, labels: list[int]) -> Any:
    """What an app does that asks which rows stay, and trains on all of them."""
    staying_rows(message, labels)
    return nobody_leaves(message, labels)


def app(staying: Staying = staying_rows, *mods: Any) -> ClientApp:
    """A client moves the weight by the mean of its labels, and says how many of them it looked at."""
    made = introduce(ClientApp())

    @made.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        y = np.array(LABELS[int(context.node_config["partition-id"])])
        y = y[staying(message, y.tolist())]
        old = message.content.array_records["arrays"].to_torch_state_dict()
        new = ArrayRecord({"w": old["w"] + float(y.mean() if len(y) else 0), "v": old["v"] + 1})
        return Message(RecordDict({"arrays": new, "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        y = np.array(LABELS[int(context.node_config["partition-id"])])
        left = int((~staying_rows(message, y)).sum())
        metrics = MetricRecord({"num-examples": len(y), "acc": 0.5, "left": left})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


def federation(own: ClientApp | None = None, nodes: Iterable[int] = LABELS) -> InProcessGrid:
    return InProcessGrid([{"partition-id": k} for k in nodes], own or app())


def trained() -> ArrayRecord:
    return ArrayRecord({"w": torch.tensor(4.0), "v": torch.tensor(1.0)})


def unlearn(exclude: Any, array: str = "w", **more: Any) -> Unlearn:
    return Unlearn(FedAvg, negate_arrays(array), exclude, **{"wait": 0, "ledger": None, **more})


def asked_of(grid: InProcessGrid, kind: str) -> list[Any]:
    """The classes that every message of a kind named, in its config."""
    sent = [message for message in grid.sent if message.metadata.message_type == kind]
    return [message.content.config_records["config"].get("unfed-forget-classes") for message in sent]


# --- the first request is a class -------------------------------------------------------------------------------------


def test_a_class_leaves_as_the_first_request_and_everybody_trains_without_its_rows(tmp_path: Path) -> None:
    grid = federation()
    result = unlearn(of_class(3), ledger=tmp_path / "e").start(grid, trained(), num_rounds=1)
    # -4, and the mean of what stays at each, weighted by how many: [0 1 2], [0 5 1], [1 1 2 0], [2 2].
    assert float(result.arrays.to_torch_state_dict()["w"]) == pytest.approx(-4 + (3 + 6 + 4 + 4) / 12)
    assert asked_of(grid, "train") == [[3]] * 4 and asked_of(grid, "evaluate") == [[3]] * 8
    found = ReadLedger(tmp_path / "e")
    assert (found.entry.request.classes, found.entry.request.clients) == ((3,), ())
    (line,) = found.told
    told = {client: (one["rows"], one["of"]) for client, one in line["left_out"].items()}
    assert told == {
        "node-1000": ({"3": 1}, 4),
        "node-1001": ({"3": 2}, 5),
        "node-1002": ({"3": 0}, 4),
        "node-1003": ({"3": 4}, 6),
    }, "no node was asked who it is"
    assert line["evaluate"]["left"] == pytest.approx((1 * 4 + 2 * 5 + 4 * 6) / 19), "evaluation is told too"


def test_it_is_the_strategy_alone_on_clients_that_never_held_the_class() -> None:
    without = app(lambda message, labels: np.array(labels) != 3)
    random.seed(0)
    start = ArrayRecord(negate_arrays("w")(dict(trained().to_torch_state_dict())))
    plain = FedAvg().start(federation(without), start, num_rounds=3).arrays.to_torch_state_dict()
    random.seed(0)
    found = unlearn(of_class(3)).start(federation(), trained(), num_rounds=3).arrays.to_torch_state_dict()
    assert {name: float(value) for name, value in found.items()} == {name: float(v) for name, v in plain.items()}


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    code, _, err = called(["report", str(folder)], monkeypatch, capsys)
    assert code == 0, err
    return (folder / "report.html").read_text()


def test_the_page_names_the_class_and_how_many_rows_each_client_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unlearn(of_class(3, 5), ledger=tmp_path / "e").start(federation(), trained(), num_rounds=2)
    page = page_of(tmp_path / "e", monkeypatch, capsys)
    assert "Class 3: 4 clients say that 7 rows of it were left out of the last training." in page
    assert "Class 5: 4 clients say that 1 row of it was left out of the last training." in page
    assert "Round 2: client node-1001 left 3 of 5 rows out." in page
    assert "not measured: no client is asked to score the rows that it left out" in page


def test_a_client_and_a_class_leave_together_by_two_requests_with_one_model(tmp_path: Path) -> None:
    grid = federation()
    unlearn([node_with(partition_id=3), of_class("3")], ledger=tmp_path / "e").start(grid, trained(), num_rounds=1)
    assert not grid.asked(1003, "train", "evaluate") and asked_of(grid, "train") == [[3]] * 3
    found = ReadLedger(tmp_path / "e", "client-3")
    assert {name: (one.state, one.left_by) for name, one in found.entries.items()} == {
        "client-3": ("fulfilled", ()),
        "class-3": ("fulfilled", ("client-3",)),
    }
    assert "Class 3" in found.page() and (on_list(tmp_path / "e").clients, on_list(tmp_path / "e").classes) == (
        ("3",),
        (3,),
    )


def test_the_log_names_the_class_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        unlearn(of_class(3)).start(federation(), trained(), num_rounds=1)
    assert "unfed: class 3 has left: every client is asked to leave its rows out" in caplog.text
    assert "Unlearning without rows of class 3, which every client leaves out" in caplog.text


def test_mods_that_clip_find_the_one_config_that_they_take() -> None:
    def private() -> Any:
        return DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1e-9, 100.0, 4)

    strategy = Unlearn(private, negate_arrays("w"), of_class(3), wait=0, ledger=None)
    grid = federation(app(staying_rows, fixedclipping_mod))
    strategy.start(grid, trained(), num_rounds=1)
    assert strategy.refusals == [] and asked_of(grid, "train") == [[3]] * 4


# --- clients that do not leave the rows out ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (app(nobody_leaves), "does not say that it left class 3 out; make it with introduce"),
        (app(only_asks), "its weight 'num-examples' is 4, which counts the 1 rows of class 3 too"),
    ],
)
def test_an_app_whose_clients_do_not_leave_the_rows_out_is_refused_in_the_first_round(
    own: ClientApp, reason: str, tmp_path: Path
) -> None:
    only = (0, 1, 3)  # who holds none of it cannot be told from one that leaves it out
    grid = federation(own, only)
    with pytest.raises(Refused, match=f"No client says that it left class 3 out .* node 1000: .*{reason}"):
        unlearn(of_class(3), ledger=tmp_path / "e").start(grid, trained(), num_rounds=5)
    found = ReadLedger(tmp_path / "e")
    assert len(grid.asked(1000, "train")) == 1 and found.rounds == [] and found.entry.state == "in_progress"


def without_note(question: Message, reply: Message) -> Message | None:
    return with_note(None)(question, reply)


def with_note(note: ConfigRecord | None) -> Reply:
    """A reply with another note of what was left out, or without any."""

    def changed(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            reply.content.pop("unfed.rows")
            if note is not None:
                reply.content["unfed.rows"] = note
        return reply

    return changed


def note(classes: Any, counts: Any, rows: Any) -> Reply:
    said = {"unfed-forget-classes": classes, "unfed-left-out": counts, "unfed-rows": rows}
    return with_note(ConfigRecord({name: value for name, value in said.items() if value is not None}))


@pytest.mark.parametrize(
    "tamper",
    [
        without_note,
        note([5], [0], 4),
        note([3], [0, 0], 4),
        note([3], ["0"], 4),
        note([3], [-1], 4),
        note([3], [5], 4),
        note([3], 1, 4),
        note([3], [0], None),
    ],
)
def test_one_that_does_not_say_it_is_refused_by_name_and_the_others_are_averaged(tamper: Reply) -> None:
    grid, strategy = federation(), unlearn(of_class(3))
    grid.tamper[1002] = tamper
    result = strategy.start(grid, trained(), num_rounds=1)
    assert [refused.client for refused in strategy.refusals] == ["1002"]
    assert "class 3" in strategy.refusals[0].reason and "it failed" not in strategy.refusals[0].reason
    assert float(result.arrays.to_torch_state_dict()["w"]) == pytest.approx(-4 + (3 + 6 + 4) / 8)


def test_once_somebody_has_said_it_a_round_without_is_a_bad_round_and_not_the_end() -> None:
    grid, strategy = federation(), unlearn(of_class(3))

    def in_round_2(question: Message, reply: Message) -> Message | None:
        now = question.content.config_records["config"]["server-round"]
        return without_note(question, reply) if now == 2 else reply

    grid.tamper = dict.fromkeys(grid.nodes, in_round_2)
    strategy.start(grid, trained(), num_rounds=3)
    assert sorted({refused.round for refused in strategy.refusals}) == [2] and len(strategy.refusals) == 4


def test_a_client_that_holds_nothing_else_is_refused_by_name_and_its_rows_count_as_left_out(tmp_path: Path) -> None:
    class_5 = app(lambda message, labels: staying_rows(message, labels) & (len(labels) != 5))
    strategy = unlearn(of_class(5), ledger=tmp_path / "e")
    strategy.start(federation(class_5), trained(), num_rounds=1)
    assert [refused.client for refused in strategy.refusals] == ["1001"]
    (line,) = ReadLedger(tmp_path / "e").rounds
    rows = {client: one["rows"]["5"] for client, one in line["app"]["left_out"].items()}
    assert rows == {"node-1000": 0, "node-1001": 1, "node-1002": 0, "node-1003": 0}
    assert (
        line["refused"][0]["client"] == "node-1001" and "its weight 'num-examples' is 0" in line["refused"][0]["reason"]
    )


def test_until_forgotten_is_refused_where_nobody_left_whom_one_could_ask(tmp_path: Path) -> None:
    grid = federation()
    with pytest.raises(UnfedError, match="only the app itself can score rows of a class; leave forgotten"):
        unlearn(of_class(3), ledger=tmp_path / "e", forgotten="acc").start(grid, trained(), num_rounds=1)
    assert not grid.asked(1000, "train")


def test_a_class_of_which_nobody_has_a_row_is_not_called_forgotten(tmp_path: Path) -> None:
    for exclude, words in ((of_class(7), "class 7"), (of_class("3,7,8"), "class 7 or class 8")):
        with pytest.raises(Refused, match=f"had a row of {words}; name classes by their label"):
            unlearn(exclude, ledger=tmp_path / words).start(federation(), trained(), num_rounds=2)
        entry = ReadLedger(tmp_path / words).entry
        assert (entry.state, entry.reason) == ("denied", "refused") and "had a row of" in str(entry.why)
    unlearn(of_class(7), gone=True).start(federation(), trained(), num_rounds=1)  # its rows are not there any more


def test_a_class_that_some_round_finds_is_found_also_by_a_start_that_goes_on(tmp_path: Path) -> None:
    def ends(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 1:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        unlearn(of_class(5), ledger=tmp_path / "k").start(federation(), trained(), num_rounds=2, evaluate_fn=ends)
    later = federation(nodes=(0, 2, 3))  # who held class 5 is not connected any more
    unlearn(of_class(5), ledger=tmp_path / "k").start(later, trained(), num_rounds=2)
    assert len(later.asked(1000, "train")) == 1 and ReadLedger(tmp_path / "k").entry.state == "fulfilled"


# --- after it ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_3(tmp_path: Path) -> tuple[Path, ArrayRecord]:
    """The evidence of a first request, for class 3, and the arrays that it left."""
    found = unlearn(of_class(3), ledger=tmp_path / "first").start(federation(), trained(), num_rounds=1)
    return tmp_path / "first", found.arrays


def test_the_second_request_keeps_the_class_out_and_turns_nothing_back(
    without_3: tuple[Path, ArrayRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, left = without_3
    with pytest.raises(UnfedError, match="turns that back, and brings class 3 back"):
        unlearn(of_class(5), ledger=first).start(federation(), left, num_rounds=1)
    grid = federation()
    unlearn(of_class(5), "v", ledger=first).start(grid, left, num_rounds=1)
    assert asked_of(grid, "train") == [[3, 5]] * 4
    found = ReadLedger(first)
    assert found.entry.request.classes == (5,) and found.entry.earlier == ("class-3",)
    page = page_of(first, monkeypatch, capsys)
    assert "Class 5: 4 clients say that 1 row" in page and "Class 3: 4 clients say that 7 rows" in page
    assert on_list(first).classes == (3, 5), "and so on, to whoever names this one"


def test_a_client_that_leaves_after_a_class_trains_nobody_on_the_class(without_3: tuple[Path, ArrayRecord]) -> None:
    grid = federation()
    unlearn(node_with(partition_id=0), "v", ledger=without_3[0]).start(grid, without_3[1], num_rounds=1)
    assert asked_of(grid, "train") == [[3]] * 3 and not grid.asked(1000, "train", "evaluate")


def test_a_later_training_leaves_the_class_out_and_refuses_who_does_not(without_3: tuple[Path, ArrayRecord]) -> None:
    grid = federation()
    FedAvg().start(SubsetGrid(grid, deny=without_3[0]), without_3[1], num_rounds=1)
    assert asked_of(grid, "train") == [[3]] * 4
    with pytest.raises(Refused, match="No client says that it left class 3 out"):
        FedAvg().start(SubsetGrid(federation(app(nobody_leaves)), deny=without_3[0]), without_3[1], num_rounds=1)


def test_a_run_of_unfeds_own_takes_the_class_over(without_3: tuple[Path, ArrayRecord]) -> None:
    own = imported(Config.parse({"deny": {"run": str(without_3[0])}})).deny
    assert (own.clients, own.classes) == ((), (3,))


def test_the_classes_of_a_run_of_unfeds_own_are_left_out_too_and_its_single_rows_refused(tmp_path: Path) -> None:
    own = {**SMALL, "request": [], "methods": {"run": []}}
    Run.create(Config.parse({**own, "deny": {"classes": [5]}}), tmp_path / "classes")
    grid = federation()
    unlearn([of_class(3), denied(tmp_path / "classes")]).start(grid, trained(), num_rounds=1)
    assert asked_of(grid, "train") == [[3, 5]] * 4
    rows = {"rows": ["a" * 64], "key": "b" * 64}
    Run.create(Config.parse({**own, "deny": rows}), tmp_path / "rows")
    with pytest.raises(UnfedError, match="has 1 single rows, which cannot be recognised at nodes"):
        SubsetGrid(federation(), deny=tmp_path / "rows")


# --- what is said, and what a client makes of it ----------------------------------------------------------------------


@pytest.mark.parametrize("given", [(), ("",), ("three",), (-1,), (3.5,), ("1;2",), ("1,,2",), ("٣",), ("9" * 12,)])
def test_what_is_no_class_is_refused_with_the_way_a_run_config_has_it(given: Any) -> None:
    with pytest.raises(UnfedError, match=r'of_class takes class numbers .* forget-classes="1,2", not '):
        of_class(*given)


def test_classes_are_taken_as_numbers_and_as_a_run_config_has_them() -> None:
    assert [*of_class(5, 3, 3).classes] == [*of_class("5, 3").classes] == [3, 5]
    with pytest.raises(UnfedError, match=r"of_class\(…\)"):
        unlearn(()).start(federation(), trained(), num_rounds=1)


def message(*classes: int) -> Message:
    federation()  # a message is made in a running server app
    config = ConfigRecord({"unfed-forget-classes": [*classes]} if classes else {"lr": 0.1})
    return Message(RecordDict({"config": config}), 1, "train")


def test_staying_rows_are_a_mask_for_tensors_arrays_and_lists() -> None:
    labels, stays = [0, 3, 5, 3], [True, False, False, False]
    for y in (labels, tuple(labels), np.array(labels), np.array(labels, dtype=float), torch.tensor(labels)):
        assert staying_rows(message(3, 5), y).tolist() == stays
        assert staying_rows(message(), y).tolist() == [True] * 4
    x = torch.arange(8.0).reshape(4, 2)
    assert x[staying_rows(message(3, 5), labels)].tolist() == [[0.0, 1.0]]
    assert staying_rows(message(3), []).tolist() == []


@pytest.mark.parametrize("labels", [["cat", "dog"], np.eye(3), 3, [0.5, 1.0], [None, 1]])
def test_labels_in_which_no_class_could_be_found_are_refused_and_not_let_through(labels: Any) -> None:
    for asked in (message(), message(3)):
        with pytest.raises(UnfedError, match="staying_rows takes the class number of every row"):
            staying_rows(asked, labels)


def test_rows_that_are_looked_at_in_parts_are_counted_together() -> None:
    asked = message(3)
    for part in ([0, 3], [3, 3, 1]):
        staying_rows(asked, part)
    assert dict(asked.content.config_records["config"])["unfed-left-out"] == [3]
    assert dict(asked.content.config_records["config"])["unfed-rows"] == 5
