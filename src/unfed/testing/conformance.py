"""Does a method keep the contract?

This is a kit for method authors: claims, each checked on digits in a few seconds.

unfed methods check my_method.py

declares     name, title, reference, known needs and scopes, every hyperparameter explained and sourced
runs         on each scope it claims, and leaves a finite model of the same architecture
needs        touches forgotten rows in training only if its needs say `forget`
resumes      stopped after any save, it goes on to the same bits
lineage      what it says of recorded histories is so: FUKD after it would subtract what is in the model
ledger       flops and bytes agree with what an onlooker counted
engines      sequential and batched agree in float64
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from unfed import rng
from unfed.client.plan import Measure
from unfed.config.config import Config
from unfed.data import Request
from unfed.engines import Block
from unfed.engines.base import Context, Observer, context_of
from unfed.errors import UnfedError
from unfed.federation.history import History
from unfed.federation.state import State
from unfed.methods.base import ALL_SCOPES, METHODS, NEEDS, Central, Lineage, Method, register
from unfed.methods.sealed import drawn_from
from unfed.model.params import Params, tensor_bytes
from unfed.model.sealing import DRAW_BYTES
from unfed.requests.entry import Job
from unfed.runs.progress import Watch
from unfed.runs.run import Run

REQUESTS: dict[str, dict[str, Any]] = {
    "client": {"id": "check", "clients": ["0"]},
    "class": {"id": "check", "classes": [3]},
    "instance": {"id": "check", "fraction": 0.1},
}


@dataclass(frozen=True)
class CheckedClaim:
    """One thing that must hold, and what was seen."""

    name: str
    held: bool
    saw: str


def check(kind: type[Method], sets: Sequence[str] = ()) -> Iterator[CheckedClaim]:
    """Every claim, one after another; a claim about running is not made when the declaration is wrong."""
    wrong = list(_misdeclared(kind))
    yield CheckedClaim("declares what it is", not wrong, "; ".join(wrong) or f"{kind.title}, {_said(kind.needs)}")
    if wrong:
        return
    if METHODS.get(kind.name) is not kind:
        register(kind)
    served = [scope for scope in sorted(kind.scopes) if not (issubclass(kind, Central) and scope == "client")]
    for scope in served:
        tried = _Tried(kind, scope, sets)
        for name, claim in (
            ("runs", _runs),
            ("touches forgotten rows only if its needs say so", _keeps_to_its_needs),
            ("resumes to the same bits", _resumes),
            ("is counted by the ledger", _is_counted),
            ("is the same on both engines", _same_on_engines),
        ):
            yield _claimed(f"{name} ({scope})", claim, tried)
    for scope in served[:1]:  # what becomes of histories does not depend on who leaves
        yield _claimed(f"keeps what its lineage promises ({scope})", _keeps_its_lineage, _Tried(kind, scope, sets))


def _claimed(name: str, claim: Callable[[_Tried], str], tried: _Tried) -> CheckedClaim:
    try:
        with drawn_from(_repeatable):
            return CheckedClaim(name, True, claim(tried))
    except (AssertionError, UnfedError) as error:
        return CheckedClaim(name, False, str(error))
    except Exception as error:  # a method under test may do anything
        return CheckedClaim(name, False, f"{type(error).__name__}: {error}")


def _repeatable(seed: int) -> bytes:
    """Make a sealed draw a function of the job's seed.

    Two runs can then be held against each other.
    """
    return rng.key(seed, "conformance").to_bytes(DRAW_BYTES, "big")


def _misdeclared(kind: type[Method]) -> Iterator[str]:
    for name in ("name", "title", "cite"):
        if not isinstance(getattr(kind, name, None), str) or not getattr(kind, name):
            yield f"it has no {name}"
    for need in sorted(kind.needs - NEEDS.keys()):
        yield f"its need {need!r} is not known ({_said(NEEDS)})"
    if not kind.scopes or not kind.scopes <= ALL_SCOPES:
        yield f"its scopes must be some of {_said(ALL_SCOPES)}"
    if kind.lineage not in get_args(Lineage):
        yield f"its lineage must be one of {_said(get_args(Lineage))}, not {kind.lineage!r}"
    if kind.follows not in ("", "sums", "rounds"):
        yield f"it follows 'sums', 'rounds' or, by default, nothing, not {kind.follows!r}"
    for option in fields(kind):
        if not option.metadata.get("says") or not option.metadata.get("source"):
            yield f"its hyperparameter {option.name!r} lacks a meaning or a source; declare it with option(…)"


def _said(words: Any) -> str:
    return ", ".join(sorted(words))


# --- the claims -------------------------------------------------------------------------------------------------------


def _config(kind: type[Method], scope: str, sets: Sequence[str], engine: str = "sequential") -> Config:
    """Digits, a tiny network, few rounds, in float64."""
    central = issubclass(kind, Central)
    raw = {
        "name": "check",
        "setting": "central" if central else "federated",
        "partition": {} if central else {"clients": 4},
        "model": {"name": "cnn-tiny"},
        "training": {"rounds": 3, "batch": 128, "lr": 0.05},
        "unlearning": {"rounds": 2},
        "request": REQUESTS[scope],
        "methods": {"run": [kind.name]},
        "evaluation": {"attack": False, "samples": False, "every": 100},
        "checkpoint": {"rounds": 1},
        "gate": {"max_drop": 100.0},  # whether the model is of use after two rounds is no question of the contract
        "engine": {"name": engine, "precision": "float64"},
        "device": "cpu",
    }
    return Config.parse(raw, sets)


@dataclass(frozen=True)
class _Tried:
    """A method on one scope, run once for all claims that look at a plain run of it."""

    kind: type[Method]
    scope: str
    sets: Sequence[str]

    @cached_property
    def seen(self) -> tuple[Run, Params, Mapping[str, Any], Spy]:
        """The run, the method's model, its last line, and what an onlooker saw."""
        spy = Spy()
        return *_executed(_config(self.kind, self.scope, self.sets), spy), spy


def _executed(config: Config, watch: Watch) -> tuple[Run, Params, Mapping[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(config, Path(folder, "run"))
        run.execute(watch)
        job = Job(0, "check", config.methods.run[0])
        return run, run.folder.load_model(job), [line for line in run.lines() if line["method"] == job.label][-1]


def _runs(tried: _Tried) -> str:
    run, params, line, _ = tried.seen
    like = run.world(0).template.like
    assert list(params) == list(like), "its model has other tensors than the architecture"
    bad = [name for name, t in params.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    assert not bad, f"its model has NaN or infinite values in {bad[0]!r}"
    return f"{line['round']} rounds, test accuracy {line['test']:.1f} %"


def _keeps_to_its_needs(tried: _Tried) -> str:
    run, _, _, spy = tried.seen
    clients = run.world(0).scoped(run.config.requests())
    forgotten = {int(row) for c in clients.values() for row in c.rows[c.forget].tolist()}
    touched = forgotten & spy.trained_rows
    if "forget" in tried.kind.needs:
        return f"its needs say forget; it touched {len(touched)} of {len(forgotten)} forgotten rows"
    assert not touched, f"it trained on {len(touched)} forgotten rows, but its needs do not say forget"
    return f"none of {len(forgotten)} forgotten rows was touched"


def _resumes(tried: _Tried) -> str:
    name = tried.kind.name
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(_config(tried.kind, tried.scope, tried.sets), Path(folder, "run"))
        copying = _Copying(run.folder.path, name)
        run.execute(copying)
        truth = run.folder.load_model(Job(0, "check", name))
        for number, copy in enumerate(copying.copies, 1):
            again = Run.open(copy)
            again.execute()
            model = again.folder.load_model(Job(0, "check", name))
            unequal = [name for name, t in truth.items() if not torch.equal(t, model[name])]
            assert not unequal, f"stopped after save {number} it ends with another {unequal[0]!r}"
        return f"stopped after each of {len(copying.copies)} saves"


class _Copying(Watch):
    """Keep the folder as it is just after every save: what is left of a run that stops there."""

    def __init__(self, folder: Path, label: str) -> None:
        self._folder, self._label = folder, label
        self.copies: list[Path] = []

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        if job.label == self._label:
            self.copies.append(shutil.copytree(self._folder, self._folder.with_name(f"copy-{len(self.copies)}")))


class _Seeing(Watch):
    """Keeps a job's first saved state and its last histories.

    It takes them before the leaver's part of those is purged.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.begun: State | None = None
        self.histories: Mapping[str, History] = {}

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        if job == self._job:
            self.begun, self.histories = self.begun or state, histories


def _keeps_its_lineage(tried: _Tried) -> str:
    kind, scope = tried.kind, tried.scope
    if kind.lineage == "ends":
        return "it promises nothing, so FUKD and PGD are refused after it"
    if issubclass(kind, Central):
        return "not looked at: one place that holds all data records nothing"
    recorded = sorted({"fukd", "pgd", *([kind.name] if "history" in kind.needs else [])})
    config = _config(kind, scope, ("request=[]", f"training.record={recorded}", *tried.sets))
    method = config.method(kind.name)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(config, Path(folder, "run"))
        run.execute()
        theta, before = run.current(0), run.folder.load_histories(Job(0, None, "train"))["fukd"]
        seen = _Seeing(Job(0, "check", kind.name))
        run.forget(Request.from_json(REQUESTS[scope]), kind.name, until=method.rounds(2, 3), watch=seen)
        after, end, world = seen.histories, run.current(0), run.world(0)
        assert seen.begun is not None
        assert after["pgd"].rounds, "none of its rounds is recorded; say ends, or make them by server.advance"
        if kind.lineage == "moved":
            return f"{after['pgd'].rounds} of its rounds were recorded"
        if kind.lineage == "carried":
            seed = world.seeds.request("check")
            before = before.mapped(lambda own: method.carry(world.template.module, own, seed))
        start = theta if kind.lineage == "goes on" else seen.begun.params
        old = History() if kind.lineage == "anew" else before
        worst = 0.0
        for name in world.template.trainable:
            sums = sum((r.tensors[name] for r in after["fukd"].own.values()), torch.zeros_like(start[name]))
            sums = sum((-r.tensors[name] for r in old.own.values()), sums)
            worst = max(worst, float((start[name] + sums - end[name]).abs().max()))
        assert worst < 1e-9, f"the recorded updates lead to a model {worst:.1e} away from its own; say moved or ends"
        return f"the recorded updates lead to its model, to {worst:.0e}"


def _is_counted(tried: _Tried) -> str:
    run, _, line, spy = tried.seen
    forward = run.world(0).forward_flops
    flops = forward if isinstance(forward, str) else forward * spy.work
    counted = line["flops"] == flops if isinstance(flops, str) else line["flops"] >= flops
    assert counted, f"its clients worked {flops} FLOPs, the ledger says {line['flops']}"
    if run.config.setting == "central":
        assert line["wire_bytes"] == 0, "nothing crosses a wire where one place holds all data"
    else:
        least, most = spy.wire_least, spy.wire_most
        assert least <= line["wire_bytes"] <= most, f"{least} to {most} bytes crossed, it says {line['wire_bytes']}"
    return f"{line['wire_bytes']:,} bytes, {line['flops']:,} FLOPs"


def _same_on_engines(tried: _Tried) -> str:
    _, slow, _, _ = tried.seen
    _, fast, _ = _executed(_config(tried.kind, tried.scope, tried.sets, "batched"), Watch())
    worst = max(float((slow[n] - fast[n]).abs().max()) for n in slow if slow[n].is_floating_point())
    assert worst < 1e-9, f"they differ by {worst:.1e}"
    return f"largest difference {worst:.1e}"


# --- looking on -------------------------------------------------------------------------------------------------------


class Spy(Watch):
    """An onlooker that notes which rows are trained on, what is sent and how much work is done.

    It does so once the training is over.
    """

    def __init__(self) -> None:
        self.trained_rows: set[int] = set()
        self.work = self.wire_least = self.wire_most = 0

    def observer(self, job: Job) -> Observer | None:
        return None if job.request is None else self

    def read(self, rows: Tensor) -> None:
        self.trained_rows.update(rows.flatten().tolist())

    def trained(self, params: Params, context: Context, block: Block) -> None:
        for name in block.clients:
            own = sum(tensor_bytes(c) for c in context_of(context, name).values())
            self.wire_least += tensor_bytes(params)
            self.wire_most += tensor_bytes(params) + own
        self.wire_least += tensor_bytes(block.params)
        self.wire_most += tensor_bytes(block.params)
        self.work += 3 * sum(block.trained) + sum(block.forwarded)

    def measured(self, what: Measure, params: Params, sums: Mapping[str, Tensor]) -> None:
        if what.what != "correct":
            crossed = tensor_bytes(params) + tensor_bytes(dict(sums))
            self.wire_least += crossed
            self.wire_most += crossed
            self.work += 3 * int(sums["count"])
