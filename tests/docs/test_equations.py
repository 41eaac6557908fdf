"""The page of the paper's equations and the code name each other, in both directions, and no number is missing."""

from __future__ import annotations

import ast
import csv
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/equations.csv").read_text(encoding="utf-8")
NUMBERED = re.compile(r"\b(Eq\.|Theorem|Definition|Lemma|Algorithm) (\d+)(?:–(\d+))?")
TARGET = re.compile(r"`((?:unfed|theorems)[\w.]*):([\w.]+)`")


def labels(text: str) -> list[str]:
    """`Eq. 7–9` stands for all three."""
    return [
        f"{kind} {n}" for kind, first, last in NUMBERED.findall(text) for n in range(int(first), int(last or first) + 1)
    ]


def rows() -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    """The names of each row of the table, and its targets."""
    for row in csv.DictReader(TABLE.splitlines()):
        number = row["number"]
        numbered = ["Algorithm 1"] if number.startswith("Algorithm 1") else labels(number)
        yield numbered or [number], TARGET.findall(row["in the code"])


PAIRS = sorted({(name, *target) for names, targets in rows() for name in names for target in targets})


@pytest.mark.parametrize(("name", "module", "path"), PAIRS, ids=lambda part: str(part))
def test_the_target_exists_and_its_docstring_names_what_it_is(name: str, module: str, path: str) -> None:
    if module.startswith("unfed.flower"):
        pytest.importorskip("flwr")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    text = inspect.getdoc(found) or ""
    assert name in (labels(text) if NUMBERED.fullmatch(name) else text), f"{module}:{path} does not name {name}"


def documented() -> Iterator[tuple[str, str, str]]:
    """Every docstring below src/unfed, and of the theorems: its module, what it belongs to, its text."""
    yield from _inside(ast.parse((ROOT / "tests/theorems.py").read_text(encoding="utf-8")), "theorems", "")
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        yield from _inside(ast.parse(path.read_text(encoding="utf-8")), module, "")


def _inside(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, module: str, path: str
) -> Iterator[tuple[str, str, str]]:
    if text := ast.get_docstring(node):
        yield module, path, text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _inside(child, module, f"{path}.{child.name}".lstrip("."))


def _within(module: str, path: str, place: str, at: str) -> bool:
    """A function stands there itself; the head of a class, a module or a package may name what something inside is."""
    return (module == place and f"{at}.".startswith(f"{path}.")) if path else f"{place}.".startswith(f"{module}.")


def test_every_docstring_that_names_a_number_is_on_the_page() -> None:
    missing = [
        f"{module}:{path} names {name}"
        for module, path, text in documented()
        for name in dict.fromkeys(labels(text))
        if not any(name == named and _within(module, path, place, at) for named, place, at in PAIRS)
    ]
    assert missing == []


def test_no_number_of_the_paper_is_missing_and_none_stands_twice() -> None:
    listed = [name for names, _ in rows() for name in names]
    last = {"Eq.": 89, "Theorem": 7, "Definition": 8, "Lemma": 8}
    expected = [f"{kind} {n}" for kind, most in last.items() for n in range(1, most + 1)]
    assert [name for name in expected if listed.count(name) != 1] == []
    assert set(labels(" ".join(name for name in listed))) == {*expected, "Algorithm 1"}


def test_only_steps_of_proofs_have_no_code() -> None:
    steps = [row for row in csv.DictReader(TABLE.splitlines()) if row["what it says"].startswith("a step in the proof")]
    proofs = {name for row in steps for name in labels(row["number"])}
    bare = {name for names, targets in rows() for name in names if not targets}
    assert bare <= proofs


def test_the_path_of_a_request_that_contributors_are_shown_is_in_the_code() -> None:
    """Every file in CONTRIBUTING's drawing exists, and every step of it is a function of that name."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The path of a deletion request")[2]
    drawing = text.partition("```")[2].partition("```")[0]
    files = [ROOT / "src/unfed" / name for name in re.findall(r"[a-z]+/\w+\.py", drawing)]
    assert len(files) >= 9 and [file for file in files if not file.exists()] == []
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src/unfed").rglob("*.py"))
    steps = re.findall(r"[├└] (?:[A-Za-z]+\.)?(\w+)", drawing)
    assert len(steps) >= 9
    for step in steps:
        assert re.search(rf"^ *(def|class) {step}\b", source, re.MULTILINE), step
