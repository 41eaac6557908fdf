"""The officer's page: a verified bundle in plain words, one HTML file that prints and loads nothing."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from unfed.report.words import date_text
from unfed.trust.verdict import Verdict
from unfed.trust.verifier import taken_out

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def page(verdict: Verdict, keys: list[str]) -> str:
    """The page about a bundle that was verified under the keys with these ids."""
    statement = verdict.statement
    predicate: dict[str, Any] = statement["predicate"]
    findings = predicate["findings"]
    request = findings["request"]
    facts = [
        ("Request", request["id"]),
        ("Takes out", _subject(request)),
        ("Asked", _date(request["asked"])),
        ("Fulfilled", _date(request["fulfilled"])),
        ("Method", _method(findings["method"])),
        ("Data read", findings["views"]["said"]),
        ("Evidence made", _date(predicate["made"])),
    ]
    digests = [("Verified under", ", ".join(keys))]
    digests += [(one["name"], one["digest"]["sha256"]) for one in statement["subject"]]
    return (
        environment()
        .get_template("evidence.html.j2")
        .render(
            subject=taken_out(request),
            decision=[(title, plain(answer)) for title, answer in verdict.decision],
            recommendation=plain(verdict.recommendation),
            checklist=verdict.checklist,
            facts=facts,
            digests=digests,
            proven=[plain(one) for one in verdict.proven],
            measured=[plain(one) for one in verdict.measured],
            neither=[plain(one) for one in verdict.neither],
            undo=_undo(findings["undo"]),
            carries=findings["still_carries"],
        )
    )


def plain(sentence: str) -> str:
    """A sentence as an officer reads it: moments as dates, commands without their marks."""
    return _MOMENT.sub(lambda found: date_text(found.group()), sentence).replace("`", "")


def _method(method: dict[str, Any]) -> str:
    others = method.get("shared_with") or 0
    shared = f", shared with {others} other {'request' if others == 1 else 'requests'}" if others else ""
    return f"{method['title']}, {method['rounds']} {'round' if method['rounds'] == 1 else 'rounds'}{shared}"


def _subject(request: dict[str, Any]) -> str:
    what = taken_out(request)
    return f"{what} ({request['rows']:,} training rows)" if isinstance(request["rows"], int) else what


def _undo(undo: Any) -> list[tuple[str, str, str]] | str:
    """How much could be brought back: (attempt, of this model, of Retrain's)."""
    if isinstance(undo, str):
        return plain(undo)
    rows = []
    for name, value, what in (
        ("flip", "forget", "the perturbation turned back: accuracy on the data that left, in %"),
        ("lift", "back_1", "the class's bias raised until the others lose 1 point: share of the class back, in %"),
        ("realign", "forget", "layers fitted again on retained rows, the worst usable result, in %"),
        ("resurface", "forget_rise", "trained on: rise of the accuracy on the data that left, in points"),
        ("relearn", "area", "shown some of it again: mean accuracy on it while learning, in %"),
        (
            "triggers",
            "known",
            "its backdoor taught again by five stamped rows: success minus false alarms, in points",
        ),
    ):
        found = [undo.get(model, {}).get(name, {}) for model in ("unlearned", "retrain")]
        own, retrain = (_number(one.get(value, one.get("reason", "not measured"))) for one in found)
        rows.append((what, own, retrain))
    return rows


def _number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, (int, float)) else str(value)


def _date(text: Any) -> str:
    return date_text(str(text)) if text else "not recorded"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Where the pages of this room are rendered; a name that nobody gives is a bug, not a blank."""

    def source(name: str) -> str:
        return files("unfed.trust").joinpath(name).read_text(encoding="utf-8")

    return Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
