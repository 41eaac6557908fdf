"""The tables of `lasting.py`'s records, written into the page of Sealed's measurements between its marks.

    python benchmarks/lasting_tables.py                        all records in benchmarks/records/*lasting*.jsonl
    python benchmarks/lasting_tables.py --print FILE …         only shown

Per network, kind of request and number of requests: what each variant left, how far that is from Retrain, how many
rounds it took to come within some points of θ*, beside both controls, and the worst that undoing brought back. Several
seeds are shown as their mean, over those that have every cell; rounds as one number per seed. Records that have it show
what was left, and what came back, at the round that is counted as the price as well as at the end. Where controls may
not come so near in their rounds, a second table counts the rounds to stated accuracies. Where every way of undoing was
tried, another table shows what each brought back. Where every attacked model was kept, a last one says what came back
in models further below the published one: a fit that is not finished yet shows there, and NoT beside it tells whether
the attack was strong enough to say something.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed.measures.metrics import average_gap
from unfed.values import is_measured

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/methods/sealed-measured.md"
BEGIN, END = "<!-- tables: benchmarks/lasting_tables.py -->", "<!-- end of tables -->"
CONTROLS = ("retrain", "reinit")
TITLES = {"retrain": "Retrain", "reinit": "everything drawn anew", "not": "NoT", "ft": "FT", "sealed": "**Sealed**"}
STATED = {("cifar10", "cnn"): (70.0, 72.0, 74.0)}
"""Test accuracies, in percent, to which rounds are counted as well."""
AT_THE_END = "attacked at the end only, not at the round that is counted"
FURTHER = (5, 10, 15)
"""Points of Test below the published model."""
Line = Mapping[str, Any]
Goal = Callable[[Line], float]
"""The test accuracy that a line is to reach."""


def near(within: float) -> Goal:
    """Within some points of θ*."""
    return lambda line: float(line["before"]["test"]) - within


def stated(level: float) -> Goal:
    """The same accuracy for every seed."""
    return lambda line: level


def reached(line: Line, goal: Goal) -> int | None:
    """The first round that was looked at and whose test accuracy is good enough."""
    return next((r for r, test in line["curve"] if r and test >= goal(line)), None)


def mean(values: Sequence[Any], places: int = 1) -> str:
    """The mean over seeds; a dash where something was not measured."""
    known = [float(value) for value in values if value is not None and is_measured(value)]
    return f"{sum(known) / len(known):.{places}f}" if known and len(known) == len(values) else "—"


def rounds(lines: Sequence[Line], goal: Goal) -> str:
    found = [reached(line, goal) for line in lines]
    return " / ".join(f"> {line['rounds']}" if r is None else str(r) for r, line in zip(found, lines, strict=True))


def is_cheaper(lines: Sequence[Line], controls: Sequence[Sequence[Line]], goal: Goal) -> str:
    """Whether it takes at most half the rounds of either control, in every seed; a control that never came counts
    with the rounds it had."""
    own = [reached(line, goal) for line in lines]
    others = [[reached(line, goal) or line["rounds"] for line in control] for control in controls]
    if not others or any(len(other) != len(own) for other in others):
        return "—"
    least = [min(pair) for pair in zip(*others, strict=True)]
    held = sum(r is not None and 2 * r <= other for r, other in zip(own, least, strict=True))
    return f"{held} of {len(own)}"


def by_requests(lines: Sequence[Line]) -> dict[int, dict[str, list[Line]]]:
    """Number of requests → variant → its lines in the order of the seeds, of seeds that every variant has."""
    found: dict[int, dict[str, list[Line]]] = {}
    for k in sorted({line["k"] for line in lines}):
        here = sorted((line for line in lines if line["k"] == k), key=lambda x: x["seed"])
        variants = list(dict.fromkeys(x["variant"] for x in lines if x["k"] == k))
        seeds = set.intersection(*({x["seed"] for x in here if x["variant"] == v} for v in variants))
        found[k] = {v: [x for x in here if x["variant"] == v and x["seed"] in seeds] for v in variants}
    return found


def rounds_and_price(variant: str, by: Mapping[str, Sequence[Line]], goal: Goal) -> list[str]:
    """How many rounds to a goal, and in how many seeds that is at most half of either control's."""
    controls = [by[c] for c in CONTROLS if c in by]
    known = is_cheaper(by[variant], controls, goal) if len(controls) == len(CONTROLS) else "—"
    held = "control" if variant in CONTROLS else known
    return [rounds(by[variant], goal), held]


def stated_table(lines: Sequence[Line], levels: Sequence[float]) -> list[str]:
    """Rounds to stated accuracies, one number per seed."""
    head = ["requests", ""] + [text for level in levels for text in (f"rounds to {level:g} %", "at most half")]
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for k, by in by_requests(lines).items():
        for variant in by:
            if variant != "reference":
                cells = [rounds_and_price(variant, by, stated(level)) for level in levels]
                row = [str(k), TITLES.get(variant, f"`{variant}`"), *(cell for pair in cells for cell in pair)]
                text.append("| " + " | ".join(row) + " |")
    return text


def table(lines: Sequence[Line], within: float) -> list[str]:
    """One network, one kind of request: rows by the number of requests and the variant."""
    client = lines[0]["scope"] == "client"
    head = ["requests", "", "retain", "forget", "test", "MIA", "avg. gap"]
    head += ["backdoor"] if client else []
    head += [f"rounds to θ* − {within:g}", "at most half", "undone: forget"] + (["undone: backdoor"] if client else [])
    paid = any("paid" in x for x in lines)
    names = ("forget", "backdoor") if client else ("forget",)
    head += [f"at the round paid for: {n}" for n in names] + [f"undone: {n}" for n in names] if paid else []
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for k, by in by_requests(lines).items():
        reference = {x["seed"]: x["after"] for x in by.get("reference") or by.get("retrain", [])}
        first = next(own for variant, own in by.items() if variant != "reference")
        text.append(before_row(k, [x["before"] for x in first], len(head), client))
        for variant, own in by.items():
            if variant == "reference":
                continue
            gaps = [average_gap(x["after"], reference[x["seed"]]) for x in own if x["seed"] in reference]
            cells = [str(k), TITLES.get(variant, f"`{variant}`")]
            cells += [mean([x["after"][n] for x in own]) for n in ("retain", "forget", "test", "mia")] + [mean(gaps)]
            cells += [mean([x["after"]["backdoor"] for x in own])] if client else []
            cells += rounds_and_price(variant, by, near(within))
            worst = [x.get("undo", {}) for x in own]
            cells += [mean([w.get(n) for w in worst]) for n in names]
            then = [x.get("paid", {}) for x in own]
            cells += (
                [mean([t.get(w, {}).get(n) for t in then]) for w in ("after", "undo") for n in names] if paid else []
            )
            text.append("| " + " | ".join(cells) + " |")
    return text


def before_row(k: int, found: Sequence[Mapping[str, Any]], columns: int, client: bool) -> str:
    """What θ* shows of the same requests: where it does not hold the leaver, there is nothing to forget."""
    cells = [str(k), "θ*, before"] + [mean([x.get(n) for x in found]) for n in ("retain", "forget", "test", "mia")]
    cells += ["—", mean([x.get("backdoor") for x in found])] if client else ["—"]
    return "| " + " | ".join(cells + ["—"] * (columns - len(cells))) + " |"


def undo_table(lines: Sequence[Line]) -> list[str]:
    """What each way of undoing brought back: flip, resurface, relearn, path, difference."""
    client = lines[0]["scope"] == "client"
    head = ["requests", "", "flip: forget", *(["backdoor"] if client else []), "test", "resurface: forget rises by"]
    head += [*(["backdoor rises by"] if client else []), "relearn: area", "distance to θ*", "loss peak on the way"]
    head += ["cosine with the leaver's gradient", "label histogram: error", "of equal shares"]
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    names = [("flip", "forget"), ("flip", "backdoor"), ("flip", "test"), ("resurface", "forget_rise")]
    names += [("resurface", "backdoor_rise"), ("relearn", "area"), ("path", "relative_l2"), ("path", "peak")]
    names += [("difference", n) for n in ("cosine", "variation", "variation_of_equal_shares")]
    for k, by in by_requests(lines).items():
        for variant, own in by.items():
            undone = [x["undo"] for x in own if "resurface" in x.get("undo", {})]
            if not undone or len(undone) < len(own):
                continue
            cells = [str(k), TITLES.get(variant, f"`{variant}`")]
            for part, name in names:
                if client or "backdoor" not in name:
                    places = 1 if part in ("flip", "resurface", "relearn") else 2
                    cells.append(mean([u[part].get(name) for u in undone], places))
            text.append("| " + " | ".join(cells) + " |")
    return text if len(text) > 2 else []


def light_table(lines: Sequence[Line]) -> list[str]:
    """What lifted biases (classes) or five stamped rows (clients) bring back, at the round paid for and at the end."""
    part, names = {
        "client": ("triggers", {"own": "own trigger", "known": "planted trigger"}),
        "class": ("lift", {"back_1": "others lose 1 point", "back_5": "5 points"}),
    }.get(lines[0]["scope"], ("", {}))
    title = {"triggers": "backdoor taught again, in points", "lift": "class back by lift, in %"}.get(part, "")
    head = ["requests", "", *(f"{when}: {what}" for when in ("paid for", "end") for what in names.values())]
    text = [f"*{title}*", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for k, by in by_requests(lines).items():
        known = {v: own for v, own in by.items() if all(part in x.get("undo", {}) for x in own)}
        if not part or not known:
            continue
        star = [x["before"].get("undo", {}).get(part, {}) for x in next(iter(known.values()))]
        text.append(f"| {k} | θ*, before | " + " | ".join(2 * [mean([x.get(n) for x in star]) for n in names]) + " |")
        for variant, own in known.items():
            when = [[x.get("paid", {}).get("undo", {}) for x in own], [x["undo"] for x in own]]
            cells = [mean([one.get(part, {}).get(n) for one in of]) for of in when for n in names]
            text.append(f"| {k} | {TITLES.get(variant, f'`{variant}`')} | " + " | ".join(cells) + " |")
    return text if len(text) > 4 else []


def worst(line: Line, within: float) -> tuple[float, float]:
    """The most of Forget and of the backdoor in attacked models at most so far below the published one's Test."""
    kept = [one for one in line["undo"]["tries"] if one[5] >= line["after"]["test"] - within]
    return max((one[4] for one in kept), default=0.0), max((one[6] for one in kept), default=0.0)


def further_table(lines: Sequence[Line]) -> list[str]:
    """The worst backdoor by how far an attacked model may be below the published one, one number per seed."""
    head = ["requests", "", "backdoor as published", *(f"undone, within {w} points" for w in FURTHER)]
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for k, by in by_requests([x for x in lines if x.get("undo", {}).get("tries") and x["scope"] == "client"]).items():
        for variant, own in by.items():
            cells = [str(k), TITLES.get(variant, f"`{variant}`"), _each(x["after"]["backdoor"] for x in own)]
            cells += [_each(worst(x, w)[1] for x in own) for w in FURTHER]
            text.append("| " + " | ".join(cells) + " |")
    return text if len(text) > 2 else []


def _each(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def page(lines: Sequence[Line], within: float) -> str:
    """All tables of one record."""
    text: list[str] = []
    for data, model, scope in dict.fromkeys((x["data"], x["model"], x["scope"]) for x in lines):
        own = [x for x in lines if (x["data"], x["model"], x["scope"]) == (data, model, scope)]
        some = next(x for x in own if "curve" in x)
        text += [
            f"**{data}, `{model}`, {scope}** (seeds {_seeds(own)};"
            f" {_trained(some)}{some['rounds']} rounds, learning rate {some['lr']:g};"
            f" {some.get('hardware', 'CPU')}, {some.get('precision', 'float32')};"
            f" {'attacked at the round paid for and at the end' if 'paid' in some else AT_THE_END})",
            "",
            *table(own, within),
            "",
            *([*stated_table(own, STATED[data, model]), ""] if (data, model) in STATED else []),
            *([*light, ""] if (light := light_table(own)) else []),
            *([*undo, ""] if (undo := undo_table(own)) else []),
            *([*further, ""] if (further := further_table(own)) else []),
        ]
    return "\n".join(text)


def _seeds(lines: Sequence[Line]) -> str:
    """The seeds that every variant has; where their number differs, by the number of requests."""
    by = {k: sorted({x["seed"] for own in found.values() for x in own}) for k, found in by_requests(lines).items()}
    texts = {k: ", ".join(map(str, seeds)) for k, seeds in by.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " and ".join(f"{text} after {k} request{'s' if k > 1 else ''}" for k, text in texts.items())


def _trained(line: Line) -> str:
    return f"{line['trained']} + " if "trained" in line else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="records; all of benchmarks/records by default")
    parser.add_argument("--within", type=float, default=2.0, help="points below θ*'s test accuracy")
    parser.add_argument("--print", action="store_true", dest="only", help="show, write nothing")
    options = parser.parse_args()
    files = options.files or sorted((ROOT / "benchmarks/records").glob("*lasting*.jsonl"), reverse=True)  # digits first
    records = [[json.loads(text) for text in file.read_text().splitlines()] for file in files]
    text = "\n".join(page(lines, options.within) for lines in records)
    if options.only:
        print(text)
        return
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} has lost its marks: {BEGIN} … {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
