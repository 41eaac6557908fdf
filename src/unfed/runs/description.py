"""A run in words: what was asked for, on which machine, with which versions, and what became of it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import unfed
from unfed.config import revisions
from unfed.config.config import Config
from unfed.data import Request
from unfed.folder.folder import RunFolder, digests_at
from unfed.folder.info import JobInfo, PurgedModel, RequestInfo
from unfed.folder.layout import AskedRequest, Description, MethodFacts
from unfed.methods import METHODS, Method, Retrain
from unfed.requests.entry import Entry, Job
from unfed.requests.entry import now as now
from unfed.requests.saved_state import Diary
from unfed.runs.world import World


def job_info(folder: RunFolder, job: Job, rounds: int, needs: Sequence[str] | None) -> JobInfo:
    """How far a job is, what it may ask for, and the SHA-256 of what went in and came out."""
    saved, file, grave = folder.saved(job), folder.model_file(job), folder.buried(job)
    diary = Diary() if saved is None else saved.diary
    gone = None
    if grave is not None and not file.exists():
        gone = PurgedModel(request=grave.request, date=grave.date, model=folder.came_out(job))
    return JobInfo(
        seed=job.seed,
        request=job.request,
        method=job.label,
        rounds=rounds if saved is None or saved.rounds is None else saved.rounds,
        finished=None if saved is None else saved.finished,
        needs=None if needs is None else tuple(needs),
        beginning=diary.beginning,
        forgetting=diary.forgetting,
        tuned=diary.tuned,
        file=str(file.relative_to(folder.path)),
        came_out=digests_at(file),
        purged=gone,
    )


def method_facts(config: Config, label: str, method: Method, behind: int = 0) -> MethodFacts:
    """What a reader of the run wants to know of a method.

    They are written down once: no method is built to read them. The model that it starts at has so many rounds
    `behind` it.
    """
    title = method.title + (f" from round {behind}" if behind else "")
    rounds = max(1, rounds_of(config, label, method) - behind)
    return MethodFacts(title=title, needs=tuple(sorted(method.needs)), rounds=rounds)


def plain_facts(config: Config, label: str) -> MethodFacts:
    """The same of a method that nothing was written down about: of our own, what is known of it.

    Of any other it is the bare name.
    """
    kind = METHODS.get(config.methods.name_of(label))
    rounds = config.unlearning.rounds
    if kind is Retrain:
        rounds = config.unlearning.retrain_rounds or config.training.rounds
    rounds = config.methods.recovery(label).rounds or rounds
    needs = tuple(sorted(kind.needs)) if kind else None
    return MethodFacts(title=kind.title if kind else label, needs=needs, rounds=rounds)


def rounds_of(config: Config, label: str, method: Method) -> int:
    """How many rounds a method takes.

    Retrain takes those of a training, the others take what the config grants them.
    """
    if isinstance(method, Retrain):
        alone = config.methods.recovery(label).rounds
        return alone or config.unlearning.retrain_rounds or config.training.rounds
    return method.rounds(config.methods.recovery(label).rounds or config.unlearning.rounds, config.training.rounds)


_ALWAYS = ("created", "method", "until", "state", "reason", "why", "changed", "served", "expires", "gate", "purged")


def request_info(entry: Entry, way_out: Callable[[Entry], str], about: Mapping[str, Any]) -> RequestInfo:
    """Where a deletion request stands; `about` says what it concerns."""
    found = {**about, **{name: getattr(entry, name) for name in (*_ALWAYS, "attempts")}}
    found |= {name: value for name in ("again", "left_by", "superseded", "shared") if (value := getattr(entry, name))}
    found |= {"standing": entry.standing, "owed": entry.owed, "way_out": way_out(entry) if entry.owed else None}
    return RequestInfo.model_validate(found)


@dataclass(frozen=True)
class Call:
    """A call of `unlearn`, which is made with someone's own model and data.

    It is a run in which no client trains.
    """

    name: str
    arguments: Mapping[str, Any]
    fingerprint: str
    """Of the model and the rows that were handed in."""


def description(
    world: World, scopes: Sequence[Sequence[Request]], methods: Mapping[str, Method], call: Call | None = None
) -> Description:
    """What `run.json` says of a run, in every setting: everything that is known before any work starts.

    Of each scope the last request is the one that is served, the ones before it being out.
    """
    config = world.config
    return Description(
        name=config.name if call is None else call.name,
        created=now(),
        config=config.to_json(),
        initial=world.checkpoint,
        call=None if call is None else dict(call.arguments),
        fingerprint=None if call is None else call.fingerprint,
        seeds=config.seed_list,
        clients=tuple(c.name for c in world.clients),
        topped_up_clients=tuple(str(k) for k in world.repaired),
        classes=() if world.loaded is None else world.loaded.classes,
        columns={} if world.loaded is None else world.loaded.columns,
        versions=dict(versions()),
        revisions=revisions.of((method.name for method in methods.values()), config.to_json()),
        hardware=hardware(world.device, world.threads),
        device=str(world.device),
        engine=world.engine({}).name,
        chunk=world.chunk,
        parameters=world.parameters,
        forward_flops=world.forward_flops,
        requests=tuple(AskedRequest.model_validate(describe_request(world, scope)) for scope in scopes),
        methods={label: method_facts(config, label, method) for label, method in methods.items()},
        hyperparameters={label: asdict(method) for label, method in methods.items()},
        rounds={
            "training": config.training.rounds if call is None else None,
            "unlearning": config.unlearning.rounds,
        },
        backdoor=_backdoor(config),
        recovered_within=config.evaluation.recovered_within,
        undone=_undone(world, scopes, methods),
    )


def _backdoor(config: Config) -> dict[str, Any] | None:
    trigger = None if config.poison is None else config.poison.trigger_class
    return None if trigger is None else {"target_class": trigger}


def _undone(
    world: World, scopes: Sequence[Sequence[Request]], methods: Mapping[str, Method]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Where a comparison runs a method that turns its own earlier work back: label, request, tensors."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for label, method in methods.items():
        for scope in scopes:
            if back := method.undoes(world.template.module, [method] * (len(scope) - 1)):
                found.setdefault(label, {})[scope[-1].id] = tuple(back)
    return found


def request_id(request: dict[str, Any]) -> str:
    """An id made from what is asked, so that asking twice is asking once."""
    kind, value = next((k, v) for k, v in request.items() if v)
    text = "-".join(str(v) for v in value) if isinstance(value, tuple | list) else str(value)
    name = f"{ {'clients': 'client', 'classes': 'class'}.get(kind, kind) }-{text}"
    if len(name) <= 60 and kind != "samples":
        return name
    return f"{kind}-{hashlib.sha256(json.dumps([kind, value]).encode()).hexdigest()[:12]}"


def describe_request(world: World, requests: Sequence[Request]) -> dict[str, Any]:
    """What the last of these requests concerns, in numbers, the ones before it being out."""
    out = world.evaluator(requests).forgotten_rows
    before = world.evaluator(requests[:-1]).forgotten_rows if len(requests) > 1 else 0
    had, left = (_validation_rows(world, asked) for asked in (requests[:-1], requests))
    counts = {"forgotten_rows": out - before, "validation_rows": had - left}
    return {**plain_request(requests[-1]), **counts} | ({"rows_out": out} if before else {})


def _validation_rows(world: World, requests: Sequence[Request]) -> int:
    """How many rows Validation is over once these are out; a client without a row to train on has left."""
    return sum(len(c.view("val")) for c in world.scoped(requests).values() if len(c.view("retain")))


def plain_request(request: Request) -> dict[str, Any]:
    """The same without the data: how many rows that are is not known."""
    return {
        "id": request.id,
        "kind": request.kind,
        "clients": list(request.clients),
        "classes": list(request.classes),
        "samples": request.named,
        "fraction": request.fraction,
        "forgotten_rows": None,
    }


@cache
def versions() -> Mapping[str, str]:
    names = ("torch", "numpy", "scikit-learn", "safetensors")
    own = {"unfed": unfed.__version__, "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in names}


def changed_since(begun: Description, folder: Path) -> str:
    """What changed, of all that numbers depend on, since a run was begun; empty if nothing did."""
    then, here, edition = begun.versions, versions(), begun.revisions
    other = [name for name in ("torch", "numpy", "scikit-learn") if then.get(name, here[name]) != here[name]]
    found = [f"{name} is {here[name]}, not {then[name]}" for name in other]
    found += [f"`{name}` was revised" for name in revisions.raised(edition, edition, begun.config)]
    if not found:
        return ""
    return (
        f"Since {folder} was begun something changed ({'; '.join(found)}), so results may differ; to compare numbers,"
        " run the config again in a new folder."
    )


def hardware(device: torch.device, threads: int | None = None) -> str:
    """The device, and the CPU threads that a world works with: not those of its builder."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, {threads or torch.get_num_threads()} CPU threads"
