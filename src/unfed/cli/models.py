"""The commands that work on models: `export`, `negate`, `suggest`, `convert`, `prune`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from unfed.cli.console import echo_json, say, stdout
from unfed.cli.options import HOW, AllowCode, Json, Quiet, RunArgument, Seed, out_option
from unfed.errors import UnfedError, counted

if TYPE_CHECKING:
    import torch

    from unfed.analysis.advice import Advice

LAYERS = ["first"]
WHICH = "Which model"
MOST = 1000
"""Rows that a score is made of at most."""
SHOWN = 8


def export(
    *,
    run: RunArgument,
    method: Annotated[
        str | None, typer.Option(help="The model that this method left; `train` for θ*.", rich_help_panel=WHICH)
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Under this request, where there are several.", rich_help_panel=WHICH)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which repetition, where a run has several.", rich_help_panel=WHICH)
    ] = None,
    out: Annotated[Path, out_option("The safetensors file to write.")],
) -> None:
    """Write a model of a run to a file.

    By default it is the model in force; any other you must name.
    """
    from unfed import storage
    from unfed.cli.evidence import entered
    from unfed.cli.looking import refuse_damaged
    from unfed.folder.carriers import hand_out
    from unfed.requests.reversible import ways_back
    from unfed.runs.run import Run
    from unfed.runs.status import in_force, to_hand_out

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
    say(f"Wrote {out}: {what}.")


def negate(
    source: Annotated[Path, typer.Argument(metavar="IN.safetensors", help="A model file.")],
    layers: Annotated[list[str], typer.Option(help="first, a name, a glob, an index, NAME[a:b]. Repeatable.")] = LAYERS,
    include_bias: Annotated[bool, typer.Option("--include-bias", help="Also the bias of each chosen weight.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which tensors, and why.")] = False,
    out: Annotated[Path | None, out_option("Where the new file goes.")] = None,
    as_json: Json = False,
) -> None:
    """Negate layers of a model file (Eq. 3).

    It works tensor by tensor: memory does not grow with the file.
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

    The file is loaded with `weights_only=True` and in no other way.
    """
    from unfed.model import files

    files.convert_file(source, out)
    say(f"Wrote {out}")


def _safetensors(out: Path) -> None:
    """Refuse a name under which another format would be looked for."""
    if out.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".onnx", ".h5", ".npz"):
        raise UnfedError(
            f"{out} is written as safetensors, and its name says otherwise; call it"
            f" {out.with_suffix('.safetensors').name}. PyTorch reads it with safetensors.torch.load_file."
        )


# --- which layer ------------------------------------------------------------------------------------------------------


def suggest(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a preset, or a network's name.")],
    data: Annotated[
        str | None,
        typer.Option(help="For a name: the data set that gives shape and classes.", rich_help_panel=HOW),
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Of a run: do not score on its retained rows.", rich_help_panel=HOW)
    ] = False,
    seed: Seed = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Which layer of a model to perturb, and how.

    It gives reasons, and says what is in doubt. Of a run, every candidate is perturbed and given one round on rows that
    stay; no Retrain is needed. The advice goes into its folder and its report. Of a name, it follows from the network's
    graph alone.
    """
    found = _of_run(Path(model), seed, rules) if (Path(model) / "run.json").exists() else _of_name(model, data)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    stdout.print(f"Perturb [bold]{escape(found.layer)}[/bold] by [bold]{found.perturbation}[/bold].", soft_wrap=True)
    say(*found.why)
    for sentence in found.doubts:
        stdout.print(f"[yellow]In doubt:[/yellow] {escape(sentence)}", soft_wrap=True)
    if found.ranked[0].probe is not None:
        _show_ranking(found)
    say(
        f"To compare it, give `unfed run` these words: `--set 'methods.not.layers=[\"{found.layer}\"]'"
        f" --set 'methods.not.perturbation=\"{found.perturbation}\"'`.",
        "To serve requests, `unfed forget --method sealed` perturbs all hidden layers by a draw that is not kept: one"
        " layer alone can be fitted again.",
    )


def _of_run(folder: Path, seed: int | None, rules: bool) -> "Advice":
    import torch

    from unfed import rng
    from unfed.analysis.advice import Prober, Sample, advise
    from unfed.api import write_report
    from unfed.folder import undo_results
    from unfed.runs.run import Run

    run = Run.open(folder)
    one = run.one_seed(seed)
    requests, world = run.scope(one), run.world(one)
    world.settle()
    module = world.template.module
    clients = list(world.scoped(requests).values())
    rows = torch.cat([c.rows[c.view("retain")] for c in clients])
    rows = rows[rng.first(rng.key("suggest", one), len(rows), min(MOST, len(rows)))]
    x, y = clients[0].source.fetch(rows, None)
    if rules:
        return advise(module, example=x[:2], fresh=world.fresh)
    phase = world.training_settings().phase
    sample = Sample(x, y, phase.optimiser.lr, phase.batch, one)
    prober = Prober(world.template, run.current(one), sample)
    found = advise(module, example=x[:2], prober=prober, fresh=world.fresh, seed=one)
    models = undo_results.models_of(run.folder, {"in force": run.current_job(one)})
    undo_results.keep_study(
        undo_results.advice_file(run.folder, one), {"seed": one, "models": models, "advice": found.to_json()}
    )
    write_report(run)
    return found


def _of_name(name: str, data: str | None) -> "Advice":
    """A network without training: its graph is all there is."""
    import torch

    from unfed.analysis.advice import advise
    from unfed.config.config import Config, presets
    from unfed.data import datasets
    from unfed.model.networks import build
    from unfed.model.params import params_of

    options, network = {}, name
    if name in presets():
        config = Config.preset(name, [])
        data, network, options = data or config.data.name, config.model.name, dict(config.model.options)
    train = datasets.load(data or "digits").train
    module = build(network, shape=train.shape, classes=train.classes, seed=0, **options)

    def fresh(seed: int) -> "dict[str, torch.Tensor]":
        return params_of(build(network, shape=train.shape, classes=train.classes, seed=seed, **options))

    return advise(module, example=train.fetch(torch.arange(2), None)[0], fresh=fresh)


def _show_ranking(found: "Advice") -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for column in ("how", "score", "behind", "CKA drop", "loss", "back", "distance"):
        table.add_column(column, justify="left" if column == "how" else "right")
    for one in found.ranked[:SHOWN]:
        assert one.probe is not None
        numbers = (one.score or 0.0, one.behind, one.probe.drop, one.probe.loss, one.probe.back, one.probe.distance)
        table.add_row(escape(one.layer), one.perturbation, *(f"{number:.2f}" for number in numbers))
    stdout.print(table)


# --- a smaller folder -------------------------------------------------------------------------------------------------


def prune(
    run: RunArgument,
    samples: Annotated[
        Literal["all", "last", "none"],
        typer.Option(help="Scores of single rows to keep: all, those of each last round, or none."),
    ] = "last",
    states: Annotated[
        bool, typer.Option(help="Keep a finished job's model once; with --no-states it stays in its state too.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run folder smaller.

    Old scores of single rows, and second copies of models, go. Reports, requests and resuming need none of it. It does
    not forget a client: that is `unfed forget`, then `unfed purge`.
    """
    from unfed.folder.folder import RunFolder
    from unfed.folder.prune import prune as take_away

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
