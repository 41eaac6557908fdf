"""A request of which nothing is left in training: it is on record, keeps out whom it names, and no model is made."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import SMALL
from unfed import storage
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused, UnfedError
from unfed.folder import deny
from unfed.folder.check import check
from unfed.folder.purge import purge
from unfed.requests.book import request_file
from unfed.requests.entry import Entry, Job
from unfed.requests.options import RequestOptions
from unfed.runs.record import affected, ending
from unfed.runs.run import Run
from unfed.runs.status import in_force, status
from unfed.trust.findings import served as evidence_of
from worlds import ALL_DIGITS, saved

SETS = ["training.rounds=2", "unlearning.rounds=1", "methods.run=[]", "engine.name=sequential", "gate.max_drop=100"]
SETS += ["evaluation.attack=false", "methods.ga.federated=true", *ALL_DIGITS]
CLIENT = Request("client-3", clients=("3",))


def rows(run: Run, client: str = "3", view: str = "all") -> tuple[tuple[str, int], ...]:
    found = next(one for one in run.world(0).clients if one.name == client)
    return tuple((client, place) for place in found.view(view).tolist())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.create(Config.parse({**SMALL, "request": []}, SETS), tmp_path_factory.mktemp("left") / "run")
    run.execute()
    return run.folder.path


@pytest.fixture(scope="module")
def emptied(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that client 3's training rows have all left, as single samples, by two requests."""
    run = Run.open(shutil.copytree(trained, tmp_path_factory.mktemp("emptied") / "run"))
    own = rows(run)
    run.forget(Request("half", samples=own[: len(own) // 2]), "not", until=1)
    run.forget(Request("rest", samples=own[len(own) // 2 :]), "ft", until=1)
    return run.folder.path


@pytest.fixture
def run(emptied: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(emptied, tmp_path / "run"))


def entry_of(run: Run, name: str = CLIENT.id) -> Entry:
    return next(entry for entry in run.folder.book().entries if entry.request.id == name)


def models(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run.folder.path / "models").rglob("*.safetensors")}


QUICKLY = ("--until", "1", "--set", "unlearning.lr=0.02", "-q")  # no trials of rates


def said(*words: Any, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    text = " ".join((found.output + str(found.exception or "")).split())
    assert (found.exit_code == 0) == (code == 0), text
    return text


# --- it leaves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["not", "ga"])
def test_a_client_whose_rows_have_all_left_leaves_by_name_and_no_model_is_made(run: Run, method: str) -> None:
    """By whatever method that ends no way back: `not` after `not` is refused where there is something to do."""
    before = models(run)
    assert run.forget(CLIENT, method, until="recovered").status == "done"
    entry = entry_of(run)
    assert (entry.state, entry.left_by, entry.served, entry.gate) == ("fulfilled", ("half", "rest"), None, None)
    assert (entry.described or {})["forgotten_rows"] == 0
    assert models(run) == before and run.current_job(0) == Job(0, "rest", "ft")
    assert status(run).state == "finished" and check(run.folder).findings == []


def test_its_name_is_on_the_deny_list_and_its_validation_rows_are_out(run: Run) -> None:
    assert rows(run, view="val"), "there are some"
    assert "3" not in deny.on_list(run.folder.path).clients
    run.forget(CLIENT, "not", until=1)
    assert deny.on_list(run.folder.path).clients == ("3",)
    assert not len(run.world(0).scoped(run.scope(0))["3"].view("val"))


def test_a_client_leaves_by_name_also_where_its_validation_rows_are_out_already(trained: Path, tmp_path: Path) -> None:
    """What it keeps out then is the client itself: under its name it may bring other rows."""
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    run.forget(Request("all", samples=rows(run) + rows(run, view="val")), "ft", until=1)
    assert run.forget(CLIENT, "ft", until=1).status == "done"
    assert entry_of(run).left_by == ("all",) and deny.on_list(run.folder.path).clients == ("3",)


def test_what_is_measured_is_the_model_in_force_and_its_own_rows_are_said_not_to_be(run: Run) -> None:
    run.forget(CLIENT, "not", until=1)
    (line,) = [line for line in run.folder.lines() if line["request"] == CLIENT.id]
    last = [line for line in run.folder.lines() if line["request"] == "rest"][-1]
    assert line["method"] == "before" and line["own"] == "not measured: all of it had left before"
    assert (line["test"], line["forget"]) == (last["test"], last["forget"])
    assert line["earlier"] == {"half": last["earlier"]["half"], "rest": last["own"]}
    assert {name: one["forget"] for name, one in entry_of(run).again.items()} == line["earlier"]


def test_asked_twice_it_is_done_once_and_it_cannot_be_withdrawn(run: Run) -> None:
    run.forget(CLIENT, "not", until=1)
    lines = run.folder.lines()
    assert run.forget(CLIENT, "not", until=1).status == "already done" and run.folder.lines() == lines
    with pytest.raises(UnfedError, match="'again' asks for is out already, by requests 'half' and 'rest'"):
        run.forget(Request("again", clients=("3",)), "not", until=1)
    with pytest.raises(UnfedError, match="is fulfilled"):
        run.withdraw(CLIENT.id)


def test_whoever_comes_next_begins_at_the_model_in_force_and_says_so_of_it(run: Run) -> None:
    run.forget(CLIENT, "ga", until=1)
    run.forget(Request("next", clients=("2",)), "ft", until=1)
    base = saved(run.folder, Job(0, "next", "ft")).base
    assert base.to_json() == {"model": "0/rest/ft", "without": ["half", "rest", "client-3"]}
    assert entry_of(run, "next").again["client-3"]["forget"] == "not measured: all of it had left before"
    assert in_force(run, 0).served == ("half", "rest", "next") and check(run.folder).findings == []


def test_it_does_not_count_as_a_negation(run: Run) -> None:
    """A second `not` was asked for and not run: what the first did can still be turned back, and not by a third."""
    run.forget(CLIENT, "not", until=1)
    with pytest.raises(UnfedError, match="back to what it was before request 'half'"):
        run.forget(Request("next", clients=("2",)), "not", until=1)
    assert "can turn back what NoT did for request 'half'" in said("lineage", run.folder.path, "--affected", "3")


# --- classes and samples ----------------------------------------------------------------------------------------------


def test_a_class_of_which_no_training_row_is_left_leaves_test_and_validation_too(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    held = [(c.name, p) for c in run.world(0).clients for p in c.train[c.labels[c.train] == 3].tolist()]
    run.forget(Request("threes", samples=tuple(held)), "ft", until=1)
    test = len(run.world(0).evaluator(run.scope(0)).views()["test"].rows)  # type: ignore[attr-defined]
    assert run.forget(Request("class-3", classes=(3,)), "ga", until=1).status == "done"
    assert entry_of(run, "class-3").left_by == ("threes",)
    scoped = run.world(0).scoped(run.scope(0)).values()
    assert not any(bool((c.labels[c.view("val")] == 3).any()) for c in scoped)
    assert len(run.world(0).evaluator(run.scope(0)).views()["test"].rows) < test  # type: ignore[attr-defined]
    assert 3 in deny.imported(Config.parse({"deny": {"run": str(run.folder.path)}})).deny.classes


def test_samples_that_have_all_left_are_refused_unless_a_validation_row_is_still_in_use(run: Run) -> None:
    gone, held_out = rows(run)[:2], rows(run, view="val")[:1]
    with pytest.raises(
        UnfedError, match="'some' asks for is out already, by request 'half'. Anyone with the model in force"
    ):
        run.forget(Request("some", samples=gone), "ft", until=1)
    assert run.forget(Request("some", samples=(*gone, *held_out)), "ft", until=1).status == "done"
    assert held_out[0] not in [("3", p) for p in run.world(0).scoped(run.scope(0))["3"].view("val").tolist()]
    assert len(entry_of(run, "some").rows) == 3, "the deny list knows them by their pixels"


# --- what took it out can be turned back ------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_what_left_by_not_is_made_to_last_by_a_request_of_its_own(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    run.forget(CLIENT, "not", until=1)
    back = "can turn back what NoT did for request 'client-3', by one minus sign; --method sealed or retrain ends that"
    with pytest.raises(UnfedError, match=back):
        run.forget(replace(CLIENT, id="again"), "ft", until=1)
    with pytest.raises(UnfedError, match=back):
        run.forget(replace(CLIENT, id="again"), "sealed", until=1, how=RequestOptions(set={"perturbation": "signs"}))
    (command,) = {typed for one in affected(run, "3") for typed in one.do.split("`")[1::2] if "-lasts" in typed}
    said(*shlex.split(command)[1:], *QUICKLY)
    assert run.current_job(0) == Job(0, "client-3-lasts", "retrain")
    left = [one for one in affected(run, "3") if "one minus sign" in one.what]
    assert left and all(one.do == f"`{run.command('purge', '--request', 'client-3')}`" for one in left)
    assert entry_of(run, "client-3-lasts").again["client-3"], "what it was about is measured under the earlier request"
    assert check(run.folder).findings == []
    with pytest.raises(UnfedError, match="by request 'client-3'. Nothing is left to do."):
        run.forget(replace(CLIENT, id="third"), "retrain", until=1)


@pytest.mark.usefixtures("no_report")
def test_the_command_that_ends_a_way_back_names_the_seed_and_works_beside_recorded_history(tmp_path: Path) -> None:
    sets = [*SETS, 'training.record=["fukd"]', "seed=[0, 1]"]
    run = Run.create(Config.parse({**SMALL, "request": []}, sets), tmp_path / "run")
    run.execute()
    run.forget(CLIENT, "not", until=1, seed=1)
    command = ending(run, entry_of(run))
    assert shlex.split(command)[3:] == shlex.split("--client 3 --seed 1 --id client-3-lasts")
    said(*shlex.split(command)[1:], *QUICKLY)
    assert run.current_job(1) == Job(1, "client-3-lasts", "retrain")


def test_by_a_method_that_lasts_a_client_whose_rows_left_by_not_leaves_by_name_with_a_model(run: Run) -> None:
    assert run.forget(CLIENT, "retrain", until=1).status == "done"
    assert entry_of(run).left_by == () and run.current_job(0) == Job(0, CLIENT.id, "retrain")
    assert deny.on_list(run.folder.path).clients == ("3",)


# --- while others wait, or are owed -----------------------------------------------------------------------------------


def test_filed_while_its_rows_wait_to_leave_it_is_settled_after_them(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    run.ask(Request("all", samples=rows(run)), "not", 1)
    run.ask(CLIENT, "not", 1)
    run.execute()
    assert [entry.state for entry in run.folder.book().entries] == ["fulfilled"] * 2
    assert entry_of(run).left_by == ("all",) and not (run.folder.path / "models" / "0" / CLIENT.id).exists()


def test_while_its_rows_are_owed_they_are_in_the_model_and_it_is_served_by_one(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    with pytest.raises(Refused):
        run.forget(Request("all", samples=rows(run)), "not", until=1, how=RequestOptions(max_drop=0.0))
    with pytest.raises(UnfedError, match="is out already, by request 'all'. Request 'all' is denied .gate. and stays"):
        run.forget(CLIENT, "ga", until=1)
    assert run.forget(CLIENT, "not", until=1).status == "done"
    entry = entry_of(run)
    assert entry.left_by == () and run.current_job(0) == Job(0, CLIENT.id, "not")
    told = {one["name"]: one["value"] for one in (entry.gate or {})["checks"]}
    assert told["forgotten"] == "not measured: all of it had left before"
    assert check(run.folder).findings == []


def test_denied_and_asked_again_when_its_rows_have_left_it_is_settled(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    with pytest.raises(Refused):
        run.forget(CLIENT, "not", until=1, how=RequestOptions(max_drop=0.0))
    with pytest.raises(UnfedError, match="is out already, by request 'client-3'"):
        run.forget(Request("all", samples=rows(run)), "not", until=1)
    run.withdraw(CLIENT.id)
    run.forget(Request("all", samples=rows(run)), "not", until=1)
    assert run.forget(Request("anew", clients=("3",)), "not", until=1).status == "done"
    assert entry_of(run, "anew").left_by == ("all",)


def test_one_of_which_nothing_is_left_shares_no_job(run: Run) -> None:
    how = RequestOptions(together=True)
    run.ask(CLIENT, "ft", 1, how=how)
    run.ask(Request("client-2", clients=("2",)), "ft", 1, how=how)
    run.execute()
    assert entry_of(run).left_by and entry_of(run, "client-2").together == ()
    assert run.current_job(0) == Job(0, "client-2", "ft")


def test_killed_at_any_file_it_ends_as_if_nothing_had_been(
    emptied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(run: Run) -> list[Any]:
        entry = entry_of(run)
        return [entry.state, entry.left_by, entry.again, run.folder.lines(), sorted(models(run))]

    whole = Run.open(shutil.copytree(emptied, tmp_path / "whole"))
    whole.forget(CLIENT, "not", until=1)
    written, real = 0, storage.write_bytes
    while True:
        run = Run.open(shutil.copytree(emptied, tmp_path / str(written)))
        left = written

        def dying(path: Path, data: bytes, *more: Any, **others: Any) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            real(path, data, *more, **others)

        monkeypatch.setattr(storage, "write_bytes", dying)
        try:
            run.forget(CLIENT, "not", until=1)
            ended = True
        except KeyboardInterrupt:
            ended = False
        monkeypatch.setattr(storage, "write_bytes", real)
        again = Run.open(run.folder.path)
        again.forget(CLIENT, "not", until=1)
        assert outcome(again) == outcome(whole) and check(again.folder).findings == [], written
        if ended:
            break
        written += 1
    assert written > 2


# --- told and purged --------------------------------------------------------------------------------------------------


def test_every_page_says_that_nothing_was_left_and_by_which_requests(run: Run) -> None:
    where = run.folder.path
    told = said("forget", where, "--method", "not", "--client", "3")
    assert (
        "Client 3 takes no further part, in training or validation; no new model was made, because requests half"
        in told
    )
    assert "%, forget not measured: all of it had left before" in told
    assert "Earlier request half: the model in force is right on" in told and "new model is right" not in told
    assert "In force: the model of request rest by FT" in told
    assert "can undo NoT by one minus sign" in told, "request half was served by it"
    assert "was served already; nothing was done" in said("forget", where, "--method", "not", "--client", "3")
    shown = said("status", where)
    assert "request client-3: fulfilled (nothing of it was left in training)" in shown and "no model was made" in shown
    assert json.loads(said("status", where, "--json"))["requests"][-1]["left_by"] == ["half", "rest"]
    page = (where / "report.html").read_text()
    assert "Client 3 takes no further part" in page and "none: nothing was left to unlearn" in page
    assert "is to be taken out" not in page and "No client was asked for anything." in page
    assert "Client 3: the model in force" in page and "of the requests by which it had left deletes them" in page
    refused = said("probe", where, "--request", "client-3", code=2)
    assert "has no request 'client-3' that a method has served; it has half or rest" in refused
    with pytest.raises(UnfedError, match="was left in training.* --request half -o evidence.json` and `unfed bundle"):
        evidence_of(Run.open(where), CLIENT.id)


def test_what_carried_it_goes_with_the_requests_by_which_it_left(run: Run) -> None:
    run.forget(CLIENT, "not", until=1)
    where = run.folder.path
    own = {one.file for one in run.info().influence or () if one.request == CLIENT.id}
    assert {"models/0/train.safetensors", "samples/0/client-3/before", "models/0/half/not.safetensors"} <= own
    assert "models/0/rest/ft.safetensors" not in own, "it is without all of them"
    listed = said("lineage", where, "--affected", "3")
    assert f"→ `unfed purge {where} --request half` and `unfed purge {where} --request rest`" in listed
    with pytest.raises(UnfedError, match="purge these first: `unfed purge .* --request half` and .*--request rest`"):
        purge(run, CLIENT.id)
    purge(run, "half")
    with pytest.raises(UnfedError, match="purge these first: `unfed purge [^`]* --request rest`"):
        purge(run, CLIENT.id)
    purge(run, "rest")
    assert purge(run, CLIENT.id).gone == () and entry_of(run).purged
    assert not [one for one in Run.open(where).info().influence or () if one.request == CLIENT.id]
    kept = [storage.load(path, "scores")[0] for path in (where / "samples").rglob("*.safetensors")]
    assert not [name for one in kept for name, rows in one.items() if name.startswith("forget/") and len(rows)]
    assert check(run.folder).findings == []


def test_a_request_that_names_one_as_having_served_it_which_did_not_is_found(run: Run) -> None:
    run.forget(CLIENT, "not", until=1)
    file = request_file(run.folder.path, entry_of(run))
    for broken, told in ((["half", "nobody"], "by request 'nobody', which is not"), ("half", "as its left_by")):
        file.write_text(json.dumps({**json.loads(file.read_text()), "left_by": broken}))
        assert any(told in one for one in check(run.folder).findings)
