"""The operator's signed answer to a request: it was received, and when it will have been dealt with.

    {"request": the whole signed request, "received-at": …, "expected_by": one month later, "status": "open",
     "business-id": …, "pseudonym": the client's name in the log, or null,
     "signer": the client's key, and where a roster in the log binds it to the client, or null,
     "leaf": the request's place in the log, "line": the leaf, "inclusion": […], "checkpoint": signed by the operator}

Whoever keeps it can show later what was asked, that it was received, and that the log has grown from that day's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unfed.errors import UnfedError
from unfed.trust import envelope, merkle, verifier
from unfed.trust.envelope import Envelope
from unfed.trust.keys import PublicKey, SigningKey
from unfed.trust.log import Checkpoint, Log, checkpoint_in

TYPE = "application/vnd.unfed.acknowledgement+json"


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


def sign(
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
    return envelope.sign(TYPE, value, key)


def verified(signed: Envelope, keys: Sequence[PublicKey]) -> Acknowledgement:
    """What an answer says, if one of these keys signed it and the request stands in the log as it says."""
    value, _ = envelope.opened(signed, TYPE, keys, "acknowledgement")
    try:
        request, checkpoint = envelope.read(value["request"]), checkpoint_in(envelope.read(value["checkpoint"]), keys)
        proof, leaf, line = merkle.unhexed(value["inclusion"]), value["leaf"], value["line"].encode()
        names = ("received-at", "expected_by", "status", "business-id", "pseudonym")
        received, due, status, business, pseudonym = (value[name] for name in names)
        named = request.digest in value["line"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnfedError("This is no acknowledgement of a request; ask for it again.") from error
    inside = merkle.included(merkle.leaf_hash(line), leaf, checkpoint.size, proof, bytes.fromhex(checkpoint.root))
    if not (named and inside):
        raise UnfedError("The acknowledgement does not show that its request stands in the log; it is refused.")
    return Acknowledgement(request, received, due, status, business, pseudonym, leaf, checkpoint)
