"""Who is connected, with registered names, where the installed Flower tells them."""

from __future__ import annotations

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from unfed.errors import UnfedError

NAMED_SINCE = "1.38"
"""The first version of Flower whose servers are told what nodes are registered as."""


def tells_names(grid: Grid) -> bool:
    """Whether a server is told what its nodes are registered as."""
    return hasattr(grid, "get_nodes")


def since(grid: Grid) -> dict[int, str]:
    """Who is connected, and when each came; an empty word where the installed Flower does not tell."""
    if tells_names(grid):
        return {info.node_id: info.last_activated_at for info in grid.get_nodes()}
    return dict.fromkeys(grid.get_node_ids(), "")


def connected(grid: Grid, instead: str) -> list[NodeInfo]:
    """The connected nodes with their registered names, or the sentence that says what to do instead."""
    if not tells_names(grid):
        raise UnfedError(
            "This version of Flower does not tell a server what its nodes are registered as; install"
            f" flwr>={NAMED_SINCE}, or {instead}."
        )
    return list(grid.get_nodes())
