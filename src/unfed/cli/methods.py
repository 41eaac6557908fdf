"""`unfed methods`: what there is, one of them in full, and whether your own keeps the contract."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape
from rich.table import Table

from unfed.cli.console import Console
from unfed.cli.options import AllowCode, Json, Sets
from unfed.data.scope import Kind
from unfed.errors import Refused
from unfed.methods import METHODS, Central, Method, find
from unfed.methods.base import NEEDS

app = typer.Typer(help="The methods: what they need, which scopes they serve, their hyperparameters.")
stdout = Console(highlight=False)


@app.callback(invoke_without_command=True)
def methods(context: typer.Context, as_json: Json = False) -> None:
    """All methods: where they work, which scopes they serve and what they need."""
    if context.invoked_subcommand:
        return
    if as_json:
        listed = {
            name: {"title": m.title, "where": _where(m), "scopes": sorted(m.scopes), "needs": sorted(m.needs)}
            for name, m in METHODS.items()
        }
        typer.echo(json.dumps(listed))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "method", "where", "takes out", "needs"):
        table.add_column(column)
    for name, method in METHODS.items():
        takes = "anything" if len(method.scopes) == len(get_args(Kind)) else ", ".join(sorted(method.scopes))
        table.add_row(
            name,
            method.title,
            "both" if len(_where(method)) > 1 else _where(method)[0],
            takes,
            ", ".join(sorted(method.needs)),
        )
    stdout.print(table)
    stdout.print("\ncentral: one model and one data set, without clients")
    stdout.print("anything: a client, a class or single samples (instances)")
    for need, says in NEEDS.items():
        stdout.print(f"{need}: {says}")
    stdout.print("\nWhere one comes from, and its hyperparameters: unfed methods show NAME")


def _where(method: type[Method]) -> list[str]:
    """The settings that a method is made for."""
    federated, central = not issubclass(method, Central), not method.federation_only
    return ["federated"] * federated + ["central"] * central


def as_written(default: Any) -> str:
    """A default as one writes it in a config or after --set; one without a value is left out there."""
    if default is None:
        return "not set"
    return json.dumps(default) if isinstance(default, bool | tuple) else str(default)


@app.command("show")
def methods_show(
    name: Annotated[str, typer.Argument(help="A method, or package.module:Class.")], allow_code: AllowCode = False
) -> None:
    """One method: what it is, what it needs, its hyperparameters and where their defaults come from."""
    method = find(name, "NAME")
    stdout.print(f"[bold]{escape(method.title)}[/bold] ({escape(name)}): {escape((method.__doc__ or '').strip())}")
    stdout.print(f"Reference: {escape(method.cite)}")
    stdout.print(f"Scopes: {', '.join(sorted(method.scopes))}.  Needs: {', '.join(sorted(method.needs))}.\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("hyperparameter", "default", "meaning", "source"):
        table.add_column(column)
    for option, default, says, source in method.options():
        table.add_row(option, escape(as_written(default)), escape(says), source)
    stdout.print(table if method.options() else "It has no hyperparameters.")


@app.command("check")
def methods_check(
    where: Annotated[str, typer.Argument(metavar="FILE", help="A Python file, a name, or package.module:Class.")],
    sets: Sets = [],  # noqa: B006
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Check a method against the contract, on digits.

    Clean views, resume, honest needs, ledger, engines equal.
    """
    from unfed.testing import conformance

    claims = []
    for claim in conformance.check(find(where, "FILE"), sets):
        claims.append(claim)
        if not as_json:
            mark = "[green]✓[/green]" if claim.held else "[red]✗[/red]"
            stdout.print(f"{mark} {escape(claim.name)}: {escape(claim.saw)}", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([vars(claim) for claim in claims]))
    broken = sum(not claim.held for claim in claims)
    if broken:
        raise Refused(f"{broken} of {len(claims)} claims do not hold; mend the method and check again.")


def add_to(parent: typer.Typer) -> None:
    parent.add_typer(app, name="methods")
