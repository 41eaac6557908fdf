"""For the officer: what was asked, what was done, who took part, what is still there.

    RunInfo.jobs         SHA-256 of the model that went in, of what the method changed at the start, of what came out
    lines[*]["asked"]    who was asked in each round
    RunInfo.influence    the files in the run folder that still carry what was taken out

The sentences stand in `officer.html.j2`. What the run did not write down is said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unfed.folder.info import JobInfo, RequestInfo, RunInfo
from unfed.measures.trajectory import Line, RefusedUpdate
from unfed.report.figures import BySeed
from unfed.report.rules import Row
from unfed.report.sentences import earlier_words, headline
from unfed.report.tables import name_of
from unfed.report.wording import span_text

CELLS = 48  # of a strip; more rounds share a cell


@dataclass(frozen=True)
class AskedClient:
    """A client's line in the table of rounds."""

    name: str
    leaver: bool
    rounds: list[int]
    cells: list[float]
    """The share of the rounds of each cell in which it was asked."""

    @property
    def text(self) -> str:
        return span_text(self.rounds) if self.rounds else "never"


@dataclass(frozen=True)
class RefusedLine:
    """An update that was not averaged, and whose it was."""

    method: str
    seed: int
    update: RefusedUpdate


@dataclass(frozen=True)
class OfficerPart:
    """What the officer's part shows of one request."""

    request: RequestInfo
    method: str
    """The title of the method that served, or of the one that the first sentence speaks of."""
    seed: int | None
    """The repetition that is shown, where there are several."""
    job: JobInfo | None
    models: list[JobInfo]
    """Every model that the request left."""
    begun: bool
    earlier: list[tuple[str, str]]
    rounds: list[int]
    """The rounds in which any client was asked."""
    clients: list[AskedClient]
    refused: list[RefusedLine]
    carriers: list[tuple[str, str]] | None
    """(file, what it is) of everything that still carries what was taken out; None where that is not known."""


def officer_part(
    run: RunInfo, request: RequestInfo, found: Sequence[Row], methods: Mapping[str, BySeed]
) -> OfficerPart:
    """Everything the officer's part shows of one request."""
    jobs = [job for job in run.jobs if job.request == request.id]
    method = _method(request, found, jobs)
    job = next((job for job in jobs if job.method == method), None)
    seed = job.seed if job else min(methods.get(method, {0: []}))
    lines, before = methods.get(method, {}).get(seed, []), methods.get("before", {}).get(seed, [])
    leavers = request.clients if request.kind == "client" else ()
    asked: dict[str, list[int]] = {client: [] for client in (*leavers, *run.clients)}
    for line in lines:
        for t, clients in line.get("asked", {}).items():
            for client in clients:
                asked.setdefault(client, []).append(int(t))
    rounds = sorted({t for own in asked.values() for t in own})
    return OfficerPart(
        request=request,
        method=name_of(method) if method else "",
        seed=seed if len({job.seed for job in jobs}) > 1 else None,
        job=job,
        models=[job for job in jobs if job.came_out],
        begun=bool(lines),
        earlier=earlier_words(request, before[-1] if before else None, lines[-1] if lines else None),
        rounds=rounds,
        clients=[
            AskedClient(client, client in leavers, asked[client], _cells(asked[client], rounds))
            for client in sorted(asked, key=lambda client: client not in leavers)
        ],
        refused=refusals([line for by_seed in methods.values() for own in by_seed.values() for line in own]),
        carriers=_carriers(run, request),
    )


def _method(request: RequestInfo, found: Sequence[Row], jobs: Sequence[JobInfo]) -> str:
    """The method that served the request; in a comparison, the one that the first sentence speaks of."""
    row = headline(found, request)
    if request.method or row is not None:
        return request.method or (row.method if row else "")
    waiting = sorted((job.method for job in jobs if job.method != "retrain"), key=lambda method: method != "not")
    return waiting[0] if waiting else ""


def _cells(asked: Sequence[int], rounds: Sequence[int]) -> list[float]:
    """The shares of a client's strip: one round per cell as long as they fit."""
    if not rounds:
        return []
    first, count = rounds[0], rounds[-1] - rounds[0] + 1
    cells, shares = min(count, CELLS), []
    for cell in range(cells):
        span = range(first + cell * count // cells, first + (cell + 1) * count // cells)
        shares.append(round(sum(t in asked for t in span) / len(span), 2))
    return shares


def refusals(lines: Sequence[Line]) -> list[RefusedLine]:
    """Updates that were refused, each once however often the trajectory repeats it."""
    found: dict[tuple[object, ...], RefusedLine] = {}
    for line in lines:
        for one in line.get("refused") or []:
            key = (line["method"], line["seed"], line["request"], one["round"], one["client"], one["reason"])
            found[key] = RefusedLine(name_of(line["method"]), line["seed"], one)
    return list(found.values())


def _carriers(run: RunInfo, request: RequestInfo) -> list[tuple[str, str]] | None:
    if run.influence is None:
        return None
    return list(
        dict.fromkeys((one.file, _named(one.file, one.what)) for one in run.influence if one.request == request.id)
    )


def _named(file: str, what: str) -> str:
    if file.startswith("models/") and file.endswith("/train.safetensors"):
        return "θ*, the model before unlearning"
    if file.startswith("state/") and file.endswith("/train.safetensors") and "history" not in what:
        return "the last checkpoint of the training"
    return what
