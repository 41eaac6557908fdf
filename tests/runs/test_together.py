"""Requests that wait at the same time share one recovery: one model, and each is measured and settled on its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from test_queue import SETS, Fake
from test_run import kept_before_every_write
from unfed.api import write_report
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused, UnfedError
from unfed.folder import carriers
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.methods import METHODS
from unfed.model.params import Params
from unfed.requests.entry import Job
from unfed.requests.gate import Decision, NotPassed
from unfed.requests.options import RequestOptions
from unfed.runs import serving
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.status import status
from unfed.runs.together import MethodTurn
from worlds import slow

TOGETHER = RequestOptions(together=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together") / "run"
    raw = Config.preset("demo", [*SETS, "partition.clients=5", "engine.precision='float64'"]).to_json()
    Run.create(Config.parse(raw | {"request": []}), folder).execute()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    shutil.copytree(trained, tmp_path / "run")
    return Run.open(tmp_path / "run")


def file(run: Run, *clients: str, how: RequestOptions = TOGETHER, method: str = "not") -> None:
    for client in clients:
        run.queue.file(Request(f"client-{client}", clients=(client,)), method, "2", 0, None, how)


def states(run: Run) -> dict[str, tuple[str, int | None]]:
    return {entry.request.id: (entry.state, entry.served) for entry in run.folder.book().entries}


def jobs(run: Run) -> set[str]:
    """The names under which clients trained after the training."""
    return {str(line["request"]) for line in run.lines() if line["request"] and line["method"] != "before"}


def same(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_two_clients_together_are_one_request_for_both_to_the_bit(run: Run, trained: Path, tmp_path: Path) -> None:
    file(run, "1", "2")
    run.execute()
    shutil.copytree(trained, tmp_path / "one")
    one = Run.open(tmp_path / "one")
    # The queue keeps the name of a shared job to itself, so a method is given its turn by hand.
    both = Request("together-1", clients=("1", "2"))
    alone = one.unlearn(MethodTurn(0, [both], "not", one.config.method("not"), one.current(0)), Watch())
    assert one.world(0).dtype == torch.float64 and alone.round == 2
    assert same(run.current(0), alone.params)


def test_each_of_them_is_settled_scored_and_reported_under_its_own_name(run: Run) -> None:
    file(run, "1", "2")
    run.execute()
    assert states(run) == {"client-1": ("fulfilled", 1), "client-2": ("fulfilled", 1)}
    assert jobs(run) == {"together-1", "client-1", "client-2"}
    models = [run.folder.load_model(Job(0, name, "not")) for name in ("together-1", "client-1", "client-2")]
    assert same(models[0], models[1]) and same(models[1], models[2])
    for name in ("client-1", "client-2"):
        (before,) = [line for line in run.lines() if line["request"] == name and line["method"] == "before"]
        (line,) = [line for line in run.lines() if line["request"] == name and line["method"] == "not"]
        assert line["round"] == 2 and line["done"] and before["validation"] == line["validation_before"]
        assert set(line["asked"]) == {"1", "2"} and not {"1", "2"} & {c for row in line["asked"].values() for c in row}
        entry = run.queue.book.find(name)
        assert entry is not None and entry.gate is not None and entry.shared == "together-1"
        assert {e.request.id for e in run.queue.book.mates(entry)} == {"client-1", "client-2"} - {name}
    assert check(run.folder).findings == [] and status(run).state == "finished"
    page = Path(write_report(run)).read_text()
    assert "client-1" in page and "client-2" in page and "together-1" in page
    assert "Only compared" not in page
    assert page.count("<dt>Taken out with it</dt><dd>1 other request</dd>") == 2


def test_who_left_before_is_measured_again_and_who_shares_the_model_speaks_for_itself(run: Run) -> None:
    file(run, "0", how=RequestOptions(), method="ft")
    run.execute()
    file(run, "1", "2", method="ft")
    run.execute()
    found = {entry.request.id: set(entry.again) for entry in run.queue.book.entries}
    assert found == {"client-0": set(), "client-1": {"client-0"}, "client-2": {"client-0"}}
    last = {str(line["request"]): line for line in run.lines() if line["method"] == "ft" and line["done"]}
    assert set(last["client-1"]["earlier"] or {}) == {"client-0", "client-2"}
    assert last["client-1"]["own"] == (last["client-2"]["earlier"] or {})["client-1"]


def test_what_one_leaves_carries_neither(run: Run) -> None:
    file(run, "1", "2")
    run.execute()
    left = carriers.influence(run.folder, run.folder.book())
    assert {one.file for one in left if one.file.startswith("models/")} == {"models/0/train.safetensors"}


def test_a_request_covers_its_own_rows_and_not_those_that_left_before(run: Run) -> None:
    file(run, "1", method="ft")
    rows = next(client for client in run.world(0).clients if client.name == "2").train[:3]
    asked = Request("rows", samples=tuple(("2", int(row)) for row in rows))
    entry, _ = run.queue.file(asked, "ft", "2", 0, None, RequestOptions())
    left = len(next(client for client in run.world(0).clients if client.name == "1").train)
    assert entry.described is not None
    assert entry.described["forgotten_rows"] == 3 and entry.described["rows_out"] == left + 3


def test_without_the_word_each_has_a_recovery_of_its_own(run: Run) -> None:
    file(run, "1", "2", how=RequestOptions(), method="ft")
    run.execute()
    assert states(run) == {"client-1": ("fulfilled", 1), "client-2": ("fulfilled", 2)}
    assert jobs(run) == {"client-1", "client-2"}


def test_whoever_did_not_say_so_is_not_taken_along(run: Run) -> None:
    file(run, "1", method="ft")
    file(run, "2", how=RequestOptions(), method="ft")
    run.execute()
    assert jobs(run) == {"client-1", "client-2"}


def test_one_alone_is_served_as_ever(run: Run) -> None:
    file(run, "1")
    run.execute()
    assert jobs(run) == {"client-1"} and run.queue.book.find("client-1").together == ()  # type: ignore[union-attr]


def test_those_that_differ_in_method_or_kind_do_not_share(run: Run) -> None:
    file(run, "1", method="ft")
    file(run, "2", method="retrain")
    run.queue.file(Request("class-3", classes=(3,)), "ft", "2", 0, None, TOGETHER)
    run.execute()
    assert jobs(run) == {"client-1", "client-2", "class-3"}


def test_one_whose_rows_are_all_anothers_has_its_turn_alone(run: Run) -> None:
    row = int(next(client for client in run.world(0).clients if client.name == "1").train[0])
    run.queue.file(Request("row", samples=(("1", row),)), "ft", "2", 0, None, TOGETHER)
    rows = next(client for client in run.world(0).clients if client.name == "1").train[:3]
    run.queue.file(Request("rows", samples=tuple(("1", int(r)) for r in rows)), "ft", "2", 0, None, TOGETHER)
    run.execute()
    assert jobs(run) == {"row", "rows"}


def test_one_that_is_withdrawn_before_the_start_leaves_the_others(run: Run) -> None:
    file(run, "1", "2", "3")
    run.withdraw("client-2")
    run.execute()
    assert states(run) == {"client-1": ("fulfilled", 1), "client-2": ("revoked", None), "client-3": ("fulfilled", 1)}
    assert run.queue.book.find("client-1").together == (1, 3)  # type: ignore[union-attr]
    asked = [line["asked"] for line in run.lines() if line["request"] == "client-1" and "asked" in line]
    assert "2" in asked[-1]["2"]


class Withdrawing(Watch):
    """Somebody takes a request back while it is at work."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def saved(self, job: Job, *rest: object) -> None:
        Run.open(self._folder).withdraw(self._name)


def test_one_that_is_withdrawn_at_work_leaves_the_others_to_begin_anew(run: Run, trained: Path, tmp_path: Path) -> None:
    file(run, "1", "2", "3")
    run.execute(Withdrawing(run.folder.path, "client-2"))
    assert states(run) == {"client-1": ("fulfilled", 1), "client-2": ("revoked", None), "client-3": ("fulfilled", 1)}
    shutil.copytree(trained, tmp_path / "one")
    one = Run.open(tmp_path / "one")
    both = Request("together-1", clients=("1", "3"))
    alone = one.unlearn(MethodTurn(0, [both], "not", one.config.method("not"), one.current(0)), Watch())
    assert same(run.current(0), alone.params)


def test_one_that_does_not_pass_its_gate_is_denied_and_stands_in_nobodys_way(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(decision: Decision, request: str, accepted: Mapping[str, Any] | None = None) -> Decision:
        if request == "client-2":
            raise NotPassed(f"The model of request {request!r} does not pass the gate.", decision)
        return decision

    monkeypatch.setattr(serving, "passed", shut)
    file(run, "1", "2")
    with pytest.raises(Refused, match="client-2"):
        run.execute()
    found = states(run)
    assert found["client-1"] == ("fulfilled", 1) and found["client-2"] == ("denied", None)
    assert run.current_job(0) == Job(0, "client-1", "not")


def test_what_fails_for_all_is_said_to_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "fake", Fake)
    monkeypatch.setattr(Fake, "fates", {run.world(0).seeds.request("together-1"): "refuse"})
    for client in ("1", "2"):
        asked = Request(f"client-{client}", clients=(client,))
        run.queue.file(asked, "fake", "2", 0, None, TOGETHER)
    with pytest.raises(Refused), pytest.warns():
        run.execute()
    for name in ("client-1", "client-2"):
        entry = run.queue.book.find(name)
        assert entry is not None and entry.state == "denied" and "shared one job, 'together-1'" in str(entry.why)
    assert status(run).state == "finished" and check(run.folder).findings == []


@pytest.mark.parametrize(
    ("asked", "until", "said"),
    [
        (Request("half", fraction=0.5), "2", "is drawn for each request by itself"),
        (Request("client-1", clients=("1",)), "forgotten", "watches one request"),
        (Request("together-7", clients=("1",)), "2", "kept for shared jobs"),
    ],
)
def test_what_cannot_share_is_refused_in_a_sentence(run: Run, asked: Request, until: str, said: str) -> None:
    with pytest.raises(UnfedError, match=said):
        run.queue.file(asked, "ft", until, 0, None, TOGETHER)
    assert run.folder.book().entries == ()


def test_the_word_is_an_option_of_forget(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file(run, "1", method="ft")
    said = CliRunner().invoke(
        app, ["forget", str(run.folder.path), "--client", "2", "--together", "--until", "forgotten"]
    )
    assert said.exit_code != 0 and isinstance(said.exception, UnfedError)
    words = ["forget", str(run.folder.path), "--client", "2", "--method", "ft", "--until", "2", "--together", "--quiet"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert states(run) == {"client-1": ("fulfilled", 1), "client-2": ("fulfilled", 1)}


def test_at_the_terminal_two_that_wait_share_a_recovery_and_one_alone_is_told_how(run: Run) -> None:
    where = str(run.folder.path)
    words = ["forget", where, "--method", "ft", "--until", "1", "--together"]
    said = CliRunner().invoke(app, [*words, "--client", "3"])
    assert said.exit_code == 0 and states(run) == {"client-3": ("fulfilled", 1)}
    assert f"--wait files a request without serving it, and then `unfed resume {where}` takes up" in said.output
    for client in ("1", "2"):
        said = CliRunner().invoke(app, [*words, "--client", client, "--wait"])
        assert said.exit_code == 0 and "is filed: its rows train no more" in said.output
    assert [state for state, _ in states(run).values()] == ["fulfilled", "open", "open"]
    assert run.current_job(0).request == "client-3", "nothing is served yet"
    said = CliRunner().invoke(app, ["status", where])
    assert f"in {where}: waiting" in said.output and f"What waits is served by `unfed resume {where}`." in said.output
    assert CliRunner().invoke(app, ["resume", where, "--quiet"]).exit_code == 0
    assert "together-2" in jobs(run) and run.queue.book.find("client-1").together == (2, 3)  # type: ignore[union-attr]
    said = CliRunner().invoke(app, [*words, "--client", "2", "--wait"])
    assert said.exit_code == 0 and "was served already" in said.output


def test_a_history_that_goes_on_from_request_to_request_follows_one_at_a_time(tmp_path: Path) -> None:
    raw = Config.preset("demo", [*SETS, "training.record=['pgd']"]).to_json()
    run = Run.create(Config.parse(raw | {"request": []}), tmp_path / "recorded")
    run.execute()
    with pytest.raises(UnfedError, match="history for pgd follows one request at a time"):
        file(run, "1", method="ft")


def outcome(folder: RunFolder) -> dict[str, object]:
    """Models by their tensors, requests but for their moments."""
    run = Run.open(folder.path)
    models = {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in sorted(folder.path.rglob("models/**/*.safetensors"))
    }
    return {**models, **states(run), "lines": [dict(line) | {"seconds": 0} for line in run.lines()]}


@pytest.mark.parametrize("step", [-11, *slow(-4)])  # from the last write on: there, one of the two is settled
def test_killed_at_any_file_it_ends_as_if_nothing_had_been(run: Run, tmp_path: Path, step: int) -> None:
    file(run, "1", "2")
    with kept_before_every_write(run.folder.path, tmp_path / "killed") as kept:
        run.execute()
    truth = outcome(run.folder)
    assert len(kept) > 10
    for folder in kept[::step]:
        killed = Run.open(folder)
        killed.use(run.world(0))
        killed.execute()
        assert outcome(RunFolder(folder)) == truth, f"killed before write {folder.name}"
        assert check(RunFolder(folder)).findings == []
