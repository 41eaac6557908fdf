"""Evidence of an unlearning in somebody else's Flower app: who was asked, which arrays, what the app's metrics say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_grid import InProcessGrid, lost
from unfed.cli.main import app as cli
from unfed.errors import UnfedError
from unfed.flower import Evidence, SubsetGrid, Unlearn, introduce, negate_arrays, node_with


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


def unlearned(evidence: Any, rounds: int = 2, grid: InProcessGrid | None = None, **more: Any) -> Any:
    strategy = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=0), evidence=evidence)
    return strategy.start(grid or federation(), trained(), num_rounds=rounds, **more)


def kept(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "unlearning.json").read_text())
    return found


def test_who_was_asked_stands_in_the_folder_with_digests_and_metrics_before_and_after(tmp_path: Path) -> None:
    grid = federation()
    unlearned(tmp_path / "e", grid=grid, evaluate_fn=lambda round, arrays: MetricRecord({"size": 2.0 + round}))
    found = kept(tmp_path / "e")
    staying = [1001, 1002, 1003]
    for line in found["rounds"]:
        assert line["train"] == line["evaluate"] == staying
    assert [line["metrics"]["evaluate"]["acc"] for line in found["rounds"]] == [0.0, 1.0]
    assert found["before"]["evaluate"] == {"asked": staying, "metrics": {"acc": 1.0}}
    assert found["before"]["server"]["metrics"] == {"size": 2.0} and found["finished"] == "all rounds"
    assert found["leavers"] == [{"who": "a node with partition-id=0", "nodes": [1000]}] and found["forgotten"] == ["0"]
    arrays = found["arrays"]
    assert arrays["changed"] == ["w"] and arrays["after"] == found["rounds"][-1]["arrays"]
    assert len({arrays["before"], arrays["perturbed"], found["rounds"][0]["arrays"]}) == 3
    assert arrays["after"] == arrays["before"], "here training leads exactly back"
    assert not grid.asked(1000, "train", "evaluate")


def test_the_page_says_what_a_foreign_app_cannot_give(tmp_path: Path) -> None:
    unlearned(tmp_path / "e")
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "e" / "report.html").read_text()
    assert "A node with partition-id=0 has left: 1000" in page and "1001, 1002, 1003" in page
    assert "Messages to who left, to train or to evaluate: 0." in page
    assert (
        "not measured: the leaver gave no leave to be asked" in page and kept(tmp_path / "e")["arrays"]["after"] in page
    )


def test_a_leaver_that_comes_back_under_another_id_stands_in_the_evidence_under_both(tmp_path: Path) -> None:
    grid = federation()

    def meanwhile(ask: Message, reply: Message) -> Message | None:
        if ask.metadata.message_type == "train":
            grid.nodes[9] = {"partition-id": 0}
        return reply

    grid.tamper[1001] = meanwhile
    unlearned(tmp_path, grid=grid)
    assert [one["nodes"] for one in kept(tmp_path)["leavers"]] == [[9, 1000]]
    assert not grid.asked(9, "train", "evaluate")


def test_the_leaver_measures_only_with_its_leave_and_is_counted_apart(tmp_path: Path) -> None:
    for own, measured in (({}, 0), ({"allow": "samples"}, 0), ({"allow": "samples, forget"}, 2)):
        folder, grid = tmp_path / str(own), federation(falling=False, **own)
        unlearned(folder, grid=grid)
        assert [len(grid.asked(1000, kind)) for kind in ("query.unfed", "train", "evaluate")] == [1, 0, measured]
        assert all(1000 not in line[what] for line in kept(folder)["rounds"] for what in ("train", "evaluate"))
        assert all(len(grid.asked(node, "evaluate")) == 3 for node in (1001, 1002, 1003))
    grid = federation(allow="forget")
    unlearned(None, grid=grid)
    assert not grid.asked(1000, "train", "evaluate")  # nothing is written down, so nothing is measured


def test_what_the_leaver_says_of_the_model_before_and_after_stands_on_the_page(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    unlearned(tmp_path / "e", rounds=1, grid=grid)
    told = {
        when: [{"node": 1000, "metrics": {"num-examples": 2, "acc": acc}}]
        for when, acc in (("before", 1.0), ("after", 0.0))
    }
    assert kept(tmp_path / "e")["leaver"] == told
    assert [m.content.config_records["config"]["server-round"] for m in grid.asked(1000, "evaluate")] == [0, 1]
    CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    page = (tmp_path / "e" / "report.html").read_text()
    assert "with its leave, to measure a model before or after: 2." in page and "Forget accuracy" not in page
    assert "<td>node 1000, which left, with its leave</td><td>1</td><td>0</td>" in page


def test_a_leaver_that_does_not_answer_says_so_on_the_page(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    grid.tamper[1000] = lambda q, r: lost(q, r) if q.metadata.message_type == "evaluate" else r
    unlearned(tmp_path / "e", grid=grid)
    CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    assert "not measured: it did not answer" in (tmp_path / "e" / "report.html").read_text()


def test_the_perturbation_is_taken_back_to_see_what_returns(tmp_path: Path) -> None:
    grid = federation(allow="forget")
    unlearned(Evidence(tmp_path / "e", undo=True), rounds=1, grid=grid)
    # From w = 1 negation makes -1 and a round 0; turned back that is -0, and 0 to everybody.
    told = [{"node": 1000, "metrics": {"num-examples": 2, "acc": 0.0}}]
    undone = {"asked": [1001, 1002, 1003], "evaluate": {"acc": 0.0}, "server": None, "leaver": told}
    assert kept(tmp_path / "e")["undo"] | {"asked": sorted(kept(tmp_path / "e")["undo"]["asked"])} == undone
    assert [len(grid.asked(1000, kind)) for kind in ("train", "evaluate")] == [0, 3]
    CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    page = (tmp_path / "e" / "report.html").read_text()
    assert page.count("of the model with the perturbation taken back") == 3 and "Undoing" not in page


def test_a_perturbation_that_is_not_its_own_inverse_is_not_taken_back(tmp_path: Path) -> None:
    halved = Unlearn(
        FedAvg,
        lambda arrays: {**arrays, "w": arrays["w"] / 2},
        node_with(partition_id=0),
        evidence=Evidence(tmp_path / "e", undo=True),
    )
    halved.start(federation(), trained(), num_rounds=1)
    CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    assert "not measured: the perturbation is not its own inverse" in (tmp_path / "e" / "report.html").read_text()


def test_the_rounds_end_when_the_named_metric_is_back(tmp_path: Path) -> None:
    result = unlearned(Evidence(tmp_path / "e", recover="acc"), rounds=9)
    assert kept(tmp_path / "e")["finished"] == "recovered" and len(kept(tmp_path / "e")["rounds"]) == 2
    assert float(result.arrays.to_torch_state_dict()["w"]) == 1.0
    assert {round: float(m["acc"]) for round, m in result.evaluate_metrics_clientapp.items()} == {1: 0.0, 2: 1.0}
    with pytest.raises(UnfedError, match="reports no metric 'accuracy' of the model before .it reports acc."):
        unlearned(Evidence(tmp_path / "other", recover="accuracy"))


def diverging() -> InProcessGrid:
    """As the others' accuracy rises the leaver's falls: it is three less the weight."""
    return federation(falling=True, allow="forget")


def test_the_rounds_end_when_the_leaver_knows_its_rows_no_better_than_the_others_theirs(tmp_path: Path) -> None:
    grid = diverging()
    unlearned(Evidence(tmp_path / "e", forgotten="acc"), rounds=9, grid=grid)
    found = kept(tmp_path / "e")
    told = [(line["leaver"][0]["metrics"]["acc"], line["metrics"]["evaluate"]["acc"]) for line in found["rounds"]]
    assert told == [(3.0, 0.0), (2.0, 1.0), (1.0, 2.0)] and found["finished"] == "forgotten"
    assert found["leaver"]["after"][0]["metrics"]["acc"] == 1.0, "said of the last round, not asked again"
    assert [len(grid.asked(1000, kind)) for kind in ("train", "evaluate")] == [0, 1 + 3]
    CliRunner().invoke(cli, ["report", str(tmp_path / "e")])
    page = (tmp_path / "e" / "report.html").read_text()
    assert "with its leave, to measure a model before or after: 4." in page and "3 rounds · forgotten" in page


def test_rounds_that_end_too_early_say_what_was_missed(tmp_path: Path) -> None:
    unlearned(Evidence(tmp_path / "e", recover="acc", forgotten="acc"), rounds=2, grid=diverging())
    assert kept(tmp_path / "e")["finished"] == "all rounds, not forgotten", "1 is back, and the leaver says 2"
    unlearned(Evidence(tmp_path / "one", recover="acc", forgotten="acc"), rounds=1, grid=diverging())
    assert kept(tmp_path / "one")["finished"] == "all rounds, not recovered and forgotten"
    unlearned(Evidence(tmp_path / "all", recover="acc", forgotten="acc"), rounds=9, grid=diverging())
    assert kept(tmp_path / "all")["finished"] == "recovered, forgotten" and len(kept(tmp_path / "all")["rounds"]) == 3


def test_forgetting_that_nobody_can_measure_is_refused_before_the_first_round(tmp_path: Path) -> None:
    grid = federation()
    with pytest.raises(UnfedError, match="Nobody who left gave leave"):
        unlearned(Evidence(tmp_path / "e", forgotten="acc"), grid=grid)
    assert not grid.asked(1001, "train")
    with pytest.raises(UnfedError, match="Those who stay report no metric 'accuracy'"):
        unlearned(Evidence(tmp_path / "o", forgotten="accuracy"), grid=federation(allow="forget"))


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
    evidence = Evidence(folder, **more)
    strategy = Unlearn(FedAvg, negate_arrays("w"), node_with(partition_id=0), evidence=evidence, keep=folder / "kept")
    central = lambda round, arrays: MetricRecord({"round": round})  # noqa: E731
    return strategy.start(grid, trained(), num_rounds=rounds, evaluate_fn=central)


def test_a_round_that_was_kept_and_not_evaluated_is_evaluated_by_the_next_start(tmp_path: Path) -> None:
    broken_off(tmp_path, 2)
    assert kept(tmp_path)["rounds"][-1]["metrics"].keys() == {"train"}
    grid = federation(falling=True, allow="forget")
    going_on(tmp_path, 2, grid)
    found = kept(tmp_path)
    assert found["rounds"][-1]["metrics"] == {"train": {}, "evaluate": {"acc": 1.0}, "server": {"round": 2}}
    assert found["rounds"][-1]["evaluate"] == [1001, 1002, 1003] and found["finished"] == "all rounds"
    assert not any(grid.asked(node, "train") for node in grid.nodes)
    asked = len(grid.sent)
    going_on(tmp_path, 2, grid)
    assert not [message for message in grid.sent[asked:] if message.metadata.message_type != "query.unfed"]


def test_rounds_that_were_to_end_do_so_after_a_start_that_broke_off(tmp_path: Path) -> None:
    broken_off(tmp_path, 2, recover="acc", forgotten="acc")  # round 2 is back at 1.0; who left falls to 2.0
    grid = federation(falling=True, allow="forget")
    going_on(tmp_path, 3, grid, recover="acc", forgotten="acc")
    assert [line["round"] for line in kept(tmp_path)["rounds"]] == [1, 2, 3]
    assert len(grid.asked(1001, "train")) == 1 and kept(tmp_path)["finished"] == "recovered, forgotten"
    other = tmp_path / "other"
    broken_off(other, 2, recover="acc")
    going_on(other, 9, grid := federation(), recover="acc")
    assert not grid.asked(1001, "train") and kept(other)["finished"] == "recovered"


def test_rounds_that_are_gone_on_with_have_their_own_numbers_in_the_result(tmp_path: Path) -> None:
    going_on(tmp_path, 2, federation())
    result = going_on(tmp_path, 4, federation())
    assert [*result.train_metrics_clientapp] == [*result.evaluate_metrics_clientapp] == [3, 4]
    assert {number: found["round"] for number, found in result.evaluate_metrics_serverapp.items()} == {2: 2, 3: 3, 4: 4}


def test_a_folder_with_other_evidence_is_not_written_over(tmp_path: Path) -> None:
    unlearned(tmp_path / "e")
    with pytest.raises(UnfedError, match="holds evidence of another unlearning"):
        unlearned(tmp_path / "e")


def test_evidence_is_a_deny_list_for_later_runs(tmp_path: Path) -> None:
    unlearned(tmp_path / "e")
    grid = federation()
    FedAvg().start(SubsetGrid(grid, deny=tmp_path / "e"), trained(), num_rounds=1)
    assert not grid.asked(1000, "train", "evaluate") and grid.asked(1001, "train")
