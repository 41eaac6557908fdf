"""Results that were kept: a run's evaluated rounds as a small file, with what it was made from.

    results/PRESET-KEY.json      config, revisions, versions, hardware, commit, and columns per job

KEY is a digest of the config without its seeds and its list of methods: repetitions and methods that ran apart share
a file, and nothing else does. `current` leaves out what was revised since, `outdated` says it. A file may be damaged or
come from another machine, so every field is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from unfed import records, storage
from unfed.config import revisions
from unfed.config.config import Config
from unfed.config.config import differences as config_differences
from unfed.config.reading import check_folder
from unfed.errors import UnfedError
from unfed.folder.folder import digests_at
from unfed.measures.trajectory import Line, job_of
from unfed.methods import METHODS
from unfed.model.params import fingerprint
from unfed.records import Count, JsonRecord, Number, Plain
from unfed.runs.run import Run
from unfed.studies import same_training
from unfed.values import is_measured

SCHEMA = 1


COLUMNS = ("round", "retain", "forget", "test", "mia", "validation", "backdoor", "comm_bytes", "flops", "seconds")


class Made(JsonRecord):
    """When, where and by what something was made: of which revisions, above all."""

    created: str
    commit: str
    hardware: str
    revisions: Mapping[str, Count]
    versions: Plain = Field(default_factory=dict)
    trained: Mapping[str, str] = {}
    apart: Mapping[str, Number] = {}
    beside: tuple[str, ...] = ()


class MadeJobs(Made):
    """The same of some jobs."""

    jobs: tuple[str, ...]


class KeptFile(JsonRecord):
    """Of which config something is kept."""

    preset: str
    config: Plain

    @model_validator(mode="after")
    def _readable(self) -> Self:
        check_folder(self.preset)
        Config.kept(self.config)
        return self


Column = tuple[float | str | bool | None, ...]


class KeptJob(JsonRecord):
    """A job's evaluated rounds: one value a line in every column."""

    round: Annotated[tuple[Count, ...], Field(min_length=1)]
    retain: Column
    forget: Column
    test: Column
    mia: Column
    validation: Column
    backdoor: Column
    comm_bytes: Column
    flops: Column
    seconds: tuple[Number | None, ...]
    model: Column

    @model_validator(mode="after")
    def _even(self) -> Self:
        if len({len(getattr(self, name)) for name in (*COLUMNS, "model")}) != 1:
            raise ValueError("columns of several lengths")
        return self


class KeptResultsFile(KeptFile):
    """A file of kept results: SEED/REQUEST/METHOD → columns."""

    made: tuple[MadeJobs, ...]
    jobs: Mapping[Annotated[str, Field(pattern=r"^[0-9]{1,20}/.*/")], KeptJob]


def fields_of(path: Path, what: str, kind: type[KeptFile]) -> dict[str, Any]:
    """The fields of a file, `preset` and `config` among them, if each fits."""
    try:
        raw = records.parsed(storage.content(path, storage.MOST_JSON))
    except (OSError, ValueError) as error:
        raise UnfedError(f"{path} holds no {what} ({error}); make it again.") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise UnfedError(f"{path} holds no {what} (no schema); make it again.")
    if raw["schema"] != SCHEMA:
        raise UnfedError(f"{path} has schema {raw['schema']}, this version reads {SCHEMA}; make it again.")
    records.read(kind, raw, str(path), "make it again")
    return raw


ONCE = ("validation_before", "keep_model")
"""What is the same in every line of a job."""
ASIDE = ("name", "seed", "device", "checkpoint", "gate")
"""Keys of a config that change no number, or that tell repetitions apart."""
UNTOLD = {"methods": ("run",), "evaluation": ("samples", "batch"), "engine": ("name", "compile", "chunk", "threads")}
"""Keys of a table that change no number beyond rounding."""
ESSENTIAL = ("data", "partition", "model", "poison", "request", "setting")
"""Keys that make an experiment the one it is."""


@dataclass(frozen=True)
class KeptResults:
    """A file of kept results."""

    preset: str
    config: Mapping[str, Any]
    made: tuple[Mapping[str, Any], ...]
    """Of each run that was added: date, commit, versions, hardware, revisions, seeds and methods."""
    jobs: Mapping[str, Mapping[str, Any]]
    """SEED/REQUEST/METHOD → columns."""

    @property
    def key(self) -> str:
        """What tells its file from those of other configs."""
        return key_of(self.config)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The repetitions that are there, of any method."""
        return tuple(sorted({int(job.partition("/")[0]) for job in self.jobs}))

    def lines(self) -> list[Line]:
        """A trajectory as a run would have it, of the evaluated rounds."""
        return [line for job, columns in self.jobs.items() for line in _lines(job, columns)]


LATER: Mapping[str, Mapping[str, Any]] = {
    "data": {"label": None, "owner": None},
    "training": {"keep_every": 0},
    "unlearning": {"epochs": None, "tune": []},
}
"""What can be said of a run since results were first kept, with what it was before."""


def key_of(config: Mapping[str, Any]) -> str:
    """The digest of what a result depends on, but for its seed and its method."""
    return hashlib.sha256(json.dumps(_telling(config), sort_keys=True).encode()).hexdigest()[:12]


def _telling(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what changes no number."""
    said = Config.kept(config).to_json()
    rest = {name: value for name, value in said.items() if name not in ASIDE}
    for table, names in UNTOLD.items():
        rest[table] = {name: value for name, value in rest.get(table, {}).items() if name not in names}
    for table in ("training", "unlearning"):  # no honest client sends what this refuses
        if robust := rest[table].get("robust"):
            rest[table] = {**rest[table], "robust": {k: v for k, v in robust.items() if k != "refuse_above"}}
    for table, later in LATER.items():  # files that were kept before these could be said have the same name
        rest[table] = {name: value for name, value in rest[table].items() if later.get(name, ...) != value}
    if not said["unlearning"]["tune"]:
        rest["unlearning"].pop("tune_rounds", None)
    return rest


def kept(run: Run, commit: str, beside: Sequence[str] = ()) -> KeptResults:
    """What is kept of a run: of its finished jobs only, θ*'s too.

    `beside` are the methods whose rounds ran in one stack with this one's, by whose seconds they passed, too.
    """
    own, jobs = run.description, dict[str, dict[str, Any]]()
    finished = {job.key for job, _ in run.jobs() if run.folder.finished(job)}
    for line in run.lines():
        at = job_of(line)
        if at in finished or line["method"] == "before":
            _add(jobs.setdefault("/".join(str(part) for part in at), {}), line)
    if not jobs:
        raise UnfedError(f"No job of {run.folder.path} is finished; go on with {run.going_on}.")
    about = {name: getattr(own, name) for name in ("created", "versions", "hardware", "engine", "revisions")}
    made = {**about, "commit": commit, "trained": _trained(run), "jobs": sorted(jobs)}
    made |= {"beside": sorted(beside)} if beside else {}
    return KeptResults(run.config.name, own.config, (made,), jobs)


def _trained(run: Run) -> dict[str, str]:
    """Seed → the fingerprint of θ*, by which it is compared where it is too large to carry away."""
    files = {str(seed): run.folder.model_file(run.training_job(seed)) for seed in run.config.seed_list}
    there = {seed: digests_at(path) for seed, path in files.items()}
    return {seed: fingerprint(found) for seed, found in there.items() if found}


def retrained_otherwise(found: KeptResults) -> dict[str, float | None]:
    """The seeds whose θ* was trained more than once among the added runs, and came out differently.

    Each with the most points by which an accuracy of θ* differs, or None where only the fingerprints tell.
    """
    seen: dict[str, set[str]] = {}
    points: dict[str, float | None] = {}
    for about in found.made:
        for seed, own in about.get("trained", {}).items():
            seen.setdefault(seed, set()).add(own)
        for seed, most in about.get("apart", {}).items():
            points[seed] = max(most, points.get(seed) or 0.0)
    points |= {seed: None for seed, own in seen.items() if len(own) > 1 and seed not in points}
    return {seed: most for seed, most in sorted(points.items()) if len(_thetas(found, seed)) > 1}


def trained_elsewhere(found: KeptResults, others: Iterable[KeptResults]) -> Iterator[tuple[str, KeptResults, float]]:
    """The seeds whose θ* an earlier result has from the same settings, with another fingerprint.

    Each with that result, and the most points by which an accuracy of θ* differs.
    """
    for other in others:
        if _since(other) >= _since(found) or _trains(other.config) != _trains(found.config):
            continue
        for seed in map(str, found.seeds):
            job, (mine, theirs) = f"{seed}/None/train", (_fingerprints(one, seed) for one in (found, other))
            if mine and theirs and not mine & theirs and job in found.jobs and job in other.jobs:
                yield seed, other, _most_apart(other.jobs[job], found.jobs[job])


def _fingerprints(found: KeptResults, seed: str) -> set[str]:
    return {about["trained"][seed] for about in found.made if seed in about.get("trained", {})}


def _since(found: KeptResults) -> str:
    return min(str(about["created"]) for about in found.made)


def _trains(config: Mapping[str, Any]) -> dict[str, Any]:
    """What θ* depends on, but for its seed."""
    said = _telling(config)
    return {name: value for name, value in said.items() if name not in same_training.ASIDE}


def _thetas(found: KeptResults, seed: str) -> set[str]:
    """The θ* that jobs of a seed come from; a run kept without a fingerprint counts as one of its own."""
    own = [(i, one) for i, one in enumerate(found.made) if any(job.startswith(f"{seed}/") for job in one["jobs"])]
    return {one.get("trained", {}).get(seed, f"run {i}") for i, one in own}


def merged(one: KeptResults, other: KeptResults) -> KeptResults:
    """Both together; what the second has replaces what the first had of the same job.

    Where it has trained θ* of a seed again, and got another, it says by how much: other methods began at the first.
    """
    if different := differences(one.config, other.config):
        raise UnfedError(f"These are results of different configs ({'; '.join(different)}); keep them apart.")
    replaced = set(other.jobs)
    made = [{**about, "jobs": [job for job in about["jobs"] if job not in replaced]} for about in one.made]
    left = tuple(about for about in made if about["jobs"])
    apart = [_said_before(one, about) | _apart(one, other, about["jobs"]) for about in other.made]
    added = [{**about, "apart": own} if own else about for about, own in zip(other.made, apart, strict=True)]
    config = {**one.config, "methods": {**other.config["methods"], **one.config["methods"]}}
    return KeptResults(one.preset, config, (*left, *added), {**one.jobs, **other.jobs})


def _said_before(one: KeptResults, about: Mapping[str, Any]) -> dict[str, float]:
    """What was said of the same θ* when less of its run was kept: each method keeps the run again."""
    mine = about.get("trained", {})
    told = [(seed, most, then.get("trained", {})) for then in one.made for seed, most in then.get("apart", {}).items()]
    return {seed: most for seed, most, trained in told if seed in mine and trained.get(seed) == mine[seed]}


def _apart(one: KeptResults, other: KeptResults, jobs: Sequence[str]) -> dict[str, float]:
    """Seed → the most points by which an accuracy of its θ* differs between two trainings, where it does."""
    both = [job for job in jobs if job.endswith("/None/train") and job in one.jobs]
    points = {job.partition("/")[0]: _most_apart(one.jobs[job], other.jobs[job]) for job in both}
    return {seed: most for seed, most in points.items() if most}


def _most_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    pairs = [pair for name in ("retain", "test", "validation") for pair in zip(one[name], other[name], strict=False)]
    return round(max((abs(a - b) for a, b in pairs if is_measured(a) and is_measured(b)), default=0.0), 4)


def write(found: KeptResults, folder: Path) -> Path:
    """Into the file of its key, together with what is there."""
    path = folder / f"{found.preset}-{found.key}.json"
    for there in sorted(folder.glob(f"{found.preset}-*.json")):
        if (known := read(there)).preset == found.preset and not differences(known.config, found.config):
            path, found = there, merged(known, found)
            break
    jobs = {name: found.jobs[name] for name in sorted(found.jobs)}
    text = {"schema": SCHEMA, "preset": found.preset, "config": found.config, "made": found.made}
    body = json.dumps(text, indent=1, ensure_ascii=False)[:-2]
    columns = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in jobs.items()
    )
    storage.write_bytes(path, (body + ',\n "jobs": {\n' + columns + "\n }\n}\n").encode())
    return path


def read(path: Path) -> KeptResults:
    """A file of kept results, if this version can read it."""
    raw = fields_of(path, "kept results", KeptResultsFile)
    return KeptResults(raw["preset"], raw["config"], tuple(raw["made"]), raw["jobs"])


def current(found: KeptResults) -> KeptResults:
    """What of it still counts: the jobs whose engine, evaluator and method were not revised since."""
    old = {job for about in found.made for job in about["jobs"] if _raised(found, about, job)}
    made = [{**about, "jobs": [job for job in about["jobs"] if job not in old]} for about in found.made]
    left = {job: columns for job, columns in found.jobs.items() if job not in old}
    return replace(found, made=tuple(about for about in made if about["jobs"]), jobs=left)


def outdated(found: KeptResults) -> list[str]:
    """What has been revised since these results were made, in a sentence; none if nothing was."""
    old = {job: (_raised(found, about, job), about["created"]) for about in found.made for job in about["jobs"]}
    old = {job: told for job, told in old.items() if told[0]}
    if not old:
        return []
    names, since = sorted({name for own, _ in old.values() for name in own}), max(when for _, when in old.values())
    labels = sorted({job.rpartition("/")[2] for job in old})
    gaps = " and all gaps to Retrain" if "retrain" in labels else ""
    out = f"the rows of {revisions.told(labels)}{gaps} are left out"
    if {*names} & {*same_training.TRAINERS}:  # every number depends on these
        out = "everything that was made before is left out"
    config = Config.kept(found.config)
    what = f"{', '.join(config.request_ids())}, {config.training.rounds} + {config.unlearning.rounds} rounds"
    return [f"{found.preset} ({what}): {revisions.told(names)} revised since {since}; {out} until it is run again."]


def _raised(found: KeptResults, about: Mapping[str, Any], job: str) -> list[str]:
    """What a job depends on and has been revised since its run was made."""
    return revisions.raised(about["revisions"], _names(found, job.rpartition("/")[2]), found.config)


def _names(found: KeptResults, label: str) -> tuple[str, ...]:
    """A label, and the method that it stands for: `conv2` is NoT with another layer."""
    options = found.config.get("methods", {}).get(label)
    return (label, options["use"]) if isinstance(options, Mapping) and "use" in options else (label,)


def differences(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`training.rounds 150 instead of 300`: where a kept config is not the one an item asks for.

    A key that was added since is at its default in the kept one. Methods are distinguished by what they are called: a
    label that only one of them has is no difference, but one of our own methods without a table is at its defaults.
    """
    untold = {*ASIDE, *(f"{table}.{name}" for table, names in UNTOLD.items() for name in names)}
    return config_differences(config, wanted, untold, METHODS)


def _add(columns: dict[str, Any], line: Mapping[str, Any]) -> None:
    for name in COLUMNS:
        columns.setdefault(name, []).append(_short(line.get(name)))
    columns.setdefault("model", []).append(1 if line.get("model", True) else 0)
    columns |= {name: line[name] for name in ONCE if name in line}


def _short(value: Any) -> Any:
    """Six digits are more than a table shows."""
    return float(f"{value:.6g}") if is_measured(value) and not isinstance(value, int) else value


def _lines(job: str, columns: Mapping[str, Any]) -> Iterator[Line]:
    seed, request, method = job.split("/", 2)
    ends = len(columns["round"]) - 1
    for i in range(len(columns["round"])):
        line = {name: columns[name][i] for name in COLUMNS}
        line |= {name: _short(columns[name]) for name in ONCE if name in columns}  # beside columns that are as short
        where = {"seed": int(seed), "request": None if request == "None" else request, "method": method}
        yield cast(Line, {**where, **line, "model": bool(columns["model"][i]), "done": i == ends})


def all_in(folder: Path) -> list[KeptResults]:
    """Every file of kept results in a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def fitting(
    found: Sequence[KeptResults], preset: str, wanted: Mapping[str, Any]
) -> list[tuple[KeptResults, list[str]]]:
    """The kept results that an item can show, nearest first.

    Each comes with what is different from what the item asks for.

    Data, partition, model, poison and request must be the same; rounds and precision may differ, and are said.
    """
    asked = Config.kept(wanted).to_json()
    mine = [(one, Config.kept(one.config).to_json()) for one in found if one.preset == preset]
    own = [(one, differences(said, asked)) for one, said in mine if all(said[k] == asked[k] for k in ESSENTIAL)]
    return sorted(own, key=lambda pair: len(pair[1]))
