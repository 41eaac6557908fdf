"""The commands that work on models: `export`, `negate`, `convert`, `prune`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unfed.cli.console import echo_json, say
from unfed.cli.options import Json, Quiet, RunArgument, option, out_option, plain
from unfed.errors import UnfedError, counted

LAYERS = ["first"]
which = partial(option, "Which model")


def export(
    *,
    run: RunArgument,
    method: Annotated[str | None, which("The model that this method left; `train` for θ*.")] = None,
    request: Annotated[str | None, which("Under this request, where there are several.")] = None,
    seed: Annotated[int | None, which("Which repetition, if a run has several.")] = None,
    out: Annotated[Path, out_option("A .safetensors file, or a folder for Hugging Face's tools.")],
) -> None:
    """Write a model of a run to a file, or a folder with a card.

    By default it is the model in force.
    """
    from unfed import storage
    from unfed.cli.evidence import entered
    from unfed.cli.looking import refuse_damaged
    from unfed.folder.carriers import hand_out, handed
    from unfed.requests.reversible import ways_back
    from unfed.runs.run import Run
    from unfed.runs.status import in_force, info_of, to_hand_out

    _safetensors(out)
    file = out if out.suffix else out / "model.safetensors"
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
        file.parent.mkdir(parents=True, exist_ok=True)
        hand_out(opened.folder, "export", file, storage.packed(params, about), job)
        if file != out:
            from unfed.report.card import model_card

            shown = [one for one in handed(opened.folder) if one.what == "evidence" and one.request == job.request]
            evidence = {Path(one.file).name: one.sha256 for one in shown}
            storage.write_json(out / "config.json", {"architectures": [model.name], "unfed": about})
            card = model_card(info_of(opened), opened.lines(), job, about, evidence)
            storage.write_bytes(out / "README.md", card.encode())
    say(f"Wrote {out}: {what}.")


def negate(
    source: Annotated[Path, typer.Argument(metavar="IN.safetensors", help="A model file.")],
    layers: Annotated[list[str], plain("first, a name, a glob, an index, NAME[a:b]. Repeatable.")] = LAYERS,
    include_bias: Annotated[bool, plain("Also the bias of each chosen weight.", "--include-bias")] = False,
    dry_run: Annotated[bool, plain("Only say which tensors, and why.", "--dry-run")] = False,
    out: Annotated[Path | None, out_option("Where the new file goes.")] = None,
    as_json: Json = False,
) -> None:
    """Negate layers of a model file (Eq. 3).

    It works tensor by tensor, so memory does not grow with the file.
    """
    from unfed.model import files

    if dry_run:
        chosen = files.choose_in_file(source, layers, include_bias)
    elif out is None:
        raise UnfedError("Say where the negated model goes with -o FILE, or look first with --dry-run.")
    else:
        _safetensors(out)
        chosen = files.negate_file(source, out, layers, include_bias)
    if as_json:
        found = [{"name": c.name, "rows": c.rows, "why": c.why} for c in chosen]
        echo_json({"negated": found, "out": None if dry_run else str(out), "dry_run": dry_run})
        return
    for choice in chosen:
        rows = f"[{choice.rows[0]}:{choice.rows[1]}]" if choice.rows else ""
        say(f"{'would negate' if dry_run else 'negated'} {choice.name + rows}: {choice.why}")
    if not dry_run:
        say(f"Wrote {out}")


def convert(
    source: Annotated[Path, typer.Argument(metavar="MODEL.pt", help="A file that torch.save wrote.")],
    out: Annotated[Path, out_option("The safetensors file to write.")],
) -> None:
    """Turn a PyTorch state dict into safetensors.

    It loads the file with `weights_only=True`.
    """
    from unfed.model import files

    files.convert_file(source, out)
    say(f"Wrote {out}")


def _safetensors(out: Path) -> None:
    """Refuse a name under which another format would be looked for."""
    if out.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".onnx", ".h5", ".npz"):
        raise UnfedError(
            f"{out} would hold safetensors; name it {out.with_suffix('.safetensors').name} and read it with"
            " safetensors.torch.load_file."
        )


# --- a smaller folder -------------------------------------------------------------------------------------------------


def prune(
    run: RunArgument,
    samples: Annotated[
        Literal["all", "last", "none"], plain("Scores of single rows to keep: all, last or none.")
    ] = "last",
    states: Annotated[bool, plain("Keep a finished job's model only once; --no-states keeps both.")] = True,
    dry_run: Annotated[bool, plain("Only say what would go.", "--dry-run")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run folder smaller.

    It deletes old scores of single rows and second copies of models. Results stay the same. To forget a client, use
    `unfed forget` and `unfed purge`.
    """
    from unfed.folder.folder import RunFolder
    from unfed.folder.purge import prune as take_away

    freed = take_away(RunFolder(run), samples, states, dry_run)
    if as_json:
        echo_json({"dry_run": dry_run, "freed": [asdict(one) for one in freed]})
    elif not quiet:
        would = "would free" if dry_run else "freed"
        scores, models = (sum(one.what == what for one in freed) for what in ("scores", "model in state"))
        say(
            f"{would} {sum(one.bytes for one in freed):,} bytes: {counted(scores, 'file')} of scores, the model in"
            f" {counted(models, 'state')}."
        )
