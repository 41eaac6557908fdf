"""Mutants: single changes of a method's, an attack's or a measure's own line, each with the tests that must see it.

`make mutants` (tools/mutants.py) puts them in one at a time, in a copy of the tree, and runs their killers; it fails if
one survives. They stand in `mutants.txt`, like small patches:

    @ methods/pgd.py                             the file, below src/unfed
    ! oracles/test_federated.py::test_pgd        killers of this file's mutants: test files or node ids below tests

    # the radius without its third               why it matters
    - math.sqrt(total / draws / 3)               a text that occurs in the file exactly once, on one line or several
    + math.sqrt(total / draws)                   what stands there instead; without a + line, nothing
    ! test_federated_methods.py                  killers of this mutant alone, in the place of the file's
    = because ...                                a mutant that no test can kill, and the proof

No tool does this for us: mutmut and cosmic-ray draw mutants from general operators (+ to −, n to n + 1), thousands of
them for one suite, and none forgets a third, attacks D_r in the place of D_u or takes last round's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One text of one file replaced by another."""

    file: str
    """Below src/unfed."""
    why: str
    old: str
    new: str
    killers: tuple[str, ...]
    """Test files or node ids below tests; one of them must fail."""
    proof: str = ""
    """Why no test can fail, if that is so."""

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the mutant in it."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant} is stale: its text occurs {text.count(mutant.old)} times; mend tests/mutants.txt.")
    return text.replace(mutant.old, mutant.new)


def read(lines: Iterable[str]) -> Iterator[Mutant]:
    """The mutants that a list in the form above holds."""
    file, killers = "", list[str]()
    open_: dict[str, list[str]] = {}
    for number, line in enumerate([*lines, "@ the end"], 1):
        mark, text = line[:2].rstrip(), line[2:].rstrip("\n")
        if mark in ("@", "#"):
            if open_:
                yield _made(file, open_, killers)
            open_ = {"#": [text]} if mark == "#" else {}
            if mark == "@":
                file, killers = text.strip(), []
        elif mark == "!" and not open_:
            killers.append(text.strip())
        elif mark in ("-", "+", "!", "=") and open_:
            open_.setdefault(mark, []).append(text)
        elif line.strip() and not line.startswith("==="):
            raise ValueError(f"Line {number} of tests/mutants.txt begins with none of @ # - + ! =: {line!r}.")


def _made(file: str, found: dict[str, list[str]], killers: list[str]) -> Mutant:
    own = tuple(text.strip() for text in found.get("!", killers))
    old, new = ("\n".join(found.get(mark, [])) for mark in "-+")
    return Mutant(file, found["#"][0].strip(), old, new, own, " ".join(found.get("=", [])))


_ALL = tuple(read((Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8").splitlines()))
MUTANTS = tuple(mutant for mutant in _ALL if not mutant.proof)
EQUIVALENT = tuple(mutant for mutant in _ALL if mutant.proof)
