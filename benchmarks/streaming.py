"""What a round costs a Flower server beside stock FedAvg: memory, CPU seconds, bytes.

    python benchmarks/streaming.py [--megabytes 50] [--replies 20,60,200] [--record FILE.csv]
    python benchmarks/streaming.py --megabytes 100 --nodes 1000 --replies 50     1,000 nodes, 50 sampled per round

A grid without nodes makes each reply when it is pulled, as Flower's own grid does, so what is counted is the server's
alone: the CPU seconds in which replies are made are taken off. Each case is a process of its own; `anonymous` is memory
that cannot be given back, `file` is what lies mapped from the spool's file and goes when memory is short. Both are
peaks above what the process had before the round, in models. `megabytes` are the messages of the round as Flower packs
them, both ways; who a node is is asked once, of every node, and counted too.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from unfed.client.plan import Phase, Plan
from unfed.federation.aggregate import average
from unfed.flower import Unlearn, negate_arrays, node_with
from unfed.flower.introduction import ANSWER, QUESTION
from unfed.flower.transport import SPEECH, GridTransport
from unfed.remote.engine import Remote
from unfed.remote.transport import Messenger


class Replying(Grid):
    """Answers every question, when it is pulled, with a model of the same shapes."""

    def __init__(self, nodes: int, like: Mapping[str, torch.Tensor], own: bool) -> None:
        self.nodes, self.own = nodes, own
        self.like = dict(ArrayRecord({n: t + 1 for n, t in like.items()}))  # type: ignore[arg-type]
        self.waiting: dict[str, Message] = {}
        self.cpu, self.bytes, self._sizes = 0.0, 0, dict[tuple[str, bool], int]()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a running server app

    def set_run(self, run: Any) -> None:
        """Nothing to remember."""

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for place, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(place)
            self.waiting[str(place)] = message
            self._count(message, reply=False)
        return list(self.waiting)

    def _count(self, message: Message, reply: bool) -> None:
        """Messages of one kind are of one size, but for a few bytes of their ids."""
        began, kind = time.thread_time(), (message.metadata.message_type, reply)
        if kind not in self._sizes:
            self._sizes[kind] = message_to_proto(message).ByteSize()
        self.bytes += self._sizes[kind]
        self.cpu += time.thread_time() - began

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.answered(self.waiting.pop(name)) for name in list(message_ids) if name in self.waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def answered(self, question: Message) -> Message:
        began = time.thread_time()
        reply = self._answered(question)
        self.cpu += time.thread_time() - began
        self._count(reply, reply=True)
        return reply

    def _answered(self, question: Message) -> Message:
        node = question.metadata.dst_node_id
        if question.metadata.message_type == QUESTION:
            who = ConfigRecord({"partition-id": node, "num-partitions": self.nodes + 1})
            return self.signed(Message(RecordDict({ANSWER: who}), reply_to=question), node)
        # A copy of its own for every reply, and no more: what a client computes is not the server's memory.
        arrays = ArrayRecord({n: replace(a, data=a.data[:-1] + a.data[-1:]) for n, a in self.like.items()})
        records: dict[str, Any] = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}
        if self.own:
            words = {"digest": str(question.content.config_records["ask"]["digest"])}
            counts = MetricRecord({"samples": 10, "trained": 10, "forwarded": 0, "dropped": 0})
            records = {"answer": ConfigRecord(words), "counts": counts, "params": arrays}
        return self.signed(Message(RecordDict(records), reply_to=question), node)

    @staticmethod
    def signed(reply: Message, node: int) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


class Peak:
    """The most memory of this process, by kind, while it lasts."""

    def __init__(self) -> None:
        self.base, self.most, self._on = self.now(), {"RssAnon": 0, "RssFile": 0}, True
        self._thread, self.cpu = threading.Thread(target=self._look), 0.0

    @staticmethod
    def now() -> dict[str, int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return {key: int(line.split()[1]) * 1024 for line in lines for key in ("RssAnon", "RssFile") if key in line}

    def _look(self) -> None:
        while self._on:
            now = self.now()
            self.most = {key: max(self.most[key], now[key] - self.base[key]) for key in now}
            time.sleep(0.002)
        self.cpu = time.thread_time()

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()


def one(kind: str, replies: int, megabytes: float, nodes: int) -> None:
    """One round in this process.

    It prints anonymous and file-backed memory in models, CPU seconds, megabytes and seconds.
    """
    torch.set_num_threads(2)
    like = {f"layer{i}.weight": torch.zeros(int(megabytes * 1e6 / 4 / 10)) for i in range(10)}
    size, grid = megabytes * 1e6, Replying(nodes, like, own=kind == "own")
    arrays = ArrayRecord({n: t for n, t in like.items()})  # type: ignore[arg-type]
    begun, cpu = time.monotonic(), time.process_time()
    with Peak() as peak:
        if kind == "own":
            plan = Plan(0, 1, (Phase(),))
            names = {str(node): node for node in list(grid.get_node_ids())[:replies]}
            directory = SimpleNamespace(
                speech=SPEECH, messenger=Messenger(GridTransport(grid), 600.0), look=lambda _: None, node=names.get,
                silent=lambda _: None, grown=set(),
            )  # fmt: skip
            engine = Remote(directory, "", like)  # type: ignore[arg-type]
            found = [block for block in engine.train(plan, like, list(names), {}) if not hasattr(block, "reason")]
            assert len(found) == replies, len(found)
            average(like, found)
        else:
            quiet = {"fraction_train": replies / nodes, "fraction_evaluate": 0.0, "min_available_nodes": 2}
            strategy = FedAvg(**quiet)
            if kind == "Unlearn":
                leaver = node_with(partition_id=0, num_partitions=nodes + 1)
                ledger = f"{tempfile.mkdtemp()}/ledger"
                strategy = Unlearn(
                    partial(FedAvg, **quiet), negate_arrays("layer0.weight"), exclude=leaver, ledger=ledger, gone=True
                )
            strategy.start(grid, arrays, num_rounds=1)
    memory = [f"{peak.most[key] / size:.2f}" for key in ("RssAnon", "RssFile")]
    cpu = time.process_time() - cpu - grid.cpu - peak.cpu
    print(*memory, f"{cpu:.1f}", f"{grid.bytes / 1e6:.1f}", f"{time.monotonic() - begun:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--replies", default="20,60,200")
    parser.add_argument("--nodes", type=int, default=0, help="of which so many replies are sampled; default: all reply")
    parser.add_argument("--kinds", default="own,stock FedAvg")
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, default=None)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], int(options.one[1]), options.megabytes, options.nodes or int(options.one[1]))
        return
    rows = []
    for kind in options.kinds.split(","):
        for replies in map(int, options.replies.split(",")):
            command = [sys.executable, __file__, "--one", kind, str(replies), "--megabytes", str(options.megabytes)]
            command += ["--nodes", str(options.nodes)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            said = dict(
                zip(("anonymous", "file", "cpu", "megabytes", "seconds"), done.stdout.split()[-5:], strict=True)
            )
            rows.append({"server": kind, "nodes": options.nodes or replies, "replies": replies, **said})
            print(rows[-1], flush=True)
    if options.record:
        with options.record.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
