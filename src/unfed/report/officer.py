"""For the officer.

It says what was asked and when, what was done to the model, who was asked, and what is still there.

    info["jobs"]         SHA-256 of the model that went in, of what the method changed at the start, of what came out
    lines[*]["asked"]    who was asked in each round
    info["influence"]    the files in the run folder that still carry what was taken out

Only what the run wrote down is shown; what it did not write down is said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.measures.trajectory import Line
from unfed.model.digest import fingerprint, listing
from unfed.report.figures import BySeed
from unfed.report.rules import Row
from unfed.report.sentences import (
    again_words,
    date_text,
    gate_meanings,
    gate_words,
    headline,
    not_taken_out,
    rows_text,
    span_text,
    subject_of,
)
from unfed.report.tables import name_of
from unfed.report.wording import FEDERATED, Wording

SHOWN_CLIENTS = 40
CELLS = 48  # of a strip; more rounds share a cell


def officer_view(
    run: Mapping[str, Any],
    request: Mapping[str, Any],
    found: Sequence[Row],
    methods: Mapping[str, BySeed],
    words: Wording = FEDERATED,
) -> dict[str, Any]:
    """Everything the officer's layer shows of one request."""
    jobs = [job for job in run.get("jobs") or [] if str(job.get("request")) == str(request["id"])]
    method = _method(request, found, jobs)
    own = [job for job in jobs if job["method"] == method]
    seed = int(own[0]["seed"]) if own else min(methods.get(method, {0: []}))
    job = own[0] if own else {}
    lines = methods.get(method, {}).get(seed, [])
    ended = bool(not_taken_out(request))
    return {
        "method": name_of(method) if method else "",
        "seed": seed if len({int(j["seed"]) for j in jobs}) > 1 else None,
        "facts": [
            *_facts(run, request, method, job, bool(lines), words),
            *_measured_again(request, methods, seed, lines),
        ],
        "gate": gate_meanings(request),
        "change": _change(name_of(method), job, bool(lines), ended),
        "tensors": _tensors(job),
        "listings": _listings(job),
        "file": job.get("file") if job.get("came_out") else None,
        "gone": "purged" if job.get("purged") else "none was kept" if ended else "not there yet",
        "models": _models(jobs),
        "asked": _asked(run, request, method, job, lines, words),
        "refused": refusals([line for by_seed in methods.values() for own in by_seed.values() for line in own]),
        "influence": files(run, request),
        "deleting": deleting(run, request),
        "withdrawn": request.get("state") == "revoked",
        "handed_over": bool(run.get("call")),
    }


def _method(request: Mapping[str, Any], found: Sequence[Row], jobs: Sequence[Mapping[str, Any]]) -> str:
    """The method that served the request; in a comparison, the one the opening sentence speaks of."""
    row = headline(found, request)
    if request.get("method"):
        return str(request["method"])
    if row is not None:
        return row.method
    waiting = sorted((str(job["method"]) for job in jobs if job["method"] != "retrain"), key=lambda m: m != "not")
    return waiting[0] if waiting else ""


def _facts(
    run: Mapping[str, Any],
    request: Mapping[str, Any],
    method: str,
    job: Mapping[str, Any],
    begun: bool,
    words: Wording,
) -> list[tuple[str, str]]:
    served = bool(request.get("method"))
    created = str(request.get("created") or run.get("created") or "")
    went_in, came_out = (job.get("beginning") or {}).get("went_in"), job.get("came_out")
    ended, standing = not_taken_out(request), str(request.get("standing") or "")
    came = f" ({words.said(str(job.get('finished')))})"
    state = {None: "not finished" if begun else "not begun"}.get(
        job.get("finished"), (standing if request.get("state") == "fulfilled" else "finished") + came
    )
    made = not request.get("left_by")
    by = name_of(method) + ("" if served else ", one of those compared") if method else "none yet"
    facts = [
        ("Request", str(request["id"])),
        ("Asked", (date_text(created) or "not recorded") + ("" if served else ", with the run itself")),
        ("Takes out", subject_of(request, words)[0].rstrip(",") + _in_training(request)),
        ("Method", by if made else "none: nothing was left to unlearn"),
        ("State", (standing if ended or not made else state) if job or not made else "not recorded"),
        *_standing(request),
    ]
    if not made:
        return facts
    return [
        *facts,
        ("Model before", fingerprint(went_in) if went_in else "not recorded" if begun or not job else "not there yet"),
        (
            "Model tried, not in force" if ended else "Model after",
            fingerprint(came_out) if came_out else _missing(job, bool(ended)) if job else "not recorded",
        ),
    ]


def _in_training(request: Mapping[str, Any]) -> str:
    """How many rows of the training that are, where who leaves does not say it.

    Of single samples some may have served validation alone.
    """
    count, asked = request.get("forgotten_rows"), request.get("samples")
    if not count or not (asked or request.get("kind") in ("client", "class")):
        return ""
    if not asked:
        return f", {rows_text(request)}"
    if count >= asked:
        return ", all of them trained on" if asked > 1 else ", trained on"
    return f"; {count:,} of them {'was' if count == 1 else 'were'} trained on"


def _missing(job: Mapping[str, Any], ended: bool) -> str:
    """Why a job has no model: it was purged, there is none yet, or there will be none."""
    purged = job.get("purged")
    if not purged:
        return "none was kept" if ended else "not there yet"
    was = f"; its checksum was {purged['model']}" if purged.get("model") else ""
    return f"purged for request {purged['request']}, {date_text(purged['date'])}{was}"


def _measured_again(
    request: Mapping[str, Any], methods: Mapping[str, BySeed], seed: int, lines: Sequence[Line]
) -> list[tuple[str, str]]:
    """What every earlier request took out, as the models before and after this one read it."""
    before = methods.get("before", {}).get(seed, [])
    was: Mapping[str, Any] = (before[-1].get("earlier") if before else None) or {}
    again: Mapping[str, Any] = (lines[-1].get("earlier") if lines else None) or {}
    gate: Mapping[str, Any] = request.get("again") or {}
    whose = "the new model"
    if not_taken_out(request):
        whose = "the model that was tried"
    if request.get("left_by"):  # there is no new model: what was in force stays so
        again, was, whose = was, {}, "the model in force"
    tested = ((lines or before)[-1].get("rows") or {}).get("test", 0) if again else 0
    return [
        (
            f"Earlier request {name}",
            again_words({"forget": value, **(gate.get(name) or {})}, was.get(name), whose, tested),
        )
        for name, value in again.items()
    ]


def _standing(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """When a request came to stand where it stands, why it is owed, and how it can be settled."""
    found = []
    if request.get("changed"):
        found.append(("Since", date_text(str(request["changed"]))))
    if request.get("purged"):
        found.append(("Purged", date_text(str(request["purged"]))))
    if request.get("expires"):
        found.append(("To be begun by", date_text(str(request["expires"]))))
    if request.get("why"):
        found.append(("Why", str(request["why"])))
    found += gate_words(request)
    if request.get("owed"):
        found.append(("Still owed", f"its data is in no training; {request.get('way_out')}."))
    for tried in request.get("attempts") or []:
        found.append((f"Tried by {name_of(str(tried['method']))}", f"{tried['reason']}: {tried['why']}"))
    return found


# --- what was done to the model ---------------------------------------------------------------------------------------


def _change(method: str, job: Mapping[str, Any], evaluated: bool, ended: bool) -> list[str]:
    """What the method itself did at the start, and whether the new model differs from the old one."""
    begun = job.get("beginning")
    if not job:
        return []
    if not begun:
        missing = "Not recorded: this run noted no checksums when the method began."
        return [missing if evaluated else f"Nothing yet: {method} has not begun."]
    names, changes = list(begun["went_in"]), begun["changes"]
    said = [_start(method, names, changes)]
    came_out = job.get("came_out")
    if came_out is None and job.get("purged"):
        return [*said, f"The new model was purged for request {job['purged']['request']}, so nothing is compared."]
    if came_out is None:
        none = "No new model was kept" if ended else "There is no new model yet"
        return [*said, f"{none}, so there is nothing to compare the old one with."]
    same = [name for name in names if came_out.get(name) == begun["went_in"][name]]
    if not same:
        return [*said, f"All {len(names)} tensors of the new model differ from the old one."]
    if len(same) == len(names):
        return [*said, "The new model equals the old one in every tensor, bit for bit: nothing was taken out."]
    listed = ", ".join(same[:4]) + (f" and {len(same) - 4} more" if len(same) > 4 else "")
    return [*said, f"{len(same)} of {len(names)} tensors are bit for bit those of the old model: {listed}."]


def _start(method: str, names: Sequence[str], changes: Mapping[str, str]) -> str:
    if not changes:
        return f"{method} changed no tensor at the start: its first round began with the old model as it was."
    if len(changes) == len(names):
        return f"At the start {method} replaced or changed every one of the {len(names)} tensors."
    each = [f"{name} ({how})" for name, how in changes.items()]
    listed = ", ".join(each[:4]) + (f" and {len(each) - 4} more" if len(each) > 4 else "")
    rest = len(names) - len(changes)
    unchanged = "the other one was" if rest == 1 else f"the other {rest} were"
    return f"At the start {method} itself changed {listed}; {unchanged} left as in the old model."


def _tensors(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    begun, came_out = job.get("beginning"), job.get("came_out") or {}
    if not begun:
        return []
    return [
        {
            "name": name,
            "shape": " × ".join(str(size) for size in begun["shapes"].get(name, [])) or "one value",
            "before": before,
            "begun": begun["begun"].get(name),
            "how": begun["changes"].get(name, "as it was"),
            "after": came_out.get(name),
            "same": came_out.get(name) == before,
        }
        for name, before in begun["went_in"].items()
    ]


def _listings(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The full checksums as text to copy, `digest  name` per line."""
    begun, came_out = job.get("beginning") or {}, job.get("came_out")
    texts = []
    if begun.get("went_in"):
        texts.append(("The model before", listing(begun["went_in"])))
    if begun.get("begun"):
        texts.append(("What the method changed at the start", listing(begun["begun"])))
    if came_out:
        texts.append((f"The model after ({job.get('file')})", listing(came_out)))
    return texts


def _models(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Every model that this request left, where there are several."""
    made = [job for job in jobs if job.get("came_out")]
    if len(made) < 2:
        return []
    return [
        {
            "method": name_of(str(job["method"])),
            "seed": str(job["seed"]),
            "file": str(job["file"]),
            "fingerprint": fingerprint(job["came_out"]),
        }
        for job in made
    ]


# --- who was asked ----------------------------------------------------------------------------------------------------


def _asked(
    run: Mapping[str, Any],
    request: Mapping[str, Any],
    method: str,
    job: Mapping[str, Any],
    lines: Sequence[Line],
    words: Wording,
) -> dict[str, Any]:
    """Who was asked in which round, the leavers first."""
    by_client: dict[str, list[int]] = {str(client): [] for client in run.get("clients") or []}
    rounds: set[int] = set()
    for line in lines:
        for t, clients in (line.get("asked") or {}).items():
            rounds.add(int(t))
            for client in clients:
                by_client.setdefault(str(client), []).append(int(t))
    leavers = [str(client) for client in request.get("clients") or []] if request.get("kind") == "client" else []
    order = sorted(by_client, key=lambda client: client not in leavers)
    reached = max((int(line["round"]) for line in lines), default=0)
    last = max(rounds, default=0)
    first = min(rounds, default=1)
    central = words.setting == "central"
    if central:
        told = _told_centrally(name_of(method), job, bool(lines))
    elif not rounds:
        nobody = "Nobody was asked for anything." if request.get("left_by") else _NOBODY
        told = ["The rounds of this run do not say who was asked." if reached else nobody]
    else:
        told = _told(name_of(method), job, by_client, leavers, rounds, words)
    return {
        "title": words.asked,
        "told": told,
        "first": first,
        "last": last,
        "clients": [
            {
                "name": client,
                "leaver": client in leavers,
                "text": span_text(by_client[client]) if by_client[client] else "never",
                "cells": _cells(by_client[client], first, last),
            }
            for client in order[:SHOWN_CLIENTS]
        ]
        if rounds and len(by_client) > 1 and not central
        else [],
        "more": max(0, len(order) - SHOWN_CLIENTS),
    }


_NOBODY = "Nobody has been asked for anything yet."


def _told_centrally(method: str, job: Mapping[str, Any], begun: bool) -> list[str]:
    """Which rows were read, where one place holds all data and nobody is asked."""
    if not begun:
        return [f"{method or 'No method'} has read no row yet."]
    if job.get("needs") is None:
        return [f"This run does not say whether {method} reads the rows that are to be forgotten."]
    if "forget" in job["needs"]:
        return [f"{method} also reads the rows that are to be forgotten."]
    return [f"{method} trains on the rows that stay, and reads no other."]


def _told(
    method: str,
    job: Mapping[str, Any],
    by_client: Mapping[str, Sequence[int]],
    leavers: Sequence[str],
    rounds: set[int],
    words: Wording,
) -> list[str]:
    """Who was asked, in words; the leaver first."""
    needs = job.get("needs", [])
    uses_forgotten = "forget" in (needs or [])
    said = []
    for leaver in leavers[:6]:
        own = by_client.get(leaver, [])
        who = f"The node of client {leaver}" if words.setting == "flower" else f"Client {leaver}"
        if not own:
            when = "not asked in the one round" if len(rounds) == 1 else f"asked in none of the {len(rounds)} rounds"
            said.append(f"{who} was {when}: nothing was trained on its data.")
        elif uses_forgotten:
            said.append(
                f"{who} was asked in {span_text(own)}, because {method} works with the data that is to be"
                " forgotten; it needs the leaver's help."
            )
        else:
            said.append(f"{who} was asked in {span_text(own)}, although it was to leave.")
    if not leavers and job and needs is None:
        said.append(f"This run does not say whether {method} works with the rows that are to be forgotten.")
    elif not leavers and job:
        said.append(
            f"{method} also works with the rows that are to be forgotten."
            if uses_forgotten
            else f"Nobody was asked to train on a row that is to be forgotten: {method} asks for the data that stays."
        )
    staying = [client for client, own in by_client.items() if own and client not in leavers]
    others = f"other {words.holder}" if leavers else words.holder
    who = f"{len(staying)} {others}{'' if len(staying) == 1 else 's'}"
    return [*said, f"{who} took part, in {span_text(sorted(rounds))}."]


def _cells(asked: Sequence[int], first: int, last: int) -> list[float]:
    """The share of the rounds of each cell in which a client was asked.

    There is one round per cell as long as they fit.
    """
    count = last - first + 1
    cells = min(count, CELLS)
    own, shares = set(asked), []
    for cell in range(cells):
        rounds = range(first + cell * count // cells, first + (cell + 1) * count // cells)
        shares.append(round(sum(t in own for t in rounds) / len(rounds), 2))
    return shares


def refusals(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Updates that were refused, each once however often the trajectory repeats it."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        for item in line.get("refused") or []:
            whose = {"method": name_of(str(line["method"])), "request": line.get("request"), "seed": line["seed"]}
            entry = {**item, **whose}
            found[tuple(str(part) for part in entry.values())] = entry
    return list(found.values())


# --- what still carries a request -------------------------------------------------------------------------------------


def files(run: Mapping[str, Any], request: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """(file, what it is) of everything in the run folder that still carries what was taken out.

    It is None where that is not known.
    """
    if run.get("influence") is None:
        return None
    own = [item for item in run["influence"] if str(item.get("request")) == str(request["id"])]
    return list(dict.fromkeys((str(item["file"]), _named(item)) for item in own))


def deleting(run: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """How the files go that still carry it: purging takes a model in force that is without it."""
    if run.get("call"):
        return "delete those that must go"
    if request.get("left_by"):
        return "`unfed purge` of the requests by which it had left deletes them"
    if request.get("state") == "fulfilled":
        return "`unfed purge` deletes them"
    if request.get("state"):
        return "`unfed purge` deletes them once the request is fulfilled"
    return "methods were only compared: once a request for it is fulfilled, `unfed purge` deletes them"


def _named(item: Mapping[str, Any]) -> str:
    file, what = str(item["file"]), str(item["what"])
    if file.startswith("models/") and file.endswith("/train.safetensors"):
        return "θ*, the model before unlearning"
    if file.startswith("state/") and file.endswith("/train.safetensors") and "history" not in what:
        return "the last checkpoint of the training"
    return what
