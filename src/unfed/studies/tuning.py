"""Fair tuning: every method gets the same number of trials, and none sees what it will be judged by.

    a trial     hyperparameters ─► K models of the population's first half unlearn with them
                drop     = Validation before − Validation after, in points, on the clients' held-out rows
                distance = mean over forgotten rows of |mean φ of these models − mean φ of the first half's Retrains|
    the best    the smallest distance among those whose drop is at most `evaluation.recovered_within`

The first trial is the method as the config has it, so what is chosen is never worse than that on what it is chosen by.
Test rows and the second half of the population are not looked at. With what was chosen all seeds unlearn, and are kept
in the population as METHOD-tuned.

Every method is a cell of a grid. A method that was tuned with the same budget and hyperparameters is not tuned again.

Tuned are the recovery's learning rate and the method's own numbers and switches, around what they are: rates and other
numbers from a tenth to ten times (a share ends at 1), whole numbers from half to twice. What a method records while the
model is trained cannot be changed afterwards, so of those that need history only the rate is tuned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from unfed import rng
from unfed.config.config import Config
from unfed.errors import UnfedError, extra
from unfed.folder import locks as presence
from unfed.measures.population import store
from unfed.measures.population.distances import margin
from unfed.measures.population.store import BEFORE, RETRAIN, Population
from unfed.model.params import Params
from unfed.runs.simulated import simulated
from unfed.runs.world import World, process_as_before
from unfed.studies import grid
from unfed.studies.cohort import Cohort
from unfed.studies.grid import GridCell, Said, Workers, quiet
from unfed.studies.population import RowGroups, at_once, of_another, refuse_code_apart
from unfed.values import is_measured

Values = Mapping[str, Any]
SPOILED = 1000.0
"""Added to the drop of a trial that spoils the model: it loses against every other that does not."""


@dataclass(frozen=True)
class TuningBudget:
    """What every method gets."""

    trials: int = 20
    models: int = 4


@dataclass(frozen=True)
class Knob:
    """One hyperparameter and where it is looked for."""

    name: str
    now: Any
    low: float
    high: float

    @staticmethod
    def around(name: str, now: Any) -> Knob | None:
        """A tenth to ten times, half to twice for whole numbers, both for a switch; None for anything else."""
        if isinstance(now, bool):
            return Knob(name, now, 0, 1)
        if isinstance(now, int) and now > 0:
            return Knob(name, now, max(1, now // 2), 2 * now)
        if isinstance(now, float) and now > 0:
            return Knob(name, now, now / 10, min(10 * now, 1.0) if now <= 1 else 10 * now)
        return None

    def drawn(self, trial: Any) -> Any:
        """What a trial of Optuna takes for it."""
        if isinstance(self.now, bool):
            return trial.suggest_categorical(self.name, [False, True])
        if isinstance(self.now, int):
            return trial.suggest_int(self.name, int(self.low), int(self.high))
        return trial.suggest_float(self.name, self.low, self.high, log=True)


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed."""

    distance: float
    drop: float

    def __str__(self) -> str:
        return f"distance {self.distance:.3f}, drop {self.drop:.2f} points"

    def spoiled(self, within: float) -> bool:
        """Whether it cost more validation accuracy than so many points."""
        return not self.drop <= within + 1e-9

    def objective(self, within: float) -> float:
        """What Optuna makes small."""
        return SPOILED + self.drop if self.spoiled(within) else self.distance


def knobs(config: Config, label: str) -> list[Knob]:
    """What of a method is tuned."""
    method, rate = config.method(label), config.methods.recovery(label).lr
    found = [Knob.around("unlearning.lr", float(rate or config.unlearning.lr or config.training.lr))]
    if "history" not in method.needs:
        found += [Knob.around(f.name, getattr(method, f.name)) for f in fields(method)]
    return [knob for knob in found if knob is not None]


def with_values(config: Config, label: str, values: Values) -> Config:
    """The config with these hyperparameters of one method."""
    whole = config.to_json()
    table = dict(whole["methods"].get(label) or {})
    for name, value in values.items():
        if name == "unlearning.lr":
            table["unlearning"] = {**(table.get("unlearning") or {}), "lr": value}
        else:
            table[name] = value
    whole["methods"] = {**whole["methods"], label: table}
    return Config.parse(whole)


class TrialModels:
    """The first half of a population: what trials are measured on."""

    def __init__(self, config: Config, population: Population, label: str, models: int) -> None:
        self.config, self.population, self.label = config, population, label
        half = population.about.models // 2
        self.seeds = population.about.seeds[: min(models, half)]
        self.world: World = simulated(config, config.seed_list[0])
        (self._request,) = config.requests()
        self._rows = RowGroups.of(self.world, self._request)
        self._labels = population.labels("forget")
        self._retrained = margin(population.logits(RETRAIN, "forget")[:half], self._labels).mean(axis=0)
        self._scorer = self.world.evaluator([self._request])
        self._cohorts: dict[tuple[int, ...], Cohort] = {}
        self._before = np.mean([self._validation(params) for _, params in self._trained()])

    def tried(self, values: Values) -> TrialResult:
        """Unlearn with these hyperparameters, and see how far from the Retrains that ends."""
        made = self.unlearned(values, self.seeds, quiet)
        phi = np.stack([self._margins(params) for params in made.values()])
        drop = self._before - np.mean([self._validation(params) for params in made.values()])
        return TrialResult(float(np.abs(phi.mean(axis=0) - self._retrained).mean()), float(drop))

    def unlearned(self, values: Values, seeds: Sequence[int], said: Said) -> dict[int, Params]:
        """The method's models of some seeds, with these hyperparameters."""
        config = with_values(self.config, self.label, values)
        world = replace(self.world, config=config)
        made: dict[int, Params] = {}
        config.method(self.label).check(world.template.module)
        for own in self.population.about.cohorts:
            some = [seed for seed in own if seed in seeds]
            if some:
                with tempfile.TemporaryDirectory() as folder:
                    part = self._cohort(own).part(world, some, Path(folder))
                    made |= dict(zip(some, part.unlearned(self.label, said), strict=True))
        return made

    def keep(self, kind: str, made: Mapping[int, Params]) -> None:
        """Put models into the population."""
        for seed, params in made.items():
            store.put(self.population, kind, seed, self._rows.logits(self.world, params))

    def _cohort(self, seeds: tuple[int, ...]) -> Cohort:
        if seeds not in self._cohorts:
            cohort = Cohort(self.world, seeds, self.population.folder)
            method = self.config.method(self.label)
            cohort.trained({self.label: method} if "history" in method.needs else {}, quiet)
            self._cohorts[seeds] = cohort
        return self._cohorts[seeds]

    def _trained(self) -> list[tuple[int, Params]]:
        """θ* of the seeds that trials use."""
        found = []
        for own in self.population.about.cohorts:
            if any(seed in self.seeds for seed in own):
                found += list(zip(own, self._cohort(own).trained({}, quiet), strict=True))
        return [(seed, params) for seed, params in found if seed in self.seeds]

    def _margins(self, params: Params) -> Any:
        only = RowGroups({"forget": self._rows.views["forget"]}, {})
        logits = only.logits(self.world, params)["forget"].numpy()
        return margin(logits[None], self._labels)[0]

    def _validation(self, params: Params) -> float:
        value = self._scorer.validation(params)
        if not is_measured(value):
            raise UnfedError(f"Tuning chooses by validation data, and it is {value}; set partition.validation.")
        return float(value)


def tune(
    config: Config,
    population: Population,
    labels: Sequence[str],
    budget: TuningBudget = TuningBudget(),  # noqa: B008  (frozen)
    said: Said = quiet,
    jobs: Workers | None = 1,
) -> list[dict[str, Any]]:
    """Choose the hyperparameters of some methods, and unlearn all seeds with them.

    Both are kept in the population.

    Args:
        config: The population's.
        population: Whose first half the trials are measured on.
        labels: The methods.
        budget: What every method gets.
        said: Called after every trial: the method and what the trial showed, its number, how many there are.
        jobs: How many methods are tuned at once, or a Ray cluster; None is one per core where each computes on one
            thread of the CPU.

    Returns:
        How each method's hyperparameters were chosen.
    """
    refuse_code_apart(config, jobs)
    for label in labels:
        _check(config, population, label, budget)
    _optuna()
    stated, where = config.to_json(), population.folder
    left = [label for label in labels if not _tuned(config, population, label, budget)]
    cells = [GridCell(f"tune {label}", _tune, (stated, str(where), label, budget)) for label in left]
    if cells:
        count = 1 if jobs == 1 else at_once(simulated(config, config.seed_list[0]), len(cells), jobs)
        grid.run(cells, count, where, said)
    return [dict(store.load(where).about.tuned[tuned_label(label)]) for label in labels]


def _tuned(config: Config, population: Population, label: str, budget: TuningBudget) -> bool:
    """Whether a method was tuned like this, and all of its tuned models are there."""
    kind, about = tuned_label(label), population.about
    how, half = about.tuned.get(kind, {}), about.models // 2
    wanted = {"trials": budget.trials, "models": min(budget.models, half), "configured": _table(config, label)}
    return all(how.get(key) == value for key, value in wanted.items()) and population.done(kind) == about.seeds


def _table(config: Config, label: str) -> dict[str, Any]:
    """A method's own table in a config."""
    return dict(config.to_json()["methods"].get(label) or {})


@process_as_before()
def _tune(said: Said, stated: dict[str, Any], folder: str, label: str, budget: TuningBudget) -> None:
    """Tune one method."""
    config, population = Config.kept(stated), store.load(folder)
    optuna = _optuna()
    models = TrialModels(config, population, label, budget.models)
    space, within = knobs(config, label), config.evaluation.recovered_within
    seen: dict[int, TrialResult] = {}

    def objective(trial: Any) -> float:
        values = {knob.name: knob.drawn(trial) for knob in space}
        try:
            found = models.tried({} if trial.number == 0 else values)
        except UnfedError as error:  # a value that the method refuses, or a model that has diverged
            said(f"{label}: no usable model", trial.number + 1, budget.trials)
            raise optuna.TrialPruned(str(error)) from error
        seen[trial.number] = found
        said(f"{label}: {found}", trial.number + 1, budget.trials)
        return found.objective(within)

    sampler = optuna.samplers.TPESampler(seed=rng.key("tune", label) % rng.WORD)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    study.enqueue_trial({knob.name: knob.now for knob in space})
    study.optimize(objective, n_trials=budget.trials)
    if not seen:
        raise UnfedError(f"No trial of {label!r} left a usable model, its defaults included; lower unlearning.lr.")
    best = study.best_trial
    chosen, half = {} if best.number == 0 else dict(best.params), population.about.models // 2
    about = {
        "method": label,
        "configured": _table(config, label),
        "trials": budget.trials,
        "models": len(models.seeds),
        "on": f"validation rows and {len(models.seeds)} of the first {half} seeds of {population.about.models}",
        "space": {knob.name: [knob.low, knob.high] for knob in space},
        "chosen": chosen,
        "best": asdict(seen[best.number]),
        "spoiled": seen[best.number].spoiled(within),
        "as configured": asdict(seen[0]) if 0 in seen else None,
    }
    _kept(models, population, chosen, about)


def _kept(models: TrialModels, population: Population, chosen: Values, about: Mapping[str, Any]) -> None:
    """All seeds with what was chosen, and how it was."""
    kind, folder = tuned_label(models.label), population.folder
    models.keep(kind, models.unlearned(chosen, population.about.seeds, quiet))
    with presence.held(folder, "begin", wait=-1):  # another process may have added its method meanwhile
        old = store.load(folder).about
        tuned = {**old.tuned, kind: dict(about)}
        plain = [one for one in old.kinds if one not in tuned]
        places = {tuned_label(one): place for place, one in enumerate(plain)}
        behind = sorted(tuned, key=lambda one: (places.get(one, len(plain)), one))  # not as they ended
        store.describe(folder, replace(old, kinds=(*plain, *behind), tuned={one: tuned[one] for one in behind}))


def tuned_label(label: str) -> str:
    """What a tuned method is called in a population."""
    return f"{label}-tuned"


def _check(config: Config, population: Population, label: str, budget: TuningBudget) -> None:
    about = population.about
    if other := of_another(about, config):
        raise UnfedError(
            f"{population.folder} is a population of {other}, so trials would be compared with other Retrains;"
            " make one of this config with `unfed population`."
        )
    if label in (RETRAIN, BEFORE):
        raise UnfedError("Retrain is what every method is compared with, so it is not tuned; name another method.")
    if budget.trials < 1 or budget.models < 1:
        raise UnfedError(f"Tuning takes at least one trial and one model, not {budget.trials} and {budget.models}.")
    if about.models < 4:
        raise UnfedError(
            f"A population of {about.models} has no half to choose on and half to judge by; it takes at least 4 models."
        )
    config.method(label)  # or the sentence that says what there is
    if len({*population.done(BEFORE)} & {*population.done(RETRAIN)}) < about.models:
        raise UnfedError(f"{population.folder} is not whole yet; go on with `unfed population` first.")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UnfedError(f"Tuning takes Optuna; install it with {extra('tune')}.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
