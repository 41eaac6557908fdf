"""The commands that work on model files: `negate`, `convert`, `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from unfed import storage
from unfed.cli.check import refuse_damaged
from unfed.cli.console import Console
from unfed.cli.logged import entered
from unfed.cli.options import Json, plain_file
from unfed.errors import UnfedError
from unfed.folder.handed_out import hand_out
from unfed.model import files
from unfed.requests.reversible import ways_back
from unfed.runs.in_force import in_force, to_hand_out
from unfed.runs.run import Run

stdout = Console(highlight=False)

LAYERS = ["first"]
Layers = Annotated[list[str], typer.Option(help="first, a name, a glob, an index, NAME[a:b]. Repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", callback=plain_file, help="Where the new file goes.")]


def negate(
    source: Annotated[Path, typer.Argument(metavar="IN.safetensors", help="A model file.")],
    layers: Layers = LAYERS,
    out: Out = None,
    include_bias: Annotated[bool, typer.Option("--include-bias", help="Also the bias of each chosen weight.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which tensors, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Negate layers of a model file (Eq. 3), tensor by tensor: memory does not grow with the file."""
    if dry_run:
        chosen = files.choose_in_file(source, layers, include_bias)
    elif out is None:
        raise UnfedError("Say where the negated model goes with -o FILE, or look first with --dry-run.")
    else:
        _safetensors(out)
        chosen = files.negate_file(source, out, layers, include_bias)
    if as_json:
        found = [{"name": c.name, "rows": c.rows, "why": c.why} for c in chosen]
        typer.echo(json.dumps({"negated": found, "out": None if dry_run else str(out), "dry_run": dry_run}))
        return
    for choice in chosen:
        rows = f"[{choice.rows[0]}:{choice.rows[1]}]" if choice.rows else ""
        stdout.print(f"{'would negate' if dry_run else 'negated'} {escape(choice.name + rows)}: {escape(choice.why)}")
    if not dry_run:
        stdout.print(f"Wrote {escape(str(out))}", soft_wrap=True)


def convert(
    source: Annotated[Path, typer.Argument(metavar="MODEL.pt", help="A file that torch.save wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The safetensors file to write.")],
) -> None:
    """Turn a PyTorch state dict into safetensors. Loads with `weights_only=True` and nothing else."""
    files.convert_file(source, out)
    stdout.print(f"Wrote {escape(str(out))}", soft_wrap=True)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as `runs/demo`.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The safetensors file to write.")],
    method: Annotated[str | None, typer.Option(help="The model that this method left; `train` for θ*.")] = None,
    request: Annotated[str | None, typer.Option(help="Under this request, where there are several.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which repetition, where a run has several.")] = None,
) -> None:
    """Write a model of a run to a file; by default the one in force, and never one that nobody named."""
    _safetensors(out)
    opened = Run.open(run)
    current = in_force(opened, opened.one_seed(seed))
    if method is None and request is None:
        current = to_hand_out(opened, seed)
    job = opened.job_of(seed, request, method)
    params, model = opened.saved(seed, request, method), opened.config.model
    refuse_damaged(run)
    is_current = job == current.job
    what = current.sentence if is_current else f"the model {job.path}, which is not in force"
    about: dict[str, Any] = {"architecture": model.name, "options": model.options}
    about |= {"method": job.label, "request": job.request}
    about |= {"in_force": is_current, "job": "/".join(job.path.parts), "says": what}
    about |= {"still_in_it": list(current.still_in_it)} if is_current else {}
    about |= {storage.WAY_BACK: back} if (back := ways_back(opened.folder.book(), job)) else {}
    with entered(opened.folder):
        hand_out(opened.folder, "export", out, storage.packed(params, about), job)
    stdout.print(f"Wrote {escape(str(out))}: {escape(what)}.", soft_wrap=True)


def _safetensors(out: Path) -> None:
    """Refuse a name under which another format would be looked for."""
    if out.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".onnx", ".h5", ".npz"):
        raise UnfedError(
            f"{out} is written as safetensors, and its name says otherwise; call it"
            f" {out.with_suffix('.safetensors').name}. PyTorch reads it with safetensors.torch.load_file."
        )


def add_to(app: typer.Typer) -> None:
    for command in (negate, convert, export):
        app.command()(command)
