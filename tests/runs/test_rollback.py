"""A round that spoils the model is rolled back, its cause is named, and no folder is lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from command_line import called
from hostile import Attacker, attacked
from unfed.data import Request
from unfed.engines import Batched, Block
from unfed.errors import UnfedError, UnfedWarning
from unfed.federation.robust import Robust
from unfed.federation.state import State
from unfed.folder.check import check
from unfed.folder.job_notes import JobNotes
from unfed.measures.trajectory import job_of
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.rollback import Rollback, Validation
from unfed.runs.run import Run
from worlds import ALL_DIGITS, Small, assert_same, saved

TRAIN, FORGET = Job(0, None, "train"), Job(0, "leaves", "not")
BATCHED = 'engine.name="batched"'


class Stop(Watch):
    """Ends the process, so to say, after the save of a round."""

    def __init__(self, job: Job, round: int) -> None:
        self._at = job, round

    def saved(self, job: Job, state: State, histories: Any) -> None:
        if (job, state.round) == self._at:
            raise KeyboardInterrupt


def named(run: Run, job: Job = TRAIN) -> list[tuple[int, str, str]]:
    lines = [line for line in run.lines() if job_of(line) == job.key]
    return [(one["round"], one["client"], one["reason"]) for line in lines for one in line.get("refused", ())]


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "good", "classes", "rows", "collapsed"),
    [
        (51.0, 95.0, 10, 1000, True),  # half of the way from 95 to chance, 10, is 42.5
        (53.0, 95.0, 10, 1000, False),
        (71.0, 95.0, 2, 10_000, True),  # of two classes half of the way to 50 is 22.5
        (73.0, 95.0, 2, 10_000, False),
        (15.0, 34.0, 10, 10_000, False),  # 19 points: early rounds swing
        (51.0, 95.0, 10, 16, False),  # four standard errors of 16 rows are 50 points
        ("not measured: no held-out data", 95.0, 10, 1000, False),
    ],
)
def test_what_counts_as_collapsed(value: Any, good: float, classes: int, rows: int, collapsed: bool) -> None:
    assert Validation(lambda params: 0.0, classes, rows).collapsed(value, good) is collapsed


def guarded(scores: dict[float, float]) -> tuple[Rollback, Any]:
    """A rollback whose server averaged 0 and 4 (clients a, b, at two rows) and 12 (client c) to 5; scores by params."""

    def block(client: str, value: float, samples: int) -> Block:
        return Block((client,), {"w": torch.tensor([[value]])}, (samples,), (1,), (0,))

    blocks = [block("a", 0.0, 1), block("b", 4.0, 2), block("c", 12.0, 1)]
    server: Any = SimpleNamespace(recorders={}, usual={}, keeps=True, settings=SimpleNamespace(robust=Robust()))
    server.kept, server.left = ({"w": torch.zeros(1)}, blocks), []
    server.leave_out = lambda clients: server.left.append(list(clients))
    return Rollback(server, Validation(lambda params: scores[round(float(params["w"]), 2)], 10, 10_000)), server


def test_the_client_without_whom_the_model_is_best_is_named_and_left_out() -> None:
    # Without a: (2·4 + 12) / 3 = 6.67, without b: 12 / 2 = 6, without c: 8 / 3 = 2.67.
    guard, server = guarded({6.67: 12.0, 6.0: 70.0, 2.67: 90.0})
    notes, good = JobNotes(), State({"w": torch.zeros(1)}, 4)
    guard.keep(good, notes, 95.0)
    assert notes.good == 95.0
    assert guard.spoilt(State({"w": torch.full((1,), 5.0)}, 5), notes, 10.0) is good
    assert notes.aside == ["c"] and server.left == [["c"]]
    assert notes.refused[0]["client"] == "c" and "fell from 95.0 to 10.0 %" in notes.refused[0]["reason"]


def test_a_round_that_no_single_client_explains_stands() -> None:
    guard, server = guarded({6.67: 12.0, 6.0: 11.0, 2.67: 20.0})
    notes, after = JobNotes(), State({"w": torch.full((1,), 5.0)}, 5)
    guard.keep(State({"w": torch.zeros(1)}, 4), notes, 95.0)
    with pytest.warns(UnfedWarning, match="no single client explains it"):
        assert guard.spoilt(after, notes, 10.0) is None
    assert notes.good == 10.0 and not notes.aside and not server.left


def test_what_a_beginning_does_is_not_judged() -> None:
    guard, _ = guarded({})
    notes = JobNotes()
    guard.keep(State({"w": torch.zeros(1)}, 0), notes, 95.0)
    assert notes.good is None and guard.spoilt(State({"w": torch.ones(1)}, 1), notes, 10.0) is None


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_a_client_that_spoils_a_round_is_found_and_the_run_goes_on_without_it(small: Small, tmp_path: Path) -> None:
    """It climbs its own loss, just inside the bound; the same model comes out where it is evaluated less often."""
    sets = (*ALL_DIGITS, "training.rounds=10", "training.lr=0.1", "methods.run=[]", "evaluation.attack=false", BATCHED)
    ends = []
    for every in (1, 3):
        with attacked(Batched, "1", Attacker("climb", begins=7)):
            run = Run.create(small(*sets, f"evaluation.every={every}"), tmp_path / str(every))
            run.execute()
        ((round, client, reason),) = named(run)
        assert (round, client) == (7, "1") and "left out of the rest of this job" in reason
        ends.append(run.folder.load_model(TRAIN))
        assert float(run.lines()[-1]["validation"]) > 70
        asked = {
            r: who for line in run.lines() for r, who in line.get("asked", {}).items() if job_of(line) == TRAIN.key
        }
        assert asked["6"] == ["0", "1", "2", "3"] and asked["7"] == asked["10"] == ["0", "2", "3"]
    assert_same(*ends)
    # Killed after the client was left out, it goes on without it: the same bytes.
    with attacked(Batched, "1", Attacker("climb", begins=7)):
        cut = Run.create(small(*sets, "checkpoint.rounds=1"), tmp_path / "cut")
        with pytest.raises(KeyboardInterrupt):
            cut.execute(Stop(TRAIN, 8))
        Run.open(tmp_path / "cut").execute()
    assert_same(ends[0], cut.folder.load_model(TRAIN))


def test_the_only_client_of_a_round_cannot_end_the_run(small: Small, tmp_path: Path) -> None:
    """One client is asked in a round; where its update is absurd, the round is drawn again without it."""
    sets = ("training.rounds=6", "training.participation=0.25", "methods.run=[]", BATCHED)
    with attacked(Batched, "1", Attacker("scale")):
        run = Run.create(small(*sets), tmp_path / "run")
        run.execute()
    found = named(run)
    assert {client for _, client, _ in found} == {"1"} and "refuse_above" in found[-1][2]
    state = saved(run.folder, TRAIN)
    assert state.round == 6 and state.diary.to_json()["aside"] == ["1"]


# --- no folder is lost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ["1e30", "3.4e38"])
def test_a_folder_that_met_a_hostile_client_goes_on_with_honest_ones(attack: str, small: Small, tmp_path: Path) -> None:
    sets = ("training.rounds=3", "unlearning.rounds=3", "checkpoint.rounds=1", "methods.run=[]", BATCHED)
    run = Run.create(small(*sets, "request=[]"), tmp_path / "run")
    with attacked(Batched, "1", Attacker(attack)), pytest.raises(KeyboardInterrupt):
        run.execute(Stop(TRAIN, 2))
    Run.open(tmp_path / "run").execute()
    with attacked(Batched, "1", Attacker(attack)), pytest.raises(KeyboardInterrupt):
        Run.open(tmp_path / "run").forget(Request("leaves", clients=("0",)), "not", 3, watch=Stop(FORGET, 2))
    end = Run.open(tmp_path / "run")
    end.execute()
    assert [(round, client) for round, client, _ in named(end)] == [(1, "1"), (2, "1")]
    assert [(round, client) for round, client, _ in named(end, FORGET)] == [(1, "1"), (2, "1")]
    assert saved(end.folder, FORGET).round == 3


def poison(run: Run, job: Job, value: float, whole: bool) -> None:
    """What an older version left behind: a saved state with an absurd update in it, and no note of a good one."""
    found = run.folder.load_state(job)
    assert found is not None
    state, numbers = found[0], found[1].to_json()
    params = {name: tensor.clone() for name, tensor in state.params.items()}
    name = next(name for name, tensor in params.items() if tensor.is_floating_point())
    params[name].view(-1)[: None if whole else 1] = value
    diary = {key: v for key, v in numbers["diary"].items() if key not in ("usual", "good", "aside", "careful")}
    kept = {
        key: numbers[key] for key in ("offset", "finished", "rounds", "versions", "base", "start") if key in numbers
    }
    run.folder.save_state(job, State(params, state.round), kept | {"diary": diary})
    for earlier in run.folder.good_states(run.folder.state_file(job)):
        earlier.unlink()


@pytest.mark.parametrize(("value", "whole"), [(2.5e29, True), (8.5e37, False)])
def test_a_folder_that_an_older_version_poisoned(value: float, whole: bool, small: Small, tmp_path: Path) -> None:
    """A request begins again at the model that went in; a training has nothing to go back to, and says so."""
    sets = ("training.rounds=3", "unlearning.rounds=3", "checkpoint.rounds=1", "methods.run=[]", BATCHED)
    run = Run.create(small(*sets, "request=[]"), tmp_path / "run")
    run.execute()
    leaves = Request("leaves", clients=("0",))
    with pytest.raises(KeyboardInterrupt):
        run.forget(leaves, "not", 3, watch=Stop(FORGET, 2))
    poison(run, FORGET, value, whole)
    with pytest.warns(UnfedWarning, match="is spoilt .its norm is not a finite number., so the request begins again"):
        Run.open(tmp_path / "run").execute()
    whole_run = Run.open(tmp_path / "run")
    assert saved(whole_run.folder, FORGET).round == 3
    assert all(bool((t.abs() < 100).all()) for t in whole_run.folder.load_model(FORGET).values())
    begun = Run.create(small(*sets, "request=[]"), tmp_path / "begun")
    with pytest.raises(KeyboardInterrupt):
        begun.execute(Stop(TRAIN, 2))
    poison(begun, TRAIN, value, whole)
    with pytest.raises(UnfedError, match="is spoilt .*; run the config again in a new folder"):
        Run.open(tmp_path / "begun").execute()


def test_a_training_whose_newest_state_is_no_use_goes_on_from_a_good_one_that_the_folder_kept(
    small: Small, tmp_path: Path
) -> None:
    sets = ("training.rounds=6", "checkpoint.rounds=1", "methods.run=[]", "request=[]", BATCHED, "evaluation.every=1")
    whole, run = (Run.create(small(*sets), tmp_path / name) for name in ("whole", "run"))
    whole.execute()
    with pytest.raises(KeyboardInterrupt):
        run.execute(Stop(TRAIN, 5))
    state = run.folder.state_file(TRAIN)
    kept = run.folder.good_states(state)
    assert [path.name for path in kept] == [f"train.good-{round:09d}" for round in (2, 3, 4)]
    before = [path.read_bytes() for path in kept]
    poison(run, TRAIN, 8.5e37, whole=False)
    for path, data in zip(kept, before, strict=True):
        path.write_bytes(data)
    with pytest.warns(UnfedWarning, match="is spoilt .*, so it goes on from the good one of round 4"):
        Run.open(tmp_path / "run").execute()
    assert_same(whole.folder.load_model(TRAIN), run.folder.load_model(TRAIN))
    assert run.folder.good_states(state) == [] and not check(run.folder).findings
    assert [line["round"] for line in run.lines()] == [0, 1, 2, 3, 4, 5, 6]


def test_a_training_that_several_clients_spoiled_goes_back_and_on_with_honest_ones(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of four climb their loss, so no single one explains it; what fell is not kept as a good state."""
    sets = (*ALL_DIGITS, "training.rounds=10", "training.lr=0.1", "methods.run=[]", "request=[]", "checkpoint.rounds=1")
    honest, run = (
        Run.create(small(*sets, "evaluation.attack=false", BATCHED), tmp_path / name) for name in ("honest", "run")
    )
    honest.execute()
    hostile = [attacked(Batched, client, Attacker("climb", begins=6)) for client in ("1", "2", "3")]
    with hostile[0], hostile[1], hostile[2], pytest.raises(KeyboardInterrupt), pytest.warns(match="resume RUN --back"):
        run.execute(Stop(TRAIN, 8))
    good = [path.name[-1] for path in run.folder.good_states(run.folder.state_file(TRAIN))]
    assert good == ["3", "4", "5"]
    code, said, _ = called(["resume", str(tmp_path / "run"), "--back"], monkeypatch, capsys)
    assert code == 0 and "Went back to the good state of round 5." in said
    assert_same(honest.folder.load_model(TRAIN), run.folder.load_model(TRAIN))
    with pytest.raises(UnfedError, match="keeps no earlier good state"):
        run.go_back()
