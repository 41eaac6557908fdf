"""Stock FedAvg and `Unlearn` around it, one after the other on the same nodes, measured at the server.

Seconds are those that the strategy computes (CPU time of its thread without the time inside the grid, which waits and
moves bytes); bytes are of the messages as Flower packs them, to and from the nodes. The question who a node is is
counted apart: it is asked once per run. Memory is what the process of the server app holds at most, above what it held.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from unfed.flower import Unlearn, negate_arrays, node_with

SHAPES = {  # the network of Flower's PyTorch quickstart: 62,006 numbers
    "conv1.weight": (6, 3, 5, 5),
    "conv1.bias": (6,),
    "conv2.weight": (16, 6, 5, 5),
    "conv2.bias": (16,),
    "fc1.weight": (120, 400),
    "fc1.bias": (120,),
    "fc2.weight": (84, 120),
    "fc2.bias": (84,),
    "fc3.weight": (10, 84),
    "fc3.bias": (10,),
}

app = ServerApp()


def held(what: str) -> float:
    """Megabytes of this process: `VmRSS` now, or `VmHWM` at most since its mark was taken away."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024 / 1e6


class Counted(Grid):
    """A grid that counts bytes and messages by kind, and the CPU time spent in it."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.cpu, self.bytes, self.messages = grid, 0.0, Counter[str](), Counter[str]()

    def _timed(self, done: Any) -> Any:
        began = time.thread_time()
        try:
            return done()
        finally:
            self.cpu += time.thread_time() - began

    def _count(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        for message in found:
            kind = message.metadata.message_type
            self.bytes[kind] += message_to_proto(message).ByteSize()
            self.messages[kind] += 1
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        def done() -> list[Message]:
            asked = self._count(messages)
            return self._count(self.grid.send_and_receive(asked, timeout=timeout))

        return self._timed(done)

    def get_node_ids(self) -> Iterable[int]:
        return self._timed(lambda: list(self.grid.get_node_ids()))

    def get_nodes(self) -> Iterable[Any]:
        return self._timed(lambda: list(self.grid.get_nodes()))

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *args: Any, **more: Any) -> Message:
        return self.grid.create_message(*args, **more)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Pairs of starts; a line of JSON for each."""
    said = context.run_config
    pairs, rounds, nodes = int(said["pairs"]), int(said["rounds"]), int(said["nodes"])
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    drawn = np.random.default_rng(0)
    arrays = ArrayRecord({name: Array(drawn.standard_normal(s).astype("float32")) for name, s in SHAPES.items()})
    leaver = node_with(partition_id=0, num_partitions=nodes)
    makers = {
        "FedAvg": FedAvg,
        "Unlearn": lambda: Unlearn(FedAvg, negate_arrays("conv1.weight"), leaver, f"{tempfile.mkdtemp()}/ledger"),
    }
    if said["warm"]:
        FedAvg().start(grid, arrays, num_rounds=1)  # the simulator starts its processes once, which is not counted
    with open(str(said["out"]), "a") as out:
        for pair in range(pairs):
            order = list(makers) if pair % 2 == 0 else list(makers)[::-1]
            for name in order:
                counted, strategy, wall = Counted(grid), makers[name](), time.perf_counter()
                Path("/proc/self/clear_refs").write_text("5")
                began, before = time.thread_time(), held("VmRSS")
                strategy.start(counted, arrays, num_rounds=rounds, timeout=float(said["timeout"]))
                own = time.thread_time() - began - counted.cpu
                line = {"strategy": name, "pair": pair, "rounds": rounds, "own_cpu_s": own, "grid_cpu_s": counted.cpu}
                line |= {"wall_s": time.perf_counter() - wall, "bytes": counted.bytes, "messages": counted.messages}
                line |= {"memory_mb": held("VmHWM") - before, "memory_before_mb": before}
                print(json.dumps(line), file=out, flush=True)
