"""`unfed worker`: a client as a plain process, for a server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unfed import plugins
from unfed.remote.node_data import own_code
from unfed.remote.worker import node_config, token_of, work


def worker(
    connect: Annotated[str, typer.Option(metavar="127.0.0.1:PORT", help="Where the server listens.")],
    node: Annotated[
        list[str],
        typer.Option(
            "--node",
            metavar="KEY=VALUE",
            help="What it holds and allows: `partition-id=0`. Repeatable.",
        ),
    ],
    token_file: Annotated[
        Path | None, typer.Option(help="The server's token; without it UNFED_TOKEN in the environment.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0.0, help="How many seconds to try to connect.")] = 30.0,
) -> None:
    """Hold a client's rows in a process of its own, and answer a server on this machine until it ends.

    The server is `unfed.remote.sockets.Workers`; what it may ask for is said by --node alone.
    """
    config = node_config(node)
    if own_code(config):  # a model, data set or loader of the user's: it lies where the command is given
        with plugins.current_folder_last():
            work(connect, token_of(token_file), config, wait=wait)
    else:
        work(connect, token_of(token_file), config, wait=wait)


def add_to(app: typer.Typer) -> None:
    app.command()(worker)
