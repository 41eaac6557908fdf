"""Analyses that were kept: the numbers of an item that takes models, without the models.

    results/analyses/ITEM-PRESET-KEY.json      numbers, config, revisions, versions, hardware, commit

The models of a large run stay where they were trained; what was measured on them is kept. What was revised since is
refused by name, as for kept results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paper_record as record
from paper_record import SCHEMA

from unfed import storage
from unfed.config import revisions
from unfed.config.config import Config
from unfed.errors import UnfedError, listed
from unfed.paper import views
from unfed.paper.items import SCALES, Item, Spec, items
from unfed.paper.views.base import Section
from unfed.records import Plain
from unfed.runs.run import Run
from unfed.values import as_json

FOLDER = "analyses"
"""Under the folder of kept results."""


class KeptAnalysisFile(record.KeptFile):
    """A file of a kept analysis."""

    item: str
    made: record.Made
    numbers: Plain


@dataclass(frozen=True)
class KeptAnalysis:
    """What an analysis found in one run."""

    item: str
    preset: str
    config: Mapping[str, Any]
    made: Mapping[str, Any]
    """Date, commit, versions, hardware, revisions and seed."""
    numbers: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its file's name, without the ending."""
        return f"{self.item}-{self.preset}-{record.key_of(self.config)}"


def measured(item: Item, run: Run, commit: str, numbers: Mapping[str, Any] | None = None) -> KeptAnalysis:
    """Analyse a finished run as the item asks.

    `numbers` change what its view takes (a spectrum over fewer sets of coordinates); they are shown with the result.
    """
    view = views.VIEWS[item.view]
    if view.analysis is None:
        raise UnfedError(
            f"{item.heading} is made of a run's lines alone, which are kept already; analyse another item."
        )
    view.check(item, str(run.folder.path), run.config)
    needed = [job for job, _ in run.jobs() if job.label in (*view.needs, "train")]
    if unfinished := [job.label for job in needed if not run.folder.finished(job)]:
        raise UnfedError(
            f"{item.heading} needs {listed(unfinished)} of {run.folder.path} finished; go on with {run.going_on}."
        )
    spec = _spec(item, run.config)
    if unknown := sorted({*(numbers or {})} - {*dict(spec.numbers)}):
        has = listed([name for name, _ in spec.numbers]) if spec.numbers else "none"
        raise UnfedError(f"{item.heading} takes no number {unknown[0]!r}; it has {has}.")
    spec = replace(spec, numbers=(*spec.numbers, *(numbers or {}).items()))
    found = as_json(view.analysis.measure(item, spec, run))
    own = run.description
    about = {name: getattr(own, name) for name in ("created", "versions", "hardware", "engine")}
    used = ("retrain", "ft", "not")
    edition = {**revisions.of(used), item.view: revisions.ANALYSES[item.view]}
    made = {**about, "revisions": edition, "commit": commit, "seed": run.config.seed_list[0]}
    return KeptAnalysis(item.id, run.config.name, own.config, made, found)


def rehearsed(item: Item, run: Run) -> None:
    """Try an analysis on the fresh model of a run, before time is spent on a trained one."""
    view = views.VIEWS[item.view]
    view.check(item, str(run.folder.path), run.config)
    view.rehearse(item, {_spec(item, run.config): run})


def _spec(item: Item, config: Config) -> Spec:
    """The run of the item that this is one of, at whatever scale."""
    for scale in reversed(SCALES):
        for spec in item.runs[scale]:
            if _same_experiment(spec, config.name, config.to_json()):
                return spec
    raise UnfedError(f"{item.heading} has no run like {config.name} with this data, model and request.")


def _same_experiment(spec: Spec, preset: str, config: Mapping[str, Any]) -> bool:
    asked, said = spec.config().to_json(), Config.kept(config).to_json()
    return spec.preset == preset and all(_but_root(said, key) == _but_root(asked, key) for key in record.ESSENTIAL)


def _but_root(config: Mapping[str, Any], key: str) -> Any:
    """Where a data set lies is no part of what it is."""
    found = config[key]
    return {name: value for name, value in found.items() if name != "root"} if isinstance(found, Mapping) else found


def write(found: KeptAnalysis, folder: Path) -> Path:
    """Into its own file, in the place of an earlier one of the same config."""
    path = folder / FOLDER / f"{found.name}.json"
    body = {"schema": SCHEMA, **{name: getattr(found, name) for name in ("item", "preset", "config", "made")}}
    head = json.dumps(body, indent=1, ensure_ascii=False)[:-2]
    numbers = json.dumps(_rounded(found.numbers), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(path, f'{head},\n "numbers": {numbers}\n}}\n'.encode())
    return path


def _rounded(value: Any) -> Any:
    """Six digits are more than a table shows."""
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(path: Path) -> KeptAnalysis:
    """A kept analysis, if this version can read it."""
    raw = record.fields_of(path, "kept analysis", KeptAnalysisFile)
    if raw["item"] not in items():
        raise UnfedError(f"{path} is of {raw['item']!r}, which the paper does not have; make it again.")
    return KeptAnalysis(raw["item"], raw["preset"], raw["config"], raw["made"], raw["numbers"])


def all_in(folder: Path) -> list[KeptAnalysis]:
    """Every kept analysis under a folder of results, by name."""
    return [read(path) for path in sorted((folder / FOLDER).glob("*.json"))]


def outdated(found: KeptAnalysis) -> str:
    """What has been revised since, in a sentence; empty if nothing was."""
    now = revisions.of(revisions.METHODS) | revisions.ANALYSES
    old = [name for name, number in found.made["revisions"].items() if now.get(name) != number]
    what, since = f"{found.item} of {found.preset}", found.made["created"]
    return f"{what}: {revisions.told(old)} revised since {since}; analyse a new run." if old else ""


def fitting(found: Sequence[KeptAnalysis], item: Item, spec: Spec) -> tuple[KeptAnalysis, list[str]] | None:
    """The kept analysis that is nearest to a run of an item, with what differs from what that asks for."""
    own = [one for one in found if one.item == item.id and _same_experiment(spec, one.preset, one.config)]
    near = [(one, record.differences(one.config, spec.config().to_json())) for one in own]
    return min(near, key=lambda pair: len(pair[1]), default=None)


def shown(item: Item, found: Mapping[str, KeptAnalysis]) -> Section:
    """The item from what was kept of its runs, by their names in it."""
    analysis = views.VIEWS[item.view].analysis
    assert analysis is not None  # only such items are kept
    try:
        return analysis.show(item, {name: one.numbers for name, one in found.items()})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UnfedError(
            f"What was kept of {item.heading} is damaged ({type(error).__name__}: {error}); analyse its run again."
        ) from error
