"""unfed's own Flower app: what `flwr run` does with a run config, told without processes."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict

from flower_grid import EVERYTHING, InProcessGrid
from unfed import storage
from unfed.api import write_report
from unfed.cli.main import app as cli
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused, UnfedError
from unfed.flower.server import app as server_app
from unfed.flower.server import run as serve
from unfed.remote.options import Options
from unfed.requests.entry import Job
from unfed.runs.run import Run
from worlds import as_sets, assert_same, experiment, run_config


def nodes(allow: str = EVERYTHING) -> InProcessGrid:
    more = {"allow": allow} if allow else {}
    return InProcessGrid({"partition-id": k, "device": "cpu", **more} for k in range(4))


def values(folder: Path, **changes: Any) -> dict[str, Any]:
    base = {"run_folder": str(folder), "forget_clients": "0", "min_nodes": 4, "wait_seconds": 0.01, "round_timeout": 5}
    return run_config(experiment(4), **{**base, **changes})


def simulated(folder: Path, *sets: str) -> Run:
    run = Run.create(Config.parse({"checkpoint": {"rounds": 1}}, [*as_sets(experiment(4)), *sets]), folder)
    run.execute()
    return run


def state(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "flower.json").read_text())
    return found


# --- modes ------------------------------------------------------------------------------------------------------------


def test_both_gives_the_models_and_numbers_of_a_simulation(tmp_path: Path) -> None:
    there = serve(nodes(), values(tmp_path / "flower", methods="not,ft", set="evaluation.attack=true"))
    asked = ['request.id="client-0"', 'request.clients=["0"]', 'methods.run=["not","ft"]', "evaluation.attack=true"]
    here = simulated(tmp_path / "here", *asked)
    for label in ("not", "ft"):
        assert_same(here.model(method=label), there.model(method=label))
    costs = {"seconds", "serialised_bytes"}
    for one, other in cast(Any, zip(here.lines(), there.lines(), strict=True)):
        assert one.keys() == other.keys()
        for column in one.keys() - costs:
            assert other[column] == (
                pytest.approx(one[column], abs=1e-9) if isinstance(one[column], float) else one[column]
            )
    files = {p.relative_to(here.folder.path) for p in here.folder.path.rglob("*") if p.is_file() and p.name[0] != "."}
    more = {p.relative_to(there.folder.path) for p in there.folder.path.rglob("*") if p.is_file() and p.name[0] != "."}
    assert more - files == {Path("clients.json"), Path("flower.json")} and files <= more


def test_a_report_is_written_from_the_folder_alone(tmp_path: Path) -> None:
    folder = serve(nodes(allow=""), values(tmp_path / "run")).folder.path
    page = write_report(Run.open(folder)).read_text()
    assert "does not allow it" in page and "flower" in page


def test_train_then_unlearn_is_what_forget_does_in_a_simulation(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "flower", mode="train"))
    there = serve(grid, values(tmp_path / "flower", mode="unlearn"))
    here = simulated(tmp_path / "here")
    here.forget(Request("client-0", clients=("0",)), "not", 2)
    assert_same(here.current(0), there.current(0))
    sent = len(grid.sent)
    serve(grid, values(tmp_path / "flower", mode="unlearn"))  # the same request twice does nothing
    assert not [m for m in grid.sent[sent:] if m.metadata.message_type == "train"]
    assert "client-0" in write_report(Run.open(tmp_path / "flower")).read_text()


def test_rounds_over_flower_are_logged_with_their_model_and_who_took_part(tmp_path: Path) -> None:
    signing = pytest.importorskip("unfed.trust.signing", reason="needs unfed[trust]")
    from unfed.model.params import digests, fingerprint
    from unfed.trust.folder import TrustFolder
    from unfed.trust.logbook import faults_of

    signing.new_key(tmp_path / "operator")
    grid, operator = nodes(), str(tmp_path / "operator.key")
    serve(grid, values(tmp_path / "flower", mode="train", operator=operator))
    there = serve(grid, values(tmp_path / "flower", mode="unlearn"))
    trust = TrustFolder(tmp_path / "flower")
    rounds = [leaf for leaf in trust.log.leaves if leaf["type"] == "round"]
    told = [(leaf["request"], leaf["round"], leaf["participants"]["size"]) for leaf in rounds]
    asked = rounds[-1]["request"]
    assert asked.startswith("r-"), "the log keeps ids for good, so they say nothing of who left"
    assert told == [(None, 0, 0), (None, 1, 4), (None, 2, 4), (asked, 0, 0), (asked, 1, 3), (asked, 2, 3)]
    assert rounds[-1]["model"] == fingerprint(digests(there.saved()))
    for leaf in rounds[-2:]:  # 0 is what NoT begins with
        assert trust.pseudonyms.known("0") not in trust.participants.of(leaf["participants"]["root"])
    assert faults_of(tmp_path / "flower") == []


def test_a_second_request_starts_from_what_the_first_left(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "flower", mode="train"))
    serve(grid, values(tmp_path / "flower", mode="unlearn"))
    second = {"forget_clients": "", "forget_classes": "3", "methods": "sealed"}
    there = serve(grid, values(tmp_path / "flower", mode="unlearn", **second))
    here = simulated(tmp_path / "here")
    here.forget(Request("client-0", clients=("0",)), "not", 2)
    here.forget(Request("class-3", classes=(3,)), "sealed", 2)
    assert_same(here.current(0), there.current(0))


def test_a_request_that_is_denied_stays_owed_and_the_next_is_served(tmp_path: Path) -> None:
    grid, folder = nodes(), tmp_path / "run"
    serve(grid, values(folder, mode="train", set="evaluation.recovered_within=0.0; unlearning.rounds=1"))
    with pytest.raises(
        Refused, match=r"'client-0' is not recovered .* the same run config with mode=\"unlearn\" methods="
    ):
        serve(grid, values(folder, mode="unlearn", until="recovered"))
    run = serve(grid, values(folder, mode="unlearn", forget_clients="3"))
    assert [(e.request.id, e.standing) for e in run.folder.book().entries] == [
        ("client-0", "denied (not recovered)"),
        ("client-3", "fulfilled"),
    ]
    last = run.lines()[-1]
    assert last["asked"] == {"1": ["1", "2"]} and isinstance(last["earlier"]["client-0"], float)
    found = CliRunner().invoke(cli, ["withdraw", str(folder), "client-0"])
    assert found.exit_code == 0, found.output
    run = serve(grid, values(folder, mode="unlearn", forget_clients="2", methods="sealed"))
    assert run.lines()[-1]["asked"] == {"1": ["0", "1"]}


def test_rows_that_are_gone_already_are_refused_when_they_are_asked_for(tmp_path: Path) -> None:
    grid, folder = nodes(), tmp_path / "run"
    serve(grid, values(folder, mode="train"))
    serve(grid, values(folder, mode="unlearn", forget_clients="", forget_classes="3"))
    with pytest.raises(UnfedError, match="'again' asks for is out already, by request 'class-3'"):
        serve(grid, values(folder, mode="unlearn", forget_clients="", forget_classes="3", request_id="again"))
    serve(grid, values(folder, mode="unlearn", methods="sealed"))
    del grid.nodes[1000]
    with pytest.raises(UnfedError, match="'again' asks for is out already, by request 'client-0'"):
        serve(grid, values(folder, mode="unlearn", request_id="again", min_nodes=3))


@pytest.fixture(scope="module")
def unlearned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that client 0 left by NoT; no test changes it."""
    folder = tmp_path_factory.mktemp("unlearned") / "run"
    serve(nodes(), values(folder, mode="train"))
    return serve(nodes(), values(folder, mode="unlearn")).folder.path


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({"forget_clients": "1"}, 'use methods="sealed", which has no way back, or methods="retrain".'),
        ({"forget_clients": "1", "request_id": "client-0"}, "ask again under another request-id."),
        ({"forget_clients": "1", "methods": "sealed", "until": "soon"}, "until takes goals"),
    ],
)
def test_a_refusal_names_keys_of_the_run_config(asked: dict[str, str], remedy: str, unlearned: Path) -> None:
    with pytest.raises(UnfedError) as refusal:
        serve(nodes(), values(unlearned, mode="unlearn", **asked))
    assert remedy in str(refusal.value) and "--" not in str(refusal.value)


def test_a_comparison_is_not_gone_on_from_for_nobody_left_in_it(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "run"))
    with pytest.raises(UnfedError, match="compares methods on client-0 and puts none in force"):
        serve(grid, values(tmp_path / "run", mode="unlearn", forget_clients="3"))


def test_a_checkpoint_can_be_unlearned_from_without_its_training(tmp_path: Path) -> None:
    here = simulated(tmp_path / "here")
    model = here.folder.model_file(Job(0, None, "train"))
    there = serve(nodes(), values(tmp_path / "flower", mode="unlearn", checkpoint=str(model)))
    here.forget(Request("client-0", clients=("0",)), "not", 2)
    assert_same(here.current(0), there.current(0))
    write_report(Run.open(tmp_path / "flower"))


def test_the_leaver_may_be_gone_before_it_is_unlearned(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "run", mode="train"))
    del grid.nodes[1000]
    done = serve(grid, values(tmp_path / "run", mode="unlearn", min_nodes=3))
    last = done.lines()[-1]
    assert last["forget"] == last["mia"] == "not measured: data deleted"
    assert last["asked"] == {"2": ["1", "2", "3"]} and isinstance(last["validation"], float)
    with pytest.raises(UnfedError, match="PGD needs the target client's data; its owners have deleted it"):
        serve(grid, values(tmp_path / "other", mode="both", min_nodes=3, methods="pgd", deleted=True))


def test_a_misspelt_leaver_is_not_taken_for_one_that_left(tmp_path: Path) -> None:
    with pytest.raises(
        UnfedError, match="Client '00' .* is not connected and never took part here, as .* did; check the name"
    ):
        serve(nodes(), values(tmp_path / "run", forget_clients="00"))


def test_a_method_that_needs_the_leaver_asks_its_leave_first(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match='client 0 does not allow; set allow="forget"'):
        serve(nodes(allow=""), values(tmp_path / "run", methods="mode"))
    assert not (tmp_path / "run").exists()


def public_images() -> torch.Tensor:
    return torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_fukd_needs_data_at_the_server_and_runs_with_it(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="fukd needs unlabelled data at the server"):
        serve(nodes(), values(tmp_path / "run", methods="fukd"))
    public = {"public": "test_flower_app:public_images", "allow_code": True}
    run = serve(nodes(), values(tmp_path / "run", methods="fukd", **public))
    assert state(run.folder.path)["state"] == "finished"


def test_the_server_needs_no_data_of_its_own(tmp_path: Path) -> None:
    run = serve(nodes(), values(tmp_path / "run", server_data=False))
    assert {line["test"] for line in run.lines()} == {"not measured: the server holds no test data"}
    assert isinstance(run.lines()[-1]["forget"], float)


def test_where_the_servers_data_fits_no_node_the_sentence_says_whose_it_is(tmp_path: Path) -> None:
    own = {"loader": "test_flower_engine:three_images", "side": 12, "device": "cpu"}
    grid = InProcessGrid({"client": f"site-{k}", **own} for k in range(4))
    with pytest.raises(Refused, match=r"shape \(1, 12, 12\), the federation's \(1, 8, 8\)\); .* set server-data=false"):
        serve(grid, values(tmp_path / "run", mode="train"))
    assert not (tmp_path / "run").exists()


# --- crashes ----------------------------------------------------------------------------------------------------------


class Breaking(InProcessGrid):
    """A grid that breaks down at its n-th round of training."""

    def __init__(self, configs: Iterable[dict[str, Any]], at: int) -> None:
        super().__init__(configs)
        self._left = at

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        all_of_them = list(messages)
        if all_of_them[0].metadata.message_type == "train":
            self._left -= 1
            if self._left == 0:
                raise ConnectionError("the SuperLink is gone")
        return super().send_and_receive(all_of_them, timeout=timeout)


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_crashed_run_is_resumed_to_the_very_same_end(at: int, tmp_path: Path) -> None:
    whole = serve(nodes(), values(tmp_path / "whole"))
    broken = Breaking(nodes().nodes.values(), at)
    with pytest.raises(ConnectionError):
        serve(broken, values(tmp_path / "run"), run_id=7)
    assert state(tmp_path / "run")["state"] == "failed"
    assert state(tmp_path / "run")["runs"][0]["error"] == "the SuperLink is gone"
    resumed = serve(nodes(), {"resume-from": str(tmp_path / "run"), "min-nodes": 4, "wait-seconds": 0.01}, run_id=8)
    assert_same(whole.model(method="not"), resumed.model(method="not"))
    beginnings = [line for line in resumed.lines() if line["method"] == "not" and line["round"] == 0]
    assert len(beginnings) == 1  # negated once
    assert [r["state"] for r in state(tmp_path / "run")["runs"]] == ["failed", "finished"]


def test_a_client_that_is_away_when_a_run_is_resumed_is_still_known(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        serve(Breaking(nodes().nodes.values(), 4), values(tmp_path / "run"))
    grid = nodes()
    del grid.nodes[1002]
    resumed = serve(grid, {"resume-from": str(tmp_path / "run"), "min-nodes": 3, "wait-seconds": 0.01})
    last = resumed.lines()[-1]
    assert last["asked"]["2"] == ["1", "2", "3"]
    assert [(r["client"], r["reason"]) for r in last["refused"]] == [("2", "it is not connected")]
    assert "client 2: it is not connected" in cast(Any, last)["unheard"]


def test_a_flower_run_cannot_go_on_without_flower(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        serve(Breaking(nodes().nodes.values(), 2), values(tmp_path / "run"))
    with pytest.raises(UnfedError, match="clients of this run are Flower nodes.*resume-from"):
        Run.open(tmp_path / "run").execute()


def test_a_run_without_enough_nodes_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Only 0 of 4 clients are there"):
        serve(InProcessGrid([]), values(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_flower_hears_of_a_failure(tmp_path: Path) -> None:
    context = Context(1, 1, {}, RecordDict(), values(tmp_path / "run", mode="tarin"))
    with pytest.raises(UnfedError, match="mode = 'tarin': it should be 'train', 'unlearn' or 'both'"):
        server_app(nodes(), context)


# --- the run config ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"run-foldr": "/x"}, "no key 'run-foldr'.*Did you mean 'run-folder'"),
        ({"run-folder": "x"}, "run-folder = 'x': must be a whole path"),
        ({"run-folder": ""}, "Say where results go"),
        ({"min-nodes": 0}, "min-nodes = 0: it should be greater than or equal to 1"),
        ({"min-nodes": "many"}, "min-nodes = 'many': it should be a valid integer"),
        ({"forget-clients": "", "mode": "both"}, "Say who leaves"),
        ({"forget-classes": "1"}, "exactly one of"),
        ({"forget-clients": "", "forget-classes": "one"}, "class numbers"),
        ({"mode": "unlearn"}, "no run in .* to unlearn from"),
        ({"mode": "unlearn", "methods": "not,ft"}, "takes one method"),
        ({"round-timeout": 0}, "time-out of a round must be a positive"),
        ({"experiment.training.rounds": "x"}, "training.rounds"),
        ({"preset": "/nowhere.toml"}, "cannot be read"),
        (
            {"public": "nowhere:images"},
            "public names code, 'nowhere:images', .*; set allow-code=true in the run config",
        ),
        ({"public": "nowhere:images", "allow-code": True}, "public data 'nowhere:images' cannot be imported"),
        ({"experiment.model.name": "nowhere:make"}, "model.name names code, 'nowhere:make'"),
    ],
)
def test_a_wrong_run_config_is_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match=sentence):
        serve(nodes(), {**values(tmp_path / "run"), **change})
    assert not (tmp_path / "run").exists()


def test_presets_and_changes_make_the_experiment(tmp_path: Path) -> None:
    options = Options.of(
        {"run-folder": str(tmp_path), "preset": "demo", "set": "training.rounds=7; model.name=cnn-tiny"}
    )
    config = options.config()
    assert (config.training.rounds, config.model.name, config.partition.clients) == (7, "cnn-tiny", 10)
    assert config.checkpoint.rounds == 1


# --- the command line -------------------------------------------------------------------------------------------------


def test_init_writes_an_app_that_is_one_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["flower", "init", str(tmp_path / "my app"), "--nodes", "3"])
    assert result.exit_code == 0, result.output
    raw = tomllib.loads((tmp_path / "my app" / "pyproject.toml").read_text())
    assert raw["project"]["name"] == "my-app"
    options = Options.of(flatten_dict(raw["tool"]["flwr"]["app"]["config"]))
    assert options.min_nodes == options.config().partition.clients == 3
    assert options.mode == "train" and options.request() is None  # nothing is compared unasked: a model to unlearn from
    keys = {name.replace("_", "-") for name in Options.model_fields}
    assert keys == set(raw["tool"]["flwr"]["app"]["config"])  # `flwr run` changes only keys that stand in the file
    again = CliRunner().invoke(cli, ["flower", "init", str(tmp_path / "my app")])
    assert isinstance(again.exception, UnfedError) and "is there already" in str(again.exception)


def test_costs_show_what_crossed_beside_flowers_own_count(tmp_path: Path) -> None:
    run = serve(nodes(), values(tmp_path / "run"), run_id=12)
    traffic = {"inbound-bytes": 5000, "outbound-bytes": 6000, "total-bytes": 11000}
    listed = {"runs": [{"run-id": "12", "network-traffic": traffic}, {"run-id": "13", "network-traffic": traffic}]}
    (tmp_path / "ls.json").write_text(json.dumps(listed))
    found = CliRunner().invoke(
        cli, ["flower", "costs", str(run.folder.path), "--ls", str(tmp_path / "ls.json"), "--json"]
    )
    costs = json.loads(found.output)
    assert [entry["run"] for entry in costs["flower"]] == ["12"]
    last = run.lines()[-1]
    assert costs["jobs"]["client-0/not"] == {k: last[k] for k in ("comm_bytes", "wire_bytes", "serialised_bytes")}
    assert "client-0/not" in CliRunner().invoke(cli, ["flower", "costs", str(run.folder.path)]).output


def test_an_adopted_model_of_another_architecture_is_refused(tmp_path: Path) -> None:
    storage.save(tmp_path / "other.safetensors", {"w": torch.zeros(2)}, {})
    with pytest.raises(UnfedError, match="belongs to another architecture"):
        serve(nodes(), values(tmp_path / "run", mode="unlearn", checkpoint=str(tmp_path / "other.safetensors")))


def test_a_folder_that_is_taken_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    serve(nodes(), values(tmp_path / "run", mode="train"))
    grid = nodes()
    with pytest.raises(UnfedError, match="There is a run in .* already; go on with it by resume-from"):
        serve(grid, values(tmp_path / "run", mode="train"))
    assert grid.sent == []


def test_a_run_that_was_stopped_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    class Stopped(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            if self.asked(1000, "train"):
                raise SystemExit(0)  # what `flwr stop` makes of a server app
            return super().send_and_receive(messages, timeout=timeout)

    with pytest.raises(SystemExit):
        serve(Stopped(nodes().nodes.values()), values(tmp_path / "run", mode="train"))
    found = state(tmp_path / "run")
    assert found["state"] == "stopped" and "go on with resume-from" in found["runs"][-1]["error"]


def test_the_log_says_which_node_is_which_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level("INFO", "flwr"):
        serve(nodes(), values(tmp_path / "run", mode="train"))
    assert "unfed: client 2 is node 1002" in caplog.text


def test_every_message_can_be_counted_by_flowers_own_mods(tmp_path: Path) -> None:
    grid = nodes()
    serve(grid, values(tmp_path / "run", mode="train"))
    for message in [*grid.sent, *grid.replies]:
        assert all(record.count_bytes() > 0 for record in message.content.config_records.values())
