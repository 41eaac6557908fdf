"""What a client asks for and takes back, and the operator's answer (Data Rights Protocol 1.0).

    {"agent-id": who asks, "business-id": whom, "agent-request-id": the request's id,
     "issued-at": …, "expires-at": …, "drp.version": "1.0", "exercise": "deletion", "regime": "gdpr",
     "scope": {"clients": [NAME]} or {"classes": [NUMBER, …]} or {"samples": {"client": …, "count": …, "commitment": …}}
     "model": digest of the model in force when it was signed, or null: recorded, never a ground for refusal,
     "log": the origin of the federation's log, for which alone it is signed: another run refuses it}

Single samples are not named in what is signed. The commitment is SHA-256(salt ‖ canonical(samples)); salt and samples
are a file of their own, the *opening*, that goes to the operator beside the request. He holds it against the commitment
once, keeps what he needs to leave the rows out, and writes the salt down nowhere: without it no one can try out which
samples a commitment in the log is about.

    acknowledgement = {"request": the whole signed request, "received-at": …, "expected_by": one month later,
                       "status": "open", "business-id": …, "pseudonym": the client's name in the log, or null,
                       "signer": the client's key, and where a roster in the log binds it to the client, or null,
                       "leaf": the request's place in the log, "line": the leaf, "inclusion": […], "checkpoint": signed}

    revocation = {"agent-id": …, "business-id": …, "agent-request-id": …, "issued-at": …, "drp.version": "1.0",
                  "exercise": "revocation"}

An acknowledgement shows later what was asked, that it was received, and that the log has grown since.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from unfed.config.reading import check_id
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.requests.entry import date_of, now
from unfed.trust import log as merkle
from unfed.trust import signing, verifier
from unfed.trust.log import Checkpoint, Log, checkpoint_in
from unfed.trust.participation import OPERATOR, Roster
from unfed.trust.signing import Envelope, PublicKey, SigningKey, canonical
from unfed.trust.verifier import NotVerified

TYPE = "application/vnd.unfed.request+json"
FIELDS = ("agent-id", "business-id", "agent-request-id", "issued-at", "expires-at", "drp.version", "exercise", "regime")
REGIMES = ("gdpr", "ccpa", "voluntary")
LASTS = timedelta(days=30)
"""How long a request can be handed in, unless it says otherwise."""
AHEAD = timedelta(minutes=5)
"""How far the signer's clock may be ahead of the operator's."""
_SECOND = "%Y-%m-%dT%H:%M:%SZ"
_SALT = 32

Samples = tuple[tuple[str, int], ...]


class NotBelieved(UnfedError):
    """A request that is refused before anything is done for it; the log keeps the reason."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Asked:
    """A signed request that was read: what is asked, by whom, of whom."""

    id: str
    agent: str
    business: str
    issued: str
    expires: str
    regime: str
    scope: Mapping[str, Any]
    model: str | None
    log: str | None = None
    """The log of the federation that it was signed for; requests of before 17 November 2026 do not say."""

    @property
    def kind(self) -> str:
        """clients, classes or samples."""
        return next(iter(self.scope))

    def request(self, opening: Opening | None = None) -> Request:
        """What the core's queue is asked; samples need the opening of their commitment."""
        if self.kind == "samples":
            if opening is None:
                raise UnfedError(f"Request {self.id!r} only commits to its samples; give its opening with --opening.")
            opening.fits(self.scope["samples"])
            return Request(self.id, samples=opening.samples)
        if opening is not None:
            raise UnfedError(f"Request {self.id!r} names no single samples, so it has no opening; leave it out.")
        if self.kind == "clients":
            return Request(self.id, clients=tuple(self.scope["clients"]))
        return Request(self.id, classes=tuple(self.scope["classes"]))


@dataclass(frozen=True)
class Opening:
    """What a commitment to samples hides: to be given to the operator, and to no one else."""

    samples: Samples
    salt: bytes

    @staticmethod
    def drawn(samples: Sequence[tuple[str, int]]) -> Opening:
        """Samples under a fresh salt."""
        return Opening(tuple(sorted(set(samples))), secrets.token_bytes(_SALT))

    @property
    def commitment(self) -> str:
        return hashlib.sha256(self.salt + canonical([list(one) for one in self.samples])).hexdigest()

    def scope(self) -> dict[str, Any]:
        """What a request says of the samples."""
        owners = {client for client, _ in self.samples}
        if len(owners) != 1:
            raise UnfedError(f"A signed request is about the samples of one client, not of {len(owners)}; split it.")
        return {"client": owners.pop(), "count": len(self.samples), "commitment": self.commitment}

    def fits(self, scope: Mapping[str, Any]) -> None:
        """Refuse samples that are not those that were committed to."""
        if self.scope() != dict(scope):
            raise UnfedError(
                "The opening is not the one of this request's commitment; ask its signer for the right one."
            )

    def to_json(self) -> dict[str, Any]:
        return {"samples": [list(one) for one in self.samples], "salt": self.salt.hex()}

    @staticmethod
    def from_json(raw: Any) -> Opening:
        try:
            salt, samples = (
                bytes.fromhex(raw["salt"]),
                Request.from_json({"id": "x", "samples": raw["samples"]}).samples,
            )
        except (KeyError, TypeError, ValueError, UnfedError) as error:
            raise UnfedError(
                "This is no opening of a request (samples and salt); ask its signer for it again."
            ) from error
        if len(salt) != _SALT or tuple(sorted(set(samples))) != samples:
            raise UnfedError("The opening has a salt or a list of samples that none of ours has; ask for it again.")
        return Opening(samples, salt)


def value(
    scope: Mapping[str, Any],
    agent: str,
    business: str,
    model: str | None = None,
    regime: str = "gdpr",
    expires: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """A request as it is to be signed, issued now."""
    issued = datetime.now(UTC)
    until = (issued + LASTS).strftime(_SECOND) if expires is None else date_of(expires)
    own = name or f"r-{secrets.token_hex(8)}"
    said = (agent, business, own, issued.strftime(_SECOND), until, "1.0", "deletion", regime)
    found = dict(zip(FIELDS, said, strict=True)) | {"scope": dict(scope), "model": model}
    read(found)
    return found


def sign(asked: Mapping[str, Any], key: SigningKey) -> Envelope:
    """The request in its envelope."""
    read(asked)
    return signing.sign(TYPE, dict(asked), key)


def read(raw: Any) -> Asked:
    """The request in a JSON value, each field of it looked at; who signed it is not asked here."""
    if not isinstance(raw, Mapping) or set(raw) - {"log"} != {*FIELDS, "scope", "model"}:
        raise UnfedError(f"A signed request has exactly {', '.join(FIELDS)}, scope, model and log; sign it again.")
    for name in (*FIELDS, *({"log"} & set(raw))):
        if not isinstance(raw[name], str) or not 0 < len(raw[name]) <= 200:
            raise UnfedError(f"The request's {name} is {str(raw[name])[:60]!r}, not a short text; sign it again.")
    check_id(raw["agent-request-id"], "agent-request-id")
    for name, allowed in (("drp.version", ("1.0",)), ("exercise", ("deletion",)), ("regime", REGIMES)):
        if raw[name] not in allowed:
            raise UnfedError(f"The request's {name} is {raw[name][:60]!r}; it must be {listed(allowed)}.")
    issued, expires = (_moment(raw[name], name) for name in ("issued-at", "expires-at"))
    if expires <= issued:
        raise UnfedError("The request expires before it is issued; sign it again with a later --expires.")
    model = raw["model"]
    if model is not None and not _is_digest(model):
        raise UnfedError(f"The request's model is {str(model)[:60]!r}, no SHA-256 in 64 hex digits; sign it again.")
    names = ("agent-request-id", "agent-id", "business-id", "issued-at", "expires-at", "regime")
    name, agent, business, at, until, regime = (raw[name] for name in names)
    return Asked(name, agent, business, at, until, regime, _scope(raw["scope"]), model, raw.get("log"))


def believed(signed: Envelope, roster: Roster, moment: str | None = None) -> Asked:
    """The request in an envelope, if someone on the roster signed it who may ask for it, in time.

    That it was not handed in before is not known here: the log knows.
    """
    try:
        raw, key_id = signing.opened(signed, TYPE, roster.keys, "request")
    except UnfedError as error:
        raise NotBelieved("signature", str(error)) from error
    try:
        asked, signer = read(raw), roster.agent(key_id)
    except UnfedError as error:
        raise NotBelieved("malformed", str(error)) from error
    if asked.agent != signer:
        raise NotBelieved("agent", f"The request says that {asked.agent!r} asks, but {signer!r} signed it: refused.")
    if asked.business != roster.business:
        raise NotBelieved("business", f"The request is addressed to another operator ({asked.business!r}): refused.")
    at = moment or now()
    if asked.expires < at:
        raise NotBelieved("expired", f"The request has expired at {asked.expires}; have it signed again.")
    ahead = (datetime.strptime(at, _SECOND) + AHEAD).strftime(_SECOND)
    if asked.issued > ahead:
        raise NotBelieved("early", f"The request was issued at {asked.issued}, which is to come; check both clocks.")
    refuse_if_not_its_own(asked)
    return asked


def refuse_if_not_its_own(asked: Asked) -> None:
    """A client asks for its own data; only the operator's key may ask for anything else."""
    if asked.agent == OPERATOR:
        return
    if asked.kind == "classes":
        raise NotBelieved(
            "not its own", "A class is not one client's own data: a request for it needs the operator's key."
        )
    owners = asked.scope["clients"] if asked.kind == "clients" else [asked.scope["samples"]["client"]]
    if owners != [asked.agent]:
        raise NotBelieved("not its own", f"Client {asked.agent!r} asks for data of {listed(owners)}, not its own.")


def _scope(raw: Any) -> Mapping[str, Any]:
    wrong = UnfedError("The request's scope is not exactly one of clients, classes or samples; sign it again.")
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise wrong
    (kind, what), *_ = raw.items()
    if kind == "samples":
        good = isinstance(what, Mapping) and set(what) == {"client", "count", "commitment"}
        good = good and isinstance(what["client"], str) and _is_digest(what["commitment"])
        if not (good and isinstance(what["count"], int) and not isinstance(what["count"], bool) and what["count"] > 0):
            raise wrong
    elif kind not in ("clients", "classes") or not isinstance(what, list) or not 0 < len(what) <= 10_000:
        raise wrong
    else:
        Request.from_json({"id": "x", kind: what})
    return dict(raw)


def _moment(text: str, name: str) -> str:
    try:
        if datetime.strptime(text, _SECOND).strftime(_SECOND) == text:
            return text
    except ValueError:
        pass
    raise UnfedError(f"The request's {name} is {text[:60]!r}, no moment like 2026-01-31T12:00:00Z; sign it again.")


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


# --- acknowledgements -------------------------------------------------------------------------------------------------


ACKNOWLEDGEMENT = "application/vnd.unfed.acknowledgement+json"


@dataclass(frozen=True)
class Acknowledgement:
    """An answer that was verified."""

    request: Envelope
    received: str
    expected_by: str
    status: str
    business: str
    pseudonym: str | None
    leaf: int
    """Where the request stands in the log."""
    checkpoint: Checkpoint


def month_later(moment: str) -> str:
    """The same day of the next month, or its last day (GDPR, Article 12(3): within one month of receipt)."""
    return verifier.month_later(datetime.strptime(moment, verifier.SECOND))


def acknowledge(
    request: Envelope, received: str, business: str, client: Mapping[str, Any], log: Log, leaf: int, key: SigningKey
) -> Envelope:
    """The answer to a request that stands in the log at this place.

    `client` is what the log knows of who asked: its `pseudonym`, and the `signer`, its key.
    """
    signed = log.sign(key)
    size = checkpoint_in(signed, [key.public]).size
    value = {
        "request": request.to_json(),
        "received-at": received,
        "expected_by": month_later(received),
        "status": "open",
        "business-id": business,
        "pseudonym": client["pseudonym"],
        "signer": client["signer"],
        "leaf": leaf,
        "line": log.lines[leaf].decode(),
        "inclusion": merkle.hexed(log.inclusion(leaf, size)),
        "checkpoint": signed.to_json(),
    }
    return signing.sign(ACKNOWLEDGEMENT, value, key)


def acknowledged(signed: Envelope, keys: Sequence[PublicKey]) -> Acknowledgement:
    """What an answer says, if one of these keys signed it and the request stands in the log as it says."""
    value, _ = signing.opened(signed, ACKNOWLEDGEMENT, keys, "acknowledgement")
    try:
        request, checkpoint = signing.read(value["request"]), checkpoint_in(signing.read(value["checkpoint"]), keys)
        proof, leaf, line = value["inclusion"], value["leaf"], merkle.leaf_hash(value["line"].encode())
        names = ("received-at", "expected_by", "status", "business-id", "pseudonym")
        received, due, status, business, pseudonym = (value[name] for name in names)
        named = request.digest in value["line"]
        inside = verifier.climbed(line, leaf, checkpoint.size, proof).hex() == checkpoint.root
    except (NotVerified, *verifier.MALFORMED) as error:
        raise UnfedError("This is no acknowledgement of a request; ask for it again.") from error
    if not (named and inside):
        raise UnfedError("The acknowledgement does not show that its request stands in the log; it is refused.")
    return Acknowledgement(request, received, due, status, business, pseudonym, leaf, checkpoint)


# --- revocations ------------------------------------------------------------------------------------------------------


REVOCATION = "application/vnd.unfed.revocation+json"
REVOCATION_FIELDS = ("agent-id", "business-id", "agent-request-id", "issued-at", "drp.version", "exercise")


def revoke(name: str, agent: str, business: str, key: SigningKey) -> Envelope:
    """The revocation of the request with this id."""
    said = (agent, business, check_id(name, "request id"), now(), "1.0", "revocation")
    return signing.sign(REVOCATION, dict(zip(REVOCATION_FIELDS, said, strict=True)), key)
