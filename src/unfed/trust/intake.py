"""A signed request comes in: believed or refused, filed in the run's queue, logged, answered.

    bytes ─► envelope ─► signer on the roster ─► its own data, in time, new ─► queue ─► leaf ─► acknowledgement
                 └────────────── refused with a sentence, and logged by a word ──────────────┘

A process killed on the way leaves steps undone; the same bytes handed in again take the rest of them. Once answered,
they are a replay, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unfed import storage
from unfed.data import Request
from unfed.errors import Halted, UnfedError
from unfed.folder import locks as presence
from unfed.requests.entry import Entry, now
from unfed.requests.options import RequestOptions
from unfed.runs.run import Run
from unfed.trust import acknowledgement, envelope, request, story
from unfed.trust.canonical import canonical, parsed
from unfed.trust.envelope import Envelope
from unfed.trust.folder import TrustFolder
from unfed.trust.request import Asked, NotBelieved, Opening
from unfed.trust.roster import OPERATOR


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
    handling = handling or Handling()
    with presence.held(trust.path, "intake", wait=-1):
        try:
            signed, asked = believe(trust, data)
            wanted = asked.request(opening)
        except Halted:
            raise
        except UnfedError as error:
            story.count_refusal(trust, error.reason if isinstance(error, NotBelieved) else "opening")
            raise
        try:
            return _take(run, trust, signed, asked, _File(wanted, handling))
        except Halted:
            raise
        except UnfedError:
            story.count_refusal(trust, "queue")
            raise


def believe(trust: TrustFolder, data: bytes) -> tuple[Envelope, Asked]:
    """The request in these bytes, if it is to be believed and was not answered before."""
    try:
        signed = envelope.read(data, "request")
    except UnfedError as error:
        raise NotBelieved("unreadable", str(error)) from error
    asked = request.believed(signed, trust.roster)
    before, answer = trust.signed_request(asked.id), _leaf_of(trust, "acknowledgement", asked.id)
    again = _since_declined(trust, answer, asked.id)
    same = again and before is not None and _who_and_what(before) == _who_and_what(signed)
    if before is not None and before.digest != signed.digest and not same:
        raise NotBelieved("replayed", f"The id {asked.id!r} was used for another signed request; sign it anew.")
    if answer is not None and not again:
        raise NotBelieved(
            "replayed",
            f"Request {asked.id!r} was taken already and answered at {answer[1]['at']}; it is served once.",
        )
    if before is None and asked.log != trust.log.origin:  # one that this run began to take is its own
        named = (
            "no federation, so any run could take it" if asked.log is None else f"another federation ({asked.log!r})"
        )
        raise NotBelieved(
            "federation", f"The request names {named}; sign it for this one, with --log and a checkpoint."
        )
    return signed, asked


@dataclass(frozen=True)
class _File:
    """What goes into the queue."""

    wanted: Request
    handling: Handling

    def into(self, run: Run, expires: str) -> Entry:
        own = self.handling
        return run.ask(self.wanted, own.method, own.until, own.seed, expires, own.how)[0]


def _take(run: Run, trust: TrustFolder, signed: Envelope, asked: Asked, file: _File) -> Taken:
    """The steps after belief, each of which is not done again where it was done before."""
    begun, queued, before = trust.request_file(asked.id), run.queue.book.find(asked.id), trust.signed_request(asked.id)
    if before is None and queued is not None:
        raise UnfedError(f"The id {asked.id!r} stands in the queue already, unsigned; sign anew under another.")
    storage.write_bytes(begun, signed.to_bytes())  # the intent
    try:
        entry = file.into(run, asked.expires)
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
    story.enter(run.folder, trust)
    return Taken(entry, answer)


def _answer(trust: TrustFolder, signed: Envelope, asked: Asked, place: int, received: str) -> Envelope:
    """Sign the acknowledgement, keep it, log it."""
    name = None if asked.kind == "classes" or asked.agent == OPERATOR else asked.agent
    pseudonym = None if name is None else trust.pseudonyms.of([name])[name].hex()
    business = trust.operator.id
    client = {"pseudonym": pseudonym, "signer": trust.bound_key(asked.agent)}
    answer = acknowledgement.sign(signed, received, business, client, trust.log, place, trust.key)
    storage.write_bytes(trust.acknowledgement_file(asked.id), answer.to_bytes())
    due = acknowledgement.month_later(received)
    told = {"type": "acknowledgement", "at": now(), "request": asked.id, "sha256": answer.digest, "expected_by": due}
    trust.enter(told)
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
    asked = request.read(envelope.shown(signed))
    return asked.agent, asked.scope


def opening_in(data: bytes) -> Opening:
    """The opening of a commitment, from a file."""
    return Opening.from_json(parsed(data, "opening"))


def opening_bytes(opening: Opening) -> bytes:
    """An opening as a file."""
    return canonical(opening.to_json()) + b"\n"
