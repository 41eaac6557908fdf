"""What a model is worth to whoever left, asked only of those who gave leave.

Leave is given in the node's own config (`allow="forget"`), which the node states when it says who it is. With it, and
with `evidence`, the leaver gets the app's own evaluation twice: of the model before and of the one after. It is never
asked to train.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from unfed.flower.evidence import plain


def question(asked: RecordDict, arrays: ArrayRecord, server_round: int) -> RecordDict:
    """What the strategy asks those who stay, about other arrays."""
    found = RecordDict(dict(asked.items()))
    for key in asked.array_records:
        found[key] = arrays
    for key, config in asked.config_records.items():
        found[key] = ConfigRecord({**config, "server-round": server_round} if "server-round" in config else {**config})
    return found


def answers(grid: Grid, nodes: Collection[int], content: RecordDict, timeout: float) -> list[dict[str, Any]]:
    """One entry per node: its metrics, or why there are none."""
    told: dict[int, dict[str, Any]] = {node: {"node": node, "why": "it did not answer"} for node in sorted(nodes)}
    messages = [Message(content, node, "evaluate") for node in told]
    for reply in grid.send_and_receive(messages, timeout=timeout) if messages else ():
        node = reply.metadata.src_node_id
        if node not in told:
            continue
        if reply.has_error():
            told[node] = {"node": node, "why": "its evaluation failed"}
            continue
        records = reply.content.metric_records.values()
        told[node] = {"node": node, "metrics": {name: v for one in records for name, v in plain(one).items()}}
    return list(told.values())
