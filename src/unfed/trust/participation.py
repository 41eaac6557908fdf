"""Who may ask, under which pseudonyms clients stand in the log, and who took part in which round.

    roster              {"business-id": …, "operator": PEM, "clients": {NAME: PEM, …}, "issued-at": …}, signed
    pseudonyms.json     the secrets behind pseudonyms: HMAC-SHA-256(own secret, "unfed pseudonym" ‖ name)
    leaf of a round     model digest, and the root over the sorted pseudonyms of those whose updates came back
    participants.jsonl  the pseudonyms behind each root, so that a proof can be made; one line per root

The operator's key may ask for anything; a client's key only for that client's own data. Purging a client destroys its
secret: then nothing in the log can be linked to it. The log shows what the server wrote, not what it left out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.records import JsonRecord, parsed
from unfed.requests.entry import now
from unfed.trust import log, signing
from unfed.trust.log import read_from
from unfed.trust.signing import Envelope, PublicKey, SigningKey

# --- the roster -------------------------------------------------------------------------------------------------------


ROSTER_TYPE = "application/vnd.unfed.roster+json"
OPERATOR = "operator"
"""The agent id of the operator; no client can have it."""


@dataclass(frozen=True)
class Roster:
    """Who may ask, and by which key they are known."""

    business: str
    """The operator's name for itself, as requests must address it."""
    operator: PublicKey
    clients: Mapping[str, PublicKey]
    issued: str

    @property
    def keys(self) -> list[PublicKey]:
        """Every key that may sign a request."""
        return [self.operator, *self.clients.values()]

    def agent(self, key_id: str) -> str:
        """Whose key this is: a client's name, or `operator`."""
        if key_id == self.operator.id:
            return OPERATOR
        found = next((name for name, key in self.clients.items() if key.id == key_id), None)
        if found is None:
            raise UnfedError(f"The key {key_id[:16]}… is of no client on the roster; ask the operator to enter it.")
        return found


def sign_roster(business: str, clients: Mapping[str, PublicKey], key: SigningKey) -> Envelope:
    """A roster, signed by the operator; each key stands for one name only."""
    if OPERATOR in clients:
        raise UnfedError(f"No client can be called {OPERATOR!r}; rename it.")
    ids = [key.id, *(own.id for own in clients.values())]
    if len(set(ids)) != len(ids):
        raise UnfedError("The same key stands twice on the roster, so it would not say who signed; give each its own.")
    plain = {name: own.pem for name, own in clients.items()}
    value = {"business-id": business, "operator": key.public.pem, "clients": plain, "issued-at": now()}
    return signing.sign(ROSTER_TYPE, value, key)


def opened_roster(signed: Envelope, operator: PublicKey, what: str = "roster") -> Roster:
    """The roster in an envelope, if this operator signed it."""
    value, _ = signing.opened(signed, ROSTER_TYPE, [operator], what)
    try:
        clients = {str(name): PublicKey(pem) for name, pem in value["clients"].items()}
        found = Roster(str(value["business-id"]), PublicKey(value["operator"]), clients, str(value["issued-at"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnfedError("The roster lacks business-id, operator, clients or issued-at; sign it again.") from error
    if found.operator.id != operator.id:
        raise UnfedError("The roster names another operator than the one who signed it; sign it again.")
    return found


def roster_json(found: Roster) -> dict[str, Any]:
    """Who is on it, by key ids, which may be shown."""
    clients = {name: key.id for name, key in found.clients.items()}
    return {"business-id": found.business, "operator": found.operator.id, "clients": clients, "issued-at": found.issued}


# --- pseudonyms -------------------------------------------------------------------------------------------------------


PSEUDONYMS = "pseudonyms.json"
_BYTES = 32


class Secrets(JsonRecord):
    """What `pseudonyms.json` says: the secret of each client, and when secrets were destroyed."""

    secrets: Mapping[str, Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _BYTES}}}$")]]
    destroyed: Mapping[str, str]


class Pseudonyms:
    """The secrets behind the pseudonyms of a run's clients."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.file = folder, folder / PSEUDONYMS
        self._known: dict[str, bytes] = {}

    def of(self, clients: Iterable[str]) -> dict[str, bytes]:
        """The pseudonym of each client; a secret is drawn for those that have none yet."""
        names = list(clients)
        if any(name not in self._known for name in names):
            self._draw(names)
        return {name: pseudonym(self._known[name], name) for name in names}

    def known(self, client: str) -> bytes:
        """The pseudonym of a client that has one; refused where it has none or its secret was destroyed."""
        if (secret := self._read().get(client)) is None:
            raise UnfedError(f"Client {client!r} has no pseudonym here: it never took part, or a purge destroyed it.")
        return pseudonym(secret, client)

    def destroy(self, clients: Collection[str]) -> list[str]:
        """Take the secrets of clients away for good; the names of those that had one."""
        with presence.held(self._folder, "pseudonyms", wait=-1):
            kept, before = self._read(), self._file().destroyed
            gone = sorted(name for name in clients if name in kept)
            if gone:
                left = {name: secret for name, secret in kept.items() if name not in gone}
                self._write(left, {**before, **dict.fromkeys(gone, now())})
        self._known = {name: secret for name, secret in self._known.items() if name not in clients}
        return gone

    def destroyed(self) -> dict[str, int]:
        """When secrets were destroyed, and how many at that moment."""
        return dict(Counter(self._file().destroyed.values()))

    def _draw(self, names: Collection[str]) -> None:
        with presence.held(self._folder, "pseudonyms", wait=-1):
            self._known = self._read()
            fresh = [name for name in dict.fromkeys(names) if name not in self._known]
            if fresh:
                self._known |= {name: secrets.token_bytes(_BYTES) for name in fresh}
                self._write(self._known, self._file().destroyed)

    def _read(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(secret) for name, secret in self._file().secrets.items()}

    def _file(self) -> Secrets:
        if not self.file.exists():
            return Secrets(secrets={}, destroyed={})
        return records.read(Secrets, storage.read_json(self.file, "list of pseudonyms"), str(self.file))

    def _write(self, known: Mapping[str, bytes], destroyed: Mapping[str, str]) -> None:
        plain = {name: secret.hex() for name, secret in known.items()}
        storage.write_json(self.file, {"schema": 1, "secrets": plain, "destroyed": destroyed})


def pseudonym(secret: bytes, client: str) -> bytes:
    """32 bytes that say nothing about a client without its secret."""
    return hmac.digest(secret, b"unfed pseudonym\x00" + client.encode(), hashlib.sha256)


# --- rounds -----------------------------------------------------------------------------------------------------------


PARTICIPANTS = "participants.jsonl"
ROUND = "round"


class Participants:
    """The pseudonyms behind the roots of rounds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PARTICIPANTS
        self._known: dict[str, list[bytes]] | None = None
        self._last: tuple[list[bytes], str] = ([], log.root([]).hex())
        """The members of the last round and their root: in most federations the next round has the same."""

    def root(self, pseudonyms: Iterable[bytes]) -> dict[str, Any]:
        """What a round's leaf says of who took part; the list behind it is kept."""
        ordered = sorted(set(pseudonyms))
        if self._last[0] != ordered:
            self._last = ordered, log.sorted_root(ordered).hex()
        found = self._last[1]
        if found not in self._read():
            whole = read_from(self._path).rfind(b"\n") + 1 if self._path.exists() else 0
            storage.cut(self._path, whole)  # half a line that a killed process left
            line = {"root": found, "members": log.hexed(ordered)}
            storage.append_line(self._path, json.dumps(line, separators=(",", ":")))
            self._read()[found] = ordered
        return {"root": found, "size": len(ordered)}

    def of(self, root: str) -> list[bytes]:
        """Who is behind a root; a list that does not give it is refused."""
        if root not in self._read():
            self._known = None  # another process may have added it
        found = self._read().get(root)
        if found is None or log.sorted_root(found).hex() != root:
            raise UnfedError(f"{self._path} lacks the participants behind the root {root}; restore it from a copy.")
        return found

    def _read(self) -> dict[str, list[bytes]]:
        if self._known is None:
            whole = read_from(self._path).rpartition(b"\n")[0] if self._path.exists() else b""
            try:
                lines = [parsed(text) for text in whole.split(b"\n")] if whole else []
                self._known = {str(line["root"]): [*map(bytes.fromhex, line["members"])] for line in lines}
            except (ValueError, KeyError, TypeError) as error:
                raise UnfedError(f"{self._path} is damaged; restore it from a copy.") from error
        return self._known
