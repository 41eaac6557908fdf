"""The tables of `docs/explanation/ablations.md`: cells of several seeds as mean ± standard deviation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any

import ablations
from ablation_little import TAUGHT
from unfed.values import is_measured

Row = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Sequence[Row]]


def short(layer: str) -> str:
    """A layer's name without what all of its network's names have."""
    layer = re.sub(r"encoder\.layers\.encoder_layer_(\d)\.(self_attention\.)?", r"\1.", layer)
    return layer.removesuffix(".weight").removesuffix("_weight")


def named(layer: str) -> str:
    """A tensor as code, a description as it is."""
    return f"`{short(layer)}`" if " " not in layer and layer not in ("first", "hidden") else layer


def cells(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of all seeds, by layer and perturbation."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["layer"], row["how"]), []).append(row)
    return found


def spread(values: Sequence[float], digits: int = 1) -> str:
    """mean ± standard deviation, of one value the value."""
    told = f"{mean(values):.{digits}f}"
    return told if len(values) < 2 else f"{told} ± {stdev(values):.{digits}f}"


def cell(rows: Sequence[Row] | None, seeds: int = 0) -> str:
    """The gap, and in brackets the rounds until the test accuracy was back: the median of the seeds.

    Where there should be more `seeds` than there are, it says how many there are.
    """
    if not rows:
        return ""
    alive = [row for row in rows if row["gap"] is not None]
    if not alive:
        return f"did not survive{fewer(rows, seeds)}"
    back = median([float("inf") if row["back"] is None else row["back"] for row in alive])
    lost = "" if len(alive) == len(rows) else f", {len(rows) - len(alive)} of {len(rows)} did not survive"
    told = f"{spread([row['gap'] for row in alive])} ({'–' if back == float('inf') else f'{back:g}'}){lost}"
    return told + fewer(rows, seeds)


def seeds_of(rows: Sequence[Row]) -> int:
    return len({row["seed"] for row in rows})


def fewer(rows: Sequence[Row], seeds: int) -> str:
    """How many seeds a cell has, where that is less than the others have."""
    return f", n = {len(rows)}" if len(rows) < seeds else ""


def headline(network: str, rows: Sequence[Row]) -> str:
    count = seeds_of(rows)
    return f"{network}, {count} seed{'s' * (count > 1)}"


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def by_layer(rows: Sequence[Row], hows: Sequence[str]) -> str:
    found, seeds = cells(rows), seeds_of(rows)
    layers = list(dict.fromkeys(row["layer"] for row in rows if row["layer"] != "-"))
    known = [how for how in hows if any((layer, how) in found for layer in layers)]
    return table(["layer", *known], [[named(x), *(cell(found.get((x, h)), seeds) for h in known)] for x in layers])


def of(lines: Sequence[Row], network: str, part: str) -> list[Row]:
    return [row for row in lines if row["network"] == network and row["part"] == part]


def values_of(rows: Sequence[Row], *path: str) -> list[float]:
    """A number of every row that has it."""
    values = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if is_measured(value):
            values.append(float(value))
    return values


def mean_of(rows: Sequence[Row], *path: str) -> float | None:
    values = values_of(rows, *path)
    return mean(values) if values else None


def _percent(rows: Sequence[Row], *path: str) -> str:
    values = values_of(rows, *path)
    return spread(values, 0) if values else "–"


def _turned(rows: Sequence[Row], *path: str) -> str:
    """The backdoor of a model that was turned back, and in brackets what it still reads of the test images."""
    test = mean_of(rows, *path, "test")
    return "–" if test is None else f"{_percent(rows, *path, 'backdoor')} ({test:.0f})"


def model_named(layer: str, how: str) -> str:
    """A model of the part `undo` in words."""
    return {"retrain": "Retrain", "before": "θ*", "none": "FT"}.get(how, f"{layer}, {how}")


def layers_section(lines: Sequence[Row], networks: Sequence[str], data: str = "") -> Iterator[str]:
    for network in networks:
        rows = of(lines, network, "layers")
        if not rows:
            continue
        first = {row["seed"]: row for row in rows}.values()
        ft = cell(cells(rows).get(("-", "none")), len(first))
        yield f"### Every layer ({data}, {network})\n" if data else f"### {network}\n"
        yield (
            f"{len(first)} seed{'s' * (len(first) > 1)}. θ* reads"
            f" {spread([row['before']['test'] for row in first])} % of the test images, Retrain"
            f" {spread([row['retrain']['test'] for row in first])} %; FT ends with gap {ft}.\n"
        )
        where, file = (f"{network} on {data}", "ablations-cifar10") if data else (network, "ablations")
        yield f"![Average gap to Retrain by layer and perturbation, {where}]({file}-{network}.svg)\n"
        yield by_layer(rows, (*ablations.OPEN, *ablations.SEALED))
        flipped = [
            f"`{short(layer)}` {_percent(own, 'numbers', 'backdoor')} → {_turned(own, 'flipped')}"
            for (layer, how), own in cells(rows).items()
            if how == "negate"
        ]
        yield (
            "Backdoor (%) of a negated layer's result → with the sign turned back (and the test accuracy then):"
            f" {', '.join(flipped)}.\n"
        )


def part_section(lines: Sequence[Row], part: str, networks: Sequence[str] = ablations.TUNED) -> Iterator[str]:
    for network in networks:
        if rows := of(lines, network, part):
            hows = list(dict.fromkeys(row["how"] for row in rows if row["layer"] != "-"))
            plain = cells(rows).get(("-", "none"))
            yield f"{headline(network, rows)}{f'; FT {cell(plain, seeds_of(rows))}' if plain else ''}:\n"
            yield by_layer(rows, hows)


def little_section(lines: Sequence[Row], networks: Sequence[str] = ablations.TUNED) -> Iterator[str]:
    for network in networks:
        rows = of(lines, network, "little")
        found, seeds = cells(rows), seeds_of(rows)

        def told(own: Sequence[Row] | None, seeds: int = seeds) -> str:
            if not own or any(row["gap"] is None for row in own):
                return cell(own, seeds)
            test = spread([row["numbers"]["test"] for row in own])
            numbers = f"{spread([row['gap'] for row in own])} · {test} · {_percent(own, 'numbers', 'backdoor')}"
            return numbers + fewer(own, seeds)

        ways = sorted(dict.fromkeys(row["layer"] for row in rows), key=_amount)
        body = [[way, *(told(found.get((way, how))) for how in ("ft", "not", "sealed"))] for way in ways]
        if body:
            yield f"{headline(network, rows)}:\n"
            yield table(["recovery with", "FT: gap · test · backdoor", "NoT", "sealed (fade, hidden)"], body)


def _amount(way: str) -> tuple[int, float]:
    share = re.match(r"(\d+)% of", way)
    return (0, float(share[1])) if share else (2 if way == TAUGHT else 1, 0.0)


def _place(layer: str, how: str) -> tuple[int, int]:
    """Where a model stands in the table, in whatever order its cells were made."""
    hows = ("retrain", "before", "none", *ablations.OPEN, *ablations.SEALED)
    return ("-", "first", "hidden").index(layer), hows.index(how)


def undo_section(lines: Sequence[Row], networks: Sequence[str] = ablations.TUNED) -> Iterator[str]:
    whole = ("resurface", "forget_rise"), ("relearn",)
    for network in networks:
        rows = of(lines, network, "undo")
        found, seeds = cells(rows), seeds_of(rows)
        if not found:
            continue
        known = any("resurface" in row.get("undo", {}) for own in found.values() for row in own)
        header = ["model", "gap", "backdoor as left", "flip (test)", "realign"]
        header += ["resurface: Forget rises by", "relearn: area"] if known else []
        body = []
        for (layer, how), own in sorted(found.items(), key=lambda one: _place(*one[0])):
            label = model_named(layer, how) + fewer(own, seeds)
            told = cell(own) if how not in ("retrain", "before") else "–"
            numbers = [_percent(own, "numbers", "backdoor"), _turned(own, "undo", "flip")]
            numbers += [_percent(own, "undo", "realign", "backdoor")]
            body.append([label, told, *numbers, *(_percent(own, "undo", *path) for path in whole * known)])
        yield f"{headline(network, rows)}:\n"
        yield table(header, body)
