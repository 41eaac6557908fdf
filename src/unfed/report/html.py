"""The report: one HTML file that a compliance officer, a researcher and a phone can all read.

    run.json + trajectory.jsonl ─► one sentence ─► three bars ─► what this does not prove ─► tables, curves, costs

The page is self-contained and inert: no script, no network (its own policy forbids both), every string of the run
escaped. It is a pure function of the run, so the same run gives the same page. What is not measured says so, and a
run that is not finished shows what there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from unfed.metrics import Line, Spread, is_measured
from unfed.report import figures, ranking, tables
from unfed.report.rules import COSTS, RULES, Row, named, rows, trajectories
from unfed.report.tables import bytes_text, flops_text, name_of, seconds_text

COST_NAMES = {
    "comm_bytes": ("Bytes exchanged", bytes_text),
    "wire_bytes": ("Bytes on the wire", bytes_text),
    "flops": ("Computation", flops_text),
    "stored_server_bytes": ("Kept by the server", bytes_text),
    "stored_client_bytes": ("Kept by the clients", bytes_text),
    "stored_original_bytes": ("The original would keep", bytes_text),
    "seconds": ("Time", seconds_text),
}
BARS = {
    "backdoor": "Backdoor success",
    "forget": "Accuracy on the forgotten data",
    "test": "Accuracy on test data",
}
# Which method the opening sentence speaks of, if there are several: NoT, then whatever unlearns, then plain FT.
_LAST_CHOICE = ("ft", "before", "retrain")


def render(run: Mapping[str, Any], lines: Sequence[Line], *, rule: str = "best-gap") -> str:
    """The whole page. `rule` decides which numbers the sentence and the bars show and which table is in front."""
    named(rule)
    within = float(run.get("recovered_within", 0.5))
    by_rule = {name: rows(lines, name, recovered_within=within) for name in RULES}
    grouped = trajectories(lines)
    asked = {str(request["id"]): request for request in run.get("requests", [])}
    asked |= {request: {"id": request} for request in grouped if request not in asked}
    views = [
        _request_view(index, request, {n: _of(found, key) for n, found in by_rule.items()}, grouped.get(key, {}), rule)
        for index, (key, request) in enumerate(asked.items())
    ]
    return _template().render(
        run=run,
        title=str(run.get("name", "run")),
        created=_date(str(run.get("created", ""))),
        rule=rule,
        rules=[{"name": name, "text": tables.explanation(name, within)} for name in RULES],
        requests=views,
        unfinished=unfinished(run, lines),
        seeds=[int(seed) for seed in run.get("seeds", [])] or sorted({int(line["seed"]) for line in lines}),
        retrain_seeds=len({line["seed"] for line in lines if line["method"] == "retrain"}),
        refused=_refused(lines),
        influence=run.get("influence") or [],
        facts=_facts(run),
        cost_names=[COST_NAMES[cost][0] for cost in COSTS],
        config=json.dumps(run.get("config", {}), indent=2, ensure_ascii=False, default=str),
    )


def sentence(request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """What happened, in one sentence that needs no knowledge of the field."""
    subject, plural = _subject(request)
    row, before, retrain = headline(found), _method(found, "before"), _method(found, "retrain")
    if row is None:
        return f"{subject} {'are' if plural else 'is'} to be taken out; no unlearning method has been evaluated yet."
    if row.verdict:
        return f"{subject}: {name_of(row.method)} has no result under the rule {row.rule} ({row.verdict})."
    verb = "were" if plural else "was"
    if not row.finished:
        verb = "are being" if plural else "is being"
    elif ranking.fell_short(row, before, retrain):
        verb += " only partly"
    outcome = ", ".join((_forgetting(request, row, before, plural), _utility(row, before)))
    return f"{subject} {verb} taken out by {name_of(row.method)}{_effort(row)}: {outcome}."


def headline(found: Sequence[Row]) -> Row | None:
    """The row that the sentence and the bars show."""
    own = [row for row in found if not (row.is_before or row.is_reference)]
    order = sorted(own, key=lambda row: (row.method != "not", row.method in _LAST_CHOICE))
    return order[0] if order else None


def unfinished(run: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    """What is missing for this run to be whole, one short sentence each."""
    grouped = trajectories(lines)
    total = run.get("rounds", {}).get("unlearning")
    seeds = [int(seed) for seed in run.get("seeds", [])]
    missing = [
        f"Request {item['id']}: nothing has been evaluated yet."
        for item in run.get("requests", [])
        if str(item["id"]) not in grouped
    ]
    for request, methods in grouped.items():
        for method, by_seed in methods.items():
            states: dict[str, list[str]] = {}
            for seed in sorted({*by_seed, *seeds}):
                state = _state(method, by_seed.get(seed), total)
                states.setdefault(state, []).append(str(seed))
            for state, which in states.items():
                if state:
                    missing.append(f"{name_of(method)}, request {request}, {_several('seed', which)[0]}: {state}.")
    return missing


def _state(method: str, lines: Sequence[Line] | None, total: int | None) -> str:
    """Where an unfinished trajectory stands; nothing to say of a finished one."""
    if not lines:
        return "not evaluated yet"
    if method == "before" or lines[-1].get("done"):
        return ""
    return f"at round {lines[-1]['round']}" + (f" of {total}" if total else "")


def _of(found: Sequence[Row], request: str) -> list[Row]:
    return [row for row in found if row.request == request]


def _method(found: Sequence[Row], method: str) -> Row | None:
    return next((row for row in found if row.method == method), None)


def _request_view(
    index: int,
    request: Mapping[str, Any],
    by_rule: Mapping[str, Sequence[Row]],
    methods: Mapping[str, figures.BySeed],
    rule: str,
) -> dict[str, Any]:
    """Everything the template shows of one request. Identifiers carry its index, never a string from the run."""
    shown = by_rule[rule]
    numbers = figures.styles(list(methods))
    curves = {
        metric: figures.curves(methods, metric, name=f"curve-{index}-{metric}")
        for metric in figures.CURVES
        if metric != "backdoor" or _has(shown, metric)
    }
    return {
        "index": index,
        "id": str(request["id"]),
        "subject": _subject(request)[0],
        "rows_forgotten": request.get("forgotten_rows"),
        "sentence": sentence(request, shown),
        "bars": _bars(shown, numbers),
        "tables": {name: _table_view(found) for name, found in by_rule.items()},
        "legend": [_legend(method, number) for method, number in numbers.items()],
        "retrain": "retrain" in methods,
        "ranking": ranking.orders(shown),
        "shortcomings": ranking.shortcomings(shown),
        "curves": [{"title": figures.CURVES[m], "svg": svg, "reason": _reason(shown, m)} for m, svg in curves.items()],
        "costs": [
            {"title": title, "svg": figures.cost_bars(shown, cost, name=f"cost-{index}-{cost}")}
            for cost, (title, _) in figures.COST_BARS.items()
        ],
        "ledger": [_ledger(row) for row in shown if not row.is_before],
    }


def _table_view(found: Sequence[Row]) -> dict[str, Any]:
    made = tables.table(found)
    body = [{"row": row, "cells": tables.merged(cells)} for row, cells in zip(made.rows, made.body, strict=True)]
    return {"header": made.header, "body": body, "notes": tables.notes(made)}


def _has(found: Sequence[Row], metric: str) -> bool:
    return any(is_measured(row.metrics[metric].mean) for row in found)


def _reason(found: Sequence[Row], metric: str) -> str:
    texts = [str(row.metrics[metric].mean) for row in found if not is_measured(row.metrics[metric].mean)]
    return texts[-1] if texts else "not measured: no round has been evaluated yet"


def _bars(found: Sequence[Row], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Before, after, Retrain; the backdoor only where it was measured."""
    row = headline(found)
    entries: list[tuple[str, str, Row | None]] = [
        ("Before", "var(--before)", _method(found, "before")),
        (f"After {name_of(row.method)}" if row else "After", _colour(row, numbers), row),
        ("Retrain", "var(--reference)", _method(found, "retrain")),
    ]
    return [
        {"title": title, "bars": [_bar(label, colour, entry, metric) for label, colour, entry in entries]}
        for metric, title in BARS.items()
        if metric != "backdoor" or _has(found, metric)
    ]


def _bar(label: str, colour: str, row: Row | None, metric: str) -> dict[str, Any]:
    value = Spread("not measured: not in this run") if row is None else row.metrics[metric]
    measured = is_measured(value.mean)
    text = tables.number_text(value, 1) + (" %" if measured else "")
    return {"label": label, "colour": colour, "text": text, "width": f"{value.mean:.2f}" if measured else None}


def _colour(row: Row | None, numbers: Mapping[str, int]) -> str:
    return f"var(--series-{numbers[row.method] % len(figures.SERIES)})" if row else "var(--line)"


def _legend(method: str, number: int) -> dict[str, Any]:
    dash = figures.DASHES[number % len(figures.DASHES)]
    drawn = " ".join(f"{1.8 * part:g}" for part in dash) if dash else "none"
    return {"name": name_of(method), "colour": f"var(--series-{number % len(figures.SERIES)})", "dash": drawn}


def _ledger(row: Row) -> dict[str, Any]:
    spent = [row.costs[cost].mean for cost in COSTS]
    texts = [COST_NAMES[c][1](v) if is_measured(v) else str(v) for c, v in zip(COSTS, spent, strict=True)]
    return {"name": name_of(row.method), "texts": texts, "rounds": tables.rounds_text(row.rounds)}


def _subject(request: Mapping[str, Any]) -> tuple[str, bool]:
    """Who or what leaves, and whether that is plural."""
    clients, classes = ([str(item) for item in request.get(key) or []] for key in ("clients", "classes"))
    count = request.get("forgotten_rows") or request.get("samples")
    if request.get("kind") == "client" and clients:
        return _several("Client", clients)
    if request.get("kind") == "class" and classes:
        subject, plural = _several("Class", classes)
        return (subject + (f" of {_several('client', clients)[0]}" if clients else "")), plural
    owner = f" of {_several('client', clients)[0]}" if clients else ""
    fraction = request.get("fraction")
    if is_measured(fraction) and count:
        return f"{count} samples, {100 * fraction:g} % of the data{owner or ' of every client'},", True
    return (
        (f"{count} samples{owner}" if count != 1 else f"1 sample{owner}", count != 1)
        if count
        else (
            f"Request {request.get('id')}",
            False,
        )
    )


def _several(noun: str, names: Sequence[str]) -> tuple[str, bool]:
    if len(names) == 1:
        return f"{noun} {names[0]}", False
    many = noun + ("es" if noun.endswith("s") else "s")
    if len(names) > 6:
        return f"{len(names)} {many.lower()}", True
    return f"{many} {', '.join(names[:-1])} and {names[-1]}", True


def _effort(row: Row) -> str:
    rounds = sum(row.rounds) / len(row.rounds)
    text = " in one step" if rounds == 0 else f" in {rounds:.3g} round{'' if rounds == 1 else 's'}"
    if not row.finished:
        text = ", so far" + text
    sent = row.costs["comm_bytes"].mean
    if is_measured(sent) and sent > 0:
        text += f" and {bytes_text(sent)}"
    return text + (f" (means over {len(row.seeds)} seeds)" if len(row.seeds) > 1 else "")


def _percent(row: Row | None, metric: str) -> str | None:
    value = row.metrics[metric].mean if row else None
    return f"{value:.1f}" if is_measured(value) else None


def _forgetting(request: Mapping[str, Any], row: Row, before: Row | None, plural: bool) -> str:
    backdoor, earlier = _percent(row, "backdoor"), _percent(before, "backdoor")
    if backdoor is not None:
        planted = f" {'they' if plural else 'it'} planted" if request.get("kind") == "client" else ""
        instead = f" instead of {earlier} %" if earlier is not None else ""
        return f"the backdoor{planted} fires on {backdoor} % of the test images{instead}"
    forget, earlier = _percent(row, "forget"), _percent(before, "forget")
    if forget is None:
        return f"accuracy on the forgotten data {row.metrics['forget'].mean}"
    instead = f" instead of {earlier} %" if earlier is not None else ""
    return f"the model is right on {forget} % of the forgotten data{instead}"


def _utility(row: Row, before: Row | None) -> str:
    now, earlier = _percent(row, "test"), _percent(before, "test")
    if now is None:
        return f"accuracy on test data {row.metrics['test'].mean}"
    return f"accuracy on test data {earlier} → {now} %" if earlier is not None else f"accuracy on test data {now} %"


def _refused(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Updates that were refused, each once however often the trajectory repeats it."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        for item in line.get("refused") or []:
            entry = {
                **item,
                "method": name_of(str(line["method"])),
                "request": line.get("request"),
                "seed": line["seed"],
            }
            found[tuple(str(part) for part in entry.values())] = entry
    return list(found.values())


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = run.get("versions") or {}
    forward, parameters, clients = run.get("forward_flops"), run.get("parameters"), run.get("clients") or []
    rounds = ", ".join(f"{count} {name}" for name, count in (run.get("rounds") or {}).items())
    facts = [
        ("Seeds", ", ".join(str(seed) for seed in run.get("seeds", []))),
        ("Clients", f"{len(clients)}: {', '.join(str(client) for client in clients)}" if clients else ""),
        ("Rounds", rounds),
        ("Parameters", f"{parameters:,}" if isinstance(parameters, int) else ""),
        ("One forward pass", flops_text(forward) if is_measured(forward) else str(forward or "")),
        ("Hardware", str(run.get("hardware", ""))),
        ("Device, engine", ", ".join(str(run[key]) for key in ("device", "engine") if run.get(key))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Run layout", f"schema {run['schema']}" if "schema" in run else ""),
    ]
    return [(name, text or "not measured: not in run.json") for name, text in facts]


def _date(text: str) -> str:
    """`15 November 2026, 04:00 UTC`; whatever is no ISO date is shown as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {moment.tzname()}" if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M}{zone}"


@lru_cache(maxsize=1)
def _template() -> Template:
    text = files("unfed.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    # StrictUndefined: a name the page asks for and nobody gives is a bug, not a blank.
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        text
    )
