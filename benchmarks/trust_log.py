"""What a log of who took part costs: a round, the proof that a client took part in none, its verification.

    python benchmarks/trust_log.py [--rounds 2000]

Rounds without training: pseudonyms, the root over them, a leaf that is synced to the disk, a signed checkpoint at every
tenth. Then the proof that a client took part in none of them. CPU seconds beside the clock's, because the disk waits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unfed.requests.entry import now
from unfed.trust import signing
from unfed.trust.log import Log, absence
from unfed.trust.participation import Participants, Pseudonyms
from unfed.trust.verifier import absent
from workload import add_rows


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, the clock's seconds and the processor's."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def measured(clients: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder, key = Path(scratch), signing.SigningKey.drawn()
        log, people, names = Log(folder, "benchmark"), Participants(folder), Pseudonyms(folder)
        stay = [str(number) for number in range(1, clients)]

        def work() -> None:
            for number in range(rounds):
                told = {"seed": 0, "request": "r", "method": "not", "round": number, "model": "0" * 64}
                told |= {"participants": people.root(names.of(stay).values())}
                log.append({"type": "round", "at": now(), **told})
                if number % 10 == 9 or number == rounds - 1:
                    log.sign(key)

        _, wall, cpu = timed(work)
        size = sum(path.stat().st_size for path in folder.iterdir())
        me = names.of(["0"])["0"]
        leaves = log.leaves
        members = {leaf["participants"]["root"]: leaf["participants"] for leaf in leaves if leaf["type"] == "round"}
        absences, made, _ = timed(lambda: {root: absence(people.of(root), me) for root in members})
        shown, seen, _ = timed(lambda: [absent(me, absences[root], one) for root, one in members.items()])
        assert all(shown)
    return {
        "name": f"{clients} clients, {rounds} rounds",
        "ms_a_round": round(1000 * wall / rounds, 2),
        "cpu_ms_a_round": round(1000 * cpu / rounds, 2),
        "bytes": size,
        "proof_bytes": len(json.dumps([leaves, absences])),
        "seconds_to_prove": round(made, 4),
        "seconds_to_verify": round(seen, 4),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    asked = parser.parse_args()
    for count in (10, 1000):
        row = measured(count, asked.rounds)
        print(json.dumps(row), flush=True)
        add_rows("trust-log", torch.device("cpu"), [row])
    sys.exit(0)
