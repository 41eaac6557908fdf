"""A population, judged: how sure is what a run says?

    POPULATION ─► attacks, distances, verdicts (`measures.population`) ─► POPULATION/judged.json
                                                                      ─► RUN/population/REQUEST.json

A run takes in only a population of its own config: of another, the models would be others. Files hold no date and no
duration; the same population gives the same bytes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.study_results import FILE, SCHEMA, judged_file
from unfed.measures.population import ForgottenRows, Judge, Resampling, store
from unfed.measures.population.store import BEFORE, RETRAIN, Population
from unfed.methods import METHODS
from unfed.requests.book import overlap, owners
from unfed.runs.record import RunRecord
from unfed.studies import grid
from unfed.studies.grid import GridCell, Said, Workers
from unfed.studies.population import of_another

QUICK = Resampling(draws=200, permutations=200)


def judged(population: Population, effort: Resampling | None = None, jobs: Workers | None = 1) -> dict[str, Any]:
    """Measure a population, and keep what was found in its folder.

    Args:
        population: With a method's models beside Retrains.
        effort: How many draws stand behind intervals and p-values.
        jobs: How many methods are measured at once, each in a process of its own, or a Ray cluster; None is one per
            core.
    """
    about, effort = population.about, effort or Resampling()
    kinds = {kind: len(population.done(kind)) for kind in about.kinds if kind not in (BEFORE, RETRAIN)}
    methods = {kind: title_of(kind) for kind, models in kinds.items() if models == about.models}
    if not kinds:
        raise UnfedError(
            f"{population.folder} has Retrains and no method's models to compare with them; add some with"
            " `unfed population … --methods not,ft`."
        )
    if not methods:
        population.logits(next(iter(kinds)), "forget")  # which says how many are missing
    judges = _judge(population, effort)
    count = grid.at_once(len(methods), True, jobs)
    shared = () if count != 1 else (judges,)
    common = str(population.folder), effort
    cells = [GridCell(f"judge {kind}", _measured, (*common, kind, title, *shared)) for kind, title in methods.items()]
    found = grid.run(cells, count, population.folder)
    whole = {
        "schema": SCHEMA,
        "name": about.name,
        "request": about.request,
        "config": about.config,
        "seeds": list(about.seeds),
        "hardware": about.hardware,
        "effort": asdict(effort),
        "tuned": dict(about.tuned),
        "unfinished": {title_of(kind): models for kind, models in kinds.items() if kind not in methods},
        **judges.whole({kind: found[f"judge {kind}"] for kind in methods}),
    }
    storage.write_json(population.folder / FILE, whole)
    return whole


def _judge(population: Population, effort: Resampling) -> Judge:
    return Judge(population, rows_of(population), effort, population.rounds())


def _measured(
    said: Said, folder: str, effort: Resampling, kind: str, title: str, judges: Judge | None = None
) -> dict[str, Any]:
    """Measure one method."""
    return (judges or _judge(store.load(folder), effort)).of(kind, title)


def title_of(kind: str) -> str:
    """A method as papers write it; a variant goes by its label."""
    plain = kind.removesuffix("-tuned")
    if plain not in METHODS:
        return kind
    return METHODS[plain].title + (" (tuned)" if plain != kind else "")


def rows_of(population: Population) -> ForgottenRows:
    """The forgotten rows as their holders know them: the client, and the place in its data."""
    owners, places = (population.column(name, "forget") for name in ("client", "position"))
    names = [f"client {owner}, row {place}" for owner, place in zip(owners, places, strict=True)]
    return ForgottenRows.by_label(population.labels("forget"), names)


def put_into(run: RunRecord, population: Population, whole: dict[str, Any]) -> None:
    """Let a run's report show it, if it is a population of the run's own config."""
    where, request = run.folder.path, population.about.request
    other = of_another(population.about, run.config)
    if other or request not in run.config.request_ids():
        raise UnfedError(
            f"{population.folder} is a population of {other or 'another request'} than {where}, so it says nothing of"
            " that run; make one from the run's own config with `unfed population`."
        )
    asked = next(one for one in run.config.requests() if one.id == request)
    for entry in run.folder.book().entries:
        if entry.purged and overlap(owners(asked), owners(entry.request)):
            raise UnfedError(
                f"Request {entry.request.id!r} was purged from {where}, and what a population says names its rows one"
                " by one; leave --run out."
            )
    storage.write_json(judged_file(run.folder, request), whole)
