"""Runs whose clients are elsewhere: only who reaches the clients can go on with one."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.folder.schema import CLIENTS, CLIENTS_MAY, FLOWER_RUNS, checked

NODES = {"flower": "Flower nodes", "remote": "nodes elsewhere"}
"""What carried a run's plans, and what its clients are called then."""


def elsewhere(description: Mapping[str, Any]) -> bool:
    """Whether a run's clients keep their data with them."""
    return description["engine"] in NODES


def client_list(folder: Path) -> dict[str, Any] | None:
    """Who took part, in their order, and what each holds: what `clients.json` says, if it is there."""
    path = folder / "clients.json"
    return checked(storage.read_json(path, "client list"), str(path), CLIENTS, CLIENTS_MAY) if path.exists() else None


def names_of(clients: Collection[str], goes_by: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Every name, partition and key that these clients went by, and no other client did.

    What another client went by too identifies neither; else a leaver that claims a name could take its owner along.
    """
    theirs = {name for client in clients for name in goes_by.get(client, ())}
    others = {name for client, own in goes_by.items() if client not in clients for name in own}
    return frozenset({*clients, *(theirs - others)})


def flower_runs(folder: Path) -> list[dict[str, Any]]:
    """What `flower.json` says: which Flower runs worked in a folder, and how they ended."""
    path = folder / "flower.json"
    if not path.exists():
        return []
    return list(checked(storage.read_json(path, "list of Flower runs"), str(path), FLOWER_RUNS)["runs"])


def out_of_sight(description: Mapping[str, Any], done: str, simulated: str, called: str) -> str | None:
    """Why nothing can be `done` here with a run's rows, which somebody else keeps; None if it can.

    What to do instead depends on who: where nodes do, a simulation, and otherwise whoever made the call.
    """
    if elsewhere(description):
        nodes = NODES[description["engine"]]
        return f"The clients of this run are {nodes}, which keep their data, so it cannot be {done} here; {simulated}."
    if description.get("call"):
        whose = "This folder belongs to a call of unfed.unlearn, whose data is the caller's"
        return f"{whose}, so it cannot be {done} here; {called}."
    return None


def how_to_go_on(description: Mapping[str, Any], folder: object) -> str:
    """What goes on with a run whose rows somebody else keeps, after 'go on with '."""
    if description.get("call"):
        return "the same call of unfed.unlearn, with checkpoint= this folder"
    if description.get("app"):
        return "the same start of the app's Unlearn, with ledger= this folder"
    if description["engine"] == "flower":
        return "`flwr run DIR --run-config " + shlex.quote(f'resume-from="{folder}"') + "`"
    return f'the server that reaches them and the run config resume-from="{folder}"'
