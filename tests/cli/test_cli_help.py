"""`unfed COMMAND --help` explains what is typed, arguments as well as options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from unfed.cli.main import app, complete_help


def every(group: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands below a group, by what is typed."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for below in group.list_commands(context):
            found = group.get_command(context, below)
            assert found is not None
            yield f"{name} {below}", found
            yield from every(found, f"{name} {below}")


ROOT = typer.main.get_command(app)
complete_help(ROOT, click.Context(ROOT))
COMMANDS = list(every(ROOT))


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_argument_and_option_says_what_it_is(name: str, command: click.Command) -> None:
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"unfed{name}: {parameter.name}"


def test_nobody_is_sent_to_pypi_where_no_release_is() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), *root.glob("src/**/*.toml")]
    assert [page.name for page in pages if re.search(r"pip install\s+'?unfed\b", page.read_text("utf-8"))] == []


def test_the_help_of_a_command_shows_what_its_argument_is() -> None:
    shown = CliRunner().invoke(app, ["status", "--help"]).output
    assert "A run folder, such as" in shown
