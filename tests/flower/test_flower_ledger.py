"""The ledger of an app that is not unfed's own: an ordinary run folder, which the next request reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_grid import InProcessGrid, ReadLedger, lost
from unfed import storage
from unfed.cli.main import app as cli
from unfed.errors import UnfedError
from unfed.flower import SubsetGrid, Unlearn, denied, introduce, negate_arrays, node_with, of_class
from unfed.model import params
from unfed.remote.messages import Packed
from unfed.requests.entry import Job


def federation(falling: bool = False, **leavers_own: str) -> InProcessGrid:
    """Training adds one to the only weight, and accuracy is that weight; node 1000 leaves."""
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        old = message.content.array_records["arrays"].to_torch_state_dict()
        new = ArrayRecord({"w": old["w"] + 1, "b": old["b"]})
        return Message(RecordDict({"arrays": new, "metrics": MetricRecord({"num-examples": 2})}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weight = float(message.content.array_records["arrays"].to_torch_state_dict()["w"])
        acc = 3 - weight if falling and context.node_config["partition-id"] == 0 else weight
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 2, "acc": acc})}), reply_to=message)

    return InProcessGrid([{"partition-id": k, **({} if k else leavers_own)} for k in range(4)], app)


def trained() -> ArrayRecord:
    return ArrayRecord({"w": torch.tensor(1.0), "b": torch.tensor(5.0)})


def unlearned(ledger: Path | None, rounds: int = 2, grid: InProcessGrid | None = None, **more: Any) -> Any:
    goals = {name: more.pop(name) for name in ("recover", "forgotten", "undo") if name in more}
    strategy = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=0), ledger, **goals)
    return strategy.start(grid or federation(), trained(), num_rounds=rounds, **more)


def test_who_was_asked_stands_in_the_ledger_with_digests_and_metrics_before_and_after(tmp_path: Path) -> None:
    grid = federation()
    unlearned(tmp_path / "e", grid=grid, evaluate_fn=lambda round, arrays: MetricRecord({"size": 2.0 + round}))
    found, staying = ReadLedger(tmp_path / "e"), ["1", "2", "3"]
    assert found.asked == [staying, staying] and [one["evaluated"] for one in found.told] == [staying, staying]
    assert [one["evaluate"]["acc"] for one in found.told] == [0.0, 1.0]
    assert found.before == {"evaluated": staying, "evaluate": {"acc": 1.0}, "server": {"size": 2.0}}
    assert found.entry.request.clients == ("0",) and found.finished == "all rounds"
    assert (found.entry.state, found.entry.method, found.entry.served) == ("fulfilled", "not", 1)
    assert found.numbers["diary"]["beginning"]["changes"] == {"w": "negated"}
    assert found.told[1]["fingerprint"] == found.numbers["bound"]["model"] != found.told[0]["fingerprint"]
    assert not grid.asked(1000, "train", "evaluate")


def test_every_command_that_reads_a_run_folder_reads_a_ledger(tmp_path: Path) -> None:
    unlearned(tmp_path / "e", rounds=1)
    run, out = str(tmp_path / "e"), str(tmp_path / "model.safetensors")
    for command, said in (
        (["status", run], "request client-0: fulfilled; it takes out client 0"),
        (["check", run], "is whole: 2 models"),
        (["lineage", run, "--affected", "0"], "models/0/train.safetensors (model): a model that was trained with it"),
        (["export", run, "-o", out], "the model of request client-0 by NoT"),
        (["report", run, "--format", "csv"], "client-0"),
        (["purge", run, "--request", "client-0", "--yes"], "purged models/0/train.safetensors"),
        (["status", run], "purged on"),
    ):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0 and said in done.output.replace("\n", " "), (command, done.output)
    done = CliRunner().invoke(cli, ["forget", run, "--client", "1"])
    assert "go on with the same start of the app's Unlearn, with ledger= this folder" in str(done.exception)


def test_a_second_request_knows_the_first_by_its_ledger_alone(tmp_path: Path) -> None:
    arrays = unlearned(tmp_path / "e", rounds=3).arrays
    grid = federation()
    second = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=1), tmp_path / "e", wait=0)
    with pytest.raises(UnfedError, match="unlearned before, .*changing 'w' .* turns that back, and brings 0 back"):
        second.start(grid, arrays, num_rounds=1)
    assert grid.sent == []
    grid.nodes[9] = grid.nodes.pop(1000)  # the first leaver is back under another id
    Unlearn(FedAvg, negate_arrays("b"), node_with(partition_id=1), tmp_path / "e", wait=0).start(grid, arrays, 1)
    assert {node for node in grid.nodes if grid.asked(node, "train", "evaluate")} == {1002, 1003}
    found = ReadLedger(tmp_path / "e")
    assert [*found.entries] == ["client-0", "client-1"] and found.entry.earlier == ("client-0",)
    assert found.numbers["base"]["model"] == "0/client-0/not"
    third = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=2), tmp_path / "e", wait=0)
    with pytest.raises(UnfedError, match="changing 'w' .* brings 0 and 1 back|changing 'w' .* back, and brings 0"):
        third.start(federation(), ArrayRecord(found.folder.load_model(Job(0, "client-1", "not"))), num_rounds=1)


def test_the_same_request_twice_is_done_once(tmp_path: Path) -> None:
    first, again = unlearned(tmp_path / "e", rounds=1).arrays, federation()
    second = unlearned(tmp_path / "e", rounds=5, grid=again).arrays
    assert {m.metadata.message_type for m in again.sent} == {"query.unfed"}
    assert second.to_torch_state_dict() == first.to_torch_state_dict()
    with pytest.raises(UnfedError, match="Request 'client-0' in .* began at another model"):
        Unlearn(FedAvg, negate_arrays("b"), node_with(partition_id=0), tmp_path / "e").start(federation(), first, 1)
    with pytest.raises(UnfedError, match="was begun by not, not ft; go on with that"):
        Unlearn(FedAvg, None, node_with(partition_id=0), tmp_path / "e").start(federation(), trained(), num_rounds=1)


def test_a_client_and_a_class_that_leave_at_once_are_two_requests_with_one_model(tmp_path: Path) -> None:
    both = [node_with(partition_id=0), of_class(3)]
    with pytest.raises(UnfedError, match="No client says that it left class 3 out"):  # this app does not look for rows
        Unlearn(FedAvg, None, both, tmp_path / "e").start(federation(), trained(), num_rounds=1)
    found = ReadLedger(tmp_path / "e", "client-0")
    assert {name: entry.state for name, entry in found.entries.items()} == {
        "client-0": "in_progress",
        "class-3": "in_progress",
    }


def test_who_left_elsewhere_stays_out_of_every_request_of_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "left.txt").write_text("3\n")
    exclude = [node_with(partition_id=0), denied(tmp_path / "left.txt")]
    grid = federation()
    arrays = Unlearn(FedAvg, None, exclude, tmp_path / "e").start(grid, trained(), num_rounds=1).arrays
    later = lambda: FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1)  # noqa: E731
    Unlearn(later, None, node_with(partition_id=1), tmp_path / "e").start(grid := federation(), arrays, num_rounds=1)
    assert {node for node in grid.nodes if grid.asked(node, "train")} == {1002}


def test_folders_that_are_no_ledger_are_refused_before_any_client_is_asked(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, said in (
        ("full", "is there already, and no ledger"),
        ("file", "is there already, and no ledger"),
    ):
        with pytest.raises(UnfedError, match=said):
            unlearned(tmp_path / name)
    with pytest.raises(UnfedError, match="recover, forgotten and undo are written into a ledger"):
        unlearned(None, recover="acc")


def test_a_ledger_of_nvflare_sites_is_refused(tmp_path: Path) -> None:
    unlearned(tmp_path / "ledger")
    file = tmp_path / "ledger" / "run.json"
    storage.write_json(file, {**storage.read_json(file, "run"), "engine": "nvflare"})
    with pytest.raises(UnfedError, match="is a ledger of NVFlare sites, and not of Flower nodes; give ledger another"):
        unlearned(tmp_path / "ledger")


def test_the_page_says_what_an_app_cannot_give(tmp_path: Path) -> None:
    unlearned(tmp_path / "e")
    page = ReadLedger(tmp_path / "e").page()
    assert "What the app measures" in page and "The node of client 0 was asked in none of the 2 rounds" in page
    assert "Messages to clients that left, with their leave, to measure a model: 0." in page
    assert "not measured: the leaver gave no leave to be asked" in page
    assert "<td>the clients that stay</td><td>1</td><td>1</td>" in page


def test_a_leaver_that_comes_back_under_another_id_is_not_asked(tmp_path: Path) -> None:
    grid = federation()

    def meanwhile(ask: Message, reply: Message) -> Message | None:
        if ask.metadata.message_type == "train":
            grid.nodes[9] = {"partition-id": 0}
        return reply

    grid.tamper[1001] = meanwhile
    unlearned(tmp_path / "e", grid=grid)
    assert not grid.asked(9, "train", "evaluate")


def test_the_leaver_measures_only_with_its_leave_and_is_counted_apart(tmp_path: Path) -> None:
    for own, measured in (({}, 0), ({"allow": "samples"}, 0), ({"allow": "samples, forget"}, 2)):
        folder, grid = tmp_path / str(len(str(own))), federation(falling=False, **own)
        unlearned(folder, grid=grid)
        assert [len(grid.asked(1000, kind)) for kind in ("query.unfed", "train", "evaluate")] == [1, 0, measured]
        assert all("0" not in names for names in ReadLedger(folder).asked)
        assert all(len(grid.asked(node, "evaluate")) == 3 for node in (1001, 1002, 1003))
    grid = federation(allow="forget")
    unlearned(None, grid=grid)
    assert not grid.asked(1000, "train", "evaluate")  # nothing is written down, so nothing is measured


def test_what_the_leaver_says_of_the_model_before_and_after_stands_on_the_page(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    unlearned(tmp_path / "e", rounds=1, grid=grid)
    found = ReadLedger(tmp_path / "e")
    assert found.before["leaver"] == {"0": {"num-examples": 2, "acc": 1.0}}
    assert found.told[0]["leaver"] == {"0": {"num-examples": 2, "acc": 0.0}}
    assert [m.content.config_records["config"]["server-round"] for m in grid.asked(1000, "evaluate")] == [0, 1]
    page = found.page()
    assert "with their leave, to measure a model: 2." in page and "Forget accuracy" not in page
    assert "<td>client 0, which left, with its leave</td><td>1</td><td>0</td>" in page


def test_a_leaver_that_does_not_answer_says_so_on_the_page(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    grid.tamper[1000] = lambda q, r: lost(q, r) if q.metadata.message_type == "evaluate" else r
    unlearned(tmp_path / "e", grid=grid)
    assert "not measured: it did not answer" in ReadLedger(tmp_path / "e").page()


def test_the_perturbation_is_taken_back_to_see_what_returns(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    unlearned(tmp_path / "e", rounds=1, grid=grid, undo=True)
    # From w = 1 negation makes -1 and a round 0; turned back that is -0, and 0 to everybody.
    found = ReadLedger(tmp_path / "e")
    assert found.told[0]["turned_back"] == {
        "evaluated": ["1", "2", "3"],
        "evaluate": {"acc": 0.0},
        "leaver": {"0": {"num-examples": 2, "acc": 0.0}},
    }
    assert [len(grid.asked(1000, kind)) for kind in ("train", "evaluate")] == [0, 3]
    page = found.page()
    assert page.count("of the model with the perturbation taken back") == 3 and ">Undoing<" not in page


def test_a_perturbation_that_is_not_its_own_inverse_is_not_taken_back(tmp_path: Path) -> None:
    halve = lambda arrays: {**arrays, "w": arrays["w"] / 2}  # noqa: E731
    halved = Unlearn(FedAvg, halve, node_with(partition_id=0), tmp_path / "e", undo=True)
    halved.start(federation(), trained(), num_rounds=1)
    found = ReadLedger(tmp_path / "e")
    assert found.entry.method == "perturb"
    assert "not measured: the perturbation is not its own inverse" in found.page()


def test_the_rounds_end_when_the_named_metric_is_back(tmp_path: Path) -> None:
    result = unlearned(tmp_path / "e", rounds=9, recover="acc")
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "recovered" and len(found.rounds) == 2 and found.entry.state == "fulfilled"
    assert float(result.arrays.to_torch_state_dict()["w"]) == 1.0
    assert {round: float(m["acc"]) for round, m in result.evaluate_metrics_clientapp.items()} == {1: 0.0, 2: 1.0}
    with pytest.raises(UnfedError, match="reports no metric 'accuracy' of the model before .it reports acc."):
        unlearned(tmp_path / "other", recover="accuracy")


def diverging() -> InProcessGrid:
    """As the others' accuracy rises the leaver's falls: it is three less the weight."""
    return federation(falling=True, allow="forget")


def test_the_rounds_end_when_the_leaver_knows_its_rows_no_better_than_the_others_theirs(tmp_path: Path) -> None:
    grid = diverging()
    unlearned(tmp_path / "e", rounds=9, grid=grid, forgotten="acc")
    found = ReadLedger(tmp_path / "e")
    told = [(one["leaver"]["0"]["acc"], one["evaluate"]["acc"]) for one in found.told]
    assert told == [(3.0, 0.0), (2.0, 1.0), (1.0, 2.0)] and found.finished == "forgotten"
    assert [len(grid.asked(1000, kind)) for kind in ("train", "evaluate")] == [0, 1 + 3]
    assert "with their leave, to measure a model: 4." in found.page()


def test_a_goal_that_was_missed_leaves_the_request_owed_and_more_rounds_go_on(tmp_path: Path) -> None:
    unlearned(tmp_path / "e", rounds=2, grid=diverging(), recover="acc", forgotten="acc")
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "all rounds, not forgotten", "1 is back, and the leaver says 2"
    assert (found.entry.state, found.entry.reason) == ("denied", "gate")
    assert "with ledger= this folder, tries it again; <code>unfed withdraw" in found.page().replace("`", "")
    unlearned(tmp_path / "e", rounds=9, grid=(grid := diverging()), recover="acc", forgotten="acc")
    found = ReadLedger(tmp_path / "e")
    assert found.finished == "recovered, forgotten" and found.entry.state == "fulfilled"
    assert len(grid.asked(1001, "train")) == 1 and [line["round"] for line in found.rounds] == [1, 2, 3]
    unlearned(tmp_path / "one", rounds=1, grid=diverging(), recover="acc", forgotten="acc")
    found = ReadLedger(tmp_path / "one")
    assert found.finished == "all rounds, not recovered and forgotten" and found.entry.reason == "not recovered"


def test_forgetting_that_cannot_be_measured_is_refused_before_the_first_round(tmp_path: Path) -> None:
    grid = federation()
    with pytest.raises(UnfedError, match="No leaver gave leave"):
        unlearned(tmp_path / "e", grid=grid, forgotten="acc")
    assert not grid.asked(1001, "train")
    with pytest.raises(UnfedError, match="Those who stay report no metric 'accuracy'"):
        unlearned(tmp_path / "o", grid=federation(allow="forget"), forgotten="accuracy")


class Killed(BaseException):
    """As if the process had ended there."""


def broken_off(folder: Path, rounds: int, **more: Any) -> None:
    """A start that ends after the last round's training was kept, while those who stay evaluate it."""
    grid = federation(falling=True, allow="forget")

    def killed(ask: Message, reply: Message) -> Message:
        if ask.metadata.message_type == "evaluate" and len(grid.asked(1001, "train")) == rounds:
            raise Killed
        return reply

    grid.tamper[1001] = killed
    with pytest.raises(Killed):
        going_on(folder, rounds, grid, **more)


def going_on(folder: Path, rounds: int, grid: InProcessGrid, **more: Any) -> Any:
    strategy = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=0), folder, **more)
    central = lambda round, arrays: MetricRecord({"round": round})  # noqa: E731
    return strategy.start(grid, trained(), num_rounds=rounds, evaluate_fn=central)


def test_a_round_that_was_kept_and_not_evaluated_is_evaluated_by_the_next_start(tmp_path: Path) -> None:
    broken_off(tmp_path / "e", 2)
    found = ReadLedger(tmp_path / "e")
    assert [line["round"] for line in found.rounds] == [1] and found.numbers["round"] == 2
    assert found.entry.state == "in_progress"
    grid = federation(falling=True, allow="forget")
    going_on(tmp_path / "e", 2, grid)
    found = ReadLedger(tmp_path / "e")
    last = found.told[-1]
    assert (last["evaluate"], last["server"], last["evaluated"]) == ({"acc": 1.0}, {"round": 2}, ["1", "2", "3"])
    assert found.asked[-1] == ["1", "2", "3"] and found.finished == "all rounds"
    assert not any(grid.asked(node, "train") for node in grid.nodes)
    asked = len(grid.sent)
    going_on(tmp_path / "e", 2, grid)
    assert not [message for message in grid.sent[asked:] if message.metadata.message_type != "query.unfed"]


def test_rounds_that_were_to_end_do_so_after_a_start_that_broke_off(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    broken_off(folder, 2, recover="acc", forgotten="acc")  # round 2 is back at 1.0; who left falls to 2.0
    grid = federation(falling=True, allow="forget")
    going_on(folder, 3, grid, recover="acc", forgotten="acc")
    assert [line["round"] for line in ReadLedger(folder).rounds] == [1, 2, 3]
    assert len(grid.asked(1001, "train")) == 1 and ReadLedger(folder).finished == "recovered, forgotten"
    other = tmp_path / "other"
    broken_off(other, 2, recover="acc")
    going_on(other, 9, grid := federation(), recover="acc")
    assert not grid.asked(1001, "train") and ReadLedger(other).finished == "recovered"


def test_rounds_that_are_gone_on_with_have_their_own_numbers_in_the_result(tmp_path: Path) -> None:
    broken_off(tmp_path / "e", 2)
    result = going_on(tmp_path / "e", 4, federation())
    assert [*result.train_metrics_clientapp] == [*result.evaluate_metrics_clientapp] == [3, 4]
    assert {number: found["round"] for number, found in result.evaluate_metrics_serverapp.items()} == {2: 2, 3: 3, 4: 4}


def test_a_ledger_is_a_deny_list_for_later_runs(tmp_path: Path) -> None:
    unlearned(tmp_path / "e")
    grid = federation()
    FedAvg().start(SubsetGrid(grid, deny=tmp_path / "e"), trained(), num_rounds=1)
    assert not grid.asked(1000, "train", "evaluate") and grid.asked(1001, "train")


def test_a_round_reads_each_reply_in_place_hashes_the_model_once_and_looks_at_the_nodes_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, calls = federation(), Counter[str]()
    grid.nodes = {1000 + k: {"partition-id": k} for k in range(40)}

    def counted(where: Any, name: str) -> None:
        real = getattr(where, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(where, name, call)

    for where, name in ((params, "digest"), (Packed, "read"), (grid, "get_node_ids")):
        counted(where, name)
    counts = []
    for rounds in (1, 3):
        calls.clear()
        unlearned(tmp_path / str(rounds), rounds=rounds, grid=grid)
        counts.append((calls["digest"], calls["read"], calls["get_node_ids"]))
    (first, reads, seen), (all_hashes, all_reads, _) = counts
    assert first == 2 + 1 + 2 + 2  # before, what was negated, after the round, and at the end: two tensors each
    assert all_hashes == first + 2 * 2 and all_reads == reads + 2 * 2  # and of each further round its average alone
    assert seen < 40
    states = {
        path.stem: storage.numbers_of(path)["pruned"] for path in (tmp_path / "1/state/0").rglob("[nt]*.safetensors")
    }
    assert states == {"train": "params", "not": "params"}  # a model that is done lies in the folder once
