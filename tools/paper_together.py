"""A block of the paper whose methods run side by side, every round of all of them as one stack of clients.

    OUT/train       θ*, with what any of the methods records              OUT/METHOD     one run folder for each method
    retrain ─ round 1 ─┐        ┌─ round 2 ─ …
    ft      ─ round 1 ─┼─ stack ┼─ round 2 ─ …         `engines/side_by_side.py`
    not     ─ round 1 ─┘        └─ round 2 ─ …

Nothing in a method knows of the others: each is an ordinary run that takes θ* over, with a trajectory and saves of its
own, and `unfed resume` goes on with it alone. A wider stack changes last bits, as `engine.chunk` does. A method whose
first rounds are its own (MoDE's guidance) takes them before the others begin, and is in step with them from then on; so
is FedEraser, whose calibrations are the same phases. Each width is compiled, so who ends early costs seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from paper_block import outcome_of

from unfed.cli.options import watched_until
from unfed.config.config import Config
from unfed.data import ClientData
from unfed.engines import Batched, Engine
from unfed.engines.side_by_side import SideBySide, Table
from unfed.errors import UnfedError, nearest
from unfed.paper.build import refuse_revised
from unfed.requests.entry import now
from unfed.runs.progress import Deadline, Watch
from unfed.runs.run import Run
from unfed.runs.world import World, local_engine, process_as_before
from unfed.studies.same_training import take_job, take_training


class SharedEngines:
    """One engine for all who ask for the same clients with the same rows marked."""

    def __init__(self, table: Table) -> None:
        self._table, self._known = table, list[tuple[Mapping[str, ClientData], Batched]]()

    def __call__(self, world: World, clients: Mapping[str, ClientData]) -> Engine:
        for known, engine in self._known:
            if known.keys() == clients.keys() and all(_same(known[name], own) for name, own in clients.items()):
                return SideBySide(engine, self._table)
        made = local_engine(world, clients)
        assert isinstance(made, Batched)
        self._known.append((clients, made))
        return SideBySide(made, self._table)


def _same(one: ClientData, other: ClientData) -> bool:
    tables = ((one.rows, other.rows), (one.train, other.train), (one.forget, other.forget), (one.val, other.val))
    return one.source is other.source and all(torch.equal(a, b) for a, b in tables)


def together(
    whole: Config, configs: Mapping[str, Config], alone: Collection[str], out: Path, keep: Callable[..., None],
    moment: float | None, prepare: Callable[[Run], None] | None = None,
) -> int:  # fmt: skip
    """θ*, then the methods side by side, then those that are left alone; exits as `paper_block.block` does.

    `prepare` is given the run that trains θ*, before it does. A stack that fails as a whole, for want of memory say, is
    said, and its methods go on one by one.
    """
    if len(whole.seed_list) != 1:
        raise UnfedError("Methods run side by side for one seed; set seed to a single number.")
    if unknown := sorted({*alone} - {*configs, ""}):
        raise UnfedError(f"--alone names {unknown[0]!r}, which is none of the methods.{nearest(unknown[0], configs)}")
    base = _opened(whole, out / "train")
    if prepare is not None:
        prepare(base)
    world = base.world(whole.seed_list[0])
    if world.choice.name != "batched":
        raise UnfedError(
            "Only the batched engine stacks clients, and this world has another; set engine.name to batched, or leave"
            " --together out."
        )
    base.only = frozenset()
    ended = outcome_of(base, watched_until(Watch(), moment))
    print(f"{now()} θ*: {ended.said}", flush=True)
    if ended.code:
        return ended.code
    table, at_once = Table(world.device), Deadline(Watch(), lambda: True)
    spent = (lambda: False) if moment is None else (lambda: time.monotonic() >= moment)
    shared, codes = replace(world, engines=SharedEngines(table)), dict[str, int]()

    def opened(label: str, own: World) -> Run:
        run = _opened(configs[label], out / label, own)
        take_training(run, base)
        if not run.trained(world.seed):  # hours of a machine that is lent once
            raise UnfedError(f"{run.folder.path} does not take over what {base.folder.path} has trained; remove it.")
        return run

    def work(label: str, run: Run, watch: Watch, beside: Sequence[str] = ()) -> int:
        started, ended = time.monotonic(), outcome_of(run, watch)
        if ended.code != 130 or watch is not at_once:
            print(f"{now()} {label}: {ended.said}, {time.monotonic() - started:.0f} s", flush=True)
            keep(run, beside=beside)
        codes[label] = ended.code
        return ended.code

    with process_as_before():
        world.settle()  # each run leaves the process as it found it, and others are still at work
        runs = {label: opened(label, shared) for label in configs if label not in alone}
        # Beginnings differ; once all stand before round 1, their rounds go in step, and one width is compiled.
        new = [label for label, run in runs.items() if not _begun(run)]
        failed = [label for label in new if not spent() and work(label, runs[label], at_once) == 1]
        if spent():  # a beginning may take minutes
            print(f"{now()} the budget is spent; the same command goes on", flush=True)
            return 130
        stacked = [label for label in runs if label not in failed]
        try:
            in_step = Watch() if moment is None else Deadline(Watch(), passed_in_step(table, moment))
            table.run([partial(work, label, runs[label], in_step, stacked) for label in stacked])
        except Exception as error:
            print(f"{now()} the stack: failed: {type(error).__name__}: {error}; one by one", flush=True)
            alone, codes = {*alone, *stacked}, {label: codes[label] for label in failed}
    for label in configs:
        if label in alone and 130 not in codes.values():
            work(label, opened(label, world), watched_until(Watch(), moment))
    return max(codes.values(), default=0)


def passed_in_step(table: Table, moment: float) -> Callable[[], bool]:
    """Whether a moment has passed, decided once for all who were answered together.

    They end their rounds one after another; the first to stop by the clock would leave a narrower stack to the others,
    which must be compiled for the one round that they are ahead.
    """

    @lru_cache(1)
    def decided(turn: int) -> bool:
        return time.monotonic() >= moment

    return lambda: decided(table.turns)


def gathered(out: Path, labels: Collection[str]) -> Run:
    """The run that trained θ*, with what these methods left in folders of their own: an analysis takes one folder."""
    whole = Run.open(out / "train")
    for label in labels:
        if (out / label / "run.json").exists():
            take_results(whole, Run.open(out / label))
    return whole


def take_results(run: Run, source: Run) -> list[str]:
    """Take over what methods have left in a run that began at the same θ*.

    Those that this run has begun itself are left out; it gives the labels of the others.
    """
    both = [_trained(run, seed) for seed in run.config.seed_list], [_trained(source, s) for s in run.config.seed_list]
    if both[0] != both[1] or None in both[0]:
        return []
    with run.folder.lock() as free:
        if not free:
            return []
        run.folder.cut_back()
        jobs = [job for job, _ in source.jobs() if job.request is not None and run.folder.saved(job) is None]
        return [job.label for job in jobs if take_job(run, source, job)]


def _trained(run: Run, seed: int) -> str | None:
    """The fingerprint of a run's θ*, once that is trained."""
    return run.folder.came_out(run.training_job(seed))


def _begun(run: Run) -> bool:
    """Whether the method of a run has been saved at least once."""
    return any(run.folder.saved(job) is not None for job, _ in run.jobs() if job.request is not None)


def _opened(config: Config, folder: Path, world: World | None = None) -> Run:
    """The run of a config, new or begun before, in a world that is built already if there is one."""
    own = None if world is None else replace(world, config=config)
    run = Run.open(folder) if (folder / "run.json").exists() else Run.create(config, folder, own)
    if run.config != config:
        raise UnfedError(f"{folder} holds a run of another config; give --out a new folder.")
    if own is not None:
        run.use(own)
    refuse_revised(run, () if own is None else config.methods.run)  # without a world it trains θ* alone
    return run
