"""A page of all runs in a folder, and of all they were asked to forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unfed.measures.trajectory import Line
from unfed.report import html, wording
from unfed.report.opening import opening
from unfed.report.rules import Row, rows, trajectories
from unfed.report.tables import name_of, number_text
from unfed.report.words import date_text, headline, not_taken_out, subject_of

MISSING = "–"


@dataclass(frozen=True)
class Listed:
    """One run of the list, or why it cannot be read."""

    name: str
    report: str | None = None
    """Its page, as seen from the list; None where there is none yet."""
    info: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    state: str = ""
    error: str = ""


def render(runs: Sequence[Listed], where: str) -> str:
    """The page."""
    readable = [one for one in runs if not one.error]
    requests = [line for one in readable for line in _requests(one)]
    return html.page(
        "index.html.j2",
        title=where,
        runs=[_run(one) for one in sorted(readable, key=lambda one: str(one.info.get("created", "")), reverse=True)],
        broken=[one for one in runs if one.error],
        requests=requests,
        owed=[line for line in requests if line["owed"]],
    )


def _run(one: Listed) -> dict[str, Any]:
    config = one.info.get("config") or {}
    found = rows(one.lines, "last", recovered_within=float(one.info.get("recovered_within", 0.5)))
    best = headline(found)
    return {
        "name": one.name,
        "report": one.report,
        "created": date_text(str(one.info.get("created", ""))),
        "state": one.state,
        "data": str((config.get("data") or {}).get("name", MISSING)),
        "model": str((config.get("model") or {}).get("name", MISSING)),
        "holders": _holders(one.info),
        "methods": ", ".join(dict.fromkeys(name_of(row.method) for row in found if not row.is_before)) or MISSING,
        "best": name_of(best.method) if best else MISSING,
        "test": _number(best, "test"),
        "forget": _number(best, "forget"),
        "gap": number_text(best.average_gap) if best else MISSING,
    }


def _holders(run: Mapping[str, Any]) -> str:
    words, count = wording.of(run), len(run.get("clients") or [])
    if words.setting == "central":
        return "one place"
    return f"{count} {'Flower ' if words.setting == 'flower' else ''}{words.holder}{'' if count == 1 else 's'}"


def _number(row: Row | None, metric: str) -> str:
    return number_text(row.metrics[metric], 1) if row else MISSING


def _requests(one: Listed) -> list[dict[str, Any]]:
    """Every request of a run: who leaves, by what, how it stands, and what was measured."""
    grouped = trajectories(one.lines)
    found = rows(one.lines, "last", recovered_within=float(one.info.get("recovered_within", 0.5)))
    told = []
    for key, request in html.asked_for(one.info, grouped).items():
        own = [row for row in found if row.request == key]
        served = request.get("state") is not None
        told.append(
            {
                "run": one.name,
                "report": one.report,
                "id": key,
                "subject": subject_of(request, wording.of(one.info))[0].rstrip(","),
                "standing": str(request.get("standing") or request.get("state")) if served else "compared",
                "owed": bool(not_taken_out(request)) and request.get("state") != "revoked",
                "sentence": opening(one.info, request, own) + _open_question(one.info, request, own),
            }
        )
    return told


def _open_question(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """What a sentence leaves open where nobody tried to undo it, or where what was found is purged."""
    row = headline(found, request)
    if row is None or row.is_reference or not row.finished or not_taken_out(request):
        return ""
    tried = {(one["request"], one["method"]) for one in run.get("undo") or []}
    return "" if (request["id"], row.method) in tried else " Whether it can be undone is not known."
