"""The report: one HTML file for a passer-by, a compliance officer and a researcher.

A phone can show it too.

    run.json + trajectory.jsonl ─► for anyone      one sentence, three bars, what this does not prove
                                ─► for the officer      request, checksums, who was asked, what is still there
                                ─► for the researcher   tables by rule, curves, gap against cost, attack, config

The page is self-contained and inert: no script, no network (its own policy forbids both), every string of the run
escaped. It is a pure function of the run, so the same run gives the same page. What is not measured says so, and a
run that is not finished shows what there is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from unfed.measures.metrics import Spread
from unfed.measures.trajectory import Line
from unfed.report import (
    app_section,
    drawing,
    figures,
    how_sure,
    ranking,
    tables,
    undo,
    wording,
)
from unfed.report.how_sure import Judged, view
from unfed.report.officer import officer_view, refusals
from unfed.report.rules import RULES, Row, named, rows, trajectories
from unfed.report.sentences import (
    ENDED,
    about_the_backdoor,
    caveats,
    date_text,
    dealt_by_seed,
    headline,
    method_row,
    not_taken_out,
    opening,
    rows_text,
    subject_of,
    unfinished,
    verdicts,
)
from unfed.report.tables import name_of
from unfed.report.wording import FEDERATED, Wording, flops_text
from unfed.values import is_measured

BARS = {
    "backdoor": "Backdoor success",
    "forget": "Accuracy on the forgotten data",
    "test": "Accuracy on test data",
}


def render(run: Mapping[str, Any], lines: Sequence[Line], *, rule: str = "last") -> str:
    """The whole page.

    `rule` decides which table is in front. The sentence, the bars and the officer's part speak of the model that lies
    in the folder: that of the last round.
    """
    named(rule)
    within = float(run.get("recovered_within", 0.5))
    by_rule = {name: rows(lines, name, recovered_within=within) for name in RULES}
    grouped = trajectories(lines)
    words = wording.of(run)
    costs = shown_costs(by_rule[rule], words)
    views = [
        request_view(
            run, index, request, {n: _of(found, key) for n, found in by_rule.items()}, grouped.get(key, {}), rule, costs
        )
        for index, (key, request) in enumerate(asked_for(run, grouped).items())
    ]
    return page(
        "report.html.j2",
        title=str(run.get("name", "run")),
        created=date_text(str(run.get("created", ""))),
        words=words,
        caveats=caveats(views),
        rule=rule,
        rules=[{"name": name, "text": words.said(tables.explanation(name, within))} for name in RULES],
        requests=views,
        unfinished=unfinished(run, lines),
        in_force=in_force(run),
        advice=run.get("advice", []),
        seeds=seeds_of(run, lines),
        retrain_seeds=len({line["seed"] for line in lines if line["method"] == "retrain"}),
        undone_by_nobody=said_once([view["undoing"]["reason"] for view in views]),
        sure_of_nothing=said_once([view["sure"]["reason"] for view in views]),
        refused=refusals([line for line in lines if line.get("request") is None]),
        without=[view["subject"] for view in views if not view["retrain"]],
        training=[one.view()] if (one := figures.training_picture(lines, words.unit)) else [],
        facts=facts(run),
        cost_names=[words.cost(cost)[0] for cost in costs],
        packed="serialised_bytes" in costs,
        config=config_text(run),
    )


def page(template: str, words: Wording = FEDERATED, **values: Any) -> str:
    """A template of this folder, filled in; what measures mean is said in the setting's words."""
    told: dict[str, Any] = {"measures": wording.measures(words), "headings": wording.HEADINGS, "attack": wording.ATTACK}
    return _environment().get_template(template).render(words=words, unit=words.unit, **told, **values)


def said_once(reasons: Sequence[str | None]) -> str:
    """Why nothing was measured, as a sentence, where it is the same for every request; else nothing."""
    told = set(reasons)
    reason = told.pop() if len(told) == 1 else None
    return f"{reason[0].upper()}{reason[1:]}." if reason else ""


def in_force(run: Mapping[str, Any]) -> list[str]:
    """Which model is in force, a sentence for each repetition that differs."""
    found = [(model["seed"], str(model["sentence"])) for model in run.get("in_force") or []]
    if len({told for _, told in found}) == 1:
        return [f"In force: {found[0][1]}."]
    return [f"In force (seed {seed}): {told}." for seed, told in found]


def asked_for(run: Mapping[str, Any], grouped: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The requests by id, those of the trajectory too.

    Each says whether it takes out whoever planted a backdoor.
    """
    known = {str(request["id"]): dict(request) for request in run.get("requests", [])}
    known |= {request: {"id": request} for request in grouped if request not in known}
    poison = (run.get("config") or {}).get("poison")
    for request in known.values():
        request |= dealt_by_seed(grouped.get(str(request["id"]), {}))
        if isinstance(poison, Mapping) and "client" in poison:
            request["planted"] = str(poison["client"]) in [str(client) for client in request.get("clients") or []]
    return known


def seeds_of(run: Mapping[str, Any], lines: Sequence[Line]) -> list[int]:
    """The repetitions of a run."""
    return [int(seed) for seed in run.get("seeds", [])] or sorted({int(line["seed"]) for line in lines})


def _of(found: Sequence[Row], request: str) -> list[Row]:
    return [row for row in found if row.request == request]


def request_view(
    run: Mapping[str, Any],
    index: int,
    request: Mapping[str, Any],
    by_rule: Mapping[str, Sequence[Row]],
    methods: Mapping[str, figures.BySeed],
    rule: str,
    costs: Sequence[str] = FEDERATED.ledger,
) -> dict[str, Any]:
    """Everything the template shows of one request.

    Identifiers carry its index, never a string from the run.
    """
    shown, on_disk, words = by_rule[rule], by_rule["last"], wording.of(run)
    numbers = figures.styles(list(methods))
    curves = {
        metric: figures.curves(methods, metric, name=f"curve-{index}-{metric}", unit=words.unit)
        for metric in figures.CURVES
        if metric != "backdoor" or has(shown, metric)
    }
    tried = [found for found in run.get("undo", []) if found["request"] == request["id"]]
    beside = "before and after" if _by_retrain(request, on_disk) else "before, after, Retrain"
    return {
        "index": index,
        "id": str(request["id"]),
        "subject": subject_of(request, words)[0].rstrip(","),
        "covers": rows_text(request),
        "sentence": opening(run, request, on_disk),
        "bars": bars(request, on_disk, numbers),
        "bars_title": "the model in force" if request.get("left_by") else beside,
        "app": app_section.view(run, request, methods),
        "officer": officer_view(run, request, on_disk, methods, words),
        "tables": {name: table_view(found, words=words) for name, found in by_rule.items()},
        "legend": [legend(name_of(method), number, number) for method, number in numbers.items()],
        "retrain": "retrain" in methods,
        "beside_retrain": "retrain" in methods and "retrain" not in numbers,
        "ranking": ranking.orders(shown, words),
        "ranked": ranking.words(shown, words),
        "verdicts": verdicts(run, request),
        "shortcomings": ranking.shortcomings(shown),
        "curves": [
            {"title": figures.CURVES[m], "svg": None, "reason": _reason(shown, m)} if one is None else one.view()
            for m, one in curves.items()
        ],
        "trade": pictures(figures.gap_by_cost, shown, words.columns, f"trade-{index}", words),
        "costs": pictures(figures.cost_bars, shown, figures.COST_BARS, f"cost-{index}", words),
        "ledger": [ledger(row, costs, words) for row in shown if not row.is_before],
        "undoing": undo.view(
            tried,
            _nothing_to_undo(request, on_disk),
            undo.PURGED
            if request.get("purged")
            else undo.PROBE_PURGED
            if request["id"] in run.get("probes_purged", ())
            else undo.NOT_PROBED,
        ),
        "undo_pictures": [one.view() for one in figures.undo_pictures(tried, f"undo-{index}")],
        "sure": how_sure.view((run.get("population") or {}).get(str(request["id"])), f"sure-{index}"),
    }


def _nothing_to_undo(request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """Why a request has no model of which something forgotten could be brought back."""
    if ended := ENDED.get(str(request.get("state"))):
        return f"the request {ended}"
    if request.get("left_by"):
        return "no model was made for the request"
    return "the new model was trained without it from the beginning" if _by_retrain(request, found) else ""


def pictures(draw: Any, found: Any, costs: Any, name: str, words: Wording = FEDERATED) -> list[dict[str, Any]]:
    """One picture per cost, those that have something to show."""
    made = [draw(found, cost, name=f"{name}-{cost}", words=words) for cost in costs]
    return [one.view() for one in made if one is not None]


def table_view(found: Sequence[Row], by: str = "Request", words: Wording = FEDERATED) -> dict[str, Any]:
    """A table for the template: headings, rows with merged cells, notes."""
    made = tables.table(found, by, words)
    grouped = made.header[:1] == (by,)
    body = []
    for place, (row, cells) in enumerate(zip(made.rows, made.body, strict=True)):
        first = place == 0 or made.rows[place - 1].request != row.request
        same = sum(other.request == row.request for other in made.rows) if grouped and first else 0
        shown = cells[1:] if grouped else cells
        body.append(
            {"row": row, "group": row.request, "span": same, "cells": tables.merged(row, shown), "first": first}
        )
    return {"header": list(made.header), "body": body, "notes": tables.notes(made), "grouped": grouped}


def has(found: Sequence[Row], metric: str) -> bool:
    """Whether any row measured it."""
    return any(is_measured(row.metrics[metric].mean) for row in found)


def _reason(found: Sequence[Row], metric: str) -> str:
    texts = [str(row.metrics[metric].mean) for row in found if not is_measured(row.metrics[metric].mean)]
    return texts[-1] if texts else "not measured: no round has been evaluated yet"


def bars(request: Mapping[str, Any], found: Sequence[Row], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Before, after, Retrain; the backdoor only where it was measured and is this request's business.

    Where Retrain itself served the request it is what came after, and there is nothing beside it. Where nothing was
    left to unlearn, there is the model in force alone.
    """
    row = headline(found, request)
    after = f"After {name_of(row.method)}" if row else "After"
    entries: list[tuple[str, str, Row | None]] = [
        ("Before", "var(--before)", method_row(found, "before")),
        (f"{after}, not in force" if row and not_taken_out(request) else after, _colour(row, numbers), row),
    ]
    if request.get("left_by"):
        entries = [("In force", *entries[0][1:])]
    elif not _by_retrain(request, found):
        entries.append(("Retrain", "var(--reference)", method_row(found, "retrain")))
    return [
        {"title": title, "bars": [_bar(label, colour, entry, metric) for label, colour, entry in entries]}
        for metric, title in BARS.items()
        if metric != "backdoor" or (has(found, metric) and about_the_backdoor(request))
    ]


def _by_retrain(request: Mapping[str, Any], found: Sequence[Row]) -> bool:
    """Whether it was Retrain that a request was served by, or tried with."""
    row = headline(found, request)
    return row is not None and row.is_reference


def _bar(label: str, colour: str, row: Row | None, metric: str) -> dict[str, Any]:
    own = None if row is None else row.forgetting if metric == "forget" else row.metrics[metric]
    value = own or Spread("not measured: not run for this request")
    measured = is_measured(value.mean)
    text = tables.number_text(value, 1) + (" %" if measured else "")
    return {"label": label, "colour": colour, "text": text, "width": f"{value.mean:.2f}" if measured else None}


def _colour(row: Row | None, numbers: Mapping[str, int]) -> str:
    if row is None or row.is_reference:
        return "var(--reference)" if row else "var(--line)"
    return f"var(--series-{numbers[row.method] % len(drawing.SERIES)})"


def legend(name: str, colour: int, dash: int) -> dict[str, Any]:
    """How a line looks, for the list beside the curves."""
    pattern = drawing.DASHES[dash % len(drawing.DASHES)]
    drawn = " ".join(f"{1.8 * part:g}" for part in pattern) if pattern else "none"
    return {"name": name, "colour": f"var(--series-{colour % len(drawing.SERIES)})", "dash": drawn}


def shown_costs(found: Sequence[Row], words: Wording = FEDERATED) -> tuple[str, ...]:
    """The columns of the ledger: the setting's, whole messages only where there were any."""
    spent = [row.costs["serialised_bytes"].mean for row in found if not row.is_before]
    packed = any(is_measured(value) and value > 0 for value in spent)
    return tuple(cost for cost in words.ledger if packed or cost != "serialised_bytes")


def ledger(row: Row, costs: Sequence[str], words: Wording = FEDERATED) -> dict[str, Any]:
    """All costs of a row as text."""
    spent = [row.costs[cost].mean for cost in costs]
    texts = [words.cost(c)[1](v) if is_measured(v) else str(v) for c, v in zip(costs, spent, strict=True)]
    return {"name": tables.row_name(row.method), "texts": texts, "rounds": tables.rounds_text(row.rounds)}


def facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What somebody needs who wants to run it again."""
    versions, words = run.get("versions") or {}, wording.of(run)
    at = " of the server" if words.setting == "flower" else ""
    forward, parameters, clients = run.get("forward_flops"), run.get("parameters"), run.get("clients") or []
    rounds = ", ".join(f"{count} {name}" for name, count in (run.get("rounds") or {}).items() if count)
    found = [
        ("Seeds", ", ".join(str(seed) for seed in run.get("seeds", []))),
        *([] if words.setting == "central" else [(f"{words.holder.capitalize()}s", _named_clients(clients))]),
        (words.units, rounds),
        ("Parameters", f"{parameters:,}" if isinstance(parameters, int) else ""),
        ("One forward pass", flops_text(forward) if is_measured(forward) else str(forward or "")),
        (f"Hardware{at}", str(run.get("hardware", ""))),
        (f"Device{at}, engine", ", ".join(str(run[key]) for key in ("device", "engine") if run.get(key))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Run layout", f"schema {run['schema']}" if "schema" in run else ""),
    ]
    return [(name, text or "not measured: not in run.json") for name, text in found]


def _named_clients(clients: Sequence[Any]) -> str:
    return f"{len(clients)}: {', '.join(str(client) for client in clients)}" if clients else ""


def config_text(run: Mapping[str, Any]) -> str:
    """The config as the run read it."""
    return json.dumps(shown_config(run), indent=2, ensure_ascii=False, default=str)


def shown_config(run: Mapping[str, Any]) -> dict[str, Any]:
    """The config for a page.

    Of a list of samples it says where it was read and its SHA-256, not the names in it.
    """
    if run.get("app"):
        return dict(run["app"])
    config = dict(run.get("config") or {})
    asked = config.get("request")
    if isinstance(asked, list | tuple):
        config["request"] = [_without_names(request) for request in asked]
    return config


def _without_names(request: Any) -> Any:
    listed = request.get("samples") if isinstance(request, Mapping) else None
    if not isinstance(listed, Mapping):
        return request
    return {**request, "samples": {key: value for key, value in listed.items() if key != "text"}}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    def source(name: str) -> str:
        return files("unfed.report").joinpath(name).read_text(encoding="utf-8")

    # StrictUndefined: a name the page asks for and nobody gives is a bug, not a blank.
    made = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # A line may end anywhere but between a number and its unit, or the number that it became.
    made.filters["units"] = lambda text: re.sub(r"(?<=\d) (?=%|[kMGTP]?B\b|→)|(?<=→) ", "\u00a0", text)
    # A command in backticks is shown as one, everything else is escaped here: a template calls it `|code|safe`.
    made.filters["code"] = lambda text: re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return made


# --- a population without a run ---------------------------------------------------------------------------------------


def population_page(judged: Judged) -> str:
    """The section "How sure are we?" on a page of its own."""
    subject = f"Request {judged['request']} · {judged['models']} models of each kind · {judged['hardware']}"
    return page("population.html.j2", title=str(judged["name"]), subject=subject, r={"sure": view(judged, "sure")})
