"""Write the reference pages from the code, so that they cannot differ from it.

python tools/reference.py            write them
python tools/reference.py --check    fail if they are not up to date
"""

from __future__ import annotations

import json
import re
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
SHARED = 3
"""An option that so many commands have stands once, at the top of the page."""


def config_page() -> str:
    lines = [
        "# Configuration",
        "",
        "One TOML file describes a run; `--set key.path=value` changes any key. What is left out has its default.",
        "",
    ]
    lines += _table("", Config, {})
    return "\n".join(lines).rstrip() + "\n"


def _table(path: str, model: type[BaseModel], seen: dict[type[BaseModel], str]) -> Iterator[str]:
    """The tables of a model; one that stands under two names is shown once."""
    inner = []
    if path:
        yield from (f"## `[{path}]`", "")
        if model in seen:
            yield from (f"As `[{seen[model]}]`.", "")
            return
        seen[model] = path
        yield from ((model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "), "")
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
        yield from _table(where, table, seen)


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
    words = {int: "integer", float: "number", str: "text", bool: "boolean", Path: "path", KeptList: ""}
    return words[annotation]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    shown = json.dumps(list(value) if isinstance(value, tuple) else value) if not isinstance(value, str) else value
    return f"`{shown}`"


def cli_page() -> str:
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    complete_help(command, click.Context(command))
    rows: dict[str, list[str]] = {}
    for _, below in _below("unfed", command):
        for one in below.params:
            rows.setdefault(_row(one, below), []).append(one.opts[0])
    shared = {row: opts[0] for row, opts in rows.items() if len(opts) >= SHARED}
    lines = [
        "# Command line",
        "",
        "Exit codes: 0 done, 2 bad input, 3 a quorum or gate refused, 130 interrupted.",
        "",
        "These mean the same in every command that has them:",
        "",
        *shared,
        "",
    ]
    for usage, below in _below("unfed", command):
        arguments = [p for p in below.params if isinstance(p, click.Argument)]
        shown = " ".join([usage, *(p.make_metavar(click.Context(below)) for p in arguments)])
        lines += [f"## `{shown}`", "", (below.help or "").strip(), ""]
        own = [row for p in below.params if p.name != "help" and (row := _row(p, below)) not in shared]
        if own:
            lines += [*own, ""]
        also = [f"`{p.opts[0]}`" for p in below.params if isinstance(p, click.Option) and _row(p, below) in shared]
        if also:
            lines += [f"Also {', '.join(also)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _below(prefix: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Every command, with the words that are typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from _below(f"{prefix} {name}", command)


def _row(parameter: click.Parameter, command: click.Command) -> str:
    if isinstance(parameter, click.Option):
        return _option(parameter)
    assert isinstance(parameter, click.Argument)
    return _argument(parameter, command)


def _option(option: click.Option) -> str:
    """An option, what it is, and whether the command asks for it."""
    needed = " Required." if option.required else ""
    return f"- `{', '.join(option.opts)}`: {option.help or ''}{needed}"


def _argument(argument: click.Argument, command: click.Command) -> str:
    """An argument and what it is."""
    return f"- `{argument.make_metavar(click.Context(command))}`: {getattr(argument, 'help', None) or ''}"


def methods_page() -> str:
    lines = ["# Methods", "", method_table(), "", "What a method may need:", ""]
    lines += [f"- `{need}`: {says}" for need, says in NEEDS.items()]
    rows = [_hyperparameter(*one) for method in METHODS.values() for one in method.options()]
    shared = dict.fromkeys(row for row in rows if rows.count(row) > 1)
    lines += [
        "",
        "Below: hyperparameter = default (its source): meaning. Three defaults are for cnn, resnet18 and vit-b-16.",
    ]
    lines += ["Several methods have:", ""]
    lines += shared
    for name, method in METHODS.items():
        lines += [
            "",
            f"## {method.title} (`{name}`)",
            "",
            f"{_first(method)} [More](../methods/{name}.md).",
            "",
        ]
        own = [_hyperparameter(*one) for one in method.options()]
        lines += [row for row in own if row not in shared] or (["It has no hyperparameters of its own."])
        also = [f"`{option}`" for (option, *_), row in zip(method.options(), own, strict=True) if row in shared]
        lines += ["", f"Also {', '.join(also)}."] if also else []
    return "\n".join(lines).rstrip() + "\n"


def _hyperparameter(name: str, default: Any, meaning: str, source: str) -> str:
    shown = re.sub(r" \((cnn|resnet18|vit-b-16)\)(, )?", lambda found: " / " if found[2] else "", as_written(default))
    return f"- `{name}` = {_plain(shown.replace(' / ', '/'))} ({source}): {_plain(meaning)}"


def _first(method: Any) -> str:
    return str(method.__doc__ or "").strip()


def _plain(value: Any) -> str:
    return str(value).replace("|", "\\|")


def method_table() -> str:
    lines = ["| name | method | where | scopes | needs |", "|---|---|---|---|---|"]
    for name, method in METHODS.items():
        where = "central" if issubclass(method, Central) else "federated, central" if _both(method) else "federated"
        scopes = "any" if len(method.scopes) == 3 else ", ".join(sorted(method.scopes))
        needs = ", ".join(sorted(method.needs))
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
