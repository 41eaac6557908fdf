"""Averages that cannot overflow, states that are never saved, and rules that one wrong update cannot carry away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hostile import Attacker, HostileNodes, attacked
from unfed.engines import Batched, Block, Sequential
from unfed.engines.base import Refusal
from unfed.errors import Refused, UnfedError
from unfed.federation.aggregate import CheckedUpdate, average
from unfed.federation.robust import Lengths, Robust
from unfed.federation.state import State, usable
from unfed.measures.trajectory import job_of
from unfed.methods.finetune import FineTune
from unfed.methods.retrain import Retrain
from unfed.remote.server import run as serve_nodes
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from worlds import Small, experiment, run_config, saved, serve

START = {"w": torch.tensor([0.0, 10.0], dtype=torch.float64), "n": torch.tensor(3)}


def update(client: str, w: list[float], samples: int = 1) -> Block:
    tensors = {"w": torch.tensor([w], dtype=torch.float64), "n": torch.tensor([4])}
    return Block((client,), tensors, (samples,), (1,), (0,))


def stacked(blocks: list[Block]) -> Block:
    params = {name: torch.cat([b.params[name] for b in blocks]) for name in blocks[0].params}
    (clients, samples) = (tuple(v for b in blocks for v in part(b)) for part in (clients_of, samples_of))
    return Block(clients, params, samples, (1,) * len(blocks), (0,) * len(blocks))


def clients_of(block: Block) -> tuple[Any, ...]:
    return block.clients


def samples_of(block: Block) -> tuple[Any, ...]:
    return block.samples


# Δ = (3, 4), (0, 5), (-4, 3): length 5 each; the fourth sends (300, -400): length 500.
HONEST = [update("a", [3.0, 14.0]), update("b", [0.0, 15.0], 2), update("c", [-4.0, 13.0])]
WRONG = update("d", [300.0, -390.0])
BY_HAND = {
    # (3 + 2·0 − 4 + 300) / 5, 10 + (4 + 2·5 + 3 − 400) / 5
    Robust(): [59.8, -66.6],
    # The median length is 5; with b = 2 the fourth is cut to length 10, that is (6, −8).
    Robust("norm", bound=2.0): [(3 + 0 - 4 + 6) / 5, 10 + (4 + 10 + 3 - 8) / 5],
    # Δ at the first place sorted: −4, 0, 3, 300; at the second: −400, 3, 4, 5. The middle two.
    Robust("median"): [1.5, 13.5],
    # ⌊0.3 · 4⌋ = 1 is left out at either end: the same two.
    Robust("trimmed", trim=0.3): [1.5, 13.5],
    # ⌊0.2 · 4⌋ = 0 are left out: the plain mean, everybody with the same weight.
    Robust("trimmed", trim=0.2): [74.75, 10 + (4 + 5 + 3 - 400) / 4],
}


@pytest.mark.parametrize("robust", list(BY_HAND), ids=lambda r: f"{r.rule}-{r.trim}")
def test_every_rule_by_hand(robust: Robust) -> None:
    whole = stacked([*HONEST, WRONG])
    checked, _ = CheckedUpdate(whole, START, 1).result()  # which brings the sums for a mean along
    for blocks in ([*HONEST, WRONG], [whole], [checked], [stacked(HONEST), WRONG]):
        found = robust.average(START, blocks)
        torch.testing.assert_close(found["w"], torch.tensor(BY_HAND[robust], dtype=torch.float64), rtol=0, atol=1e-12)
        assert int(found["n"]) == 4 and found["n"].dtype == torch.int64


@pytest.mark.parametrize("rule", ["norm", "median", "trimmed"])
def test_what_nobody_changed_stays_bit_equal_under_every_rule(rule: Any) -> None:
    old = {"w": torch.randn(50, generator=torch.Generator().manual_seed(0))}
    blocks = [Block((str(k),), {"w": old["w"][None].clone()}, (k + 1,), (1,), (0,)) for k in range(5)]
    assert torch.equal(Robust(rule).average(old, blocks)["w"], old["w"])


def test_a_norm_bound_that_nobody_exceeds_changes_no_bit() -> None:
    assert torch.equal(Robust("norm").average(START, HONEST)["w"], average(START, HONEST)["w"])


def test_without_an_update_there_is_nothing_to_average() -> None:
    for rule in ("mean", "norm", "median", "trimmed"):
        with pytest.raises(Refused, match="no update to average"):
            Robust(rule).average(START, [])


# --- overflow ---------------------------------------------------------------------------------------------------------


def large(client: str, value: float, samples: int) -> Block:
    return Block((client,), {"w": torch.full((1, 2), value)}, (samples,), (1,), (0,))


def test_a_finite_update_near_the_largest_number_does_not_overflow_the_average() -> None:
    old = {"w": torch.tensor([1.0, -1.0])}
    new = average(old, [large("a", 1.0, 1), large("b", 1.5e38, 3)])["w"]
    torch.testing.assert_close(new, torch.full((2,), 1.125e38))
    assert bool(average({"w": -new}, [large("a", -3e38, 5), large("b", 3e38, 5)])["w"].isfinite().all())


def test_an_update_whose_sizes_overflow_is_refused_by_name() -> None:
    like = {"w": torch.zeros(2)}
    good, refused = CheckedUpdate(large("b", 3e38, 1), like, 1).result()
    assert good.clients == () and refused[0].client == "b" and "is too large" in refused[0].reason


@pytest.mark.parametrize("engine", [Sequential, Batched])
def test_one_enormous_update_does_not_end_a_run(
    engine: Any, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = engine.train

    def spoilt(self: Any, plan: Any, *rest: Any) -> Iterator[Any]:
        for block in honest(self, plan, *rest):
            if plan.round == 2 and "1" in block.clients:
                changed = {name: stack.clone() for name, stack in block.params.items()}
                for stack in changed.values():
                    stack[block.clients.index("1")] = 3e38 if stack.is_floating_point() else 0
                block = replace(block, params=changed)
            yield block

    monkeypatch.setattr(engine, "train", spoilt)
    config = small(f'engine.name="{engine.name}"', "training.rounds=3", "methods.run=[]")
    run = Run.create(config, tmp_path / "run")
    run.execute()
    line = next(line for line in run.lines() if line["round"] == 2)
    assert [(r["client"], r["round"]) for r in line["refused"]] == [("1", 2)]
    assert all(bool(t.isfinite().all()) for t in run.folder.load_model(Job(0, None, "train")).values())


def test_a_state_that_is_not_finite_is_not_gone_on_from() -> None:
    whole = State({"w": torch.ones(2), "n": torch.tensor(1)}, 3)
    assert usable(whole) is whole
    with pytest.raises(Refused, match="Round 4 left NaN or infinite values in 'w', so it is not kept") as caught:
        usable(State({"v": torch.ones(1), "w": torch.tensor([1.0, float("inf")])}, 4))
    assert caught.value.exit_code == 3


def test_a_round_that_is_not_finite_is_not_saved_and_the_one_before_is_kept(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(small("training.rounds=3", "methods.run=[]", "checkpoint.rounds=1"), tmp_path / "run")
    job = Job(0, None, "train")
    honest = Retrain.round

    def spoilt(self: Any, server: Any, state: State) -> State:
        after = honest(self, server, state)
        return (
            replace(after, params={n: t * float("nan") for n, t in after.params.items()}) if after.round == 2 else after
        )

    monkeypatch.setattr(Retrain, "round", spoilt)
    with pytest.raises(Refused, match="Round 2 left NaN or infinite values"):
        run.execute()
    kept = run.folder.load_state(job)
    assert kept is not None and kept[0].round == 1
    assert all(bool(t.isfinite().all()) for t in kept[0].params.values())
    monkeypatch.undo()
    Run.open(tmp_path / "run").execute()  # mended, it goes on from there
    done = run.folder.load_state(job)
    assert done is not None and done[0].round == 3


# --- the config -------------------------------------------------------------------------------------------------------


def test_recovery_may_have_a_rule_of_its_own(small: Small) -> None:
    plain = simulated(small(), 0)
    assert plain.training_settings().robust == plain.unlearning_settings(False, "not").robust == Robust()
    both = simulated(small('training.robust.rule="median"'), 0)
    assert both.unlearning_settings(False, "not").robust == Robust("median")
    own = simulated(small('unlearning.robust={rule="norm", bound=1.5}'), 0)
    assert own.training_settings().robust == Robust()
    assert own.unlearning_settings(False, "not").robust == Robust("norm", 1.5)
    with pytest.raises(UnfedError, match="robust"):
        small('training.robust.rule="krum"')


def test_batched_is_sequential_under_a_robust_rule(small: Small) -> None:
    ends = []
    for engine in ("sequential", "batched"):
        config = small(f'engine.name="{engine}"', 'engine.precision="float64"', 'training.robust.rule="trimmed"')
        server = serve(simulated(config, 0), ())
        ends.append(server.recover(FineTune().begin(server)).params)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-10)


# --- the bound --------------------------------------------------------------------------------------------------------


def judged(times: float, before: list[float], size: float, *lengths: float) -> tuple[float, list[str], list[float]]:
    """The limit of a round, who is refused, and what is usual afterwards."""
    found = Lengths(times, before, {str(k): length for k, length in enumerate(lengths)}, size)
    blocks = [update(str(k), [0.0, 0.0]) for k in range(len(lengths))]
    limit = found.limit
    refused = [r.client for block in blocks for r in found.within(block, 1, limit)[1]]
    return limit, refused, found.usual()


def test_the_limit_by_hand() -> None:
    # Earlier rounds say what is usual: the median of 1, 2, 4 is 2, ten times that is 20, which is more than the model.
    assert judged(10.0, [1.0, 4.0, 2.0], 5.0, 19.0, 21.0) == (20.0, ["1"], [1.0, 4.0, 2.0, 19.0])
    # An update that is shorter than the model is never refused, however short the others were.
    assert judged(10.0, [0.1], 5.0, 4.9, 5.1) == (5.0, ["1"], [0.1, 4.9])
    # A first round has its own median: 2 of 1, 2, 3, 400 (the lower one, so that one of four cannot lift it).
    assert judged(10.0, [], 5.0, 1.0, 400.0, 3.0, 2.0) == (20.0, ["1"], [2.0])
    # Two cannot outvote one another, so ten times the model is the limit.
    assert judged(10.0, [], 5.0, 1.0, 49.0, 0.0) == (50.0, [], [1.0])
    assert judged(10.0, [], 5.0, 51.0) == (50.0, ["0"], [])
    # Who moved nothing says nothing of what is usual; nor is a model of zeros a measure.
    assert judged(10.0, [], 1.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0) == (80.0, [], [8.0])
    assert judged(10.0, [], 0.0, 3.0)[0] == float("inf")
    assert judged(0.0, [1.0], 1.0, 1e30) == (float("inf"), [], [1.0])
    assert judged(10.0, [1.0, 2.0, 3.0, 4.0, 5.0], 1.0, 6.0)[2] == [2.0, 3.0, 4.0, 5.0, 6.0]


def refused(run: Run, request: str | None, label: str) -> list[dict[str, Any]]:
    """What a job refused, in its order."""
    lines = [line for line in run.lines() if job_of(line) == (0, request, label)]
    return [dict(one) for line in lines for one in line.get("refused", ())]


SCALED = ("scale", "1e30", "3.4e38", "noise")


@pytest.mark.parametrize(
    ("engine", "attack"), [*((Sequential, attack) for attack in SCALED), (Batched, SCALED[0])]
)  # who computed an update does not matter to those who look at it
def test_an_update_outside_the_bound_is_refused_and_the_model_is_that_of_the_others(
    engine: Any, attack: str, small: Small, tmp_path: Path
) -> None:
    """From the very first round on, in training and in recovery: as if the hostile client had never answered."""
    sets = (f'engine.name="{engine.name}"', "training.rounds=3", "unlearning.rounds=2")
    ends = []
    for name, attacker in (("hostile", Attacker(attack)), ("silent", None)):
        with attacked(engine, "1", attacker) if attacker else dropped(engine, "1"):
            run = Run.create(small(*sets), tmp_path / name)
            run.execute()
        for label, request, rounds in (("train", None, 3), ("not", "r1", 2)):
            named = refused(run, request, label)
            assert [(r["round"], r["client"]) for r in named] == [(r, "1") for r in range(1, rounds + 1)]
            if attacker and attack in ("scale", "noise"):  # the others have no length that is a number
                assert all("refuse_above" in r["reason"] for r in named)
        ends.append([run.folder.load_model(job) for job in (Job(0, None, "train"), Job(0, "r1", "not"))])
    for one, other in zip(*ends, strict=True):
        for tensor, name in ((t, n) for n, t in one.items()):
            torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


@contextmanager
def dropped(engine: Any, client: str) -> Iterator[None]:
    """A client that never answers."""
    train = engine.train

    def silent(self: Any, plan: Any, params: Any, clients: Any, *rest: Any) -> Iterator[Any]:
        yield Refusal(plan.round, client, "it did not answer")
        yield from train(self, plan, params, [c for c in clients if c != client], *rest)

    engine.train = silent
    try:
        yield
    finally:
        engine.train = train


@pytest.mark.parametrize("attack", ["scale", "3.4e38", "weight", "replay"])
def test_over_messages_too_a_hostile_client_is_named_and_left_out(attack: str, tmp_path: Path) -> None:
    nodes = [{"partition-id": k, "device": "cpu", "allow": "forget"} for k in range(4)]
    what = {"run-folder": str(tmp_path / "run"), "forget-clients": "0", "min-nodes": 4, "wait-seconds": 1.0}
    config = run_config({**experiment(4), "training.rounds": 3}, **what)
    run = serve_nodes(HostileNodes(nodes, {3: Attacker(attack)}), config)
    for request, label, rounds in ((None, "train", 3), ("client-0", "not", 2)):
        named = [(r["round"], r["client"]) for r in refused(run, request, label)]
        first = 2 if attack == "replay" and label == "train" else 1  # its first answer is right
        assert named == [(r, "2") for r in range(first, rounds + 1)]
    assert all(float(t.abs().max()) < 100 for t in run.folder.load_model(Job(0, "client-0", "not")).values())


def test_the_bound_can_be_switched_off(small: Small, tmp_path: Path) -> None:
    with attacked(Sequential, "1", Attacker("scale")):
        sets = ("training.rounds=1", "methods.run=[]", "engine.name=sequential")
        run = Run.create(small(*sets, "training.robust.refuse_above=0"), tmp_path / "run")
        run.execute()
    assert not refused(run, None, "train")
    largest = max(float(t.abs().max()) for t in run.folder.load_model(Job(0, None, "train")).values())
    assert largest > 100


def test_what_is_usual_survives_a_crash_bit_for_bit(small: Small, tmp_path: Path) -> None:
    """A run that is interrupted after any save judges later updates as one that was not."""
    sets = ("training.rounds=4", "methods.run=[]", "checkpoint.rounds=1")
    whole = Run.create(small(*sets), tmp_path / "whole")
    whole.execute()
    job = Job(0, None, "train")

    class Stop(Watch):
        def saved(self, job: Job, state: State, histories: Any) -> None:
            if state.round == 2:
                raise KeyboardInterrupt

    cut = Run.create(small(*sets), tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        cut.execute(Stop())
    Run.open(tmp_path / "cut").execute()
    usual = [saved(run.folder, job).diary.to_json()["usual"] for run in (whole, cut)]
    assert usual[0] == usual[1] and len(usual[0]["ce on retain"]) == 4


def test_each_job_and_each_kind_of_visit_has_its_own_measure(small: Small, tmp_path: Path) -> None:
    config = small(
        "methods.run=['ga']",
        "methods.ga.federated=true",
        "training.rounds=2",
        "unlearning.rounds=2",
        "checkpoint.rounds=1",
    )
    run = Run.create(config, tmp_path / "run")
    run.execute()
    usual = saved(run.folder, Job(0, "r1", "ga")).diary.to_json()["usual"]
    assert all(len(lengths) <= 2 for lengths in usual.values()) and len(usual) >= 2


def test_a_centralised_model_is_not_bounded(toy: Any) -> None:
    """Where one place holds all data, that place decides."""
    block = large("b", 1e6, 1)
    lengths = Lengths(0.0, [])
    lengths.add(CheckedUpdate(block, {"w": torch.zeros(2)}, 1))
    assert lengths.known and lengths.limit == float("inf") and lengths.usual() == []
