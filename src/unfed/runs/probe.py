"""Undoing, measured on the models of a run: which models, whose data, and where the numbers are kept.

    the folder's models ─► scene (the world's rows) ─► flip, lift, realign, resurface, relearn, … ─► undo/…json

This is all that the measurements (`measures.undo`) know of a run. The file of a model is written after every piece,
and what was measured already, on the same models with the same effort, is not measured again: a probe that was stopped
goes on. Files hold no date and no duration: the same run gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from unfed import records, storage
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.folder.folder import WITHOUT
from unfed.folder.layout import Description, Undoing, out_of_sight
from unfed.folder.purge import RecordedRun
from unfed.folder.study_results import SCHEMA, Target, file_of, model_digest, read, targets
from unfed.measures.undo.flip import Knowledge
from unfed.measures.undo.measure import (
    MEASUREMENTS,
    UNTRIED,
    Effort,
    Found,
    Going,
    ProbedModels,
    Shared,
    turned_back,
    undo,
)
from unfed.measures.undo.refits import Grid
from unfed.measures.undo.scene import Budget, Scene, View
from unfed.model.params import Params
from unfed.records import Plain
from unfed.requests.entry import Job
from unfed.runs.world import World, local_evaluator, process_as_before
from unfed.values import as_json

RETRAIN = "retrain"
QUICK = Grid(rows=(100,), budget=Budget(stops=(20,)), singles=2, restarts=1)


@dataclass(frozen=True)
class Step:
    """What a probe is about to do, for its watcher."""

    target: str
    """Whose model: seed, request and method."""
    who: str = ""
    """This model, Retrain's or the one before; nothing while the model is only turned back."""
    measurement: str = ""
    number: int = 0
    of: int = 1


class Probed(RecordedRun, Protocol):
    """A run whose models can be probed."""

    description: Description

    def permit(self) -> None: ...

    def one_seed(self, seed: int | None) -> int: ...

    def world(self, seed: int) -> World: ...

    def model(self, seed: int | None = None, request: str | None = None, method: str | None = None) -> Params: ...

    def no_model(self, job: Job) -> str: ...


def chosen(run: Probed, seed: int | None, request: str | None, method: str | None) -> list[Target]:
    """Those that are meant, or the sentence that says why there are none; Retrain only where it is named."""
    if seed is not None:
        run.one_seed(seed)
    found = [t for t in targets(run.folder, run.config) if seed is None or t.job.seed == seed]
    ids = list(dict.fromkeys(str(target.job.request) for target in found))
    if not found:
        raise UnfedError("Nothing was unlearned in this run yet, so there is nothing to undo; `unfed forget` does it.")
    if request is not None and request not in ids:
        raise UnfedError(f"This run has no request {request!r} that a method has served; it has {listed(ids)}.")
    found = [target for target in found if request is None or target.job.request == request]
    labels = list(dict.fromkeys(target.job.label for target in found))
    if method is not None and method not in labels:
        raise UnfedError(f"No model of this run was left by {method!r} there; it has those of {listed(labels)}.")
    only = [method] if method is not None else [label for label in labels if label != RETRAIN] or labels
    found = [target for target in found if target.job.label in only]
    unpurged = [target for target in found if not target.requests[-1].purged]
    if not unpurged:
        raise UnfedError(f"Request {found[0].job.request!r} was purged, so no probe may train on its rows.")
    return unpurged


def left(run: Probed) -> list[Target]:
    """The models that a method left on a request that is not purged."""
    return [target for target in targets(run.folder, run.config) if not target.requests[-1].purged]


def probe(
    run: Probed,
    seed: int | None = None,
    request: str | None = None,
    method: str | None = None,
    effort: Effort | None = None,
    said: Callable[[Step], None] = lambda step: None,
) -> list[Undoing]:
    """Measure how far these models can be undone, keep it in the run's folder, and hand it back."""
    run.permit()
    if why := elsewhere(run):
        raise UnfedError(why)
    found = chosen(run, seed, request, method)
    there = [target for target in found if run.folder.model_file(target.job).exists()]
    if not there or (request is not None and method is not None and len(there) < len(found)):
        missing = next(target for target in found if target not in there)
        if grave := run.folder.buried(missing.job):
            raise UnfedError(f"The model {grave.sentence(run.folder.path)}; {_instead(run)}.")
        raise UnfedError(run.no_model(missing.job))
    with process_as_before():
        return list(_probed(run, there, effort or effort_of(run), said))


def _instead(run: Probed) -> str:
    """What can be probed where the models that were meant are gone."""
    for job in (target.job for target in left(run) if run.folder.model_file(target.job).exists()):
        return f"there is `{run.command('probe', '--request', job.request, '--method', job.label)}` to probe"
    return "there is nothing to probe, but what the next request leaves can be"


def first_look(run: Probed, method: str) -> Undoing | None:
    """What turning a method's model back brings, on the last request of a comparison.

    It is kept in the folder. Whatever was measured of these models already is handed back instead; None where the model
    is not there.
    """
    run.permit()
    asked = [Job(run.config.seed_list[0], request.id, method) for request in run.config.requests()[-1:]]
    found = [target for target in targets(run.folder, run.config) if target.entry is None and target.job in asked]
    if not found or not run.folder.model_file(found[0].job).exists():
        return None
    with process_as_before():
        return next(_probed(run, found, None))


def effort_of(
    run: Probed,
    quick: bool = False,
    rows: tuple[int, ...] = (),
    stops: tuple[int, ...] = (),
    rates: tuple[float, ...] = (),
) -> Effort:
    """The run's own rate, a tenth of it, and the whole grid or a coarse one.

    Of the grid's fits the rows, stops and rates that are given are taken in place of its own.
    """
    lr = run.config.training.lr
    whole = Effort(lr=lr, relearn_lr=lr / 10)
    effort = replace(whole, rounds=2, grid=QUICK) if quick else whole
    grid = effort.grid
    budget = replace(grid.budget, stops=stops or grid.budget.stops)
    return replace(effort, grid=replace(grid, rows=rows or grid.rows, rates=rates or grid.rates, budget=budget))


def elsewhere(run: Probed) -> str | None:
    """Why a run cannot be probed here, if its data lies with someone else."""
    there = "probe a simulation of the same config (`unfed run`)"
    if run.description.app:
        own = "override probes() of UnlearnFedAvg"
        own = own if run.description.engine == "nvflare" else "give Unlearn undo=Probes(…)"
        there = f"{own} before the next request"
    return out_of_sight(run.description, "probed", there, "call unfed.measures.undo.undo with your own rows")


def _probed(
    run: Probed, found: Sequence[Target], effort: Effort | None, said: Callable[[Step], None] = lambda step: None
) -> Iterator[Undoing]:
    """What is known of these models, measured where it is not; without an effort nothing is fitted."""
    scenes = _Scenes(run)
    for target in found:
        name = target.job.name
        said(Step(name))
        world = run.world(target.job.seed)
        world.settle()
        about = _about(run, world, target, effort)
        stored = read(run.folder, target.job)
        same = [key for key in about if effort is not None or key != "effort"]
        if stored is not None and any(stored.to_json().get(key) != about[key] for key in same):
            stored = None
        if stored is not None and (effort is None or not _untried(stored.measured)):
            yield stored
            continue
        scene, shared, load = scenes.of(target)
        three = ProbedModels(
            load(target.job), _or_why(run, target.previous, load), _or_why(run, _retrain_of(target), load)
        )
        knowledge = _knowledge(run, world, target)
        kept = partial(_keep, run, target, effort, about)

        def step(who: str, measurement: str, number: int, of: int, name: str = name) -> None:
            said(Step(name, who, measurement, number, of))

        if effort is None:
            found_out = turned_back(scene, three, knowledge)
            kept(found_out)
        else:
            going = Going(step, kept, None if stored is None else dict(stored.measured))
            found_out = undo(scene, three, knowledge, effort, shared, going)
        yield records.read(Undoing, {**about, "measured": as_json(found_out)}, f"The undoing of {name}")


def _keep(run: Probed, target: Target, effort: Effort | None, about: dict[str, Any], found: Found) -> None:
    """Write what was found out so far, unless what it is about was purged or replaced meanwhile."""
    with run.folder.lock("requests", wait=True):  # a purge holds it while it says what goes
        there = [t for t in targets(run.folder, run.config) if (t.job, t.previous) == (target.job, target.previous)]
        if not there or _about(run, run.world(target.job.seed), there[0], effort) != about:
            raise UnfedError(f"While {target.job.name} was probed, a model of it was purged or replaced; probe again.")
        storage.write_json(file_of(run.folder, target.job), {**about, "measured": as_json(found)})


def _untried(measured: Plain) -> bool:
    """Whether a probe was stopped before all of it was tried."""
    return any(pieces.get(name, UNTRIED) == UNTRIED for pieces in measured.values() for name in MEASUREMENTS)


class _Scenes:
    """The data around a request, and what its methods have in common.

    They are kept while its targets come one after another.
    """

    def __init__(self, run: Probed) -> None:
        self._run = run
        self._key: tuple[int, tuple[Request, ...]] | None = None

    def of(self, target: Target) -> tuple[Scene, Shared, Callable[[Job], Params]]:
        key = target.job.seed, target.requests
        if key != self._key:
            self._key, self._shared = key, Shared()
            self._loaded: dict[Job, Params] = {}
            self._scene = scene_of(self._run.world(target.job.seed), target.requests)
        return self._scene, self._shared, self._load

    def _load(self, job: Job) -> Params:
        if job not in self._loaded:
            self._loaded[job] = self._run.model(*job.key)
        return self._loaded[job]


def scene_of(world: World, requests: Sequence[Request]) -> Scene:
    """The world's data as an attacker and a judge see it, under the scope of these requests."""
    views: dict[str, View | None] = local_evaluator(world, requests).views()
    retain, forget = views["retain"], views["forget"]
    assert retain is not None and forget is not None
    return Scene(
        world.template,
        retain,
        forget,
        views["test"],
        views["backdoor"],
        world.fresh,
        seed=world.seeds.evaluation,
        batch=world.config.evaluation.batch,
        stack=world.choice.name == "batched",
        way=world.yardstick.way,
        classes=tuple(dict.fromkeys(c for request in requests for c in request.classes)),
    )


def _retrain_of(target: Target) -> Job:
    return Job(target.job.seed, target.job.request, RETRAIN)


def _or_why(run: Probed, job: Job, load: Callable[[Job], Params]) -> Params | str:
    if run.folder.model_file(job).exists():
        return load(job)
    if grave := run.folder.buried(job):
        return f"the model {job.name} was purged for request {grave.request}"
    if job.label == RETRAIN:
        return f"this run has no Retrain of request {job.request}"
    return f"the model {job.name} is no longer there"


def _about(run: Probed, world: World, target: Target, effort: Effort | None) -> dict[str, Any]:
    models = {"unlearned": target.job, "retrain": _retrain_of(target), "before": target.previous}
    known = _knowledge(run, world, target)
    perturbed = known.perturbed
    how = None if perturbed is None else {"how": perturbed.how, "layers": [c.name for c in perturbed.choices]}
    if how is not None and known.inverse is not None and known.inverse.seed is not None:
        how["drawn"] = "from the request's seed"
    return {
        "schema": SCHEMA,
        "seed": target.job.seed,
        "request": target.job.request,
        "method": target.job.label,
        "title": known.title,
        "perturbed": how,
        "effort": None if effort is None else json.loads(json.dumps(asdict(effort))),
        "models": {who: model_digest(run.folder, job) for who, job in models.items()},
        **({"over": over} if len(over := [r.id for r in target.requests if not (r.purged or r.deleted)]) > 1 else {}),
        **({WITHOUT: out} if (out := [r.id for r in target.requests if r.purged or r.deleted]) else {}),
    }


def _knowledge(run: Probed, world: World, target: Target) -> Knowledge:
    """What the method says of itself; one of several variants goes by its label."""
    label, config = target.job.label, run.config
    asked = config if target.entry is None else target.entry.how.on(config, label)
    method = asked.method(label).for_requests(target.requests)
    begun_as = str(target.job.request) if target.entry is None else target.entry.names[-1]
    title = method.title if label == method.name else label
    return Knowledge(title, method.perturbed(world.template.module), world.seeds.request(begun_as))
