"""A request is taken back by the client that signed it, or refused by the operator with a reason.

    {"agent-id": …, "business-id": …, "agent-request-id": …, "issued-at": …, "drp.version": "1.0",
     "exercise": "revocation"}
    {"business-id": …, "agent-request-id": …, "request": its digest, "decided-at": …, "reason": …, "complaint": …}

Only the agent who signed a request can revoke it; what came unsigned is the operator's own. Handed in twice it is
revoked once; what is fulfilled cannot be revoked, because the model in force was made without it. A refusal (GDPR,
Article 12(4)) is signed and logged: the request stays owed, its rows stay out, and the client may hand it in again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unfed import storage
from unfed.config.reading import check_id
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.requests.entry import Entry, date_of, now
from unfed.runs.run import Run
from unfed.trust import envelope, story, verifier
from unfed.trust.envelope import Envelope
from unfed.trust.folder import TrustFolder
from unfed.trust.keys import SigningKey
from unfed.trust.roster import OPERATOR

TYPE, REFUSAL = "application/vnd.unfed.revocation+json", "application/vnd.unfed.refusal+json"
COMPLAINT = "You may complain to a supervisory authority, and go to court (GDPR, Articles 12(4), 77 and 79)."
FIELDS = ("agent-id", "business-id", "agent-request-id", "issued-at", "drp.version", "exercise")


def sign(name: str, agent: str, business: str, key: SigningKey) -> Envelope:
    """The revocation of the request with this id."""
    said = (agent, business, check_id(name, "request id"), now(), "1.0", "revocation")
    return envelope.sign(TYPE, dict(zip(FIELDS, said, strict=True)), key)


def receive(run: Run, data: bytes) -> Entry:
    """Let a request go, if whoever signed this may; a refusal is logged."""
    trust = TrustFolder(run.folder.path)
    with presence.held(trust.path, "intake", wait=-1):
        try:
            name = believed(trust, envelope.read(data, "revocation"))
        except UnfedError:
            story.count_refusal(trust, "revocation")
            raise
        entry = run.queue.withdraw(name, trust.agent(name))
    story.enter(run.folder, trust)
    return entry


def believed(trust: TrustFolder, signed: Envelope) -> str:
    """The id of the request that may be let go."""
    raw, key_id = envelope.opened(signed, TYPE, trust.roster.keys, "revocation")
    if not isinstance(raw, Mapping) or set(raw) != set(FIELDS) or not all(isinstance(v, str) for v in raw.values()):
        raise UnfedError(f"A revocation has exactly {', '.join(FIELDS)}; sign it anew.")
    date_of(raw["issued-at"])
    name, signer = check_id(raw["agent-request-id"], "agent-request-id"), trust.roster.agent(key_id)
    if (raw["agent-id"], raw["business-id"]) != (signer, trust.roster.business):
        raise UnfedError(
            "The revocation names another agent or operator than those who signed and got it; it is refused."
        )
    if (raw["drp.version"], raw["exercise"]) != ("1.0", "revocation"):
        raise UnfedError("This is no revocation of the version 1.0; sign it anew.")
    if signer != (trust.agent(name) or OPERATOR):
        raise UnfedError(f"Request {name!r} is not one that {signer!r} asked for, so it stays; ask its signer.")
    return name


def refuse(run: Run, name: str, reason: str) -> Path:
    """Refuse a request, signed by the operator; the file that goes to the client."""
    trust, wanted = TrustFolder(run.folder.path), reason.strip()
    if not 0 < len(wanted) <= 2000 or not verifier.one_line(wanted):
        raise UnfedError("A refusal needs a reason in one line of at most 2,000 characters; give it with --reason.")
    with presence.held(trust.path, "intake", wait=-1):
        asked = trust.signed_request(name)
        if asked is None:
            raise UnfedError(f"Request {name!r} came unsigned; `{run.command('withdraw', name)}` lets it go.")
        told = {"business-id": trust.operator.id, "agent-request-id": name, "request": asked.digest}
        signed = envelope.sign(
            REFUSAL, {**told, "decided-at": now(), "reason": wanted, "complaint": COMPLAINT}, trust.key
        )
        run.queue.refuse(name, wanted)
        storage.write_bytes(trust.declined_file(name), signed.to_bytes())
        trust.enter({"type": "declined", "at": now(), "request": name, "sha256": signed.digest})
    story.enter(run.folder, trust)
    return trust.declined_file(name)
