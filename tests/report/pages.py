"""Runs and requests as tests write them, plain tables, turned into the values that the report takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.report import html, officer, sentences, tables, undo
from unfed.report.compare import Compared
from unfed.report.rules import Row, rows, trajectories
from unfed.report.views import ProbeResult, RequestInfo, RunInfo
from unfed.report.wording import FEDERATED, Wording


def render(run: Mapping[str, Any], lines: Sequence[Any], *, rule: str = "last") -> str:
    """The page of a run."""
    return html.render(RunInfo.of(run), lines, rule=rule)


def plain(found: Sequence[Row], words: Wording = FEDERATED) -> tuple[list[str], list[list[str]]]:
    """A table as strings; the best average gaps carry a star."""
    made = tables.table(found, words=words)
    return list(made.header), [[f"{cell} ★" if cell.best else str(cell) for cell in cells] for cells in made.body]


def unfinished(run: Mapping[str, Any], lines: Sequence[Any]) -> list[str]:
    """What is missing for a run to be whole."""
    return sentences.unfinished(RunInfo.of(run), lines)


def sentence(request: Mapping[str, Any], found: Sequence[Row], *, undone: bool = False) -> str:
    """What happened to a request."""
    return sentences.sentence(RequestInfo.of(request), found, undone=undone)


def first_sentence(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """What happened to a request, as its run knows it."""
    return sentences.first_sentence(RunInfo.of(run), RequestInfo.of(request), found)


def subject(request: Mapping[str, Any], words: Wording = FEDERATED) -> str:
    """Who leaves."""
    return sentences.subject_of(RequestInfo.of(request), words)[0]


def officer_part(run: Mapping[str, Any], lines: Sequence[Any]) -> officer.OfficerPart:
    """What the officer reads of the first request."""
    told = RunInfo.of(run)
    first = told.requests[0]
    return officer.officer_part(told, first, rows(lines, "last"), trajectories(lines)[first.id])


def compared(name: str, run: Mapping[str, Any], lines: Sequence[Any]) -> Compared:
    """A run of a comparison."""
    return Compared(name, RunInfo.of(run), lines)


def probes(*found: Mapping[str, Any]) -> list[ProbeResult]:
    """What attacks brought back."""
    return [ProbeResult.of({"request": "r1", "seed": 0, **one}) for one in found]


def undone(*found: Mapping[str, Any]) -> str:
    """What attacks brought back, in words."""
    return undo.sentence(probes(*found))
