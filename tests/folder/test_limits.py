"""Whatever is read has a limit: how long, how deep, how many, of which kind; beyond it stands a sentence."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import paper_record as record
import pytest
from typer.testing import CliRunner

from conftest import SMALL
from unfed import plugins, storage
from unfed.cli.main import app
from unfed.config.config import Config
from unfed.data import scope
from unfed.data.fetch import catalogue, download, idx
from unfed.data.fetch.folders import _decoded
from unfed.data.scope import SampleList
from unfed.errors import UnfedError
from unfed.folder.consistency import digest_of_start, file_digest
from unfed.folder.folder import RunFolder
from unfed.model.files import negate_file
from unfed.requests.options import Until
from unfed.runs.run import Run
from unfed.trust import bundle, signing, verifier
from unfed.trust.signing import read_file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 20_000 + "]" * 20_000, "nested too deep"),
        ("seed = 1" + "0" * 5000, "not valid TOML"),
        ("name = '\\ud800'", "not valid TOML|is no folder name"),
        ("# " + "x" * (4 << 20), "has more than 4 MiB"),
        ("[engine]\nthreads = 100000", "engine.threads"),
        ("[training]\nlr = 1e300", "training.lr"),
    ],
)
def test_a_config_beyond_its_limits_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UnfedError, match=said):
        Config.read(tmp_path / "c.toml")


@pytest.mark.parametrize("value", ["1" + "0" * 5000, "[" * 20_000])
def test_a_change_beyond_its_limits_is_one_sentence(value: str) -> None:
    with pytest.raises(UnfedError, match="too long or nested too deep|unknown|not known|seed"):
        Config.parse({}, [f"seed={value}"])


@pytest.mark.parametrize("until", ["²", "1" + "0" * 5000, "-1", "0"])
def test_a_number_of_rounds_is_a_number_of_rounds(until: str) -> None:
    with pytest.raises(UnfedError, match="--until takes"):
        Until.of(until)


def test_a_list_of_samples_has_a_limit_in_bytes_rows_and_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ids.csv"
    file.write_text("client,position\n" + "".join(f"a,{i}\n" for i in range(20)))
    monkeypatch.setattr(scope, "MOST_ROWS", 19)
    with pytest.raises(UnfedError, match="more than 19 samples"):
        assert SampleList.read(file).samples
    monkeypatch.setattr(scope, "MOST_BYTES", 50)
    with pytest.raises(UnfedError, match="has more than"):
        SampleList.read(file)
    with pytest.raises(UnfedError, match="must be an integer from 0 on"):
        assert SampleList("x", "client,position\na," + "1" * 5000 + "\n").samples


def test_an_archive_that_unpacks_to_too_much_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", b"\0" * 100_000)
    monkeypatch.setattr(download, "MOST_UNPACKED", 50_000)
    with pytest.raises(UnfedError, match="unpacks to more than"):
        download.unpack(tmp_path / "a.zip", tmp_path / "out")
    monkeypatch.setattr(idx, "MOST_BYTES", 50_000)
    (tmp_path / "labels.gz").write_bytes(gzip.compress(b"\0" * 100_000))
    with pytest.raises(UnfedError, match="unpacks to more than"):
        idx.plain_bytes(tmp_path / "labels.gz")


def test_a_file_that_is_read_whole_has_a_limit(tmp_path: Path) -> None:
    """One of zeros is a few kilobytes in an archive, and fills the memory of whoever opens it."""
    with open(tmp_path / "run.json", "wb") as file:
        file.truncate(storage.MOST_JSON + 1)
    with pytest.raises(UnfedError, match="run.json is no file, or has more than 256 MiB"):
        RunFolder(tmp_path).description()
    with pytest.raises(UnfedError, match="run.json is no file, or has more than 256 MiB"):
        record.fields_of(tmp_path / "run.json", "results", record.KeptFile)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnfedError, match="pipe is no file, or has more than 1024 MiB"):
        storage.content(tmp_path / "pipe")


READERS: list[Callable[[Path], object]] = [
    storage.load,
    storage.numbers_of,
    storage.names_of,
    storage.verify,
    lambda path: negate_file(path, path.with_name("out.safetensors"), ["first"]),
    verifier.described,
]


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_in_the_place_of_a_model_is_refused_and_not_waited_for(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    """A folder may have come from somebody else; nobody ever writes into this pipe."""
    os.mkfifo(path := tmp_path / "model.safetensors")
    with pytest.raises((UnfedError, verifier.NotVerified), match=r"no file|cannot be read as safetensors"):
        read(path)


NAMED: dict[str, Callable[[Path], object]] = {
    "config": Config.read,
    "sample list": SampleList.read,
    "request": lambda path: read_file(path, "request"),
    "private key": signing.signing_key,
    "public key": signing.public_key,
    "bundle": lambda path: bundle.verify(path, []),
    "log": lambda path: bundle.verify(Path(__file__), [], log=path),
    "fingerprint": file_digest,
    "trajectory's prefix": lambda path: digest_of_start(path, 1),
    "a line to add to": lambda path: storage.append_line(path, "{}"),
    "data set": lambda path: catalogue.read_file(path, "digits"),
    "checksum": catalogue.md5_of,
    "plugin": lambda path: plugins._file_module(str(path), "model"),
    "verifier's": verifier.read,
}


@pytest.mark.parametrize("what", NAMED)
def test_a_pipe_in_the_place_of_any_file_that_is_named_is_refused_and_not_waited_for(what: str, tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe", 0o600)
    with pytest.raises((UnfedError, verifier.NotVerified), match=r"pipe is (no file|a f)|There is no file .*pipe"):
        NAMED[what](path)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no names for what a shell hands over")
@pytest.mark.parametrize("read", [storage.content, verifier.read, lambda path: read_file(path, "request")])
def test_what_a_shell_hands_over_is_read_as_a_file_is(read: Callable[[Path], object]) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"seed = 1\n")
        os.close(writing)
        assert read(Path(f"/dev/fd/{reading}")) == b"seed = 1\n"
    finally:
        os.close(reading)


def test_what_a_shell_hands_over_has_the_limit_that_files_have() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"seed = 1\n")
        os.close(writing)
        with pytest.raises(UnfedError, match="has more than 0 MiB"):
            storage.content(Path(f"/dev/fd/{reading}"), 8)
    finally:
        os.close(reading)


@pytest.mark.parametrize("place", ["bundle", "--key", "--log"])
def test_the_verifier_alone_waits_for_no_pipe(place: str, tmp_path: Path) -> None:
    given = {name: str(tmp_path / name.strip("-")) for name in ("bundle", "--key", "--log")}
    for name, file in given.items():
        os.mkfifo(file) if name == place else Path(file).write_text("{}")
    command = [given["bundle"], "--key", given["--key"], "--log", given["--log"]]
    done = subprocess.run([sys.executable, verifier.__file__, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == f"not verified: There is no file {given[place]}; give one.\n"


def test_a_name_in_an_archive_has_a_limit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x/" * 600 + "y", b"")
    with pytest.raises(UnfedError, match="holds a name of 1201 characters"):
        download.unpack(tmp_path / "a.zip", tmp_path / "out")


def test_postscript_that_calls_itself_png_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def looked_for(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript was looked for")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", looked_for)
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(UnfedError, match="cannot be decoded"):
        _decoded(tmp_path / "a.png", None)


def test_a_pipe_as_trajectory_hangs_no_command(tmp_path: Path) -> None:
    """Under an alarm: reading the pipe would block for ever."""
    config = Config.parse(SMALL, ["training.rounds=1", "unlearning.rounds=1", "methods.run=['ft']"])
    Run.create(config, tmp_path / "run").execute()
    (tmp_path / "run/trajectory.jsonl").unlink()
    os.mkfifo(tmp_path / "run/trajectory.jsonl")
    before = signal.signal(signal.SIGALRM, lambda *args: pytest.fail("a command waits for the pipe"))
    try:
        for word in ("status", "check", "report", "resume", "evaluate"):
            signal.alarm(60)
            found = CliRunner().invoke(app, [word, str(tmp_path / "run")])
            assert found.exit_code != 0 and isinstance(found.exception, (UnfedError, SystemExit)), word
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_model_of_a_damaged_folder_is_neither_exported_nor_scored(tmp_path: Path) -> None:
    config = Config.parse(SMALL, ["training.rounds=1", "unlearning.rounds=1", "methods.run=['ft']"])
    run = Run.create(config, tmp_path / "run")
    run.execute()
    said, out = CliRunner(), str(tmp_path / "out.safetensors")
    assert said.invoke(app, ["export", str(run.folder.path), "--method", "ft", "-o", out]).exit_code == 0
    missing = said.invoke(app, ["export", str(run.folder.path), "-o", str(tmp_path / "no/such/m.safetensors")])
    assert isinstance(missing.exception, UnfedError) and "There is no folder" in str(missing.exception)
    assert not (tmp_path / "no").exists()
    path = run.folder.path / "trajectory.jsonl"
    path.write_text(path.read_text().replace('"test":', '"test":1', 1))
    for words in (["export", "--method", "ft", "-o", out], ["evaluate"]):
        refused = said.invoke(app, [words[0], str(run.folder.path), *words[1:]])
        assert isinstance(refused.exception, UnfedError), words
