"""What is missing for a run to be whole, in short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.measures.trajectory import Line
from unfed.report import wording
from unfed.report.rules import trajectories
from unfed.report.tables import name_of
from unfed.report.wording import Wording
from unfed.report.words import not_taken_out, several


def unfinished(run: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    """What is missing for this run to be whole, one short sentence each."""
    grouped = trajectories(lines)
    seeds = [int(seed) for seed in run.get("seeds", [])]
    total = run.get("rounds", {}).get("unlearning")
    missing = [
        f"Request {item['id']}: nothing has been evaluated yet."
        for item in run.get("requests", [])
        if str(item["id"]) not in grouped and not not_taken_out(item)
    ]
    if run.get("jobs"):
        return missing + _open_jobs(run, lines, wording.of(run))
    for request, methods in grouped.items():
        for method, by_seed in methods.items():
            states: dict[str, list[str]] = {}
            for seed in sorted({*by_seed, *seeds}):
                state = _state(method, by_seed.get(seed), total, wording.of(run))
                states.setdefault(state, []).append(str(seed))
            for state, which in states.items():
                if state:
                    missing.append(f"{name_of(method)}, request {request}, {several('seed', which)[0]}: {state}.")
    return missing


def _open_jobs(run: Mapping[str, Any], lines: Sequence[Line], words: Wording) -> list[str]:
    """Every job that has not ended, with where it stands; seeds that stand alike share a line."""
    goals = {one["id"]: _goals(str(one.get("until") or "")) for one in run.get("requests", [])}
    let_go = {request["id"] for request in run.get("requests", []) if not_taken_out(request)}
    last = {(line["seed"], line.get("request"), line["method"]): line for line in lines}
    found: dict[tuple[str, str], list[str]] = {}
    for job in run["jobs"]:
        if job["finished"] or job["request"] in let_go:
            continue
        line = last.get((job["seed"], job["request"], job["method"]))
        if line is None:
            state = "not begun" if job["request"] is None else "not evaluated yet"
        elif (aim := goals.get(job["request"])) and int(line["round"]) >= int(job["rounds"]):
            state = f"ended at {words.unit} {line['round']} without having {aim}"
        else:
            state = f"at {words.unit} {line['round']} of {job['rounds']}"
        what = name_of(str(job["method"])) + ("" if job["request"] is None else f", request {job['request']}")
        found.setdefault((what, state), []).append(str(job["seed"]))
    return [f"{what}, {several('seed', which)[0]}: {state}." for (what, state), which in found.items()]


def _goals(until: str) -> str:
    """What a request's rounds were to reach, in words; empty where they are merely counted."""
    told = {"recovered": "recovered", "forgotten": "forgotten what is asked"}
    return " and ".join(told[word] for word in until.split(",") if word in told)


def _state(method: str, lines: Sequence[Line] | None, total: int | None, words: Wording) -> str:
    """Where an unfinished trajectory stands; nothing to say of a finished one."""
    if not lines:
        return "not evaluated yet"
    if method == "before" or lines[-1].get("done"):
        return ""
    return f"at {words.unit} {lines[-1]['round']}" + (f" of {total}" if total else "")
