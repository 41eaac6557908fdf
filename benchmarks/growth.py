"""How a run folder grows: with clients, rounds, requests and recorded histories; and what a save costs.

    python benchmarks/growth.py                                      all of it, some minutes on one core
    python benchmarks/growth.py --clients 10 --no-save               one row and the one beside it, a few seconds

Each row is a real run: training, then requests of single clients, served by NoT in one round each. Clients hold four
random 8x8 images, the model is `cnn-tiny`, 200 test rows are scored after every round, and a job is saved every ten
rounds. Counted are the bytes of all files by what they are, before and after `unfed prune`. With histories, FedEraser,
FUKD and PGD record every round.

A save is timed on the histories of the last row: all of it is written once, then again after the records of one client,
of a hundredth and of all clients have changed. Its bytes are those of the state and what was added to the histories.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed import plugins, rng
from unfed.data import Request
from unfed.federation.history import History, Record
from unfed.runs.config import Config
from unfed.runs.folder import Job, RunFolder
from unfed.runs.prune import prune
from unfed.runs.run import Run
from workload import attempt, write

ROWS, TEST_ROWS, CLASSES = 4, 200, 10
HISTORIES = ("federaser", "fukd", "pgd")
TRAINING = Job(0, None, "train")
KINDS = ("samples", "state", "history", "models", "other")


@dataclass(frozen=True)
class Size:
    """What a run has: so many clients, rounds of training and requests."""

    clients: int
    rounds: int = 10
    requests: int = 1

    @property
    def name(self) -> str:
        return f"{self.clients} clients, {self.rounds} rounds, {self.requests} requests"


ALL = (
    *(Size(clients) for clients in (10, 100, 1_000, 10_000)),
    *(Size(100, rounds=rounds) for rounds in (40, 160)),
    *(Size(100, requests=requests) for requests in (4, 16)),
)


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Random images, so many as the row in work needs. The rows' configs name it."""
    generator = rng.generator(1)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
        return pixels, torch.arange(count) % CLASSES

    return draw(int(os.environ["UNFED_GROWTH_ROWS"])), draw(TEST_ROWS)


def config(size: Size, recorded: bool) -> Config:
    os.environ["UNFED_GROWTH_ROWS"] = str(ROWS * size.clients)
    return Config.parse(
        {
            "name": "growth",
            "device": "cpu",
            "data": {"name": "growth:images"},
            "partition": {"clients": size.clients, "validation": 0.25},
            "model": {"name": "cnn-tiny"},
            "training": {"rounds": size.rounds, "batch": ROWS, "record": list(HISTORIES if recorded else ())},
            "evaluation": {"attack": False},
            "gate": {"max_drop": 100.0},
            "checkpoint": {"rounds": 10, "seconds": None},
            "engine": {"threads": 1},
        }
    )


def sizes(folder: Path) -> dict[str, int]:
    """The bytes of a run folder, by what they are."""
    found = dict.fromkeys(KINDS, 0)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        kind = path.relative_to(folder).parts[0]
        kind = "history" if ".history-" in path.name else kind if kind in KINDS else "other"
        found[kind] += path.stat().st_size
    return {"total": sum(found.values()), **found}


def grown(size: Size, recorded: bool, folder: Path) -> dict[str, object]:
    """One run, and what its folder holds."""
    started = time.perf_counter()
    run = Run.create(config(size, recorded), folder)
    run.execute()
    for k in range(size.requests):
        run.forget(Request(f"r{k}", clients=(str(k),)), "not", until=1)
    seconds = time.perf_counter() - started
    before = sizes(folder)
    prune(run.folder)
    return {
        "clients": size.clients,
        "rounds": size.rounds,
        "requests": size.requests,
        "histories": len(HISTORIES) if recorded else 0,
        "parameters": run.description["parameters"],
        "bytes": before,
        "pruned": sizes(folder)["total"],
        "seconds": round(seconds, 1),
    }


# --- one save ---------------------------------------------------------------------------------------------------------


def touched(history: History, clients: int) -> History:
    """The same history after a round in which so many clients took part."""

    def anew(record: Record) -> Record:
        return Record({n: t.clone() for n, t in record.tensors.items()}, {**record.numbers, "touched": history.rounds})

    own = {c: anew(record) if i < clients else record for i, (c, record) in enumerate(history.own.items())}
    return replace(history, rounds=history.rounds + 1, own=own)


def saves(made: RunFolder) -> list[dict[str, object]]:
    """Seconds and bytes of saves of a state with the histories that a run recorded."""
    loaded, kept = made.load_state(TRAINING), made.load_histories(TRAINING)
    assert loaded is not None
    state = loaded[0]
    everybody = max(len(history.own) for history in kept.values())
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as where:
        folder, before = RunFolder(where), 0
        for changed in (everybody, 1, max(1, everybody // 100), everybody):
            kept = {label: touched(history, changed) for label, history in kept.items()}
            started = time.perf_counter()
            folder.save_state(TRAINING, state, {"offset": 0, "finished": None}, kept)
            seconds = time.perf_counter() - started
            log = sum(path.stat().st_size for path in Path(where).rglob("*.history-*"))
            own = folder.state_file(TRAINING).stat().st_size
            first = not rows
            added = log if first or log < before else log - before
            row = {"clients": everybody, "changed": "the first save" if first else changed}
            rows.append({**row, "seconds": round(seconds, 3), "state_bytes": own, "history_bytes": added})
            before = log
            print(rows[-1], flush=True)
    return rows


def wanted(clients: Sequence[int]) -> list[Size]:
    return [size for size in ALL if not clients or (size.clients in clients and size == Size(size.clients))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, action="append", help="only these numbers of clients; repeat for more")
    parser.add_argument("--no-save", action="store_true", help="do not time a save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    body: dict[str, Any] = {"model": "cnn-tiny", "rows": rows}
    with plugins.allow_only(("growth:images",)), tempfile.TemporaryDirectory() as top:
        for size in wanted(options.clients or ()):
            for recorded in (False, True):
                folder = Path(top, f"{size.name} {recorded}".replace(",", ""))
                name = f"{size.name}, {'three histories' if recorded else 'no history'}"
                rows.append(attempt(name, lambda size=size, at=(recorded, folder): grown(size, *at)))  # type: ignore[misc]
        most = max((row for row in rows if row.get("histories")), key=lambda row: row["clients"], default=None)  # type: ignore[arg-type,return-value]
        if most is not None and not options.no_save:
            last = Size(int(str(most["clients"])))
            body["saves"] = saves(RunFolder(Path(top, f"{last.name} True".replace(",", ""))))
    print(write("growth", torch.device("cpu"), body))
    sys.exit(1 if any("failed" in row for row in rows) else 0)


if __name__ == "__main__":
    main()
