"""The examples as notebooks that were run: `python tools/notebooks.py` runs them, `--check` compares with what is kept.

    examples/NAME.py ─► examples/NAME.ipynb          the same cells, with what they gave
                     └► docs/notebooks/NAME.md       the same as a page, pictures beside it

A script in percent format is the source; nothing but the standard library runs it. What a cell prints and what its
last line is worth are kept, as a notebook would.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAMES = ("first_run", "own_model", "language_model", "flower_app")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NEAR = 6.0
"""Points by which another machine's numbers may differ; the examples' test sets have hundreds of rows."""


@dataclass(frozen=True)
class Cell:
    """A cell of a script: words or code."""

    kind: str
    text: str


@dataclass(frozen=True)
class Given:
    """What a cell gave: what it printed, and what its last line is worth, as text or as a picture."""

    printed: str = ""
    value: str = ""
    svg: str = ""


def cells(text: str) -> list[Cell]:
    """The cells of a script in percent format; its docstring is not one of them."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)[1:]
    found = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        lines = body.strip("\n").split("\n")
        if "markdown" in kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append(Cell("markdown" if "markdown" in kind else "code", "\n".join(lines)))
    return found


def executed(script: Sequence[Cell]) -> list[Given]:
    """What every cell gives, run one after the other in an empty folder; words give nothing."""
    space: dict[str, Any] = {"__name__": "__main__"}
    found = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            found = [_run(cell.text, space) if cell.kind == "code" else Given() for cell in script]
        finally:
            os.chdir(before)
    return found


def _run(text: str, space: dict[str, Any]) -> Given:
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "<cell>", "exec"), space)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space) if last else None
    svg = value._repr_svg_() if hasattr(value, "_repr_svg_") else _drawn()
    return Given(out.getvalue(), "" if value is None or svg or isinstance(value, str) else repr(value), svg)


def _drawn() -> str:
    """What pyplot holds at the end of a cell, which a notebook shows."""
    plt: Any = sys.modules.get("matplotlib.pyplot")
    if plt is None or not plt.get_fignums():
        return ""
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "unfed", "svg.fonttype": "none"}):
        plt.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close("all")
    return out.getvalue()


def notebook(script: Sequence[Cell], given: Sequence[Given], where: str) -> dict[str, Any]:
    """Cells and what they gave, in nbformat 4.5."""
    made, count = [], 0
    for n, (cell, one) in enumerate(zip(script, given, strict=True)):
        own: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{n}", "metadata": {}}
        own["source"] = cell.text.splitlines(keepends=True)
        if cell.kind == "code":
            count += 1
            own |= {"execution_count": count, "outputs": list(_outputs(one, count))}
        made.append(own)
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {
        "cells": made,
        "metadata": {**about, "language_info": {"name": "python"}, "run": where},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _outputs(one: Given, count: int) -> Iterator[dict[str, Any]]:
    if one.printed:
        yield {"output_type": "stream", "name": "stdout", "text": one.printed.splitlines(keepends=True)}
    if one.value or one.svg:
        data = {"image/svg+xml": one.svg} if one.svg else {}
        data["text/plain"] = one.value or "<picture>"
        yield {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}


def kept(name: str) -> tuple[list[Cell], list[Given], str]:
    """The cells of a notebook that is there, what is kept in it, and where it was run."""
    whole = json.loads((ROOT / f"examples/{name}.ipynb").read_text(encoding="utf-8"))
    held = whole["cells"]
    script = [Cell(cell["cell_type"], "".join(cell["source"])) for cell in held]
    return script, [_kept(cell.get("outputs", [])) for cell in held], str(whole["metadata"]["run"])


def _kept(outputs: Sequence[dict[str, Any]]) -> Given:
    printed = "".join("".join(one.get("text", ())) for one in outputs)
    data: dict[str, str] = next((one["data"] for one in outputs if "data" in one), {})
    svg = data.get("image/svg+xml", "")
    return Given(printed, "" if svg else data.get("text/plain", ""), svg)


def page(name: str, script: Sequence[Cell], given: Sequence[Given], where: str) -> tuple[str, dict[str, str]]:
    """The notebook as a page of the documentation, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell, one in zip(script, given, strict=True):
        parts.append(cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```")
        said = one.printed.rstrip("\n") or one.value
        if said:
            parts.append(f"```text\n{said}\n```")
        if one.svg:
            file = f"{name.replace('_', '-')}-{len(pictures) + 1}.svg"
            pictures[file] = one.svg
            parts.append(f"![What the cell above shows]({file})")
        if cell is script[0]:
            parts.append(f"This page is the notebook `examples/{name}.ipynb` as it was run ({where}); {_script(name)}.")
    return "\n\n".join(parts) + "\n", pictures


def _script(name: str) -> str:
    return f"`examples/{name}.py` is the same as a script"


def here() -> str:
    """By what, on what and when the notebooks were run."""
    return f"`python tools/notebooks.py`, {platform.machine()}, {date.today().isoformat()}"


def differences(now: Sequence[Given], then: Sequence[Given]) -> list[str]:
    """In what two executions differ by more than another machine explains; times are not compared."""
    found = []
    for n, (new, old) in enumerate(zip(now, then, strict=True)):
        ours, theirs = (re.sub(r"\b[\d.]+ (s|min)\b", "", f"{one.printed}\n{one.value}") for one in (new, old))
        if NUMBER.sub("#", ours).split() != NUMBER.sub("#", theirs).split() or bool(new.svg) != bool(old.svg):
            found.append(f"cell {n}: gives {ours.strip()!r}, and {theirs.strip()!r} is kept")
            continue
        for one, other in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
            if abs(float(one) - float(other)) > max(NEAR, 0.02 * abs(float(other))):
                found.append(f"cell {n}: {one}, and {other} is kept")
    return found


def write(name: str) -> None:
    """Run an example, and keep what it gave in its notebook and its page."""
    script = cells((ROOT / f"examples/{name}.py").read_text(encoding="utf-8"))
    given, where = executed(script), here()
    text = json.dumps(notebook(script, given, where), indent=1, ensure_ascii=False) + "\n"
    (ROOT / f"examples/{name}.ipynb").write_text(text, encoding="utf-8")
    folder = ROOT / "docs/notebooks"
    folder.mkdir(exist_ok=True)
    told, pictures = page(name, script, given, where)
    (folder / f"{name.replace('_', '-')}.md").write_text(told, encoding="utf-8")
    for file, svg in pictures.items():
        (folder / file).write_text(svg, encoding="utf-8")


def check(name: str) -> list[str]:
    """Run an example again, and say in what it differs from what is kept."""
    script, then, _ = kept(name)
    return differences(executed(script), then)


def main(words: Sequence[str]) -> int:
    names = [word for word in words if word != "--check"] or list(NAMES)
    if "--check" not in words:
        for name in names:
            write(name)
            print(f"wrote examples/{name}.ipynb")
        return 0
    found = [f"{name}: {one}" for name in names for one in check(name)]
    print("\n".join(found) or "what is kept is what they give")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
