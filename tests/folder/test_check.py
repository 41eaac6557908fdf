"""What is read back is checked: whatever was torn, edited, replaced or lost in a run folder is found and named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unfed import storage
from unfed.cli.main import app
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder import consistency
from unfed.folder.carriers import _carried
from unfed.folder.check import check
from unfed.folder.folder import RunFolder
from unfed.requests import book as books
from unfed.requests.entry import Entry, Job
from unfed.requests.saved_state import SavedState
from unfed.runs.run import Run

SERVED = "models/0/leaves/not.safetensors"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained, compared nothing, and served one request; another waits."""
    from conftest import SMALL
    from unfed.config.config import Config

    config = Config.parse({**SMALL, "request": []}, ["training.rounds=2", "unlearning.rounds=1", "methods.run=['not']"])
    run = Run.create(config, tmp_path_factory.mktemp("served") / "run")
    run.execute()
    run.forget(Request("leaves", clients=("1",)), "not", until=1)
    run.queue.file(Request("waits", clients=("2",)), "ft", "1", 0)
    return run.folder.path


@pytest.fixture
def folder(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "run"))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def flipped(path: Path, at: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def shortened(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def replaced(folder: Path) -> None:
    """Another model, written as ours are, under the old name."""
    tensors, numbers = storage.load(folder / "models/0/train.safetensors")
    storage.save(folder / SERVED, {name: t + 1 for name, t in tensors.items()}, numbers)


def asking_else(folder: Path) -> None:
    """The request for another client."""
    file = folder / "requests/0001-leaves.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({**raw, "request": {**raw["request"], "clients": ["0"]}}))


def swapped(folder: Path) -> None:
    """What NoT left in the place of θ*, state and model alike, and θ* in its place."""
    for kind in ("state", "models"):
        one, other = folder / kind / "0/train.safetensors", folder / kind / "0/leaves/not.safetensors"
        was = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(was)


def device(path: Path) -> None:
    """A link to what never ends, or never begins; one to nothing, so that a test that fails does not hang."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/null")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "run.json edited": (
        lambda f: edited(f / "run.json", '"lr": 0.', '"lr": 1.'),
        "run.json was changed since",
    ),
    "run.json of another type": (
        lambda f: edited(f / "run.json", '"clients": [', '"clients": [7, '),
        "has '7' as its clients.0",
    ),
    "trajectory shortened": (lambda f: shortened(f / "trajectory.jsonl"), "its end is gone"),
    "trajectory edited": (lambda f: edited(f / "trajectory.jsonl", '"round":1', '"round":9'), "was changed"),
    "trajectory a folder": (
        lambda f: (f / "trajectory.jsonl").rename(f / "was.jsonl").with_name("trajectory.jsonl").mkdir(),
        "trajectory.jsonl is no file but a folder",
    ),
    "run.json a device": (lambda f: device(f / "run.json"), "run.json is no file, or has more than 256 MiB"),
    "list of requests a device": (lambda f: device(f / "filed.jsonl"), "filed.jsonl is no file, or has more than"),
    "list of what was handed out a device": (lambda f: device(f / "handed-out.jsonl"), "is no file, or has more than"),
    "trajectory gone": (lambda f: (f / "trajectory.jsonl").unlink(), "its end is gone"),
    "state flipped": (lambda f: flipped(f / "state/0/train.safetensors"), "saved state at .* is not what was written"),
    "state torn": (lambda f: (f / "state/0/train.safetensors").write_bytes(b"x" * 40), "is damaged"),
    "states and models swapped": (swapped, "is that of another job, 0/leaves/not"),
    "model flipped": (lambda f: flipped(f / SERVED), "model at .* is not what was written"),
    "model replaced": (replaced, "is not the one that its job left"),
    "model gone": (lambda f: (f / SERVED).unlink(), "is gone"),
    "served request gone": (lambda f: (f / "requests/0001-leaves.json").unlink(), "'leaves' was filed, but its file"),
    "waiting request gone": (lambda f: (f / "requests/0002-waits.json").unlink(), "'waits' was filed, but its file"),
    "request edited": (asking_else, "asks for something else"),
    "request of another type": (
        lambda f: edited(f / "requests/0001-leaves.json", '"seed": 0', '"seed": {"a": 1}'),
        "as its seed",
    ),
}


def test_a_whole_folder_is_whole_and_looking_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = check(RunFolder(folder))
    assert found.whole, found.findings
    assert found.counted["requests"] == 2 and found.counted["models"] == 2 and found.counted["lines"] > 3
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_request_that_is_filed_while_the_others_are_read_is_not_taken_for_lost(folder: Path) -> None:
    """Whoever looks needs no lock: somebody may file between the look at the files and the look at the list."""

    class Busy(RunFolder):
        def filed(self) -> tuple[Entry, ...]:
            found = super().filed()
            if len(found) == 2:
                other = replace(found[0], number=3, request=Request("third", clients=("0",)))
                RunFolder(self.path).put_request(other)
            return found

    assert [entry.request.id for entry in Busy(folder).book().entries] == ["leaves", "waits"]
    assert len(RunFolder(folder).book().entries) == 3
    (folder / "requests/0003-third.json").unlink()
    with pytest.raises(UnfedError, match="'third' was filed, but its file"):
        RunFolder(folder).book()


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(folder: Path, name: str) -> None:
    damage, sentence = DAMAGE[name]
    damage(folder)
    result = CliRunner().invoke(app, ["check", str(folder), "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert result.exit_code == 2 and not found["whole"]
    assert any(re.search(sentence, one) for one in found["findings"]), found["findings"]


@pytest.mark.parametrize(
    "name", ["run.json edited", "trajectory shortened", "trajectory edited", "served request gone"]
)
def test_no_work_goes_on_in_a_damaged_folder(folder: Path, name: str) -> None:
    DAMAGE[name][0](folder)
    with pytest.raises(UnfedError, match="restore it"):
        Run.open(folder).execute()


def test_a_replaced_model_is_not_exported(folder: Path) -> None:
    replaced(folder)
    with pytest.raises(UnfedError, match="not the one that its job left"):
        RunFolder(folder).load_model(Job(0, "leaves", "not"))


def test_a_line_that_somebody_adds_to_a_job_that_has_ended_counts_nowhere(folder: Path) -> None:
    told = RunFolder(folder).lines()
    last = next(line for line in reversed(told) if line["request"] == "leaves")
    with open(folder / "trajectory.jsonl", "a") as file:
        for line in ({**last, "round": last["round"] + 1, "forget": 0.0}, last):
            file.write(json.dumps(line) + "\n")
    assert RunFolder(folder).lines() == told
    with RunFolder(folder).lock():  # whoever is at work may have been asked for more rounds, and is seen
        assert len(RunFolder(folder).lines()) == len(told) + 2


def test_a_torn_last_line_is_no_fault_and_glues_nothing_to_itself(folder: Path) -> None:
    with open(folder / "trajectory.jsonl", "ab") as file:
        file.write(b'{"seed": 0, "requ')
    assert check(RunFolder(folder)).whole
    Run.open(folder).execute()  # serves what waits
    assert check(RunFolder(folder)).whole and len(RunFolder(folder).lines()) > 4


def test_what_was_purged_on_purpose_counts_as_whole(folder: Path) -> None:
    digest = consistency.file_digest(folder / SERVED)
    assert digest is not None
    grave = books.Tombstone(SERVED, digest, "leaves", "2026-01-31T12:00:00Z")
    books.bury(folder, [grave])
    (folder / SERVED).unlink()
    assert check(RunFolder(folder)).whole and books.tombstones(folder)[SERVED] == grave


@pytest.mark.parametrize(
    "text", ["5", "[" * 100_000, '{"schema": 2}', '{"schema": 2, "name": 1' + "0" * 5000 + "}", "\0"]
)
@pytest.mark.parametrize("file", ["run.json", "requests/0001-leaves.json", "tombstones.json"])
def test_nonsense_is_one_sentence_whatever_reads_it(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    for command in ("status", "check", "report"):
        result = CliRunner().invoke(app, [command, str(folder)])
        assert result.exception is None or isinstance(result.exception, UnfedError | SystemExit), result.exception
        assert command != "check" or f"{folder} is not whole: " in str(result.exception)


def test_half_a_line_of_what_was_filed_does_not_glue_itself_to_the_next(tmp_path: Path) -> None:
    entry = Entry(1, Request("a", clients=("0",)), "ft", "1", "2026-11-15T00:00:00Z", 0)
    (tmp_path / books.FILED).write_bytes(b'{"number": 1, "id"')
    books.note_filed(tmp_path, [entry])
    assert (tmp_path / books.FILED).read_bytes().count(b"\n") == 1
    assert json.loads((tmp_path / books.FILED).read_text())["id"] == "a"


@pytest.mark.parametrize(
    "file",
    ["undo/0/leaves/not.json", "theory/0/leaves.json", "advice/0.json", "population/leaves.json", "handed-out.jsonl"],
)
def test_what_was_measured_of_models_and_what_was_handed_out_is_read_too(folder: Path, file: str) -> None:
    assert check(RunFolder(folder)).whole
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("[]")
    (finding,) = check(RunFolder(folder)).findings
    assert str(folder / file) in finding


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("base", {"model": 3}),
        ("diary", {"beginning": []}),
        ("diary", {"beginning": {"changes": {}, "shapes": 1, "went_in": {}, "begun": {}}}),
        ("diary", {"beginning": {"changes": {}, "shapes": {}, "begun": {}}}),
    ],
)
def test_what_a_state_says_of_its_beginning_is_checked(folder: Path, field: str, wrong: object) -> None:
    path = folder / "state/0/leaves/not.safetensors"
    tensors, numbers = storage.load(path, "saved state")
    storage.save(path, tensors, {**numbers, field: numbers.get(field, {}) | wrong})
    said = CliRunner().invoke(app, ["lineage", str(folder), "--affected", "1"])
    assert isinstance(said.exception, UnfedError) and re.search(rf"has (.* as its|no) {field}", str(said.exception))


def test_bases_that_lead_in_a_circle_end(folder: Path) -> None:
    ends = {Path("0/a"): Path("0/b"), Path("0/b"): Path("0/a")}
    began = {"changes": {}, "shapes": {"norm.running_mean": [3]}, "went_in": {}, "begun": {}}
    whole: dict[str, Any] = {"round": 1, "done": True, "model": True, "numbers": {}, "offset": 0}
    whole["diary"] = {"beginning": began}
    states = {job: SavedState(**whole, base={"model": str(base)}) for job, base in ends.items()}  # type: ignore[arg-type]
    assert _carried(states, Path("0/a"), {*ends}) == ["norm.running_mean"]
