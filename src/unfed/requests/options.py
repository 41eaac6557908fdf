"""How a request is served: until when, with which hyperparameters, and what its model must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict

from unfed.config.config import Config, MethodsConfig
from unfed.config.reading import applied, toml_value
from unfed.errors import UnfedError, option
from unfed.values import is_measured

GOALS = ("recovered", "forgotten")
PEAKS = (1, 5, 25)
"""The multiples of the training's learning rate that a tuned Retrain tries."""


@dataclass(frozen=True)
class Until:
    """What must be reached, and within how many rounds.

    Without a goal so many rounds are done, whatever they reach.
    """

    goals: tuple[str, ...] = ()
    rounds: int | None = None
    """None is as many as the config grants."""

    @staticmethod
    def of(text: str | None) -> Until:
        """`recovered`, `forgotten` or both, a number, or these and a number; None asks for nothing."""
        if text is None:
            return Until()
        named = [word.strip() for word in text.split(",")]
        numbers = [w for w in named if w.isascii() and w.isdigit() and len(w) <= 9 and int(w) >= 1]
        if len(numbers) > 1 or not {*named} - {*numbers} <= {*GOALS}:
            known = "goals ('recovered', 'forgotten'), a number of rounds, or both ('recovered,forgotten,40')"
            raise UnfedError(f"{option('until')} takes {known}, not {text[:60]!r}.")
        goals = tuple(goal for goal in GOALS if goal in named)
        return Until(goals, int(numbers[0]) if numbers else None)

    @property
    def text(self) -> str:
        """The same for the next reader: `recovered,forgotten,40`."""
        return ",".join([*self.goals, *([] if self.rounds is None else [str(self.rounds)])])

    @property
    def reached(self) -> str:
        """The goals in words: why a job ended that reached them."""
        return " and ".join(self.goals)


@dataclass(frozen=True)
class RequestOptions:
    """What was asked of one request besides its method and its end.

    What is not given is as the run's config says.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # a word that is not known is a request that is not understood
    set: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the method."""
    within: float | None = None
    """How near to the validation accuracy before counts as recovered, in points."""
    max_drop: float | None = None
    """The largest drop of validation accuracy that the gate lets pass, in points."""
    accept: Mapping[str, Any] | None = None
    """Who puts its model in force though the gate says no, and since when: by, at."""
    together: bool = False
    """Whether it may share one recovery with others that wait when it is taken up."""

    def __post_init__(self) -> None:
        for name in ("within", "max_drop"):
            value = getattr(self, name)
            if value is not None and not (is_measured(value) and value >= 0):
                raise UnfedError(f"--{name.replace('_', '-')} takes points of accuracy from 0 on, not {value!r}.")
        if "use" in self.set:
            raise UnfedError("--set use is no hyperparameter of a method; it stands in the run's config.")
        recipe = self.set.get("unlearning", {})
        if not isinstance(recipe, Mapping) or "rounds" in recipe:
            rounds = option("until", "N")
            raise UnfedError(f"--set unlearning.KEY=VALUE sets lr, tune, epochs or schedule; rounds are {rounds}.")

    @staticmethod
    def hyperparameters(sets: Sequence[str], layers: Sequence[str | int] = ()) -> dict[str, Any]:
        """What `--set KEY=VALUE` and `--layers` say. A value is TOML; what is not valid TOML is a string.

        `unlearning.lr`, `unlearning.epochs` and `unlearning.schedule.kind` are the recipe of this recovery.
        """
        found: dict[str, Any] = {"layers": list(layers)} if layers else {}
        for change in sets:
            key, separator, text = change.partition("=")
            if key.strip().startswith("unlearning."):
                applied(found, change)
                continue
            if not separator or not key.strip().isidentifier():
                raise UnfedError(f"--set takes a hyperparameter of the method as KEY=VALUE, not {change!r}.")
            if key.strip() in found:
                raise UnfedError(f"{key.strip()} is set twice; say it once.")
            found[key.strip()] = toml_value(text)
        return found

    def on(self, config: Config, label: str) -> Config:
        """The run's config as it holds for a request that a method with this label serves."""
        changed: dict[str, Any] = {}
        if self.set:
            tables = dict(config.methods.model_extra or {})
            before = tables.get(label, {})
            tables[label] = {**before, **self.set}
            if "unlearning" in self.set:
                tables[label]["unlearning"] = {**before.get("unlearning", {}), **self.set["unlearning"]}
            changed["methods"] = MethodsConfig(run=config.methods.run, **tables)
        if self.within is not None:
            changed["evaluation"] = config.evaluation.model_copy(update={"recovered_within": self.within})
        if self.max_drop is not None:
            changed["gate"] = config.gate.model_copy(update={"max_drop": self.max_drop})
        return config.model_copy(update=changed) if changed else config

    def tuned_retrain(self, config: Config) -> tuple[RequestOptions, int]:
        """What `unfed forget` does without a method: these options, with Retrain's recipe and rounds.

        One cycle over a tenth of the training's rounds (at least 6), three local epochs; the peak is chosen by short
        trials on validation rows. Where a recipe is given, in the request or in Retrain's own table, that one holds.
        Where no validation rows are held out, training is repeated as it was.
        """
        own, train = config.methods.recovery("retrain"), config.training
        if not config.partition.validation:
            return self, own.rounds or train.rounds
        rounds = own.rounds or max(-(-train.rounds // 10), min(train.rounds, 6))
        if "unlearning" in self.set or own.model_fields_set - {"rounds"}:
            return self, rounds
        peaks = [float(f"{times * train.lr:.6g}") for times in PEAKS]
        recipe = {"tune": peaks, "epochs": max(3, train.epochs), "schedule": {"kind": "one-cycle"}}
        return replace(self, set={**self.set, "unlearning": recipe}), rounds

    def to_json(self) -> dict[str, Any]:
        """What was given, and nothing else."""
        return {name: value for name, value in vars(self).items() if value is not False and value not in (None, {})}
