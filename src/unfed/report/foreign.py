"""The page of an unlearning in somebody else's Flower app, from the evidence it wrote down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from unfed.report.html import page
from unfed.report.undo_table import ROWS, grid
from unfed.report.words import date_text
from unfed.values import not_measured

MISSING = {
    "Membership inference": not_measured("a Flower app gives no losses of single rows"),
    "Distance to Retrain": not_measured("nothing was trained from scratch without what left"),
}


def foreign_page(kept: Mapping[str, Any], title: str) -> str:
    """Everything that was written down; what a foreign app cannot give says why."""
    rounds = kept["rounds"]
    out = {node for leaver in kept["leavers"] for node in leaver["nodes"]}
    broken = kept.get("abandoned", [])
    wrong = sum(node in out for line in [*rounds, *broken] for what in ("train", "evaluate") for node in line[what])
    failed = {name: not_measured(why) for name, why in kept.get("unmeasured", {}).items()}
    return page(
        "foreign.html.j2",
        title=title,
        created=date_text(str(kept["created"])),
        leavers=[{"who": one["who"], "nodes": _nodes(one["nodes"])} for one in kept["leavers"]],
        classes=[*_classes(kept)],
        finished=kept["finished"] or "not finished",
        strategy=kept["strategy"],
        count=len(rounds),
        wrong=wrong,
        measured=_measured(kept),
        arrays=kept["arrays"],
        metrics=_metrics(kept),
        asked=[
            {"round": f"{line['round']}{same}", **_asked(line)} for line, same in zip(rounds, _idle(kept), strict=True)
        ],
        refused=[one for line in rounds for one in (*line["refused"], *line.get("heavy", ()))],
        broken=[{"round": f"{line['round']}, broken off", **_asked(line)} for line in broken],
        missing=_forgotten_rows(kept) | MISSING | _not_undone(kept) | failed,
        **_probes(kept),
    )


def _classes(kept: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each class that left, and what clients say of its rows in the last round in which anybody said it."""
    told = [line["left_out"] for line in kept["rounds"] if line.get("left_out")]
    for number in (*kept.get("classes", ()), *kept.get("classes_before", ())):
        rows = [one["rows"].get(str(number), 0) for one in (told[-1] if told else ())]
        words = f"class {number} has left" + (" before" if number in kept.get("classes_before", ()) else "")
        clients = "1 client says" if len(rows) == 1 else f"{len(rows)} clients say"
        count = "1 row of it was" if sum(rows) == 1 else f"{sum(rows):,} rows of it were"
        yield words, f"{clients} that {count} left out of the last training"


def _probes(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What the server's probes brought back of the model after and of the one before, and notes."""
    if "probes" not in kept:
        return {"probes": [], "notes": []}
    rows = [row for row in ROWS if not {"backdoor", "retrain"} & {*row.path}]  # nobody here knows of either
    body, notes = grid([kept["probes"]], rows, ("unlearned", "before"))
    return {"probes": [(title, *cells) for title, cells in body], "notes": notes}


def _measured(kept: Mapping[str, Any]) -> int:
    """Messages to who left, to measure: before, in rounds, after, and of the model turned back."""
    rounds = [line["leaver"] for line in kept["rounds"] if "leaver" in line]
    apart = [answers for when, answers in kept.get("leaver", {}).items() if not (when == "after" and rounds)]
    return sum(map(len, [*rounds, *apart, kept.get("undo", {}).get("leaver", ())]))


def _forgotten_rows(kept: Mapping[str, Any]) -> dict[str, str]:
    """Why nobody says what the model is worth on the rows of whoever left; nothing where somebody does."""
    told = [one for answers in kept.get("leaver", {}).values() for one in answers]
    if any("metrics" in one for one in told):
        return {}
    nobody = "the leaver gave no leave to be asked, so nobody scores the forgotten rows"
    if kept.get("classes"):
        nobody = "no client is asked to score the rows that it left out; a metric of the app's own would stand here"
    why = told[0]["why"] if told else nobody
    return {"Forget accuracy": not_measured(why)}


def _not_undone(kept: Mapping[str, Any]) -> dict[str, str]:
    """Why nobody tried to take the perturbation back; nothing where somebody did."""
    tried = kept.get("undo", {"reason": "nobody took the perturbation back to see (undo=True of the evidence does)"})
    return {"Undoing": not_measured(tried["reason"])} if "reason" in tried else {}


def _idle(kept: Mapping[str, Any]) -> list[str]:
    """Of each round whether it changed nothing: what is not heard, or refused, trains no model."""
    models = [kept["arrays"]["perturbed"], *(line["arrays"] for line in kept["rounds"])]
    return [", changed nothing" if new == old else "" for old, new in pairwise(models)]


def _asked(line: Mapping[str, Any]) -> dict[str, str]:
    rows = [f"{one['node']}: {sum(one['rows'].values()):,} of {one['of']:,}" for one in line.get("left_out", ())]
    return {what: _nodes(line[what]) for what in ("train", "evaluate")} | {"left_out": ", ".join(rows) or "none"}


def _nodes(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "nobody"


LEAVER = "node {}, which left, with its leave"
TURNED = ", of the model with the perturbation taken back"


def _metrics(kept: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row per metric of the app: who says it, its name, before and after."""
    found = []
    undone = kept.get("undo", {})
    left = {when: _by_node(kept.get("leaver", {}).get(when, ())) for when in ("before", "after")}
    for source, who in {"evaluate": _staying(kept), "server": "the server"}.items():
        was = (kept["before"].get(source) or {}).get("metrics") or {}
        told = [line for line in kept["rounds"] if line["metrics"].get(source)]
        found += _rows(who + _earlier(kept, told), was, told[-1]["metrics"][source] if told else {})
        found += _rows(who + TURNED, was, undone[source]) if undone.get(source) else []
    for node in sorted({*left["before"], *left["after"]}):
        was = left["before"].get(node, {})
        found += _rows(LEAVER.format(node), was, left["after"].get(node, {}))
        back = _by_node(undone.get("leaver", ())).get(node)
        found += _rows(LEAVER.format(node) + TURNED, was, back) if back else []
    return found


def _staying(kept: Mapping[str, Any]) -> str:
    """Who of those that stay speaks: a strategy may ask some, and others before than after."""
    told = [line["evaluate"] for line in kept["rounds"] if line["metrics"].get("evaluate")]
    before, after = (kept["before"].get("evaluate") or {}).get("asked", []), told[-1] if told else []
    if not before or not after or set(before) == set(after):
        return "the clients that stay"
    return f"those asked of the clients that stay, {len(before)} before and {len(after)} after, not the same ones"


def _earlier(kept: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> str:
    """Which round's model is spoken of where it is not the last: a strategy may evaluate now and then."""
    models = [line["arrays"] for line in kept["rounds"] if line["arrays"] is not None]
    if not told or told[-1]["arrays"] in models[-1:]:
        return ""
    return f", after round {told[-1]['round']}; nobody was asked of the last model"


def _by_node(answers: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    return {one["node"]: one.get("metrics", {}) for one in answers}


def _rows(who: str, was: Mapping[str, Any], last: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(name, who, _text(was.get(name)), _text(last.get(name))) for name in sorted({*was, *last})]


def _text(value: Any) -> str:
    if value is None:
        return not_measured("the app did not report it")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
