"""Trees of hashes (RFC 9162): one root stands for a list, and short proofs for parts of it.

    MTH({})     = SHA-256()                       the root of nothing
    leaf        = SHA-256(0x00 ‖ data)
    node        = SHA-256(0x01 ‖ left ‖ right)    a list is cut at the largest power of two below its length

    frontier      the full subtrees of a list: whoever has them can go on with the list           (2.1.2)
    inclusion     this leaf stands at this place of the list with this root                            (2.1.3)
    absence       in a sorted list, its two neighbours stand side by side, and it would stand between them

Proofs are made here; `verifier.py` checks them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unfed.errors import UnfedError


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
    """The proof that somebody is not among the members; refused if it is."""
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
