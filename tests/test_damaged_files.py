"""Nothing read is believed: whatever stands in a file, a command does its work or says in one sentence which file.

Every file of a run, of a population and of evidence is replaced by other JSON, and by itself with one value that is
missing, of another type, huge, negative or not a number; then whatever reads it is called.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commands import called
from test_judge import QUICK, made_up
from unfed import storage
from unfed.claims import making, of_run
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.population import store
from unfed.remote import runs as remote_runs
from unfed.remote.nodes import Census
from unfed.report import how_sure, study_section
from unfed.runs import consistency, deny, studies
from unfed.runs.config import Config
from unfed.runs.folder import RunFolder
from unfed.runs.handed_out import hand_out
from unfed.runs.judged import of_run as of_judged
from unfed.runs.judging import judged, put_into
from unfed.runs.run import Run

TINY: dict[str, Any] = {
    "name": "tiny",
    "partition": {"clients": 3},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256},
    "unlearning": {"rounds": 1},
    "request": {"id": "r1", "clients": ["0"]},
    "methods": {"run": ["retrain", "ft"]},
    "evaluation": {"attack": False, "samples": True, "recovered_within": 100},
    "gate": {"max_drop": 100},
    "engine": {"name": "sequential"},
    "device": "cpu",
}
ADVICE: dict[str, Any] = {
    "layer": "conv1",
    "perturbation": "negate",
    "sure": True,
    "why": ["It is first."],
    "doubts": [],
    "ranked": [],
}
LINE = {
    "round": 1,
    "train": [1],
    "evaluate": [1],
    "refused": ["one"],
    "arrays": "ab",
    "metrics": {"server": {"a": 0.5}},
}
SAID = {"asked": [1], "metrics": {"acc": 0.5}}
EVIDENCE: dict[str, Any] = {
    "schema": 1,
    "unfed": "1.0.0",
    "created": "2026-11-16T08:00:00Z",
    "strategy": "FedAvg",
    "leavers": [{"who": "client 0", "nodes": [7]}],
    "forgotten": ["0"],
    "unnamed": [],
    "arrays": {"before": "aa", "perturbed": "bb", "changed": ["w"], "after": "cc"},
    "recover": None,
    "until_forgotten": None,
    "before": {"evaluate": SAID, "server": {"asked": [], "metrics": None}},
    "rounds": [{**LINE, "leaver": [{"node": 7, "metrics": {"acc": 0.5}}]}],
    "abandoned": [LINE],
    "finished": "all rounds",
    "leaver": {"before": [{"node": 7, "metrics": {"acc": 0.5}}], "after": [{"node": 7, "why": "it is gone"}]},
    "undo": {"asked": [1], "evaluate": {"acc": 0.5}, "server": None, "leaver": [{"node": 7, "metrics": {"acc": 0.5}}]},
    "unmeasured": {"Probes": "no memory"},
    "probes": {"measured": {"unlearned": {"flip": {"forget": 3.0}}, "before": {"flip": {"reason": "not tried"}}}},
}
TRAFFIC = {"runs": [{"run-id": "7", "network-traffic": {"inbound-bytes": 5, "outbound-bytes": 6}}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that a run can hold, a population, evidence of a foreign app, tried claims."""
    home = tmp_path_factory.mktemp("whole")
    config = Config.parse(TINY)
    run = Run.create(config, home / "run")
    run.execute()
    run.forget(Request(id="more", clients=("1",)), "ft", "1")
    run = Run.open(home / "run")
    of_run.try_on(run, [claim for claim in of_run.CLAIMS if claim.id == "distance"])
    models = studies.models_of(run.folder, {"in force": run.current_job(0)})
    studies.keep(studies.advice_file(run.folder, 0), {"seed": 0, "models": models, "advice": ADVICE})
    population = made_up(config, home / "population")
    put_into(run, population, judged(population, QUICK))
    held = {name: Census(10, 10, 0, 0, (1, 8, 8), 10).to_json() for name in ("0", "1", "2")}
    storage.write_json(home / "run/clients.json", {"order": ["0", "1", "2"], "held": held})
    storage.write_json(home / "run/flower.json", {"state": "finished", "runs": [{"run": "7", "state": "finished"}]})
    hand_out(run.folder, "report", home / "page.html", b"a page")
    grave = consistency.Tombstone("samples/0/more/ft/000009.safetensors", "00", "more", "2026-11-16")
    consistency.bury(run.folder.path, [grave])
    storage.write_json(home / "foreign/unlearning.json", EVIDENCE)
    storage.write_json(home / "ls.json", TRAFFIC)
    making.make([making.CLAIMS["time-flow"]], home / "theory", lambda text: None, quick=True)
    return home


# --- how a file is damaged --------------------------------------------------------------------------------------------

OTHERS = ("[]", "3", "null", "{}", '"x"')
"""JSON that is no file of ours."""
GONE = object()
WRONG: dict[str, Any] = {
    "gone": GONE,
    "null": None,
    "a list": [],
    "a table": {},
    "a text": "x",
    "negative": -1,
    "huge": 10**400,
    "no number": float("nan"),
}


def places(raw: Any, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a file: every field, and of a list the first."""
    inside: list[tuple[str | int, Any]] = []
    if isinstance(raw, dict):
        inside = list(raw.items())
    elif isinstance(raw, list) and raw:
        inside = [(0, raw[0])]
    for name, own in inside if depth else ():
        yield (name,)
        yield from ((name, *rest) for rest in places(own, depth - 1))


def changed(raw: Any, place: tuple[str | int, ...], value: Any) -> Any:
    found = json.loads(json.dumps(raw))
    here = found
    for name in place[:-1]:
        here = here[name]
    if value is GONE:
        del here[place[-1]]
    else:
        here[place[-1]] = value
    return found


def damages(text: str, lines: bool, depth: int | None) -> Iterator[tuple[str, str]]:
    """What a file may say instead, each with its name; of a file of lines the first is damaged.

    Without a depth every field is wrong in one way, each in another.
    """
    first, _, rest = text.partition("\n") if lines else (text, "", "")
    raw = json.loads(first)
    for other in OTHERS:
        yield other, f"{other}\n{rest}"
    for number, place in enumerate(places(raw, depth or 1)):
        for way in WRONG if depth else [list(WRONG)[number % len(WRONG)]]:
            damaged = json.dumps(changed(raw, place, WRONG[way]))
            yield f"{'.'.join(map(str, place))} {way}", f"{damaged}\n{rest}"


# --- who reads it -----------------------------------------------------------------------------------------------------

Reader = str | Callable[[Path], object]
"""A command, or a function of the folder in which everything lies."""


def denied(home: Path) -> object:
    return deny.imported(Config.parse({"deny": {"run": str(home / "foreign")}}))


def known_clients(home: Path) -> object:
    return remote_runs._past(RunFolder(home / "run"))


def loaded(home: Path) -> object:
    population = store.load(home / "population")
    return [population.logits(kind, "forget") for kind in population.about.kinds], population.labels("forget")


def marked(home: Path) -> object:
    before = (home / "run/flower.json").read_text()
    try:
        return pytest.importorskip("unfed.flower.server").mark(home / "run", 8, "running")
    finally:
        (home / "run/flower.json").write_text(before)


def sure(home: Path) -> object:
    return [how_sure.view(one, "x") for one in of_judged(RunFolder(home / "run")).values()]


def studied(home: Path) -> object:
    return study_section.view(studies.of_run(RunFolder(home / "run")))


REPORT, LINEAGE = "report run --format md", "lineage run --affected 0"
CLAIMS = "theory --quick --only time-flow --out theory"
LOOKS = ("status run", "status run --json", REPORT, "check run", LINEAGE)


@dataclass(frozen=True)
class Kind:
    """A file, who reads it, and how deep its fields lie."""

    file: str
    readers: tuple[Reader, ...]
    depth: int = 3
    hint: bool = False
    """Whether it may say anything: nothing depends on it."""


KINDS = (
    Kind("run/run.json", LOOKS[:1], 2),
    Kind("run/trajectory.jsonl", LOOKS[:-1]),
    Kind("run/requests/0001-more.json", ("status run", REPORT, LINEAGE), 4),
    Kind("run/filed.jsonl", ("status run", LINEAGE)),
    Kind("run/handed-out.jsonl", (LINEAGE,)),
    Kind("run/tombstones.json", ("status run", LINEAGE), 4),
    Kind("run/progress.json", ("status run", "status run --json"), hint=True),
    Kind("run/advice/0.json", (studied, LINEAGE)),
    Kind("run/theory/0/r1.json", (studied, LINEAGE), 5),
    Kind("run/population/r1.json", (sure,), 5),
    Kind("run/clients.json", (known_clients, LINEAGE), 4),
    Kind("run/flower.json", (marked, "flower costs run --ls ls.json")),
    Kind("ls.json", ("flower costs run --ls ls.json",), 4),
    Kind("foreign/unlearning.json", ("report foreign", denied), 6),
    Kind("population/population.json", (loaded,)),
    Kind("theory/about.json", (CLAIMS,)),
    Kind("theory/time-flow.json", (CLAIMS,), 7),
)


@pytest.fixture
def home(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(whole, tmp_path / "home")
    monkeypatch.chdir(folder)
    return folder


Ask = Callable[[Reader], tuple[int, str]]


@pytest.fixture
def ask(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """How a reader ends: the exit code, and what was said of an error."""

    def asked(reader: Reader) -> tuple[int, str]:
        if isinstance(reader, str):
            code, _, said = called(reader.split(), monkeypatch, capsys)
            return code, said
        try:
            reader(home)
        except UnfedError as error:
            return 2, str(error)
        except Exception as error:
            return 1, f"{type(error).__name__}: {error}"
        return 0, ""

    return asked


def named(kind: Kind, said: str) -> bool:
    """Whether a sentence names the file, one beside it, or begins with the folder that it lies in."""
    file = Path(kind.file)
    begins = re.search(rf"(^|/|error: ){file.parts[0]} ", said) is not None
    return begins or kind.file in said or f"{file.parent}/" in said


def faults(kind: Kind, home: Path, ask: Ask, readers: Sequence[Reader], depth: int | None = None) -> list[str]:
    """What went wrong with any damage of a file."""
    file, found = home / kind.file, []
    text = file.read_text()
    for name, damaged in damages(text, kind.file.endswith(".jsonl"), depth):
        file.write_text(damaged)
        for reader in readers:
            code, said = ask(reader)
            who = reader if isinstance(reader, str) else reader.__name__
            if code not in (0, 2):
                found.append(f"{who}, {name}: {code}: {said}")
            elif code == 2 and not named(kind, said):
                found.append(f"{who}, {name} names no file: {said}")
            elif code == 0 and name in ("[]", "3", "null") and not kind.hint:
                found.append(f"{who} believes {name}")
    file.write_text(text)
    assert not any(ask(reader)[0] for reader in readers), "the whole file is read"
    return found


NAMES = [kind.file for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_whatever_stands_in_a_file_is_read_or_refused_in_a_sentence_that_names_it(
    kind: Kind, home: Path, ask: Ask
) -> None:
    assert faults(kind, home, ask, kind.readers[:1]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_so_is_whatever_stands_anywhere_in_it(kind: Kind, home: Path, ask: Ask) -> None:
    assert faults(kind, home, ask, kind.readers, kind.depth) == []
