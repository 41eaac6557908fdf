"""The smallest transport: clients in this process. Another one differs in how the bytes travel, and in nothing else."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unfed.remote.client import answered
from unfed.remote.messages import Ask, Reply
from unfed.remote.packed import Packed
from unfed.remote.server import run
from unfed.remote.transport import Connected, Replies

log = logging.getLogger("direct")


class Direct:
    """Nodes by number, each with the config that whoever runs it would write."""

    def __init__(self, configs: Iterable[Mapping[str, Any]]) -> None:
        self.configs = dict(enumerate(configs, start=1))

    def nodes(self) -> Sequence[Connected]:
        return [Connected(node) for node in self.configs]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        there = [node for node in asks if node in self.configs]  # who is gone is missing from the replies
        return Replies({node: answer(asks[node], self.configs[node]) for node in there})


def answer(ask: Ask, node: Mapping[str, Any]) -> Reply:
    """A question there and its answer back: words are small JSON, tensors are bytes with a shape and a type."""
    words, arrays = json.dumps(ask.words), packed(ask.tensors)
    found = answered(lambda: Ask.of(json.loads(words), arrays), node, log)
    return Reply(found.words, found.numbers, packed(found.tensors))


def packed(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Packed]]:
    return {group: {name: Packed.of(tensor) for name, tensor in own.items()} for group, own in groups.items()}


if __name__ == "__main__":
    nodes = Direct({"partition-id": k, "allow": "forget"} for k in range(3))
    what = {"run-folder": sys.argv[1], "forget-clients": "1", "min-nodes": 3, "wait-seconds": 1.0}
    sizes = "partition.clients=3; training.rounds=2; unlearning.rounds=2; model.name=cnn-tiny"
    last = run(nodes, {**what, "set": sizes}).lines()[-1]
    print(f"asked in the last round: {last['asked']}; forget accuracy {last['forget']:.1f} %")
