"""Ed25519 keys in files, canonical JSON, and signed envelopes.

    NAME.key    the private key (PKCS 8, PEM), for its owner alone (0600)
    NAME.pub    the public key (SubjectPublicKeyInfo, PEM), to be given away

    {"payload": base64, "payloadType": TYPE, "signatures": [{"keyid": ID, "sig": base64}]}

    signed bytes = PAE(type, payload) = "DSSEv1 " len(type) " " type " " len(payload) " " payload

`openssl` reads the keys too; a key's id is the SHA-256 of its public key in DER. Envelopes are those of DSSE version 1
(https://github.com/secure-systems-lab/dsse). The payload is canonical JSON (RFC 8785), so that two people who mean the
same request sign the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unfed import records, storage
from unfed.errors import UnfedError, typed
from unfed.trust.verifier import key_id

# --- canonical JSON ---------------------------------------------------------------------------------------------------


LARGEST = 4 << 20
"""Bytes that a signed value may have; what is larger is not read."""


def read_file(path: Path, what: str, most: int = LARGEST) -> bytes:
    """The bytes of a file that was sent, if it is one and they are not too many."""
    try:
        return storage.content(path, most)
    except OSError as error:
        raise UnfedError(f"The {what} {path} cannot be read ({error.strerror or error}); check the path.") from error


def canonical(value: Any) -> bytes:
    """The value as RFC 8785 writes it; what has no such form (NaN, 2^53 and more) is refused."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeError) as error:
        raise UnfedError(f"This value cannot be signed: {str(error).removesuffix('.')}.") from error


def parsed(data: bytes, what: str) -> Any:
    """The value in these bytes; anything but JSON that names each thing once is refused with a sentence."""
    if len(data) > LARGEST:
        raise UnfedError(f"The {what} has {len(data):,} bytes, more than {LARGEST:,}; send a smaller one.")
    try:
        return records.parsed(data, _no_constant)
    except ValueError as error:
        raise UnfedError(f"The {what} cannot be read as JSON ({_short(error)}); ask for it again.") from error


def canonical_value(data: bytes, what: str) -> Any:
    """The value in these bytes, if they are its canonical form."""
    value = parsed(data, what)
    try:
        same = canonical(value) == data
    except UnfedError:  # it has no canonical form
        same = False
    if not same:
        raise UnfedError(f"The {what} is not canonical JSON (RFC 8785), so others could read it otherwise.")
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"it holds {word}")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120]


# --- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures."""

    pem: str

    def __post_init__(self) -> None:
        self._key()

    @property
    def id(self) -> str:
        """SHA-256 of the key in DER, 64 hex digits."""
        return key_id(self._key())

    def signed(self, signature: bytes, data: bytes) -> bool:
        """Whether the owner of this key signed these bytes."""
        try:
            self._key().verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def _key(self) -> Ed25519PublicKey:
        try:
            key = serialization.load_pem_public_key(self.pem.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UnfedError("This is no public key in PEM; `unfed keys new NAME` makes one as NAME.pub.") from error
        if not isinstance(key, Ed25519PublicKey):
            raise UnfedError("This public key is not for Ed25519; `unfed keys new NAME` makes one that is.")
        return key


class SigningKey:
    """A key that signs; it never shows itself."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = PublicKey(key.public_key().public_bytes(serialization.Encoding.PEM, kind).decode())

    @staticmethod
    def drawn() -> SigningKey:
        """A new key, from the operating system's randomness."""
        return SigningKey(Ed25519PrivateKey.generate())

    @property
    def id(self) -> str:
        """The id of its public half."""
        return self.public.id

    def sign(self, data: bytes) -> bytes:
        """64 bytes; the same bytes twice give the same signature."""
        return self._key.sign(data)

    def write(self, path: Path) -> None:
        """Write it for its owner alone."""
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        storage.write_bytes(path, self._key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def new_key(name: Path) -> SigningKey:
    """Draw a key and write NAME.key and NAME.pub; neither takes the place of a file that is there."""
    private, public = key_files(name)
    for path in (private, public):
        if path.exists():
            raise UnfedError(f"{path} is there already, and a key is not replaced; choose another name.")
    key = SigningKey.drawn()
    key.write(private)
    try:
        storage.write_bytes(public, key.public.pem.encode())
    except BaseException:
        storage.remove(private)  # half a pair stands in the way of the next try
        raise
    return key


def key_files(name: Path) -> tuple[Path, Path]:
    """Where the two halves of a key lie."""
    if not name.name:
        raise UnfedError(
            f"{name} is a folder and no name for a key; give one, as in `{typed('keys', 'new', 'operator')}`."
        )
    return name.with_name(name.name + ".key"), name.with_name(name.name + ".pub")


def signing_key(path: Path) -> SigningKey:
    """The private key in a file that only its owner may read."""
    if os.name == "posix" and path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UnfedError(f"Others than its owner may open the private key {path}; `chmod 600 {path}` first.")
    data = read_file(path, "private key")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnfedError(f"{path} holds no private key that can be read; `unfed keys new NAME` makes one.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UnfedError(f"The private key {path} is not for Ed25519; `unfed keys new NAME` makes one that is.")
    return SigningKey(key)


def public_key(path: Path) -> PublicKey:
    """The public key in a file."""
    return public_in(read_file(path, "public key").decode(errors="replace"), path)


def public_in(pem: str, path: Path) -> PublicKey:
    """The public key that a file holds."""
    try:
        return PublicKey(pem)
    except (UnfedError, UnicodeError) as error:
        raise UnfedError(f"{path} holds no Ed25519 public key; `unfed keys new NAME` makes NAME.pub.") from error


# --- envelopes --------------------------------------------------------------------------------------------------------


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
        raise UnfedError(f"The {what} is no DSSE envelope with one to sixteen signatures; ask again.") from error


def opened(envelope: Envelope, type: str, keys: Iterable[PublicKey], what: str = "signed file") -> tuple[Any, str]:
    """The value in an envelope and the id of the key that signed it, if it is one of these keys.

    Refused are another type, a payload that is not canonical JSON, and signatures of which none holds.
    """
    if envelope.type != type:
        raise UnfedError(f"The {what} is of the type {envelope.type[:100]!r}, not {type!r}; give the right file.")
    known = {key.id: key for key in keys}
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
    """The value in an envelope as it reads, believed or not."""
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
