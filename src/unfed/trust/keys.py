"""Who signs: Ed25519 keys in files that `openssl` reads too.

    NAME.key    the private key (PKCS 8, PEM), for its owner alone (0600)
    NAME.pub    the public key (SubjectPublicKeyInfo, PEM), to be given away

A key's id is the SHA-256 of its public key in DER: whoever has the key can compute it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unfed import storage
from unfed.errors import UnfedError, typed
from unfed.trust.canonical import read_file


@dataclass(frozen=True)
class PublicKey:
    """A key that tells whether somebody signed something."""

    pem: str

    def __post_init__(self) -> None:
        self._key()

    @property
    def id(self) -> str:
        """SHA-256 of the key in DER, 64 hex digits."""
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(self._key().public_bytes(serialization.Encoding.DER, kind)).hexdigest()

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


def new(name: Path) -> SigningKey:
    """Draw a key and write NAME.key and NAME.pub; neither takes the place of a file that is there."""
    private, public = files(name)
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


def files(name: Path) -> tuple[Path, Path]:
    """Where the two halves of a key lie."""
    if not name.name:
        raise UnfedError(
            f"{name} is a folder and no name for a key; give one, as in `{typed('keys', 'new', 'operator')}`."
        )
    return name.with_name(name.name + ".key"), name.with_name(name.name + ".pub")


def signing_key(path: Path) -> SigningKey:
    """The private key in a file that nobody else may read."""
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


def by_id(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
    """The keys by their ids."""
    return {key.id: key for key in keys}
