"""What a run folder says of one served request, as it may be handed to others.

Measured values with their intervals, what came back when undoing was tried, what was not measured, which data was read,
versions and config. Never a tensor, a sample's id, a path of this machine, or the difference between the models before
and after. Nothing that the folder names is built or run for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy.stats import beta

from unfed import storage
from unfed.errors import UnfedError, listed
from unfed.folder import carriers, study_results
from unfed.folder.folder import RunFolder
from unfed.folder.layout import MethodFacts
from unfed.measures.trajectory import forget_of, job_of
from unfed.model.params import fingerprint
from unfed.requests.entry import Entry, Job
from unfed.runs.description import plain_request
from unfed.runs.record import RunRecord
from unfed.trust import verifier
from unfed.values import is_measured, not_measured

SHARES = {"retain": "on the data that stays", "forget": "on the data that leaves", "test": "on test data"}
OTHERS = {
    "validation": "mean accuracy on the validation rows of those who stay, in percent",
    "mia": "accuracy of a membership attack by loss, in percent; 50 cannot tell",
    "backdoor": "stamped test images read as the target class, in percent",
}
NO_INTERVAL = not_measured("one value of one model, of which no spread is known")
_PLAIN = ("measured", "checks", "value")  # words that say nothing about what was not measured
_DROPPED = ("request", "deny", "poison")
_PLACES = (("data", "root"), ("model", "initial"))


def served(record: RunRecord, request: str | None = None) -> Entry:
    """The request, if there is something to give evidence of.

    Without a name it is the only one that was served.
    """
    entries = record.folder.book().entries
    if request is None:
        done = [one for one in entries if one.state == "fulfilled"]
        if not done:
            called = "it belongs to a call of unfed.unlearn, and `{}` shows what was measured"
            command = record.command("report" if (call := record.description.call) else "forget")
            what = (called if call else "`{}` serves one").format(command)
            raise UnfedError(f"{record.folder.path} has served no request, so there is no evidence to sign; {what}.")
        if len(done) > 1:
            known = listed(one.request.id for one in done)
            raise UnfedError(f"Say which request with --request; {record.folder.path} has served {known}.")
        return done[0]
    entry = next((one for one in entries if one.request.id == request), None)
    if entry is None:
        known = listed(one.request.id for one in entries) or "no requests"
        raise UnfedError(f"This run has no request {request!r}; it has {known}.")
    if entry.state != "fulfilled":
        raise UnfedError(
            f"Request {request!r} is {entry.standing}, so there is no evidence; see `{record.command('status')}`."
        )
    if entry.left_by:
        typed = [record.command("bundle", "--request", one, "-o", "evidence.json") for one in entry.left_by]
        others = listed((f"`{command}`" for command in typed), last="and")
        raise UnfedError(f"Nothing of request {request!r} was left in training, so no model was made; see {others}.")
    return entry


def findings(record: RunRecord, entry: Entry) -> dict[str, Any]:
    """Everything that is said of one served request."""
    job, about = Job(entry.seed, entry.request.id, entry.method), record.about(entry.method, entry)
    line, was = _last_line(record, job), _last_line(record, Job(entry.seed, entry.request.id, "before"))
    measured = _measured(record.folder, job, entry, line, was)
    undone = _undone(record, job, entry)
    gate = dict(entry.gate or {})
    return {
        "request": _request(entry),
        "method": {
            "name": entry.method,
            "title": about.title,
            "until": entry.until,
            "rounds": int(line.get("round", 0)),
            "hyperparameters": dict(entry.how.set),
            "shared_with": max(0, len(entry.together) - 1),
        },
        "models": models(record, job),
        "views": _views(about),
        "measured": measured,
        "gate": gate,
        "undo": undone,
        "earlier": [*(line.get("earlier") or {}).values()],  # their names may be those of other clients
        "still_carries": _carries(record, entry.request.id),
        "not_measured": sorted(set(_missing({"measured": measured, "gate": gate, "undo": undone}))),
        "config": _config(record.description.config),
        "versions": _versions(record, job),
        "engine": record.description.engine,
        "hardware": record.description.hardware,
    }


def _versions(record: RunRecord, job: Job) -> dict[str, str]:
    """The versions by which a job came to its end; of an older state, those of the run."""
    saved = record.folder.saved(job)
    return dict((saved and saved.versions) or record.description.versions)


def models(record: RunRecord, job: Job) -> dict[str, str]:
    """The fingerprint of the model that came out and its form, and that of the one that went in.

    The last one where it was noted; the form while the model's file is there.
    """
    saved = record.folder.saved(job)
    if saved is None or (after := saved.bound.model) is None:
        raise UnfedError(f"{record.folder.state_file(job)} does not say which model came out; resume the run first.")
    begun = saved.diary.beginning
    found = {"after": after} | ({"before": fingerprint(begun.went_in)} if begun and begun.went_in else {})
    return found | ({"form": _form(file, after)} if (file := record.folder.model_file(job)).exists() else {})


def _form(file: Path, model: str) -> str:
    """What vouches for a model's types and shapes, which its fingerprint leaves out."""
    try:
        given, form = verifier.described(file)
    except verifier.NotVerified as error:
        raise UnfedError(f"The model {file} is damaged; restore it from a copy.") from error
    if given != model:
        raise UnfedError(f"The model {file} is not the one that its job left; restore it from a copy.")
    return form


def _request(entry: Entry) -> dict[str, Any]:
    asked = plain_request(entry.request)
    del asked["forgotten_rows"]
    return asked | {
        "rows": (entry.described or {}).get("forgotten_rows"),
        "asked": entry.created,
        "begun": entry.begun,
        "fulfilled": entry.changed,
        "attempts": [{name: tried.get(name) for name in ("method", "reason", "at")} for tried in entry.attempts],
    }


def _last_line(record: RunRecord, job: Job) -> Mapping[str, Any]:
    own = [line for line in record.lines() if job_of(line) == job.key]
    return dict(own[-1]) if own else {}


def _measured(
    folder: RunFolder, job: Job, entry: Entry, line: Mapping[str, Any], was: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What the last round says: each value with its rows and 95 % interval, or why there is none.

    Beside it stands the same value of the model before the request, `was`.
    """
    rows = {**(line.get("rows") or {}), **_rows(folder, job, int(line.get("round", 0)))}
    known = (entry.described or {}).get("forgotten_rows")
    if isinstance(known, int) and not entry.request.deleted:
        # The scores that are kept are those of all who left; where others did before, the line says its own.
        rows["forget"] = known if "own" in line else rows.get("forget", known)
    found: dict[str, dict[str, Any]] = {}
    for name, where in SHARES.items():
        if name == "forget" and "own" not in line and (entry.earlier or entry.together):
            where = "on all the data that has left: of this request, and of those before it or beside it"
        value, before = ((forget_of(one) if name == "forget" else one.get(name)) for one in (line, was))
        count = rows.get(name)
        noted: dict[str, Any] = {"what": f"accuracy {where}, in percent", "value": _known(value)}
        noted["before"] = _known(before)
        if is_measured(value) and count:
            noted |= {"rows": count, "interval": interval(round(float(value) * count / 100), count)}
        else:
            noted["interval"] = not_measured("the folder does not say over how many rows")
        found[name] = noted
    for name, what in OTHERS.items():
        found[name] = {"what": what, "value": _known(line.get(name)), "interval": NO_INTERVAL}
    return found


def interval(right: int, rows: int) -> list[float]:
    """The two-sided 95 % interval of a share in percent (Clopper–Pearson)."""
    low = 0.0 if right == 0 else float(beta.ppf(0.025, right, rows - right + 1))
    high = 1.0 if right >= rows else float(beta.ppf(0.975, right + 1, rows - right))
    return [100.0 * low, 100.0 * high]


def _rows(folder: RunFolder, job: Job, round: int) -> dict[str, int]:
    """How many rows were scored, where the scores of single rows are still kept."""
    path = folder.path / "samples" / job.path / f"{round:06d}.safetensors"
    if not path.exists():
        return {}
    tensors = storage.load(path, "scores")[0]
    return {part: tensors[f"{part}/correct"].numel() for part in ("forget", "test") if f"{part}/correct" in tensors}


def _known(value: Any) -> Any:
    return not_measured("no round was scored") if value is None else value


def _views(about: MethodFacts) -> dict[str, Any]:
    """Which rows the method trains on, as it was written down when it was chosen."""
    if (needs := about.needs) is None:
        return {"trained_on": None, "said": "This run does not say which views of the data the method reads."}
    forget = "forget" in needs
    return {
        "trained_on": sorted(needs),
        "said": "The method also reads the rows that leave."
        if forget
        else "The method trains on the rows that stay, and asks for no other.",
    }


_HEADS = ("forget", "test", "backdoor", "class_back", "reason")
_TRIED: dict[str, tuple[str, ...]] = {
    "flip": ("forget", "test", "backdoor", "mia", "reason"),
    "lift": ("back_1", "back_5", "reason"),
    "realign": ("forget", "backdoor", "bound", "tried", "usable", "reason"),
    "resurface": ("forget_rise", "backdoor_rise", "rounds", "reason"),
    "relearn": ("area", "rounds", "reason"),
    "triggers": ("own", "known", "gained", "reason"),
    "stitch": _HEADS,
    "graft": _HEADS,
    "trigger": ("auc", "rows", "reason"),
    "probe": ("reads_5", "reads_20", "reads_100", "reason"),
}
"""Which numbers of each way of undoing are signed; the last four are found under `inside`."""


def _undone(record: RunRecord, job: Job, entry: Entry) -> dict[str, Any] | str:
    """What came back when undoing was tried, without what the two models differ in."""
    tried = study_results.measured(record.folder, record.config)
    whole = next((one for one in tried if (one.seed, one.request, one.method) == job.key), None)
    if whole is None:
        if entry.purged:  # a probe trains on what it took out, and is refused from then on
            return not_measured("what was tried, if anything, was purged with the data that left")
        if entry.request.id in study_results.purged(record.folder):
            return not_measured("what was tried was purged with other data (`unfed probe` tries again)")
        return not_measured("undoing was not tried (`unfed probe` tries it)")
    found: dict[str, Any] = {}
    for name in ("unlearned", "retrain"):
        own = whole.measured.get(name) or {}
        own = {**(own.get("inside") or {}), **own}
        found[name] = {tried: _only(own.get(tried), names) for tried, names in _TRIED.items()}
    return found


def _only(table: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table} if isinstance(table, Mapping) else {}


def _carries(record: RunRecord, request: str) -> list[dict[str, Any]]:
    """What in the folder still carries the request: which kinds of files, and how many of each."""
    counts: dict[str, int] = {}
    for one in carriers.influence(record.folder, record.folder.book()):
        if one.request == request:
            counts[one.what] = counts.get(one.what, 0) + 1
    return [{"what": what, "files": count} for what, count in counts.items()]


def _missing(value: Any, where: str = "") -> list[str]:
    """Every value inside that was not measured, with its place."""
    if isinstance(value, str):
        return [f"{where}: {value.removeprefix('not measured: ')}"] if value.startswith("not measured: ") else []
    if isinstance(value, Mapping):
        name = str(value["name"]) if isinstance(value.get("name"), str) else ""
        inner = f"{where} {name}".strip()
        kept = {key: own for key, own in value.items() if key != "interval"}
        return [
            one
            for key, own in kept.items()
            for one in _missing(own, inner if key in _PLAIN else f"{inner} {key}".strip())
        ]
    if isinstance(value, list):
        return [one for own in value for one in _missing(own, where)]
    return []


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without requests, rows, a planted backdoor, and paths of this machine."""
    kept = {name: value for name, value in config.items() if name not in _DROPPED}
    for table, key in _PLACES:
        if isinstance(kept.get(table), Mapping) and kept[table].get(key) is not None:
            kept[table] = {**kept[table], key: "given, not shown"}
    return kept
