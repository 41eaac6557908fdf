"""What carries a client is known: files of the folder, what was handed out, what a method brings over from before."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from conftest import SMALL
from unfed import storage
from unfed.cli.display import headline
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, UnfedWarning
from unfed.federation.state import OPTIMISER
from unfed.folder import carriers
from unfed.folder import folder as folders
from unfed.folder.folder import RunFolder
from unfed.folder.purge import purge
from unfed.methods import State
from unfed.requests.entry import Job
from unfed.runs import probe as probing
from unfed.runs.progress import Watch
from unfed.runs.record import affected
from unfed.runs.run import Run

SETS = ["training.rounds=2", "unlearning.rounds=1", "evaluation.attack=false", "engine.name=sequential"]
SETS += ["evaluation.samples=false", "methods.run=['not']", "gate.max_drop=100"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.create(Config.parse({**SMALL, "request": []}, SETS), tmp_path_factory.mktemp("affected") / "run")
    run.execute()
    return run.folder.path


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(template, tmp_path / "run"))


def given(*words: Any) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


# --- what was handed out ----------------------------------------------------------------------------------------------


def test_every_export_and_report_is_entered_when_it_is_written(run: Run, tmp_path: Path) -> None:
    where, out, table = run.folder.path, tmp_path / "out.safetensors", tmp_path / "table.md"
    other = shutil.copytree(where, tmp_path / "other")
    given("export", where, "-o", out)
    given("report", where)
    given("report", where, "--format", "md", "-o", table)
    given("compare", where, other, "--format", "md", "-o", tmp_path / "both.md")
    found = carriers.handed(run.folder)
    assert [(one.what, one.file) for one in found] == [
        ("export", str(out)),
        ("report", "report.html"),
        ("report", str(table)),
        ("comparison", str(tmp_path / "both.md")),
    ]
    assert found[0].job == Job(0, None, "train")
    for one in found:
        assert hashlib.sha256(one.path(where).read_bytes()).hexdigest() == one.sha256 and one.at.endswith("Z")
    assert [one.what for one in carriers.handed(RunFolder(other))] == ["comparison"]


def test_evidence_and_the_page_of_all_runs_are_entered_too(run: Run, tmp_path: Path) -> None:
    """Both name requests; whoever is in them must be able to learn that they are about."""
    signing = pytest.importorskip("unfed.trust.signing", reason="the extra that signs is not installed")
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    where, bundle, page = run.folder.path, tmp_path / "first.json", tmp_path / "first.html"
    signing.new_key(tmp_path / "own")
    given("bundle", where, "--request", "first", "-o", bundle, "--key", tmp_path / "own.key", "--page", page)
    given("index", where.parent, "-o", tmp_path / "all.html")
    found = [(one.what, one.file) for one in carriers.handed(run.folder)]
    assert found == [("evidence", str(bundle)), ("evidence", str(page)), ("index", str(tmp_path / "all.html"))]
    for one in carriers.handed(run.folder):
        assert hashlib.sha256(one.path(where).read_bytes()).hexdigest() == one.sha256
    told = {one.kind: (one.what, one.do) for one in affected(run, "1") if one.file.startswith(str(tmp_path))}
    assert set(told) == {"evidence", "index"}
    assert told["index"][0].startswith("an index of runs of ") and told["index"][1].startswith("`unfed index` says")
    assert told["evidence"][0].startswith("an evidence bundle of ") and "`unfed bundle` says" in told["evidence"][1]


def test_the_same_export_is_one_entry_and_another_model_under_its_name_a_second(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    for _ in range(2):
        given("export", run.folder.path, "-o", out)
        given("report", run.folder.path)
    assert len(carriers.handed(run.folder)) == 2
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    given("export", run.folder.path, "-o", out)
    exports = [one for one in carriers.handed(run.folder) if one.what == "export"]
    assert [one.method for one in exports] == ["train", "ft"] and len({one.sha256 for one in exports}) == 2


def test_an_entry_comes_before_its_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, a file is entered that is not there; never the other way round."""
    keep, out = storage.write_bytes, tmp_path / "out.safetensors"

    def writing(path: Path, data: bytes) -> None:
        if path == out:
            raise KeyboardInterrupt
        keep(path, data)

    monkeypatch.setattr(storage, "write_bytes", writing)
    with pytest.raises(KeyboardInterrupt):
        carriers.hand_out(run.folder, "export", out, b"model", Job(0, None, "train"))
    assert [one.file for one in carriers.handed(run.folder)] == [str(out)] and not out.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_says_so_and_is_exported(run: Run, tmp_path: Path) -> None:
    run.folder.path.chmod(0o500)
    try:
        with pytest.warns(UnfedWarning, match="is not entered"):
            given("export", run.folder.path, "-o", tmp_path / "out.safetensors")
    finally:
        run.folder.path.chmod(0o700)


@pytest.mark.parametrize("line", ["{", "5", '{"what": "export"}', "[" * 5000])
def test_a_damaged_list_is_one_sentence(run: Run, line: str) -> None:
    (run.folder.path / carriers.HANDED_OUT).write_text(line + "\n")
    with pytest.raises(UnfedError, match=r"Line 1 of .*handed-out.jsonl (is damaged|is no JSON|has no file)"):
        affected(run, "1")


# --- who is in what ---------------------------------------------------------------------------------------------------


def test_before_anybody_asked_everything_carries_a_client(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    given("export", run.folder.path, "-o", out)
    found = {one.file: one for one in affected(run, "1")}
    assert set(found) == {"models/0/train.safetensors", "state/0/train.safetensors", str(out)}
    assert found["models/0/train.safetensors"].what.endswith("it is in force")
    assert f"unfed forget {run.folder.path} --client 1" in found["models/0/train.safetensors"].do
    assert found[str(out)].do.startswith("delete it and ask everyone who was given it")


def test_after_its_request_the_old_carries_it_and_the_new_does_not(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    given("export", run.folder.path, "-o", old)
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    given("export", run.folder.path, "-o", new)
    files = {one.file: one.do for one in affected(run, "1")}
    assert set(files) == {"models/0/train.safetensors", "state/0/train.safetensors", str(old)}
    assert files["models/0/train.safetensors"] == f"`unfed purge {run.folder.path} --request first`"
    assert str(new) in {one.file for one in affected(run, "2")}, "who did not leave is in it"
    purge(run, "first")
    old.unlink()
    (left,) = affected(run, "1")
    assert left.file == str(old) and left.do.startswith("it is not there as it was; ask everyone who was given it")


def test_while_its_request_waits_the_way_on_is_named(run: Run) -> None:
    run.queue.file(Request("first", clients=("1",)), "ft", "1", 0)
    assert all("'first' is open: `unfed resume" in one.do for one in affected(run, "1"))


def test_over_flower_what_crossed_is_told_by_the_trajectory(run: Run) -> None:
    run.description = run.description.model_copy(update={"engine": "flower"})
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    crossed = [one for one in affected(run, "1") if one.kind in ("upload", "download")]
    assert [one.what for one in crossed] == [
        "updates of client 1 in 2 rounds of 0/train",
        "the models of 2 rounds of 0/train, sent to 0, 1, 2 and 3",
    ]
    assert crossed[1].do == "ask these nodes to delete what they keep of them"


def test_a_client_that_nobody_knows_is_one_sentence(run: Run) -> None:
    with pytest.raises(UnfedError, match="This run has no client 'nobody'; it has 0, 1, 2 or 3"):
        affected(run, "nobody")


def test_the_command_lists_and_says_what_to_do(run: Run) -> None:
    said = given("lineage", run.folder.path, "--affected", "1").replace("\n", "")
    assert "models/0/train.safetensors (model): a model that was trained with it" in said and "unfed forget" in said
    assert said.count("→") == 1, "two files, one thing to do about both"
    found = json.loads(given("lineage", run.folder.path, "--affected", "1", "--json"))
    assert found["client"] == "1" and {one["kind"] for one in found["carriers"]} == {"model", "state"}


def commands(run: Run, client: str) -> set[tuple[str, ...]]:
    """The commands that are named for a client, as a shell takes them apart."""
    typed = [word for one in affected(run, client) for word in one.do.split("`")[1::2]]
    return {tuple(shlex.split(words)[1:]) for words in typed}


def test_what_is_named_to_be_typed_can_be_typed_whatever_the_folder_is_called(template: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(template, tmp_path / "bob's my run")
    run, where = Run.open(folder), str(folder)
    assert ("forget", where, "--client", "1") in commands(run, "1")
    run.forget(Request("first", clients=("1",)), "not", until=1)
    given("report", folder)
    assert commands(run, "1") == {
        ("purge", where, "--request", "first"),
        ("probe", where, "--request", "first"),
        ("forget", where, "--client", "1", "--id", "first-lasts"),
        ("report", where),
    }
    run.queue.file(Request("second", clients=("2",)), "ft", "1", 0)
    assert ("resume", where) in commands(run, "2")


def test_nobody_is_sent_to_a_probe_that_is_refused_since_the_request_was_purged(run: Run) -> None:
    run.forget(Request("first", clients=("1",)), "not", until=1)
    purge(run, "first")
    (left,) = affected(run, "1")
    ends = run.command("forget", "--client", "1", "--id", "first-lasts")
    assert left.do == f"how far cannot be shown any more, for the request was purged; `{ends}` ends it"


def test_over_flower_the_way_on_is_a_run_config_and_no_command_of_ours(run: Run) -> None:
    run.description = run.description.model_copy(update={"engine": "flower"})
    assert any(
        one.do.startswith('the same run config with mode="unlearn" forget-clients="1"') for one in affected(run, "1")
    )
    run.queue.file(Request("first", clients=("1",)), "ft", "1", 0)
    assert any("open: `flwr run DIR --run-config 'resume-from=" in one.do for one in affected(run, "1"))


# --- what comes over from before --------------------------------------------------------------------------------------


def test_each_file_is_read_once_however_many_requests_there_are(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in ("1", "2"):
        run.forget(Request(f"client-{client}", clients=(client,)), "ft", until=1)
    book, saved_at = run.folder.book(), Mock(wraps=folders.saved_at)
    monkeypatch.setattr(folders, "saved_at", saved_at)
    found = carriers.influence(run.folder, replace(book, state=lambda job: None))
    assert {one.request for one in found} == {"client-1", "client-2"}
    states = sorted((run.folder.path / "state").rglob("*.safetensors"))
    assert [call.args[0] for call in saved_at.call_args_list] == states


class Begun(Watch):
    """Keeps the first state of every job."""

    def __init__(self) -> None:
        self.states: dict[Job, State] = {}

    def saved(self, job: Job, state: State, histories: Any) -> None:
        self.states.setdefault(job, state)


FEDERATED = ["not", "ft", "retrain", "sealed", "mode", "fcu", "ga", "ssd", "salun", "badt", "l1-sparse", "randl"]
RECORDED = ["federaser", "fukd", "pgd"]


@pytest.mark.parametrize("method", [*FEDERATED, *RECORDED])
def test_running_statistics_begin_afresh_or_are_listed(method: str, tmp_path: Path) -> None:
    sets = [*SETS, "training.rounds=1", 'model.options.norm="batch"', "methods.fcu.iterations=2"]
    sets += [f"methods.{name}.federated=true" for name in ("ga", "ssd", "salun", "badt", "l1-sparse", "randl")]
    sets += [f'training.record=["{method}"]'] if method in RECORDED else []
    run, begun = Run.create(Config.parse({**SMALL, "request": []}, sets), tmp_path / "run"), Begun()
    run.execute()
    run.forget(Request("first", clients=("1",)), method, until=1, watch=begun)
    (entry,) = run.folder.book().entries
    state = begun.states[Job(0, "first", method)]
    means = [t for n, t in state.params.items() if n.endswith("running_mean")]
    assert means and OPTIMISER not in state.tensors
    found = carriers.carriers(run.folder, run.folder.book(), entry)
    told = [one for one in found if one.kind == "statistics"]
    assert bool(told) == any(bool(mean.any()) for mean in means)
    assert bool(told) == (method not in ("retrain", "sealed"))
    file = run.folder.state_file(Job(0, "first", method))
    groups = {name.partition("/")[0] for name in storage.names_of(file)}
    assert {one.part for one in found if one.kind == "part"} == groups - {"params"}, "what a method kept is listed too"
    purge(run, "first")
    assert {name.partition("/")[0] for name in storage.names_of(file)} == {"params"}


CENTRAL = ["not", "ft", "retrain", "sealed", "ga", "ssd", "salun", "badt", "randl", "l1-sparse"]


@pytest.mark.parametrize("method", CENTRAL)
def test_a_centralised_optimiser_begins_with_the_request(method: str, tmp_path: Path) -> None:
    """θ*'s momentum was made with the leaver's rows; no method begins with it."""
    raw = {
        "name": "central",
        "setting": "central",
        "data": {"train_size": 300, "test_size": 100},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 1, "batch": 64, "momentum": 0.9},
        "unlearning": {"rounds": 1},
        "request": {"id": "r1", "classes": [3]},
        "methods": {"run": [method]},
        "evaluation": {"attack": False, "samples": False},
    }
    run, begun = Run.create(Config.parse(raw), tmp_path / "run"), Begun()
    run.execute(begun)
    trained = storage.load(run.folder.state_file(Job(0, None, "train")))[0]
    assert any(name.startswith(f"{OPTIMISER}/") and bool(t.any()) for name, t in trained.items())
    state = begun.states[Job(0, "r1", method)]
    if state.round == 0:
        assert OPTIMISER not in state.tensors
    moments = {n: t for n, t in trained.items() if n.startswith(f"{OPTIMISER}/") and t.numel() > 1}
    for group in state.tensors.values():
        assert not any(torch.equal(t, old) for t in group.values() for old in moments.values() if t.shape == old.shape)


def test_a_model_that_one_minus_sign_turns_back_is_listed_until_a_method_that_lasts(run: Run) -> None:
    def undoable() -> list[str]:
        return [one.file for one in affected(run, "1") if one.kind == "model" and "by one minus sign" in one.what]

    run.forget(Request("first", clients=("1",)), "not", until=1)
    purge(run, "first")
    assert undoable() == ["models/0/first/not.safetensors"], "nothing else carries client 1 any more"
    run.forget(Request("second", clients=("2",)), "ft", until=1)
    assert undoable() == ["models/0/first/not.safetensors", "models/0/second/ft.safetensors"]
    run.forget(Request("third", classes=(3,)), "sealed", until=1)
    assert "models/0/third/sealed.safetensors" not in undoable()
    assert all("unfed purge" in one.do for one in affected(run, "1") if "minus sign" in one.what), "none is in force"


def test_an_export_that_one_minus_sign_turns_back_is_listed(run: Run, tmp_path: Path) -> None:
    run.forget(Request("first", clients=("1",)), "not", until=1)
    given("export", run.folder.path, "-o", tmp_path / "out.safetensors")
    (export,) = [one for one in affected(run, "1") if one.kind == "export"]
    assert "by one minus sign" in export.what and "sealed and retrain leave no way back" in export.do


def test_in_a_comparison_what_scores_its_rows_and_what_can_be_turned_back_is_listed(tmp_path: Path) -> None:
    sets = ("methods.run=['not','ft']", "training.rounds=1", "unlearning.rounds=1")
    run = Run.create(Config.parse(SMALL, sets), tmp_path / "run")
    run.execute()
    probing.first_look(run, "not")
    of_leaver, of_another = ({one.file: one.what for one in affected(run, client)} for client in ("0", "1"))
    assert of_leaver["samples/0/r1/ft"] == "how a model scores its rows"
    assert of_leaver["undo/0/r1/not.json"] == "what came back of it when it was probed"
    assert (
        "by one minus sign" in of_leaver["models/0/r1/not.safetensors"]
        and "models/0/r1/ft.safetensors" not in of_leaver
    )
    assert of_another["samples/0/train"] == "scores by a model that carries it", "it is in every model"
    assert "samples/0/r1/ft" not in of_another, "these are another client's rows"


def test_in_a_comparison_of_several_requests_a_model_that_turned_the_first_one_back_is_listed(tmp_path: Path) -> None:
    """As published, NoT of the second request negates the layer back, and the third one negates it again."""
    several = 'request=[{id="a", clients=["0"]}, {id="b", clients=["1"]}, {id="c", clients=["2"]}]'
    sets = (several, "methods.run=['not','ft']", "training.rounds=1", "unlearning.rounds=1")
    run = Run.create(Config.parse(SMALL, sets), tmp_path / "run")
    run.execute()
    given("export", run.folder.path, "--method", "not", "--request", "b", "-o", tmp_path / "b.safetensors")
    found = {one.file: one.what for one in affected(run, "0")}
    assert found["models/0/b/not.safetensors"].startswith("request 'b' turned back what NoT did for request 'a'")
    assert found["models/0/c/not.safetensors"].startswith(
        "anyone who has it can turn back what NoT did for request 'a'"
    )
    assert "request 'b' turned back" in found[str(tmp_path / "b.safetensors")]
    assert "models/0/b/ft.safetensors" not in found
    assert "models/0/b/not.safetensors" in {one.file for one in affected(run, "1") if "can turn back" in one.what}


def test_of_one_holder_of_all_data_no_client_is_asked_for(tmp_path: Path) -> None:
    base = {"name": "c", "setting": "central", "model": SMALL["model"], "training": {"rounds": 1}}
    run = Run.create(Config.parse(base, []), tmp_path / "run")
    with pytest.raises(UnfedError, match="has no clients; its report lists"):
        affected(run, "0")
    assert "one holder of all data" in headline(run) and "client" not in headline(run)
