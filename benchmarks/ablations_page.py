"""Tables and figures of `ablations.py`'s records, into docs/explanation/ablations.md.

python benchmarks/ablations_page.py              writes the tables between their marks, and the figures
python benchmarks/ablations_page.py --check      exits with 1 if the tables are not what the records say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import ablation_tables as tables
import ablations
from ablation_figures import field_map, overview
from ablation_tables import Row
from unfed.paper.pictures import PaperFigure

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/ablations.md"
BEGIN, END = "<!-- {}: benchmarks/ablations_page.py -->", "<!-- end of {} -->"
ALL = (*ablations.TUNED, *ablations.OTHERS)


def _cifar(lines: Sequence[Row]) -> Iterator[str]:
    if not lines:
        yield "There is no record of it yet; the command above makes one.\n"
    yield from tables.layers_section(lines, ("cnn",), "CIFAR-10")
    for title, section in (
        ("What comes back", tables.undo_section(lines, ("cnn",))),
        ("Several layers at once", tables.part_section(lines, "sets", ("cnn",))),
        ("Little data for recovery", tables.little_section(lines, ("cnn",))),
    ):
        told = list(section)
        if told:
            yield f"### {title} (CIFAR-10)\n"
            yield from told


def filled(page: str, lines: Sequence[Row], cifar: Sequence[Row]) -> str:
    """The page with every table between its marks."""
    made = {
        "layers": tables.layers_section(lines, ALL),
        "sets": tables.part_section(lines, "sets"),
        "federation": tables.part_section(lines, "federation"),
        "little": tables.little_section(lines),
        "undo": tables.undo_section(lines),
        "cifar": _cifar(cifar),
    }
    for name, section in made.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, mark, rest = page.partition(begin)
        _, close, after = rest.partition(end)
        if not (mark and close):
            raise SystemExit(f"{PAGE} lacks the marks {begin} and {end}.")
        page = f"{before}{begin}\n\n" + "\n".join(section) + f"\n{end}{after}"
    return page


SHOWN = {
    "sets": ("negate", "reinit", "orthogonal", "sealed fade"),
    "federation": ("none", "negate", "reinit", "sealed fade"),
    "little": ("ft", "not", "sealed"),
}
"""What the overviews show of each part."""
ATTACKS = {"as left": ("numbers",), "flip": ("undo", "flip"), "realign": ("undo", "realign")}


def draw_overviews(lines: Sequence[Row]) -> None:
    """One picture of each part: what was done beside four networks."""
    for part, hows in SHOWN.items():
        found: dict[tuple[str, str], float | None] = {}
        for network in ablations.TUNED:
            for (layer, how), own in tables.cells(tables.of(lines, network, part)).items():
                if layer != "-" and how in hows:
                    found[layer, f"{network}: {how}"] = tables.mean_of(own, "gap")
        _picture(overview(found, part, TITLES[part]), part)
    back: dict[tuple[str, str], float | None] = {}
    for network in ablations.TUNED:
        for (layer, how), own in tables.cells(tables.of(lines, network, "undo")).items():
            for attack, path in ATTACKS.items():
                value = tables.mean_of(own, *path, "backdoor")
                if value is not None and (attack != "flip" or _alive(own)):
                    back[tables.model_named(layer, how), f"{network}: {attack}"] = value
    _picture(overview(back, "undo", TITLES["undo"], digits=0, darkest=100.0), "undo")


def _alive(rows: Sequence[Row]) -> bool:
    """Whether models that were turned back still read half of what they read before."""
    after, before = tables.mean_of(rows, "undo", "flip", "test"), tables.mean_of(rows, "numbers", "test")
    return after is not None and before is not None and after >= before / 2


TITLES = {
    "sets": "Average gap to Retrain of one and several layers, four networks",
    "federation": "Average gap to Retrain of the first layer in other federations, four networks",
    "little": "Average gap to Retrain by what recovery has, four networks",
    "undo": "Backdoor in percent as left and after two attacks, four networks",
}


def _picture(drawn: PaperFigure, name: str) -> None:
    (PAGE.parent / f"ablations-{name}.svg").write_text(drawn.file(), encoding="utf-8")


def draw(lines: Sequence[Row], data: str = "") -> None:
    for network in dict.fromkeys(row["network"] for row in lines if row["part"] == "layers"):
        found = tables.cells(tables.of(lines, network, "layers"))
        found.pop(("-", "none"), None)
        gaps = {(tables.short(layer), how): tables.mean_of(own, "gap") for (layer, how), own in found.items()}
        layers = list(dict.fromkeys(layer for layer, _ in gaps))
        hows = [how for how in (*ablations.OPEN, *ablations.SEALED) if any(h == how for _, h in gaps)]
        title = f"{network} on CIFAR-10" if data else network
        _picture(field_map(gaps, layers, hows, title), f"{data}{network}")


def main(arguments: Sequence[str]) -> int:
    lines, cifar = (ablations.read(ablations.RECORDS[name]) for name in ("digits", "cifar10"))
    text = PAGE.read_text(encoding="utf-8")
    wanted = filled(text, lines, cifar)
    if "--check" in arguments:
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    draw(lines)
    draw_overviews(lines)
    draw(cifar, "cifar10-")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
