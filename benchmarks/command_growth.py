"""How commands grow with clients, parameters, and requests in one folder: CPU seconds and memory of whole processes.

    python benchmarks/command_growth.py                                every axis (about 20 minutes on one core)
    python benchmarks/command_growth.py --axis requests --most 100     one axis, up to this size
    python benchmarks/command_growth.py --table RECORD.jsonl           a record as a table, with slopes

    clients      10 to 10,000 clients of four random 8x8 images; one client leaves
    parameters   10⁴ to 10⁸ parameters in a two-layer network; 4 clients
    requests     1 to 1,000 requests in a folder, each for one row, all served; then one more

A row is one command as a process of its own, start of Python included: CPU seconds, those that the system took (to
hand out memory, above all), and the peak of memory. A slope is the exponent over the last ten-fold step, after the
least that the command takes at any size is subtracted: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from unfed import rng
from unfed.data import Request
from unfed.requests.options import RequestOptions
from unfed.runs.run import Run
from workload import add_rows

HERE = Path(__file__).resolve().parent
SIZES = {
    "clients": (10, 100, 1_000, 10_000),
    "parameters": (10**4, 10**5, 10**6, 10**7, 10**8),
    "requests": (1, 10, 100, 1_000),
}
AFTER = (("status",), ("check",), ("report",), ("lineage", "--affected", "0"), ("export", "-o", "model.safetensors"))


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Random images, as many as the environment says. The rows' configs name this function."""
    generator = rng.generator(1)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
        return pixels, torch.arange(count) % 10

    return draw(int(os.environ["UNFED_ROWS"])), draw(200)


def network(shape: Sequence[int], classes: int) -> nn.Module:
    """Two layers with about as many parameters as the environment says."""
    width = int(os.environ["UNFED_PARAMETERS"]) // (math.prod(shape) + classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, classes))


def config(axis: str, size: int) -> str:
    clients = {"clients": size, "parameters": 4, "requests": 10}[axis]
    rows = {"clients": 4 * size, "parameters": 64, "requests": 4_000}[axis]
    os.environ |= {"UNFED_ROWS": str(rows), "UNFED_PARAMETERS": str(size if axis == "parameters" else 10_000)}
    return f"""
name = "grown"
device = "cpu"
data.name = "command_growth:images"
partition = {{ clients = {clients}, validation = 0.0 }}
model.name = "command_growth:network"
training = {{ rounds = 2, batch = 16 }}
evaluation.attack = false
gate.max_drop = 100.0
engine.threads = 1
"""


def spent(words: Sequence[str], folder: Path) -> dict[str, float]:
    """One command as a process: its CPU seconds, its peak of memory."""
    there = os.getcwd()
    os.chdir(folder)
    try:
        with Path("said.txt").open("w") as said:
            to = [(os.POSIX_SPAWN_DUP2, said.fileno(), stream) for stream in (1, 2)]
            environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
            own = os.posix_spawn(sys.executable, [sys.executable, "-m", "unfed", *words], environment, file_actions=to)
            _, status, used = os.wait4(own, 0)
        if code := os.waitstatus_to_exitcode(status):
            sys.exit(f"unfed {' '.join(words)} ended with {code}: {Path('said.txt').read_text()[-600:]}")
    finally:
        os.chdir(there)
    seconds = {"cpu_seconds": round(used.ru_utime + used.ru_stime, 3), "of_the_system": round(used.ru_stime, 3)}
    return {**seconds, "peak_mib": used.ru_maxrss // 1024}


def measured(axis: str, size: int, folder: Path) -> Iterator[dict[str, object]]:
    """Every command at one size."""
    code = "--allow-code"
    (folder / "grown.toml").write_text(config(axis, size))
    yield {"command": "run", **spent(["run", "grown.toml", code, "-q"], folder)}
    run = "runs/grown"
    leave = ["forget", run, code, "--method", "ft", "--until", "1", "-q"]
    if axis == "requests":
        yield {"command": "serve all", **served(folder, size)}
        (folder / "one.csv").write_text(f"row\n{size}\n")
        leave += ["--samples", "one.csv", "--id", "last"]
    else:
        leave += ["--client", "0", "--id", "last"]
    yield {"command": "forget", **spent(leave, folder)}
    for name, *rest in AFTER:
        yield {"command": name, **spent([name, run, *rest], folder)}
    yield {"command": "purge", **spent(["purge", run, "--request", "last", "--yes", code], folder)}


def served(folder: Path, requests: int) -> dict[str, float]:
    """So many requests for one row each are filed, then served together by `unfed resume`: the resume is measured."""
    from unfed import plugins

    sys.path.insert(0, str(HERE))
    with plugins.allow_code():
        run = Run.open(folder / "runs/grown")
        for row in range(requests):
            run.ask(Request(f"row-{row}", rows=(row,)), "ft", until=1, how=RequestOptions(together=True))
    return spent(["resume", "runs/grown", "--allow-code", "-q"], folder)


def table(record: Path) -> str:
    """The rows of a record as Markdown: a command per line, sizes across, the slope last."""
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    said = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        sizes = sorted({row["size"] for row in rows if row["axis"] == axis})
        said += [f"| {axis} | " + " | ".join(f"{n:,}" for n in sizes) + " | slope |"]
        said += ["|---|" + "---:|" * (len(sizes) + 1)]
        for command in dict.fromkeys(row["command_name"] for row in rows if row["axis"] == axis):
            at = {r["size"]: r for r in rows if (r["axis"], r["command_name"]) == (axis, command)}
            cells = [f"{at[n]['cpu_seconds']:.1f} s, {at[n]['peak_mib'] / 1024:.1f} GiB" for n in sizes]
            said.append(f"| `{command}` | {' | '.join(cells)} | {slope([at[n]['cpu_seconds'] for n in sizes])} |")
        said.append("")
    return "\n".join(said)


def slope(seconds: Sequence[float]) -> str:
    """The exponent over the last ten-fold step, beyond the least of them; "flat" below half a second.

    "?" where the step begins too near the least to tell.
    """
    least, before, last = min(seconds), seconds[-2], seconds[-1]
    if last - least < 0.5:
        return "flat"
    return f"{math.log10((last - least) / (before - least)):.1f}" if before - least > 0.25 else "?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", action="append", choices=[*SIZES], help="only these; repeat for more")
    parser.add_argument("--most", type=int, default=10**8, help="no larger size")
    parser.add_argument("--least", type=int, default=1, help="no smaller size")
    parser.add_argument("--table", type=Path, help="only print the table of this record")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    for axis in options.axis or SIZES:
        for size in (size for size in SIZES[axis] if options.least <= size <= options.most):
            with tempfile.TemporaryDirectory() as folder:
                for row in measured(axis, size, Path(folder)):
                    own = {"axis": axis, "size": size, "command_name": row.pop("command"), **row}
                    print(own, flush=True)
                    add_rows("command-growth", torch.device("cpu"), [own])


if __name__ == "__main__":
    main()
