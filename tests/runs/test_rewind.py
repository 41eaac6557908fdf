"""Retrain from a kept model: exact, counted, resumed, listed, and refused where the past does not allow it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unfed import rng, storage
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.federation.history import History
from unfed.folder import carriers
from unfed.folder.check import check
from unfed.folder.purge import purge
from unfed.methods import Retrain, State
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.runs.progress import Watch
from unfed.runs.record import affected
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import Residents
from worlds import Small, serve, unlearn

REWIND = RequestOptions({"start": "rewind"})
TRAIN = Job(0, None, "train")
SETS = (
    "request=[]",
    "methods.run=[]",
    "partition.clients=6",
    "training.participation=0.34",
    "training.rounds=6",
    "training.keep_every=1",
    "training.schedule.kind=cosine",
    "evaluation.every=4",
    "engine.precision=float64",
    "gate.max_drop=100",
)


@pytest.fixture
def run(small: Small, tmp_path: Path) -> Run:
    made = Run.create(small(*SETS), tmp_path / "run")
    made.execute()
    return made


def first_rounds(run: Run) -> dict[str, int]:
    """By client, the first round in which it was asked, as the trajectory says."""
    rounds = carriers.asked(run.folder, 0)
    assert sorted(rounds) == [1, 2, 3, 4, 5, 6]
    return {name: min((r for r in rounds if name in rounds[r]), default=7) for name in run.description.clients}


def late(run: Run, after: int = 2) -> str:
    """A client that was first asked after some rounds, and took part in the end."""
    return next(name for name, first in first_rounds(run).items() if after < first < 6)


def test_it_goes_on_from_the_newest_model_without_the_leaver_bit_for_bit(run: Run) -> None:
    """The slow truth: rounds by hand from the kept file, at clients among whom the leaver never was."""
    leaver = late(run)
    behind = first_rounds(run)[leaver] - 1
    run.forget(Request("bye", clients=(leaver,)), "retrain", until=6 - behind, how=REWIND)
    state = run.folder.kept_states(run.folder.state_file(TRAIN))[behind]
    params = storage.part(storage.load(state, "kept")[0])["params"]
    world = run.world(0)
    others = tuple(client for client in world.clients if client.name != leaver)
    never = replace(world, holders=Residents(others, world.seeds.partition))
    settings = world.training_settings()
    server = serve(never, (), params=params, seed=world.seeds.request("bye"), settings=settings)
    for round in range(1, 7 - behind):
        plan = server.plan(
            round, server.base.with_optimiser(lr=settings.schedule.rate(settings.phase.optimiser.lr, round + behind, 6))
        )
        params = server.fedavg(params, plan, server.participants(round, server.retained))
    found = run.current(0)
    assert all(torch.equal(found[name], tensor) for name, tensor in params.items())
    lines = [line for line in run.lines() if line["method"] == "retrain"]
    assert lines[-1]["round"] == 6 - behind
    assert leaver not in {name for line in lines for names in line["asked"].values() for name in names}


def test_the_request_says_from_where_and_takes_the_rounds_that_are_left(run: Run) -> None:
    leaver = late(run)
    behind = first_rounds(run)[leaver] - 1
    offer = run.plan(Request("bye", clients=(leaver,)))[-1]
    assert (offer.method, offer.lasts, offer.refused) == ("retrain --set start=rewind", "exact", "")
    plain = next(one for one in run.plan(Request("bye", clients=(leaver,))) if one.method == "retrain")
    assert (plain.rounds, offer.rounds) == (6, 6 - behind)
    run.forget(Request("bye", clients=(leaver,)), "retrain", how=RequestOptions({"start": "rewind"}, within=100))
    (entry,) = run.folder.book().entries
    assert run.about("retrain", entry).title == f"Retrain from round {behind}"
    assert run.about("retrain", entry).rounds == 6 - behind
    line: Any = run.lines()[-1]
    model_bytes = sum(t.numel() * t.element_size() for t in run.current(0).values())
    assert model_bytes <= line["stored_server_bytes"] < model_bytes + 200


def test_the_schedule_goes_on_where_the_kept_model_left(small: Small) -> None:
    world = simulated(small(*SETS), 0)
    server = serve(world, settings=replace(world.training_settings(), rounds=4))
    state = Retrain("rewind").begin(_handed(server, 2))
    rates = [server.scheduled(server.base, r, state.numbers["stage"]).optimiser.lr for r in (1, 4)]
    assert rates == [world.training_settings().schedule.rate(server.base.optimiser.lr, r, 6) for r in (3, 6)]


def _handed(server: Any, rounds: int) -> Any:
    server._history = History(rounds=rounds, shared={"kept": server.params})
    return server


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_training_keeps_the_same_models(run: Run, small: Small, tmp_path: Path, after: int) -> None:
    class Killed(Watch):
        def saved(self, job: Job, state: State, histories: Any) -> None:
            if state.round == after:
                raise KeyboardInterrupt

    again = Run.create(small(*SETS), tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        again.execute(Killed())
    Run.open(tmp_path / "again").execute()
    truth, found = (
        {r: storage.load(p, "kept")[0] for r, p in one.folder.kept_states(one.folder.state_file(TRAIN)).items()}
        for one in (run, again)
    )
    assert sorted(truth) == [1, 2, 3, 4, 5] == sorted(found)
    assert all(torch.equal(found[r][n], t) for r in truth for n, t in truth[r].items())


def test_a_killed_request_goes_on_to_the_same_bits(run: Run, tmp_path: Path) -> None:
    copy, bye = Path(shutil.copytree(run.folder.path, tmp_path / "copy")), Request("bye", clients=(late(run, 1),))

    class Killed(Watch):
        def saved(self, job: Job, state: State, histories: Any) -> None:
            raise KeyboardInterrupt

    run.forget(bye, "retrain", until=3, how=REWIND)
    with pytest.raises(KeyboardInterrupt):
        Run.open(copy).forget(bye, "retrain", until=3, how=REWIND, watch=Killed())
    Run.open(copy).execute()
    found = Run.open(copy).current(0)
    assert all(torch.equal(found[name], tensor) for name, tensor in run.current(0).items())


def test_kept_models_with_the_leaver_are_listed_and_purged_and_those_before_stay(run: Run) -> None:
    leaver = late(run)
    first = first_rounds(run)[leaver]
    listed = {one.file for one in affected(run, leaver) if ".kept-" in one.file}
    assert listed == {f"state/0/train.kept-{round:09d}" for round in range(first, 6)}
    run.forget(Request("bye", clients=(leaver,)), "retrain", until=1, how=REWIND)
    assert not any(one.file.startswith(("models/0/bye", "state/0/bye")) for one in affected(run, leaver))
    purge(run, "bye")
    assert [*run.folder.kept_states(run.folder.state_file(TRAIN))] == [*range(1, first)]
    assert check(run.folder).whole
    assert not [one for one in affected(run, leaver) if one.kind in ("model", "state")]


def test_a_damaged_kept_model_is_found(run: Run) -> None:
    path = run.folder.kept_states(run.folder.state_file(TRAIN))[3]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    assert any(str(path) in one for one in check(run.folder).findings)


def test_a_client_of_the_first_round_is_refused_and_so_is_everybody_who_left_before(run: Run) -> None:
    firsts = first_rounds(run)
    early, leaver = next(name for name, first in firsts.items() if first == 1), late(run)
    said = f"No kept model is from before those who leave took part: client {early} took part in round 1; use"
    with pytest.raises(UnfedError, match=said):
        run.ask(Request("early", clients=(early,)), "retrain", how=REWIND)
    assert said in run.plan(Request("early", clients=(early,)))[-1].refused
    run.forget(Request("early", clients=(early,)), "not", until=1)
    with pytest.raises(UnfedError, match="took part in round 1"):  # the kept models still hold the first leaver
        run.ask(Request("bye", clients=(leaver,)), "retrain", how=REWIND)


def test_classes_and_samples_are_served_where_their_owners_came_late(run: Run) -> None:
    leaver = late(run)
    with pytest.raises(UnfedError, match="took part in round 1"):  # everybody holds the class
        run.ask(Request("class", classes=(3,)), "retrain", how=REWIND)
    run.forget(Request("one", samples=((leaver, 0),)), "retrain", until=1, how=REWIND)
    saved = run.folder.saved(Job(0, "one", "retrain"))
    assert saved is not None and saved.numbers["stage"][0] == 1 - first_rounds(run)[leaver]


def test_a_round_that_is_not_recorded_is_not_taken_to_be_without_the_leaver(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaver, rounds = late(run), carriers.asked(run.folder, 0)
    monkeypatch.setattr(carriers, "asked", lambda *_: {r: names for r, names in rounds.items() if r != 1})
    assert len(carriers.touched(run.folder, 0, [leaver])) == 5
    with pytest.raises(UnfedError, match="No kept model is from before"):
        carriers.before(run.folder, 0, [leaver])


def test_a_model_after_a_round_that_was_taken_back_is_not_used(run: Run) -> None:
    path = run.folder.kept_states(run.folder.state_file(TRAIN))[2]
    tensors, numbers = storage.load(path, "kept")
    leaver = late(run)
    assert path not in carriers.touched(run.folder, 0, [leaver])
    storage.save(path, tensors, {**numbers, "diary": {**numbers["diary"], "careful": 2}})
    assert path in carriers.touched(run.folder, 0, [leaver])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("training.keep_every=0", "this run kept no model; train with training.keep_every = N, or"),
        ('training.record=["fukd"]', "the sums recorded for fukd would lack earlier rounds"),
    ],
)
def test_a_run_that_cannot_is_refused_with_what_to_do(change: str, why: str, small: Small, tmp_path: Path) -> None:
    run = Run.create(small(*SETS, change), tmp_path / "run")
    run.execute()
    with pytest.raises(UnfedError, match=f"start = 'rewind' is not possible: {why}"):
        run.ask(Request("bye", clients=("1",)), "retrain", how=REWIND)


def test_a_training_that_began_at_a_checkpoint_is_refused(run: Run, small: Small, tmp_path: Path) -> None:
    file = tmp_path / "initial.safetensors"
    storage.save(file, run.current(0), {})
    other = Run.create(small(*SETS, f"model.initial='{file}'"), tmp_path / "other")
    other.execute()
    with pytest.raises(UnfedError, match="training began at model.initial, and whose data that saw is not known"):
        other.ask(Request("bye", clients=("1",)), "retrain", how=REWIND)


def test_models_of_rounds_that_were_taken_back_are_not_kept(small: Small, tmp_path: Path) -> None:
    run = Run.create(small(*SETS), tmp_path / "run")

    class Killed(Watch):
        def saved(self, job: Job, state: State, histories: Any) -> None:
            if state.round == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.execute(Killed())
    state = run.folder.state_file(TRAIN)
    assert [*run.folder.kept_states(state)] == [1, 2, 3, 4]
    assert run.go_back() == 4 and run.go_back() == 3 and run.go_back() == 2
    older = run.folder.kept_states(state)[4].stat().st_mtime_ns
    Run.open(tmp_path / "run").execute()
    found = run.folder.kept_states(state)
    assert [*found] == [1, 2, 3, 4, 5] and found[4].stat().st_mtime_ns > older


def test_with_fresh_it_is_retrain_as_before(run: Run) -> None:
    world = run.world(0)
    assert all(
        torch.equal(t, world.fresh(_init(world, "bye"))[n])
        for n, t in unlearn(Retrain(), serve(world, seed=world.seeds.request("bye"))).params.items()
    )


def _init(world: Any, request: str) -> int:
    return rng.key(world.seeds.request(request), "init")
