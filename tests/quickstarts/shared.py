"""What the apps have in common: the data, the note of what was asked, and the server app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    from unfed.flower import Probes

NODES = 4


def part(context: Context) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A node's own digits."""
    return digits_of(int(context.node_config["partition-id"]))


def digits_of(own: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every fourth digit."""
    digits = load_digits()
    return digits.data[own::NODES] / 16, digits.target[own::NODES]


def note(context: Context, kind: str) -> None:
    """Add a line to the file that the run config names."""
    if "asked" in context.run_config:
        with open(str(context.run_config["asked"]), "a") as file:
            file.write(f"{context.node_config['partition-id']} {kind}\n")


def server_app(
    start: Callable[[], ArrayRecord],
    strategy: Callable[[], Strategy],
    perturb: Any,
    probes: Callable[[], Probes] | None = None,
) -> ServerApp:
    """Trains from scratch, or takes a partition (`forget`) or `classes` out of the model that an earlier run kept."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from unfed.flower import Unlearn, node_with, of_class  # the clients import this file for every message

        said = context.run_config
        model, rounds, forget = Path(str(said["model"])), int(said["rounds"]), int(said["forget"])
        classes = str(said["classes"])
        if forget < 0 and not classes:
            result = strategy().start(grid, start(), num_rounds=rounds)
        else:
            undo = probes() if said["probes"] and probes else False
            until = str(said["until"]) or None
            ledger = str(said["ledger"]) or None
            leaves = of_class(classes) if classes else node_with(partition_id=forget, num_partitions=NODES)
            unlearn = Unlearn(strategy, perturb, leaves, ledger, wait=5, forgotten=until, undo=undo)
            result = unlearn.start(grid, kept(model), num_rounds=rounds)
            model = model.with_suffix(".unlearned.npz")
        with open(model, "wb") as file:
            arrays: Any = {name: array.numpy() for name, array in result.arrays.items()}
            np.savez(file, **arrays)

    return app


def kept(model: Path) -> ArrayRecord:
    """The arrays of a file."""
    with np.load(model) as found:
        return ArrayRecord({name: Array(found[name]) for name in found.files})
