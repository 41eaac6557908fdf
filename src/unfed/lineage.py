"""What a run can offer a method, and which history leads to the model it starts from.

    train ──► request 1 ──► request 2 ──► …          each job's state holds the histories up to its model

FedEraser replays the training, so it reads the training's history whatever came since. FUKD and PGD start at the model
in force, so theirs goes on with every recovery and is read from the job that made that model. Retrain begins a new
history; FedEraser ends the others, for its rounds are not rounds they could read.
"""

from __future__ import annotations

from collections.abc import Sequence

from unfed.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder import Entry, Job, RunFolder
from unfed.history import History, Recorder
from unfed.methods import Method, admit


def offers(config: Config, label: str, request: Request) -> tuple[frozenset[str], dict[str, str]]:
    """What a run has for a method on a request, and why it lacks the rest."""
    there, missing = {"retain", "init"}, {}
    if config.setting == "central":
        there.add("central")
    if request.deleted:
        missing["forget"] = f"{_owners(request)} deleted it"
    else:
        there.add("forget")
    if label in config.recorded():
        there.add("history")
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
    """The method, if it can serve the request after the earlier ones; else the sentence that says why not."""
    method = config.method(label)
    admit(label, method, request.kind, *offers(config, label, request))
    method.after(earlier)
    return method


def unbroken(config: Config, label: str, queue: Sequence[Entry]) -> None:
    """Refuse a method whose history would have ended before its turn comes."""
    method, ended = config.method(label), ""
    for entry in queue:
        lineage = config.method(entry.method).lineage
        ended = {"goes on": ended, "anew": "", "ends": entry.request.id}[lineage]
    if method.follows and ended:
        raise UnfedError(
            f"{method.title} needs history of the way to the model in force, but that model was rebuilt by request"
            f" {ended!r}, which leaves none; use not, ft or retrain."
        )


def history_of(folder: RunFolder, label: str, method: Method, training: Job, previous: Job) -> History | None:
    """What a method starts from, if it needs history at all."""
    if "history" not in method.needs:
        return None
    job = previous if method.follows else training
    found = folder.load_histories(job)
    if label not in found:
        raise UnfedError(
            f"{folder.state_file(job)} holds no history for {label}; it was trained without, so set"
            f' training.record = ["{label}"] and train again.'
        )
    return found[label]


def recorders(folder: RunFolder, config: Config, method: Method, previous: Job) -> dict[str, Recorder]:
    """Who goes on recording while `method` makes the next model in force."""
    kept = {label: recorded for label, recorded in config.recorded().items() if recorded.follows}
    known = folder.load_histories(previous) if kept and method.lineage == "goes on" else {}
    return {label: Recorder(recorded, known.get(label, History())) for label, recorded in kept.items()}


def influence(folder: RunFolder, config: Config) -> list[dict[str, str]]:
    """Every file that still carries what a request takes out, and how: {request, file, what}."""
    found: list[dict[str, str]] = []
    entries = folder.requests()
    for entry in entries:
        later = [Job(e.seed, e.request.id, e.method) for e in entries if e.number >= entry.number]
        found += _carriers(folder, entry.seed, entry.request, later)
    compared = config.requests()
    for i, request in enumerate(compared):
        for seed in config.seed_list:
            later = [Job(seed, r.id, label) for r in compared[i:] for label in config.methods.run]
            found += _carriers(folder, seed, request, later)
    return found


def _carriers(folder: RunFolder, seed: int, request: Request, clean: Sequence[Job]) -> list[dict[str, str]]:
    """`clean` are the jobs that left it out."""
    found: list[tuple[str, str]] = []
    kinds = {"models": "a model that was trained with it", "state": "the state of a job that trained with it"}
    for kind, what in kinds.items():
        for path in sorted((folder.path / kind / str(seed)).rglob("*.safetensors")):
            job = path.relative_to(folder.path / kind).with_suffix("")
            if job.name != "before" and job not in {own.path for own in clean}:
                found.append((f"{kind}/{job}.safetensors", what))
    for path, numbers in folder.states():
        if path.is_relative_to(folder.path / "state" / str(seed)):
            for label, history in numbers.get("histories", {}).items():
                own = [client for client in request.clients if client in history["clients"]]
                what = f"records of client {', '.join(own)}" if own else "records of others, made beside it"
                found.append((str(path.relative_to(folder.path)), f"history for {label}: {what}"))
    if (folder.path / "samples" / str(seed)).exists():
        found.append((f"samples/{seed}", "how models score its rows, kept as evidence"))
    return [{"request": request.id, "file": file, "what": what} for file, what in found]
