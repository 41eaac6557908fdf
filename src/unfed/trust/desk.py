"""A run's requests from outside: submit, follow, revoke, fetch the answer and the evidence.

One desk serves one run, one caller at a time, so nothing that is handed in at the same moment is lost. It knows nothing
of the network: `service.py` puts it on one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from unfed.errors import UnfedError
from unfed.folder import carriers
from unfed.report.words import date_text
from unfed.requests.entry import Entry, now
from unfed.runs.in_force import in_force
from unfed.runs.run import Run
from unfed.trust import bundle, index, intake, revocation
from unfed.trust.canonical import canonical, parsed
from unfed.trust.envelope import Envelope
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling
from unfed.trust.request import Opening


class Unknown(UnfedError):
    """There is no such thing here."""


class Desk:
    """Takes and answers requests for one run."""

    def __init__(self, run: Run, handling: Handling | None = None) -> None:
        self.run, self._handling = run, handling or Handling()
        self.trust = TrustFolder(run.folder.path)
        self.trust.key  # noqa: B018  (without it nothing can be answered: said before anybody asks)
        self._one_at_a_time = threading.RLock()

    # --- taking ---------------------------------------------------------------------------------------------------

    def submit(self, data: bytes) -> Envelope:
        """Take a signed request, alone or as {"request": …, "opening": …}; the signed answer."""
        opening, raw = None, parsed(data, "request")
        if isinstance(raw, Mapping) and "request" in raw:
            if set(raw) - {"request", "opening"}:
                raise UnfedError("Beside a signed request there can be its opening, and nothing else; send these.")
            opening = None if raw.get("opening") is None else Opening.from_json(raw["opening"])
            data = canonical(raw["request"])
        with self._one_at_a_time:
            return intake.receive(self.run, data, opening, self._handling).acknowledgement

    def revoke(self, data: bytes) -> dict[str, Any]:
        """Let a request go, by a signed revocation; where it stands now."""
        with self._one_at_a_time:
            return self.follow(revocation.receive(self.run, data).request.id)

    # --- telling --------------------------------------------------------------------------------------------------

    def queue(self) -> list[dict[str, Any]]:
        """Every request in the order in which they came, as the page and the interface show it."""
        with self._one_at_a_time:
            rows = index.rows(self.run.folder, self.trust)  # before the files: what another process files is in these
            entries, carried = {entry.request.id: entry for entry in self.run.folder.book().entries}, self._carried()
            return [_told(row, entries[row.id], carried.get(row.id, [])) for row in rows]

    def follow(self, name: str) -> dict[str, Any]:
        """Where one request stands."""
        found = next((row for row in self.queue() if row["id"] == name), None)
        if found is None:
            raise Unknown(f"There is no request {name[:64]!r} here; check its id.")
        return found

    def story(self, name: str) -> dict[str, Any]:
        """One request with everything that the log says of it, in words."""
        with self._one_at_a_time:
            found, entry = self.follow(name), self.run.queue.book.find(name)
            assert entry is not None
            own = index.leaves_about(entry, self.trust.log.leaves)
            events = [(date_text(str(leaf["at"])), said) for leaf in _without_rounds(own) if (said := _event(leaf))]
            checks = (entry.gate or {}).get("checks") or []
            return {
                **found,
                "events": events,
                "checks": checks,
                "way_out": self.run.way_out(entry) if entry.owed else "",
            }

    def acknowledgement(self, name: str) -> Envelope:
        """The signed answer to a request."""
        self.follow(name)
        answer = self.trust.acknowledgement(name)
        if answer is None:
            raise Unknown(f"Request {name!r} has no signed answer here: it came unsigned, or it was purged.")
        return answer

    def bundle(self, name: str) -> Envelope:
        """The evidence of a request that was served."""
        self.follow(name)
        with self._one_at_a_time:
            entry = served(self.run, name)
            return bundle.sign(findings(self.run, entry), self.trust.key, bundle.from_log(self.run, entry))

    def in_force(self) -> str:
        """Which model is in force, in words."""
        return "; ".join(in_force(self.run, seed).sentence for seed in self.run.config.seed_list)

    def _carried(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in carriers.influence(self.run.folder, self.run.folder.book()):
            found.setdefault(one["request"], []).append(one["what"])
        return found


def _told(row: index.Row, entry: Entry, carried: list[str]) -> dict[str, Any]:
    over = entry.state in ("fulfilled", "revoked")
    counts = {what: carried.count(what) for what in carried}
    return {
        "id": row.id,
        "subject": entry.request.subject,
        "state": row.state,
        "reason": row.reason,
        "standing": entry.standing,
        "phase": row.phase if row.state == "in_progress" else None,
        "signed_by": row.agent,
        "asked": row.received or row.created,
        "changed": row.changed,
        "expected_by": row.expected_by,
        "overdue": bool(row.expected_by and not over and row.expected_by < now()),
        "owed": entry.owed,
        "shared_with": max(0, len(entry.together) - 1),
        "why": entry.why,
        "still_carries": [{"what": what, "files": count} for what, count in counts.items()],
    }


def _without_rounds(leaves: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The leaves, of a stretch of rounds only the first and the last: a story has no thousand lines."""
    kept = []
    for place, leaf in enumerate(leaves):
        beside = [*leaves[place - 1 : place], *leaves[place + 1 : place + 2]]
        inside = len(beside) == 2 and all(one["type"] == "round" for one in beside)
        if leaf["type"] != "round" or not inside or leaf["round"] == 0:
            kept.append(leaf)
    return kept


def _event(leaf: Mapping[str, Any]) -> str:
    """A leaf of the log as a reader would say it."""
    kind = leaf["type"]
    if kind == "round":
        asked = leaf["participants"]["size"]
        return f"round {leaf['round']}: {asked} clients trained" if leaf["round"] else "the model was perturbed"
    if kind == "state":
        return str(leaf["state"]).replace("_", " ") + (f" ({leaf['reason']})" if leaf.get("reason") else "")
    if kind == "gate":
        said = ", ".join(f"{name} {verdict}" for name, verdict in dict(leaf.get("checks") or {}).items())
        return f"the gate: {said}" + ("; put in force all the same" if leaf.get("accepted") else "")
    words = {
        "request": "the signed request was received",
        "declined": "the operator refused it, with a signed reason",
        "acknowledgement": f"acknowledged, to be answered by {date_text(str(leaf.get('expected_by')))}",
        "in-force": "its model came into force",
        "publication": "its model was exported",
        "purge": f"{leaf.get('files')} files that carried it were deleted",
    }
    return words.get(kind, "")
