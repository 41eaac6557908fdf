"""The commands for Flower: `init` writes the app, `costs` shows the traffic."""

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

import unfed
from unfed.cli.console import echo_json, print_table, say
from unfed.cli.options import Json, plain
from unfed.cli.run import project_name
from unfed.errors import UnfedError, extra

app = typer.Typer(help="Run on separate machines with Flower.", no_args_is_help=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the app goes.")],
    nodes: Annotated[int, plain("How many clients the federation has.", min=1)] = 4,
    run_folder: Annotated[Path | None, plain("Where results go; default DIR/run.")] = None,
) -> None:
    """Write a Flower app, one pyproject.toml.

    `flwr run DIR` runs it.
    """
    from unfed import storage

    if importlib.util.find_spec("flwr") is None:
        raise UnfedError(f"Flower is not installed; install it with {extra('flower')}.")
    file = folder / "pyproject.toml"
    if file.exists():
        raise UnfedError(f"{file} is there already; choose another folder, or edit that file.")
    where = (run_folder or folder / "run").resolve()
    name = project_name(folder)
    template = files("unfed.cli").joinpath("flower_app.toml").read_text(encoding="utf-8")
    text = template.format(name=name, version=unfed.__version__, folder=where, nodes=nodes)
    storage.deliver(file, text.encode())
    say(f"Wrote {file}. Start a SuperLink and {nodes} SuperNodes, then: flwr run {folder} --stream")


@app.command()
def costs(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as `runs/demo`.")],
    ls: Annotated[Path | None, plain("Output of `flwr ls --format json`, for Flower's own count.")] = None,
    as_json: Json = False,
) -> None:
    """Show the traffic: by the paper's rule, as tensors, as messages.

    With --ls, Flower's own figures stand beside it.
    """
    from unfed.folder.folder import RunFolder
    from unfed.report.wording import bytes_text

    folder = RunFolder(run)
    folder.description()
    jobs: dict[str, dict[str, int]] = {}
    for line in folder.lines():
        if "wire_bytes" in line:
            name = "/".join(str(part) for part in (line["request"], line["method"]) if part)
            crossed = line.get("comm_bytes", 0), line["wire_bytes"], line.get("serialised_bytes", 0)
            kinds = ("comm_bytes", "wire_bytes", "serialised_bytes")
            jobs[name] = {kind: int(value) for kind, value in zip(kinds, crossed, strict=True)}
    flower = _traffic(run, ls) if ls is not None else []
    if as_json:
        echo_json({"jobs": jobs, "flower": flower})
        return
    numbers = ("models (4 bytes × P)", "tensors", "messages")
    print_table(("job", *numbers), [(name, *map(bytes_text, own.values())) for name, own in jobs.items()], numbers)
    for found in flower:
        total = bytes_text(found["inbound-bytes"] + found["outbound-bytes"])
        say(f"Flower run {found['run']}: {total} through the SuperLink, evaluation and queries included.")


def _traffic(run: Path, ls: Path) -> list[dict[str, Any]]:
    """Flower's own count of the runs that worked in this folder."""
    from unfed import records, storage
    from unfed.folder.layout import FlowerTraffic, flower_runs

    own = {entry.run for entry in flower_runs(run)}
    if not own:
        return []
    again = "write it again with `flwr ls --format json`"
    said = records.read(FlowerTraffic, storage.read_json(ls, "list of Flower runs"), str(ls), again)
    return [{"run": str(r.run), **r.traffic.to_json()} for r in said.runs if str(r.run) in own]
