"""Rows of the matrix in processes side by side, each row written down when it is done.

A worker is a process of its own that takes names of rows and gives back their numbers, one JSON line each. One that
dies, or whose device is in a bad state, costs its row and is replaced; a row that takes too long ends with its worker.
Whatever is in a record and held is not run again, so that a time limit costs nothing but the rest.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

import matrix
from workload import RECORDS, add_rows

ROW_SECONDS = 300.0
"""What a row may take, a few compilations included."""


# --- in a worker ------------------------------------------------------------------------------------------------------


def serve(device: str) -> None:
    """Take names from stdin until it ends. What the runs print goes to stderr: stdout is for the numbers."""
    out, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    rows = {row.name: row for row in matrix.all_rows()}
    for line in sys.stdin:
        found = attempted(rows[line.strip()], device)
        print(json.dumps(found), file=out, flush=True)
        if "CUDA error" in str(found.get("failed")):
            return  # nothing that comes after it in this process would work
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def attempted(row: matrix.Row, device: str) -> dict[str, Any]:
    """The row's numbers, or the sentence that ended it."""
    started = time.perf_counter()
    try:
        return matrix.compared(row, device)
    except Exception as error:
        said = str(error).strip().splitlines()
        seconds = round(time.perf_counter() - started, 1)
        return {"failed": f"{type(error).__name__}: {said[0] if said else ''}"[:300], "seconds": seconds, "ok": False}


# --- around the workers -----------------------------------------------------------------------------------------------


class Worker:
    """A process that serves rows, started when the first is asked for and again after it died."""

    def __init__(self, device: str, seconds: float = ROW_SECONDS, command: Sequence[str] | None = None) -> None:
        here = [sys.executable, str(Path(__file__).with_name("gpu_check.py")), "--serve", "--device", device]
        self.seconds, self.command = seconds, command or here
        self.process: subprocess.Popen[str] | None = None
        self.log: IO[str] | None = None

    def __call__(self, row: matrix.Row) -> dict[str, Any]:
        process = self._alive()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(self.seconds, process.kill)
        late.start()
        try:
            process.stdin.write(row.name + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            overdue = not late.is_alive()
            late.cancel()
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        code = process.wait()
        why = f"took longer than {self.seconds:.0f} s" if overdue else f"the process ended with {code}: {self._last()}"
        return {"failed": why[:300], "seconds": self.seconds if overdue else None, "ok": False}

    def _alive(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open for as long as the process)
            # Many processes share the cores: none of them may start threads of its own, the compiler few.
            env = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2", **os.environ}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=self.log, text=True, env=env)
        return self.process

    def _last(self) -> str:
        assert self.log is not None
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
        if self.log is not None:
            self.log.close()


def done(device: str, records: Path | None = None) -> set[str]:
    """The names of the rows that held, in any record of this device."""
    found: set[str] = set()
    for path in sorted((records or RECORDS).glob(f"*-matrix-{device}.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        found |= {row["name"] for row in rows if row["ok"]}
    return found


def run(
    rows: Sequence[matrix.Row], device: str, workers: int, limit: float | None, row_seconds: float = ROW_SECONDS
) -> list[dict[str, Any]]:
    """Every row, in the order given, on as many processes; none is begun after `limit` seconds."""
    waiting, lock, found = deque(rows), threading.Lock(), list[dict[str, Any]]()
    started, code = time.monotonic(), matrix.source_digest()

    def work() -> None:
        worker = Worker(device, row_seconds)
        while True:
            with lock:
                if not waiting or (limit is not None and time.monotonic() - started > limit):
                    break
                row = waiting.popleft()
            numbers = {"part": "matrix", "name": row.name, **asdict(row), **worker(row), "source": code}
            with lock:
                found.append(numbers)
                add_rows("matrix", torch.device(device), [numbers])
                print(said(numbers, len(found), len(rows), time.monotonic() - started), flush=True)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(min(workers, len(rows)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def said(row: dict[str, Any], number: int, count: int, seconds: float) -> str:
    """One row in one line."""
    numbers = row.get("failed") or f"worst {row['worst']:.1e}, allowed {row['allowed']}"
    mark = "ok  " if row["ok"] else "NOT "
    more = f" {row['said']}" if row.get("said") else ""
    return f"{seconds:6.0f} s {number:4}/{count} {mark} {row['name']}: {numbers}, {row['seconds']} s{more}"


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """The worst of every way and precision, and what did not hold."""
    table: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows = list(rows)
    for row in rows:
        table.setdefault((row["way"], row["precision"]), []).append(row)
    lines = []
    for (way, precision), own in sorted(table.items()):
        worst = max((row["worst"] for row in own if "worst" in row), default=float("nan"))
        spent = sum(row["seconds"] or 0.0 for row in own)
        held = sum(row["ok"] for row in own)
        lines.append(f"{way:20} {precision:8} {held:4} of {len(own):4} hold, worst {worst:.1e}, {spent:.0f} s of work")
    bad = [row for row in rows if not row["ok"]]
    lines += [f"NOT {row['name']}: {row.get('failed', row.get('worst'))} {row.get('said', '')}" for row in bad]
    return "\n".join(lines)
