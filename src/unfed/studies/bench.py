"""The benchmark: methods under one frozen protocol, one scorecard each.

    protocol ─► federations × requests ─► θ* of N + 1 seeds ─► Retrain, then every method:
                    peak rate tuned on the extra seed ─► N models until matched utility ─► judged, probed, counted

A protocol is a file of this package (`protocols/SUITE.json`); its SHA-256 stands in every result. θ* and Retrain are
shared by all methods. A federation is a cell of a grid, or, where
processes share the work, a method in one scenario. Every scorecard is written as soon as it is known, and what
is written is not done again, so an interrupted benchmark goes on.

    OUT/METHOD.json                            the result of a method, once all of its scenarios are there
    OUT/work/FEDERATION/state/                 θ* of every seed
    OUT/work/FEDERATION/REQUEST/METHOD.json    one scorecard
    OUT/work/FEDERATION/REQUEST/answers…       what the Retrains say about the rows, at some rounds
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from unfed import plugins, records, storage
from unfed.config import revisions
from unfed.config.config import Config
from unfed.errors import UnfedError, listed
from unfed.measures.population import Judge
from unfed.measures.population.intervals import over_models
from unfed.measures.population.judge import LEVEL, fewest
from unfed.measures.population.store import RETRAIN
from unfed.measures.undo.flip import Knowledge, flipped, lift
from unfed.measures.undo.refits import relearn, triggers
from unfed.measures.undo.scene import Scene
from unfed.measures.undo.traces import inside
from unfed.methods import METHODS, Method, State, find
from unfed.methods.base import Central
from unfed.model.params import Params
from unfed.records import JsonRecord, Plain
from unfed.report.scorecards import BenchResult, NotServed, Scorecard, read_result
from unfed.runs import admission
from unfed.runs.description import hardware, rounds_of, versions
from unfed.runs.probe import scene_of
from unfed.runs.simulated import simulated
from unfed.runs.world import World, process_as_before
from unfed.studies import grid
from unfed.studies.cohort import Cohort
from unfed.studies.grid import GridCell, Said, Workers, quiet
from unfed.studies.population import EARLIER, RowGroups, at_once
from unfed.values import is_measured

SUITES = ("small", "cifar10")
GROUPS = ("forget", "retain", "test")
Models = Annotated[int, Field(ge=1)]


class Protocol(JsonRecord):
    """What every method goes through, frozen: a change of any byte is another protocol."""

    bench: str
    suite: str
    about: tuple[str, ...]
    models: Models
    within: Annotated[float, Field(gt=0)]
    """Points of validation accuracy below the model before: the matched utility."""
    look: Annotated[int, Field(ge=1)]
    """A model is looked at every so many rounds."""
    rounds: Annotated[int, Field(ge=1)]
    """What a method is granted; some take more of their own."""
    peaks: tuple[Annotated[float, Field(gt=0)], ...]
    rows: Annotated[int, Field(ge=2)]
    """Of each group, at most, that models are asked about."""
    probed: Annotated[int, Field(ge=4)]
    """Models of each kind that are attacked."""
    probe_rate: Annotated[float, Field(gt=0)]
    config: Plain
    federations: Mapping[str, Plain]
    requests: Mapping[str, Plain]


def read_protocol(suite: str) -> tuple[Protocol, str]:
    """A protocol of this package, or of a file, with its SHA-256."""
    if suite in SUITES:
        data = files("unfed.studies").joinpath(f"protocols/{suite}.json").read_bytes()
    elif suite.endswith(".json"):
        data = storage.content(Path(suite))
    else:
        raise UnfedError(f"There is no suite {suite!r}; use {listed(SUITES)}, or a protocol file that ends in .json.")
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise UnfedError(f"The protocol {suite} is no JSON ({error}); mend it.") from error
    return records.read(Protocol, raw, f"The protocol {suite}", "mend it"), hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Benchmark:
    """One protocol, some methods, one folder."""

    protocol: Protocol
    sha256: str
    methods: Mapping[str, str]
    """By label, what the method is called: a name, `package.module:Class` or FILE.py."""
    folder: Path
    models: int
    device: str = "auto"
    command: str = ""

    @staticmethod
    def of(
        suite: str,
        methods: Sequence[str],
        folder: Path,
        models: int | None = None,
        device: str = "auto",
        command: str = "",
    ) -> Benchmark:
        """The benchmark of some methods; Retrain is always among them."""
        protocol, sha256 = read_protocol(suite)
        count = protocol.models if models is None else models
        if count < fewest(LEVEL):
            raise UnfedError(
                f"A claim takes at least {fewest(LEVEL)} models of each kind, and {count} were asked for; the protocol"
                f" has {protocol.models}."
            )
        named = {find(name, "METHOD").name: name for name in (RETRAIN, *methods)}
        return Benchmark(protocol, sha256, named, folder, count, device, command)

    @property
    def scenarios(self) -> list[tuple[str, str]]:
        return [(one, request) for one in self.protocol.federations for request in self.protocol.requests]

    def card_file(self, federation: str, request: str, label: str) -> Path:
        return self.folder / "work" / federation / request / f"{label}.json"

    def card(self, federation: str, request: str, label: str) -> Scorecard | NotServed | None:
        """A scorecard that is there, unless the method has changed since."""
        file = self.card_file(federation, request, label)
        if not file.exists():
            return None
        raw = storage.read_json(file, "scorecard")
        kind: Any = NotServed if isinstance(raw, dict) and "reason" in raw else Scorecard
        found: Scorecard | NotServed = records.read(kind, raw, f"The scorecard {file}", "delete it")
        return found if found.edition == edition(self.methods[label]) else None

    def config(self, federation: str, request: str, peaks: Mapping[str, float] | None = None) -> Config:
        """The experiment that a scenario is."""
        raw: dict[str, Any] = {name: dict(table) for name, table in self.protocol.config.items()}
        for name, table in self.protocol.federations[federation].items():
            raw[name] = {**raw.get(name, {}), **table}
        raw["evaluation"] = {**raw.get("evaluation", {}), "attack": False, "samples": False}
        tables = {label: self._table(label, (peaks or {}).get(label)) for label in self.methods}
        return Config.parse(
            raw
            | {
                "name": self.protocol.suite,
                "seed": 0,
                "device": self.device,
                "request": {"id": request, **self.protocol.requests[request]},
                "checkpoint": {"rounds": None, "seconds": None},  # what a look found is not in a state
                "methods": {"run": list(self.methods), **tables},
            }
        )

    def _table(self, label: str, peak: float | None) -> dict[str, Any]:
        """A method's table: the same recipe for all."""
        name, rate = self.methods[label], self.protocol.peaks[0] if peak is None else peak
        recipe = {"rounds": self.protocol.rounds, "lr": rate, "schedule": {"kind": "one-cycle"}}
        own: dict[str, Any] = {} if name == label else {"use": name}
        if issubclass(find(name), Central):
            own["federated"] = True
        return own | {"unlearning": recipe}

    # --- results --------------------------------------------------------------------------------------------------

    def finish(self, label: str) -> BenchResult | None:
        """Write the result of a method, if all of its scenarios are there."""
        cards = {f"{one}, {request}": self.card(one, request, label) for one, request in self.scenarios}
        if any(card is None for card in cards.values()):
            return None
        kind, file = find(self.methods[label]), self.folder / f"{label}.json"
        about = storage.read_json(self.folder / "work" / "bench.json", "benchmark")
        raw = {
            **{name: about[name] for name in ("bench", "suite", "protocol", "models", "wanted", "hardware", "commit")},
            "method": label,
            "title": kind.title,
            "cite": kind.cite,
            "needs": sorted(kind.needs),
            "seeds": list(range(self.models)),
            "versions": dict(versions()),
            "command": self.command,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "scenarios": {name: card.to_json() for name, card in cards.items() if card is not None},
        }
        if file.exists() and read_result(file).to_json()["scenarios"] == raw["scenarios"]:
            return read_result(file)
        storage.write_json(file, raw)
        return read_result(file)


def edition(name: str) -> str:
    """Which edition of a method it is: the SHA-256 of a file, the revision of one of ours."""
    kind = find(name)
    if name.endswith(".py"):
        return hashlib.sha256(storage.content(Path(name))).hexdigest()
    return "; ".join(f"{part} {number}" for part, number in revisions.of([kind.name]).items())


@process_as_before()
def bench(work: Benchmark, said: Said = quiet, jobs: Workers | None = 1) -> list[BenchResult]:
    """Do what is missing of a benchmark, and give the results of its methods."""
    plugins.permit([("METHOD", name) for name in work.methods.values() if plugins.looks_like_code(name)])
    first = simulated(work.config(*work.scenarios[0]), 0)
    for label in work.methods:
        first.config.method(label).check(first.template.module)
    _begin(work, hardware(first.device, first.threads))
    count = at_once(first, len(work.scenarios) * len(work.methods), jobs)
    for cells in _stages(work, apart=count != 1):
        grid.run(cells, at_once(first, len(cells), jobs) if cells else 1, work.folder / "work", said)
    return [result for label in work.methods if (result := work.finish(label)) is not None]


def _begin(work: Benchmark, where: str) -> None:
    """Say what a folder is of, or refuse one that is of something else."""
    protocol, file = work.protocol, work.folder / "work" / "bench.json"
    about = {"bench": protocol.bench, "suite": protocol.suite, "protocol": work.sha256, "models": work.models}
    if file.exists():
        there = storage.read_json(file, "benchmark")
        other = [f"{name} {there.get(name)}" for name, value in about.items() if there.get(name) != value]
        if other:
            raise UnfedError(f"{work.folder} holds another benchmark ({', '.join(other)}); choose another --out.")
        if there.get("hardware") != where:
            raise UnfedError(
                f"{work.folder} was begun on {there.get('hardware')} and this is {where}, so seconds could not be"
                " compared; choose another --out."
            )
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    commit = shown.stdout.strip() or "unknown: not in a git checkout"
    storage.write_json(file, about | {"wanted": protocol.models, "hardware": where, "commit": commit})


def _stages(work: Benchmark, apart: bool) -> Iterator[list[GridCell]]:
    """The cells of what is missing: one per federation, or smaller ones where processes share the work.

    The smaller ones are the models before, then Retrain in every scenario, then every method in every scenario.
    """
    places, others = work.scenarios, [label for label in work.methods if label != RETRAIN]
    missing = {(*place, label) for place in places for label in work.methods if work.card(*place, label) is None}
    open_ = [one for one in work.protocol.federations if any(one == place[0] for place in missing)]
    if not apart:
        yield [GridCell(f"bench {one}", _work, (work, one, None, tuple(work.methods))) for one in open_]
        return
    yield [GridCell(f"bench {one}", _work, (work, one, None, ())) for one in open_]
    for labels in ([RETRAIN], others):
        wanted = [(one, request, label) for label in labels for one, request in places]
        yield [
            GridCell(" ".join(("bench", *cell)), _work, (work, *cell[:2], cell[2:]))
            for cell in wanted
            if cell in missing
        ]


def _work(said: Said, work: Benchmark, federation: str, request: str | None, labels: Sequence[str]) -> None:
    """Do what is missing of some methods in one federation, for one request or all.

    Without methods it makes the models before.
    """
    requests = list(work.protocol.requests) if request is None else [request]
    world = simulated(work.config(federation, requests[0]), 0)
    world.settle()
    made = {one: Scenario(work, (federation, one), world, said, labels) for one in requests}
    if not labels:
        made[requests[0]].train()
    # A history is not kept on disk: methods that need one come first, while it is there.
    for label in sorted(labels, key=lambda one: (one != RETRAIN, "history" not in find(work.methods[one]).needs)):
        for one, scenario in made.items():
            if work.card(federation, one, label) is None:
                file = work.card_file(federation, one, label)
                file.parent.mkdir(parents=True, exist_ok=True)
                storage.write_json(file, scenario.measured(label))
        work.finish(label)


# --- one scenario -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class JudgedModel:
    """One model at the round at which it is judged."""

    params: Params
    round: int
    validation: float
    cost: Mapping[str, Any]
    seconds: float
    reached: bool


class BenchAnswers:
    """What the models say about the rows, by kind: in memory, Retrain's also in a file."""

    def __init__(self, labels: Mapping[str, NDArray[Any]]) -> None:
        self._labels, self.kinds = labels, dict[str, dict[str, NDArray[Any]]]()

    def logits(self, kind: str, group: str) -> NDArray[Any]:
        return self.kinds[kind][group]

    def labels(self, group: str) -> NDArray[Any]:
        return self._labels[group]


class UtilityLooks:
    """Keeps each model as it was when it reached its goal, or else at the last look."""

    def __init__(
        self, scenario: Scenario, cohort: Cohort, seeds: Sequence[int], rounds: int, on_way: Any = None
    ) -> None:
        self._scenario, self._cohort, self._seeds, self._rounds, self._on_way = scenario, cohort, seeds, rounds, on_way
        self._since, self._spent = time.monotonic(), 0.0
        self.found: dict[int, JudgedModel] = {}

    def __call__(self, round: int, states: list[State]) -> bool:
        """Whether all have reached their goals; Retrain, whose way is kept, goes on to its end."""
        self._spent += time.monotonic() - self._since
        begin, last = -(-self._rounds // 5), round >= self._rounds or all(state.done for state in states)
        if last or (round >= begin and (round - begin) % self._scenario.protocol.look == 0):
            for i, state in enumerate(states):
                if state.model and not (i in self.found and self.found[i].reached):
                    self._look(i, state, len(states))
        if self._on_way is not None:
            self._on_way(round, states)
        self._since = time.monotonic()
        return self._on_way is None and len(self.found) == len(states) and all(j.reached for j in self.found.values())

    def whole(self, models: Sequence[Params]) -> list[JudgedModel]:
        """Every model as it is judged; one that was made without a round is looked at now."""
        self._spent += 0.0 if self.found else time.monotonic() - self._since
        for i, params in enumerate(models):
            if i not in self.found:
                self._look(i, State(params), len(models))
        return [self.found[i] for i in range(len(models))]

    def _look(self, i: int, state: State, together: int) -> None:
        value = self._scenario.validation(state.params)
        cost = self._cohort.servers[i].ledger.to_json()
        reached = value >= self._scenario.goals[self._seeds[i]] - 1e-9
        self.found[i] = JudgedModel(state.params, state.round, value, cost, self._spent / together, reached)


class Scenario:
    """One request in one federation: its θ*, its Retrains, and everything a method is measured by there."""

    def __init__(
        self, work: Benchmark, place: tuple[str, str], world: World, said: Said, labels: Sequence[str] = ()
    ) -> None:
        self.work, self.protocol, self.place, self.said, self.labels = work, work.protocol, place, said, labels
        self.world = replace(world, config=work.config(*place))
        (self.request,) = self.world.config.requests()
        self.folder = work.folder / "work" / place[0]
        self.seeds = tuple(range(work.models))
        self.cohort = Cohort(self.world, (*self.seeds, work.models), self.folder)
        self._scorer = self.world.evaluator([self.request])

    def validation(self, params: Params) -> float:
        value = self._scorer.validation(params)
        if not is_measured(value):
            raise UnfedError(f"The protocol matches validation accuracy, and it is {value}; set partition.validation.")
        return float(value)

    @cached_property
    def _theta(self) -> dict[int, Params]:
        """θ* of every seed, the extra one too, with the histories that any of the methods needs."""
        labels = [one for one in self.labels if self.work.card(*self.place, one) is None and not self._refused(one)]
        methods = {label: self.world.config.method(label) for label in labels}
        recorded = {label: method for label, method in methods.items() if "history" in method.needs}
        return dict(zip(self.cohort.seeds, self.cohort.trained(recorded, self._say), strict=True))

    def train(self) -> None:
        """Make the models before, if they are not there."""
        _ = self._theta

    @cached_property
    def goals(self) -> dict[int, float]:
        """The validation accuracy that each seed's models are to reach."""
        return {seed: self.validation(params) - self.protocol.within for seed, params in self._theta.items()}

    def _refused(self, label: str) -> str:
        """Why a method cannot serve this request; empty if it can."""
        try:
            admission.welcome(self.world.config, label, self.request, ())
        except UnfedError as error:
            return str(error)
        return ""

    def _say(self, kind: str, round: int, rounds: int) -> None:
        self.said(f"{' '.join(self.place)}: {kind}", round, rounds)

    # --- runs -----------------------------------------------------------------------------------------------------

    def _run(self, label: str, peak: float, seeds: Sequence[int], on_way: Any = None) -> list[JudgedModel]:
        """A method's models of some seeds at this peak rate, each as it is judged."""
        config = self.work.config(*self.place, {label: peak})
        self.train()  # before models are taken from its θ*
        with tempfile.TemporaryDirectory() as folder:
            part = self.cohort.part(replace(self.world, config=config), seeds, Path(folder))
            looks = UtilityLooks(self, part, seeds, rounds_of(config, label, config.method(label)), on_way)
            return looks.whole(part.unlearned(label, self._say, looks))

    def _tuned(self, label: str) -> tuple[float, list[dict[str, Any]]]:
        """The highest peak that reaches the goal on the extra seed, else the best on validation rows."""
        trials: list[dict[str, Any]] = []
        for peak in sorted(self.protocol.peaks, reverse=True):
            try:
                (one,) = self._run(label, peak, [self.work.models])
            except UnfedError as error:  # the model has diverged
                trials.append({"peak": peak, "round": None, "validation": str(error)})
                continue
            trials.append({"peak": peak, "round": one.round if one.reached else None, "validation": one.validation})
            if one.reached:
                return peak, trials
        usable = [trial for trial in trials if is_measured(trial["validation"])]
        if not usable:
            raise UnfedError(f"No peak rate left a usable model: {trials[0]['validation']}")
        return max(usable, key=lambda trial: trial["validation"])["peak"], trials

    # --- what is measured -----------------------------------------------------------------------------------------

    def measured(self, label: str) -> dict[str, Any]:
        """The scorecard of one method here, or why there is none."""
        said = {"edition": edition(self.work.methods[label])}
        if refused := self._refused(label):
            return said | {"reason": refused}
        try:
            peak, trials = self._tuned(label)
            early: dict[str, dict[str, NDArray[Any]]] = {}
            models = self._run(label, peak, self.seeds, self._keeping(early) if label == RETRAIN else None)
        except UnfedError as error:
            if label == RETRAIN:
                raise
            return said | {"reason": str(error)}
        own = self.logits([one.params for one in models])
        if label == RETRAIN:
            self._keep({RETRAIN: own, **early})
        method = self.world.config.method(label).for_requests((self.request,))
        numbers = [self._scorer(one.params).numbers for one in models]
        each = {name: [number[name] for number in numbers] for name in ("test", "forget", "backdoor")}
        each |= {"validation": [one.validation for one in models], "round": [one.round for one in models]}
        found = said | {
            "peak": peak,
            "trials": trials,
            "reached": sum(one.reached for one in models),
            "before": self._before,
            "accuracy": {name: mean(values) for name, values in each.items() if name != "round"},
            "each": each,
            "lasts": self._lasting(label, method, models),
            "cost": _costs(models),
        }
        return found | self._judged(label, method.title, own)

    @cached_property
    def _before(self) -> dict[str, float | str]:
        numbers = [self._scorer(self._theta[seed]).numbers for seed in self.seeds]
        return {name: mean([one[name] for one in numbers]) for name in ("validation", "test", "forget", "backdoor")}

    def _keeping(self, early: dict[str, dict[str, NDArray[Any]]]) -> Any:
        """Retrain's answers on its way: methods are compared with Retrains that stand where they do."""
        config = self.world.config
        rounds = rounds_of(config, RETRAIN, config.method(RETRAIN))
        kept = {rounds * part // 16 for part in EARLIER} | {rounds}

        def on_way(round: int, states: list[State]) -> None:
            if round in kept:
                early[f"{RETRAIN}@{round}"] = self.logits([state.params for state in states])

        return on_way

    @cached_property
    def _rows(self) -> RowGroups:
        groups, seed = RowGroups.of(self.world, self.request), self.world.seeds.evaluation
        views = {group: groups.views[group].some(self.protocol.rows, seed) for group in GROUPS}
        return RowGroups(views, {})

    def logits(self, models: Sequence[Params]) -> dict[str, NDArray[Any]]:
        """[models, rows, classes] of every group."""
        said = [self._rows.logits(self.world, params) for params in models]
        return {group: torch.stack([one[group] for one in said]).numpy() for group in GROUPS}

    # --- remembers, unfinished ------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.folder / self.place[1] / "answers.safetensors"

    def _keep(self, kinds: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        tensors = {f"{kind}/{group}": torch.from_numpy(own[group]) for kind, own in kinds.items() for group in GROUPS}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        storage.save(self._file, tensors, {"protocol": self.work.sha256})

    @cached_property
    def _retrained(self) -> dict[str, dict[str, NDArray[Any]]]:
        found: dict[str, dict[str, NDArray[Any]]] = {}
        for name, tensor in storage.load(self._file, "answers of Retrain")[0].items():
            kind, _, group = name.rpartition("/")
            found.setdefault(kind, {})[group] = tensor.numpy()
        return found

    def _judged(self, label: str, title: str, own: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """The two questions; of Retrain, Retrain against Retrain."""
        views = self._rows.views
        labels = {g: v.source.labels[v.rows.to(v.source.labels.device)].cpu().numpy() for g, v in views.items()}
        answers = BenchAnswers(labels)
        answers.kinds |= self._retrained
        rounds = [int(kind.partition("@")[2]) for kind in self._retrained if "@" in kind]
        judge = Judge(answers, rounds=sorted(rounds))
        if label == RETRAIN:
            found = judge.own_standing()
            words = "Retrain against Retrain, by quarters of its models."
            verdict = {key: {"kind": "reference", "sentence": words} for key in ("remembers", "unfinished")}
        else:
            answers.kinds[label] = own
            found = judge.answered(label, title)
            verdict = found["verdict"]
        measured = {"remembers": found["standing"], "unfinished": {"test": found["held_out"]["test"]}}
        return {
            question: {"kind": verdict[question]["kind"], "sentence": verdict[question]["sentence"], "measured": tests}
            for question, tests in measured.items()
        }

    # --- lasts ----------------------------------------------------------------------------------------------------

    @cached_property
    def _scene(self) -> Scene:
        scene, rows, poison = scene_of(self.world, [self.request]), self.protocol.rows, self.world.config.poison
        planted, test = scene.backdoor, scene.test
        if poison is None or poison.client not in self.request.clients:  # who planted it stays, and so does it
            planted = None
        return replace(
            scene,
            forget=scene.forget.some(rows, scene.seed),
            test=None if test is None else test.some(rows, scene.seed),
            backdoor=None if planted is None else planted.some(rows, scene.seed),
        )

    def _lasting(self, label: str, method: Method, models: Sequence[JudgedModel]) -> dict[str, Any]:
        """What probes bring back, beside Retrain's; of Retrain, one half of its models beside the other."""
        known = Knowledge(method.title, method.perturbed(self.world.template.module))
        each = [
            probes(self._scene, one.params, self._theta[seed], known, self.protocol.probe_rate)
            for seed, one in zip(self.seeds[: self.protocol.probed], models, strict=False)
        ]
        names = [name for name in each[0] if all(is_measured(one[name]) for one in each)]
        own = {name: [float(one[name]) for one in each] for name in names}
        if label == RETRAIN:
            half = len(each) // 2
            sides = {name: (values[:half], values[half:]) for name, values in own.items()}
        else:
            card = self.work.card(*self.place, RETRAIN)
            assert isinstance(card, Scorecard)
            theirs = card.lasts.probes
            sides = {name: (values, list(theirs.get(name, theirs[AS_IT_IS]))) for name, values in own.items()}
        return worst(sides) | {"probes": own}


AS_IT_IS = "as it is"


def probes(scene: Scene, params: Params, before: Params, known: Knowledge, rate: float) -> dict[str, Any]:
    """How much of what left is back, in percent: as the model is, and after each attack that applies.

    Where the one who planted a backdoor leaves it is the backdoor's success, where a class leaves the share of it that
    is back, else accuracy on the forgotten rows.
    """
    what = "backdoor" if scene.backdoor is not None else "forget"
    within = inside(scene, params, before)
    stitched = within["stitch"].get("class_back" if scene.classes else what, within["stitch"].get("reason"))
    found: dict[str, Any] = {AS_IT_IS: scene.quick(params)[what], "stitched": stitched}
    if known.inverse is not None:
        found["turned back"] = scene.quick(flipped(params, known.choices, known.inverse))[what]
    if scene.backdoor is not None:
        found["taught again"] = triggers(scene, params, rate).get("known")
        return found
    if scene.classes:
        found |= {"lifted": lift(scene, params)["back_1"], "read from 20 rows": within["probe"].get("reads_20")}
    again = relearn(scene, params, scene.forgotten(before), rate / 10, counts=(10,), rounds=3)
    return found | {"relearnt": again["area"]}


def worst(sides: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Any]:
    """Of the probes, by name (a method's, Retrain's), the one that brings back most above Retrain."""
    found = {name: over_models(np.array(own), np.array(theirs)) for name, (own, theirs) in sides.items()}
    name = max(found, key=lambda one: found[one].value)
    return {"worst": name, "difference": found[name].to_json()}


def mean(values: Sequence[Any]) -> float | str:
    """The mean of what was measured, or why it was not."""
    missing = [value for value in values if not is_measured(value)]
    return str(missing[0]) if missing else float(np.mean(values))


def _costs(models: Sequence[JudgedModel]) -> dict[str, Any]:
    """Means over models until each is judged."""
    return {
        "rounds": float(np.mean([one.round for one in models])),
        **{name: mean([one.cost[name] for one in models]) for name in ("comm_bytes", "flops")},
        "seconds": float(np.mean([one.seconds for one in models])),
    }


def all_methods() -> list[str]:
    """Every method of this package, Retrain first."""
    return [RETRAIN, *(name for name in METHODS if name != RETRAIN)]
