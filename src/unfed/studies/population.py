"""A population: N models of each kind, under N training seeds.

They are kept as what they say about the same rows.

    config, N ─► cohorts of seeds ─► θ* ─► Retrain, and every method of the config ─► logits/KIND/SEED.safetensors

One model beside one Retrain says nothing about how sure a number is. What does, a distribution over training seeds on
either side, is computed from this folder (`population/`). Killed at any moment it goes on where it was saved; asked for
more models or another method, it does what is missing. Its cohorts are the cells of a grid, and several processes may
work in one folder: each takes a cohort that no other is at, by a lock that ends with its process.
"""

from __future__ import annotations

import hashlib
import json
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
from unfed.measures.population import store
from unfed.measures.population.store import BEFORE, RETRAIN, About, Population
from unfed.measures.undo.scene import View
from unfed.methods import Method, State
from unfed.model.params import Params
from unfed.runs import admission
from unfed.runs.description import hardware, rounds_of, versions
from unfed.runs.simulated import simulated
from unfed.runs.world import World, local_evaluator, process_as_before
from unfed.studies import grid
from unfed.studies.cohort import Cohort
from unfed.studies.grid import GridCell, Ray, Said, Workers, quiet

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
    shown = differences(about.stated, config.to_json(), ASIDE, about.kinds)
    base, wanted = Config.kept(about.stated).seed_list[0], config.seed_list[0]
    shown += [] if base == wanted else [f"seed {base} instead of {wanted}"]
    return f"another config ({'; '.join(shown)})" if shown else None


@process_as_before()
def populate(
    config: Config,
    models: int,
    folder: str | Path,
    said: Said = quiet,
    jobs: Workers | None = 1,
) -> Population:
    """Train what is missing of a population with so many models of each kind.

    Args:
        config: With one request; its seed is the first of the models' training seeds.
        models: How many of each kind.
        folder: Where the population is, or where it is to be.
        said: Called after every round.
        jobs: How many work at once, or a Ray cluster; None is one per core where each computes on one thread of the
            CPU. The models are the same bytes.
    """
    refuse_code_apart(config, jobs)
    where = Path(folder)
    world, cells = begun(config, models, where, jobs.gpus if isinstance(jobs, Ray) else 1)
    count = at_once(world, len(cells), jobs)
    given = cells if count != 1 else [replace(cell, arguments=(*cell.arguments, world)) for cell in cells]
    grid.run(given, count, where, said)
    return store.load(folder)


def begun(config: Config, models: int, where: Path, gpus: int = 1) -> tuple[World, list[GridCell]]:
    """Write down what a population is of; what is missing of it are cells, one per cohort of seeds.

    Several GPUs share a new population's seeds out.
    """
    labels = checked(config, models)
    plugins.permit(config.code())
    world = simulated(config, config.seed_list[0])
    methods = {label: config.method(label) for label in labels}
    for label, method in methods.items():
        method.check(world.template.module)
        admission.welcome(config, label, config.requests()[0], ())
    rows = RowGroups.of(world, config.requests()[0])
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = _about(world, methods, rows, range(world.seed, world.seed + models), gpus)
    with presence.held(where, "begin", wait=-1):
        population = _begun(where, config, about, rows)
    wanted = [seeds for seeds in population.about.cohorts if any(seed in about.seeds for seed in seeds)]
    shown = config.to_json(), labels, str(where)
    left = [seeds for seeds in wanted if any(not {*seeds} <= {*population.done(kind)} for kind in (BEFORE, *labels))]
    return world, [GridCell(f"{where.name}, seed {seeds[0]}", _train, (*shown, seeds)) for seeds in left]


def refuse_code_apart(config: Config, jobs: Workers | None) -> None:
    """Code is permitted to one process."""
    if jobs not in (None, 1) and config.code():
        raise UnfedError("Code of your own runs in one process only; leave --jobs and --workers out.")


def at_once(world: World, cells: int, wanted: Workers | None = None) -> Workers:
    """How many cells of this world are worked on at once."""
    alone = world.device.type == "cpu" and world.threads == 1 and not world.config.code()
    return grid.at_once(cells, alone, wanted, world.device.type == "cuda", world.threads or torch.get_num_threads())


def _train(
    said: Said,
    config: dict[str, Any],
    labels: Sequence[str],
    folder: str,
    seeds: tuple[int, ...],
    world: World | None = None,
) -> None:
    """Make what is missing of one cohort, unless another process is at it."""
    where, read = Path(folder), Config.kept(config)
    world = world or simulated(read, read.seed_list[0])
    population, rows = store.load(where), RowGroups.of(world, world.config.requests()[0])
    methods = {label: world.config.method(label) for label in labels}
    place = where / "state" / str(seeds[0])
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with presence.held(place, "work") as free:
        if free:
            _cohort(population, Cohort(world, seeds, where), methods, rows, said)


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


@dataclass(frozen=True, eq=False)
class RowGroups:
    """The rows that every model is asked about, by group."""

    views: Mapping[str, View]
    columns: Mapping[str, Tensor]

    @staticmethod
    def of(world: World, request: Request) -> RowGroups:
        """D_u, a fixed draw from D_r, the test data, and stamped test rows where there are some."""
        found = local_evaluator(world, [request]).views()
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


def _about(world: World, methods: Mapping[str, Method], rows: RowGroups, seeds: Sequence[int], gpus: int) -> About:
    config, most = world.config, TOGETHER.get(world.device.type, TOGETHER["cpu"])
    if world.device.type == "cuda":
        most = min(most, -(-len(seeds) // max(1, gpus)))
    return About(
        name=config.name,
        config=digest_of(config),
        request=config.requests()[0].id,
        seeds=tuple(seeds),
        kinds=(BEFORE, *methods),
        groups={group: len(view) for group, view in rows.views.items()},
        classes=world.classes,
        revisions=revisions.of((method.name for method in methods.values()), config.to_json()),
        versions=versions(),
        hardware=hardware(world.device, world.threads),
        cohorts=_cut(seeds, most),
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

    def on_the_way(round: int, states: list[State]) -> None:
        if round in early:
            keep(f"{RETRAIN}@{round}", [state.params for state in states])

    for kind in missing:
        on_way = on_the_way if kind == RETRAIN else None
        keep(kind, trained if kind == BEFORE else cohort.unlearned(kind, said, on_way))
        if kind != BEFORE:
            cohort.forget_states(kind)
