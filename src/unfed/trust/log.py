"""What happened, in order: an append-only log in a folder, with signed checkpoints.

    log.jsonl            one leaf per line, canonical JSON; the bytes of a line are what is hashed
    checkpoints.jsonl    one signed checkpoint per line: so many leaves, with this root, at this moment

A leaf is never changed. A checkpoint stands for every leaf before it, so a reader with an old one can tell
that the log has grown from it. Cut, edited or re-ordered, the log no longer fits its checkpoints; both
files cut back together fit each other, and only a checkpoint that someone else kept finds that.

A process that is killed leaves half a line at most, which is no leaf, or leaves that are not signed for yet.

Trees of hashes (RFC 9162): one root stands for a list, and short proofs for parts of it.

    MTH({})     = SHA-256()                       the root of nothing
    leaf        = SHA-256(0x00 ‖ data)
    node        = SHA-256(0x01 ‖ left ‖ right)    a list is cut at the largest power of two below its length

    frontier      the full subtrees of a list: anyone who has them can go on with the list           (2.1.2)
    inclusion     this leaf stands at this place of the list with this root                            (2.1.3)
    absence       in a sorted list, its two neighbours stand side by side, and it would stand between them

Proofs are made here; `verifier.py` checks them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder import locks as presence
from unfed.requests.entry import now
from unfed.trust import signing
from unfed.trust.signing import Envelope, PublicKey, SigningKey, canonical, canonical_value

# --- trees of hashes (RFC 9162): one root stands for a list, and short proofs for parts of it -------------------------


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True)
class Frontier:
    """All that is needed of a list to go on with it: the roots of its full subtrees, the largest first."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.peaks) != self.size.bit_count():
            raise UnfedError(f"A list of {self.size} leaves has {len(self.peaks)} full subtrees; ask for it again.")

    def add(self, *leaves: bytes) -> Frontier:
        """The frontier after these leaf hashes too."""
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            peaks.append(leaf)
            merges, size = size, size + 1
            while merges & 1:  # two full subtrees of one size are a full subtree
                right = peaks.pop()
                peaks[-1], merges = node_hash(peaks[-1], right), merges >> 1
        return Frontier(size, tuple(peaks))

    @property
    def root(self) -> bytes:
        """The root of the whole list."""
        if not self.peaks:
            return hashlib.sha256().digest()
        found = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            found = node_hash(peak, found)
        return found


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes."""
    return Frontier().add(*leaves).root


def inclusion(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """PATH(index, leaves): what is needed beside a leaf to find the root."""
    if not 0 <= index < len(leaves):
        raise UnfedError(f"There is no leaf {index} among {len(leaves)}.")
    proof, level, place = [], list(leaves), index
    while len(level) > 1:
        if place ^ 1 < len(level):
            proof.append(level[place ^ 1])
        pairs = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level, place = pairs + level[2 * len(pairs) :], place // 2
    return proof


# --- sorted lists: who is in, who is not ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Absence:
    """That something stands nowhere in a sorted list: its neighbours, which stand side by side."""

    size: int
    neighbours: tuple[tuple[int, bytes, tuple[bytes, ...]], ...]
    """Place, data and inclusion proof of the one before and the one after; only one of them at an end of the list."""

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "neighbours": [[i, d.hex(), hexed(p)] for i, d, p in self.neighbours]}


def sorted_root(members: Sequence[bytes]) -> bytes:
    """The root over a set of byte strings, in their order."""
    return root([leaf_hash(one) for one in sorted(set(members))])


def absence(members: Sequence[bytes], stranger: bytes) -> Absence:
    """The proof that someone is not among the members; refused if it is."""
    ordered = sorted(set(members))
    if stranger in ordered:
        raise UnfedError("It is among them, so there is no proof that it is not.")
    leaves = [leaf_hash(one) for one in ordered]
    after = sum(one < stranger for one in ordered)
    beside = [i for i in (after - 1, after) if 0 <= i < len(ordered)]
    return Absence(len(ordered), tuple((i, ordered[i], tuple(inclusion(leaves, i))) for i in beside))


def hexed(proof: Sequence[bytes]) -> list[str]:
    """A proof as JSON."""
    return [one.hex() for one in proof]


def unhexed(proof: Any) -> tuple[bytes, ...]:
    """A proof from JSON; anything else raises ValueError or TypeError."""
    if not isinstance(proof, list):
        raise TypeError("a proof is a list")
    return tuple(bytes.fromhex(one) for one in proof)


# --- what happened, in order: an append-only log in a folder, with signed checkpoints ---------------------------------


LOG, CHECKPOINTS = "log.jsonl", "checkpoints.jsonl"
CHECKPOINT_TYPE = "application/vnd.unfed.checkpoint+json"

Leaf = Mapping[str, Any]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _round(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _participants(value: Any) -> bool:
    return isinstance(value, dict) and _text(value.get("root")) and _round(value.get("size"))


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


NEEDED: dict[str, dict[str, Callable[[Any], bool]]] = {
    "request": {"request": _text, "sha256": _text},
    "acknowledgement": {"request": _text, "sha256": _text, "expected_by": _text},
    "declined": {"request": _text, "sha256": _text},
    "state": {"request": _text, "state": _text},  # and "superseded", the newer request in its place
    "gate": {"request": _text},
    "in-force": {"request": _text, "model": _text_or_none},
    "round": {"method": _text, "round": _round, "model": _text, "participants": _participants},
}
"""What is read of a leaf, by its type."""


@dataclass(frozen=True)
class Checkpoint:
    """So many leaves, with this root."""

    origin: str
    """Which log: the id that its operator gave it."""
    size: int
    root: str
    """64 hex digits."""
    at: str

    def to_json(self) -> dict[str, Any]:
        return {"origin": self.origin, "size": self.size, "root": self.root, "at": self.at}

    @staticmethod
    def from_json(raw: Any) -> Checkpoint:
        kinds = {"origin": str, "size": int, "root": str, "at": str}
        if not isinstance(raw, dict) or set(raw) != set(kinds):
            raise UnfedError("This is no checkpoint of a log (origin, size, root, at); ask for it again.")
        for name, kind in kinds.items():
            if not isinstance(raw[name], kind) or isinstance(raw[name], bool):
                raise UnfedError(f"A checkpoint has {str(raw[name])[:60]!r} as its {name}; ask for it again.")
        if raw["size"] < 0 or len(raw["root"]) != 64 or set(raw["root"]) - set("0123456789abcdef"):
            raise UnfedError("A checkpoint has a size or a root that none can have; ask for it again.")
        return Checkpoint(**raw)


def checkpoint_in(signed: Envelope, keys: Sequence[PublicKey]) -> Checkpoint:
    """The checkpoint in an envelope, if one of these keys signed it."""
    return Checkpoint.from_json(signing.opened(signed, CHECKPOINT_TYPE, keys, "checkpoint")[0])


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
        size = max((Checkpoint.from_json(signing.shown(one)).size for one in self.checkpoints()), default=0)
        return [leaf["type"] for leaf in self.leaves[size:]]

    def _forget(self) -> None:
        self._lines: list[bytes] = []
        self._hashes: list[bytes] = []
        self._leaves: list[dict[str, Any]] = []
        self._frontier, self._length = Frontier(), 0

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
            hashes = [leaf_hash(line) for line in more]
            self._lines, self._hashes = self._lines + more, self._hashes + hashes
            self._frontier = self._frontier.add(*hashes)
            self._length += len(whole) + 1

    # --- adding ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No one else adds to the log meanwhile; inside, add by `append(…, held=True)`."""
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
            root, kept = self._frontier.root.hex(), self.checkpoints()
            if kept:
                last = checkpoint_in(kept[-1], [key.public])
                if (last.size, last.root) == (self._frontier.size, root):
                    return kept[-1]
                self._refuse_if_rewritten(last)
            fresh = Checkpoint(self.origin, self._frontier.size, root, now())
            signed = signing.sign(CHECKPOINT_TYPE, fresh.to_json(), key)
            path = self.folder / CHECKPOINTS
            storage.cut(path, sum(len(line) + 1 for line in _whole_lines(path)))
            storage.append_line(path, signed.to_bytes().decode().rstrip("\n"))
            return signed

    def _refuse_if_rewritten(self, last: Checkpoint) -> None:
        """No signature is put under a log that is not the one that was signed for."""
        before = Frontier().add(*self.hashes[: last.size])
        if (before.size, before.root.hex()) != (last.size, last.root):
            raise UnfedError(
                f"The log in {self.folder} is not the one whose first {last.size} leaves were signed for at {last.at};"
                " restore it from a copy."
            )

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """That a leaf stands at its place in the log of this size."""
        return inclusion(self.hashes[:size], index)


def faults(log: Log, keys: Sequence[PublicKey], kept: Checkpoint | None = None) -> list[str]:
    """One sentence for each way in which a log is not what was signed for.

    `kept` is a checkpoint that someone else has: with it a log that was cut back, checkpoints and all, is found too.
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
    for name, fits in NEEDED.get(value["type"], {}).items():
        if name not in value or not fits(value[name]):
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
