"""`unfed data list | verify | download` as a person meets them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from test_download import Server, server, small_cifar
from unfed.cli.main import app
from unfed.errors import UnfedError

__all__ = ["server"]


def unfed(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_download_and_verify(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: Server,
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    root = tmp_path / "root"
    before = {line["name"]: line for line in json.loads(unfed("data", "list", "--root", root, "--json"))}
    assert before["cifar10"]["found"] is None and before["cifar10"]["downloadable"]
    assert "unfed data download" in unfed("data", "list", "--root", root)
    told = unfed("data", "download", "cifar10", "--root", root, "--mirror", server.url)
    assert "cifar10 is whole in" in told and "6 published checksums" in told
    seen = json.loads(unfed("data", "verify", "cifar10", "--root", root, "--json"))
    assert seen["images"] == 24 and Path(seen["folder"]).parent == root
    monkeypatch.setenv("UNFED_DATA", str(root))
    after = {line["name"]: line for line in json.loads(unfed("data", "list", "--json"))}
    assert after["cifar10"]["found"] == seen["folder"]


def test_without_a_data_root_the_command_that_is_named_gets_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    small_cifar(monkeypatch, tmp_path, server)
    monkeypatch.delenv("UNFED_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnfedError) as missing:
        unfed("data", "verify", "cifar10")
    named = shlex.split(str(missing.value).split("`")[1])
    assert "is whole in DIR" in unfed(*named[1:], "--mirror", server.url)
    monkeypatch.setenv("UNFED_DATA", "DIR")
    assert "is whole in DIR" in unfed("data", "verify", "cifar10")
    blank = tmp_path / "my data"
    with pytest.raises(UnfedError) as missing:
        unfed("data", "verify", "cifar10", "--root", blank)
    named = shlex.split(str(missing.value).split("`")[1])
    assert "is whole in" in unfed(*named[1:], "--mirror", server.url) and blank.is_dir()


def test_what_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="get the data with `unfed data download mnist"):
        unfed("data", "verify", "mnist", "--root", tmp_path)
