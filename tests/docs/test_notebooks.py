"""Notebooks are kept as they were run, pages are made of them, and what is kept is what the present code gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import notebooks  # noqa: E402
from notebooks import Cell, Given  # noqa: E402

SIMULATED = "flower_app"
"""It mostly waits for Flower's simulator, and runs with what else does."""
SCRIPT = '''"""Not a cell."""

# %% [markdown]
# # Words
#
# more of them

# %%
class Drawn:
    def _repr_svg_(self) -> str:
        return "<svg/>"


three = 3
print("three is", three)

# %%
three + 1

# %%
Drawn()
'''


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_holds_the_cells_of_its_script_and_what_each_gave(name: str) -> None:
    own = json.loads((ROOT / f"examples/{name}.ipynb").read_text(encoding="utf-8"))
    script, given, _ = notebooks.kept(name)
    assert script == notebooks.cells((ROOT / f"examples/{name}.py").read_text(encoding="utf-8"))
    assert (own["nbformat"], own["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in own["cells"]}) == len(own["cells"])
    counts = [cell["execution_count"] for cell in own["cells"] if cell["cell_type"] == "code"]
    assert counts == [*range(1, len(counts) + 1)], "every cell was run, in order"
    assert sum(bool(one.printed or one.svg) for one in given) >= 3


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_page_shows_what_its_notebook_holds(name: str) -> None:
    """`python tools/notebooks.py` writes both."""
    told, pictures = notebooks.page(name, *notebooks.kept(name))
    folder = ROOT / "docs/notebooks"
    assert (folder / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8") == told
    for file, svg in pictures.items():
        assert (folder / file).read_text(encoding="utf-8") == svg


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in notebooks.NAMES if name != SIMULATED])
def test_what_is_kept_is_what_the_cells_give_today(name: str) -> None:
    assert notebooks.check(name) == []


@pytest.mark.flower_processes
def test_what_is_kept_of_flowers_simulator_is_what_it_gives_today() -> None:
    assert notebooks.check(SIMULATED) == []


def test_a_figure_of_pyplot_is_kept_once_and_always_as_the_same_bytes() -> None:
    script = [Cell("code", "import matplotlib.pyplot as plt\n\nlines = plt.plot([1, 2])"), Cell("code", "x = 1")]
    drawn, after = notebooks.executed(script)
    assert "<svg" in drawn.svg and not drawn.value
    assert after == Given(), "a figure belongs to the cell that drew it"
    assert notebooks.executed(script) == [drawn, after]


def test_cells_are_run_and_what_they_give_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = notebooks.cells(SCRIPT)
    assert script[0] == Cell("markdown", "# Words\n\nmore of them")
    given = notebooks.executed(script)
    assert given == [Given(), Given("three is 3\n"), Given(value="4"), Given(svg="<svg/>")]
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/made.ipynb").write_text(json.dumps(notebooks.notebook(script, given, "here")))
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    assert notebooks.kept("made") == (script, given, "here")
    told, pictures = notebooks.page("made", script, given, "here")
    assert "```text\nthree is 3\n```" in told and "![What the cell above shows](made-1.svg)" in told
    assert pictures == {"made-1.svg": "<svg/>"}


@pytest.mark.parametrize(
    ("now", "alike"),
    [
        (Given("NoT 94.2 in 9.9 s"), True),
        (Given("NoT  91.0 in 3 min"), True),  # another machine: points, columns and times move
        (Given("NoT 80.0 in 4.5 s"), False),
        (Given("Sealed 94.2 in 4.5 s"), False),
        (Given("NoT 94.2 in 4.5 s", svg="<svg/>"), False),
    ],
)
def test_what_another_machine_explains_is_no_difference(now: Given, alike: bool) -> None:
    assert (notebooks.differences([now], [Given("NoT 94.2 in 4.5 s")]) == []) is alike
