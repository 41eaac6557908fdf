"""The command line never ends in a bare traceback, and shows what is in a name without obeying it."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unfed.cli import main as cli
from unfed.cli.console import Console, visible
from unfed.errors import UnfedError, in_a_run_config
from unfed.folder.folder import RunFolder
from unfed.remote.options import CALLED
from unfed.runs.run import Run
from worlds import Small

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs a command as a process would; (exit code, stdout, stderr)."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("warnings.showwarning", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unfed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_unforeseen_error_is_one_sentence_with_a_log_and_exit_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "open", failing(KeyError("surprise")))
    code, _, err = command("status", "run")
    assert code == 1 and "Traceback" not in err and "not foreseen (KeyError: 'surprise')" in err
    (named,) = re.findall(r"details are in (\S+\.log);", err)
    log = Path(named)
    assert "Traceback" in log.read_text() and "surprise" in log.read_text()
    if os.name == "posix":
        assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files", "a.json"), "a.json: Too many open files; check the path"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deep"),
    ],
)
def test_what_a_user_can_mend_has_a_sentence_of_its_own_and_exit_code_2(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    monkeypatch.setattr(Run, "open", failing(error))
    code, _, err = command("status", "run")
    assert code == 2 and said in err and "Traceback" not in err and ".log" not in err


@pytest.mark.parametrize("name", ["[/bold]x", "[red]", "a[b]"])
def test_a_folder_whose_name_looks_like_markup_is_shown_as_it_is(
    command: Command, small: Small, tmp_path: Path, name: str
) -> None:
    Run.create(small(), tmp_path / name)
    code, out, err = command("status", tmp_path / name)
    assert code == 0 and name in out.replace("\n", ""), err


def test_a_path_that_is_too_long_is_one_sentence(command: Command, tmp_path: Path) -> None:
    code, _, err = command("status", tmp_path / ("x" * 5000))
    assert code == 2 and "Traceback" not in err and err.startswith("error:")


def test_terminal_escapes_and_backward_text_become_visible() -> None:
    assert visible("a\x1b[31mb\x7f\u202ec\n") == "a␛[31mb␡�c\n" and visible("θ → ℓ1 ★") == "θ → ℓ1 ★"
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="truecolor", highlight=False).print(
        "[bold]ours[/bold] \x1b]0;theirs"
    )
    assert stream.getvalue() == "\x1b[1mours\x1b[0m ␛]0;theirs\n"


# --- beginning and leftovers ------------------------------------------------------------------------------------------


def test_killed_inside_create_a_folder_can_be_begun_again(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(Killed()))
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process clears nothing away
        with pytest.raises(Killed):
            Run.create(small(), tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert any(name.endswith(".tmp") for name in left) and "run.json" not in left
    Run.create(small(), tmp_path / "run")
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.endswith(".tmp")]


def test_a_folder_with_somebodys_files_is_not_taken_nor_touched(small: Small, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(Exception, match="is not empty; choose another folder"):
        Run.create(small(), tmp_path / "run")
    with pytest.raises(UnfedError, match="choose another folder with run-folder"), in_a_run_config(CALLED):
        Run.create(small(), tmp_path / "run")  # as a server of Flower does
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_what_killed_processes_left_is_swept_under_the_lock_that_writers_need(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    mine, theirs = tmp_path / "state/0/.train.safetensors.4711.tmp", tmp_path / "requests/.0001-a.json.4711.tmp"
    for path in (mine, theirs, tmp_path / "state/0/notes.tmp"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with folder.lock():
        assert not mine.exists() and theirs.exists()
    with folder.lock("requests", wait=True):
        assert not theirs.exists()
    assert (tmp_path / "state/0/notes.tmp").exists()


@pytest.mark.skipif(os.name != "posix", reason="rights are others there")
def test_a_run_folder_is_for_its_owner_alone(small: Small, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = Run.create(small("training.rounds=1", "unlearning.rounds=1", "methods.run=['not']"), tmp_path / "run")
        run.execute()
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    kinds = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {kinds[name] for name in ("run.json", "trajectory.jsonl", "train.safetensors", "not.safetensors")} == {0o600}
