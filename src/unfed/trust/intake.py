"""Take in a signed request: believe or refuse it, file it in the run's queue, log and answer it.

    bytes ─► envelope ─► signer on the roster ─► its own data, in time, new ─► queue ─► leaf ─► acknowledgement
                 └────────────── refused with a sentence, and logged by a word ──────────────┘

A killed process leaves steps undone; the same bytes handed in again take the rest of them. Once answered, they are a
replay, and refused. Only the agent who signed a request can revoke it. The operator's refusal (GDPR, Article 12(4)) is
signed and logged: the request stays owed, and the client may hand it in again. `Intake` is all of this for one run, one
caller at a time; `service.py` puts it on a network.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unfed import records, storage
from unfed.data import Request
from unfed.errors import Halted, UnfedError
from unfed.folder import carriers
from unfed.folder import locks as presence
from unfed.folder.folder import RunFolder
from unfed.report.wording import date_text
from unfed.requests.entry import Entry, now
from unfed.requests.options import RequestOptions
from unfed.runs.run import Run
from unfed.runs.status import in_force
from unfed.trust import bundle, logbook, request, signing, verifier
from unfed.trust.findings import findings, served
from unfed.trust.folder import TrustFolder
from unfed.trust.participation import OPERATOR
from unfed.trust.request import Asked, NotBelieved, Opening, Revoked
from unfed.trust.signing import Envelope, canonical, parsed


@dataclass(frozen=True)
class Handling:
    """How the operator serves a request; nothing of it is the requester's to say."""

    method: str | None = None
    until: str | None = None
    seed: int | None = None
    how: RequestOptions = field(default_factory=RequestOptions)


@dataclass(frozen=True)
class Taken:
    """A request that was taken: as it stands in the queue, and the answer to it."""

    entry: Entry
    acknowledgement: Envelope


def receive(run: Run, data: bytes, opening: Opening | None = None, handling: Handling | None = None) -> Taken:
    """Take a signed request into the queue of a run; what is not believed is refused, and that is logged."""
    trust = TrustFolder(run.folder.path)
    with presence.held(trust.path, "intake", wait=-1):
        with _counted(trust, "opening"):
            signed, asked = believe(trust, data)
            wanted = asked.request(opening)
        with _counted(trust, "queue"):
            return _take(run, trust, signed, asked, wanted, handling or Handling())


@contextmanager
def _counted(trust: TrustFolder, reason: str) -> Iterator[None]:
    """Count a refusal in this block, for the log."""
    try:
        yield
    except Halted:
        raise
    except UnfedError as error:
        logbook.count_refusal(trust, error.reason if isinstance(error, NotBelieved) else reason)
        raise


def believe(trust: TrustFolder, data: bytes) -> tuple[Envelope, Asked]:
    """The request in these bytes, if it is to be believed and was not answered before."""
    try:
        signed = signing.read(data, "request")
    except UnfedError as error:
        raise NotBelieved("unreadable", str(error)) from error
    asked = request.believed(signed, trust.roster)
    before, answer = trust.kept("request", asked.id), _leaf_of(trust, "acknowledgement", asked.id)
    again = _since_declined(trust, answer, asked.id)
    same = again and before is not None and _who_and_what(before) == _who_and_what(signed)
    if before is not None and before.digest != signed.digest and not same:
        raise NotBelieved("replayed", f"The id {asked.id!r} was used for another signed request; sign it again.")
    if answer is not None and not again:
        raise NotBelieved("replayed", f"Request {asked.id!r} was answered at {answer[1]['at']}; it is served once.")
    if before is None and asked.log != trust.log.origin:  # one that this run began to take is its own
        named = (
            "no federation, so any run could take it" if asked.log is None else f"another federation ({asked.log!r})"
        )
        raise NotBelieved("federation", f"The request names {named}; sign it for this one, with --log.")
    return signed, asked


def _take(run: Run, trust: TrustFolder, signed: Envelope, asked: Asked, wanted: Request, handling: Handling) -> Taken:
    """The steps after belief, each of which is not done again where it was done before."""
    begun, queued, before = (
        trust.file("request", asked.id),
        run.queue.book.find(asked.id),
        trust.kept("request", asked.id),
    )
    if before is None and queued is not None:
        raise UnfedError(f"The id {asked.id!r} stands in the queue already, unsigned; sign again under another.")
    storage.write_bytes(begun, signed.to_bytes())  # the intent
    try:
        entry = run.ask(wanted, handling.method, handling.until, handling.seed, asked.expires, handling.how)[0]
    except Halted:
        raise
    except UnfedError:
        if before is None or queued is None:
            storage.remove(begun)
        else:  # it was declined, and stays so
            storage.write_bytes(begun, before.to_bytes())
        raise
    found = _leaf_of(trust, "request", asked.id)
    if found is None or _since_declined(trust, found, asked.id):
        leaf = {"type": "request", "at": now(), "request": asked.id, "sha256": signed.digest, "model": asked.model}
        found = trust.enter(leaf)[0], leaf
    place, leaf = found
    answer = _answer(trust, signed, asked, place, str(leaf["at"]))
    logbook.enter(run.folder, trust)
    return Taken(entry, answer)


def _answer(trust: TrustFolder, signed: Envelope, asked: Asked, place: int, received: str) -> Envelope:
    """Sign the acknowledgement, keep it, log it."""
    name = None if asked.kind == "classes" or asked.agent == OPERATOR else asked.agent
    pseudonym = None if name is None else trust.pseudonyms.of([name])[name].hex()
    business = trust.operator.id
    client = {"pseudonym": pseudonym, "signer": trust.bound_key(asked.agent)}
    answer = request.acknowledge(signed, received, business, client, trust.log, place, trust.key)
    storage.write_bytes(trust.file("acknowledgement", asked.id), answer.to_bytes())
    due = request.month_later(received)
    noted = {"type": "acknowledgement", "at": now(), "request": asked.id, "sha256": answer.digest, "expected_by": due}
    trust.enter(noted)
    return answer


def _leaf_of(trust: TrustFolder, type: str, name: str) -> tuple[int, dict[str, Any]] | None:
    """The last leaf of a type about a request, with its place."""
    found = [(n, leaf) for n, leaf in enumerate(trust.log.leaves) if leaf["type"] == type and leaf["request"] == name]
    return found[-1] if found else None


def _since_declined(trust: TrustFolder, leaf: tuple[int, Any] | None, name: str) -> bool:
    """Whether the operator refused a request after this leaf of it, so that it may be handed in again."""
    declined = _leaf_of(trust, "declined", name)
    return declined is not None and (leaf is None or leaf[0] < declined[0])


def _who_and_what(signed: Envelope) -> tuple[Any, Any]:
    asked = request.read(signing.shown(signed))
    return asked.agent, asked.scope


# --- taking back and refusing -----------------------------------------------------------------------------------------


REFUSAL = "application/vnd.unfed.refusal+json"
COMPLAINT = "You may complain to a supervisory authority, and go to court (GDPR, Articles 12(4), 77 and 79)."


def take_back(run: Run, data: bytes) -> Entry:
    """Let a request go, if the signer of this may; a refusal is logged."""
    trust = TrustFolder(run.folder.path)
    with presence.held(trust.path, "intake", wait=-1):
        with _counted(trust, "revocation"):
            name = _revocable(trust, signing.read(data, "revocation"))
        entry = run.queue.withdraw(name, trust.agent(name))
    logbook.enter(run.folder, trust)
    return entry


def _revocable(trust: TrustFolder, signed: Envelope) -> str:
    """The id of the request that may be let go."""
    raw, key_id = signing.opened(signed, request.REVOCATION, trust.roster.keys, "revocation")
    asked = records.read(Revoked, raw, "The revocation", "sign it again")
    signer = trust.roster.agent(key_id)
    if (asked.agent, asked.business) != (signer, trust.roster.business):
        raise UnfedError("The revocation names another agent or operator than those who signed and got it.")
    if signer != (trust.agent(asked.id) or OPERATOR):
        raise UnfedError(f"Request {asked.id!r} is not one that {signer!r} asked for, so it stays; ask its signer.")
    return asked.id


def refuse(run: Run, name: str, reason: str) -> Path:
    """Refuse a request, signed by the operator; the file that goes to the client."""
    trust, wanted = TrustFolder(run.folder.path), reason.strip()
    if not 0 < len(wanted) <= 2000 or not verifier.one_line(wanted):
        raise UnfedError("A refusal needs a reason in one line of at most 2,000 characters; give it with --reason.")
    with presence.held(trust.path, "intake", wait=-1):
        asked = trust.kept("request", name)
        if asked is None:
            raise UnfedError(f"Request {name!r} came unsigned; `{run.command('withdraw', name)}` lets it go.")
        noted = {"business-id": trust.operator.id, "agent-request-id": name, "request": asked.digest}
        signed = signing.sign(
            REFUSAL, {**noted, "decided-at": now(), "reason": wanted, "complaint": COMPLAINT}, trust.key
        )
        run.queue.refuse(name, wanted)
        storage.write_bytes(trust.file("declined", name), signed.to_bytes())
        trust.enter({"type": "declined", "at": now(), "request": name, "sha256": signed.digest})
    logbook.enter(run.folder, trust)
    return trust.file("declined", name)


# --- where requests stand ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntakeRow:
    """Where a request stands, from its file and the log: a row of the page and of the interface."""

    id: str
    subject: str
    state: str
    reason: str | None
    standing: str
    phase: str | None
    """Where it is while it is served: filed, perturbed, round k, gated, published."""
    signed_by: str | None
    """Who signed it; None where it was asked without a signature."""
    asked: str
    changed: str | None
    expected_by: str | None
    overdue: bool
    owed: bool
    shared_with: int
    why: str | None
    still_carries: list[dict[str, str | int]]
    """What in the folder carries it, and how many files."""


def rows(folder: RunFolder, trust: TrustFolder) -> list[IntakeRow]:
    """Every request in the order in which they came."""
    leaves = trust.log.leaves  # before the files: what another process files is in these
    book, carried = folder.book(), dict[str, Counter[str]]()
    for one in carriers.influence(folder, book):
        carried.setdefault(one.request, Counter())[one.what] += 1
    return [
        _row(entry, trust.agent(entry.request.id), leaves_about(entry, leaves), carried.get(entry.request.id, {}))
        for entry in book.entries
    ]


def leaves_about(entry: Entry, leaves: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The leaves that tell of a request, in their order: its own, and the rounds of a job that it shared."""
    return [leaf for leaf in leaves if leaf.get("request") in entry.names]


def _row(entry: Entry, agent: str | None, own: Sequence[Mapping[str, Any]], carried: Mapping[str, int]) -> IntakeRow:
    received = next((leaf["at"] for leaf in own if leaf["type"] == "request"), None)
    due = next((leaf["expected_by"] for leaf in own if leaf["type"] == "acknowledgement"), None)
    return IntakeRow(
        id=entry.request.id,
        subject=entry.request.subject,
        state=entry.state,
        reason=entry.reason,
        standing=entry.standing,
        phase=phase(own) if entry.state == "in_progress" else None,
        signed_by=agent,
        asked=received or entry.created,
        changed=entry.changed,
        expected_by=due,
        overdue=bool(due and entry.state not in ("fulfilled", "revoked") and due < now()),
        owed=entry.owed,
        shared_with=max(0, len(entry.together) - 1),
        why=entry.why,
        still_carries=[{"what": what, "files": count} for what, count in carried.items()],
    )


def phase(leaves: Sequence[Mapping[str, Any]]) -> str:
    """Where a request is inside its state, by the last leaf about it that says so."""
    words = {"gate": "gated", "in-force": "published", "request": "filed"}
    for leaf in reversed(leaves):
        if leaf["type"] == "round":
            return "perturbed" if leaf["round"] == 0 else f"round {leaf['round']}"
        if leaf["type"] in words:
            return words[leaf["type"]]
    return "filed"


# --- one run ----------------------------------------------------------------------------------------------------------


class Unknown(UnfedError):
    """There is no such thing here."""


class Intake:
    """Takes and answers requests for one run."""

    def __init__(self, run: Run, handling: Handling | None = None) -> None:
        self.run, self._handling = run, handling or Handling()
        self.trust = TrustFolder(run.folder.path)
        self.trust.require_key()  # without it nothing can be answered
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
            return receive(self.run, data, opening, self._handling).acknowledgement

    def revoke(self, data: bytes) -> IntakeRow:
        """Let a request go, by a signed revocation; where it stands now."""
        with self._one_at_a_time:
            return self.follow(take_back(self.run, data).request.id)

    # --- telling --------------------------------------------------------------------------------------------------

    def queue(self) -> list[IntakeRow]:
        """Every request in the order in which they came, as the page and the interface show it."""
        with self._one_at_a_time:
            return rows(self.run.folder, self.trust)

    def follow(self, name: str) -> IntakeRow:
        """Where one request stands."""
        found = next((row for row in self.queue() if row.id == name), None)
        if found is None:
            raise Unknown(f"There is no request {name[:64]!r} here; check its id.")
        return found

    def story(self, name: str) -> dict[str, Any]:
        """One request with everything that the log says of it, in words."""
        with self._one_at_a_time:
            found, entry = self.follow(name), self.run.queue.book.find(name)
            assert entry is not None
            own = leaves_about(entry, self.trust.log.leaves)
            events = [(date_text(str(leaf["at"])), said) for leaf in _without_rounds(own) if (said := _event(leaf))]
            more = {"events": events, "checks": (entry.gate or {}).get("checks") or []}
            return {**asdict(found), **more, "way_out": self.run.way_out(entry) if entry.owed else ""}

    def acknowledgement(self, name: str) -> Envelope:
        """The signed answer to a request."""
        self.follow(name)
        answer = self.trust.kept("acknowledgement", name)
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
