"""Rows that were purged: no value of a single one of them is ever written again, whatever is asked of the run next."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from conftest import SMALL
from unfed import storage
from unfed.api import write_report
from unfed.cli.main import app
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused, UnfedError
from unfed.folder import purge as purging
from unfed.folder import study_results as judged
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.folder.purge import purge
from unfed.folder.subtraction import OWN
from unfed.measures.undo.measure import undo
from unfed.requests import book as books
from unfed.requests.options import RequestOptions
from unfed.runs import probe as probing
from unfed.runs.probe import chosen
from unfed.runs.run import Run
from unfed.runs.world import local_evaluator
from unfed.studies import judging
from unfed.values import is_measured
from worlds import LITTLE, few_triggers  # noqa: F401 (pytest finds the fixture here)

SETS = ["training.rounds=2", "unlearning.rounds=1", "methods.run=[]", "engine.name=sequential", "gate.max_drop=100"]
SETS += ["evaluation.attack=false"]
ONE_ROUND = ("--method", "ft", "--until", "1")
CLIENT, TWO = Request("client-1", clients=("1",)), Request("two", samples=(("2", 0), ("2", 5)))
NEXT = Request("client-3", clients=("3",))


def said(*words: Any, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    text = " ".join((found.output + str(found.exception or "")).split())
    assert (found.exit_code == 0) == (code == 0), text
    return text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that let a client go, and then two rows of another."""
    run = Run.create(Config.parse({**SMALL, "request": []}, SETS), tmp_path_factory.mktemp("purged") / "run")
    run.execute()
    run.forget(CLIENT, "ft", until=1)
    run.forget(TWO, "ft", until=1)
    return run.folder.path


@pytest.fixture
def where(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "run"))


def rows_of(run: Run, *requests: Request) -> torch.Tensor:
    return torch.cat([c.rows[c.view("forget")] for c in run.world(0).scoped(requests).values()])


def values(run: Run, *requests: Request) -> set[bytes]:
    """The losses of single rows, as bytes, under every model that lies in the folder."""
    world, rows, found = run.world(0), rows_of(run, *requests), set()
    for file in (run.folder.path / "models").rglob("*.safetensors"):
        loss = score(world.template, storage.load(file)[0], world.dataset.train, rows).loss
        found |= {struct.pack("<f", value) for value in loss.tolist() if value > 1e-3}
    return found


def holding(folder: Path, theirs: set[bytes]) -> list[str]:
    """The files of a folder in which one of these losses stands, as a score or in figures.

    Entropies are not looked at: of ten classes they crowd below 2.3, as losses do, and some are equal by chance.
    """
    found = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        raw = file.read_bytes()
        told = {struct.pack("<f", float(text)) for text in re.findall(rb"\d+\.\d+(?:e-?\d+)?", raw)}
        if file.suffix == ".safetensors" and "samples" in file.parts:
            losses = [column for name, column in storage.load(file)[0].items() if name.endswith("/loss")]
            told |= {struct.pack("<f", value) for column in losses for value in column.tolist()}
        found += [file.relative_to(folder).as_posix()] if theirs & told else []
    return sorted(found)


# --- what comes after a purge -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_what_comes_after_a_purge_holds_no_value_of_a_purged_row(where: Path) -> None:
    before = Run.open(where)
    assert holding(where, values(before, CLIENT, TWO)), "there is something to find"
    for name in ("client-1", "two"):
        said("purge", where, "--request", name, "--yes")
    said("forget", where, "--method", "not", "--client", "3", *ONE_ROUND)
    run = Run.open(where)
    later = sorted((where / "samples" / "0" / "client-3").rglob("*.safetensors"))
    assert later and {len(storage.load(file)[0]["forget/loss"]) for file in later} == {len(rows_of(run, NEXT))}
    write_report(run)
    theirs = values(run, CLIENT, TWO)
    assert len(theirs) > 100 and holding(where, theirs) == []
    assert holding(where, values(run, NEXT)) != []
    for name in ("client-1", "two"):
        assert "nothing in this folder carries it" in said("purge", where, "--request", name, "--yes")
    for client in ("1", "2"):
        listed = said("lineage", where, "--affected", client)
        assert "samples/" not in listed or client == "2", "of client 2 no request was filed as a whole"
    assert check(run.folder).findings == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_probe_after_a_purge_looks_at_what_is_left(where: Path) -> None:
    for name in ("client-1", "two"):
        purge(Run.open(where), name)
    Run.open(where).forget(NEXT, "ft", until=1)
    run = Run.open(where)
    probing.probe(run, effort=LITTLE)
    write_report(run)
    whole = json.loads((where / "undo" / "0" / "client-3" / "ft.json").read_text())
    assert whole["without"] == ["client-1", "two"]
    assert holding(where, values(run, CLIENT, TWO)) == []
    assert "nothing in this folder carries it" in said("purge", where, "--request", "client-1", "--yes")


def test_what_was_purged_is_measured_again_as_a_share_of_many_rows_only(where: Path) -> None:
    """Whoever left wants to stay out; of two rows a share would be their values."""
    run = Run.open(where)
    for name in ("client-1", "two"):
        purge(run, name)
    told = said("forget", where, "--method", "not", "--client", "3", *ONE_ROUND)
    run = Run.open(where)
    line, entry = run.lines()[-1], run.queue.book.find("client-3")
    assert entry is not None and line["forget"] == line["own"], "Forget is over what is not purged"
    share = score(run.world(0).template, run.current(0), run.world(0).dataset.train, rows_of(run, CLIENT)).accuracy
    few = "not measured: its 2 rows were purged, 10 needed"
    assert line["earlier"] == {"client-1": pytest.approx(share), "two": few}
    many = entry.again["client-1"]
    assert many["forget"] == pytest.approx(share) and is_measured(many["expected"])
    assert {entry.again["two"][name] for name in ("forget", "expected", "mia")} == {few}
    assert f"Earlier request client-1: the new model is right on {share:.1f} % of its data" in told
    assert f"Earlier request two: {few}." in told
    assert few in " ".join((where / "report.html").read_text(encoding="utf-8").split())


def test_a_share_of_few_rows_is_told_with_how_few_they_are(where: Path) -> None:
    """Three of five hard rows are 40 %, which beside "about 97 %" reads like a fault and is none."""
    told = said("forget", where, "--method", "not", "--client", "3", *ONE_ROUND)
    entry = Run.open(where).queue.book.find("client-3")
    assert entry is not None and entry.again["two"]["rows"] == 2 and float(entry.again["client-1"]["rows"]) > 10
    few = "(of 2 rows)"
    for text in (told, " ".join((where / "report.html").read_text(encoding="utf-8").split())):
        assert text.count(few) == 1


def test_rows_that_another_request_names_too_are_not_scored_either(where: Path) -> None:
    """A class leaves after a client was purged: rows of that client in that class are the client's."""
    run = Run.open(where)
    purge(run, "client-1")
    run.forget(Request("seven", classes=(7,)), "ft", until=1)
    seven, gone = Request("seven", classes=(7,)), rows_of(run, CLIENT)
    kept = [row for row in rows_of(run, TWO, seven).tolist() if row not in set(gone.tolist())]
    world = run.world(0)
    numbers = local_evaluator(world, [e.request for e in run.folder.book().entries])(run.current(0))
    assert len(numbers.samples["forget/loss"]) == len(kept)


def test_purged_is_for_good_also_where_nothing_was_left_to_take_away(where: Path) -> None:
    run = Run.open(where)
    purge(run, "two")  # takes the model along that client 1 left
    own = purge(Run.open(where), "client-1").gone
    assert all(grave.file.startswith("samples/0/client-1/") for grave in own), "its own scores, and nothing of others"
    assert all(e.purged and e.request.purged for e in run.folder.book().entries)
    again = purge(Run.open(where), "client-1")
    assert again.gone == () and again.entry.purged
    run = Run.open(where)
    run.forget(NEXT, "ft", until=1)
    assert holding(where, values(run, CLIENT, TWO)) == []


def test_a_purge_that_was_killed_after_its_tombstones_counts(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException): ...

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "put_request", dies)
        purge(Run.open(where), "client-1")
    assert "purged" not in json.loads((where / "requests" / "0001-client-1.json").read_text())
    run = Run.open(where)
    run.forget(NEXT, "ft", until=1)
    assert holding(where, values(run, CLIENT)) == [] and not purging.pending(where)


def test_a_model_that_a_minus_sign_turns_back_goes_once_it_is_not_in_force(tmp_path: Path) -> None:
    """Whoever has NoT's model brings the leaver back without any other file, so no purge may leave it lying about."""
    run = Run.create(Config.parse({**SMALL, "request": []}, SETS), tmp_path / "run")
    run.execute()
    where = run.folder.path
    for request, method in ((CLIENT, "not"), (TWO, "ft"), (NEXT, "sealed"), (Request("zero", clients=("0",)), "ft")):
        run.forget(request, method, until=1)
        if request is TWO:
            first = {grave.file for grave in purge(run, "client-1", dry_run=True).gone}
            assert {"models/0/client-1/not.safetensors", "state/0/client-1/not.safetensors"} <= first
            assert not {"models/0/two/ft.safetensors", "state/0/two/ft.safetensors"} & first, "it is in force"
            assert "one minus sign" in said("lineage", where, "--affected", "1")
    listed = said("lineage", where, "--affected", "1")
    assert "models/0/two/ft.safetensors (model): anyone who has it can turn back" in listed
    assert "→ `unfed purge" in listed and "unfed probe" not in listed, "a purge ends it, and says so"
    purge(run, "client-1")
    left = {path.relative_to(where).as_posix() for path in (where / "models").rglob("*.safetensors")}
    assert left == {"models/0/client-3/sealed.safetensors", "models/0/zero/ft.safetensors"}
    for name in ("client-1/not", "two/ft"):
        assert storage.load(where / "state" / "0" / f"{name}.safetensors")[0] == {}, "nor in its state"
    assert check(run.folder).findings == [] and "minus sign" not in said("lineage", where, "--affected", "1")
    assert Run.open(where).forget(Request("last", classes=(7,)), "ft", until=1).status == "done"


# --- what others kept of it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("withdrawn", [False, True])
def test_scores_that_a_request_kept_which_was_not_fulfilled_go_too(where: Path, withdrawn: bool) -> None:
    run = Run.open(where)
    with pytest.raises(Refused):
        run.forget(NEXT, "not", until=1, how=RequestOptions(max_drop=0.0))
    if withdrawn:
        run.withdraw("client-3")
    kept = [name for name in holding(where, values(run, CLIENT)) if name.startswith("samples/0/client-3/")]
    assert kept
    listed = {one.file for one in Run.open(where).info().influence or () if one.request == "client-1"}
    assert {str(Path(name).parent) for name in kept} <= listed
    purge(run, "client-1")
    left = {len(storage.load(where / name)[0]["forget/loss"]) for name in kept}
    assert left == {len(rows_of(run, TWO, NEXT))} and check(run.folder).findings == [], "the others' rows stay"
    if not withdrawn:
        again = Run.open(where)
        again.forget(NEXT, "not", until=2, how=RequestOptions(max_drop=100.0))
        files = list((where / "samples" / "0" / "client-3").rglob("*.safetensors"))
        assert {len(storage.load(file)[0]["forget/loss"]) for file in files} == {len(rows_of(again, TWO, NEXT))}


def test_what_a_population_says_of_the_same_rows_goes_and_does_not_come_back(tmp_path: Path) -> None:
    """A comparison has ids of its own, so the file is not called after the request that is purged."""
    sets = [*SETS, 'request=[{id="a", clients=["1"]}, {id="b", clients=["2"]}]', "methods.run=['ft']"]
    run = Run.create(Config.parse(SMALL, sets), tmp_path / "run")
    run.execute()
    for name in ("a", "b"):
        storage.write_json(judged.judged_file(run.folder, name), {"schema": judged.SCHEMA, "request": name})
    run.forget(Request("leaves", clients=("1",)), "ft", until=1)
    purge(run, "leaves")
    assert not judged.judged_file(run.folder, "a").exists() and judged.judged_file(run.folder, "b").exists()

    class Made:
        folder = tmp_path

        class about:
            request = "a"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "of_another", lambda about, config: None)
        with pytest.raises(UnfedError, match="'leaves' was purged from .*names its rows one by one; leave --run out"):
            judging.put_into(run, Made(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (Request("a", clients=("1",)), Request("b", clients=("2",)), False),
        (Request("a", clients=("1",)), Request("b", clients=("2", "1")), True),
        (Request("a", clients=("1",)), Request("b", samples=(("1", 4),)), True),
        (Request("a", clients=("1",)), Request("b", samples=(("2", 4),)), False),
        (Request("a", classes=(1,)), Request("b", clients=("2",)), True),
        (Request("a", fraction=0.1), Request("b", clients=("2",)), True),
    ],
)
def test_requests_overlap_unless_their_clients_are_others(one: Request, other: Request, may: bool) -> None:
    mine, theirs = books.owners(one), books.owners(other)
    assert books.overlap(mine, theirs) is books.overlap(theirs, mine) is may


def test_a_purged_request_is_not_probed(where: Path) -> None:
    run = Run.open(where)
    purge(run, "client-1")
    assert "Request 'client-1' was purged, so no probe may train on its rows" in said(
        "probe", where, "--request", "client-1", code=2
    )
    assert [target.job.request for target in chosen(Run.open(where), None, None, None)] == ["two"]


def test_a_probe_during_which_it_is_purged_writes_nothing_of_it(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe takes minutes, and a purge need not wait for it: what came back had been written after the purge."""
    run = Run.open(where)

    def purged_meanwhile(*given: Any) -> Any:
        purge(Run.open(where), "client-1")
        return undo(*given)

    monkeypatch.setattr(probing, "undo", purged_meanwhile)
    with pytest.raises(UnfedError, match="While 0/client-1/ft was probed, a model of it was purged or replaced"):
        probing.probe(run, request="client-1", effort=LITTLE)
    assert not list((where / "undo").rglob("*.json"))


def numbers_of(run: Run, request: str) -> dict[str, set[Any]]:
    """What the trajectory tells of a request: its own lines, and what is measured again."""
    own = [line for line in run.lines() if line["request"] == request]
    later = [line for line in run.lines() if request in line.get("earlier", {})]
    return {
        "own": {line.get(name) for line in own for name in OWN} - {None},
        "again": {line["earlier"][request] for line in later},
    }


@pytest.mark.usefixtures("no_report")
def test_of_a_few_rows_the_trajectory_tells_nothing_any_more(where: Path) -> None:
    """What a request of two rows showed while it was served stood in means over two rows, and in what followed."""
    Run.open(where).forget(NEXT, "ft", until=1)
    before, few = Run.open(where), "not measured: its 2 rows were purged, 10 needed"
    assert all(any(is_measured(value) for value in told) for told in numbers_of(before, "two").values())
    listed = {(one.request, one.file) for one in before.info().influence or ()}
    assert ("two", "trajectory.jsonl") in listed and ("client-1", "trajectory.jsonl") not in listed
    lines = [line for line in before.lines() if line["request"] != "two"]
    gone = said("purge", where, "--request", "two", "--yes")
    assert "purged trajectory.jsonl: what it tells of the rows of two" in gone
    run = Run.open(where)
    told = numbers_of(run, "two")
    assert told["again"] == {few} and not any(is_measured(value) for value in told["own"])
    after, many = [line for line in run.lines() if line["request"] != "two"], rows_of(run, CLIENT, NEXT)
    share = score(run.world(0).template, run.current(0), run.world(0).dataset.train, many).accuracy
    assert after[-1]["forget"] == pytest.approx(share), "Forget is over the others"
    for was, now in zip(lines, after, strict=True):
        changed = {name for name, value in now.items() if value != dict(was)[name]}
        assert changed in (set(), {"forget", "earlier", "forget_loss", "loss_gap"}), "no other number"
    assert ("two", "trajectory.jsonl") not in {(one.request, one.file) for one in run.info().influence or ()}
    assert check(run.folder).whole and "nothing in this folder carries it" in said(
        "purge", where, "--request", "two", "--yes"
    )
    assert run.forget(Request("zero", clients=("0",)), "ft", until=1).status == "done", "and work goes on"
    assert check(Run.open(where).folder).whole


@pytest.mark.parametrize(
    "parent, last", [("run", "trajectory.jsonl"), ("two", "before.safetensors"), ("two", "ft.safetensors")]
)
def test_killed_while_states_and_trajectory_change_it_is_read_meanwhile_and_ends_the_same(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, last: str
) -> None:
    whole = Run.open(shutil.copytree(where, tmp_path / "whole"))
    purge(whole, "two")

    class Killed(BaseException): ...

    own = storage.write_bytes

    def dies(path: Path, *more: Any) -> None:
        if path.name == last and path.parent.name == parent:
            raise Killed
        own(path, *more)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(storage, "write_bytes", dies)
        purge(Run.open(where), "two")
    folder = RunFolder(where)
    assert len(folder.lines()) == len(whole.folder.lines()) and "finished" in said("status", where)
    assert all("goes on" in sentence for sentence in check(folder).findings) and check(folder).findings
    purge(Run.open(where), "two")
    assert folder.trajectory.read_bytes() == whole.folder.trajectory.read_bytes() and check(folder).whole
    assert {one.offset for _, one in folder.states()} == {one.offset for _, one in whole.folder.states()}


def test_what_later_requests_said_of_a_few_rows_is_taken_back(where: Path) -> None:
    """A share of two rows stands in the file of whoever left next; of a whole client it may stay."""
    run = Run.open(where)
    run.forget(NEXT, "ft", until=1)
    again = {e.request.id: e.again for e in run.folder.book().entries}["client-3"]
    assert is_measured(again["two"]["forget"]) and is_measured(again["client-1"]["forget"])
    for name in ("two", "client-1"):
        purge(Run.open(where), name)
    left = {e.request.id: e.again for e in Run.open(where).folder.book().entries}["client-3"]
    assert set(left["two"].values()) == {"not measured: its 2 rows were purged, 10 needed"}
    assert left["client-1"] == again["client-1"] and check(run.folder).findings == []
    assert "purged on 2" in said("status", where)


def test_that_it_was_purged_is_no_part_of_what_a_request_asks_for() -> None:
    import dataclasses

    purged = dataclasses.replace(TWO, purged=True)
    assert purged == TWO and purged.to_json() == TWO.to_json()
    assert books.request_digest(purged) == books.request_digest(TWO)
    with pytest.raises(UnfedError, match="has no field 'purged'"):
        Request.from_json({**TWO.to_json(), "purged": True})


# --- what its owners had deleted --------------------------------------------------------------------------------------


def after_a_deletion(folder: Path, method: str = "ft", deleted: bool = True, **more: Any) -> Run:
    """A client leaves, then three rows whose owner has them no longer, then another client."""
    run = Run.create(Config.parse({**SMALL, "request": [], **more}, SETS), folder)
    run.execute()
    run.forget(CLIENT, "ft", until=1)
    rows = tuple(("2", place) for place in (0, 5, 6))
    run.forget(Request("gone", samples=rows, deleted=deleted), method, until=1)
    run.forget(NEXT, "ft", until=1)
    return run


def scores(folder: Path) -> set[str]:
    return {path.relative_to(folder / "samples" / "0").as_posix() for path in (folder / "samples").rglob("0*.*")}


@pytest.mark.parametrize("method", ["ft", "retrain"])
def test_purging_what_was_deleted_takes_no_score_that_never_held_it(tmp_path: Path, method: str) -> None:
    """Nobody could score its rows: what goes are the models that knew it, and what those read of others."""
    run = after_a_deletion(tmp_path / "run", method)
    where, lines, kept = run.folder.path, run.folder.trajectory.read_bytes(), scores(tmp_path / "run")
    held, was = len(rows_of(run, CLIENT, NEXT)), run.folder.lines()
    later = [where / "samples" / "0" / name for name in kept if name.startswith("client-3/")]
    assert {len(storage.load(file)[0]["forget/loss"]) for file in later} == {held}, "without the three rows"
    again = run.folder.book().entries[-1].again
    purge(run, "gone")
    assert kept - scores(where) == {name for name in kept if name.startswith("train/")}
    assert {path.parent.name for path in (where / "models" / "0").rglob("*.*")} == {"gone", "client-3"}
    assert run.folder.trajectory.read_bytes() != lines and run.folder.book().entries[-1].again == again
    for old, new in zip(was, run.folder.lines(), strict=True):
        begins = new["request"] == "gone" and new["round"] == 0  # at a model of which Retain with them is known
        retain = {"retain", "retain_loss", "loss_gap"} if begins else set()
        assert {name for name in new if dict(new)[name] != dict(old)[name]} == retain
    assert check(run.folder).findings == [] and not [
        one for one in Run.open(where).info().influence or () if one.request == "gone"
    ]


def test_the_same_rows_purged_though_nobody_deleted_them_are_cut_out_of_later_scores(tmp_path: Path) -> None:
    run = after_a_deletion(tmp_path / "run", deleted=False)
    lines = run.folder.trajectory.read_bytes()
    kept, held = scores(run.folder.path), len(rows_of(run, CLIENT, NEXT))
    purge(run, "gone")
    assert kept - scores(run.folder.path) == {name for name in kept if name.startswith(("train/", "gone/"))}
    files = (run.folder.path / "samples" / "0" / "client-3").rglob("*.safetensors")
    assert {len(storage.load(file)[0]["forget/loss"]) for file in files} == {held}, (
        "of others only its rows are cut out"
    )
    assert run.folder.trajectory.read_bytes() != lines
    assert check(run.folder).findings == []


def test_a_comparison_that_read_rows_before_they_were_deleted_tells_no_more_of_them(tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    few.write_text("client,position\n2,0\n2,5\n2,6\n")
    run = after_a_deletion(tmp_path / "run", request=[{"samples": str(few)}], methods={"run": ["ft"]})
    compared, own = (
        run.config.request_ids()[0],
        [line["forget"] for line in run.folder.lines() if line["request"] == "gone"],
    )
    assert any(is_measured(line["forget"]) for line in run.folder.lines() if line["request"] == compared)
    purge(run, "gone")
    lines = RunFolder(run.folder.path).lines()
    assert not any(is_measured(line["forget"]) for line in lines if line["request"] == compared)
    assert [one["forget"] for one in lines if one["request"] == "gone"] == own, (
        "it is over the rows of the first client"
    )
    assert not any(name.startswith(f"{compared}/") for name in scores(run.folder.path))
    assert check(run.folder).findings == []


@pytest.mark.slow
def test_a_probe_of_another_request_stays_whatever_its_model_knew(tmp_path: Path) -> None:
    run = after_a_deletion(tmp_path / "run")
    probing.probe(run, effort=LITTLE)
    there = {path.parent.name for path in (run.folder.path / "undo").rglob("*.json")}
    purge(run, "gone")
    assert there == {"client-1", "gone", "client-3"}
    assert {path.parent.name for path in (run.folder.path / "undo").rglob("*.json")} == {"client-1", "client-3"}
    assert {one.request for one in Run.open(run.folder.path).info().undo} == {"client-1", "client-3"}, "and is shown"
