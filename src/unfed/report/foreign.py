"""The page of an unlearning in somebody else's Flower app, from the evidence it wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unfed.report.html import page
from unfed.report.words import date_text
from unfed.values import not_measured

MISSING = {
    "Membership inference": not_measured("a Flower app gives no losses of single rows"),
    "Distance to Retrain": not_measured("nothing was trained from scratch without the leaver"),
    "Undoing": not_measured("no attack was run on the model"),
}


def foreign_page(kept: Mapping[str, Any], title: str) -> str:
    """Everything that was written down; what a foreign app cannot give says why."""
    rounds = kept["rounds"]
    out = {node for leaver in kept["leavers"] for node in leaver["nodes"]}
    asked = [{"round": line["round"], **{w: _nodes(line[w]) for w in ("train", "evaluate")}} for line in rounds]
    wrong = sum(node in out for line in rounds for what in ("train", "evaluate") for node in line[what])
    return page(
        "foreign.html.j2",
        title=title,
        created=date_text(str(kept["created"])),
        leavers=[{"who": one["who"], "nodes": _nodes(one["nodes"])} for one in kept["leavers"]],
        finished=kept["finished"] or "not finished",
        strategy=kept["strategy"],
        count=len(rounds),
        wrong=wrong,
        measured=sum(len(told) for told in kept.get("leaver", {}).values()),
        arrays=kept["arrays"],
        metrics=_metrics(kept),
        asked=asked,
        refused=[one for line in rounds for one in line["refused"]],
        missing=_forgotten_rows(kept) | MISSING,
    )


def _forgotten_rows(kept: Mapping[str, Any]) -> dict[str, str]:
    """Why nobody says what the model is worth on the rows of whoever left; nothing where somebody does."""
    told = [one for answers in kept.get("leaver", {}).values() for one in answers]
    if any("metrics" in one for one in told):
        return {}
    why = told[0]["why"] if told else "the leaver gave no leave to be asked, so nobody scores the forgotten rows"
    return {"Forget accuracy": not_measured(why)}


def _nodes(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "nobody"


def _metrics(kept: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row per metric of the app: who says it, its name, before and after."""
    found = []
    for source, who in {"evaluate": "the clients that stay", "server": "the server"}.items():
        was = (kept["before"].get(source) or {}).get("metrics") or {}
        told = [line["metrics"][source] for line in kept["rounds"] if line["metrics"].get(source)]
        last = told[-1] if told else {}
        for name in sorted({*was, *last}):
            texts = [_text(side.get(name)) for side in (was, last)]
            found.append((name, who, *texts))
    sides = [
        {one["node"]: one.get("metrics", {}) for one in kept.get("leaver", {}).get(w, ())} for w in ("before", "after")
    ]
    for node in sorted({*sides[0], *sides[1]}):
        was, last = (side.get(node, {}) for side in sides)
        for name in sorted({*was, *last}):
            found.append(
                (name, f"node {node}, which left, with its leave", _text(was.get(name)), _text(last.get(name)))
            )
    return found


def _text(value: Any) -> str:
    if value is None:
        return not_measured("the app did not report it")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
