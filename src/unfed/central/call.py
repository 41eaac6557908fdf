"""`unlearn`: take rows out of a model that the caller trained, by the methods of the paper's table 6.

    check everything ─► score before ─► (Retrain) ─► the method, epoch after epoch ─► score after

It is a run like any other, with the caller's model and data in place of a config's: the same jobs, ledger and files.
With a checkpoint folder a killed call goes on where it was and ends bit-equal.
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unfed.central.inputs import Data, chosen, fitting, read, refuse_overlap, shared
from unfed.central.result import Result
from unfed.central.world import Factory, Given, fingerprint, own_world, reachable, requests_of
from unfed.client.plan import RULES, Rule
from unfed.config.config import Config
from unfed.data import Request
from unfed.data.packing import taken_by
from unfed.errors import UnfedError, UnfedWarning, listed, nearest
from unfed.folder.folder import RunFolder
from unfed.measures.trajectory import Line
from unfed.measures.undo.flip import INVERSES, REDRAWN
from unfed.methods import Method, NoT, admit, find, known_as
from unfed.model.calling import copied, unwrapped
from unfed.model.language import plain, text_rows
from unfed.model.params import Params, cast, check_like, load_into, params_of
from unfed.report.rules import reference_line
from unfed.report.tables import name_of
from unfed.requests.entry import Job
from unfed.requests.reversible import BY_DEFAULT, warn_of_way_back
from unfed.runs.description import Call, description
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.together import MethodTurn
from unfed.runs.world import World, process_as_before
from unfed.values import is_measured

Progress = Callable[[int, int, Mapping[str, Any] | None], None]
EPOCHS, RETRAIN_EPOCHS = 50, 200  # the paper's
LEAST_STEPS = 200
"""What a perturbed model gets at least by default: on digits a hundred bring a small network back, twenty do not."""


@process_as_before()
def unlearn(
    model: nn.Module,
    *,
    forget: Data,
    retain: Data | None = None,
    data: Data | None = None,
    test: Data | None = None,
    method: str | type[Method] | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int = 64,
    momentum: float = 0.9,
    decay: float = 5e-4,
    optimiser: Rule = "sgd",
    clip: float | None = 1.0,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
    checkpoint: str | Path | None = None,
    factory: Factory | None = None,
    retrain: bool | int | nn.Module = False,
    evaluate_every: int | None = None,
    **options: Any,
) -> Result:
    """Make a model forget, and measure whether it did. The given model is not changed.

    Data are pairs of tensors (x, y), dicts of tensors with `labels`, map-style data sets or a DataLoader.

    Args:
        model: A trained module.
        forget: What leaves; with `data`, row numbers or a mask.
        retain: What stays; or give `data` instead.
        data: The whole training set.
        test: Data that the model never saw; needed for test accuracy and the attack.
        method: not, ft, randl, ga, badt, l1-sparse, ssd, salun, sealed, led or retrain, or a subclass of `Method`.
            Default: not, with a warning that it can be undone.
        epochs: The budget. Default: the paper's 50 (NoT: 10, or 200 steps if that is more).
        lr: The first learning rate. Default: a cosine from 0.01 to 1e-4 (NoT: 0.1 to 1e-5; adam and adamw: from 1e-3).
        batch: Rows per step.
        momentum: SGD's momentum.
        decay: Weight decay.
        optimiser: sgd, adam or adamw.
        clip: The largest l2 norm of a gradient; None: no limit. Retrain has none.
        device: Default: where the model is.
        seed: The seed of every draw.
        progress: True prints a line per epoch; a function gets (epoch, epochs, numbers or None).
        checkpoint: A folder. A call that was killed continues there, bit-equal; `unfed report` reads it.
        factory: Makes a fresh model, for retrain and badt. Default: every layer's `reset_parameters`.
        retrain: The reference for the gap: True (200 epochs), a number of epochs, or a model that you retrained.
        evaluate_every: Epochs between two evaluations. Default: ten evaluations.
        options: Hyperparameters of the method.

    Returns:
        The new model, with measurements before and after.

    Raises:
        UnfedError: An input does not fit; the message says which and how to mend it.

    Examples:
        >>> result = unfed.unlearn(model, data=(x, y), forget=[0, 1, 2], method="retrain", epochs=1)
        >>> fresh = result.model
    """
    if method is None:
        method = NoT.name
        if str(options.get("perturbation", NoT.perturbation)) in (*INVERSES, *REDRAWN):
            warn_of_way_back(BY_DEFAULT, 'method="sealed" or "retrain"')
    given = _given(model, {"retain": retain, "forget": forget, "data": data, "test": test}, factory)
    model = given.model
    again = None if isinstance(retrain, nn.Module) or retrain is False else retrain
    again = RETRAIN_EPOCHS if again is True else again
    rate = 1e-3 if lr is None and optimiser != "sgd" else lr
    steps = Steps(optimiser, rate, batch, momentum, decay, clip)
    wanted = Wanted(known_as(method), epochs, len(given.retain), steps, seed, again, evaluate_every, options)
    config = _config(model, wanted, device)
    built = config.methods.build()
    world = own_world(config, given)
    requests = requests_of(given, world)
    for label, one in built.items():
        if "init" in one.needs:
            reachable(model, factory, one.title)
        admit(label, one, requests[-1].kind, frozenset({"retain", "forget", "init", "central"}))
        one.check(world.template.module)
    if checkpoint is not None and given.retain.pair is None:
        warnings.warn(
            "your data set's transforms may draw random numbers, so a resumed call need not be bit-equal; pass tensors"
            " for that",
            UnfedWarning,
            stacklevel=3,  # the decorator stands between
        )
    task = CallTask(wanted, given, world, requests, built, _reference(retrain, world))
    if checkpoint is not None:
        return _work(Path(checkpoint), task, _watch(progress))
    with tempfile.TemporaryDirectory() as folder:
        return _work(Path(folder), task, _watch(progress))


# --- what was handed in -----------------------------------------------------------------------------------------------


def _given(model: nn.Module, handed: Mapping[str, Data | None], factory: Factory | None) -> Given:
    if not isinstance(model, nn.Module):
        raise UnfedError(f"model must be a torch.nn.Module, not a {type(model).__name__}.")
    if (handed["retain"] is None) == (handed["data"] is None):
        raise UnfedError("Give what stays as retain=, or the whole training set as data= with forget= as row numbers.")
    model = unwrapped(model)
    names = taken_by(model)
    held_out = [] if handed["test"] is None else [read(handed["test"], "test", names)]
    if handed["data"] is None:
        stays, leaves = (read(handed[name], name, names) for name in ("retain", "forget"))
        refuse_overlap(leaves, stays, "a row that stays cannot be forgotten")
    else:
        whole = read(handed["data"], "data", names)
        rows = chosen(handed["forget"], len(whole))
        others = torch.ones(len(whole), dtype=torch.bool)
        others[rows] = False
        leaves, stays = whole.pick(rows, "forget"), whole.pick(others.nonzero().flatten(), "retain")
        if again := len(shared(leaves, stays)):
            warnings.warn(
                f"{again} of the {len(leaves)} rows to forget stand in data once more, so the model still learns them;"
                " name every copy in forget=",
                UnfedWarning,
                stacklevel=4,  # the decorator stands between
            )
    for one in held_out:
        refuse_overlap(leaves, one, "test data must be data the model never saw")
        if known := len(shared(one, stays)):
            warnings.warn(
                f"{known} of the {len(one)} rows of test stay in training, so Test and MIA are too good; take them out"
                " of test",
                UnfedWarning,
                stacklevel=4,
            )
    if stays.texts:
        model = text_rows(model)
    stays, leaves, *held_out = fitting(model, [stays, leaves, *held_out])
    return Given(model, stays, leaves, held_out[0] if held_out else None, factory)


@dataclass(frozen=True)
class Steps:
    """How single steps are made."""

    optimiser: Rule
    lr: float | None
    batch: int
    momentum: float
    decay: float
    clip: float | None

    def __post_init__(self) -> None:
        _whole(batch=self.batch)
        if self.optimiser not in RULES:
            raise UnfedError(f"optimiser must be {listed(RULES)}, not {self.optimiser!r}.")
        if self.lr is not None and not (_number(self.lr) and self.lr >= 0):
            raise UnfedError(f"lr must be a number of at least 0, not {self.lr!r}.")
        if self.clip is not None and not (_number(self.clip) and self.clip > 0):
            raise UnfedError(f"clip must be a number above 0, or None for no limit, not {self.clip!r}.")


@dataclass(frozen=True)
class Wanted:
    """The numbers of a call, by which a folder knows that it is made again."""

    method: str
    asked: int | None
    """Epochs, if the caller said how many."""
    rows: int
    """How many stay."""
    steps: Steps
    seed: int
    retrain: int | None
    evaluate_every: int | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        _whole(epochs=self.asked, retrain=self.retrain, evaluate_every=self.evaluate_every)
        own = [name for name, *_ in find(self.method).options()]
        for name in {*self.options} - {*own}:
            if not nearest(name, own) and (meant := nearest(name, signature(unlearn).parameters)):
                raise UnfedError(f"Neither unlearn nor the method {self.method!r} has an argument {name!r}.{meant}")

    @property
    def epochs(self) -> int:
        """As asked, else the paper's; a method that first breaks the model gets enough steps to mend it."""
        over = find(self.method).recipe.over
        if self.asked is not None or over is None:
            return EPOCHS if self.asked is None else self.asked
        return max(over, math.ceil(LEAST_STEPS / math.ceil(self.rows / self.steps.batch)))

    def to_json(self) -> dict[str, Any]:
        """The arguments by their names."""
        options = {name: str(value) for name, value in self.options.items()}
        own = {"method": self.method, "epochs": self.epochs, "seed": self.seed, "retrain": self.retrain}
        return {**own, **vars(self.steps), "evaluate_every": self.evaluate_every, "options": options}


def _whole(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise UnfedError(f"{name} must be a whole number of at least 1, not {value!r}.")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _config(model: nn.Module, wanted: Wanted, device: torch.device | str | None) -> Config:
    """The call as a config, which checks what is left to check."""
    some = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    if some.dtype not in (torch.float32, torch.float64):
        raise UnfedError(f"The model computes in {some.dtype}; convert it with model.float() first.")
    method, alone, steps = wanted.method, wanted.method == "retrain" or wanted.retrain is None, wanted.steps
    first = steps.lr if method == "retrain" and steps.lr is not None else 0.01
    unlearning: dict[str, Any] = {"rounds": wanted.epochs, "lr": steps.lr, "clip": steps.clip}
    recipe = find(method).recipe
    if recipe.over is not None:
        least = min(recipe.minimum, recipe.lr if steps.lr is None else steps.lr)
        unlearning["schedule"] = {"kind": "cosine", "minimum": least, "over": wanted.epochs}
    raw: dict[str, Any] = {
        "name": "unlearn",
        "setting": "central",
        "seed": wanted.seed,
        "device": str(some.device if device is None else device),
        "data": {"name": "your own"},
        "model": {"name": type(model).__name__},
        "training": {
            "rounds": wanted.epochs if alone else wanted.retrain,
            "batch": steps.batch,
            "lr": first,
            "momentum": steps.momentum,
            "decay": steps.decay,
            "optimiser": steps.optimiser,
            "schedule": {"kind": "cosine", "minimum": min(1e-4, first)},
            "keep_model": "best-test",  # of Retrain, as in the paper; without test data it is the last
        },
        "unlearning": unlearning,
        "methods": {"run": [method] if alone else ["retrain", method]}
        | ({method: dict(wanted.options)} if wanted.options else {}),
        "evaluation": {"every": wanted.evaluate_every or max(1, wanted.epochs // 10), "samples": False},
        "checkpoint": {"rounds": 1},
        "engine": {"name": "sequential", "precision": str(some.dtype).removeprefix("torch.")},
    }
    return Config.parse(raw)


# --- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CallTask:
    """A call that was found right."""

    wanted: Wanted
    given: Given
    world: World
    requests: tuple[Request, ...]
    methods: Mapping[str, Method]
    reference: Params | None
    """A model that the caller retrained."""

    @property
    def params(self) -> Params:
        """The model that was handed in, as params."""
        assert self.world.initial is not None
        return self.world.initial


def _work(path: Path, task: CallTask, watch: Watch) -> Result:
    folder, label, seed = RunFolder(path), task.wanted.method, task.world.seed
    _open(folder, task)
    run, left = Run(folder), task.params
    run.use(task.world)
    with folder.lock() as free:
        if not free:
            raise UnfedError(f"Another process is at work in {folder.path}; wait, or take another folder.")
        folder.cut_back()
        run.score_before(seed, task.requests, task.params)
        if task.reference is not None:
            run.score_before(seed, task.requests, task.reference, "retrain")
        for name, method in task.methods.items():
            left = run.unlearn(MethodTurn(seed, task.requests, name, method, task.params), watch).params
    lines = run.lines()
    told: dict[str, list[Line]] = {}
    for line in lines:
        told.setdefault(line["method"], []).append(line)
    seen = {name: reference_line(own) if name == "retrain" else own[-1] for name, own in told.items()}
    model = copied(task.given.model)
    load_into(model, left)
    return Result(
        model=plain(model),
        before=seen["before"],
        after=seen[label],
        retrain=seen.get("retrain"),
        title=task.methods[label].title,
        epochs=int(seen[label]["round"]),
        lines=lines,
        info=run.info(),
    )


def _reference(retrain: bool | int | nn.Module, world: World) -> Params | None:
    """A model that the caller retrained, as params."""
    if not isinstance(retrain, nn.Module):
        return None
    found = params_of(unwrapped(retrain))
    check_like(found, world.template.like, "The retrained model")
    return cast({name: found[name] for name in world.template.like}, world.dtype, world.device)


def _open(folder: RunFolder, task: CallTask) -> None:
    """A new folder, or one that this very call began."""
    mark, call = fingerprint(task.given, task.params), task.wanted.to_json()
    if (folder.path / "run.json").exists():
        found = folder.description()
        where = _difference(found.call or {}, call)
        if where:
            raise UnfedError(f"{folder.path} belongs to a call with other arguments ({where}); choose another folder.")
        if found.fingerprint != mark:
            raise UnfedError(f"{folder.path} belongs to a call with another model or other data; take another folder.")
        return
    if not folder.vacant():
        raise UnfedError(f"{folder.path} is not empty; give checkpoint= another folder.")
    name = f"{task.world.config.model.name}, {name_of(list(task.methods)[-1])}"
    folder.create(description(task.world, [task.requests], task.methods, Call(name, call, mark)))


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first argument in which two calls differ, in words."""
    odd = [name for name in here if there.get(name) != here[name]]
    return f"{odd[0]} is {there.get(odd[0])!r} there and {here[odd[0]]!r} here" if odd else ""


# --- looking on -------------------------------------------------------------------------------------------------------


class _Progress(Watch):
    """Hands every epoch of the method to the caller's function."""

    def __init__(self, tell: Progress) -> None:
        self._tell = tell

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        self._tell(round, rounds, line)


class _Printed(Watch):
    """Says on stderr where it is."""

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """One line per epoch, with the numbers where there are any."""
        seen = {n: (line or {}).get(n) for n in ("retain", "forget", "test")}
        shown = [f"{name} {value:.1f}" for name, value in seen.items() if is_measured(value)]
        print(" ".join([name_of(job.label), f"{round}/{rounds}", *shown]), file=sys.stderr)


def _watch(progress: bool | Progress) -> Watch:
    if callable(progress):
        return _Progress(progress)
    return _Printed() if progress else Watch()
