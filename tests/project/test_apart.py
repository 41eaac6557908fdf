"""Tests that multiply halves do so in processes of their own, and a run's bytes do not depend on who ran before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import apart

pytest_plugins = ["pytester"]
left: list[str] = []


@pytest.fixture
def torn_down() -> object:
    yield
    left.append("torn down")


@pytest.mark.own_process
def test_a_marked_test_has_a_process_of_its_own(torn_down: None) -> None:
    left.append("called")
    assert apart.apart()
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


def test_nothing_of_it_is_left() -> None:
    assert not apart.apart() and left == []


def test_autocast_to_halves_does_not_begin_in_the_common_process() -> None:
    with pytest.raises(AssertionError, match="own_process"), torch.autocast("cpu", torch.bfloat16):
        pass


MARKED = """
import os, pytest
pytestmark = pytest.mark.own_process

@pytest.fixture
def stubborn():
    yield
    raise ValueError("will not be torn down")

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_dies(): os._exit(3)
def test_stays(stubborn): pass
@pytest.mark.skip(reason="not today")
def test_waits(): pass
"""


def test_what_happens_in_the_child_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = own_process")
    pytester.makepyfile(MARKED)
    result = pytester.inline_run("-p", "apart", "-p", "no:xdist")
    passed, skipped, failed = result.listoutcomes()
    assert [r.nodeid.split("::")[1] for r in passed] == ["test_passes", "test_stays"]
    assert [r.nodeid.split("::")[1] for r in skipped] == ["test_waits"]
    assert {r.nodeid.split("::")[1]: r.when for r in failed} == {
        "test_fails": "call",
        "test_dies": "call",
        "test_stays": "teardown",
    }
    told = "\n".join(str(r.longrepr) for r in failed)
    assert "assert 1 == 2" in told and "exit code 3" in told and "will not be torn down" in told


def test_a_child_is_of_the_process_as_it_was_before_any_test(pytester: pytest.Pytester) -> None:
    """Threads that an earlier test began in the common process would keep a child of it from computing gradients."""
    pytester.makeini("[pytest]\nmarkers = own_process")
    pytester.makepyfile("""
        import pytest
        seen = []
        def test_first(): seen.append("threads")
        @pytest.mark.own_process
        def test_child(tmp_path): assert seen == [] and tmp_path.exists()
        def test_last(tmp_path): assert seen == ["threads"]
    """)
    pytester.inline_run("-p", "apart", "-p", "no:xdist").assertoutcome(passed=3)


def test_a_test_that_changes_the_products_of_the_process_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CPU without bf16 would do, done by hand."""
    monkeypatch.setattr(apart, "products", apart.products)  # so that it is put back
    pytester.makepyfile("import apart\ndef test_guilty(): apart.products = lambda: [b'other bits']")
    result = pytester.inline_run("-p", "apart", "-p", "no:xdist")
    _, _, (failed,) = result.listoutcomes()
    assert failed.when == "teardown" and "test_guilty" in failed.nodeid and "own_process" in str(failed.longrepr)


# Files that name halves and multiply none.
HARMLESS = {
    "test_ablations": "it is the name of an option",
    "test_paper_blocks": "it is a column of a record",
    "test_fused": "a tensor without numbers says how long they would be",
    "test_files": "they are stored and negated",
    "test_flower_shapes": "they are sent, and NumPy averages them",
    "test_lasting_tables": "it is a setting in a made-up record",
    "test_matrix": "they are names of rows, and the truth beside each is float64",
    "test_poison": "they are stamped",
    "test_reproduction": "it is an option of a command that is only written down",
}


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("*/test_*.py")), ids=lambda path: path.stem)
def test_a_file_that_names_halves_marks_tests(path: Path) -> None:
    text = path.read_text()
    named = re.search(r"\b(bfloat16|float16|bf16|fp16)\b", text)
    assert not named or "mark.own_process" in text or path.stem in HARMLESS, apart.REMEDY
