"""Runs and requests as tests write them, plain tables, turned into the values that the report takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.folder.info import RequestInfo, RunInfo
from unfed.folder.layout import Undoing
from unfed.report import figures, html, sentences, tables, undo
from unfed.report.compare import Compared
from unfed.report.rules import Row, rows, trajectories
from unfed.report.wording import FEDERATED, Wording


def known(run: Mapping[str, Any]) -> RunInfo:
    """A run; what a test does not say of gates, files and probes has no meaning for it."""
    whole = {**run, "requests": [asked(one).to_json() for one in run.get("requests", ())]}
    whole |= {"influence": [{"kind": "model", **one} for one in run["influence"]]} if "influence" in run else {}
    return RunInfo.of({**whole, "undo": probes(*run.get("undo", ()))})


def asked(request: Mapping[str, Any]) -> RequestInfo:
    """A request; the same of its gate."""
    if gate := request.get("gate"):
        plain = {"what": "", "value": "not measured: it is not told", "bound": 0.0}
        request = {**request, "gate": {**gate, "checks": [{**plain, **check} for check in gate.get("checks", ())]}}
    return RequestInfo.model_validate(request)


_PAGES: dict[str, str] = {}


def render(run: Mapping[str, Any], lines: Sequence[Any], *, rule: str = "last", again: bool = False) -> str:
    """The page of a run. Many tests ask for the same one, and it is kept; `again` makes a new one."""
    told = repr((run, lines, rule, figures._label is _AS_DRAWN))
    if again or told not in _PAGES:
        _PAGES[told] = html.render(known(run), lines, rule=rule)
    return _PAGES[told]


_AS_DRAWN = figures._label
"""Tests that are not about figures put words in their place (`worded`)."""


def plain(found: Sequence[Row], words: Wording = FEDERATED) -> tuple[list[str], list[list[str]]]:
    """A table as strings; the best average gaps carry a star."""
    made = tables.table(found, words=words)
    return list(made.header), [[f"{cell} ★" if cell.best else str(cell) for cell in cells] for cells in made.body]


def unfinished(run: Mapping[str, Any], lines: Sequence[Any]) -> list[str]:
    """What is missing for a run to be whole."""
    return sentences.unfinished(known(run), lines)


def sentence(request: Mapping[str, Any], found: Sequence[Row], *, undone: bool = False) -> str:
    """What happened to a request."""
    return sentences.sentence(asked(request), found, undone=undone)


def first_sentence(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """What happened to a request, as its run knows it."""
    return sentences.first_sentence(known(run), asked(request), found)


def subject(request: Mapping[str, Any], words: Wording = FEDERATED) -> str:
    """Who leaves."""
    return sentences.subject_of(asked(request), words)[0]


def officer_part(run: Mapping[str, Any], lines: Sequence[Any]) -> html.OfficerPart:
    """What the officer reads of the first request."""
    told = known(run)
    first = told.requests[0]
    return html.officer_part(told, first, rows(lines, "last"), trajectories(lines)[first.id])


def compared(name: str, run: Mapping[str, Any], lines: Sequence[Any]) -> Compared:
    """A run of a comparison."""
    return Compared(name, known(run), lines)


def probes(*found: Mapping[str, Any]) -> list[Undoing]:
    """What attacks brought back."""
    models = {name: dict[str, Any]() for name in ("unlearned", "retrain", "before")}
    whole = [{"request": "r1", "seed": 0, "models": {}, **one} for one in found]
    return [Undoing.model_validate(one | {"measured": models | dict(one["measured"])}) for one in whole]


def undone(*found: Mapping[str, Any]) -> str:
    """What attacks brought back, in words."""
    return undo.sentence(probes(*found))
