"""Trees of hashes: the RFC's own vectors, and proofs that hold for what is so and for nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from unfed.errors import UnfedError
from unfed.trust import log, verifier
from unfed.trust.verifier import leaf, node

# The inputs and roots of the Certificate Transparency project's own tests of this tree.
DATA = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf(one) for one in DATA]


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert log.root(LEAVES[:size]).hex() == ROOTS[size]


def test_the_proofs_of_the_rfcs_example() -> None:
    """RFC 9162, 2.1.5: seven leaves a, b, c, d, e, f, j, and the proofs that it spells out."""
    a, b, c, d, e, f, j = LEAVES[:7]
    g, h, i = node(a, b), node(c, d), node(e, f)
    k, l = node(g, h), node(i, j)  # noqa: E741  (the RFC's letters)
    assert log.root(LEAVES[:7]) == node(k, l)
    assert log.inclusion(LEAVES[:7], 0) == [b, h, l]
    assert log.inclusion(LEAVES[:7], 3) == [c, g, l]
    assert log.inclusion(LEAVES[:7], 4) == [f, j, k]
    assert log.inclusion(LEAVES[:7], 6) == [i, k]


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], top: bytes) -> bool:
    """Whether the verifier, which is one file of its own, sees the leaf there."""
    try:
        return verifier.climbed(leaf, index, size, log.hexed(proof)) == top
    except verifier.NotVerified:
        return False


def test_a_leaf_is_shown_at_its_place_and_nowhere_else() -> None:
    for size in range(1, 9):
        top = log.root(LEAVES[:size])
        for index, claimed in itertools.product(range(size), range(size)):
            proof = log.inclusion(LEAVES[:size], index)
            assert included(LEAVES[index], claimed, size, proof, top) == (index == claimed)
            assert not included(LEAVES[index], index, size, [*proof, LEAVES[0]], top)
            assert not included(leaf(b"another"), index, size, proof, top)
            if proof:
                assert not included(LEAVES[index], index, size, proof[:-1], top)


def test_whoever_is_not_in_a_sorted_list_is_shown_to_be_absent() -> None:
    members = [bytes([number]) * 32 for number in (10, 20, 30, 40, 50)]
    for count in range(6):
        present: Sequence[bytes] = members[:count]
        top = log.sorted_root(present)
        for number in range(5, 60):
            stranger = bytes([number]) * 32
            if stranger in present:
                with pytest.raises(UnfedError, match="among them"):
                    log.absence(present, stranger)
            else:
                proof = log.absence(present, stranger)
                assert verifier.absent(stranger, proof, {"size": count, "root": top.hex()})
                other_tree = proof | {"size": count + 1}
                assert not verifier.absent(stranger, other_tree, {"size": count, "root": top.hex()})
            for other in present:  # no proof for one stranger hides a member
                if stranger not in present:
                    proof = log.absence(present, stranger)
                    assert not verifier.absent(other, proof, {"size": count, "root": top.hex()})


def test_two_members_that_do_not_stand_side_by_side_hide_nobody_between_them() -> None:
    members = [bytes([number]) * 32 for number in (10, 20, 30)]
    leaves = [leaf(one) for one in members]
    ends = [(place, members[place], log.inclusion(leaves, place)) for place in (0, 2)]
    top = log.sorted_root(members)
    assert all(included(leaves[place], place, 3, proof, top) for place, _, proof in ends)
    proof = {"size": 3, "neighbours": [[place, one.hex(), log.hexed(path)] for place, one, path in ends]}
    assert not verifier.absent(members[1], proof, {"size": 3, "root": top.hex()})
