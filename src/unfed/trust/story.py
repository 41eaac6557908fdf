"""What the run folder says happened, as leaves of the log.

    state         a request came to stand where it stands        gate         what the gate found, and who overruled it
    in-force      a model came into force                        publication  a model left the folder
    purge         files went for good                            unlinked     the secrets behind pseudonyms went
    deny          what no training may read, as a commitment

Each leaf is a function of the folder, moments included, so entering what is missing is all that is ever done: after a
crash the next command does it. A state that came and went while nobody entered anything has no leaf.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import Any

from unfed import storage
from unfed.runs import consistency, handed_out
from unfed.runs.folder import RunFolder
from unfed.runs.requests import Entry
from unfed.trust import index
from unfed.trust.canonical import canonical
from unfed.trust.folder import TrustFolder, model_of


def enter(folder: RunFolder, trust: TrustFolder, purged: Sequence[str] = ()) -> None:
    """Enter what happened since, sign for it, and bring the index up to date.

    `purged` are requests that were purged just now, even if nothing was left to go.
    """
    storage.sweep_dead(trust.path.rglob(".*.tmp"))  # of killed writers
    entries = folder.requests()
    gone = {*purged, *(grave.request for grave in consistency.tombstones(folder.path).values())}
    _unlink(trust, [entry for entry in entries if entry.request.id in gone])
    with trust.log.held():
        known = set(trust.log.lines)
        trust.log.append(*(leaf for leaf in due(folder, trust, entries) if canonical(leaf) not in known), held=True)
        trust.log.sign(trust.key, held=True)
    index.refresh(folder, trust)


def due(folder: RunFolder, trust: TrustFolder, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every leaf that the folder gives, in the order of their moments."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        found += _about(folder, entry)
    found += _purges(folder, trust)
    for one in handed_out.listed(folder):
        if one.what == "export":
            told = {"sha256": one.sha256, "request": one.request, "method": one.method, "seed": one.seed}
            found.append({"type": "publication", "at": one.at, **told})
    if entries:
        found.append(_deny(trust, entries))
    return sorted(found, key=lambda leaf: str(leaf["at"]))


def _about(folder: RunFolder, entry: Entry) -> Iterator[dict[str, Any]]:
    at, name = entry.changed or entry.created, entry.request.id
    if entry.gate is not None:
        checks = {str(check["name"]): str(check["verdict"]) for check in entry.gate["checks"]}
        told = {"passed": bool(entry.gate.get("passed")), "accepted": entry.gate.get("accepted") is not None}
        digest = hashlib.sha256(canonical(dict(entry.gate))).hexdigest()
        yield {"type": "gate", "at": at, "request": name, "checks": checks, **told, "sha256": digest}
    yield {"type": "state", "at": at, "request": name, "state": entry.state, "reason": entry.reason}
    if entry.state == "fulfilled" and not entry.left_by:
        model = model_of(folder, entry)
        yield {"type": "in-force", "at": at, "request": name, "method": entry.method, "model": model}


def _purges(folder: RunFolder, trust: TrustFolder) -> Iterator[dict[str, Any]]:
    graves: dict[tuple[str, str], list[str]] = {}
    for grave in consistency.tombstones(folder.path).values():
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
            if (answer := trust.acknowledgement_file(entry.request.id)).exists():
                storage.remove(answer)


def _deny(trust: TrustFolder, entries: Sequence[Entry]) -> dict[str, Any]:
    """The deny list as it stands: counts, and a keyed commitment to all of it."""
    accepted = [entry for entry in entries if entry.accepted]
    clients = sorted({name for entry in accepted for name in entry.request.clients})
    classes = sorted({number for entry in accepted for number in entry.request.classes})
    rows = sorted({row for entry in accepted for row in entry.rows})
    whole = canonical({"clients": clients, "classes": classes, "rows": rows})
    told = {"clients": len(clients), "classes": len(classes), "rows": len(rows)}
    at = max(entry.created if entry.accepted else entry.changed or entry.created for entry in entries)
    return {"type": "deny", "at": at, **told, "commitment": hmac.digest(trust.secret, whole, hashlib.sha256).hex()}
