"""What a run can offer a method, and which history leads to the model it starts from.

    train ──► request 1 ──► request 2 ──► …          each job's state holds the histories up to its model

FedEraser replays the training, so it reads the training's history whatever came since. FUKD and PGD start at the model
in force, so their histories must follow the method that makes it: each says by its `lineage` what it does to them.

    lineage                             sums: θ = θ⁰ + Σ_k S_k (FUKD)    rounds: θ is the last one's mean (PGD)
    goes on   FT, GA, ℓ1-sparse, RandL  go on                            go on
    carried   NoT, FUKD                 go on, moved as the model was    begin anew with its recovery
    moved     PGD, MoDE, FCU            end                              begin anew with its recovery
    anew      Retrain                   begin anew                       begin anew
    ends      Sealed, all others        end                              end

A method whose history has ended is refused until Retrain (or, for PGD, any recovery that is recorded) begins another.
Nor may a method turn back what an earlier one did: negating the same layer twice brings the first leaver back.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

from torch import nn

from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, UnfedWarning, listed, option
from unfed.federation.history import History, Recorder
from unfed.federation.robust import Robust
from unfed.folder.folder import RunFolder
from unfed.folder.histories import HISTORY
from unfed.measures.undo import INVERSES, REDRAWN
from unfed.methods import Method, admit
from unfed.methods.base import Lineage
from unfed.requests import book as books
from unfed.requests.entry import Entry, Job
from unfed.runs.world import World


def offers(config: Config, label: str, request: Request) -> tuple[frozenset[str], dict[str, str]]:
    """What a run has for a method on a request, and why it lacks the rest."""
    there, missing = {"retain", "init"}, {}
    if config.setting == "central":
        there.add("central")
    if request.deleted:
        missing["forget"] = f"{_owners(request)} deleted it"
    else:
        there.add("forget")
    robust = Robust(**config.training.robust.model_dump())
    if label in config.recorded() and config.training.keep_model == "last" and robust.additive:
        there.add("history")
    elif label in config.recorded() and not robust.additive:
        missing["history"] = f"under training.robust.rule = {robust.rule!r} no client has a share of its own"
    elif label in config.recorded():
        missing["history"] = "training.keep_model keeps another model than the one its record leads to"
    else:
        missing["history"] = f'this run recorded none for it: set training.record = ["{label}"] and train again'
    if config.partition.validation > 0:
        there.add("public")
    else:
        missing["public"] = "partition.validation is 0, so no images are held out"
    return frozenset(there), missing


def _owners(request: Request) -> str:
    if not request.clients:
        return "its owners have"
    if len(request.clients) == 1:
        return f"client {request.clients[0]} has"
    return f"clients {', '.join(request.clients[:-1])} and {request.clients[-1]} have"


def welcome(config: Config, label: str, request: Request, earlier: Sequence[Request]) -> Method:
    """The method, if it can serve the request after the earlier ones.

    If it cannot, it is refused with the sentence that says why not.
    """
    method = config.method(label)
    admit(label, method, request.kind, *offers(config, label, request))
    method.after(earlier)
    return method.for_requests([*earlier, request])


# What becomes of a history that follows sums or rounds, by the lineage of the method that makes the model in force.
FATES: dict[tuple[str, Lineage], Literal["goes on", "anew", "ends"]] = {
    ("sums", "goes on"): "goes on",
    ("sums", "carried"): "goes on",
    ("sums", "moved"): "ends",
    ("sums", "anew"): "anew",
    ("sums", "ends"): "ends",
    ("rounds", "goes on"): "goes on",
    ("rounds", "carried"): "anew",
    ("rounds", "moved"): "anew",
    ("rounds", "anew"): "anew",
    ("rounds", "ends"): "ends",
}


def unbroken(config: Config, label: str, queue: Sequence[Entry]) -> None:
    """Refuse a method whose history would have ended before its turn comes.

    One that seals is refused too where recorded history would tell its draw.
    """
    _unbroken(config, label, [(entry.request.id, entry.method) for entry in queue])
    method, recorded = config.method(label), config.recorded()
    if method.seals and recorded:
        names = listed(recorded, last="and")
        raise UnfedError(
            f"This run recorded history for {names}, from which the old model can be put together again, and beside it"
            f" {method.title}'s draw is no secret; use {option('method', 'retrain')}, or train again without"
            " training.record."
        )


def lasting(method: Method, makers: Sequence[tuple[str, Method]], module: nn.Module, title: str) -> None:
    """Refuse a method that would bring back what a request took out.

    `makers` says who served which, oldest first; `title` is how the method is called.
    """
    line = _since_anew(makers, module)
    for i in reversed(range(len(line))):
        if back := method.undoes(module, [other for _, other in line[i:]]):
            raise UnfedError(
                f"{title} would turn {listed(back).replace(' or ', ' and ')} back to what it was before request"
                f" {line[i][0]!r}, and bring back what that request took out; use"
                f" {option('method', 'sealed')}, which has no way back, or {option('method', 'retrain')}."
            )


def warn_of_return(method: Method, makers: Sequence[tuple[str, Method]], module: nn.Module) -> None:
    """Warn where what a method takes out can come back all the same.

    Its perturbation can be turned back and follows one of its kind, or a method that lasts was told to do less.
    """
    before = [request for request, other in _since_anew(makers, module) if _invertible(other, module)]
    if before and _invertible(method, module):
        warnings.warn(
            f"{method.title} on other layers does not turn back what request {before[-1]!r} took out, but whoever has"
            f" the published model can turn both back; {option('method', 'sealed')} has no way back.",
            UnfedWarning,
            stacklevel=3,
        )
    if short := method.short_of(module):
        warnings.warn(short, UnfedWarning, stacklevel=3)


def _invertible(method: Method, module: nn.Module) -> bool:
    """Whether what a method does to layers, as it says itself, has an inverse that the world knows."""
    did = method.perturbed(module)
    return did is not None and bool(did.choices) and (did.how in INVERSES or (did.seeded and did.how in REDRAWN))


def _since_anew(makers: Sequence[tuple[str, Method]], module: nn.Module) -> list[tuple[str, Method]]:
    """The requests that the model in force is built upon, oldest first.

    They begin with the last one whose method starts over, or draws all that those before it had moved.
    """
    start = 0
    for i, (_, method) in enumerate(makers):
        moved = {c.name for _, m in makers[start:i] if (by := m.perturbed(module)) for c in by.choices}
        if method.lineage == "anew" or (method.seals and moved <= method.drawn(module)):
            start = i
    return list(makers[start:])


def unbroken_by_itself(config: Config, label: str, earlier: Sequence[Request]) -> None:
    """Refuse a method that cannot go on, in a comparison of several requests, with what it leaves itself."""
    _unbroken(config, label, [(request.id, label) for request in earlier])


def _unbroken(config: Config, label: str, before: Sequence[tuple[str, str]]) -> None:
    method, ended = config.method(label), ""
    if not method.follows:
        return
    for request, other in before:
        maker = config.method(other)
        fate = FATES[method.follows, maker.lineage]
        ended = {"goes on": ended, "anew": "", "ends": f"request {request!r} ({maker.title})"}[fate]
    if ended:
        raise UnfedError(
            f"{method.title} needs history of the way to the model in force, but that model was rebuilt by {ended},"
            " which leaves none; use not, ft or retrain."
        )


def recordable(config: Config) -> None:
    """Refuse to record rounds that do not lead to θ*, or in which clients have no share of their own."""
    for part, robust in (("training", config.training.robust), ("unlearning", config.unlearning.robust)):
        names = [n for n, method in config.recorded().items() if method.follows or part == "training"]
        if names and robust is not None and not Robust(**robust.model_dump()).additive:
            raise UnfedError(
                f"{listed(names, last='and')} cannot be recorded under {part}.robust.rule = {robust.rule!r}: no client"
                " has a share of its own in it; use mean or norm, or leave them out."
            )
    if (recorded := config.recorded()) and config.training.keep_model != "last":
        raise UnfedError(
            f"The history for {listed(recorded).replace(' or ', ' and ')} leads to the model of the last round, but"
            f" training.keep_model = {config.training.keep_model!r} keeps an earlier one; set it to 'last', or use"
            " methods that need no history."
        )


def history_of(folder: RunFolder, label: str, method: Method, training: Job, previous: Job) -> History | None:
    """What a method starts from, if it needs history at all."""
    if "history" not in method.needs:
        return None
    job = previous if method.follows else training
    not_purged(folder, label, method, job)
    found = folder.load_histories(job)
    if label not in found and job != training:
        raise UnfedError(
            f"{method.title} needs history of the way to the model in force, but request {job.request!r}"
            f" ({job.label}) left none; use not, ft or retrain."
        )
    if label not in found:
        raise UnfedError(
            f"{folder.state_file(job)} holds no history for {label}; it was trained without, so set"
            f' training.record = ["{label}"] and train again.'
        )
    return found[label]


def not_purged(folder: RunFolder, label: str, method: Method, job: Job) -> None:
    """Refuse a method whose history a purge took away."""
    if "history" not in method.needs or label in ((folder.numbers(job) or {}).get("histories") or {}):
        return
    buried, file = books.tombstones(folder.path), folder.state_file(job).relative_to(folder.path).as_posix()
    if grave := buried.get(f"{file}#{HISTORY}") or buried.get(file):
        raise UnfedError(
            f"{method.title} needs history, but {grave.sentence(folder.path)}; use"
            f" {option('method', 'not')}, ft or retrain."
        )


def recorders(
    folder: RunFolder, config: Config, method: Method, previous: Job, world: World, request: Request
) -> dict[str, Recorder]:
    """Who goes on recording, and from what, while `method` makes the next model in force."""
    kept = {label: recorded for label, recorded in config.recorded().items() if recorded.follows}
    known = folder.load_histories(previous) if kept else {}
    module, seed = world.template.module, world.seeds.request(request.id)
    found: dict[str, Recorder] = {}
    for label, recorded in kept.items():
        fate = FATES[recorded.follows, method.lineage]
        if fate == "anew":
            found[label] = Recorder(recorded)
        elif fate == "goes on" and label in known:
            history = known[label].to(world.device)
            if method.lineage == "carried":
                history = history.mapped(lambda own: method.carry(module, own, seed))
            found[label] = Recorder(recorded, history)
    return found
