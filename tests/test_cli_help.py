"""`unfed COMMAND --help` explains what is typed, arguments as well as options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.testing import CliRunner

from unfed.cli.commands import HOMES, load
from unfed.cli.main import app


def every(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and what is below it, by what is typed."""
    yield name, command
    for below, one in getattr(command, "commands", {}).items():
        yield from every(one, f"{name} {below}")


COMMANDS = [found for name in HOMES for found in every(load(name), name)]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_argument_and_option_says_what_it_is(name: str, command: click.Command) -> None:
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"unfed {name}: {parameter.name}"


def test_nobody_is_sent_to_pypi_where_no_release_is() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), *root.glob("src/**/*.toml")]
    assert [page.name for page in pages if re.search(r"pip install\s+'?unfed\b", page.read_text("utf-8"))] == []


def test_the_help_of_a_command_shows_what_its_argument_is() -> None:
    shown = CliRunner().invoke(app, ["status", "--help"]).output
    assert "A run folder, such as" in shown
