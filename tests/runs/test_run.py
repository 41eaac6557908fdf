"""Runs: resumed is uninterrupted, requests are served once and in their order, and nothing is half-written."""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from unfed import storage
from unfed.config import revisions
from unfed.data import Request
from unfed.engines import Batched
from unfed.errors import Refused, UnfedError, UnfedWarning
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.requests.saved_state import SavedState
from unfed.runs.description import versions
from unfed.runs.progress import Deadline, OutOfTime, Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.studies.cohort import of_seed
from unfed.trust.findings import findings, served
from worlds import ALL_DIGITS, Small, noting, saved, slow


def outcome(folder: Path) -> Any:
    """Everything a run leaves that must be the same again: trajectory without times, models, samples."""
    run = Run.open(folder)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines()]
    files = {}
    for kind in ("models", "samples"):
        for path in sorted((folder / kind).rglob("*.safetensors")):
            files[str(path.relative_to(folder))] = path.read_bytes()
    return lines, files


class Crash(BaseException):
    """The process dies here."""


def loaded(run: Run, job: Job) -> tuple[State, SavedState]:
    found = run.folder.load_state(job)
    assert found is not None
    return found


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> dict[str, int]:
    """Let the number-th write of the process fail to happen, as if the process had been killed just before it."""
    count = {"writes": 0}
    for name in ("write_bytes", "append_line"):
        original = getattr(storage, name)

        def guarded(*args: Any, original: Callable[..., Any] = original) -> Any:
            count["writes"] += 1
            if count["writes"] == number:
                raise Crash
            return original(*args)

        monkeypatch.setattr(storage, name, guarded)
    return count


@contextmanager
def kept_before_every_write(folder: Path, into: Path) -> Iterator[list[Path]]:
    """Copies of a run folder from just before each write: what a process leaves that is killed there.

    One run gives all of them; to crash at every write in turn would take as many.
    """
    kept: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_bytes", "append_line"):
            original = getattr(storage, name)

            def noted(*args: Any, original: Callable[..., Any] = original) -> Any:
                if folder.exists():
                    kept.append(shutil.copytree(folder, into / str(len(kept) + 1)))
                return original(*args)

            patch.setattr(storage, name, noted)
        yield kept


FAST = ("checkpoint.rounds=2", "training.rounds=3", "unlearning.rounds=3", "evaluation.every=2", "poison.client=0")


@pytest.mark.parametrize("writes", [(0,), *slow(((2,),))])
def test_a_run_killed_at_any_write_resumes_to_the_same_bytes(
    small: Small, tmp_path: Path, writes: tuple[int, ...]
) -> None:
    """Every fourth write, and in `make test-slow` those half-way between them."""
    # What is not in question here is kept small; nor is the world, a function of the config, built for every crash.
    little = ("training.batch=256", "evaluation.attack=false", "data.test_size=60", "data.train_size=240")
    config = small(*FAST, "methods.run=['not', 'retrain']", *little)
    whole = Run.create(config, tmp_path / "whole")
    with kept_before_every_write(tmp_path / "whole", tmp_path / "killed") as kept:
        whole.execute()
    truth = outcome(tmp_path / "whole")
    assert len(kept) > 25
    for number, folder in enumerate(kept):
        if number % 4 in writes:
            killed = Run.open(folder)
            killed.use(whole.world(0))
            killed.execute()
            assert outcome(folder) == truth, f"differs after a crash before write {number + 1} of {len(kept)}"


def test_a_run_killed_inside_a_cycle_goes_on_with_the_same_rates(small: Small, tmp_path: Path) -> None:
    class KilledAt(Watch):
        def reached(self, job: Job, state: State, asked: Collection[str]) -> None:
            if (job.label, state.round) == ("not", 4):
                raise Crash

    cycle = ("unlearning.rounds=6", "unlearning.lr=0.1", "unlearning.epochs=2", "unlearning.schedule.kind=one-cycle")
    config = small("checkpoint.rounds=2", "training.rounds=2", "training.schedule.kind=one-cycle", *cycle)
    Run.create(config, tmp_path / "whole").execute()
    with pytest.raises(Crash):
        Run.create(config, tmp_path / "killed").execute(KilledAt())
    assert loaded(Run.open(tmp_path / "killed"), Job(0, "r1", "not"))[0].round == 2
    Run.open(tmp_path / "killed").execute()
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    Run.create(small("checkpoint.rounds=2", "training.rounds=2", *cycle[:-1]), tmp_path / "flat").execute()
    assert outcome(tmp_path / "flat") != outcome(tmp_path / "whole")


def test_a_resumed_not_is_not_negated_twice(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unfed.methods import NoT

    calls: list[Any] = []
    original = NoT.begin
    monkeypatch.setattr(NoT, "begin", noting(calls, original, lambda *_: 1))
    folder = tmp_path / "run"
    run = Run.create(small(*FAST), folder)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(NoT, "round", lambda self, server, state: (_ for _ in ()).throw(Crash))
        run.execute()
    assert calls == [1]
    saved, _ = loaded(run, Job(0, "r1", "not"))
    trained = run.folder.load_model(Job(0, None, "train"))
    assert torch.equal(saved.params["conv1.weight"], -trained["conv1.weight"])
    Run.open(folder).execute()
    assert calls == [1]


def test_what_changed_since_a_run_was_begun_is_said_and_written_down(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed after an upgrade, a run is another one from there on; evidence names the versions that served."""
    run = Run.create(small("training.rounds=1", "unlearning.rounds=1"), tmp_path / "run")
    run.execute()
    newer = {**versions(), "torch": "99.0"}
    monkeypatch.setattr("unfed.runs.description.versions", lambda: newer)
    monkeypatch.setattr("unfed.runs.job.versions", lambda: newer)
    monkeypatch.setitem(revisions.METHODS, "not", 99)
    with pytest.warns(
        UnfedWarning, match=r"changed \(torch is 99.0, not 2.*; `not` was revised\), .* run the config again"
    ):
        run.forget(Request("leaves", clients=("1",)), "not", 1)
    assert findings(run, served(run))["versions"] == newer
    assert run.description.versions == versions()


class Counting(Watch):
    """Notes the states that a process reaches."""

    def __init__(self) -> None:
        self.states: list[tuple[str, int]] = []

    def reached(self, job: Job, state: State, asked: object) -> None:
        self.states.append((job.label, state.round))

    def any(self) -> bool:
        return bool(self.states)


@pytest.mark.parametrize("methods", ["'not', 'sealed'", *slow("'federaser', 'fcu'", "'mode', 'pgd'")])
def test_a_run_whose_time_is_up_in_every_round_ends_each_and_comes_to_the_same_bytes(
    small: Small, tmp_path: Path, methods: str
) -> None:
    """No save is due in any of them: the watch has it made, and nothing is done beyond it."""
    little = ("training.batch=256", "evaluation.attack=false", "data.test_size=60", "data.train_size=240")
    rare = ("checkpoint.rounds=1000", "checkpoint.seconds=100000", "training.rounds=3", "unlearning.rounds=3")
    config = small(*rare, "evaluation.every=2", f"methods.run=[{methods}]", *little)
    whole, seen = Run.create(config, tmp_path / "whole"), Counting()
    whole.execute(seen)
    Run.create(config, tmp_path / "run", whole.world(0))
    reached: list[tuple[str, int]] = []
    for _ in range(100):
        run, now = Run.open(tmp_path / "run"), Counting()
        run.use(whole.world(0))
        try:
            run.execute(Deadline(now, now.any))
        except OutOfTime:
            reached += now.states
            assert len(now.states) == 1, "it stops where it was when the time was up"
            (label, round) = now.states[0]
            assert saved(run.folder, Job(0, None if label == "train" else "r1", label)).round == round
        else:
            break
    assert reached == seen.states, "and no round is done twice"
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("wanted", [None, 2])
def test_a_run_goes_on_with_the_engine_and_the_stacks_it_began_with(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int | None
) -> None:
    """A later version may pick others; that would change last bits in the middle of a run."""
    config = small("data.train_size=600", *([] if wanted is None else [f"engine.chunk={wanted}"]))
    run = Run.create(config, tmp_path / "run")
    began = run.description.engine, run.description.chunk
    widest = config.training.batch + 1
    assert began[0] == "batched" and began[1] == (wanted or Batched(run.world(0).template, {}).chunk(widest))
    monkeypatch.setattr("unfed.engines.batched.BUDGET_BYTES", {"cpu": 1})
    monkeypatch.setattr("unfed.engines.choice.CPU_BYTES", 0)
    assert simulated(config, 0).choice.name == "sequential"
    again = Run.open(tmp_path / "run").world(0)
    assert (again.choice.name, again.chunk) == began
    engine = again.engine({})
    assert isinstance(engine, Batched)
    assert engine.chunk(10**6) == began[1]


def test_a_run_of_before_stacks_were_kept_makes_them_as_it_did(small: Small, tmp_path: Path) -> None:
    Run.create(small("engine.name=batched"), tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    described = json.loads(file.read_text())
    del described["chunk"]
    file.write_text(json.dumps(described))
    assert Run.open(tmp_path / "run").world(0).chunk is None


def test_the_process_is_left_with_its_own_threads(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = Run.create(small("training.rounds=1", "unlearning.rounds=1", "engine.threads=1"), tmp_path / "run")
        assert torch.get_num_threads() == 2
        seen = []
        watch = Watch()
        monkeypatch.setattr(watch, "goes_on", lambda *args: seen.append(torch.get_num_threads()))
        run.execute(watch)
        assert set(seen) == {1} and torch.get_num_threads() == 2
        Run.open(tmp_path / "run").model(method="train")
        assert torch.get_num_threads() == 2
        run.forget(Request("r9", clients=("1",)), "not", until=1, watch=watch)
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_executing_a_finished_run_again_changes_nothing(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = Run.create(small(*FAST), folder)
    run.execute()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "progress.json"}
    Run.open(folder).execute()
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "progress.json"}


def test_a_torn_last_line_is_not_read(small: Small, tmp_path: Path) -> None:
    run = Run.create(small(*FAST), tmp_path / "run")
    run.execute()
    whole = run.lines()
    with open(run.folder.trajectory, "ab") as file:
        file.write(b'{"seed": 0, "requ')
    assert run.lines() == whole
    Run.open(tmp_path / "run").execute()
    assert run.folder.lines() == [json.loads(text) for text in run.folder.trajectory.read_text().splitlines()]


def test_several_seeds_are_several_federations(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("seed=[0, 1]", "training.rounds=1", "unlearning.rounds=1"), tmp_path / "run")
    run.execute()
    models = [run.folder.load_model(Job(seed, None, "train")) for seed in (0, 1)]
    assert not torch.equal(models[0]["conv1.weight"], models[1]["conv1.weight"])
    assert {line["seed"] for line in run.lines()} == {0, 1}


def test_methods_of_a_comparison_share_the_unlearning_seed(small: Small, tmp_path: Path) -> None:
    """FT and NoT without layers are the same run under two names."""
    sets = ("methods.run=['ft', 'none']", "methods.none.use='not'", "methods.none.layers=[]", "training.rounds=1")
    run = Run.create(small(*sets), tmp_path / "run")
    run.execute()
    a, b = (run.folder.load_model(Job(0, "r1", label)) for label in ("ft", "none"))
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_several_requests_come_one_after_another(small: Small, tmp_path: Path) -> None:
    config = small("training.rounds=1", "unlearning.rounds=1", "methods.run=['ft']")
    raw = {**config.to_json(), "request": [{"id": "a", "clients": ["0"]}, {"id": "b", "classes": [3]}]}
    run = Run.create(type(config).parse(raw), tmp_path / "run")
    run.execute()
    asked = {line["request"]: line["asked"] for line in run.lines() if line["method"] == "ft" and line["round"] == 1}
    assert asked == {"a": {"1": ["1", "2", "3"]}, "b": {"1": ["1", "2", "3"]}}
    first = run.folder.load_model(Job(0, "a", "ft"))
    where = ("b", "ft", 0)
    second_start = next(line for line in run.lines() if (line["request"], line["method"], line["round"]) == where)
    world = run.world(0)
    requests = run.config.requests()
    seen = world.evaluator(requests)(first).numbers
    assert second_start["test"] == pytest.approx(seen["test"])


def test_a_run_can_start_from_an_existing_checkpoint(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("training.rounds=2"), tmp_path / "first")
    run.execute()
    path = run.folder.model_file(Job(0, None, "train"))
    again = Run.create(small("training.rounds=1", f"model.initial='{path}'"), tmp_path / "second")
    again.execute()
    start = next(line for line in again.lines() if line["method"] == "train" and line["round"] == 0)
    end = [line for line in run.lines() if line["method"] == "train"][-1]
    assert start["test"] == end["test"]


@pytest.mark.parametrize("fresh_head", [False, True])
def test_every_seed_begins_at_the_checkpoint_that_the_run_was_created_with(
    small: Small, tmp_path: Path, fresh_head: bool
) -> None:
    """The file lies outside the folder: another one in its place went unnoticed, and the seeds were of two models."""
    file, before = tmp_path / "start.safetensors", tmp_path / "before"
    params, other = (simulated(small(), 0).fresh(seed) for seed in (1, 2))
    storage.save(file, params, {})
    sets = ["training.rounds=1", "request=[]", "seed=[0, 1]", f"model.initial='{file}'"]
    sets += ["model.fresh_head=true"] if fresh_head else []
    run = Run.create(small(*sets), tmp_path / "run")
    Run.create(small(*sets), before)
    about = json.loads((before / "run.json").read_text())
    del about["initial"]  # as runs were created before that was noted
    (before / "run.json").write_text(json.dumps(about))
    run._train(0, Watch())
    begun = Run.create(small(*sets, "seed=[0]", "training.rounds=2"), tmp_path / "begun")
    with pytest.raises(OutOfTime):
        begun.execute(Deadline(Watch(), lambda: True))
    world = run.world(0)
    assert of_seed(world, 1).checkpoint == world.checkpoint
    storage.save(file, other, {})
    if fresh_head:  # then the file is read for every seed of a population
        with pytest.raises(UnfedError, match="is not the one that this was begun with"):
            of_seed(world, 1)
    with pytest.raises(UnfedError, match=r"start.safetensors is not the one that this was begun with; restore it"):
        Run.open(run.folder.path).execute()
    assert run.trained(0) and run.folder.saved(Job(1, None, "train")) is None
    for folder in (before, begun.folder.path):  # the second has left the file behind
        Run.open(folder).execute()
    storage.save(file, params, {"note": "the same tensors, written anew"})
    Run.open(run.folder.path).execute()
    assert run.trained(1)


def test_the_checkpoint_that_a_run_began_at_is_needed_only_while_a_seed_still_begins_at_it(
    small: Small, tmp_path: Path
) -> None:
    file = tmp_path / "start.safetensors"
    storage.save(file, simulated(small(), 0).fresh(1), {})
    sets = ["training.rounds=2", "seed=[0, 1]", f"model.initial='{file}'", "request=[{id='a', clients=['1']}]"]
    whole, run = (Run.create(small(*sets, "methods.run=['ft']"), tmp_path / name) for name in ("whole", "run"))
    whole.execute()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["initial"]  # as runs were created before that was noted: nothing else tells that it is gone
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    run = Run.open(run.folder.path)
    run._train(0, Watch())
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(UnfedError, match=r"no checkpoint model.initial at .*; restore"):
        Run.open(run.folder.path).execute()
    assert run.folder.saved(Job(1, None, "train")) is None
    (tmp_path / "elsewhere").rename(file)
    with pytest.raises(OutOfTime):  # after the first round of the second seed's training
        Run.open(run.folder.path).execute(Deadline(Watch(), lambda: True))
    file.unlink()
    Run.open(run.folder.path).execute()
    for job in (Job(seed, request, label) for seed in (0, 1) for request, label in ((None, "train"), ("a", "ft"))):
        mine, theirs = run.folder.load_model(job), whole.folder.load_model(job)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_early_stopping_ends_a_job(small: Small, tmp_path: Path) -> None:
    run = Run.create(
        small("training.rounds=40", "training.patience=2", "training.lr=0.0", "request=[]"), tmp_path / "run"
    )
    run.execute()
    assert saved(run.folder, Job(0, None, "train")).finished == "early stop"
    assert run.lines()[-1]["round"] == 2


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(small: Small, tmp_path: Path) -> Callable[..., Run]:
    def make(*sets: Any) -> Run:
        run = Run.create(small("training.rounds=4", "request=[]", "unlearning.rounds=4", *sets), tmp_path / "run")
        run.execute()
        return run

    return make


@pytest.fixture
def trained(train: Callable[..., Run]) -> Run:
    return train()


def test_forget_leaves_a_new_model_in_force(trained: Run) -> None:
    before = trained.current(0)
    done = trained.forget(Request("bye-3", clients=("3",)), "not", until=2)
    assert done.status == "done"
    assert trained.current_job(0) == Job(0, "bye-3", "not")
    assert not torch.equal(trained.current(0)["conv2.weight"], before["conv2.weight"])
    lines = [line for line in trained.lines() if line["method"] == "not"]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert all("3" not in clients for line in lines for clients in line["asked"].values())


def test_the_same_request_twice_does_nothing(trained: Run) -> None:
    trained.forget(Request("x", clients=("3",)), "not", until=2)
    before = trained.folder.trajectory.read_bytes()
    assert trained.forget(Request("x", clients=("3",)), "not", until=2).status == "already done"
    assert trained.folder.trajectory.read_bytes() == before


def test_an_id_belongs_to_one_request(trained: Run) -> None:
    trained.forget(Request("x", clients=("3",)), "not", until=1)
    with pytest.raises(UnfedError, match="is that of another request"):
        trained.forget(Request("x", clients=("2",)), "not", until=1)
    with pytest.raises(UnfedError, match="is that of another request"):
        trained.forget(Request("x", clients=("3",)), method="ft", until=1)


def test_a_second_request_starts_from_what_the_first_left(trained: Run) -> None:
    trained.forget(Request("a", clients=("3",)), "not", until=1)
    first = trained.current(0)
    trained.forget(Request("b", clients=("1",)), "sealed", until=1)
    later, _ = loaded(trained, Job(0, "b", "sealed"))
    begin = [line for line in trained.lines() if line["request"] == "b" and line["round"] == 0][-1]
    assert begin["validation_before"] == pytest.approx(
        next(line for line in trained.lines() if line["request"] == "b" and line["method"] == "before")["validation"]
    )
    asked = [line["asked"] for line in trained.lines() if line["request"] == "b" and line["method"] == "sealed"][-1]
    assert asked == {"1": ["0", "2"]}
    assert first.keys() == later.params.keys()


def test_recovered_ends_at_the_first_round_that_is_good_enough(train: Callable[..., Run]) -> None:
    trained = train("evaluation.recovered_within=100.0")
    trained.forget(Request("x", clients=("3",)), "not")
    assert [line["round"] for line in trained.lines() if line["method"] == "not"] == [0, 1]
    assert saved(trained.folder, Job(0, "x", "not")).finished == "recovered"


def test_not_recovered_is_refused_and_can_go_on(train: Callable[..., Run]) -> None:
    trained = train("evaluation.recovered_within=0.0", "unlearning.rounds=1")
    with pytest.raises(
        Refused, match=r"Request 'x' is not recovered after 1 round: the best validation accuracy was \d"
    ):
        trained.forget(Request("x", clients=("3",)), "not")
    assert trained.current_job(0) == Job(0, None, "train")  # the old model stays in force
    assert trained.forget(Request("x", clients=("3",)), "not", until=3).status == "done"
    rounds = [line["round"] for line in trained.lines() if line["method"] == "not"]
    assert rounds == [0, 1, 2, 3]  # it went on, it did not begin again


def test_what_is_asked_again_is_judged_by_what_is_asked_for_now(train: Callable[..., Run]) -> None:
    """What was not near enough then is near enough now, and the other way round."""
    trained, accepted = train("unlearning.rounds=1", "unlearning.lr=0.0", *ALL_DIGITS), {"by": "me", "at": "now"}
    near, far = Request("near", clients=("3",)), Request("far", clients=("2",))
    with pytest.raises(Refused, match="is not recovered after 1 round"):
        trained.forget(near, "sealed", how=RequestOptions(within=0.0))
    assert trained.forget(near, "sealed", how=RequestOptions(within=100.0)).status == "done"
    assert [line["round"] for line in trained.lines() if line["method"] == "sealed"] == [0, 1]

    with pytest.raises(Refused, match="does not pass the gate"):
        trained.forget(far, "not", how=RequestOptions(within=100.0, max_drop=0.0))
    with pytest.raises(Refused, match="is not recovered after 1 round"):
        trained.forget(far, "not", how=RequestOptions(within=0.0, accept=accepted))


def test_a_goal_that_nobody_looked_at_is_not_reached(train: Callable[..., Run]) -> None:
    """Asked to forget at first and then to recover, a model came into force 43 points below the old one."""
    trained = train("unlearning.rounds=1", "unlearning.lr=0.0", "training.lr=0.05", *ALL_DIGITS)
    leaves = Request("x", classes=(0,))
    with pytest.raises(Refused, match="does not pass the gate"):
        trained.forget(leaves, "not", until="forgotten", how=RequestOptions(max_drop=0.0))
    with pytest.raises(Refused, match="is not recovered after 1 round"):
        trained.forget(leaves, "not", until="recovered", how=RequestOptions(max_drop=100.0))


def test_a_request_during_anothers_recovery_is_left_out_from_the_next_round_on(
    trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process files the request; here the first job's second round plays that process."""
    from unfed.methods import NoT

    original, other = NoT.round, Run.open(trained.folder.path)

    def round(self: NoT, server: Server, state: State) -> State:
        if state.round == 1 and not other.folder.book().entries[1:]:
            assert other.forget(Request("b", clients=("1",)), "sealed", until=1).status == "queued"
        return original(self, server, state)

    monkeypatch.setattr(NoT, "round", round)
    trained.forget(Request("a", clients=("3",)), "not", until=4)
    asked: dict[Any, Any] = {}
    for line in trained.lines():
        if line["method"] in ("not", "sealed"):
            asked.setdefault(line["request"], {}).update(line["asked"])
    assert asked["a"] == {"1": ["0", "1", "2"], "2": ["0", "1", "2"], "3": ["0", "2"], "4": ["0", "2"]}
    assert asked["b"] == {"1": ["0", "2"]}  # its turn came after


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request("x", clients=("9",)), "9"),
        (Request("x", clients=("0", "1", "2", "3")), "every training row of every client; ask for less"),
        (Request("x", classes=(77,)), "77"),
        (Request("x", samples=(("0", 10**6),)), "0"),
        (Request("../x", clients=("1",)), "is no file name"),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_filed(trained: Run, request_: Request, says: str) -> None:
    with pytest.raises(UnfedError, match=says):
        trained.forget(request_, "not", until=1)
    assert trained.folder.book().entries == ()


def test_wrong_ways_to_ask(trained: Run) -> None:
    with pytest.raises(UnfedError, match="--until takes goals .* a number"):
        trained.forget(Request("x", clients=("1",)), "not", until="soon")
    with pytest.raises(UnfedError, match="The method 'nott' is not known"):
        trained.forget(Request("x", clients=("1",)), method="nott")
    with pytest.raises(UnfedError, match="no seed 5"):
        trained.forget(Request("x", clients=("1",)), "not", seed=5)


def test_forgetting_needs_a_finished_training(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("request=[]"), tmp_path / "run")
    with pytest.raises(UnfedError, match="training of this run is not finished; first go on with `unfed resume"):
        run.forget(Request("x", clients=("1",)), "not")


# --- the folder -------------------------------------------------------------------------------------------------------


def test_two_processes_do_not_work_in_one_folder(small: Small, tmp_path: Path) -> None:
    run = Run.create(small(), tmp_path / "run")
    with run.folder.lock() as free:
        assert free
        with pytest.raises(UnfedError, match="Another process is at work"):
            Run.open(tmp_path / "run").execute()
    assert not run.folder.busy()


def test_a_run_is_not_created_over_something_else(small: Small, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(UnfedError, match="is not empty; choose another folder"):
        Run.create(small(), tmp_path)


def test_nothing_is_written_when_the_config_cannot_work(small: Small, tmp_path: Path) -> None:
    for sets, says in [
        ("methods.not.layers=['conv9']", "conv9"),
        ("methods.not.perturbation=negat", "Did you mean 'negate'"),
        ("request.clients=['77']", "77"),
        ("model.name=cnn-tinny", "Did you mean 'cnn-tiny'"),
        ("data.name=digit", "Did you mean 'digits'"),
        ("partition.clients=100000", "clients"),
        ("poison.client=8", "not one of the clients 0 to 3"),
        ("model.initial=/nowhere.safetensors", "There is no checkpoint"),
        ("device=cuda:7", "is not there"),
    ]:
        with pytest.raises(UnfedError, match=says):
            Run.create(small(sets), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_architecture_is_refused(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("training.rounds=1", "request=[]"), tmp_path / "a")
    run.execute()
    path = run.folder.model_file(Job(0, None, "train"))
    with pytest.raises(UnfedError, match="another architecture|has shape|expects"):
        Run.create(small("model.name=cnn-small", f"model.initial='{path}'"), tmp_path / "b")
    params, numbers = storage.load(path)
    params["conv1.bias"][0] = float("nan")
    storage.save(tmp_path / "nan.safetensors", params, numbers)
    with pytest.raises(UnfedError, match="NaN or infinite values in 'conv1.bias'"):
        Run.create(small(f"model.initial='{tmp_path / 'nan.safetensors'}'"), tmp_path / "b")


def test_a_folder_of_another_layout_is_refused(small: Small, tmp_path: Path) -> None:
    run = Run.create(small(), tmp_path / "run")
    raw = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**raw, "schema": 99}))
    with pytest.raises(UnfedError, match="layout 99, this version reads layout"):
        Run.open(tmp_path / "run")
    os.remove(run.folder.path / "run.json")
    with pytest.raises(UnfedError, match="is not a run folder"):
        Run.open(tmp_path / "run")


def test_out_of_disk_ends_in_a_sentence_and_the_run_can_go_on(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    config = small(*FAST)
    Run.create(config, tmp_path / "whole").execute()
    run = Run.create(config, tmp_path / "run")
    calls = {"n": 0}
    original = os.fsync

    def full(descriptor: int) -> None:
        calls["n"] += 1
        if calls["n"] > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    with monkeypatch.context() as patch, pytest.raises(UnfedError, match="The disk is full"):
        patch.setattr(os, "fsync", full)
        run.execute()
    assert not list((tmp_path / "run").rglob("*.tmp"))
    Run.open(tmp_path / "run").execute()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_request_alone_names_the_model_of_the_method_that_served_it_and_never_one_of_several(
    small: Small, tmp_path: Path
) -> None:
    run = Run.create(small("methods.run=['not','ft']", "training.rounds=1", "unlearning.rounds=1"), tmp_path / "run")
    run.execute()
    with pytest.raises(UnfedError, match="Methods were compared on request 'r1'.* --method, not or ft"):
        run.job_of(None, "r1", None)
    run.forget(Request("later", clients=("1",)), "ft", 1)
    assert run.job_of(None, "later", None) == Job(0, "later", "ft") == run.current_job(0)
    assert run.job_of(None, "r1", "not") == Job(0, "r1", "not")
