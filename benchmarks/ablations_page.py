"""Tables and figures of `ablations.py`'s and `advice.py`'s records, into docs/explanation/ablations.md.

python benchmarks/ablations_page.py              writes the tables between their marks, and the figures
python benchmarks/ablations_page.py --check      exits with 1 if the tables are not what the records say
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ablations
import advice
from unfed.paper.pictures import Line, curves

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/ablations.md"
ADVICE = ROOT / "benchmarks/records/2026-11-15-advice-digits-cpu.json"
BEGIN, END = "<!-- {}: benchmarks/ablations_page.py -->", "<!-- end of {} -->"
Row = Mapping[str, Any]


def short(layer: str) -> str:
    """A layer's name without what all of its network's names have."""
    layer = re.sub(r"encoder\.layers\.encoder_layer_(\d)\.(self_attention\.)?", r"\1.", layer)
    return layer.removesuffix(".weight").removesuffix("_weight")


def cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["gap"] is None:
        return "did not survive"
    back = "–" if row["back"] is None else str(row["back"])
    return f"{row['gap']:.1f} ({back})"


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def by_layer(rows: Sequence[Row], hows: Sequence[str]) -> str:
    found = {(r["layer"], r["how"]): r for r in rows}
    layers = list(dict.fromkeys(r["layer"] for r in rows if r["layer"] != "-"))
    known = [how for how in hows if any((layer, how) in found for layer in layers)]
    body = [[f"`{short(x)}`" if " " not in x else x, *(cell(found.get((x, h))) for h in known)] for x in layers]
    return table(["layer", *known], body)


def layers_section(lines: Sequence[Row]) -> Iterator[str]:
    for network in (*ablations.TUNED, *ablations.OTHERS):
        rows = [r for r in lines if r["network"] == network and r["part"] == "layers"]
        if not rows:
            continue
        ft = next((r for r in rows if r["how"] == "none"), None)
        base = rows[0]
        yield f"### {network}\n"
        yield (
            f"θ* reads {base['before']['test']:.1f} % of the test digits, Retrain {base['retrain']['test']:.1f} %;"
            f" FT ends with gap {cell(ft)}.\n"
        )
        yield f"![Average gap to Retrain by layer, {network}](ablations-{network}.svg)\n"
        yield by_layer(rows, (*ablations.OPEN, *ablations.SEALED))
        flipped = [
            f"`{short(r['layer'])}` {r['numbers']['backdoor']:.0f} → {r['flipped']['backdoor']:.0f}"
            for r in rows
            if r["how"] == "negate" and "backdoor" in r.get("flipped", {})
        ]
        if flipped:
            yield f"Backdoor (%) of a negated layer's result, and with the sign turned back: {', '.join(flipped)}.\n"


def part_section(lines: Sequence[Row], part: str) -> Iterator[str]:
    for network in ablations.TUNED:
        rows = [r for r in lines if r["network"] == network and r["part"] == part]
        if rows:
            hows = list(dict.fromkeys(r["how"] for r in rows))
            plain = [r for r in rows if r["layer"] == "-"]
            yield f"{network}{f', FT {cell(plain[0])}' if plain else ''}:\n"
            yield by_layer(rows, hows)


def little_section(lines: Sequence[Row]) -> Iterator[str]:
    rows = [r for r in lines if r["part"] == "little"]
    found = {(r["layer"], r["how"]): r for r in rows}
    ways = sorted(dict.fromkeys(r["layer"] for r in rows), key=_amount)

    def told(row: Row | None) -> str:
        if row is None or row["gap"] is None:
            return cell(row)
        n = row["numbers"]
        return f"{row['gap']:.1f} · {n['test']:.1f} · {n['backdoor']:.0f}"

    body = [[way, *(told(found.get((way, how))) for how in ("ft", "not", "sealed"))] for way in ways]
    yield table(["recovery with", "FT: gap · test · backdoor", "NoT", "sealed (fade, hidden)"], body)


def _amount(way: str) -> tuple[int, float]:
    share = re.match(r"(\d+)% of", way)
    return (0, float(share[1])) if share else (1 if "clients" in way else 2, 0.0)


def advice_section(found: Sequence[Row]) -> Iterator[str]:
    def near(row: Row, name: str) -> bool:
        return float(row["picks"][name][2]) <= float(row["best"][2]) + advice.NEAR

    def told(pick: Sequence[Any], good: bool) -> str:
        return f"{'**' * good}`{short(pick[0])}` {pick[1]}, {pick[2]:.1f}{'**' * good}"

    body = [
        [
            row["network"] + (" (tuned on)" if row["tuned_on"] else ""),
            told(row["best"], False),
            *(told(row["picks"][name], near(row, name)) for name in ("score", "rules", "paper")),
            "yes" if row["doubts"] or row["picks"]["score"][:2] != row["picks"]["rules"][:2] else "no",
        ]
        for row in found
    ]
    yield table(["network", "best of all, gap", "score's pick", "rules' pick", "the paper's", "unsure?"], body)
    new = [row for row in found if not row["tuned_on"]]
    for label, some in (("networks it was not tuned on", new), ("all networks", list(found))):
        if some:
            counted = ", ".join(
                f"{name} {sum(near(row, key) for row in some)} of {len(some)}"
                for name, key in (("score", "score"), ("rules", "rules"), ("the paper's choice", "paper"))
            )
            mean = ", ".join(
                f"{sum(float(r['picks'][key][2]) - float(r['best'][2]) for r in some) / len(some):.1f}"
                for key in ("score", "rules", "paper")
            )
            yield f"Within {advice.NEAR} points of the best on {label}: {counted}; mean distance from it: {mean}.\n"


def filled(page: str, lines: Sequence[Row], found: Sequence[Row]) -> str:
    """The page with every table between its marks."""
    made = {
        "layers": layers_section(lines),
        "sets": part_section(lines, "sets"),
        "federation": part_section(lines, "federation"),
        "little": little_section(lines),
        "advice": advice_section(found),
    }
    for name, section in made.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, mark, rest = page.partition(begin)
        _, close, after = rest.partition(end)
        if not (mark and close):
            raise SystemExit(f"{PAGE} lacks the marks {begin} and {end}.")
        page = f"{before}{begin}\n\n" + "\n".join(section) + f"\n{end}{after}"
    return page


def draw(lines: Sequence[Row]) -> None:
    for network in dict.fromkeys(r["network"] for r in lines if r["part"] == "layers"):
        rows = [r for r in lines if r["network"] == network and r["part"] == "layers" and r["gap"] is not None]
        hows = [h for h in (*ablations.OPEN, *ablations.SEALED) if any(r["how"] == h for r in rows)]
        layers = list(dict.fromkeys(r["layer"] for r in rows if r["layer"] != "-"))
        shown = []
        for how in hows:
            own = {r["layer"]: float(r["gap"]) for r in rows if r["how"] == how}
            shown.append(Line(how, [(short(x), own.get(x, float("nan"))) for x in layers]))
        picture = curves(shown, network, "layer", "average gap to Retrain", item="ablations", bottom=0.0)
        if picture.svg is not None:
            (PAGE.parent / f"ablations-{network}.svg").write_text(picture.file(), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    lines = ablations.read(ablations.RECORD)
    found = json.loads(ADVICE.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    wanted = filled(text, lines, found)
    if "--check" in arguments:
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    draw(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
