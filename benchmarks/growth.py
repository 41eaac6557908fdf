"""How a run folder grows: with clients, rounds, requests and recorded histories; and what a save costs.

    python benchmarks/growth.py                       everything that takes less than a minute or two on one core
    python benchmarks/growth.py --part clients --part save [--clients 1000]

Each row is a real run: training, then requests of single clients, the first served by NoT, later ones by FT. Clients
hold four random 8x8 images, the model is `cnn-tiny`, 200 test rows are scored after every round, and a job is saved
every ten rounds. Counted are the bytes of all files by what they are, before and after `unfed prune`. With histories,
FedEraser, FUKD and PGD record every round.

A save is timed on the histories of a run of a hundred clients, whose records are repeated until there are 10,000: all
of it is written once, then again after the records of one client, of a hundredth and of all clients have changed. Its
bytes are those of the state and what was added to the histories. Rows are added to the day's record as they are done.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from unfed import plugins, rng
from unfed.config.config import Config
from unfed.data import Request
from unfed.federation.history import ClientRecord, History
from unfed.folder.folder import RunFolder
from unfed.folder.purge import prune
from unfed.requests.entry import Job
from unfed.runs.run import Run
from workload import add_rows, attempt

ROWS, TEST_ROWS, CLASSES = 4, 200, 10
HISTORIES = ("federaser", "fukd", "pgd")
TRAINING = Job(0, None, "train")
KINDS = ("samples", "state", "history", "models", "other")


@dataclass(frozen=True)
class Size:
    """A run of so many clients, rounds of training and requests."""

    clients: int
    rounds: int = 10
    requests: int = 1

    @property
    def name(self) -> str:
        return f"{self.clients} clients, {self.rounds} rounds, {self.requests} requests"


PARTS = {
    "rounds": tuple(Size(10, rounds=rounds) for rounds in (10, 40, 160)),
    "requests": tuple(Size(10, requests=requests) for requests in (4, 8)),
    "clients": tuple(Size(clients) for clients in (100, 1_000, 10_000)),
}
MOST_RECORDED = 1_000
"""A run of more clients with three histories takes many minutes; what its save costs is measured by itself."""
MOST_SAVED = 10_000


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
        method = "ft" if k else "not"  # NoT again would turn its layer back
        run.forget(Request(f"r{k}", clients=(str(k),)), method, until=1)
    seconds = time.perf_counter() - started
    before = sizes(folder)
    prune(run.folder)
    return {
        "clients": size.clients,
        "rounds": size.rounds,
        "requests": size.requests,
        "histories": len(HISTORIES) if recorded else 0,
        "parameters": run.description.parameters,
        "bytes": before,
        "pruned": sizes(folder)["total"],
        "seconds": round(seconds, 1),
    }


# --- one save ---------------------------------------------------------------------------------------------------------


def touched_record(record: ClientRecord, at: int) -> ClientRecord:
    return ClientRecord({name: t.clone() for name, t in record.tensors.items()}, {**record.numbers, "touched": at})


def touched(history: History, clients: int) -> History:
    """The same history after a round in which so many clients took part."""
    at = history.rounds
    own = {c: touched_record(r, at) if i < clients else r for i, (c, r) in enumerate(history.own.items())}
    return replace(history, rounds=history.rounds + 1, own=own)


def repeated(history: History, clients: int) -> History:
    """A history of so many clients, each with the records of one that there is."""
    found = list(history.own.values())
    return replace(history, own={str(k): touched_record(found[k % len(found)], 0) for k in range(clients)})


def saves(made: RunFolder) -> Iterator[dict[str, object]]:
    """Seconds and bytes of saves of a state with three histories of very many clients."""
    loaded, kept = made.load_state(TRAINING), made.load_histories(TRAINING)
    assert loaded is not None
    kept = {label: repeated(history, MOST_SAVED) for label, history in kept.items()}
    with tempfile.TemporaryDirectory() as where:
        folder, before = RunFolder(where), 0
        for number, changed in enumerate((MOST_SAVED, 1, MOST_SAVED // 100, MOST_SAVED)):
            kept = {label: touched(history, changed) for label, history in kept.items()}
            started, spent = time.perf_counter(), time.process_time()
            folder.save_state(TRAINING, loaded[0], {"offset": 0, "finished": None}, kept)
            seconds, spent = time.perf_counter() - started, time.process_time() - spent
            log = sum(path.stat().st_size for path in Path(where).rglob("*.history-*"))
            yield {
                "name": f"save {number + 1}: {MOST_SAVED} clients, three histories, {changed} clients changed",
                "seconds": round(seconds, 3),
                "cpu_seconds": round(spent, 3),
                "state_bytes": folder.state_file(TRAINING).stat().st_size,
                "history_bytes_added": log - before,
            }
            before = log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS, "save"], help="only these; repeat for more")
    parser.add_argument("--clients", type=int, action="append", help="only runs of so many clients; repeat for more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpu, failed = torch.device("cpu"), False
    with plugins.allow_only(("growth:images",)), tempfile.TemporaryDirectory() as top:
        for part in options.part or [*PARTS, "save"]:
            if part == "save":
                made = Path(top, "recorded")
                grown(Size(100), True, made)
                for row in saves(RunFolder(made)):
                    print(row, flush=True)
                    add_rows("growth", cpu, [{"part": part, **row}])
                continue
            for size, recorded in product(PARTS[part], (False, True)):
                if (options.clients and size.clients not in options.clients) or (
                    recorded and size.clients > MOST_RECORDED
                ):
                    continue
                name = f"{size.name}, {'three histories' if recorded else 'no history'}"
                row = attempt(name, partial(grown, size, recorded, Path(top, name)))
                add_rows("growth", cpu, [{"part": part, **row}])
                failed = failed or "failed" in row
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
