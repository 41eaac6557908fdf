"""Files that a user names for a command to write: nothing but a file is replaced by one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from command_line import called
from unfed import UnfedError, storage
from unfed.trust import signing

COMMANDS = [
    ["compare", "a", "b", "-o"],
    ["bundle", "run", "-o"],
    ["bundle", "run", "-o", "fine.json", "--page"],
    ["verify", "bundle.json", "--key", "operator.pub", "--page"],
    ["negate", "model.safetensors", "-o"],
    ["convert", "model.pt", "-o"],
    ["export", "run", "-o"],
    ["index", "runs", "-o"],
    ["report", "run", "-o"],
    ["report", "run", "--format", "csv", "-o"],
    ["request", "sign", "--client", "3", "--key", "me.key", "--to", "operator.pub", "--log", "c.json", "-o"],
    ["request", "revoke", "r", "--client", "3", "--key", "me.key", "--to", "operator.pub", "-o"],
]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What a file could take the place of by mistake; a pipe stands for a device, which only root can make."""
    monkeypatch.chdir(tmp_path)
    found = {"a device or a pipe": Path("pipe"), "a folder": Path("folder"), "a link": Path("link")}
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("file").write_text("mine")
    Path("link").symlink_to("file")
    return found


def there() -> dict[Path, tuple[int, int]]:
    return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in Path().iterdir()}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_writes_a_file_in_the_place_of_something_else(
    words: list[str], places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = there()
    for what, place in places.items():
        code, _, err = called([*words, str(place)], monkeypatch, capsys)
        assert code == 2 and f"{place} is {what}, and no file is written in its place; name another file." in err
    assert there() == before


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_replaces_a_key(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has a private key twice: `unfed request sign --key me.key -o me.key` had left none."""
    monkeypatch.chdir(tmp_path)
    signing.new_key(Path("me"))
    for file in signing.key_files(Path("me")):
        before = file.read_bytes()
        code, _, err = called([*words, str(file)], monkeypatch, capsys)
        assert code == 2 and f"{file} holds a key, and a key is not replaced; name another file." in err
        assert file.read_bytes() == before


@pytest.mark.parametrize("words", [["bundle", "run", "-o"], ["verify", "--key", "operator.pub"]], ids=" ".join)
def test_the_page_of_evidence_does_not_take_its_place(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evidence.json").write_text("mine")
    code, _, err = called([*words, "evidence.json", "--page", "./evidence.json"], monkeypatch, capsys)
    assert code == 2 and "--page evidence.json would take the place of the evidence itself; name another file." in err
    assert Path("evidence.json").read_text() == "mine"


def test_what_is_written_from_python_replaces_no_pipe_and_no_folder(places: dict[str, Path]) -> None:
    for what in ("a device or a pipe", "a folder"):
        with pytest.raises(UnfedError, match=f"is {what}, and no file is written in its place"):
            storage.deliver(places[what], b"new")
    Path("to the pipe").symlink_to("pipe")
    with pytest.raises(UnfedError, match="to the pipe is a device or a pipe"):
        storage.deliver(Path("to the pipe"), b"new")


def test_a_link_to_a_file_is_replaced_and_what_it_leads_to_stays(places: dict[str, Path]) -> None:
    storage.deliver(places["a link"], b"new")
    assert places["a link"].read_bytes() == b"new" and Path("file").read_text() == "mine"
