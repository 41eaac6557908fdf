"""Nothing read is believed: whatever stands in a file, a command does its work or says in one sentence which file.

Every file of a run, of its log, of a population and of evidence is replaced by other JSON, and by itself with one value
that is missing, of another type, huge, negative or not a number, in the header where it holds tensors; then by what is
no file of ours at all: a folder, a link, half of it, a pickle. Then whatever reads it is called.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paper_record as record
import pytest

from command_line import called
from test_judge import QUICK, made_up
from unfed import records, storage
from unfed.cli.evidence import log_faults
from unfed.config.config import Config
from unfed.data.scope import KEY_BYTES
from unfed.errors import UnfedError
from unfed.folder import study_results
from unfed.folder.carriers import hand_out
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.folder.layout import client_list
from unfed.folder.study_results import of_run as of_judged
from unfed.measures.population import store
from unfed.report import sections, undo
from unfed.requests import book as books
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.studies.judging import judged, put_into
from unfed.trust import bundle, findings, intake, logbook, request, signing
from unfed.trust.folder import TrustFolder
from unfed.trust.intake import Handling
from unfed.trust.request import Opening
from unfed.trust.signing import read_file

TINY: dict[str, Any] = {
    "name": "tiny",
    "partition": {"clients": 3},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 1, "batch": 256, "record": ["federaser"]},
    "unlearning": {"rounds": 1},
    "request": {"id": "r1", "clients": ["0"]},
    "methods": {"run": ["retrain", "ft"]},
    "evaluation": {"attack": False, "samples": True, "recovered_within": 100},
    "gate": {"max_drop": 100},
    "engine": {"name": "sequential"},
    "device": "cpu",
}
UNDOING: dict[str, Any] = {
    "schema": 1,
    "seed": 0,
    "request": "more",
    "method": "ft",
    "title": "FT",
    "models": {"unlearned": "aa", "retrain": None, "before": None},
    "perturbed": None,
    "effort": {"rates": [0.1]},
    "measured": {
        name: {"flip": {"forget": 3.0, "mia": 52.0, "rows": {"forget": 9, "test": 20}}}
        for name in ("unlearned", "retrain", "before")
    },
}
TRAFFIC = {"runs": [{"run-id": "7", "network-traffic": {"inbound-bytes": 5, "outbound-bytes": 6}}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that a run can hold, a population, tried claims.

    The run keeps a log, and what the log signed, what was handed out and what was kept of it lie beside it.
    """
    home = tmp_path_factory.mktemp("whole")
    config = Config.parse(TINY)
    run = Run.create(config, home / "run")
    for name in ("operator", "one"):
        signing.new_key(home / name)
    trust = TrustFolder.begin(run.folder.path, home / "operator.key")
    trust.enrol({"1": signing.public_key(home / "one.pub")})
    run.execute()
    _ask(home, "more", {"clients": ["1"]})
    intake.receive(Run.open(home / "run"), (home / "more.json").read_bytes(), None, Handling("ft", "1"))
    run = Run.open(home / "run")
    run.execute()
    for file, job in (("theory/0/r1.json", [0, None, "train"]), ("advice/0.json", [0, "more", "ft"])):
        storage.write_json(run.folder.path / file, {"models": {"it": {"job": job, "digest": "00"}}})  # older versions
    population = made_up(config, home / "population")
    put_into(run, population, judged(population, QUICK))
    own = {"all": 10, "retain": 10, "forget": 0, "val": 0, "shape": [1, 8, 8], "classes": 10, "allow": []}
    held = dict.fromkeys(("0", "1", "2"), own)
    storage.write_json(home / "run/clients.json", {"order": ["0", "1", "2"], "held": held})
    storage.write_json(home / "run/flower.json", {"state": "finished", "runs": [{"run": "7", "state": "finished"}]})
    hand_out(run.folder, "report", home / "page.html", b"a page")
    grave = books.Tombstone("samples/0/r1/ft/000009.safetensors", "00", "r1", "2026-11-16")
    books.bury(run.folder.path, [grave])
    storage.write_bytes(home / "run/deny.key", b"00" * KEY_BYTES)
    storage.write_json(home / "run/undo/0/more/ft.json", UNDOING)
    logbook.enter(run.folder, trust)
    _signed(home, run, trust)
    record.write(record.kept(run, "0" * 40), home / "kept").rename(home / "kept/results.json")
    storage.write_json(home / "ls.json", TRAFFIC)
    return home


def _ask(home: Path, name: str, scope: dict[str, Any]) -> bytes:
    """A request that client 1 signed, which lies there too."""
    value = request.value(scope, "1", signing.public_key(home / "operator.pub").id, name=name)
    value["log"] = TrustFolder(home / "run").log.origin
    signed = request.sign(value, signing.signing_key(home / "one.key")).to_bytes()
    (home / f"{name}.json").write_bytes(signed)
    return signed


def _signed(home: Path, run: Run, trust: TrustFolder) -> None:
    """What a run handed out to others, and what others hand in."""
    _ask(home, "next", {"clients": ["1"]})
    (home / "opening.json").write_bytes(Opening.drawn([("1", 2), ("1", 3)]).to_bytes())
    shutil.copy(trust.file("acknowledgement", "more"), home / "answer.json")
    entry = findings.served(run, "more")
    made = bundle.sign(findings.findings(run, entry), trust.key, bundle.from_log(run, entry))
    (home / "bundle.json").write_bytes(made.to_bytes())
    shutil.copy(run.folder.model_file(Job(0, "more", "ft")), home / "model.safetensors")


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

    Every field is wrong in one way, each in another, and in a second way with a depth. `make fuzz` draws the others.
    """
    first, _, rest = text.partition("\n") if lines else (text, "", "")
    raw = json.loads(first)
    for other in OTHERS:
        yield other, f"{other}\n{rest}"
    ways = [*WRONG][-3:] + [*WRONG][:-3] if depth else [*WRONG]
    for way, place in zip(itertools.cycle(ways), places(raw, depth or 1), strict=False):
        damaged = json.dumps(changed(raw, place, WRONG[way]))
        yield f"{'.'.join(map(str, place))} {way}", f"{damaged}\n{rest}"


def content(file: Path) -> str:
    """What can be damaged in a file: its text, or of one with tensors the numbers in its header."""
    return json.dumps(storage.numbers_of(file)) if file.suffix == ".safetensors" else file.read_text()


def replace(file: Path, text: str) -> None:
    """Let a file say something else, under sums of its own where it holds tensors."""
    if file.suffix == ".safetensors":
        storage.save(file, storage.load(file.with_name(f"{file.name}.whole"))[0], json.loads(text))
    else:
        file.write_text(text)


EXPLODED: list[int] = []


class Bomb:
    """A pickle that does something when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EXPLODED.append, (1,)


def archive() -> bytes:
    """An .npz of pickled objects."""
    written = io.BytesIO()
    np.savez(written, x=np.array([Bomb()], dtype=object))
    return written.getvalue()


def headed(header: bytes) -> bytes:
    """A safetensors file of little more than a header."""
    return len(header).to_bytes(8, "little") + header + bytes(8)


def linked(path: Path, to: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


LARGE = b'{"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,18446744073709551608]}}'
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "a pickle": lambda data: pickle.dumps(Bomb()) + b"\n",
    "an archive of pickles": lambda data: archive() + b"\n",
    "nested": lambda data: b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "a mark before it": lambda data: b"\xef\xbb\xbf" + data,
    "named twice": lambda data: data.replace(b"{", b'{"a":1,"a":2,', 1),
    "endless numbers": lambda data: b'{"x": 1e400, "y": NaN, "z": Infinity}\n',
    "a long header": lambda data: (1 << 62).to_bytes(8, "little") + data[8:] + b"\n",
    "a large tensor": lambda data: headed(LARGE) + b"\n",
    "a nested header": lambda data: headed(b'{"x":' * 5000 + b"1" + b"}" * 5000) + b"\n",
}
PLACES: dict[str, Callable[[Path], None]] = {
    "a folder": foldered,
    "a link to nothing": lambda path: linked(path, Path("nothing")),
    "a link in a circle": lambda path: linked(path, Path(path.name)),
    "a link out": lambda path: linked(path, Path(shutil.copy(path, "away")).absolute()),
}
WAYS = [*BYTES, *PLACES]


# --- who reads it -----------------------------------------------------------------------------------------------------

Reader = str | Callable[[Path], object]
"""A command, or a function of the folder in which everything lies."""


def known_clients(home: Path) -> object:
    return client_list(home / "run")


def loaded(home: Path) -> object:
    population = store.load(home / "population")
    return [population.logits(kind, "forget") for kind in population.about.kinds], population.labels("forget")


def recorded(home: Path) -> object:
    return RunFolder(home / "run").load_histories(Job(0, None, "train"))


def opening(home: Path) -> object:
    return Opening.from_json(signing.parsed(read_file(home / "opening.json", "opening"), "opening"))


def results(home: Path) -> object:
    return record.read(home / "kept/results.json")


def undone(home: Path) -> object:
    found = study_results.read(RunFolder(home / "run"), Job(0, "more", "ft"))
    return found and undo.grid([found])


def looked(home: Path) -> None:
    """What `unfed check` finds, all of it."""
    folder = Path("run")
    if found := [*check(RunFolder(folder)).findings, *log_faults(folder)]:
        raise UnfedError(" ".join(found))


def marked(home: Path) -> object:
    before = (home / "run/flower.json").read_text()
    try:
        return pytest.importorskip("unfed.flower.server").mark(home / "run", 8, "running")
    finally:
        (home / "run/flower.json").write_text(before)


def sure(home: Path) -> object:
    return [sections.grid(one) for one in of_judged(RunFolder(home / "run")).values()]


REPORT, LINEAGE = "report run --format md", "lineage run --affected 0"
LOG, VERIFY = "log check run", "verify bundle.json --key operator.pub"
LOOKS = ("status run", "status run --json", REPORT, "check run", LINEAGE)


@dataclass(frozen=True)
class Kind:
    """A file, who reads it, and how deep its fields lie."""

    file: str
    readers: tuple[Reader, ...]
    depth: int = 3
    hint: bool = False
    """Whether it may say anything: nothing depends on it."""
    given: bool = False
    """Whether the caller has just named it, so that a sentence need not."""


KINDS = (
    Kind("run/run.json", LOOKS[:1], 2),
    Kind("run/trajectory.jsonl", LOOKS[:-1]),
    Kind("run/requests/0001-more.json", ("status run", REPORT, LINEAGE), 4),
    Kind("run/filed.jsonl", ("status run", LINEAGE)),
    Kind("run/handed-out.jsonl", (LINEAGE,)),
    Kind("run/tombstones.json", ("status run", LINEAGE), 4),
    Kind("run/progress.json", ("status run", "status run --json"), hint=True),
    Kind("run/advice/0.json", (LINEAGE,), 5),
    Kind("run/theory/0/r1.json", (LINEAGE,), 5),
    Kind("run/population/r1.json", (sure,), 5),
    Kind("run/clients.json", (known_clients, LINEAGE), 4),
    Kind("run/flower.json", (marked, "flower costs run --ls ls.json")),
    Kind("ls.json", ("flower costs run --ls ls.json",), 4),
    Kind("population/population.json", (loaded,)),
    Kind("kept/results.json", (results,), 5),
    Kind("run/undo/0/more/ft.json", (undone,)),
    Kind("run/state/0/train.safetensors", (recorded, looked), 3),
    Kind("run/models/0/more/ft.safetensors", (looked,), 2),
    Kind("run/samples/0/more/ft/000001.safetensors", (looked,), 2),
    Kind("population/logits/ft/1.safetensors", (loaded,)),
    *(Kind(f"run/trust/{name}.json", (LOG,)) for name in ("operator", "pseudonyms", "roster")),
    *(Kind(f"run/trust/{name}.jsonl", (LOG,)) for name in ("log", "checkpoints", "participants")),
    *(Kind(f"run/trust/{name}/more.json", (LOG,)) for name in ("requests", "acknowledgements")),
    Kind("bundle.json", (VERIFY,)),
    Kind("answer.json", (f"{VERIFY} --log answer.json", f"{LOG} --kept answer.json"), given=True),
    Kind("next.json", ("request check run next.json",), given=True),
    Kind("opening.json", (opening,), given=True),
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
    return kind.given or begins or kind.file in said or f"{file.parent}/" in said


def faults(kind: Kind, home: Path, ask: Ask, readers: Sequence[Reader], depth: int | None = None) -> list[str]:
    """What went wrong with any damage of a file; its readers take turns."""
    file, found = home / kind.file, []
    text, data = content(file), file.read_bytes()
    file.with_name(f"{file.name}.whole").write_bytes(data)
    for number, (name, damaged) in enumerate(damages(text, kind.file.endswith(".jsonl"), depth)):
        replace(file, damaged)
        reader = readers[(number + number // len(WRONG)) % len(readers)]  # not the same ways for the same reader
        code, said = ask(reader)
        who = reader if isinstance(reader, str) else reader.__name__
        if code not in (0, 2):
            found.append(f"{who}, {name}: {code}: {said}")
        elif code == 2 and not named(kind, said):
            found.append(f"{who}, {name} names no file: {said}")
        elif code == 0 and name in ("[]", "3", "null") and not kind.hint:
            found.append(f"{who} believes {name}")
    file.write_bytes(data)
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


class Small(records.JsonRecord):
    """A record with a number and a switch."""

    seed: records.Count
    done: bool = False


@pytest.mark.parametrize("raw", [{"seed": "3"}, {"seed": True}, {"seed": 3.0}, {"seed": 3, "done": "yes"}])
def test_a_number_is_no_text_and_no_yes(raw: dict[str, Any]) -> None:
    with pytest.raises(UnfedError, match=r"^The file has .* as its (seed|done) .*; restore it from a copy\.$"):
        records.read(Small, raw, "The file")
    assert records.read(Small, {"seed": 3}, "The file").seed == 3


def test_a_number_that_no_float_can_hold_is_refused_before_anything_computes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(f'{{"seed": {10**299}}}')
    assert storage.read_json(path, "run") == {"seed": 10**299}
    path.write_text(f'{{"seed": {10**400}}}')
    with pytest.raises(UnfedError, match="too long") as error:
        storage.read_json(path, "run")
    assert str(path) in str(error.value)


# --- what is no file of ours ------------------------------------------------------------------------------------------

TORN = ("run/filed.jsonl", "run/trust/checkpoints.jsonl")
"""Lists whose end a killed process may not have come to write."""
OWN = {
    **{kind.file: looked for kind in KINDS if kind.file.startswith("run/") and not kind.hint},
    **{kind.file: kind.readers[0] for kind in KINDS if not kind.file.startswith("run/")},
    "run/state/0/train.history-2": looked,
    "run/deny.key": looked,
    "population/rows.safetensors": loaded,
    "operator.pub": VERIFY,
    "model.safetensors": f"{VERIFY} --model model.safetensors",
}
"""Every file, and who reads it."""


def taken(file: str, way: str) -> bool:
    """What is no damage: a mark that PEM allows, a list without its end, a link to the file."""
    pem, text = file.endswith(".pub") and way == "a mark before it", file.endswith((".json", ".jsonl"))
    torn = (file in TORN and way == "half") or (file == "run/filed.jsonl" and way == "empty")
    same = way == "a link out" and not file.startswith("run/")
    return pem or torn or same or (way == "named twice" and not text)


def misread(file: str, home: Path, ask: Ask, ways: Sequence[str]) -> list[str]:
    """What was taken for a file, or not refused in a sentence that names it."""
    path, reader, found = home / file, OWN[file], []
    data = path.read_bytes()
    kind = next((one for one in KINDS if one.file == file), Kind(file, ()))
    for way in (one for one in ways if not taken(file, one)):
        path.write_bytes(BYTES[way](data)) if way in BYTES else PLACES[way](path)
        code, said = ask(reader)
        if code != 2 or not named(kind, said):
            found.append(f"{way}: {code}: {said}")
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(data)
    assert not EXPLODED, "a pickle was read"
    return found


@pytest.mark.parametrize("file", OWN)
def test_what_is_no_file_of_ours_is_not_taken_for_one(file: str, home: Path, ask: Ask) -> None:
    assert misread(file, home, ask, [WAYS[7 * list(OWN).index(file) % len(WAYS)]]) == []


def test_all_of_this_is_whole(ask: Ask) -> None:
    assert [reader for reader in dict.fromkeys(OWN.values()) if ask(reader)[0]] == []


@pytest.mark.slow
@pytest.mark.parametrize("file", OWN)
def test_nor_is_it_in_any_other_way(file: str, home: Path, ask: Ask) -> None:
    assert misread(file, home, ask, WAYS[list(OWN).index(file) % 2 :: 2]) == []
