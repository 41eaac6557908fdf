"""Whoever asked takes a request back, signed: its rows take part in training again.

    {"agent-id": …, "business-id": …, "agent-request-id": …, "issued-at": …, "drp.version": "1.0",
     "exercise": "revocation"}

Only the agent who signed the request, or the operator, can revoke it. Handed in twice it is revoked once; what is
fulfilled cannot be revoked, because the model in force was made without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from unfed.errors import UnfedError
from unfed.runs import presence
from unfed.runs.names import check_id
from unfed.runs.requests import Entry, date_of, now
from unfed.runs.run import Run
from unfed.trust import envelope, story
from unfed.trust.envelope import Envelope
from unfed.trust.folder import TrustFolder
from unfed.trust.keys import SigningKey
from unfed.trust.roster import OPERATOR

TYPE = "application/vnd.unfed.revocation+json"
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
            digest = hashlib.sha256(data).hexdigest()
            trust.enter({"type": "refusal", "at": now(), "reason": "revocation", "sha256": digest})
            raise
        entry = run.withdraw(name)
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
    before = trust.signed_request(name)
    told = envelope.shown(before) if before else None
    if signer != OPERATOR and not (isinstance(told, Mapping) and told.get("agent-id") == signer):
        raise UnfedError(f"Request {name!r} is not one that {signer!r} asked for, so it stays; ask whoever did.")
    return name
