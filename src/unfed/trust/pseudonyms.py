"""Clients under names that can be made meaningless.

    pseudonym = HMAC-SHA-256(the client's own secret, "unfed pseudonym" ‖ name)

In the log a client has no other name. The secrets lie in `pseudonyms.json`, for the owner of the folder alone. Once a
client's secret is destroyed, which is part of purge, nothing in the log can be told to be about it; what others were
given before (an acknowledgement, a bundle) keeps what it says.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.requests.entry import now

FILE = "pseudonyms.json"
_BYTES = 32


class Pseudonyms:
    """The secrets behind the pseudonyms of a run's clients."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.file = folder, folder / FILE
        self._known: dict[str, bytes] = {}

    def of(self, clients: Iterable[str]) -> dict[str, bytes]:
        """The pseudonym of each client; a secret is drawn for whoever has none yet."""
        names = list(clients)
        if any(name not in self._known for name in names):
            self._draw(names)
        return {name: pseudonym(self._known[name], name) for name in names}

    def known(self, client: str) -> bytes:
        """The pseudonym of a client that has one; refused where it has none or its secret was destroyed."""
        if (secret := self._read().get(client)) is None:
            raise UnfedError(
                f"Client {client!r} has no pseudonym here: it never took part, or its secret was destroyed by a purge."
            )
        return pseudonym(secret, client)

    def destroy(self, clients: Collection[str]) -> list[str]:
        """Take the secrets of clients away for good; the names of those that had one."""
        with presence.held(self._folder, "pseudonyms", wait=-1):
            kept, before = self._read(), self._graves()
            gone = sorted(name for name in clients if name in kept)
            if gone:
                left = {name: secret for name, secret in kept.items() if name not in gone}
                self._write(left, before | dict.fromkeys(gone, now()))
        self._known = {name: secret for name, secret in self._known.items() if name not in clients}
        return gone

    def destroyed(self) -> dict[str, int]:
        """When secrets were destroyed, and how many at that moment."""
        return dict(Counter(self._graves().values()))

    def _graves(self) -> dict[str, str]:
        path = self.file
        raw = storage.read_json(path, "list of pseudonyms") if path.exists() else {"destroyed": {}}
        found = raw.get("destroyed") if isinstance(raw, dict) else None
        if not isinstance(found, dict) or not all(isinstance(date, str) for date in found.values()):
            raise UnfedError(f"{path} is damaged; restore it from a copy.")
        return found

    def _draw(self, names: Collection[str]) -> None:
        with presence.held(self._folder, "pseudonyms", wait=-1):
            self._known = self._read()
            fresh = [name for name in dict.fromkeys(names) if name not in self._known]
            if fresh:
                self._known |= {name: secrets.token_bytes(_BYTES) for name in fresh}
                self._write(self._known, self._graves())

    def _read(self) -> dict[str, bytes]:
        path = self.file
        if not path.exists():
            return {}
        raw = storage.read_json(path, "list of pseudonyms")
        try:
            found = {name: bytes.fromhex(secret) for name, secret in raw["secrets"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnfedError(f"{path} is damaged; restore it from a copy.") from error
        if any(len(secret) != _BYTES for secret in found.values()):
            raise UnfedError(f"{path} holds a secret that is not of {_BYTES} bytes; restore it from a copy.")
        return found

    def _write(self, known: dict[str, bytes], destroyed: dict[str, str]) -> None:
        plain = {name: secret.hex() for name, secret in known.items()}
        storage.write_json(self.file, {"schema": 1, "secrets": plain, "destroyed": destroyed})


def pseudonym(secret: bytes, client: str) -> bytes:
    """32 bytes that say nothing about a client to whoever has not its secret."""
    return hmac.digest(secret, b"unfed pseudonym\x00" + client.encode(), hashlib.sha256)
