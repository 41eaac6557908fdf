"""An append-only log of what happened, with signed checkpoints and hash-tree proofs.

    log.jsonl            one leaf per line, canonical JSON; the bytes of a line are what is hashed
    checkpoints.jsonl    one signed checkpoint per line: so many leaves, with this root, at this moment

A leaf is never changed. A log that was cut, edited or re-ordered no longer fits its checkpoints. Both files cut back
together fit each other; only a checkpoint that another party kept shows that. A killed process leaves half a line at
most, which is no leaf, or leaves that are not signed for yet.

Trees of hashes (RFC 9162): one root stands for a list, and a short proof shows that a leaf is in it, or is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from unfed import records, storage
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.records import Count, JsonRecord
from unfed.requests.entry import now
from unfed.trust import signing, verifier
from unfed.trust.signing import Envelope, PublicKey, SigningKey, canonical, canonical_value

# --- trees of hashes --------------------------------------------------------------------------------------------------


def root(leaves: Sequence[bytes]) -> bytes:
    """MTH: the root over leaf hashes."""
    level = list(leaves)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else hashlib.sha256().digest()


def _above(level: Sequence[bytes]) -> list[bytes]:
    """The nodes over a level of the tree; a last one without a partner goes up as it is."""
    pairs = [verifier.node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return [*pairs, *level[2 * len(pairs) :]]


def inclusion(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """PATH(index, leaves): what is needed beside a leaf to find the root."""
    proof, level, place = [], list(leaves), index
    while len(level) > 1:
        proof += level[place ^ 1 : (place ^ 1) + 1]
        level, place = _above(level), place // 2
    return proof


def sorted_root(members: Sequence[bytes]) -> bytes:
    """The root over a set of byte strings, in their order."""
    return root([verifier.leaf(one) for one in sorted(set(members))])


def absence(members: Sequence[bytes], stranger: bytes) -> dict[str, Any]:
    """Prove that a stranger is no member: its neighbours in the sorted list, each with its inclusion.

    At an end of the list there is only one of them.
    """
    ordered = sorted(set(members))
    if stranger in ordered:
        raise UnfedError("It is among them, so there is no proof that it is not.")
    leaves = [verifier.leaf(one) for one in ordered]
    after = sum(one < stranger for one in ordered)
    beside = [i for i in (after - 1, after) if 0 <= i < len(ordered)]
    return {
        "size": len(ordered),
        "neighbours": [[i, ordered[i].hex(), hexed(inclusion(leaves, i))] for i in beside],
    }


def hexed(proof: Sequence[bytes]) -> list[str]:
    """A proof as JSON."""
    return [one.hex() for one in proof]


# --- leaves and checkpoints -------------------------------------------------------------------------------------------


LOG, CHECKPOINTS = "log.jsonl", "checkpoints.jsonl"
CHECKPOINT_TYPE = "application/vnd.unfed.checkpoint+json"

Leaf = Mapping[str, Any]


class Members(JsonRecord):
    """What a round's leaf says of who took part."""

    root: str
    size: Count


NEEDED: dict[str, dict[str, Any]] = {
    "request": {"request": str, "sha256": str},
    "acknowledgement": {"request": str, "sha256": str, "expected_by": str},
    "declined": {"request": str, "sha256": str},
    "state": {"request": str, "state": str},  # and "superseded", the newer request in its place
    "gate": {"request": str},
    "in-force": {"request": str, "model": str | None},
    "round": {"method": str, "round": Count, "model": str, "participants": Members},
}
"""What is read of a leaf, by its type."""


class Checkpoint(JsonRecord):
    """So many leaves, with this root."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: str
    """Which log: the id that its operator gave it."""
    size: Count
    root: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    at: str


def checkpoint_in(signed: Envelope, keys: Sequence[PublicKey]) -> Checkpoint:
    """The checkpoint in an envelope, if one of these keys signed it."""
    return checkpoint_of(signing.opened(signed, CHECKPOINT_TYPE, keys, "checkpoint")[0])


def checkpoint_of(raw: Any) -> Checkpoint:
    """The checkpoint that a JSON value says."""
    return records.read(Checkpoint, raw, "A checkpoint", "ask for it again")


class Log:
    """A log in a folder; several processes may add to it."""

    def __init__(self, folder: Path, origin: str) -> None:
        self.folder, self.origin = folder, origin
        self._forget()

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[bytes]:
        """Every leaf as the bytes that are hashed."""
        self._read()
        return list(self._lines)

    @property
    def leaves(self) -> list[dict[str, Any]]:
        """Every leaf as a value; a damaged one is refused. They are looked into once."""
        self._read()
        for place in range(len(self._leaves), len(self._lines)):
            self._leaves.append(leaf_in(self._lines[place], f"leaf {place} of {self._file}"))
        return list(self._leaves)

    @property
    def hashes(self) -> list[bytes]:
        """Every leaf's hash."""
        self._read()
        return list(self._hashes)

    @property
    def _file(self) -> Path:
        return self.folder / LOG

    def checkpoints(self) -> list[Envelope]:
        """Every signed checkpoint, the oldest first; whether they hold is for `faults` to say."""
        lines = _whole_lines(self.folder / CHECKPOINTS)
        return [signing.read(line, f"checkpoint {n} of {self.folder / CHECKPOINTS}") for n, line in enumerate(lines)]

    def latest(self) -> Envelope:
        """The newest signed checkpoint."""
        if not (found := self.checkpoints()):
            raise UnfedError(f"The log in {self.folder} has no checkpoint yet; whatever is logged next signs one.")
        return found[-1]

    def unsigned(self) -> list[str]:
        """The types of the leaves after the newest checkpoint: they could be written without a key."""
        size = max((checkpoint_of(signing.shown(one)).size for one in self.checkpoints()), default=0)
        return [leaf["type"] for leaf in self.leaves[size:]]

    def _forget(self) -> None:
        self._lines: list[bytes] = []
        self._hashes: list[bytes] = []
        self._leaves: list[dict[str, Any]] = []
        self._length = 0

    def _read(self) -> None:
        """Take in what was added since, by whichever process."""
        size = self._file.stat().st_size if self._file.exists() else 0
        if size < self._length:
            self._forget()
        if size == self._length:
            return
        whole, _, _ = read_from(self._file, self._length).rpartition(b"\n")
        if whole:
            more = whole.split(b"\n")
            self._lines, self._hashes = self._lines + more, self._hashes + [verifier.leaf(line) for line in more]
            self._length += len(whole) + 1

    # --- adding ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process add to the log meanwhile; inside, add by `append(…, held=True)`."""
        with storage.disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with presence.held(self.folder, "log", wait=-1):
            yield

    def append(self, *leaves: Leaf, held: bool = False) -> list[int]:
        """Add leaves, and give their places once they are on the disk. They are signed for by `sign`."""
        with contextlib.nullcontext() if held else self.held():
            self._read()
            storage.cut(self._file, self._length)  # half a line that a killed process left
            data = [canonical(dict(leaf)) for leaf in leaves]
            if data:
                storage.append_line(self._file, b"\n".join(data).decode())
            first = len(self._lines)
            self._read()
            return list(range(first, first + len(data)))

    def sign(self, key: SigningKey, held: bool = False) -> Envelope:
        """A signed checkpoint over all there is; the newest one if it says so already."""
        with contextlib.nullcontext() if held else self.held():
            self._read()
            size, kept = len(self._hashes), self.checkpoints()
            if kept:
                last = checkpoint_in(kept[-1], [key.public])
                if size < last.size or root(self._hashes[: last.size]).hex() != last.root:
                    raise UnfedError(
                        f"The log in {self.folder} is not the one whose first {last.size} leaves were signed for at"
                        f" {last.at}; restore it from a copy."
                    )
                if size == last.size:
                    return kept[-1]
            fresh = {"origin": self.origin, "size": size, "root": root(self._hashes).hex(), "at": now()}
            signed = signing.sign(CHECKPOINT_TYPE, fresh, key)
            path = self.folder / CHECKPOINTS
            storage.cut(path, sum(len(line) + 1 for line in _whole_lines(path)))
            storage.append_line(path, signed.to_bytes().decode().rstrip("\n"))
            return signed

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """That a leaf stands at its place in the log of this size."""
        return inclusion(self.hashes[:size], index)


def faults(log: Log, keys: Sequence[PublicKey], kept: Checkpoint | None = None) -> list[str]:
    """One sentence for each way in which a log is not what was signed for.

    `kept` is a checkpoint that another party has: with it a log that was cut back, checkpoints and all, is found too.
    """
    said: list[str] = []
    hashes = log.hashes
    for place, line in enumerate(log.lines):
        try:
            leaf_in(line, f"leaf {place} of {log.folder / LOG}")
        except UnfedError as error:
            said.append(str(error))
    signed: list[Checkpoint] = []
    for number, text in enumerate(_whole_lines(log.folder / CHECKPOINTS), 1):
        where = f"Checkpoint {number} in {log.folder / CHECKPOINTS}"
        try:
            signed.append(checkpoint_in(signing.read(text, "checkpoint"), keys))
        except UnfedError as error:
            said.append(f"{where} does not count ({str(error).removesuffix('.')}); restore the file from a copy.")
    if len(hashes) > 1 and not _whole_lines(log.folder / CHECKPOINTS):  # a killed beginning has one leaf
        said.append(
            f"None of the {len(hashes)} leaves in {log.folder} is signed for: {log.folder / CHECKPOINTS} is gone or"
            " was emptied; restore it from a copy."
        )
    for one in [*signed, *([kept] if kept else [])]:
        theirs = "the checkpoint that was kept" if one is kept else f"the checkpoint of {one.at}"
        if one.origin != log.origin:
            said.append(
                f"{log.folder / LOG} is {log.origin[:80]!r}, and {theirs} is of another log"
                f" ({one.origin[:80]!r}); give the right one."
            )
        elif one.size > len(hashes):
            said.append(
                f"The log in {log.folder / LOG} has {len(hashes)} leaves, but {theirs} was signed over {one.size}: its"
                " end is gone; restore it from a copy."
            )
        elif root(hashes[: one.size]).hex() != one.root:
            said.append(
                f"The first {one.size} leaves of the log in {log.folder / LOG} are not those of {theirs}: one was"
                " changed, moved or taken out; restore it from a copy."
            )
    if any(a.size > b.size for a, b in itertools.pairwise(signed)):
        said.append(f"The checkpoints in {log.folder / CHECKPOINTS} are not in their order; restore the file.")
    return said


def leaf_in(line: bytes, what: str) -> dict[str, Any]:
    """A leaf as a value: a table with a type, a moment, and what a leaf of its type must say."""
    value = canonical_value(line, what)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or not isinstance(value.get("at"), str):
        raise UnfedError(f"The {what} has no type or no moment; restore the log from a copy.")
    for name, kind in NEEDED.get(value["type"], {}).items():
        if name not in value or not records.fits(kind, value[name]):
            raise UnfedError(f"The {what} is a {value['type']} without its {name}; restore the log from a copy.")
    return value


def _whole_lines(path: Path) -> list[bytes]:
    whole, _, _ = (read_from(path) if path.exists() else b"").rpartition(b"\n")
    return whole.split(b"\n") if whole else []


def read_from(path: Path, start: int = 0) -> bytes:
    """What a file of ours holds from a place on; one that cannot be read is a sentence."""
    try:
        return storage.content(path, start=start)
    except OSError as error:
        raise UnfedError(f"{path} cannot be read ({error.strerror}); restore it from a copy.") from error
