"""Harder forget sets: what a method leaves behind where leaving is not the whole story.

    backdoor             a client plants a trigger and leaves                        harm: stamped images that obey
    backdoor-half        only half of the rows it poisoned are named                 harm: the same
    backdoor-one-of-two  two plant the same trigger, one of them leaves              harm: the same
    confusion            a client swaps labels of two classes and leaves             harm: one read as the other
    confusion-half       only half of the rows it swapped are named                  harm: the same
    camouflage           one plants, another hides the trigger, and that one leaves  harm: stamped images that obey
    memorised            the rows leave that the models had memorised most           harm: Forget above Retrain's

Each case is a population of its own, and the cohorts of all are one grid: N models before, N Retrains and N of every
method, so a number has a spread. Harm is in percent of held-out rows (points for `memorised`), and a method *fails* a
case where the mean over models is above a bound. Retrain is judged like the others: exact unlearning of what was named
leaves what was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unfed import rng
from unfed.config.config import Config
from unfed.config.tables import PoisonConfig
from unfed.data import SampleList, TensorSource
from unfed.errors import UnfedError, listed, nearest
from unfed.measures.population import store
from unfed.measures.population.store import BEFORE, RETRAIN, Population, correct, most_memorised
from unfed.runs.simulated import simulated
from unfed.runs.world import process_as_before
from unfed.studies import grid
from unfed.studies.grid import Said, Workers, quiet
from unfed.studies.population import at_once, begun

BOUND = 10.0
"""Above this many percent (or points) of harm a method fails a case."""
MEMORISED = 0.2
"""The share of a client's rows that the case `memorised` takes out."""
KNOWN = "memorised-known"
"""The population that tells which rows these are."""
Harm = NDArray[np.float64]


@dataclass(frozen=True)
class HarmLeft:
    """What the models of one kind leave behind in one case."""

    case: str
    kind: str
    models: int
    mean: float
    std: float
    fails: bool
    test: float
    """Accuracy on held-out rows, in percent: a model that is ruined does no harm either."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StressCase:
    """How a config is changed, and how harm is read from its population."""

    title: str
    change: Callable[[Config], dict[str, Any]]
    """The tables `poison` and `request` of the case."""
    harm: Callable[[Population, str, PoisonConfig | None], Harm]


# --- what is harmful --------------------------------------------------------------------------------------------------


def obeyed(population: Population, kind: str, poison: PoisonConfig | None) -> Harm:
    """The share of stamped held-out images that are read as the attacker's class."""
    return correct(population, kind, "backdoor")


def confusions(population: Population, kind: str, poison: PoisonConfig | None) -> Harm:
    """The share of held-out rows of two classes that are read as the other one: cm[a][b] + cm[b][a]."""
    assert poison is not None
    (a, b), labels = poison.classes, population.labels("test")
    read = population.logits(kind, "test").argmax(-1)
    wrong = ((read == b) & (labels == a)) | ((read == a) & (labels == b))
    found: Harm = 100.0 * wrong.sum(1) / np.isin(labels, (a, b)).sum()
    return found


def remembered(population: Population, kind: str, poison: PoisonConfig | None) -> Harm:
    """By how many points more of the forgotten rows are read right than Retrain reads on average."""
    found: Harm = correct(population, kind, "forget") - correct(population, RETRAIN, "forget").mean()
    return found


# --- the cases --------------------------------------------------------------------------------------------------------


def _poison(config: Config, **changes: Any) -> dict[str, Any]:
    """The config's own poisoning, or the default one, with changes."""
    own = (config.poison or PoisonConfig()).model_dump(mode="json")
    plain = own | {"kind": "backdoor", "colluders": [], "hidden_by": None}
    return plain | changes


def _another(config: Config) -> str:
    """A client that is not the one who poisons."""
    first = (config.poison or PoisonConfig()).client
    return next(str(k) for k in range(config.partition.clients + 1) if str(k) != first)


def _leaves(poison: Mapping[str, Any]) -> dict[str, Any]:
    return {"poison": poison, "request": [{"id": "leaves", "clients": [poison["client"]]}]}


def _half(config: Config, poison: Mapping[str, Any]) -> dict[str, Any]:
    """The request that names every second row that a client poisoned, by a draw."""
    whole = _leaves(poison)
    world = simulated(changed(config, whole), config.seed_list[0])
    clean, source = world.dataset.train.labels, world.clients[0].source
    assert isinstance(source, TensorSource)
    touched = source.labels != clean
    client = next(c for c in world.clients if c.name == poison["client"])
    positions = client.train[touched.cpu()[client.rows[client.train]]]
    order = rng.order(rng.key(world.seeds.partition, "half of the poisoned rows"), len(positions))
    named = positions[order[: len(positions) // 2]].sort().values.tolist()
    return whole | {"request": [{"id": "half", "samples": _listed([(client.name, p) for p in named])}]}


def _listed(rows: Sequence[tuple[str, int]]) -> dict[str, str]:
    """A sample list as a config keeps it."""
    text = "client,position\n" + "".join(f"{client},{position}\n" for client, position in rows)
    read = SampleList("unfed stress", text)
    return {"source": read.source, "sha256": read.sha256, "text": read.text}


def _hidden(config: Config) -> dict[str, Any]:
    hider = _another(config)
    poison = _poison(config, kind="camouflage", hidden_by=hider)
    return {"poison": poison, "request": [{"id": "hider-leaves", "clients": [hider]}]}


CASES: dict[str, StressCase] = {
    "backdoor": StressCase("a client plants a backdoor and leaves", lambda c: _leaves(_poison(c)), obeyed),
    "backdoor-half": StressCase("only half of what it poisoned is named", lambda c: _half(c, _poison(c)), obeyed),
    "backdoor-one-of-two": StressCase(
        "one of two who planted it leaves", lambda c: _leaves(_poison(c, colluders=[_another(c)])), obeyed
    ),
    "confusion": StressCase(
        "a client swaps two classes and leaves", lambda c: _leaves(_poison(c, kind="confusion")), confusions
    ),
    "confusion-half": StressCase(
        "only half of what it swapped is named", lambda c: _half(c, _poison(c, kind="confusion")), confusions
    ),
    "camouflage": StressCase("who hid another's backdoor leaves", _hidden, obeyed),
    "memorised": StressCase("the most memorised rows of a client leave", lambda c: {}, remembered),
}


def changed(config: Config, tables: Mapping[str, Any]) -> Config:
    """The config with other tables, and methods that can serve its request."""
    values = {**config.to_json(), **tables}
    made = Config.kept(values)
    (request,) = made.requests()
    able = [label for label in made.methods.build() if made.method(label).serves(request.kind)]
    return Config.kept({**values, "methods": {**values["methods"], "run": able}})


@process_as_before()
def stress(
    config: Config,
    models: int,
    folder: str | Path,
    cases: Sequence[str],
    bound: float = BOUND,
    said: Said = quiet,
    jobs: Workers | None = 1,
) -> list[HarmLeft]:
    """Train what is missing of every case, and say what is left behind, by case and kind of model.

    Args:
        config: What the cases change: `poison` and `request`.
        models: How many of each kind, per case.
        folder: Where the cases' populations are, or where they are to be.
        cases: Names of `CASES`.
        bound: Above this many percent of harm a method fails.
        said: Called after every round, with "CASE, KIND" as the kind.
        jobs: How many work at once, or a Ray cluster; None is one per core where each computes on one thread of the
            CPU.
    """
    if math.isnan(bound):
        raise UnfedError("--bound is the percentage of harm above which a method fails, not nan.")
    if not cases:
        raise UnfedError(f"No case was named; use {listed(CASES)}.")
    for name in cases:
        if name not in CASES:
            raise UnfedError(f"There is no case {name!r}; use {listed(CASES)}.{nearest(name, CASES)}")
    if config.partition.clients < 3:
        raise UnfedError("These cases take at least three clients: one poisons, one helps it, and one stays.")

    def trained(configs: Mapping[str, Config]) -> None:
        _trained(configs, models, Path(folder), said, jobs)

    own = {name: changed(config, CASES[name].change(config)) for name in cases if name != "memorised"}
    trained(own | ({KNOWN: _known(config)} if "memorised" in cases else {}))
    if "memorised" in cases:
        rows = _listed(most_memorised(store.load(Path(folder, KNOWN)), MEMORISED))
        own["memorised"] = changed(config, {"poison": None, "request": [{"id": "memorised", "samples": rows}]})
        trained({"memorised": own["memorised"]})
    found: list[HarmLeft] = []
    for name in cases:
        population = store.load(Path(folder, name))
        for kind in (kind for kind in population.about.kinds if kind in (BEFORE, RETRAIN, *own[name].methods.run)):
            harm = CASES[name].harm(population, kind, own[name].poison)
            mean, std = float(harm.mean()), float(harm.std(ddof=1))
            test = float(correct(population, kind, "test").mean())
            found.append(HarmLeft(name, kind, len(harm), mean, std, mean > bound, test))
    return found


def _trained(configs: Mapping[str, Config], models: int, folder: Path, said: Said, jobs: Workers | None) -> None:
    """Train what is missing of some cases' populations, all cohorts in one grid."""
    cells: list[grid.GridCell] = []
    for name, config in configs.items():
        world, left = begun(config, models, folder / name)
        cells += [replace(cell, work=_of_case, arguments=(name, cell.work, *cell.arguments)) for cell in left]
    if cells:
        grid.run(cells, at_once(world, len(cells), jobs), folder, said)
    for name, config in configs.items():
        population = store.load(folder / name)
        if any(len(population.done(kind)) < population.about.models for kind in (RETRAIN, *config.methods.run)):
            raise UnfedError(f"Another process is at {folder / name}; give the same command again when it is done.")


def _of_case(said: Said, case: str, work: Callable[..., None], *arguments: Any) -> None:
    """The work on a cell, with the case in what it says."""
    work(lambda kind, round, rounds: said(f"{case}, {kind}", round, rounds), *arguments)


def _known(config: Config) -> Config:
    """What tells which rows of a client models memorise: it leaves, and only Retrain forgets it."""
    client = (config.poison or PoisonConfig()).client
    whole = changed(config, {"poison": None, "request": [{"id": "leaves", "clients": [client]}]}).to_json()
    return Config.kept(whole | {"methods": {**whole["methods"], "run": [RETRAIN]}})
