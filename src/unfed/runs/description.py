"""A run in words: what was asked for, on which machine, with which versions, and where it stands."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

import unfed
from unfed import storage
from unfed.data import Request
from unfed.methods import METHODS, Method, Retrain
from unfed.runs.config import Config
from unfed.runs.folder import Job
from unfed.runs.requests import Entry
from unfed.runs.requests import now as now
from unfed.runs.world import World

if TYPE_CHECKING:
    from unfed.runs.run import Run


def status(run: Run) -> dict[str, Any]:
    """Where a run stands: `running`, `finished` or `interrupted`; every job, and every deletion request.

    A request that was denied, withdrawn or has expired leaves nothing to resume.
    """
    last = {(line["seed"], line["request"], line["method"]): line for line in run.lines()}
    busy, heard, jobs = run.folder.busy(), run.folder.heard() or {}, []
    entries = run.folder.requests()
    over = {Job(e.seed, e.request.id, e.method): e.standing for e in entries if e.owed or not e.accepted}
    for job, rounds in run.jobs():
        line = last.get((job.seed, job.request, job.label), {})
        numbers = run.folder.numbers(job) or {}
        finished = numbers.get("finished")
        at = (heard.get("seed"), heard.get("request"), heard.get("method"))
        here = busy and at == (job.seed, job.request, job.label)
        jobs.append(
            {
                "job": "/".join(job.path.parts),
                "round": heard["round"] if here else max(int(numbers.get("round", 0)), int(line.get("round", 0))),
                "rounds": numbers.get("rounds", rounds),
                "test": line.get("test"),
                "forget": line.get("forget"),
                "state": over.get(job)
                or finished
                or ("running" if here else "waiting" if not numbers else "not finished"),
            }
        )
    complete = all(run.folder.finished(job) for job, _ in run.ahead()) and not any(e.waiting for e in entries)
    state = "running" if busy else "finished" if complete else "interrupted"
    requests = [{"id": e.request.id, "number": e.number, **entry(run, e)} for e in entries]
    return {
        "state": state,
        "jobs": jobs,
        "requests": requests,
        "seconds_left": heard.get("seconds_left") if busy else None,
    }


def jobs(run: Run) -> list[dict[str, Any]]:
    """Every job for a report: how far it is, what it may ask for, and the SHA-256 of what went in and came out."""
    found = []
    served = {(e.seed, e.request.id): run.about(e.method, e) for e in run.folder.requests()}
    for job, rounds in run.jobs():
        numbers = run.folder.numbers(job) or {}
        file = run.folder.model_file(job)
        found.append(
            {
                "seed": job.seed,
                "request": job.request,
                "method": job.label,
                "rounds": numbers.get("rounds", rounds),
                "finished": numbers.get("finished"),
                "needs": []
                if job.request is None
                else served.get((job.seed, job.request), run.about(job.label))["needs"],
                "beginning": numbers.get("diary", {}).get("beginning"),
                "file": str(file.relative_to(run.folder.path)),
                "came_out": storage.numbers_of(file).get("sha256") if file.exists() else None,
            }
        )
    return found


def method_facts(config: Config, label: str, method: Method) -> dict[str, Any]:
    """What a reader of the run wants to know of a method: written down once, so that nobody need build it to read."""
    rounds = rounds_of(config, label, method)
    return {"title": method.title, "needs": sorted(method.needs), "rounds": rounds}


def plain_facts(config: Config, label: str) -> dict[str, Any]:
    """The same of a method that nothing was written down about: of our own, what is known of it; else its bare name."""
    kind = METHODS.get(config.methods.name_of(label))
    rounds = config.methods.recovery(label).rounds or config.unlearning.rounds
    if kind is Retrain:
        rounds = config.unlearning.retrain_rounds or config.training.rounds
    return {"title": kind.title if kind else label, "needs": sorted(kind.needs) if kind else None, "rounds": rounds}


def rounds_of(config: Config, label: str, method: Method) -> int:
    """How many rounds a method takes: Retrain those of a training, the others what the config grants them."""
    if isinstance(method, Retrain):
        return config.unlearning.retrain_rounds or config.training.rounds
    return method.rounds(config.methods.recovery(label).rounds or config.unlearning.rounds, config.training.rounds)


def entry(run: Run, entry: Entry) -> dict[str, Any]:
    """Where a deletion request stands, for a report."""
    names = ("created", "method", "until", "state", "reason", "why", "changed", "served", "expires")
    about = {name: getattr(entry, name) for name in names} | {"attempts": [dict(tried) for tried in entry.attempts]}
    return about | {
        "standing": entry.standing,
        "owed": entry.owed,
        "way_out": run.way_out(entry) if entry.owed else None,
    }


def beginning(
    config: Config, world: World, requests: Sequence[Request], methods: Mapping[str, Method]
) -> dict[str, Any]:
    """What `run.json` says of a run: everything that is known before any work starts."""
    return {
        "name": config.name,
        "created": now(),
        "config": config.to_json(),
        "seeds": list(config.seed_list),
        "clients": [c.name for c in world.clients],
        "topped_up_clients": [str(k) for k in world.repaired],
        "versions": versions(),
        "hardware": hardware(world.device),
        "device": str(world.device),
        "engine": world.engine({}).name,
        "chunk": world.chunk,
        "parameters": world.parameters,
        "forward_flops": world.forward_flops,
        "requests": [describe_request(world, requests[: i + 1]) for i in range(len(requests))],
        "methods": {label: method_facts(config, label, method) for label, method in methods.items()},
        "hyperparameters": {label: asdict(method) for label, method in methods.items()},
        "rounds": {"training": config.training.rounds, "unlearning": config.unlearning.rounds},
        "backdoor": None if config.poison is None else {"target_class": config.poison.target_class},
        "recovered_within": config.evaluation.recovered_within,
    }


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
    return {**plain_request(requests[-1]), "forgotten_rows": world.evaluator(requests).forgotten_rows}


def plain_request(request: Request) -> dict[str, Any]:
    """The same without the data: how many rows that are is not known."""
    return {
        "id": request.id,
        "kind": request.kind,
        "clients": list(request.clients),
        "classes": list(request.classes),
        "samples": len(request.samples),
        "fraction": request.fraction,
        "forgotten_rows": None,
    }


def versions() -> dict[str, str]:
    names = ("torch", "numpy", "scikit-learn", "safetensors")
    own = {"unfed": unfed.__version__, "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in names}


def hardware(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, {torch.get_num_threads()} CPU threads"
