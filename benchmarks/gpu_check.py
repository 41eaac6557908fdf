"""Is the fast path on a GPU right? Equality, kernels and resume, with numbers.

    PYTHONPATH=src python benchmarks/gpu_check.py [--part equality] [--row "float32 cnn"] [--list]
    PYTHONPATH=src python benchmarks/gpu_check.py --part matrix --workers 8 --limit 1000

kernels     the Triton kernels against float64 convolutions, for the fitted CNN and odd shapes, in float32 and bf16
equality    every engine against the sequential reference, in float64 and, with TF32 off, in float32: batched eager,
            batched and sequential recorded in a CUDA graph; IID and Dirichlet, dropout, augmentation, BatchNorm, ViT
compiler    the same through the compiler; what TF32 and bf16 change is reported, not judged
large       ResNet-18 and ViT-B/16 at 224, a few steps in float32: the compiled sequential engine against the reference
resume      four rounds in one go against two and two with everything rebuilt in between, in one and in another process,
            for every mode: as PyTorch is, with unfed's `fixed_order`, and with PyTorch's strict setting
matrix      real runs of every method, scope, engine and precision, and a covering set with poison, Dirichlet, ResNet-18
            and a transformer, against float64 on the CPU (`matrix.py`); in processes side by side, with a record of
            its own. What the record says to hold is not run again; --device cpu runs it on any machine, uncompiled

Every row can be run alone, and is appended to benchmarks/records/DATE-gpu-check-cuda.jsonl (and $OUT) when it is done,
so that a time limit loses nothing. Exits with 1 if anything that must be equal is not; resume rows only say what they
saw.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from unfed.client.plan import Optimiser, Phase, Plan
from unfed.engines import Batched, Engine, Sequential
from unfed.engines.choice import fixed_order
from unfed.engines.compiled import convolution, kernels, recorded
from unfed.federation import aggregate
from unfed.federation.state import State
from unfed.model.functional import Template
from unfed.model.params import Params
from workload import Workload, add_rows, attempt, digest, rounds, synthetic

CUDA = torch.device("cuda")
Check = Callable[[], dict[str, object]]


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernel_errors() -> dict[str, object]:
    """‖out − ref‖ / ‖ref‖ of the three products, the reference in float64; outputs are fresh random data each time."""
    worst: dict[str, float] = {}
    shapes = [(10, 64, 3, 32, 32, 5, 2), (10, 64, 32, 64, 16, 5, 2), (3, 7, 16, 24, 9, 3, 1), (2, 5, 20, 70, 7, 3, 0)]
    for dtype in (torch.float32, torch.bfloat16):
        for stack, images, entering, leaving, side, kernel, padding in shapes:
            x = torch.randn(images, stack * entering, side, side, device=CUDA).to(dtype)
            w = torch.randn(stack * leaving, entering, kernel, kernel, device=CUDA).to(dtype)
            y = torch.conv2d(x.double(), w.double(), None, 1, padding, 1, stack)
            dy = torch.randn_like(y).to(dtype)
            both = [padding, padding]
            dx, dw, _ = torch.ops.aten.convolution_backward(
                dy.double(), x.double(), w.double(), None, [1, 1], both, [1, 1], False, [0, 0], stack,
                [True, True, False],
            )  # fmt: skip
            found = convolution.convolve(x, w, padding, stack)
            fx, fw = convolution.convolve_backward(dy, x, w, padding, stack, [True, True])
            for what, got, want in (("y", found, y), ("dx", fx, dx), ("dw", fw, dw)):
                assert got is not None
                error = float((got.double() - want).norm() / want.norm())
                name = f"{what} {str(dtype).removeprefix('torch.')}"
                worst[name] = max(worst.get(name, 0.0), error)
                limit = 1e-2 if dtype == torch.bfloat16 else 2e-3
                assert error < limit, f"{name} at {(stack, images, entering, leaving, side)} is off by {error:.2g}"
    return dict(worst)


# --- engines ----------------------------------------------------------------------------------------------------------


def work_of(model: str, beta: float | None, dtype: torch.dtype, lr: float = 0.05) -> Workload:
    work = synthetic(CUDA, clients=4, images=700, side=16, model=model, batch=16, beta=beta, dtype=dtype)
    return replace(work, lr=lr)


def one_round(work: Workload, engine: Engine) -> Params:
    plan = Plan(5, 1, (Phase(batch=work.batch, optimiser=Optimiser(lr=work.lr)),))
    blocks = list(engine.train(plan, work.params(), list(work.clients), {}))
    order = {name: i for i, name in enumerate(work.clients)}
    return aggregate.average(work.params(), sorted(blocks, key=lambda b: order[b.clients[0]]))


def distance(a: Params, b: Params) -> float:
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Matrix products and convolutions of float32 in TF32, or not."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def backend(wanted: recorded.Backend) -> Iterator[None]:
    before, recorded.compiler = recorded.compiler, wanted
    try:
        yield
    finally:
        recorded.compiler = before


def differences(work: Workload, compiled: bool) -> dict[str, float]:
    """How far each way to run one round is from the sequential reference."""
    template, clients = work.template(), work.clients
    reference = one_round(work, Sequential(template, clients, compile=False))
    found = {"batched eager": distance(reference, one_round(work, Batched(template, clients, compile=False)))}
    for name, wanted in (("graph", recorded.as_traced), *([("compiled", recorded.inductor)] if compiled else [])):
        with backend(wanted):
            found[f"batched {name}"] = distance(reference, one_round(work, _recorded(work)))
            alone = Sequential(work.template(), clients, compile=True)
            found[f"sequential {name}"] = distance(reference, one_round(work, alone))
    return {**found, "moved": distance(reference, work.params())}


def equality(
    model: str, beta: float | None, dtype: torch.dtype, compiled: bool, limit: float, lr: float = 0.05
) -> Check:
    """Judged in float64 at a rate at which a round moves far, in float32 at a tenth of it: at the large rate one
    near-tie of a max-pool that rounding decides moves a weight by 1e-3 (`near_ties.py`)."""

    def check() -> dict[str, object]:
        with tf32(False):
            found = differences(work_of(model, beta, dtype, lr), compiled)
        worst = max(value for name, value in found.items() if name != "moved")
        assert worst < limit, f"off by {found}, allowed {limit}"
        return {**found, "allowed": limit}

    return check


def with_tf32() -> dict[str, object]:
    """What TF32 changes: the reference against itself, and each engine under it. Reported, not judged."""
    work = work_of("cnn", 0.3, torch.float32)
    template = work.template()
    with tf32(False):
        exact = one_round(work, Sequential(template, work.clients, compile=False))
    with tf32(True):
        rounded = one_round(work, Sequential(template, work.clients, compile=False))
        return {"reference, TF32 against float32": distance(exact, rounded), **differences(work, False)}


def _recorded(work: Workload, autocast: torch.dtype | None = None) -> Engine:
    return Batched(work.template(autocast), work.clients, compile=True)


def half_precision() -> dict[str, object]:
    """How far one round in bf16 is from float32, against how far the round moved."""
    work = work_of("cnn", None, torch.float32)
    with tf32(False):
        exact = one_round(work, _recorded(work))
    half = one_round(work, _recorded(work, torch.bfloat16))
    return {"distance": distance(exact, half), "moved": distance(exact, work.params())}


def large(model: str) -> Check:
    """Three clients, two of them with a last, smaller batch; the reference in float32 is what is compared with."""

    def check() -> dict[str, object]:
        work = synthetic(CUDA, clients=3, images=120, side=224, model=model, batch=16)
        found: dict[str, object] = {}
        with tf32(False):
            reference = one_round(work, Sequential(work.template(), work.clients, compile=False))
            compiled = one_round(work, Sequential(work.template(), work.clients, compile=True))
        for autocast, way in ((None, "TF32"), (torch.bfloat16, "bf16")):
            with tf32(True):
                eager = one_round(work, Sequential(work.template(autocast), work.clients, compile=False))
            found[f"reference in {way}"] = distance(reference, eager)
        found["compiled"], found["moved"] = distance(reference, compiled), distance(reference, work.params())
        assert float(str(found["compiled"])) < 1e-2 * float(str(found["moved"])), f"off by {found}"
        return found

    return check


# --- resume -----------------------------------------------------------------------------------------------------------

MODES: dict[str, tuple[Callable[[Template, Workload], Engine], torch.dtype | None]] = {
    "sequential reference": (lambda t, w: Sequential(t, w.clients, compile=False), None),
    "sequential compiled fp32": (lambda t, w: Sequential(t, w.clients, compile=True), None),
    "sequential compiled bf16": (lambda t, w: Sequential(t, w.clients, compile=True), torch.bfloat16),
    "batched eager": (lambda t, w: Batched(t, w.clients, compile=False), None),
    "batched compiled fp32": (lambda t, w: Batched(t, w.clients, compile=True), None),
    "batched compiled bf16": (lambda t, w: Batched(t, w.clients, compile=True), torch.bfloat16),
}
SETTINGS = ("as it is", "fixed order", "strict")


def prepare(setting: str) -> None:
    """Set this process as the row says, before anything ran on the device."""
    if setting != "as it is":
        fixed_order(CUDA)
    if setting == "strict":
        torch.use_deterministic_algorithms(True, warn_only=True)


def run_mode(mode: str, pieces: list[int]) -> str:
    """A digest of the params after all rounds; template, engine and server are rebuilt before every piece."""
    maker, autocast = MODES[mode]
    work = synthetic(CUDA, clients=4, images=2_000, model="cnn", batch=64)
    state: State | None = None
    for piece in pieces:
        template = work.template(autocast)
        state = rounds(work.server(template, maker(template, work)), piece, state)
    assert state is not None
    return digest(state.params)


def digests(mode: str, setting: str) -> dict[str, object]:
    """Four rounds at once, two and two, four more to time: printed by a process of its own."""
    prepare(setting)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        whole, cut = run_mode(mode, [4]), run_mode(mode, [2, 2])
    started = time.perf_counter()
    run_mode(mode, [4])
    unordered = sorted({str(w.message).split(" ")[0] for w in said if "deterministic" in str(w.message)})
    return {"whole": whole, "cut": cut, "seconds": round(time.perf_counter() - started, 2), "unordered": unordered}


def resume(mode: str, setting: str) -> Check:
    def check() -> dict[str, object]:
        command = [sys.executable, __file__, "--digests", mode, "--setting", setting]
        found = []
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
        here, there = found
        return {
            "resumed in one process": here["whole"] == here["cut"],
            "in another process": here["whole"] == there["cut"],
            "seconds for four rounds": here["seconds"],
            "operations without a fixed order": here["unordered"],
        }

    return check


def checks() -> dict[str, dict[str, Check]]:
    """All rows, by part."""
    double, single = torch.float64, torch.float32
    return {
        "kernels": {"kernels": kernel_errors},
        "equality": {
            "float64 cnn iid": equality("cnn", None, double, False, 1e-9),
            "float64 cnn dirichlet": equality("cnn", 0.3, double, False, 1e-9),
            "float64 cnn-tiny-bn dirichlet": equality("cnn-tiny-bn", 0.3, double, False, 1e-9),
            "float64 resnet-tiny dirichlet": equality("resnet-tiny", 0.3, double, False, 1e-9),
            "float64 vit-tiny dirichlet": equality("vit-tiny", 0.3, double, False, 1e-9),
            "float32 cnn dirichlet": equality("cnn", 0.3, single, False, 1e-5, 0.005),
            "float32 cnn dirichlet, TF32 on": with_tf32,
        },
        "compiler": {
            "float64 compiled cnn-tiny-bn": equality("cnn-tiny-bn", None, double, True, 1e-9),
            "float64 compiled cnn-tiny-dropout": equality("cnn-tiny-dropout", 0.3, double, True, 1e-9),
            "float64 compiled resnet-tiny": equality("resnet-tiny", 0.3, double, True, 1e-9),
            "float64 compiled vit-tiny": equality("vit-tiny", 0.3, double, True, 1e-9),
            "float32 compiled cnn": equality("cnn", None, single, True, 1e-5, 0.005),
            "bf16": half_precision,
        },
        "large": {"resnet18 at 224": large("resnet18"), "vit-b-16 at 224": large("vit-b-16")},
        "resume": {f"resume, {m}, {s}": resume(m, s) for m in MODES for s in SETTINGS},
    }


def matrix_part(options: argparse.Namespace) -> bool:
    """Run what is still to do of the matrix; whether all of it held."""
    import matrix
    import workers

    # The compiler needs minutes for each of these rows on a CPU.
    ways = matrix.WAYS if options.device == "cuda" else matrix.UNCOMPILED
    rows = [row for row in matrix.all_rows() if row.way in ways]
    if options.row:
        rows = [row for row in rows if any(wanted in row.name for wanted in options.row)]
    if options.list:
        print("\n".join(f"matrix: {row.name}" for row in rows))
        return True
    known = set() if options.fresh else workers.done(options.device)
    left = [row for row in rows if row.name not in known]
    print(f"matrix: {len(rows)} rows, {len(rows) - len(left)} in a record already", flush=True)
    found = workers.run(left, options.device, options.workers, options.limit, options.row_seconds)
    print(workers.summary(found))
    print(f"matrix: {len(left) - len(found)} rows were not begun")
    return all(row["ok"] for row in found)


def main() -> None:
    table = checks()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = [*table, "matrix"]
    parser.add_argument("--part", action="append", choices=parts, help="only these parts; repeat for more")
    parser.add_argument("--row", action="append", help="only rows whose name contains this; repeat for more")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="matrix: where its rows run")
    parser.add_argument("--workers", type=int, default=8, help="matrix: processes side by side")
    parser.add_argument("--limit", type=float, help="matrix: seconds after which no row is begun")
    parser.add_argument("--row-seconds", type=float, default=300.0, help="matrix: when a row is given up")
    parser.add_argument("--fresh", action="store_true", help="matrix: run also what a record says to hold")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--digests", help=argparse.SUPPRESS)
    parser.add_argument("--setting", default="as it is", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.digests:
        print(json.dumps(digests(options.digests, options.setting)))
        return
    if options.serve:
        import workers

        workers.serve(options.device)
        return
    failed = False
    for part in options.part or parts:
        if part == "matrix":
            failed = not matrix_part(options) or failed
            continue
        for name, check in table[part].items():
            if options.row and not any(wanted in name for wanted in options.row):
                continue
            if options.list:
                print(f"{part}: {name}")
                continue
            row = attempt(name, check)
            add_rows("gpu-check", CUDA, [{"part": part, "triton": kernels.usable(torch.zeros(1, device=CUDA)), **row}])
            failed = failed or "failed" in row
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
