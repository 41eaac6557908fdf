"""A population: N models of each kind, under N training seeds.

They are kept as what they say about the same rows.

    config, N ─► cohorts of seeds ─► θ* ─► Retrain, and every method of the config ─► logits/KIND/SEED.safetensors

One model beside one Retrain says nothing about how sure a number is. What does, a distribution over training seeds on
either side, is computed from this folder (`population/`). Killed at any moment it goes on where it was saved; asked for
more models or another method, it does what is missing. Several processes may work in one folder: each takes a cohort
that no other is at, by a lock that ends with its process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed import plugins, rng
from unfed.config import revisions
from unfed.config.config import Config, differences
from unfed.data import ClientData, Request
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.measures.evaluator import Evaluator
from unfed.measures.population import store
from unfed.measures.population.store import BEFORE, RETRAIN, About, Population
from unfed.measures.undo.scene import View
from unfed.methods import Method
from unfed.model.params import Params
from unfed.runs import offers as lineage
from unfed.runs.description import hardware, rounds_of, versions
from unfed.runs.simulated import simulated
from unfed.runs.world import World, cores, process_as_before
from unfed.studies.cohort import Cohort, Said

RETAIN_ROWS = 2000
"""How many retained rows every model is asked about, at most."""
EARLIER = (1, 2, 3, 4, 6, 8, 10, 12, 14)
"""Sixteenths of its rounds after which Retrain is kept too: early, where accuracy moves most, they lie closer."""
TOGETHER = {"cpu": 8, "cuda": 128}
"""How many seeds a cohort has, at most: all in memory at once; on a CPU, processes share cohorts out."""
UNREAD = ("name", "device", "evaluation", "checkpoint", "gate", "seed")
"""What of a config changes no model, or is said elsewhere."""
ASIDE = (*UNREAD, "methods.run", "data.root")
"""The same, and where the data lies, where a config is compared with another key by key."""


def quiet(kind: str, round: int, rounds: int) -> None:
    """Say nothing about how far it is."""


def digest_of(config: Config) -> str:
    """SHA-256 of what the models depend on, the list of methods aside: each has its own files."""
    values = {name: value for name, value in config.to_json().items() if name not in UNREAD}
    values["methods"] = {name: value for name, value in values["methods"].items() if name != "run"}
    values["base"] = config.seed_list[0]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def of_another(about: About, config: Config) -> str | None:
    """ "another config (training.lr 0.1 instead of 0.3)": what a population is of, if not of this one.

    A key that was added since the population was begun is at its default in it. Of methods that it has no models of,
    anything may be said.
    """
    if about.config == digest_of(config):
        return None
    if not about.stated:
        return "another config"
    told = differences(about.stated, config.to_json(), ASIDE, about.kinds)
    base, wanted = Config.kept(about.stated).seed_list[0], config.seed_list[0]
    told += [] if base == wanted else [f"seed {base} instead of {wanted}"]
    return f"another config ({'; '.join(told)})" if told else None


@dataclass(frozen=True)
class Manner:
    """How a population is trained; whatever is chosen here, its models are the same."""

    together: bool = True
    """False is one federation after another: the same to the last bits, more slowly."""
    processes: int | None = 1
    """Each takes a cohort that no other is at. None is one per core where each computes on one thread of the CPU."""


def populate(
    config: Config,
    models: int,
    folder: str | Path,
    said: Said = quiet,
    manner: Manner = Manner(),  # noqa: B008 (frozen)
) -> Population:
    """Train what is missing of a population with so many models of each kind."""
    if manner.processes is not None and manner.processes < 1:
        raise UnfedError(f"--processes is at least 1, not {manner.processes}.")
    if (manner.processes or 1) > 1 and config.code():
        raise UnfedError("Code of your own runs in one process only; leave --processes out.")
    checked(config, models)
    plugins.permit(config.code())
    with process_as_before():
        world = simulated(config, config.seed_list[0])
        return _shared_out(world, models, Path(folder), said, manner)


def _shared_out(world: World, models: int, where: Path, said: Said, manner: Manner) -> Population:
    """The work of this process and of those that help it."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads half-way
    told = world.config.to_json(), models, str(where), manner
    count = at_once(world, models) if manner.processes is None else manner.processes
    helpers = [spawn.Process(target=_help, args=told, daemon=True) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    try:
        found = _work(world, models, where, said, manner)
        for helper in helpers:
            helper.join()
        # What a helper left undone is done here, so that its reason is raised here.
        return _work(world, models, where, said, manner) if helpers else found
    finally:
        for helper in helpers:
            helper.terminate()
            helper.join()


def at_once(world: World, models: int) -> int:
    """How many processes suit.

    One per core that has a cohort, where each computes on one thread of the CPU.
    """
    if world.device.type != "cpu" or world.threads != 1 or world.config.code():
        return 1
    return min(cores(), len(_cut(range(models), TOGETHER["cpu"])))


def _help(config: dict[str, Any], models: int, folder: str, manner: Manner) -> None:
    """In another process: take cohorts until none is left that nobody is at."""
    with contextlib.suppress(UnfedError, KeyboardInterrupt):
        read = Config.kept(config)
        _work(simulated(read, read.seed_list[0]), models, Path(folder), _while_wanted, manner)


def _while_wanted(kind: str, round: int, rounds: int) -> None:
    """End with the process that asked for help, however that ended.

    Its cohort is gone on with by the next command.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt


def _work(world: World, models: int, where: Path, said: Said, manner: Manner) -> Population:
    """Train what is missing and nobody else is at."""
    config = world.config
    labels, base = checked(config, models), world.seed
    methods = {label: config.method(label) for label in labels}
    for label, method in methods.items():
        method.check(world.template.module)
        lineage.welcome(config, label, config.requests()[0], ())
    rows = RowGroups.of(world, config.requests()[0])
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = _about(world, methods, rows, range(base, base + models))
    with presence.held(where, "begin", wait=-1):
        population = _begun(where, config, about, rows)
    for seeds in population.about.cohorts:
        if any(seed in about.seeds for seed in seeds):
            place = where / "state" / str(seeds[0])
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            with presence.held(place, "work") as free:
                if free:
                    _cohort(population, Cohort(world, seeds, where, manner.together), methods, rows, said)
    return store.load(where)


def missing(population: Population, config: Config, models: int) -> int:
    """How many of the models that were asked for are not there, because another process is at them."""
    seeds = set(range(config.seed_list[0], config.seed_list[0] + models))
    return sum(len(seeds - set(population.done(kind))) for kind in (BEFORE, *checked(config, models)))


def checked(config: Config, models: int) -> list[str]:
    """The labels of the methods, Retrain first; or the sentence that says what no population can be of."""
    if models < 2:
        raise UnfedError(f"A population of {models} says nothing about spread; ask for at least 2 --models.")
    if len(config.request) != 1:
        raise UnfedError(f"A population is of one request, the config has {len(config.request)}; leave one [request].")
    if config.seeds.training is not None:
        raise UnfedError("seeds.training is fixed, so all models would be the same one; leave it out.")
    if config.training.patience or config.unlearning.patience or config.training.keep_model != "last":
        raise UnfedError("A population trains all rounds and keeps the last model; leave patience and keep_model out.")
    if config.requests()[0].deleted:
        raise UnfedError("The owners of the forgotten rows have deleted them, so no model can be asked about them.")
    others = [label for label in config.methods.build() if label != RETRAIN]
    if BEFORE in others:
        raise UnfedError(f"A method cannot be labelled {BEFORE!r} in a population; that is the model before.")
    if config.methods.name_of(RETRAIN) != RETRAIN:
        raise UnfedError(f"The label {RETRAIN!r} stands for another method here; everything is compared with Retrain.")
    return [RETRAIN, *others]


class RowGroups:
    """The rows that every model is asked about, by group."""

    def __init__(self, views: Mapping[str, View], columns: Mapping[str, Tensor]) -> None:
        self.views, self.columns = views, columns

    @staticmethod
    def of(world: World, request: Request) -> RowGroups:
        """D_u, a fixed draw from D_r, the test data, and stamped test rows where there are some."""
        found = Evaluator(world.yardstick, world.scoped, [request]).views()
        views = {group: found[group] for group in ("forget", "retain", "test", "backdoor")}
        retain, forget = views["retain"], views["forget"]
        if forget is None or len(forget) == 0:
            raise UnfedError(f"Request {request.id!r} takes no row out, so there is nothing to forget; ask for others.")
        if views["test"] is None:
            raise UnfedError("A population needs held-out data; set data.test_size, or use a data set with a test set.")
        assert retain is not None
        some = rng.first(rng.key(world.seeds.evaluation, "population"), len(retain), RETAIN_ROWS)
        views["retain"] = View(retain.source, retain.rows[some.to(retain.rows.device)])
        known = {group: view for group, view in views.items() if view is not None}
        columns = {}
        for group, view in known.items():
            labels = view.source.labels
            columns[f"labels/{group}"] = labels[view.rows.to(labels.device)].cpu()
            columns[f"rows/{group}"] = view.rows.cpu()
        return RowGroups(known, columns | _owners(world.scoped([request]).values()))

    @torch.no_grad()
    def logits(self, world: World, params: Params) -> dict[str, Tensor]:
        """What a model says about every row."""
        net, batch, found = world.template.bind(params), world.config.evaluation.batch, {}
        for group, view in self.views.items():
            parts = [net(view.source.fetch(rows, None)[0]).float().cpu() for rows in torch.split(view.rows, batch)]
            found[group] = torch.cat(parts)
        return found


def _owners(clients: Iterable[ClientData]) -> dict[str, Tensor]:
    """Whose each forgotten row is, and where it stands there: how its owner knows it."""
    holders = list(clients)
    places = [c.view("forget") for c in holders]
    owner = [torch.full((len(place),), k) for k, place in enumerate(places)]
    return {"client/forget": torch.cat(owner), "position/forget": torch.cat(places)}


def _about(world: World, methods: Mapping[str, Method], rows: RowGroups, seeds: Sequence[int]) -> About:
    config = world.config
    return About(
        name=config.name,
        config=digest_of(config),
        request=config.requests()[0].id,
        seeds=tuple(seeds),
        kinds=(BEFORE, *methods),
        groups={group: len(view) for group, view in rows.views.items()},
        classes=world.classes,
        revisions=revisions.of(method.name for method in methods.values()),
        versions=versions(),
        hardware=hardware(world.device, world.threads),
        cohorts=_cut(seeds, TOGETHER.get(world.device.type, TOGETHER["cpu"])),
        stated=config.to_json(),
    )


def _cut(seeds: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(seeds[i : i + size]) for i in range(0, len(seeds), size))


def _begun(where: Path, config: Config, wanted: About, rows: RowGroups) -> Population:
    """The population of a folder, new or gone on with.

    More seeds or methods may be asked for than it has.
    """
    if not (where / "population.json").exists():
        return store.create(where, wanted, rows.columns)
    there = store.load(where)
    old = there.about
    other = of_another(old, config)
    if other or dict(old.groups) != dict(wanted.groups):
        raise UnfedError(f"{where} is a population of {other or 'other rows'}; choose another folder with --out.")
    stale = [name for name, number in old.revisions.items() if wanted.revisions.get(name, number) != number]
    if stale:
        raise UnfedError(
            f"{where} was trained by an earlier edition of {' and '.join(stale)}, so its models would not be alike;"
            " choose another folder with --out."
        )
    more = [seed for seed in wanted.seeds if seed not in old.seeds]
    size = max(len(cohort) for cohort in wanted.cohorts)
    kinds = tuple(dict.fromkeys((*old.kinds, *wanted.kinds)))
    whole = replace(
        old,
        seeds=(*old.seeds, *more),
        kinds=kinds,
        revisions={**old.revisions, **wanted.revisions},
        cohorts=(*old.cohorts, *_cut(more, size)),
    )
    return there if whole == old else store.describe(where, whole)


def _cohort(population: Population, cohort: Cohort, methods: Mapping[str, Method], rows: RowGroups, said: Said) -> None:
    """Make what is missing of one cohort."""
    missing = [kind for kind in (BEFORE, *methods) if not set(cohort.seeds) <= set(population.done(kind))]
    if not missing:
        return
    recorded = {label: m for label, m in methods.items() if label in missing and "history" in m.needs}
    trained = cohort.trained(recorded, said)

    def keep(kind: str, models: Sequence[Params]) -> None:
        for seed, own in zip(cohort.seeds, models, strict=True):
            store.put(population, kind, seed, rows.logits(cohort.world, own))

    early = {rounds_of(cohort.config, RETRAIN, methods[RETRAIN]) * part // 16 for part in EARLIER} - {0}

    def on_the_way(round: int, models: list[Params]) -> None:
        if round in early:
            keep(f"{RETRAIN}@{round}", models)

    for kind in missing:
        on_way = on_the_way if kind == RETRAIN else None
        keep(kind, trained if kind == BEFORE else cohort.unlearned(kind, said, on_way))
        if kind != BEFORE:
            cohort.forget_states(kind)
