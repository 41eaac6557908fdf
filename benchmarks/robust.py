"""What one hostile client of 4, 10 and 100 does to a training and to NoT's recovery, on digits.

    PYTHONPATH=src python benchmarks/robust.py [--clients 4 10 100] [--part simulator transport inside] [--record FILE]

All clients train, then client 0 leaves by NoT. Client 1 is hostile in every round of both (`tests/hostile.py`). Each
line of the record is one run: test accuracy of the trained and of the recovered model, and who was named; `without` is
the run in which client 1 never answers, `once` the one in which it answers its first question only: whoever repeats
an answer was honest when it gave it. `simulator` and `transport` (clients in this process, over messages) send what
no honest training makes, under the default settings; `inside` sends what looks honest, under each rule of
`training.robust`. The simulator counts rows itself and has no messages, so there a client cannot lie about its weight
or its census, nor answer an old question.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from unfed.config.config import Config
from unfed.engines import Batched
from unfed.remote.messages import TRAIN, Ask
from unfed.remote.server import run as serve
from unfed.remote.transport import Replies
from unfed.runs.run import Run
from unfed.runs.simulated import simulated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hostile import INSIDE, OUTSIDE, REPEATED, Attacker, HostileNodes, attacked, mislabelled

HOSTILE = "1"
LIES = ("weight", "census")
RULES = {"mean": {}, "norm": {"bound": 1.0}, "median": {}, "trimmed": {"trim": 0.2}}
SIZES = {"training.rounds": 15, "unlearning.rounds": 10, "evaluation.every": 5, "evaluation.attack": False}
SIZES |= {"model.name": "cnn-tiny", "training.lr": 0.1, "checkpoint.rounds": 5, "gate.max_drop": 100.0}


def sizes(clients: int, rule: str) -> dict[str, Any]:
    batch = {"training.batch": 32 if clients < 100 else 8, "partition.clients": clients}
    robust = {"training.robust.rule": rule} | {f"training.robust.{n}": v for n, v in RULES[rule].items()}
    return {"name": "hostile", **SIZES, **batch, **robust}


@contextmanager
def silent(client: str) -> Iterator[None]:
    """A client that never answers, in the simulator."""
    train = Batched.train

    def others(self: Batched, plan: Any, params: Any, clients: Any, *rest: Any) -> Iterator[Any]:
        yield from train(self, plan, params, [c for c in clients if c != client], *rest)

    Batched.train = others  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Batched.train = train  # type: ignore[method-assign]


def simulator(folder: Path, attack: str, clients: int, rule: str) -> Run:
    request = ['request={id="leaves", clients=["0"]}', 'methods.run=["not"]', 'engine.name="batched"']
    config = Config.parse({}, [f"{key}={json.dumps(value)}" for key, value in sizes(clients, rule).items()] + request)
    world = simulated(config, 0)
    ways: dict[str, AbstractContextManager[None]] = {"without": silent(HOSTILE), "none": nullcontext()}
    if attack == "labels":
        ways["labels"] = mislabelled(next(client for client in world.clients if client.name == HOSTILE))
    with ways.get(attack) or attacked(Batched, HOSTILE, Attacker(attack)):
        run = Run.create(config, folder, world)
        run.execute()
    return run


class Once(HostileNodes):
    """Client 1 answers the first question to train, and no other."""

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        found = super().send(asks, timeout)
        self.deaf |= {node for node, ask in asks.items() if node == 2 and ask.kind == TRAIN}
        return found


def transport(folder: Path, attack: str, clients: int, rule: str) -> Run:
    nodes = (Once if attack == "once" else HostileNodes)(
        ({"partition-id": k, "allow": "forget"} for k in range(clients)), {}
    )
    what = {f"experiment.{key}": value for key, value in sizes(clients, rule).items()}
    what |= {"run-folder": str(folder), "forget-clients": "0", "wait-seconds": 60.0}
    what |= {"min-nodes": clients - (attack == "census")}  # a node that lies there is refused before the first round
    if attack == "without":
        nodes.deaf = {2}
    elif attack not in ("none", "once"):
        nodes.hostile = {2: Attacker(attack)}
    return serve(nodes, what)


def told(run: Run) -> dict[str, Any]:
    lines = [line for line in run.lines() if line["method"] in ("train", "not")]
    named = sorted({one["client"] for line in lines for one in line.get("refused", ())})
    reasons = sorted({str(one["reason"])[:90] for line in lines for one in line.get("refused", ())})
    last = {line["method"]: round(float(line["test"]), 2) for line in lines}
    return {"trained": last["train"], "recovered": last["not"], "named": named, "reason": reasons[:1]}


def cases(parts: list[str]) -> Iterator[tuple[str, str, str]]:
    """(part, attack, rule)"""
    for part in parts:
        if part == "inside":
            yield from ((part, attack, rule) for rule in RULES for attack in ("none", "without", *INSIDE))
        else:
            sent = [a for a in (*OUTSIDE, *REPEATED) if part == "transport" or a not in (*LIES, *REPEATED)]
            beside = ("without", "once") if part == "transport" else ("without",)
            yield from ((part, attack, "mean") for attack in (*beside, *sent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 10, 100])
    parser.add_argument("--part", nargs="+", default=["simulator", "transport", "inside"])
    parser.add_argument("--attacks", nargs="+", help="only these")
    parser.add_argument("--record", type=Path, help="a file for one JSON line per run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {
        "date": datetime.date.today().isoformat(),
        "hardware": "two shared x86-64 cores",
        "torch": torch.__version__.split("+")[0],
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "command": "python benchmarks/robust.py --record FILE",
    }
    with tempfile.TemporaryDirectory() as where:
        for number, (clients, (part, attack, rule)) in enumerate(
            (k, c) for k in given.clients for c in cases(given.part)
        ):
            if given.attacks and attack not in given.attacks:
                continue
            make = transport if part == "transport" else simulator
            case = {"part": part, "clients": clients, "attack": attack, "rule": rule}
            line = case | told(make(Path(where) / str(number), attack, clients, rule))
            print(json.dumps(line), flush=True)
            if given.record is not None:
                with given.record.open("a") as file:
                    file.write(json.dumps(line | about) + "\n")


if __name__ == "__main__":
    main()
