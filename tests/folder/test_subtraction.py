"""The attack by subtraction: who has every file of a purged run learns nothing of fewer than ten purged rows.

The attacker knows the models and the rows, and asks of each number in each file whether it is a mean over some of them.
Numbers of one model that are means over known sets can be combined: nothing that comes out may be about 1 to 9 purged
rows alone. Sets are unions of atoms, which no request parts, so a combination is a vector over a handful of atoms.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conftest import SMALL
from unfed import storage
from unfed.api import write_report
from unfed.client.scores import Scores, score
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Refused
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.folder.purge import purge
from unfed.folder.subtraction import AMONG, PROBED, _without
from unfed.measures.trajectory import job_of
from unfed.measures.undo.flip import POINTS
from unfed.measures.undo.traces import COUNTS
from unfed.model.params import digests, fingerprint
from unfed.requests.entry import Job
from unfed.requests.options import RequestOptions
from unfed.runs.probe import probe
from unfed.runs.progress import Watch
from unfed.runs.record import RunRecord
from unfed.runs.run import Run
from unfed.trust.findings import findings
from unfed.values import is_measured
from worlds import LITTLE, few_triggers  # noqa: F401 (pytest finds the fixture here)

SETS = ["training.rounds=2", "unlearning.rounds=1", "engine.name=sequential", "gate.max_drop=100"]
SETS += ["evaluation.attack=false", "training.lr=0.1", "data.train_size=600", "data.test_size=200"]
TOGETHER = RequestOptions(together=True)


def rows(name: str, client: str, *places: int) -> Request:
    return Request(name, samples=tuple((client, place) for place in places))


ONE, SEVEN, TWELVE = rows("one", "2", 40), rows("seven", "2", *range(7)), rows("twelve", "0", *range(20, 32))
ANOTHER, LAST = Request("another", clients=("1",)), Request("last", clients=("3",))


@dataclass
class Attacker(Watch):
    """Keeps every model that a run went through, and knows how each reads every row."""

    run: Run
    models: dict[str, Scores] = field(default_factory=dict)
    at: dict[tuple[Path, int], str] = field(default_factory=dict)

    def reached(self, job: Job, state: Any, asked: Collection[str]) -> None:
        name = fingerprint(digests(state.params))
        world = self.run.world(0)
        everything = torch.arange(len(world.dataset.train.labels))
        self.models.setdefault(name, score(world.template, state.params, world.dataset.train, everything))
        self.at[job.path, state.round] = name

    # --- which sets of rows there are -----------------------------------------------------------------------------

    def look(self) -> None:
        """Part all training rows by which requests name them, and find the purged ones."""
        self.entries = {e.request.id: e for e in self.run.folder.book().entries}
        asked = [*self.run.config.requests(), *(e.request for e in self.entries.values())]
        self.named = {one.id: self.marked(one) for one in asked}
        for entry in (e for e in self.entries.values() if e.shared):
            self.named[str(entry.shared)] = (
                self.named.get(str(entry.shared), frozenset()) | self.named[entry.request.id]
            )
        self.atoms = [frozenset(int(row) for c in self.run.world(0).clients for row in c.rows[c.train])]
        for one in self.named.values():
            self.atoms = [part for old in self.atoms for part in (old & one, old - one) if part]
        self.purged = frozenset[int]()
        for entry in (e for e in self.entries.values() if e.purged):
            mates = [e.request.id for e in self.entries.values() if e.number in entry.together and e is not entry]
            self.purged |= self.took([*entry.earlier, *mates, entry.request.id])

    def marked(self, request: Request, part: str = "train") -> frozenset[int]:
        clients = self.run.world(0).scoped([request]).values()
        places = [(c, getattr(c, part)) for c in clients]
        return frozenset(int(row) for c, own in places for row in c.rows[own[c.forget[own]]])

    def took(self, names: Sequence[str]) -> frozenset[int]:
        """What the last of some requests, or of some that shared a job, took out itself."""
        return self.named[names[-1]] - frozenset().union(*(self.named[name] for name in names[:-1]))

    def model(self, job: Path, round: int) -> str:
        """The model of a round; that of a shared job was handed over to its requests."""
        if (job, round) not in self.at:
            job = Path(job.parts[0], str(self.entries[job.parts[1]].shared), job.name)
        return self.at[job, round]

    # --- what is published ----------------------------------------------------------------------------------------

    def isolates(self, known: Sequence[frozenset[int]]) -> list[int]:
        """How many purged rows, fewer than ten, some combination of means over known sets is about."""
        span = np.array([[float(atom <= one) for atom in self.atoms] for one in known])
        return self.isolated(span.reshape(-1, len(self.atoms)), self.atoms, self.purged)

    @staticmethod
    def isolated(span: NDArray[Any], atoms: Sequence[frozenset[int]], gone: frozenset[int]) -> list[int]:
        """The same for numbers that weigh every atom as a row of `span` says."""
        few = [place for place, atom in enumerate(atoms) if atom <= gone and len(atom) < 10]
        found = []
        for count in range(1, len(few) + 1):
            for chosen in itertools.combinations(few, count):
                size = sum(len(atoms[place]) for place in chosen)
                unit = np.eye(len(atoms))[list(chosen)]
                both, alone = np.linalg.matrix_rank(np.vstack([span, unit])), np.linalg.matrix_rank(span)
                if size < 10 and both < alone + count:
                    found.append(size)
        return found

    def by_loss(self) -> dict[str, list[int]]:
        """Every number in every file that is a mean loss of some model over some atoms."""
        self.look()
        atoms, told = self.atoms, np.array(sorted(set(numbers(self.run.folder.path))))
        unions = np.array([*itertools.product((0, 1), repeat=len(atoms))][1:])
        sizes, leaks = unions @ np.array([len(atom) for atom in atoms]), {}
        for name, scores in self.models.items():
            means = unions @ np.array([float(scores.loss[sorted(atom)].double().sum()) for atom in atoms]) / sizes
            places = np.searchsorted(told, means).clip(1, len(told) - 1)
            near = np.minimum(np.abs(told[places] - means), np.abs(told[places - 1] - means)) < 1e-9
            known = [[atom for atom, one in zip(atoms, chosen, strict=True) if one] for chosen in unions[near]]
            if found := self.isolates([frozenset().union(*one) for one in known]):
                leaks[name] = found
        return leaks

    def by_share(self) -> dict[str, list[int]]:
        """Every share that a line, a request's file or a probe tells, over the rows that it is known to be of."""
        self.look()
        folder, gone, every = self.run.folder, self.purged, frozenset[int]().union(*self.atoms)
        known: dict[str, list[frozenset[int]]] = {name: [] for name in self.models}
        lines, entries = folder.lines(), self.entries
        last = {Job(*job_of(line)).path: line for line in lines}

        def note(model: str, share: Any, *sets: frozenset[int]) -> None:
            if is_measured(share):
                shares = [100 * float(self.models[model].correct[sorted(s)].double().mean()) for s in sets if s]
                places = [place for place, one in enumerate(shares) if abs(one - share) < 1e-6]
                known[model].append([s for s in sets if s][places[0]])

        for line in lines:
            job, names = Job(*job_of(line)), [*(line.get("earlier") or {}), *filter(None, [line["request"]])]
            took = {name: self.took(names[: place + 1]) for place, name in enumerate(names)}
            left = frozenset[int]().union(*took.values())
            few = frozenset[int]().union(*(one for one in took.values() if one <= gone and len(one) < 10))
            sets = (left, left - few, left - gone, *took.values())
            state = folder.saved(job)
            numbers = state.to_json() if state else {}
            now = numbers.get("start", 1) == line.get("start", 1)  # else it was begun anew at another model since
            base = Path((now and (numbers.get("base") or {}).get("model")) or "0/train")
            began = self.model(base, last[base]["round"])
            model = began if job.label == "before" else self.model(job.path, line["round"])
            note(model, line.get("retain"), every - left)
            note(model, line.get("forget"), *sets)
            for name, own in took.items():
                note(model, line.get("own") if name == line["request"] else line["earlier"][name], own)
                if line is last[job.path] and job.label != "before" and line["request"] in entries:
                    note(model, entries[line["request"]].again.get(name, {}).get("forget"), own)
            file = folder.path / "undo" / job.path.with_name(job.path.name + ".json")
            if file.exists() and line is last[job.path]:
                probed = storage.read_json(file, "undoing")["measured"]
                for who, its in (("unlearned", model), ("before", began)):
                    note(its, probed[who]["published"]["forget"], *sets)
                    note(its, probed[who]["published"]["retain"], every - left)
        return {name: found for name, sets in known.items() if (found := self.isolates(sets))}

    def by_validation(self) -> dict[str, list[int]]:
        """Every mean over clients of their accuracy on validation rows, in lines and in what gates read."""
        self.look()
        folder, clients = self.run.folder, self.run.world(0).clients
        atoms = [frozenset(int(row) for row in c.rows[c.val]) for c in clients]
        asked = {one.id: [one] for one in self.run.config.requests()}
        for entry in self.entries.values():
            for name in entry.names:
                asked.setdefault(name, []).append(entry.request)
        marks = {one.id: self.marked(one, "val") for own in asked.values() for one in own}
        for one in marks.values():
            atoms = [part for old in atoms for part in (old & one, old - one) if part]
        gone = frozenset[int]().union(*(marks[e.request.id] for e in self.entries.values() if e.purged))
        known: dict[str, list[list[float]]] = {}

        def note(model: str, value: Any, names: Sequence[str]) -> None:
            if is_measured(value):
                scoped = self.run.world(0).scoped([one for name in names for one in asked[name]]).values()
                staying = [
                    c.rows[c.view("val")].tolist() for c in scoped if len(c.view("retain")) and len(c.view("val"))
                ]
                weight = {row: 1 / len(rows) / len(staying) for rows in staying for row in rows}
                right = self.models[model].correct
                assert abs(100 * sum(w * float(right[row]) for row, w in weight.items()) - value) < 1e-6, "as measured"
                known.setdefault(model, []).append([weight.get(min(atom), 0.0) for atom in atoms])

        lines = folder.lines()
        last = {Job(*job_of(line)).path: line for line in lines}
        for line in lines:
            job = Job(*job_of(line))
            state = folder.saved(job)
            numbers = state.to_json() if state else {}
            names = [*(line.get("earlier") or {}), *filter(None, [line["request"]])]
            now = numbers.get("start", 1) == line.get("start", 1)  # else it was begun again at another model since
            base = Path((now and (numbers.get("base") or {}).get("model")) or "0/train")
            began = self.model(base, last[base]["round"])
            note(began if job.label == "before" else self.model(job.path, line["round"]), line.get("validation"), names)
            if line["request"] is not None:
                note(began, line.get("validation_before"), names)
            if line["request"] is not None and line is last[job.path] and job.label != "before":
                of, notes = self.entries.get(line["request"]), numbers.get("diary") or {"best": -1.0}
                checks = (of.gate or {}).get("checks", []) if of and of.method == job.label else []
                drop, after = (
                    next((one["value"] for one in checks if one["name"] == "utility"), None),
                    line["validation"],
                )
                note(began, drop + after if is_measured(drop) and is_measured(after) else None, names)
                if notes["best"] >= 0:
                    note(self.model(job.path, notes["best_round"]), notes["best"], names)
        return {name: found for name, sets in known.items() if (found := self.isolated(np.array(sets), atoms, gone))}


def numbers(folder: Path) -> Iterator[float]:
    """Every number in every file: in figures, and in what tensors' files say of themselves."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        tensors = file.suffix == ".safetensors"
        text = json.dumps(storage.numbers_of(file)).encode() if tensors else file.read_bytes()
        yield from (float(found) for found in re.findall(rb"-?\d+\.\d+(?:e-?\d+)?", text))


def begun(folder: Path, **config: Any) -> tuple[Run, Attacker]:
    own = {"request": [], "methods": {"run": []}} | config
    run = Run.create(Config.parse({**SMALL, **own}, SETS), folder)
    attacker = Attacker(run)
    run.execute(attacker)
    return run, attacker


def harmless(attacker: Attacker, *purged: Request, pages: bool = False) -> None:
    """Nothing follows from all that is published after each of these purges, nor from the next request.

    With `pages` the report and the bundles are written too; each is made from the other files alone.
    """
    where = attacker.run.folder.path
    for request in purged:
        purge(Run.open(where), request.id)
    assert attacker.by_loss() == {} and attacker.by_share() == {} and attacker.by_validation() == {}
    attacker.run.forget(Request("after", classes=(7,)), "ft", until=1, watch=attacker)
    record = RunRecord(RunFolder(where))
    for entry in (e for e in record.folder.book().entries if pages and e.state == "fulfilled"):
        (where / f"bundle-{entry.request.id}.json").write_text(json.dumps(findings(record, entry)))
    if pages:
        write_report(Run.open(where))
    assert attacker.by_loss() == {} and attacker.by_share() == {} and attacker.by_validation() == {}
    assert check(record.folder).findings == []


def revealing(attacker: Attacker, *purged: Request, losses: bool = True) -> None:
    """There was something to find: nothing changes but that requests are called purged."""
    with pytest.MonkeyPatch.context() as patch:
        real, names = RunFolder.filed, {one.id for one in purged}
        patch.setattr(
            RunFolder, "filed", lambda f: tuple(e.buried("x") if e.request.id in names else e for e in real(f))
        )
        assert bool(attacker.by_loss()) is losses and attacker.by_share()


def test_nothing_of_1_7_or_8_purged_rows_follows_from_what_is_published(tmp_path: Path) -> None:
    run, attacker = begun(tmp_path / "run")
    for request in (ANOTHER, ONE, SEVEN, TWELVE, LAST):
        run.forget(request, "not" if request is ONE else "ft", until=1, watch=attacker)
    probe(run, request="last", effort=LITTLE)
    revealing(attacker, ONE, SEVEN, TWELVE)
    harmless(attacker, SEVEN, ONE, pages=True)
    purge(Run.open(run.folder.path), "twelve")
    write_report(Run.open(run.folder.path))
    for signed in run.folder.path.glob("bundle-*"):  # those signed earlier stay as they are
        signed.unlink()
    assert attacker.by_loss() == {} and attacker.by_share() == {} and attacker.by_validation() == {}


def test_nor_where_few_rows_left_together_with_others(tmp_path: Path) -> None:
    run, attacker = begun(tmp_path / "run")
    run.ask(SEVEN, "ft", 1, how=TOGETHER)
    run.forget(rows("many", "3", *range(40)), "ft", 1, watch=attacker, how=TOGETHER)
    assert {e.shared for e in run.folder.book().entries} == {"together-1"}
    probe(run, request="many", effort=LITTLE)
    revealing(attacker, SEVEN, losses=False)  # each is told the loss over both alone
    harmless(attacker, SEVEN)


def test_nor_where_few_rows_were_out_before_they_were_served(tmp_path: Path) -> None:
    """A request that was denied is out for the next; asked again, it begins at another model."""
    run, attacker = begun(tmp_path / "run")
    with pytest.raises(Refused):
        run.forget(SEVEN, "not", until=1, watch=attacker, how=RequestOptions(max_drop=0.0))
    run.forget(LAST, "ft", until=1, watch=attacker)
    run.forget(SEVEN, "ft", until=1, watch=attacker, how=RequestOptions(max_drop=1000.0))
    revealing(attacker, SEVEN)
    harmless(attacker, SEVEN)


@pytest.mark.parametrize(
    "compared, served",
    [
        (range(7), range(12)),
        (range(12), range(19)),
        (range(15), range(8, 20)),
        (range(12), range(12)),
        (range(5), range(5)),
    ],
    ids=str,
)
def test_nor_by_a_comparison_that_parts_a_purged_request(tmp_path: Path, compared: range, served: range) -> None:
    """Twelve rows in a comparison and nineteen in a request differ by seven."""
    listed = tmp_path / "few.csv"
    listed.write_text("client,position\n" + "".join(f"2,{place}\n" for place in compared))
    asked = [{"id": "compared", "samples": str(listed)}]
    run, attacker = begun(tmp_path / "run", request=asked, methods={"run": ["ft"]})
    request = rows("served", "2", *served)
    run.forget(request, "ft", until=1, watch=attacker)
    harmless(attacker, request)
    before = next(line for line in run.folder.lines() if (line["request"], line["method"]) == ("served", "before"))
    assert is_measured(before["retain"]) is (compared == served and len(served) >= 10), "no more goes than must"


FEW_HELD = {"partition": {"clients": 4, "validation": 0.05}, "unlearning": {"rounds": 1, "lr": 1e-9}}
"""Seven or eight validation rows at each client, and 142 to train on; nothing becomes better than it began."""


@pytest.mark.parametrize("compared", [[], [{"id": "compared", "clients": ["1"]}]], ids=["served", "compared too"])
def test_nor_of_the_few_validation_rows_of_a_client(tmp_path: Path, compared: list[Any]) -> None:
    """Four clients' mean and that of the three who stay differ by the leaver's few rows."""
    run, attacker = begun(tmp_path / "run", request=compared, methods={"run": ["ft"] if compared else []}, **FEW_HELD)
    with pytest.raises(Refused, match="validation accuracy"):
        run.forget(ANOTHER, "not", until="recovered,1", watch=attacker, how=RequestOptions(within=0.0))
    run.forget(ANOTHER, "ft", until=1, watch=attacker)
    run.forget(LAST, "ft", until=1, watch=attacker)
    entry, other = run.folder.book().entries
    assert (
        entry.described is not None and 0 < entry.described["validation_rows"] < 10 < entry.described["forgotten_rows"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "filed", lambda f: (entry.buried("x"), other))
        assert attacker.by_validation(), "there was something to find"
    harmless(attacker, ANOTHER)
    left, after, _ = run.folder.book().entries
    utility, others = (next(c for c in (e.gate or {})["checks"] if c["name"] == "utility") for e in (left, after))
    assert (utility["value"], utility["verdict"]) == (AMONG, "passed") and is_measured(others["value"])
    assert "%" not in left.attempts[0]["why"], "nor in words"
    lines = [line for line in run.folder.lines() if line["request"] == "another" and line["round"] > 0]
    assert lines and all(is_measured(line["validation"]) and is_measured(line["retain"]) for line in lines)


def test_of_many_rows_no_number_goes(tmp_path: Path) -> None:
    """A client's 120 rows and its 30 for validation."""
    run, attacker = begun(tmp_path / "run")
    for request in (LAST, ANOTHER):
        run.forget(request, "ft", until=1, watch=attacker)
    lines, kept = run.folder.trajectory.read_bytes(), run.folder.book().entries[0]
    purge(Run.open(run.folder.path), "last")
    assert run.folder.trajectory.read_bytes() == lines and run.folder.book().entries[0].gate == kept.gate


def test_what_a_gate_read_of_few_rows_goes_too(tmp_path: Path) -> None:
    """Of two classes an accuracy is judged from five rows on."""
    run, _ = begun(tmp_path / "run")
    run.forget(SEVEN, "ft", until=1)
    entry = run.folder.book().entries[0]
    check: dict[str, Any] = {"name": "forgotten", "what": "", "value": 63.2, "bound": 50.0, "verdict": "failed"}
    check["before"] = 99.0
    gate: dict[str, Any] = {"checks": [{**check, "name": "utility"}, check], "passed": False}
    tried = ({"method": "not", "gate": gate, "why": "63.2"}, {"method": "not", "gate": None, "why": "no answer"})
    run.folder.put_request(replace(entry, gate=gate, attempts=tried))
    purge(Run.open(run.folder.path), "seven")
    left = RunFolder(run.folder.path).book().entries[0]
    assert left.gate is not None and left.gate["checks"][0] == gate["checks"][0]
    few = "not measured: its 7 rows were purged, 10 needed"
    assert left.gate["checks"][1] == {**check, "value": few, "before": few}
    assert left.attempts[0] == {"method": "not", "gate": left.gate, "why": few} and left.attempts[1] == tried[1]


def test_every_share_of_forgotten_rows_that_an_attack_names_can_be_hidden() -> None:
    """`back_N` is the share of a class that came back; what was lifted to bring it back was read from other rows."""
    lifted = {"on": "test", "classes": [3], "back_1": 40.0, "lifts_1": [0.5], "back_5": 60.0, "lifts_5": [1.5]}
    assert {f"back_{points}" for points in POINTS} | {f"reads_{count}" for count in COUNTS} <= PROBED
    assert _without({"lift": lifted}) == {"lift": {**lifted, "back_1": AMONG, "back_5": AMONG}}
