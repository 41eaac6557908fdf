"""Write the reference pages from the code, so that they cannot differ from it.

python tools/reference.py            write them
python tools/reference.py --check    fail if they are not up to date
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from unfed.cli.looking import as_written
from unfed.cli.main import app, complete_help
from unfed.config.config import Config
from unfed.config.reading import table_in
from unfed.config.tables import KeptList
from unfed.methods import METHODS
from unfed.methods.base import NEEDS, Central

ROOT = Path(__file__).parent.parent


def config_page() -> str:
    lines = [
        "# Configuration",
        "",
        "One TOML file describes a run; `--set key.path=value` changes any key. What is left out has its default.",
        "",
    ]
    lines += _table("", Config)
    return "\n".join(lines).rstrip() + "\n"


def _table(path: str, model: type[BaseModel]) -> Iterator[str]:
    inner = []
    if path:
        yield from (f"## `[{path}]`", "", (model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "), "")
    rows = []
    for name, field in model.model_fields.items():
        table = table_in(field.annotation)
        where = f"{path}.{name}" if path else name
        if table is not None:
            inner.append((where, table))
            continue
        default = _default(field.get_default(call_default_factory=True))
        rows.append(f"| `{name}` | {field.description} | {_kind(field.annotation)} | {default} |")
    if rows:
        yield from ("| key | meaning | type | default |", "|---|---|---|---|", *rows, "")
    for where, table in inner:
        yield from _table(where, table)


def _kind(annotation: Any) -> str:
    """A type in words: what may be written there."""
    if annotation is type(None):
        return ""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inside[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" if isinstance(value, str) else str(value) for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(_kind, inside))))
    if origin is tuple:
        return f"list of {_kind(inside[0])}s"
    if origin is dict or annotation is dict:
        return "table"
    words = {int: "whole number", float: "number", str: "text", bool: "true, false", Path: "path", KeptList: ""}
    return words[annotation]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "–"
    shown = json.dumps(list(value) if isinstance(value, tuple) else value) if not isinstance(value, str) else value
    return f"`{shown}`"


def cli_page() -> str:
    lines = ["# Command line", "", "Exit codes: 0 done, 2 bad input, 3 a quorum or gate refused, 130 interrupted.", ""]
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    complete_help(command, click.Context(command))
    lines += _commands("unfed", command)
    return "\n".join(lines).rstrip() + "\n"


def _commands(prefix: str, group: click.Group) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{prefix} {name}"
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        usage = " ".join([words, *(p.make_metavar(click.Context(command)) for p in arguments)])
        yield from (f"## `{usage}`", "", (command.help or "").strip(), "")
        options = [p for p in command.params if isinstance(p, click.Option) and p.name != "help"]
        if arguments or options:
            yield from ("| argument, option | meaning |", "|---|---|")
            yield from (f"| {_argument(p, command)} |" for p in arguments)
            yield from (f"| {_option(p)} |" for p in options)
            yield ""
        if isinstance(command, click.Group):
            yield from _commands(words, command)


def _option(option: click.Option) -> str:
    """An option, what it is, and whether the command asks for it."""
    needed = " Required." if option.required else ""
    return f"`{', '.join(option.opts)}` | {(option.help or '').replace('|', 'or')}{needed}"


def _argument(argument: click.Argument, command: click.Command) -> str:
    """An argument and what it is; a bar would end the cell."""
    shown = argument.make_metavar(click.Context(command)).replace("|", "or")
    return f"`{shown}` | {(getattr(argument, 'help', None) or '').replace('|', 'or')}"


def methods_page() -> str:
    lines = ["# Methods", "", method_table(), "", "What a method may need:", ""]
    lines += [f"- `{need}`: {says}" for need, says in NEEDS.items()]
    for name, method in METHODS.items():
        lines += ["", f"## {method.title} (`{name}`)", "", f"{(method.__doc__ or '').strip()} {method.cite}.", ""]
        if method.options():
            lines += ["| hyperparameter | default | meaning | source |", "|---|---|---|---|"]
            lines += [
                f"| `{o}` | {_plain(as_written(d))} | {_plain(says)} | {source} |"
                for o, d, says, source in method.options()
            ]
        else:
            lines.append("It has no hyperparameters.")
    return "\n".join(lines).rstrip() + "\n"


def _plain(value: Any) -> str:
    return str(value).replace("|", "\\|")


def method_table() -> str:
    lines = ["| name | method | where | scopes | needs |", "|---|---|---|---|---|"]
    for name, method in METHODS.items():
        where = "central" if issubclass(method, Central) else "federated, central" if _both(method) else "federated"
        scopes, needs = ", ".join(sorted(method.scopes)), ", ".join(sorted(method.needs))
        lines.append(f"| `{name}` | {method.title} | {where} | {scopes} | {needs} |")
    return "\n".join(lines)


def _both(method: Any) -> bool:
    return method.needs <= {"retain", "init"} and "instance" in method.scopes


def pages() -> dict[Path, str]:
    return {
        ROOT / "docs/reference/config.md": config_page(),
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "docs/reference/methods.md": methods_page(),
    }


def main() -> None:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run python tools/reference.py")
        sys.exit(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
