"""Stand-ins for commands while a shell completes a line: what they take, without what they do.

`options.json` lists the options of every command; `python tools/reference.py` writes it from the commands themselves,
so that completing an option imports none of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import click

FILE = "options.json"


def completing() -> bool:
    """Whether a shell asks how a line could go on."""
    return bool(os.environ.get("_UNFED_COMPLETE", "").startswith("complete"))


def stand_in(name: str) -> click.Command | None:
    """A command that takes what the real one takes."""
    told = _table().get(name)
    return None if told is None else _made(name, told)


@cache
def _table() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(files("unfed.cli").joinpath(FILE).read_text(encoding="utf-8"))
    return found


def _made(name: str, told: Mapping[str, Any]) -> click.Command:
    params: list[click.Parameter] = [_option(*one) for one in told["options"]]
    params += [click.Argument([f"word{n}"], nargs=count, required=False) for n, count in enumerate(told["arguments"])]
    inner = {own: _made(own, more) for own, more in told.get("commands", {}).items()}
    if inner:
        return click.Group(name, params=params, commands=inner, help=told["help"])
    return click.Command(name, params=params, help=told["help"])


def _option(names: list[str], takes: bool, repeated: bool, text: str) -> click.Option:
    # A name that no option has, so that `--rounds` and `--no-rounds` are two stand-ins and not one.
    own = [names[0].strip("-").replace("-", "_").replace(".", "_") + "_given", *names]
    return click.Option(own, is_flag=not takes, multiple=repeated, help=text)


def table(command: click.Command) -> dict[str, Any]:
    """What `stand_in` needs to know of a command."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    told: dict[str, Any] = {
        "help": (command.help or "").strip().split("\n\n")[0].replace("\n", " "),
        "options": [
            [names, not one.is_flag, bool(one.multiple), (one.help or "").replace("\n", " ")]
            for one in options
            for names in (list(one.opts), list(one.secondary_opts))
            if names and one.name != "help"
        ],
        "arguments": [one.nargs for one in command.params if isinstance(one, click.Argument)],
    }
    if isinstance(command, click.Group):
        told["commands"] = {name: table(own) for name, own in command.commands.items()}
    return told
