"""Is the fast path on a GPU right? Equality, kernels and resume, with numbers.

    PYTHONPATH=src python benchmarks/gpu_check.py [--part kernels] [--part equality] [--part compiler] [--part resume]

1. The Triton kernels against float64 convolutions, for the paper's CNN and odd shapes, in float32 and bf16.
2. batched ≡ sequential in float64 (eager, and recorded in a CUDA graph), IID and Dirichlet, with dropout,
   augmentation and BatchNorm; in float32 to its rounding; bf16's distance is reported.
3. Four rounds in one go against two and two with everything rebuilt in between, in another process: which modes are
   bit-equal.

Writes benchmarks/records/DATE-gpu-check-cuda.json (and $OUT); exits with 1 if anything that must be equal is not.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Callable

import torch

from unfed import aggregate
from unfed.engines import Batched, Engine, Sequential, convolution, kernels, recorded
from unfed.methods.base import State
from unfed.params import Params
from unfed.plan import Optimiser, Phase, Plan
from unfed.template import Template
from workload import Workload, attempt, rounds, synthetic, write

CUDA = torch.device("cuda")
PARTS = ("kernels", "equality", "compiler", "resume")


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


def work_of(model: str, beta: float | None, dtype: torch.dtype) -> Workload:
    return synthetic(CUDA, clients=4, images=700, side=16, model=model, batch=16, beta=beta, dtype=dtype)


def one_round(work: Workload, engine: Engine) -> Params:
    plan = Plan(5, 1, (Phase(batch=work.batch, optimiser=Optimiser(lr=0.05)),))
    blocks = list(engine.train(plan, work.params(), list(work.clients), {}))
    order = {name: i for i, name in enumerate(work.clients)}
    return aggregate.average(work.params(), sorted(blocks, key=lambda b: order[b.clients[0]]))


def distance(a: Params, b: Params) -> float:
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


def equality(model: str, beta: float | None, dtype: torch.dtype, compiled: bool, limit: float) -> dict[str, object]:
    work = work_of(model, beta, dtype)
    template = work.template()
    alone = one_round(work, Sequential(template, work.clients))
    eager = one_round(work, Batched(template, work.clients, compile=False))
    found = {"eager": distance(alone, eager)}
    with_backend(recorded.as_traced)
    found["graph"] = distance(alone, one_round(work, _recorded(work)))
    if compiled:
        with_backend(recorded.inductor)
        found["compiled"] = distance(alone, one_round(work, _recorded(work)))
    moved = distance(alone, work.params())
    assert max(found.values()) < limit, f"off by {found}, allowed {limit}"
    return {**found, "moved": moved}


def _recorded(work: Workload, autocast: torch.dtype | None = None) -> Engine:
    return Batched(work.template(autocast), work.clients, compile=True)


def with_backend(backend: recorded.Backend) -> None:
    recorded.compiler = backend


def half_precision() -> dict[str, object]:
    """How far one round in bf16 is from float32, against how far the round moved."""
    work = work_of("cnn", None, torch.float32)
    with_backend(recorded.inductor)
    exact = one_round(work, _recorded(work))
    half = one_round(work, _recorded(work, torch.bfloat16))
    return {"distance": distance(exact, half), "moved": distance(exact, work.params())}


# --- resume -----------------------------------------------------------------------------------------------------------

MODES: dict[str, tuple[Callable[[Template, Workload], Engine], torch.dtype | None]] = {
    "sequential": (lambda t, w: Sequential(t, w.clients), None),
    "batched eager": (lambda t, w: Batched(t, w.clients, compile=False), None),
    "batched compiled fp32": (lambda t, w: Batched(t, w.clients, compile=True), None),
    "batched compiled bf16": (lambda t, w: Batched(t, w.clients, compile=True), torch.bfloat16),
}


def run_mode(mode: str, pieces: list[int]) -> str:
    """A digest of the params after all rounds; template, engine and server are rebuilt before every piece."""
    maker, autocast = MODES[mode]
    work = synthetic(CUDA, clients=4, images=2_000, model="cnn", batch=64)
    state: State | None = None
    for piece in pieces:
        template = work.template(autocast)
        state = rounds(work.server(template, maker(template, work)), piece, state)
    assert state is not None
    return hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in state.params.values())).hexdigest()[:16]


def resume(mode: str) -> dict[str, object]:
    whole, cut = run_mode(mode, [4]), run_mode(mode, [2, 2])
    command = [sys.executable, __file__, "--digest", mode]
    other = subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[-1:]
    return {"in this process": whole == cut, "in another process": other == [whole]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these parts; a compiler takes a minute")
    parser.add_argument("--digest", help="internal: print the digest of 2 + 2 rounds in a mode")
    options = parser.parse_args()
    if options.digest:
        print(run_mode(options.digest, [2, 2]))
        return
    parts, rows = options.part or PARTS, []
    if "kernels" in parts:
        rows.append(attempt("kernels", kernel_errors))
    torch.backends.cudnn.allow_tf32 = False
    if "equality" in parts:
        for model, beta in (("cnn", None), ("cnn", 0.3), ("cnn-tiny-bn", 0.3)):
            name = f"float64 {model} {'iid' if beta is None else 'dirichlet'}"
            rows.append(attempt(name, lambda m=model, b=beta: equality(m, b, torch.float64, False, 1e-9)))  # type: ignore[misc]
        rows.append(attempt("float32 cnn", lambda: equality("cnn", 0.3, torch.float32, False, 2e-5)))
    if "compiler" in parts:
        rows.append(attempt("float64 compiled", lambda: equality("cnn-tiny-bn", None, torch.float64, True, 1e-9)))
        rows.append(attempt("float32 compiled", lambda: equality("cnn", None, torch.float32, True, 2e-5)))
    torch.backends.cudnn.allow_tf32 = True
    if "compiler" in parts:
        rows.append(attempt("bf16", half_precision))
    with_backend(recorded.inductor)
    for mode in MODES if "resume" in parts else ():
        rows.append(attempt(f"resume, {mode}", lambda m=mode: resume(m)))  # type: ignore[misc]
    print("triton kernels usable:", kernels.usable(torch.zeros(1, device=CUDA)))
    print(write("-".join(["gpu-check", *(options.part or ())]), CUDA, {"rows": rows}))
    sys.exit(1 if any("failed" in row for row in rows) else 0)


if __name__ == "__main__":
    main()
