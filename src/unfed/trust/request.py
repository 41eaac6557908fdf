"""Signed deletion requests, the operator's answers, and revocations (Data Rights Protocol 1.0).

    {"agent-id": who asks, "business-id": whom, "agent-request-id": the request's id,
     "issued-at": …, "expires-at": …, "drp.version": "1.0", "exercise": "deletion", "regime": "gdpr",
     "scope": {"clients": [NAME]} or {"classes": [NUMBER, …]} or {"samples": {"client": …, "count": …, "commitment": …}}
     "model": digest of the model in force when it was signed, or null: recorded, never a ground for refusal,
     "log": the origin of the federation's log, for which alone it is signed: another run refuses it}

Single samples are not named in what is signed. The commitment is SHA-256(salt ‖ canonical(samples)). Salt and samples
are a file of their own, the *opening*, that goes to the operator beside the request. The operator checks it against the
commitment and does not keep the salt, so the log does not give the samples away.

    acknowledgement = {"request": the whole signed request, "received-at": …, "expected_by": one month later,
                       "status": "open", "business-id": …, "pseudonym": the client's name in the log, or null,
                       "signer": the client's key, and where a roster in the log binds it to the client, or null,
                       "leaf": the request's place in the log, "line": the leaf, "inclusion": […], "checkpoint": signed}

    revocation = {"agent-id": …, "business-id": …, "agent-request-id": …, "issued-at": …, "drp.version": "1.0",
                  "exercise": "revocation"}
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from unfed import records
from unfed.config.reading import check_id
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.records import JsonRecord
from unfed.requests.entry import date_of, now
from unfed.trust import log as merkle
from unfed.trust import signing, verifier
from unfed.trust.log import Checkpoint, Log, checkpoint_in
from unfed.trust.participation import OPERATOR, Roster
from unfed.trust.signing import Envelope, PublicKey, SigningKey, canonical
from unfed.trust.verifier import NotVerified

TYPE = "application/vnd.unfed.request+json"
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


def _moment(text: str) -> str:
    if datetime.strptime(text, _SECOND).strftime(_SECOND) != text:
        raise ValueError("no moment like 2026-01-31T12:00:00Z")
    return text


Short = Annotated[str, Field(min_length=1, max_length=200)]
Moment = Annotated[Short, AfterValidator(_moment)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Committed(JsonRecord):
    """Samples that a request commits to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: str
    count: Annotated[int, Field(gt=0)]
    commitment: Digest


SCOPES: dict[str, Any] = {
    "clients": Annotated[list[str], Field(min_length=1, max_length=10_000)],
    "classes": Annotated[list[int], Field(min_length=1, max_length=10_000)],
    "samples": Committed,
}


def _scope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(raw) != 1 or not all(kind in SCOPES and records.fits(SCOPES[kind], what) for kind, what in raw.items()):
        raise ValueError("exactly one of clients, classes or samples")
    if "samples" not in raw:
        Request.from_json({"id": "x", **raw})
    return raw


class Signed(JsonRecord):
    """What a request and a revocation have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[Short, AfterValidator(lambda text: check_id(text, "agent-request-id"))] = Field(
        alias="agent-request-id"
    )
    agent: Short = Field(alias="agent-id")
    business: Short = Field(alias="business-id")
    issued: Moment = Field(alias="issued-at")
    version: Literal["1.0"] = Field(alias="drp.version")


class Asked(Signed):
    """A signed request that was read: what is asked, by whom, of whom."""

    expires: Moment = Field(alias="expires-at")
    exercise: Literal["deletion"]
    regime: Literal["gdpr", "ccpa", "voluntary"]
    scope: Annotated[Mapping[str, Any], AfterValidator(_scope)]
    model: Digest | None
    log: Short | None = None
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
    """What a commitment to samples hides: to be given to the operator alone."""

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
            raise UnfedError("The opening is not the one of this request's commitment; ask its signer for it.")

    def to_json(self) -> dict[str, Any]:
        return {"samples": [list(one) for one in self.samples], "salt": self.salt.hex()}

    def to_bytes(self) -> bytes:
        """The opening as a file."""
        return canonical(self.to_json()) + b"\n"

    @staticmethod
    def from_json(raw: Any) -> Opening:
        try:
            salt = bytes.fromhex(raw["salt"])
            samples = Request.from_json({"id": "x", "samples": raw["samples"]}).samples
        except (KeyError, TypeError, ValueError, UnfedError) as error:
            raise UnfedError("This is no opening of a request (samples, salt); ask its signer again.") from error
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
    found = {
        "agent-id": agent,
        "business-id": business,
        "agent-request-id": name or f"r-{secrets.token_hex(8)}",
        "issued-at": issued.strftime(_SECOND),
        "expires-at": until,
        "drp.version": "1.0",
        "exercise": "deletion",
        "regime": regime,
        "scope": dict(scope),
        "model": model,
    }
    read(found)
    return found


def sign(asked: Mapping[str, Any], key: SigningKey) -> Envelope:
    """The request in its envelope."""
    read(asked)
    return signing.sign(TYPE, dict(asked), key)


def read(raw: Any) -> Asked:
    """The request in a JSON value, each field of it checked; who signed it is not asked here."""
    asked = records.read(Asked, raw, "The request", "sign it again")
    if asked.expires <= asked.issued:
        raise UnfedError("The request expires before it is issued; sign it again with a later --expires.")
    return asked


def believed(signed: Envelope, roster: Roster, moment: str | None = None) -> Asked:
    """The request in an envelope, if a key on the roster that may ask for it signed it, in time.

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


# --- acknowledgements -------------------------------------------------------------------------------------------------


ACKNOWLEDGEMENT = "application/vnd.unfed.acknowledgement+json"


@dataclass(frozen=True)
class Acknowledgement:
    """An answer that was verified."""

    request: Envelope
    received: str
    expected_by: str
    pseudonym: str | None
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
        proof, leaf, line = value["inclusion"], value["leaf"], verifier.leaf(value["line"].encode())
        received, due, pseudonym = value["received-at"], value["expected_by"], value["pseudonym"]
        named = request.digest in value["line"]
        inside = verifier.climbed(line, leaf, checkpoint.size, proof).hex() == checkpoint.root
    except (NotVerified, *verifier.MALFORMED) as error:
        raise UnfedError("This is no acknowledgement of a request; ask for it again.") from error
    if not (named and inside):
        raise UnfedError("The acknowledgement does not show that its request stands in the log; it is refused.")
    return Acknowledgement(request, received, due, pseudonym, checkpoint)


# --- revocations ------------------------------------------------------------------------------------------------------


REVOCATION = "application/vnd.unfed.revocation+json"


class Revoked(Signed):
    """A revocation that was read."""

    exercise: Literal["revocation"]


def revoke(name: str, agent: str, business: str, key: SigningKey) -> Envelope:
    """The revocation of the request with this id."""
    said = {"agent-id": agent, "business-id": business, "agent-request-id": name, "issued-at": now()}
    said |= {"drp.version": "1.0", "exercise": "revocation"}
    records.read(Revoked, said, "The revocation", "name the request as `unfed status` does")
    return signing.sign(REVOCATION, said, key)
