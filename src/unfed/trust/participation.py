"""Who took part in which round, and the proof that somebody took part in none after a place.

    leaf of a round     model digest, and the root over the sorted pseudonyms of those whose updates came back
    participants.jsonl  the pseudonyms behind each root, so that a proof can be made; one line per root

    proof = a signed checkpoint
          + the frontier of the log up to the place, and every leaf after it: they give the checkpoint's root,
            so no leaf after the place is kept back
          + for each round among them: the absence of the pseudonym from the round's sorted tree

What it shows is what the log says. That every round was written into the log, and that the trees were sorted, is the
operator's word; a server that trains beside its log is outside what this can show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.json_checks import parsed
from unfed.trust import envelope, merkle
from unfed.trust.keys import PublicKey
from unfed.trust.log import Checkpoint, Log, checkpoint_in, leaf_in, read_from
from unfed.trust.merkle import Absence, Frontier

FILE = "participants.jsonl"
ROUND = "round"


class Participants:
    """The pseudonyms behind the roots of rounds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._known: dict[str, list[bytes]] | None = None
        self._last: tuple[list[bytes], str] = ([], merkle.root([]).hex())
        """The members of the last round and their root: in most federations the next round has the same."""

    def root(self, pseudonyms: Iterable[bytes]) -> dict[str, Any]:
        """What a round's leaf says of who took part; the list behind it is kept."""
        ordered = sorted(set(pseudonyms))
        if self._last[0] != ordered:
            self._last = ordered, merkle.sorted_root(ordered).hex()
        found = self._last[1]
        if found not in self._read():
            whole = read_from(self._path).rfind(b"\n") + 1 if self._path.exists() else 0
            storage.cut(self._path, whole)  # half a line that a killed process left
            line = {"root": found, "members": merkle.hexed(ordered)}
            storage.append_line(self._path, json.dumps(line, separators=(",", ":")))
            self._read()[found] = ordered
        return {"root": found, "size": len(ordered)}

    def of(self, root: str) -> list[bytes]:
        """Who is behind a root; a list that does not give it is refused."""
        if root not in self._read():
            self._known = None  # another process may have added it
        found = self._read().get(root)
        if found is None or merkle.sorted_root(found).hex() != root:
            raise UnfedError(f"{self._path} lacks the participants behind the root {root}; restore it from a copy.")
        return found

    def _read(self) -> dict[str, list[bytes]]:
        if self._known is None:
            whole = read_from(self._path).rpartition(b"\n")[0] if self._path.exists() else b""
            try:
                lines = [parsed(text) for text in whole.split(b"\n")] if whole else []
                self._known = {str(line["root"]): list(merkle.unhexed(line["members"])) for line in lines}
            except (ValueError, KeyError, TypeError) as error:
                raise UnfedError(f"{self._path} is damaged; restore it from a copy.") from error
        return self._known


@dataclass(frozen=True)
class Shown:
    """What a proof of absence shows, once it holds."""

    pseudonym: str
    after: int
    """The place in the log after which every leaf was looked at."""
    rounds: int
    """How many rounds there are after it."""
    checkpoint: Checkpoint


def prove_absence(log: Log, participants: Participants, pseudonym: bytes, after: int) -> dict[str, Any]:
    """That a pseudonym took part in no round after a place in the log, up to its newest checkpoint.

    Refused, with the round, where it did take part.
    """
    signed = log.latest()
    size = Checkpoint.from_json(envelope.shown(signed)).size
    lines = log.lines[:size]
    if not 0 <= after < size:
        raise UnfedError(f"The log has {size} leaves that are signed for; leaf {after} is not among them.")
    proofs, known = [], dict[str, dict[str, Any]]()  # rounds with the same members have the same proof
    for place, line in enumerate(lines[after + 1 :], after + 1):
        leaf = leaf_in(line, f"leaf {place}")
        if leaf["type"] != ROUND:
            continue
        root = leaf["participants"]["root"]
        if root not in known:
            members = participants.of(root)
            if pseudonym in members:
                raise UnfedError(
                    f"It took part in round {leaf['round']} of {leaf['method']} (leaf {place} of the log), so there is"
                    f" no proof that it took part in none after leaf {after}."
                )
            known[root] = merkle.absence(members, pseudonym).to_json()
        proofs.append({"leaf": place, **known[root]})
    frontier = Frontier().add(*(merkle.leaf_hash(line) for line in lines[: after + 1]))
    return {
        "pseudonym": pseudonym.hex(),
        "after": after,
        "frontier": merkle.hexed(frontier.peaks),
        "leaves": [line.decode() for line in lines[after + 1 :]],
        "absences": proofs,
        "checkpoint": signed.to_json(),
    }


def verify_absence(proof: Any, keys: Sequence[PublicKey]) -> Shown:
    """What a proof shows, if it holds under one of these keys; else the sentence that says why not."""
    try:
        pseudonym, after = bytes.fromhex(proof["pseudonym"]), proof["after"]
        texts, said = proof["leaves"], {one["leaf"]: Absence.from_json(one) for one in proof["absences"]}
        if not isinstance(after, int) or after < 0 or not all(isinstance(text, str) for text in texts):
            raise TypeError
        frontier, signed = Frontier(after + 1, merkle.unhexed(proof["frontier"])), envelope.read(proof["checkpoint"])
        lines = [text.encode() for text in texts]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnfedError("This is no proof that somebody took part in no round; ask for it again.") from error
    checkpoint = checkpoint_in(signed, keys)
    grown = frontier.add(*(merkle.leaf_hash(line) for line in lines))
    if (grown.size, grown.root.hex()) != (checkpoint.size, checkpoint.root):
        raise UnfedError("The leaves in the proof are not all those that the checkpoint was signed over: refused.")
    rounds = 0
    for place, line in enumerate(lines, after + 1):
        leaf = leaf_in(line, f"leaf {place} of the proof")
        if leaf["type"] != ROUND:
            continue
        rounds += leaf.get("round") != 0  # 0 is the model as the method begins with it
        # The root alone does not say how many leaves it is over; the leaf does.
        fits = place in said and said[place].size == leaf["participants"]["size"]
        if not fits or not merkle.absent(pseudonym, said[place], _root_of(leaf, place)):
            raise UnfedError(f"The proof does not show that it took no part in the round at leaf {place}: refused.")
    return Shown(pseudonym.hex(), after, rounds, checkpoint)


def _root_of(leaf: Mapping[str, Any], place: int) -> bytes:
    try:
        return bytes.fromhex(leaf["participants"]["root"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnfedError(f"The round at leaf {place} does not say who took part; the proof is refused.") from error
