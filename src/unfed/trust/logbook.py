"""What happens in a run, as leaves of its log.

    round         a model that a job reached, and the root over the pseudonyms of those who trained for it
    state         a request came to stand where it stands        gate         what the gate found, and who overruled it
    in-force      a model came into force                        publication  a model left the folder
    purge         files went for good                            unlinked     the secrets behind pseudonyms went
    deny          what no training may read, as a commitment     refusals     requests not believed, by hour and reason

Each leaf is a function of the folder, moments included, so entering what is missing is all that is ever done: after a
crash the next command does it. A state that came and went while nothing was entered has no leaf.

A round is entered by the watch, before the job saves, so no round is kept in the folder that is not in the log. A job
that is killed repeats rounds; what comes out the same has its leaf already.

`faults_of` says where the log and the run folder do not agree.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.engines.base import Observer
from unfed.errors import UnfedError
from unfed.federation.history import History
from unfed.federation.state import State
from unfed.folder import carriers
from unfed.folder.folder import RunFolder
from unfed.model.params import digests, fingerprint
from unfed.records import Count
from unfed.requests import book as books
from unfed.requests.entry import Entry, Job, now
from unfed.runs.progress import PassingWatch, Watch
from unfed.runs.record import RunRecord, logs_named
from unfed.runs.run import Run
from unfed.trust import log as logs
from unfed.trust.folder import ROSTER, TrustFolder, envelope_at, model_of
from unfed.trust.log import Checkpoint
from unfed.trust.participation import ROUND
from unfed.trust.signing import canonical

# --- what happens in a run, as leaves of its log ----------------------------------------------------------------------


REFUSED = "refused.json"


def enter(folder: RunFolder, trust: TrustFolder, purged: Sequence[str] = ()) -> None:
    """Enter what happened since, sign for it, and bring the index up to date.

    `purged` are requests that were purged just now, even if nothing was left to go.
    """
    storage.sweep_dead(trust.path.rglob(".*.tmp"))  # of killed writers
    entries = folder.book().entries
    gone = {*purged, *(grave.request for grave in books.tombstones(folder.path).values())}
    _unlink(trust, [entry for entry in entries if entry.request.id in gone])
    with trust.log.held():
        known = set(trust.log.lines)
        happened = [*due(folder, trust, entries), *_refusals(_counts(trust))]
        trust.log.append(*(leaf for leaf in happened if canonical(leaf) not in known), held=True)
        trust.log.sign(trust.key, held=True)


def count_refusal(trust: TrustFolder, reason: str) -> None:
    """Count a request that was not believed; its hour becomes one leaf when it is over.

    The caller holds the lock of the intake. What was refused is not kept, and who sent it is not said.
    """
    known, counts, hour = set(trust.log.lines), _counts(trust), now()[: len("2026-01-31T12")]
    logged = {leaf["at"][: len(hour)] for leaf in _refusals(counts) if canonical(leaf) in known}
    counts = {one: found for one, found in counts.items() if one not in logged}
    own = counts.setdefault(hour, {})
    own[reason] = own.get(reason, 0) + 1
    storage.write_json(trust.path / REFUSED, counts)


def _counts(trust: TrustFolder) -> dict[str, dict[str, int]]:
    path = trust.path / REFUSED
    raw = storage.read_json(path, "count of refusals") if path.exists() else {}
    return records.read(dict[str, dict[str, Count]], raw, str(path), "restore it from a copy, or delete it")


def _refusals(counts: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, Any]]:
    """A leaf for each hour that is over."""
    for hour in sorted(one for one in counts if one < now()[: len(one)]):
        yield {"type": "refusals", "at": f"{hour}:59:59Z", "reasons": dict(counts[hour])}


def due(folder: RunFolder, trust: TrustFolder, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every leaf that the folder gives, in the order of their moments."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        found += _about(folder, entry)
    found += _purges(folder, trust)
    for one in carriers.handed(folder):
        if one.what == "export":
            shown = {"sha256": one.sha256, "request": one.request, "method": one.method, "seed": one.seed}
            found.append({"type": "publication", "at": one.at, **shown})
    if entries:
        found.append(_deny(trust, entries))
    return sorted(found, key=lambda leaf: str(leaf["at"]))


def _about(folder: RunFolder, entry: Entry) -> Iterator[dict[str, Any]]:
    at, name = entry.changed or entry.created, entry.request.id
    if entry.gate is not None:
        checks = {str(check["name"]): str(check["verdict"]) for check in entry.gate["checks"]}
        shown = {"passed": bool(entry.gate.get("passed")), "accepted": entry.gate.get("accepted") is not None}
        digest = hashlib.sha256(canonical(dict(entry.gate))).hexdigest()
        yield {"type": "gate", "at": at, "request": name, "checks": checks, **shown, "sha256": digest}
    newer = {"superseded": entry.superseded} if entry.superseded else {}
    yield {"type": "state", "at": at, "request": name, "state": entry.state, "reason": entry.reason, **newer}
    if entry.state == "fulfilled" and not entry.left_by:
        model = model_of(folder, entry)
        yield {"type": "in-force", "at": at, "request": name, "method": entry.method, "model": model}


def _purges(folder: RunFolder, trust: TrustFolder) -> Iterator[dict[str, Any]]:
    graves: dict[tuple[str, str], list[str]] = {}
    for grave in books.tombstones(folder.path).values():
        graves.setdefault((grave.date, grave.request), []).append(f"{grave.sha256}  {grave.file}\n")
    for (date, name), lines in graves.items():
        digest = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        yield {"type": "purge", "at": date, "request": name, "files": len(lines), "sha256": digest}
    for date, count in trust.pseudonyms.destroyed().items():
        yield {"type": "unlinked", "at": date, "clients": count}


def _unlink(trust: TrustFolder, entries: Sequence[Entry]) -> None:
    """Destroy the secrets behind the pseudonyms of purged clients, and our copies of what names both."""
    for entry in entries:
        if entry.request.clients:
            trust.pseudonyms.destroy(entry.request.clients)
            if (answer := trust.file("acknowledgement", entry.request.id)).exists():
                storage.remove(answer)


def _deny(trust: TrustFolder, entries: Sequence[Entry]) -> dict[str, Any]:
    """The deny list as it stands: counts, and a keyed commitment to all of it."""
    accepted = [entry for entry in entries if entry.accepted]
    clients = sorted({name for entry in accepted for name in entry.request.clients})
    classes = sorted({number for entry in accepted for number in entry.request.classes})
    rows = sorted({row for entry in accepted for row in entry.rows})
    whole = canonical({"clients": clients, "classes": classes, "rows": rows})
    shown = {"clients": len(clients), "classes": len(classes), "rows": len(rows)}
    at = max(entry.created if entry.accepted else entry.changed or entry.created for entry in entries)
    return {"type": "deny", "at": at, **shown, "commitment": hmac.digest(trust.secret, whole, hashlib.sha256).hex()}


# --- rounds -----------------------------------------------------------------------------------------------------------


class LoggedWatch(PassingWatch):
    """Passes everything on, and logs it."""

    def __init__(self, run: Run, trust: TrustFolder, watch: Watch) -> None:
        super().__init__(watch)
        self._run, self._trust = run, trust
        self._rounds: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for leaf in trust.log.leaves:
            if leaf["type"] == ROUND:
                self._rounds[_where(leaf)] = leaf

    def logs(self, run: Path) -> bool:
        """Whether it is this run that is logged."""
        return self._run.folder.path.absolute() == run.absolute()

    def observer(self, job: Job) -> Observer | None:
        """The other watch's observer. What was asked for is entered before the method begins."""
        enter(self._run.folder, self._trust)
        return super().observer(job)

    def reached(self, job: Job, state: State, asked: Collection[str]) -> None:
        """A model, and who was asked to train for it."""
        trust = self._trust
        shown: dict[str, Any] = {"seed": job.seed, "request": job.request, "method": job.label, "round": state.round}
        shown |= {"model": fingerprint(digests(state.params))}
        shown |= {"participants": trust.participants.root(trust.pseudonyms.of(asked).values())}
        last = self._rounds.get(_where(shown), {})
        if any(last.get(name) != value for name, value in shown.items()):
            leaf = {"type": ROUND, "at": now(), **shown}
            trust.log.append(leaf)
            self._rounds[_where(leaf)] = leaf
        super().reached(job, state, asked)

    def saved(self, job: Job, state: State, histories: Mapping[str, History]) -> None:
        """What is saved is signed for."""
        self._trust.log.sign(self._trust.key)
        super().saved(job, state, histories)


@contextmanager
def logged(run: Run, watch: Watch | None = None) -> Iterator[Watch]:
    """A watch to work with in a run that keeps a log; what happened is entered before and after.

    Without the operator's key no work is done. A watch that logs this run already is as it was.
    """
    if isinstance(watch, LoggedWatch) and watch.logs(run.folder.path):
        yield watch
        return
    trust = TrustFolder(run.folder.path)
    enter(run.folder, trust)
    try:
        yield LoggedWatch(run, trust, watch or Watch())
    finally:
        enter(run.folder, trust)


def _where(leaf: Mapping[str, Any]) -> tuple[Any, ...]:
    return leaf.get("seed"), leaf.get("request"), leaf.get("method"), leaf.get("round")


# --- is what a run keeps of signed requests whole, and does the log say what the run folder says? ---------------------


def faults_of(run: Path, kept: Checkpoint | None = None) -> list[str]:
    """One sentence for each thing that is wrong; `kept` is a checkpoint that another party has."""
    try:
        trust = TrustFolder(run)
        said = logs.faults(trust.log, [trust.operator], kept)
        return said or _against_folder(RunFolder(run), trust)
    except UnfedError as error:
        return [str(error)]
    except OSError as error:
        return [f"Something could not be read ({error}); restore it from a copy."]


def _against_folder(folder: RunFolder, trust: TrustFolder) -> list[str]:
    """Whether everything that the folder says happened stands in the log, rounds and all."""
    said: list[str] = []
    if trust.roster.business != trust.operator.id:  # one that was changed is refused when it is read
        said.append(f"{trust.path / ROSTER} is the roster of another operator; sign it again.")
    for origin, state in logs_named(folder).items():
        if origin != trust.log.origin:
            said.append(f"{trust.path} has another log than the one that was kept when {state} was saved; restore it.")
    leaves, lines = trust.log.leaves, set(trust.log.lines)
    entries = folder.book().entries
    missing = [leaf for leaf in due(folder, trust, entries) if canonical(leaf) not in lines]
    if missing and not folder.busy():
        said.append(
            f"{len(missing)} things that happened in {folder.path} are not in its log yet (first a"
            f" {missing[0]['type']} at {missing[0]['at']}); {RunRecord(folder).going_on} enters them."
        )
    models = {leaf["model"] for leaf in leaves if leaf["type"] == ROUND}
    begun = next((leaf for leaf in leaves if leaf["type"] == "begin"), {})
    before = begun.get("models-before")
    since = ""
    if isinstance(before, list):
        models |= {model for model in before if isinstance(model, str)}
    else:  # a log from before these were named, which has the moment alone
        since = str(begun.get("at", ""))
    for leaf in leaves:
        if leaf["type"] == "in-force" and leaf["at"] >= since and leaf["model"] not in (None, *models):
            said.append(
                f"The model of request {leaf['request']!r} came into force, but no round in the log ends with it:"
                " it was made without the log."
            )
    for root in dict.fromkeys(leaf["participants"]["root"] for leaf in leaves if leaf["type"] == ROUND):
        try:
            trust.participants.of(root)
        except UnfedError as error:
            said.append(str(error))
    return list(dict.fromkeys([*said, *_signed(trust, leaves, entries)]))


def _signed(trust: TrustFolder, leaves: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> Iterator[str]:
    """Whether the signed files are those that were logged; the answers to purged clients may be gone."""
    gone = {entry.request.id for entry in entries if entry.purged and entry.request.clients}
    last = {(leaf["type"], str(leaf.get("request"))): leaf.get("sha256") for leaf in leaves}
    for (kind, name), digest in last.items():
        if kind not in ("roster", "request", "acknowledgement", "declined"):
            continue
        if kind == "acknowledgement" and name in gone:
            continue
        path = trust.path / ROSTER if kind == "roster" else trust.file(kind, name)
        try:
            kept = envelope_at(path, kind)
        except UnfedError as error:
            yield str(error)
            continue
        if kept is None or kept.digest != digest:
            yield f"{path} is not the {kind} that was logged; restore it from a copy."
