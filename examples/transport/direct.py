"""The smallest transport: clients in this process. Another one differs in how the bytes travel, and in nothing else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unfed.remote.client import answered
from unfed.remote.codec import decode_ask, decode_reply, encode_answer, encode_ask
from unfed.remote.messages import Ask
from unfed.remote.server import run
from unfed.remote.transport import Connected, Replies

log = logging.getLogger("direct")


class Direct:
    """Nodes by number, each with the config that its owner would write."""

    def __init__(self, configs: Iterable[Mapping[str, Any]]) -> None:
        self.configs = dict(enumerate(configs, start=1))

    def nodes(self) -> Sequence[Connected]:
        return [Connected(node) for node in self.configs]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        there = [node for node in asks if node in self.configs]  # a node that is gone is missing from the replies
        sent = {node: encode_ask(asks[node]) for node in there}
        came = {node: answer(sent[node], self.configs[node]) for node in there}
        crossed = sum(len(data) for data in (*sent.values(), *came.values()))
        return Replies({node: decode_reply(data) for node, data in came.items()}, crossed)


def answer(question: bytes, node: Mapping[str, Any]) -> bytes:
    """The client's side: bytes in, bytes out."""
    return encode_answer(answered(lambda: decode_ask(question), node, log))


if __name__ == "__main__":
    nodes = Direct({"partition-id": k, "allow": "forget"} for k in range(3))
    what = {"run-folder": sys.argv[1], "forget-clients": "1", "min-nodes": 3, "wait-seconds": 1.0}
    sizes = "partition.clients=3; training.rounds=2; unlearning.rounds=2; model.name=cnn-tiny"
    last = run(nodes, {**what, "set": sizes}).lines()[-1]
    print(f"asked in the last round: {last['asked']}; forget accuracy {last['forget']:.1f} %")
