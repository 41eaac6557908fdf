"""What a run keeps of signed requests: its folder `trust/`, begun with the operator's key.

    operator.json        which log this is, who signs it, where the key lies (never the key)
    roster.json          whose key is whose, signed
    requests/ID.json     signed requests that were taken, as they came
    acknowledgements/    the answers, as they were given; those of purged clients go
    declined/ID.json     the operator's signed refusals, with their reasons
    refused.json         how many requests were not believed, by hour and reason, until the hour is logged
    log.jsonl …          what happened (`log.py`), under names that can be made meaningless (`participation.py`)

The run folder is the truth about requests; what lies here says that it was asked for and answered, and signs for it.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from unfed import records, storage
from unfed.config.reading import check_id
from unfed.errors import UnfedError, typed
from unfed.folder.folder import RunFolder
from unfed.records import JsonRecord
from unfed.requests.entry import Entry, Job, now
from unfed.runs.record import keeps_log
from unfed.trust import log, participation, signing, verifier
from unfed.trust.log import Log, read_from
from unfed.trust.participation import ROUND, Participants, Pseudonyms, Roster
from unfed.trust.signing import Envelope, PublicKey, SigningKey

NAME = "trust"
OPERATOR, ROSTER = "operator.json", "roster.json"


def model_of(folder: RunFolder, entry: Entry) -> str | None:
    """The model that a request which is served has left, as its state names it."""
    return folder.came_out(Job(entry.seed, entry.request.id, entry.method))


_SECRET = 32  # bytes


class Operator(JsonRecord):
    """Who signs the log of a run, and the secret of its pseudonyms."""

    origin: str
    key: str
    public: str
    secret: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _SECRET}}}$")]


class TrustFolder:
    """The trust folder of a run that has one."""

    def __init__(self, run: Path) -> None:
        self.run, self.path = run, run / NAME
        if not keeps_log(run):
            RunFolder(run).description()  # refuses what is no run
            raise UnfedError(
                f"{run} keeps no log of signed requests;"
                f" `{typed('keys', 'roster', run, '--operator', 'FILE.key')}` begins one."
            )
        said = self.path / OPERATOR
        raw: Any = storage.read_json(said, "description of the operator") if said.exists() else None
        if not records.fits(Operator, raw):
            raise UnfedError(
                f"{said} is gone or damaged, so who signs the log of {run} is not known; restore it from a copy."
            )
        self.key_file, self.operator = Path(raw["key"]), signing.public_in(raw["public"], said)
        self.secret: bytes = raw["secret"].encode()
        """The key of the log's own commitments: without it, what they hide cannot be tried out."""
        self.log, self.participants = Log(self.path, raw["origin"]), Participants(self.path)

    @staticmethod
    def begin(run: Path, key_file: Path) -> TrustFolder:
        """Begin the log of a run, signed by this key; one that was begun with it goes on."""
        folder, key = RunFolder(run), signing.signing_key(key_file)
        folder.description()  # refuses what is no run
        if keeps_log(run):
            found = TrustFolder(run)
            if found.operator.id != key.id:
                raise UnfedError(f"The log of {run} is signed by another key; give that of {found.path / OPERATOR}.")
            return found._begun()
        said = {"origin": f"unfed:{secrets.token_hex(8)}", "key": str(key_file.absolute())}
        said |= {"public": key.public.pem, "secret": secrets.token_hex(_SECRET)}
        with storage.disk_errors(run):
            (run / NAME).mkdir(exist_ok=True, mode=0o700)
        storage.write_json(run / NAME / OPERATOR, {"schema": 1, **said})
        return TrustFolder(run)._begun()

    def _begun(self) -> TrustFolder:
        """With its first leaf, which a killed process may not have come to write."""
        if not self.log.lines:
            folder = RunFolder(self.run)
            rounds = sum(1 for line in folder.lines() if line["round"] > 0)
            models = {model_of(folder, entry) for entry in folder.book().entries if entry.state == "fulfilled"}
            before = {"measured-before": rounds, "models-before": sorted(filter(None, models))}
            self.enter({"type": "begin", "at": now(), "operator": self.operator.id, **before})
        return self

    @functools.cached_property
    def key(self) -> SigningKey:
        """The operator's key, read where it lies."""
        if not self.key_file.exists():
            raise UnfedError(
                f"The log of {self.run} is signed by the key {self.operator.id[:16]}…, which is not at"
                f" {self.key_file} any more; put it back there."
            )
        found = signing.signing_key(self.key_file)
        if found.id != self.operator.id:
            raise UnfedError(f"{self.key_file} is not the key that signs the log of {self.run}; put that one there.")
        return found

    def require_key(self) -> None:
        """Refuse to begin what could not be signed for."""
        _ = self.key

    @functools.cached_property
    def pseudonyms(self) -> Pseudonyms:
        """The secrets behind the names in the log.

        They are refused where they are lost, for others would take their place.
        """
        found = Pseudonyms(self.path)
        rounds = (leaf for leaf in self.log.leaves if leaf["type"] == ROUND)
        if not found.file.exists() and any(leaf["participants"]["size"] for leaf in rounds):
            raise UnfedError(f"{found.file} is gone, and with it who took part under which name; restore it.")
        return found

    # --- the roster -----------------------------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        """Who may ask; a roster without clients until one was signed."""
        path = self.path / ROSTER
        signed = envelope_at(path, "roster")
        if signed is None:
            return Roster(self.operator.id, self.operator, {}, "")
        return participation.opened_roster(signed, self.operator, f"roster at {path}")

    def enrol(self, clients: Mapping[str, PublicKey]) -> Roster:
        """Put clients on the roster, with those that are on it already, and sign it again."""
        signed = participation.sign_roster(self.operator.id, {**self.roster.clients, **clients}, self.key)
        storage.write_bytes(self.path / ROSTER, signed.to_bytes())
        found = self.roster
        said = {"clients": len(found.clients), "keys": log.sorted_root(_entries(found)).hex()}
        self.enter({"type": "roster", "at": found.issued, "sha256": signed.digest, **said})
        return found

    def bound_key(self, client: str) -> dict[str, Any] | None:
        """A client's key, and its place in the tree of the roster that was logged last; None in an older log."""
        rosters = [place for place, leaf in enumerate(self.log.leaves) if leaf["type"] == "roster"]
        key, entries = self.roster.clients.get(client), _entries(self.roster)
        if key is None or not rosters or self.log.leaves[rosters[-1]].get("keys") != log.sorted_root(entries).hex():
            return None
        place = entries.index(_entry(client, key))
        path = log.inclusion([verifier.leaf(one) for one in entries], place)
        return {"key": key.pem, "leaf": rosters[-1], "place": place, "path": log.hexed(path)}

    # --- the log --------------------------------------------------------------------------------------------------

    def enter(self, *leaves: Mapping[str, Any]) -> list[int]:
        """Add leaves to the log and sign for them."""
        places = self.log.append(*leaves)
        self.log.sign(self.key)
        return places

    # --- files ----------------------------------------------------------------------------------------------------

    def file(self, kind: str, name: str) -> Path:
        """Where a signed request, its acknowledgement or the refusal of it (`declined`) lies."""
        folder = {"request": "requests", "acknowledgement": "acknowledgements", "declined": "declined"}[kind]
        return self.path / folder / f"{check_id(name, 'request id')}.json"

    def kept(self, kind: str, name: str) -> Envelope | None:
        """The signed file of this kind about a request, if it is here."""
        return envelope_at(self.file(kind, name), kind)

    def agent(self, name: str) -> str | None:
        """Who signed a request: a client's name, or `operator`; None where it came unsigned."""
        signed = self.kept("request", name)
        said = signing.shown(signed) if signed else None
        return said.get("agent-id") if isinstance(said, dict) else None


def _entries(found: Roster) -> list[bytes]:
    """The clients of a roster and their keys, as its leaf in the log commits to them."""
    return sorted(_entry(client, key) for client, key in found.clients.items())


def _entry(client: str, key: PublicKey) -> bytes:
    return f"{key.id} {client}".encode()


def envelope_at(path: Path, what: str) -> Envelope | None:
    """What was signed, as it lies in a file, if there is one; whether it is believed is asked later."""
    return signing.read(read_from(path), f"{what} at {path}") if path.exists() else None
