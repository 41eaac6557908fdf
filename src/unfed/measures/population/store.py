"""A population folder: N models of one config, kept as what they say about the same rows.

    population.json                   config and its digest, seeds, kinds of model, groups of rows, revisions
    state/FIRST/KIND.safetensors      what a cohort needs to go on (`studies/cohort.py`); θ* of `before` stays
    rows.safetensors                  labels/GROUP: the label of every row, and NAME/GROUP for what else is known of it
    logits/KIND/SEED.safetensors      GROUP: float32 [rows, classes], before the softmax
    logits/retrain@ROUND/…            the same of Retrain at some earlier rounds

A kind is `before` (θ*, trained on everything), or a method's label: `retrain`, `not`, … Groups are `forget` (D_u),
`retain` (a fixed draw from D_r), `test` (held out), and `backdoor` (stamped test rows, labelled with the attacker's
class) where a backdoor was planted. Row i of a group is the same row in every model, and model i of every kind was
trained under the same seed. Everything that is asked of a population is computed from logits; of the models only θ* is
kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from unfed import records, storage
from unfed.data.partition import portion
from unfed.errors import UnfedError, listed, nearest
from unfed.records import Count, Plain

SCHEMA = 1
BEFORE = "before"
RETRAIN = "retrain"

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]
Kind = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$")]
"""A label, of which a folder's name is made."""


@dataclass(frozen=True)
class About:
    """What a population is of: all that is known before the first model is trained."""

    name: str
    """The config's name."""
    config: str
    """SHA-256 of the config, without what does not change a model."""
    request: str
    """The id of the request that is forgotten."""
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)]
    """One per model."""
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)]
    """`before` and the methods' labels."""
    groups: Mapping[str, Count]
    """How many rows each group has."""
    classes: Count
    revisions: Mapping[str, int]
    """The editions of engine and methods that the numbers depend on."""
    versions: Mapping[str, str]
    hardware: str
    cohorts: tuple[tuple[Count, ...], ...] = ()
    """Which seeds were trained side by side: who shares a stack changes the last bits, so it stays as it began."""
    tuned: Mapping[str, Plain] = field(default_factory=dict)
    """How a kind's hyperparameters were chosen, for those that were tuned."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """The config itself, by which another is compared with it where digests differ."""

    @property
    def models(self) -> int:
        return len(self.seeds)

    def __post_init__(self) -> None:
        if len({*self.seeds}) != len(self.seeds):
            raise UnfedError("a seed is named twice")


@dataclass(frozen=True)
class Population:
    """A population as it lies in its folder."""

    folder: Path
    about: About

    def logits(self, kind: str, group: str) -> Logits:
        """[models, rows, classes] of all models of a kind, in the order of the seeds."""
        self._known(group)
        done = self.done(kind)
        if len(done) < self.about.models:
            raise UnfedError(
                f"{self.folder} has {len(done)} of {self.about.models} models of {kind!r}; go on with"
                f" `unfed population … --out {shlex.quote(str(self.folder))}`, it does what is missing."
            )
        return np.stack([self.read(kind, seed)[group].numpy() for seed in self.about.seeds])

    def labels(self, group: str) -> Labels:
        """The label of every row of a group."""
        self._known(group)
        return self.column("labels", group).astype(np.int64)

    def column(self, name: str, group: str) -> NDArray[Any]:
        """What else is known of the rows of a group: `rows` (their number in the data), `client`, `position`."""
        tensors, _ = storage.load(rows_file(self.folder), "list of a population's rows")
        if f"{name}/{group}" not in tensors:
            raise UnfedError(f"{self.folder} knows no {name!r} of the rows in {group!r}.")
        found: NDArray[Any] = tensors[f"{name}/{group}"].numpy()
        if found.shape != (self.about.groups.get(group),):
            raise UnfedError(
                f"{rows_file(self.folder)} has other rows in {group!r} than the population; restore it from a copy."
            )
        return found

    def done(self, kind: str) -> tuple[int, ...]:
        """The seeds whose model of a kind is there."""
        if kind.partition("@")[0] not in self.about.kinds:
            near = nearest(kind, self.about.kinds)
            raise UnfedError(f"{self.folder} has no models of {kind!r}; it has {listed(self.about.kinds)}.{near}")
        return tuple(seed for seed in self.about.seeds if logits_file(self.folder, kind, seed).exists())

    def rounds(self) -> tuple[int, ...]:
        """The earlier rounds at which every Retrain was kept; earlier versions kept the last one only."""
        there = [path.name.partition("@")[2] for path in (self.folder / "logits").glob(f"{RETRAIN}@*")]
        found = sorted(int(number) for number in there if number.isdecimal())
        return tuple(number for number in found if len(self.done(f"{RETRAIN}@{number}")) == self.about.models)

    def read(self, kind: str, seed: int) -> dict[str, Tensor]:
        """What one model says, by group."""
        path = logits_file(self.folder, kind, seed)
        tensors, numbers = storage.load(path, "model of a population")
        if numbers != _numbers(self.about, kind, seed) or not self._fits(tensors):
            raise UnfedError(f"{path} is not of the population in {self.folder}; delete it, and it is made again.")
        return tensors

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        shapes = {group: (rows, self.about.classes) for group, rows in self.about.groups.items()}
        numbers = all(t.is_floating_point() for t in tensors.values())
        return numbers and {group: tuple(t.shape) for group, t in tensors.items()} == shapes

    def _known(self, group: str) -> None:
        if group not in self.about.groups:
            near = nearest(group, self.about.groups)
            raise UnfedError(f"{self.folder} has no rows {group!r}; it has {listed(self.about.groups)}.{near}")


def load(folder: str | Path) -> Population:
    """A population that was begun in a folder; which models are there is asked later."""
    path = Path(folder)
    if not (path / "population.json").exists():
        raise UnfedError(f"{path} is not a population (it has no population.json); `unfed population` makes one.")
    found = storage.read_json(path / "population.json", "description of a population")
    where = path / "population.json"
    if not isinstance(found, dict):
        raise UnfedError(f"{where} is damaged (it is no table of fields); restore it from a copy.")
    if found.pop("schema", None) != SCHEMA:
        raise UnfedError(f"{path} was written in another layout; use the version of unfed that wrote it.")
    if others := sorted({*found} - {one.name for one in fields(About)}):
        raise UnfedError(
            f"{where} has {listed(others)}, of which this version knows nothing; use the one that wrote it."
        )
    about = records.read(About, found, str(where))
    return Population(path, about)


def create(folder: str | Path, about: About, rows: Mapping[str, Sequence[int] | Tensor]) -> Population:
    """Begin a population. `rows` has `labels/GROUP` for every group; population.json comes last."""
    path = Path(folder)
    tensors = {name: torch.as_tensor(values, dtype=torch.int64) for name, values in rows.items()}
    for group, count in about.groups.items():
        if len(tensors[f"labels/{group}"]) != count:
            raise ValueError(f"{group} has {count} rows, but as many labels as {len(tensors[f'labels/{group}'])}")
    storage.save(rows_file(path), tensors, {"config": about.config})
    return describe(path, about)


def describe(folder: Path, about: About) -> Population:
    """Write down what a population is of: at its beginning, and when models or methods are added."""
    storage.write_json(folder / "population.json", {"schema": SCHEMA, **asdict(about)})
    return load(folder)


def put(population: Population, kind: str, seed: int, logits: Mapping[str, Tensor]) -> None:
    """Keep what one model says."""
    numbers = _numbers(population.about, kind, seed)
    plain = {group: logits[group].detach().float() for group in population.about.groups}
    storage.save(logits_file(population.folder, kind, seed), plain, numbers)


def rows_file(folder: Path) -> Path:
    return folder / "rows.safetensors"


def logits_file(folder: Path, kind: str, seed: int) -> Path:
    return folder / "logits" / kind.replace(":", ".") / f"{seed}.safetensors"


def _numbers(about: About, kind: str, seed: int) -> dict[str, Any]:
    return {"config": about.config, "kind": kind, "seed": seed}


# --- how often its models are right -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """In percent, by group of rows; `std` divides by N − 1."""

    kind: str
    models: int
    mean: Mapping[str, float]
    std: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def correct(population: Population, kind: str, group: str) -> NDArray[np.float64]:
    """The accuracy of every model of a kind on a group, in percent."""
    right = population.logits(kind, group).argmax(-1) == population.labels(group)
    found: NDArray[np.float64] = 100.0 * right.mean(1)
    return found


def accuracies(population: Population) -> list[Accuracy]:
    """One row for every kind of which all models are there."""
    about, found = population.about, []
    for kind in about.kinds:
        if len(population.done(kind)) == about.models:
            each = {group: correct(population, kind, group) for group in about.groups}
            mean = {group: float(values.mean()) for group, values in each.items()}
            std = {group: float(values.std(ddof=1)) if len(values) > 1 else 0.0 for group, values in each.items()}
            found.append(Accuracy(kind, about.models, mean, std))
    return found


# --- how memorised its forgotten rows were ----------------------------------------------------------------------------


def losses(logits: Logits, labels: Labels) -> NDArray[np.float64]:
    """−log softmax at the label, [models, rows]."""
    z = logits.astype(np.float64)
    z = z - z.max(-1, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, labels[None, :, None], -1)[..., 0]
    return found


def memorisation(population: Population) -> NDArray[np.float64]:
    """m_i of every forgotten row: how memorised it was.

    m_i = mean over Retrains of ℓ(θ; i)  −  mean over θ* of ℓ(θ; i)             ℓ = −log softmax(z_i)_{y_i}

    A row that every model gets right from the others costs nothing to forget; one that only its own training taught is
    what an attacker finds. Known for the rows that a population forgot: of others there is no model without them.
    """
    labels = population.labels("forget")
    without, with_it = (losses(population.logits(kind, "forget"), labels).mean(0) for kind in (RETRAIN, BEFORE))
    found: NDArray[np.float64] = without - with_it
    return found


def most_memorised(population: Population, fraction: float) -> list[tuple[str, int]]:
    """(client, position) of the most memorised fraction of the forgotten rows, the most memorised first."""
    score = memorisation(population)
    count = portion(fraction, len(score))
    if count == 0:
        raise UnfedError(
            f"The fraction {fraction:g} of the {len(score)} rows that {population.folder} forgot is less than one row;"
            " ask for a larger fraction."
        )
    order = np.argsort(-score, kind="stable")[:count]
    client, position = population.column("client", "forget"), population.column("position", "forget")
    return [(str(client[i]), int(position[i])) for i in order]
