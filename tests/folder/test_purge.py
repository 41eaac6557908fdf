"""Purging: what carries a leaver goes for good, what keeps it out stays, and everything else still works."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from conftest import SMALL
from test_run import Crash
from unfed import storage
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request, TensorSource
from unfed.errors import Refused, UnfedError
from unfed.folder import consistency
from unfed.folder.carriers import HANDED_OUT
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.folder.purge import purge
from unfed.requests import book as books
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.runs.probe import probe
from unfed.runs.run import Run
from unfed.runs.status import status
from worlds import LITTLE, few_triggers  # noqa: F401 (pytest finds the fixture here)

SETS = ["training.rounds=2", "unlearning.rounds=1", "evaluation.attack=false", "engine.name=sequential"]
SETS += ["gate.max_drop=100", "evaluation.recovered_within=100", "data.train_size=600", "data.test_size=200"]
FIRST = Job(0, "first", "not")


def made(folder: Path, *sets: str, compared: bool = False) -> Run:
    base = SMALL if compared else {**SMALL, "request": []}
    run = Run.create(Config.parse(base, [*SETS, "methods.run=['not']", *sets]), folder)
    run.execute()
    return run


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that compared a method, trained with a history, and served a client and then two rows."""
    run = made(tmp_path_factory.mktemp("purge") / "run", "training.record=['fukd']", compared=True)
    run.forget(Request("first", clients=("1",)), "not", until=1)
    run.forget(Request("second", samples=(("2", 0), ("2", 5))), "ft", until=1)
    probe(run, request="first", method="not", effort=LITTLE)
    write(run)
    return run.folder.path


def write(run: Run) -> None:
    from unfed.api import write_report

    write_report(run)


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(template, tmp_path / "run"))


def files(folder: Path) -> dict[str, bytes]:
    """Everything that a purge is about, byte for byte."""
    kinds = ("models", "state", "samples", "undo", "theory", "advice")
    found = [p for kind in kinds for p in (folder / kind).rglob("*") if p.is_file()]
    found.append(folder / "trajectory.jsonl")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found if not storage.is_leftover(p)}


def told(folder: Path, *words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*words])
    return found.exit_code, found.output + str(found.exception or "")


# --- what goes, and what stays ----------------------------------------------------------------------------------------


def test_what_carries_the_leaver_goes_and_leaves_tombstones(run: Run) -> None:
    theta = storage.load(run.folder.model_file(Job(0, None, "train")))[0]
    verdicts, advice = run.folder.path / "theory/0/first.json", run.folder.path / "advice/0.json"  # of older versions
    storage.write_json(verdicts, {"models": {"before": {"job": [0, None, "train"], "digest": "00"}}})
    storage.write_json(advice, {"models": {"in force": {"job": [0, "second", "ft"], "digest": "00"}}})
    before = files(run.folder.path)
    outcome = purge(run, "first")
    assert not verdicts.exists(), "verdicts on the model that knew it go too"
    assert advice.exists(), "advice on the model in force stays"
    left = files(run.folder.path)
    assert {name for name in left if name.startswith("models/")} == {"models/0/second/ft.safetensors"}
    assert not any(name.startswith(("samples/0/first/", "samples/0/train", "undo/")) for name in left)
    assert any(name.startswith("samples/0/r1/") for name in left), "the scores of another client stay"
    for name in left:
        if name.startswith("state/"):
            tensors, numbers = storage.load(run.folder.path / name)
            assert not numbers["histories"], "history leads back to the old model"
            held = {n.partition("/")[2]: t for n, t in tensors.items()}
            assert not any(n in held and torch.equal(held[n], t) for n, t in theta.items()), name
    for grave in outcome.gone:
        assert consistency.file_digest(run.folder.path / grave.file.partition("#")[0]) != grave.sha256
        assert grave.request == "first" and grave.date.endswith("Z")
    every = {grave.file.partition("#")[0] for grave in outcome.gone}
    assert every == {name for name in before if left.get(name) != before[name]}
    told = books.tombstones(run.folder.path)
    assert told["models/0/train.safetensors"].sha256 == hashlib.sha256(before["models/0/train.safetensors"]).hexdigest()


def test_no_score_of_a_purged_row_is_left_in_what_later_requests_kept(run: Run) -> None:
    """Whoever left is scored together with whoever leaves, so a later request's files hold its rows one by one."""
    rows = {e.request.id: (e.described or {})["forgotten_rows"] for e in run.folder.book().entries}
    later = sorted((run.folder.path / "samples" / "0" / "second").rglob("*.safetensors"))
    assert all(len(storage.load(file)[0]["forget/loss"]) == rows["first"] + rows["second"] for file in later) and later
    was = [storage.load(file)[0]["forget/loss"] for file in later]
    purge(run, "first")
    for file, whole in zip(later, was, strict=True):  # clients stand in their order, the second's two rows last
        assert torch.equal(storage.load(file)[0]["forget/loss"], whole[-2:]), "the others' rows stay"
    assert check(run.folder).findings == []


def test_nothing_that_the_folder_lists_is_left_and_it_is_whole(run: Run) -> None:
    purge(run, "first")
    of_first = [one for one in Run.open(run.folder.path).info().influence or () if one.request == "first"]
    assert of_first == []
    assert check(run.folder).findings == []


def test_how_exposed_single_rows_are_is_listed_and_goes(run: Run) -> None:
    from unfed.folder import study_results

    file = study_results.judged_file(run.folder, "first")
    later = study_results.SCHEMA + 1  # whatever its layout is: it speaks of the rows
    storage.write_json(file, {"schema": later, "request": "first", "exposed": [["1", 7]]})
    other = study_results.judged_file(run.folder, "second")
    storage.write_json(other, {"schema": later, "request": "second"})
    assert ("first", "population/first.json") in {(one.request, one.file) for one in run.info().influence or ()}
    purge(run, "first")
    assert not file.exists() and other.exists()
    assert "population/first.json" in books.tombstones(run.folder.path) and check(run.folder).findings == []


def test_purging_twice_is_purging_once(run: Run) -> None:
    first = purge(run, "first")
    after = files(run.folder.path)
    second = purge(Run.open(run.folder.path), "first")
    assert second.gone == () and set(second.before) == set(first.gone) and files(run.folder.path) == after


def test_two_requests_are_purged_one_after_the_other(run: Run) -> None:
    gone = {grave.file for grave in purge(run, "first").gone}
    assert {"models/0/first/not.safetensors", "models/0/train.safetensors"} <= gone
    rest = {grave.file for grave in purge(run, "second").gone}
    own = {file for file in rest if file.startswith("samples/0/second/")}
    assert own and rest - own == {"trajectory.jsonl#second"}, "all else went along"
    assert all(entry.purged for entry in run.folder.book().entries)
    assert {name for name in files(run.folder.path) if name.startswith("models/")} == {"models/0/second/ft.safetensors"}
    assert check(run.folder).whole and books.tombstones(run.folder.path)["models/0/train.safetensors"].request == (
        "first"
    )


def test_a_dry_run_says_what_would_go_and_changes_nothing(run: Run) -> None:
    before = files(run.folder.path)
    would = purge(run, "first", dry_run=True)
    assert files(run.folder.path) == before and not books.tombstones(run.folder.path)
    assert [g.file for g in would.gone] == [g.file for g in purge(run, "first").gone]


# --- afterwards -------------------------------------------------------------------------------------------------------


def test_afterwards_everything_else_works_as_before(run: Run) -> None:
    lines, where = run.lines(), str(run.folder.path)
    before = {job.job: (job.round, job.state) for job in status(run).jobs}
    out = run.folder.path.parent / "out.safetensors"
    purge(run, "first")
    again = Run.open(where)
    assert again.lines() == lines and status(again).state == "finished"
    assert {job.job: (job.round, job.state) for job in status(again).jobs} == before
    again.execute()  # nothing is trained or compared once more
    assert Run.open(where).lines() == lines
    for words in (
        ["status", where],
        ["report", where],
        ["check", where],
        ["export", where, "-o", str(out)],
        ["evaluate", where, "--json"],
    ):
        code, said = told(run.folder.path, *words)
        assert code == 0, (words, said)
    assert Run.open(where).forget(Request("third", clients=("3",)), "ft", until=1).status == "done"
    assert check(RunFolder(where)).findings == [] and Run.open(where).lines()[: len(lines)] == lines


def test_a_purged_model_that_is_asked_for_is_named_with_its_tombstone(run: Run) -> None:
    purge(run, "first")
    purge(run, "second")
    for words in (["export", str(run.folder.path), "-o", "x.safetensors", "--method", "train"],):
        code, said = told(run.folder.path, *words)
        assert code != 0 and "models/0/train.safetensors was purged for request 'first' on 2" in said, said
        assert f"in force is 0/second/ft (`unfed export {run.folder.path} -o model.safetensors`)" in said


def test_a_purged_model_that_is_to_be_scored_is_named_with_its_tombstone(run: Run) -> None:
    purge(run, "first")
    where = str(run.folder.path)
    code, said = told(run.folder.path, "evaluate", where, "--model", f"{where}/state/../models/0/train.safetensors")
    assert code != 0 and "models/0/train.safetensors was purged for request 'first' on 2" in said, said
    assert "without --model, the one in force is scored" in said
    code, said = told(run.folder.path, "evaluate", where, "--model", f"{where}/nowhere.safetensors")
    assert code != 0 and "There is no model at" in said


def test_a_model_that_went_with_a_later_request_cannot_be_probed(run: Run) -> None:
    purge(run, "second")
    with pytest.raises(UnfedError, match="models/0/first/not.safetensors was purged for request 'second'.*to probe"):
        probe(Run.open(run.folder.path), request="first", method="not")
    with pytest.raises(UnfedError, match="nothing to probe, but what the next request leaves can be"):
        probe(Run.open(run.folder.path), request="first")
    Run.open(run.folder.path).forget(Request("third", clients=("3",)), "retrain", until=1)
    words = "probe .*run --request third --method retrain` to probe"
    with pytest.raises(UnfedError, match=f"was purged for request 'second'.*there is `unfed {words}"):
        probe(Run.open(run.folder.path))


def test_a_probe_of_what_is_left_says_that_the_model_before_was_purged(tmp_path: Path) -> None:
    """Retrain was without the first leaver before that was served; the model that it followed was not."""
    run, accepted = made(tmp_path / "run"), RequestOptions(accept={"by": "me", "at": "now"})
    with pytest.raises(Refused):
        run.forget(Request("first", clients=("1",)), "not", until=1, how=RequestOptions(max_drop=0.0))
    run.forget(Request("second", clients=("2",)), "retrain", until=1)
    run.forget(Request("first", clients=("1",)), "ft", until=1, how=accepted)
    purge(run, "first")
    (found,) = probe(Run.open(run.folder.path), request="second", effort=LITTLE)
    assert found.measured["unlearned"]["difference"]["reason"] == (
        "not measured: the model 0/train was purged for request first"
    )


def test_a_method_that_needs_the_purged_history_is_refused_when_it_is_filed(run: Run) -> None:
    purge(run, "first")
    with pytest.raises(UnfedError, match="FUKD needs history, but .*was purged for request 'first'.*use --method not"):
        Run.open(run.folder.path).forget(Request("third", clients=("3",)), "fukd", until=1)
    assert [e.request.id for e in run.folder.book().entries] == ["first", "second"]


def test_who_was_purged_stays_out(run: Run, tmp_path: Path) -> None:
    """A client by its name, a row by its keyed hash, wherever it is offered again."""
    purge(run, "second")
    client = run.world(0).clients[2]
    assert isinstance(client.source, TensorSource)
    rows = {client.source.images[row].numpy().tobytes() for row in client.rows[[0, 5]].tolist()}
    sets = [*SETS, f'deny.run="{run.folder.path}"', "seeds.partition=99"]
    following = Run.create(Config.parse({**SMALL, "request": []}, sets), tmp_path / "next")
    world = following.world(0)
    for own in world.clients:
        assert isinstance(own.source, TensorSource)
        seen = {own.source.images[row].numpy().tobytes() for v in ("all", "val") for row in own.rows[own.view(v)]}
        assert not rows & seen and (own.name != "1" or not seen)
    with pytest.raises(UnfedError, match="is out already, by request 'first'"):
        Run.open(run.folder.path).forget(Request("again", clients=("1",)), "ft", until=1)


def test_a_purge_that_was_stopped_after_its_tombstones_is_written_down_when_it_is_asked_for_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk, pytest.raises(UnfedError, match="full"):
        disk.setattr(RunFolder, "put_request", lambda *_: (_ for _ in ()).throw(UnfedError("full")))
        purge(run, "first")
    (file,) = (run.folder.path / "requests").glob("*-first.json")
    assert books.tombstones(run.folder.path) and "purged" not in json.loads(file.read_text())
    purge(run, "first")
    assert json.loads(file.read_text())["purged"]


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_id", "says"),
    [("nobody", "has no request 'nobody'; it has first or second"), ("r1", "was only compared, not served")],
)
def test_a_request_that_nothing_was_served_for_is_refused(run: Run, request_id: str, says: str) -> None:
    before = files(run.folder.path)
    with pytest.raises(UnfedError, match=says):
        purge(run, request_id)
    assert files(run.folder.path) == before


def test_what_waits_is_owed_or_needs_it_is_served_first(run: Run) -> None:
    run.queue.file(Request("third", clients=("3",)), "fukd", "1", 0)
    with pytest.raises(UnfedError, match="'third' is open; serve it first"):
        purge(run, "third")
    with pytest.raises(UnfedError, match="'third' is open and needs the history that would be purged"):
        purge(run, "first")
    run.withdraw("third")
    with pytest.raises(UnfedError, match="'third' is withdrawn; nothing has to go"):
        purge(run, "third")
    assert purge(run, "first").gone


def test_what_was_begun_is_served_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from unfed.methods import FineTune

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(FineTune, "round", lambda *_: (_ for _ in ()).throw(Crash))
        run.forget(Request("third", clients=("3",)), "ft", until=1)
    with pytest.raises(UnfedError, match="'third' is in progress and was begun beside what would be purged"):
        purge(Run.open(run.folder.path), "first")


def test_retrain_of_a_comparison_that_left_the_client_out_is_no_carrier_of_it(tmp_path: Path) -> None:
    """Its model stays, what it says of the leaver's rows goes; FT's, which grew out of θ*, goes as a whole."""
    run = made(tmp_path / "run", "methods.run=['retrain', 'ft']", "request=[{id='r1', clients=['1']}]", compared=True)
    run.forget(Request("first", clients=("1",)), "not", until=1)
    probe(run, request="r1", method="retrain", effort=LITTLE)
    folder, kept = run.folder.path, "models/0/r1/retrain.safetensors"
    before = files(folder)
    purge(run, "first")
    left = files(folder)
    assert left[kept] == before[kept] and "models/0/r1/ft.safetensors" not in left
    assert "state/0/r1/retrain.safetensors" in left and "undo/0/r1/retrain.json" in before
    assert not any(name.startswith(("samples/0/r1/", "undo/")) for name in left)
    again = made(tmp_path / "other", "methods.run=['retrain']", "request=[{id='r1', clients=['2']}]", compared=True)
    again.forget(Request("first", clients=("1",)), "not", until=1)
    purge(again, "first")
    assert kept not in files(again.folder.path), "Retrain without another client was trained with this one"


def test_a_comparison_that_is_not_finished_is_finished_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unfed.methods.not_ import NoT

    with monkeypatch.context() as patch, pytest.raises(UnfedError):
        patch.setattr(NoT, "round", lambda *_: (_ for _ in ()).throw(UnfedError("Not now; later.")))
        made(tmp_path / "run", compared=True)
    run = Run.open(tmp_path / "run")
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    with pytest.raises(UnfedError, match="comparison is not finished .0/r1/not. .*first go on with `unfed resume"):
        purge(run, "first")


def test_a_request_that_the_gate_denied_is_not_purged(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "gate.max_drop=0")
    with pytest.raises(Refused):
        run.forget(Request("first", clients=("1",)), "not", until=1)
    with pytest.raises(UnfedError, match="'first' is denied .gate. and left no model in force"):
        purge(run, "first")


def test_what_was_tried_in_vain_goes_with_the_rest(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "gate.max_drop=0")
    with pytest.raises(Refused):
        run.forget(Request("first", clients=("1",)), "not", until=1)
    run.forget(
        Request("first", clients=("1",)), "retrain", until=2, how=RequestOptions(accept={"by": "me", "at": "now"})
    )
    tried = [one for one in run.info().influence or () if one.file == "models/0/first/not.safetensors"]
    assert [one.what for one in tried] == ["a model that was to take it out, and is not in force"]
    purge(run, "first")
    assert {name for name in files(run.folder.path) if name.startswith("models/")} == {
        "models/0/first/retrain.safetensors"
    }
    assert check(run.folder).findings == []


def test_what_is_owed_begins_anew_where_its_history_was_purged(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "training.record=['fukd']")
    run.forget(Request("first", clients=("1",)), "ft", until=1)
    with pytest.raises(Refused):
        run.forget(Request("second", clients=("2",)), "not", until=1, how=RequestOptions(max_drop=0.0))
    gone = {grave.file for grave in purge(run, "first").gone}
    assert {"state/0/second/not.safetensors", "state/0/first/ft.safetensors#history"} <= gone
    again = Run.open(run.folder.path)
    assert (
        again.forget(Request("second", clients=("2",)), "not", until=1, how=RequestOptions(max_drop=100.0)).status
        == "done"
    )
    lines = [line for line in again.folder.lines() if line["request"] == "second" and line["method"] == "not"]
    assert [(line.get("start", 1), line["round"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert check(again.folder).findings == []


def test_while_another_process_is_at_work_nothing_goes(run: Run) -> None:
    with RunFolder(run.folder.path).lock(), pytest.raises(UnfedError, match="Another process is at work"):
        purge(run, "first")


def test_what_lies_behind_a_link_is_not_said_to_be_purged(run: Run, tmp_path: Path) -> None:
    """Taking the link away would leave the model where it lies."""
    model = run.folder.path / "models/0/train.safetensors"
    model.rename(tmp_path / "model")
    model.symlink_to(tmp_path / "model")
    with pytest.raises(UnfedError, match=r"train\.safetensors is a link out of the folder"):
        purge(run, "first")
    assert (tmp_path / "model").exists() and not (run.folder.path / "tombstones.json").exists()
    model.unlink()
    (tmp_path / "model").rename(model)
    history = next((run.folder.path / "state/0").glob("train.history-*"))
    history.unlink()
    with pytest.raises(UnfedError, match=f"{history} is to be purged and is not there; restore it"):
        purge(run, "first")


def test_a_tombstone_that_leads_out_of_the_folder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    digest = consistency.file_digest(tmp_path / "mine")
    books.bury(run.folder.path, [books.Tombstone("models/../../mine", str(digest), "first", "2026-01-31")])
    with pytest.raises(UnfedError, match="which is no file of this folder"):
        purge(run, "first")
    assert (tmp_path / "mine").exists() and not check(run.folder).whole


# --- killed -----------------------------------------------------------------------------------------------------------


@contextmanager
def kept_before_every_operation(folder: Path, into: Path) -> Iterator[dict[Path, str]]:
    """Copies of a folder from just before each disk operation: what a process leaves that is killed there.

    Operations that change nothing, as of a folder that is there already, leave no copy of their own.
    """
    kept: dict[Path, str] = {}
    held: dict[Path, bytes] = {}
    copying = False
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink", "mkdir", "rmdir"):

            def operate(name: str, own: Any, *args: Any, **more: Any) -> Any:
                nonlocal copying, held
                now = {} if copying else {p: p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}
                if not copying and now != held:
                    copying, held = True, now
                    kept[shutil.copytree(folder, into / str(len(kept)))] = name
                    copying = False
                return own(*args, **more)

            patch.setattr(os, name, partial(operate, name, getattr(os, name)))
        yield kept


@pytest.mark.slow
@pytest.mark.parametrize("request_id", ["first", "second"])
def test_killed_before_any_disk_operation_it_ends_as_if_it_had_not_been(
    template: Path, tmp_path: Path, request_id: str
) -> None:
    """A client, and two rows, of which the trajectory must tell nothing any more."""
    whole = Run.open(shutil.copytree(template, tmp_path / "whole"))
    with kept_before_every_operation(whole.folder.path, tmp_path / "killed") as kept:
        purge(whole, request_id)
    wanted, graves = files(whole.folder.path), books.tombstones(whole.folder.path).keys()
    assert len(kept) > 20 and {"replace", "unlink"} <= {*kept.values()}
    for number, folder in list(enumerate(kept))[request_id == "second" :: 3]:  # each takes others
        begun = bool(books.tombstones(folder))
        assert begun or files(folder) == files(template), "without a word nothing goes"
        if begun:
            half = check(RunFolder(folder)).findings
            assert all("goes on" in sentence for sentence in half)
            if number % 3 == 0:  # whoever works there next ends it too
                Run.open(folder).execute()
        purge(Run.open(folder), request_id)
        assert files(folder) == wanted and books.tombstones(folder).keys() == graves, folder
        assert check(RunFolder(folder)).whole and not list(folder.rglob("*.tmp"))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_went(run: Run) -> None:
    where = str(run.folder.path)
    code, said = told(run.folder.path, "purge", where, "--request", "first", "--dry-run")
    assert code == 0 and "would purge models/0/train.safetensors" in said
    code, said = told(run.folder.path, "purge", where, "--request", "first", "--json", "--yes")
    found = json.loads(said)
    assert code == 0 and "models/0/train.safetensors" in {grave["file"] for grave in found["gone"]}
    assert "No file in the run folder was made with it" in (run.folder.path / "report.html").read_text()
    page = " ".join((run.folder.path / "report.html").read_text().split())
    assert "purged for request first" in page and "There is no new model yet" not in page, "it was there, and went"
    assert "not there yet" not in page
    (run.folder.path / "report.html").write_text("of the day before")  # as a killed purge leaves it
    code, said = told(run.folder.path, "purge", where, "--request", "first", "--yes")
    assert code == 0 and "was purged already" in said
    assert "No file in the run folder was made with it" in (run.folder.path / "report.html").read_text()


@pytest.mark.usefixtures("no_report")
def test_what_went_is_told_in_a_line_per_folder_of_scores_and_in_words_of_the_setting(run: Run, tmp_path: Path) -> None:
    code, said = told(run.folder.path, "purge", str(run.folder.path), "--request", "first", "--yes")
    assert code == 0 and "samples/0/train (3 files)" in said and ".safetensors (" not in said
    path = run.folder.path
    assert f"what clients keep are not reached: `unfed lineage {path} --affected 1` lists" in said
    assert f"a tombstone in {path / books.TOMBSTONES}." in said
    config = {"setting": "central", "model": {"name": "cnn-tiny"}, "methods": {"run": []}}
    central = Run.create(Config.parse(config, ["training.rounds=1", "gate.max_drop=100"]), tmp_path / "central")
    central.execute()
    (holder,) = central.world(0).clients
    assert holder.numbers is not None
    central.forget(Request("few", rows=tuple(holder.numbers[:2].tolist())), "ft", until=1)
    code, said = told(central.folder.path, "purge", str(central.folder.path), "--request", "few", "--yes")
    assert code == 0 and f"Backups and exports are not reached: {central.folder.path / HANDED_OUT} lists" in said


@pytest.mark.usefixtures("no_report")
def test_it_lists_and_asks_and_a_script_says_yes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    where, before = str(run.folder.path), files(run.folder.path)
    words = ("purge", where, "--request", "first")
    code, said = told(run.folder.path, *words)
    assert code != 0 and "read the list with --dry-run, then repeat the command with --yes" in said
    assert files(run.folder.path) == before and not books.tombstones(run.folder.path)
    monkeypatch.setattr("unfed.cli.requests._at_terminal", lambda: True)
    for answer, done in (("n\n", False), ("y\n", True)):
        found = CliRunner().invoke(app, [*words], input=answer)
        assert (
            "would purge models/0/train.safetensors" in found.output
            and "Purge request 'first' for good?" in found.output
        )
        assert bool(books.tombstones(run.folder.path)) is done
    assert CliRunner().invoke(app, [*words]).exit_code == 0, "nothing is left to ask about"


def test_what_was_not_shown_does_not_go(run: Run) -> None:
    with pytest.raises(UnfedError, match="has changed since the list was shown"):
        purge(run, "first", agreed=["models/0/train.safetensors"])
    assert not books.tombstones(run.folder.path)


def test_what_another_request_keeps_is_left_to_it_and_pages_say_what_was_purged(run: Run) -> None:
    """A probe of the first client's model is the first's, though that model knew the two rows of the second."""
    probed = run.folder.path / "undo" / "0" / "first" / "not.json"
    was = probed.read_bytes()
    purge(run, "second")
    assert probed.read_bytes() == was
    record = Run.open(run.folder.path)
    assert [one.request for one in record.info().undo] == ["first"] and record.info().probes_purged == ()
    purge(Run.open(run.folder.path), "first")
    assert not probed.exists() and Run.open(run.folder.path).info().probes_purged == ("first",)


def test_a_probe_that_an_older_purge_took_along_is_said_to_be_purged(run: Run) -> None:
    """Older versions deleted what other requests had; then their pages said that it was never tried."""
    from unfed.trust.findings import findings

    grave = books.Tombstone("undo/0/second/ft.json", "0" * 64, "first", "2026-01-01T00:00:00Z")
    books.bury(run.folder.path, [grave])
    write(Run.open(run.folder.path))
    page = (run.folder.path / "report.html").read_text(encoding="utf-8")
    assert "what was tried was purged with other data" in page
    opened = Run.open(run.folder.path)
    entry = opened.queue.book.find("second")
    assert entry is not None and "was purged with other data" in findings(opened, entry)["undo"]


def test_scores_of_an_older_version_which_do_not_say_whose_they_are_go_as_a_whole(run: Run) -> None:
    later = sorted((run.folder.path / "samples" / "0" / "second").rglob("*.safetensors"))
    for file in later:
        scores, numbers = storage.load(file)
        scores.pop("forget/request"), numbers.pop("over")
        storage.save(file, scores, numbers)
    purge(run, "first")
    assert later and not any(file.exists() for file in later) and check(run.folder).findings == []
