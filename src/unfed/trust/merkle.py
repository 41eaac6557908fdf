"""Trees of hashes (RFC 9162): one root stands for a list, and short proofs for parts of it.

    MTH({})     = SHA-256()                       the root of nothing
    leaf        = SHA-256(0x00 ‖ data)
    node        = SHA-256(0x01 ‖ left ‖ right)    a list is cut at the largest power of two below its length

    frontier      the full subtrees of a list: whoever has them can go on with the list           (2.1.2)
    inclusion     this leaf stands at this place of the list with this root                            (2.1.3)
    consistency   the list with the first root is the beginning of the list with the second            (2.1.4)
    absence       in a sorted list, its two neighbours stand side by side, and it would stand between them

Nothing but `hashlib` is needed, here or to verify.
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


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], top: bytes) -> bool:
    """Whether a leaf hash stands at this place of the list of this size and root (2.1.3.2)."""
    if not 0 <= index < size:
        return False
    first, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if first & 1 or first == last:
            found = node_hash(sibling, found)
            while not first & 1 and first != 0:
                first, last = first >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        first, last = first >> 1, last >> 1
    return last == 0 and found == top


def consistency(leaves: Sequence[bytes], first: int) -> list[bytes]:
    """PROOF(first, leaves): that the first so many leaves were not changed since (RFC 9162, 2.1.4.1)."""
    if not 0 < first <= len(leaves):
        raise UnfedError(f"A list of {len(leaves)} leaves did not grow from one of {first}.")
    return _subproof(leaves, first, True)


def _subproof(leaves: Sequence[bytes], first: int, whole: bool) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [root(leaves)]
    cut = 1 << (len(leaves) - 1).bit_length() - 1
    if first <= cut:
        return [*_subproof(leaves[:cut], first, whole), root(leaves[cut:])]
    return [*_subproof(leaves[cut:], first - cut, False), root(leaves[:cut])]


def consistent(first: int, before: bytes, second: int, after: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the list of the first size and root is the beginning of the second (RFC 9162, 2.1.4.2)."""
    if not 0 < first <= second:
        return False
    if first == second:
        return not proof and before == after
    path = [before, *proof] if first & (first - 1) == 0 else list(proof)
    if not path:
        return False
    small, large = first - 1, second - 1
    while small & 1:
        small, large = small >> 1, large >> 1
    old = new = path[0]
    for sibling in path[1:]:
        if large == 0:
            return False
        if small & 1 or small == large:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not small & 1 and small != 0:
                small, large = small >> 1, large >> 1
        else:
            new = node_hash(new, sibling)
        small, large = small >> 1, large >> 1
    return large == 0 and old == before and new == after


# --- sorted lists: who is in, who is not ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Absence:
    """That something stands nowhere in a sorted list: its neighbours, which stand side by side."""

    size: int
    neighbours: tuple[tuple[int, bytes, tuple[bytes, ...]], ...]
    """Place, data and inclusion proof of the one before and the one after; only one of them at an end of the list."""

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "neighbours": [[i, d.hex(), hexed(p)] for i, d, p in self.neighbours]}

    @staticmethod
    def from_json(raw: Any) -> Absence:
        try:
            found = [(int(i), bytes.fromhex(d), unhexed(p)) for i, d, p in raw["neighbours"]]
            return Absence(int(raw["size"]), tuple(found))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UnfedError("This is no proof of absence; ask for it again.") from error


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


def absent(stranger: bytes, proof: Absence, top: bytes) -> bool:
    """Whether the proof shows that the stranger is nowhere in the sorted list with this root."""
    if proof.size == 0:
        return not proof.neighbours and top == root([])
    places = [i for i, _, _ in proof.neighbours]
    if not all(included(leaf_hash(d), i, proof.size, p, top) for i, d, p in proof.neighbours):
        return False
    if len(places) == 2:
        (before, left, _), (after, right, _) = proof.neighbours
        return after == before + 1 and left < stranger < right
    if len(places) != 1:
        return False
    (place, one, _) = proof.neighbours[0]
    return (place == 0 and stranger < one) or (place == proof.size - 1 and stranger > one)


def hexed(proof: Sequence[bytes]) -> list[str]:
    """A proof as JSON."""
    return [one.hex() for one in proof]


def unhexed(proof: Any) -> tuple[bytes, ...]:
    """A proof from JSON; anything else raises ValueError or TypeError."""
    if not isinstance(proof, list):
        raise TypeError("a proof is a list")
    return tuple(bytes.fromhex(one) for one in proof)
