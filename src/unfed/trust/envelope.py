"""What is signed, in a DSSE envelope (https://github.com/secure-systems-lab/dsse, version 1).

    {"payload": base64, "payloadType": TYPE, "signatures": [{"keyid": ID, "sig": base64}]}

    signed bytes = PAE(type, payload) = "DSSEv1 " len(type) " " type " " len(payload) " " payload

The payload is bytes, never a value that is written anew, so whoever verifies needs no canonical JSON. What is signed
here is canonical all the same: two people who mean the same request sign the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError
from unfed.trust.canonical import canonical, canonical_value, parsed
from unfed.trust.keys import PublicKey, SigningKey, by_id


@dataclass(frozen=True)
class Envelope:
    """A payload with its type and who signed it; that a signature holds is not said by its being here."""

    payload: bytes
    type: str
    signatures: tuple[tuple[str, bytes], ...]
    """Key id and signature."""

    @property
    def digest(self) -> str:
        """SHA-256 of what was signed: the same statement signed by another key has the same."""
        return hashlib.sha256(pae(self.type, self.payload)).hexdigest()

    def to_json(self) -> dict[str, Any]:
        signatures = [{"keyid": name, "sig": _base64(own)} for name, own in self.signatures]
        return {"payload": _base64(self.payload), "payloadType": self.type, "signatures": signatures}

    def to_bytes(self) -> bytes:
        """The envelope as a file: one line of canonical JSON."""
        return canonical(self.to_json()) + b"\n"


def pae(type: str, payload: bytes) -> bytes:
    """What is really signed: type and payload with their lengths, so that neither can pass for the other."""
    named = type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(named), named, len(payload), payload)


def sign(type: str, value: Any, *keys: SigningKey) -> Envelope:
    """The value in canonical JSON, signed by each of the keys."""
    payload = canonical(value)
    return Envelope(payload, type, tuple((key.id, key.sign(pae(type, payload))) for key in keys))


def read(data: bytes | Mapping[str, Any], what: str = "signed file") -> Envelope:
    """The envelope in a file's bytes or in a JSON value; nothing is believed yet."""
    raw = parsed(data, what) if isinstance(data, bytes) else data
    try:
        payload, type, signatures = raw["payload"], raw["payloadType"], raw["signatures"]
        if not (isinstance(raw, Mapping) and isinstance(type, str) and isinstance(signatures, list)):
            raise TypeError
        if not 1 <= len(signatures) <= 16 or set(raw) != {"payload", "payloadType", "signatures"}:
            raise ValueError
        pairs = tuple((_text(one["keyid"]), _bytes(one["sig"])) for one in signatures)
        type.encode()
        return Envelope(_bytes(payload), type, pairs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnfedError(
            f"The {what} is no DSSE envelope (payload, payloadType, one to sixteen signatures); ask for it again."
        ) from error


def opened(envelope: Envelope, type: str, keys: Iterable[PublicKey], what: str = "signed file") -> tuple[Any, str]:
    """The value in an envelope and the id of the key that signed it, if it is one of these keys.

    Refused are another type, a payload that is not canonical JSON, and signatures of which none holds.
    """
    if envelope.type != type:
        raise UnfedError(f"The {what} is of the type {envelope.type[:100]!r}, not {type!r}; give the right file.")
    known = by_id(keys)
    signer = next(
        (
            name
            for name, signature in envelope.signatures
            if name in known and known[name].signed(signature, pae(envelope.type, envelope.payload))
        ),
        None,
    )
    if signer is None:
        strange = all(name not in known for name, _ in envelope.signatures)
        reason = "none of the known keys signed it" if strange else "its signature does not hold: it was altered"
        raise UnfedError(f"The {what} is not believed: {reason}; ask its maker for it again.")
    return canonical_value(envelope.payload, what), signer


def shown(envelope: Envelope) -> Any:
    """The value in an envelope as anybody can read it, believed or not."""
    try:
        return json.loads(envelope.payload)
    except (ValueError, RecursionError):
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(_text(text), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
