"""The list of mutants fits the tree: each text is there once, each killer exists. `make mutants` runs them."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from mutations import EQUIVALENT, MUTANTS, Mutant, mutated, read

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "unfed"


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_there_are_enough_mutants_and_none_is_there_twice() -> None:
    everything = [*MUTANTS, *EQUIVALENT]
    assert len(MUTANTS) >= 100
    assert [name for name, times in Counter(map(str, everything)).items() if times > 1] == []
    assert [m for m, times in Counter((m.file, m.old, m.new) for m in everything).items() if times > 1] == []
    assert all(len(mutant.proof) > 20 for mutant in EQUIVALENT)


@pytest.mark.parametrize("file", sorted({m.file for m in (*MUTANTS, *EQUIVALENT)}))
def test_no_mutant_is_stale(file: str) -> None:
    """A text that was rewritten needs its mutant rewritten too: look whether what it guarded is still guarded."""
    for mutant in (*MUTANTS, *EQUIVALENT):
        if mutant.file == file:
            assert mutated(text_of(SOURCE / file), mutant) != text_of(SOURCE / file), mutant


def test_every_killer_is_a_test() -> None:
    for mutant in (*MUTANTS, *EQUIVALENT):
        assert mutant.killers and mutant.why, mutant
        for killer in mutant.killers:
            file, _, name = killer.partition("::")
            assert (TESTS / file).exists(), f"{mutant}: {killer}"
            assert not name or re.search(rf"^def {name}\(", text_of(TESTS / file), re.M), f"{mutant}: {killer}"


def test_a_stale_mutant_says_so() -> None:
    with pytest.raises(ValueError, match=r"a.py: why is stale: its text occurs 2 times; mend tests/mutants.txt"):
        mutated("x = 1\nx = 1\n", Mutant("a.py", "why", "x = 1", "x = 2", ("test_a.py",)))


def test_the_list_reads_like_small_patches() -> None:
    lines = """@ a.py
! test_a.py

# one
- x = 1
-     y
+ x = 2
# two
- z
! test_b.py::test_z
= because z is never read again""".splitlines()
    one, two = read(lines)
    assert one == Mutant("a.py", "one", "x = 1\n    y", "x = 2", ("test_a.py",))
    assert two == Mutant("a.py", "two", "z", "", ("test_b.py::test_z",), "because z is never read again")
    with pytest.raises(ValueError, match="Line 2 of tests/mutants.txt begins with none of"):
        list(read(["@ a.py", "x = 1"]))
