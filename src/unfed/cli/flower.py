"""The commands for Flower: `init` writes the app, `costs` shows what crossed."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import unfed
from unfed.cli.console import echo_json, say, stdout
from unfed.cli.options import Json
from unfed.errors import UnfedError, extra

app = typer.Typer(help="The same on real, separate machines.", no_args_is_help=True)

TEMPLATE = """# A Flower app that is this one file: both components come from the installed package.
#   flwr run . --stream                                            train, unlearn, evaluate
#   flwr run . --run-config 'resume-from="{folder}"'       go on after a crash
#   flwr ls                                                        whether it finished or failed
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Train a federation, and take a client out of it"
license = "Apache-2.0"
dependencies = ["unfed[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "unfed"

[tool.flwr.app.components]
serverapp = "unfed.flower.server:app"
clientapp = "unfed.flower.client:app"

# `flwr run` can change only keys that stand here: --run-config 'mode="unlearn" forget-clients="3"'.
[tool.flwr.app.config]
mode = "train"           # train, unlearn, or both (which only compares methods: nothing can be unlearned after it)
run-folder = "{folder}"
resume-from = ""         # a run folder to go on with; everything else is then read from it
checkpoint = ""          # mode unlearn in a new run folder: the model file to start from
forget-clients = ""      # who leaves, with commas ...
forget-classes = ""      # ... or which classes ...
forget-samples = ""      # ... or which samples, a CSV file `client,position`
request-id = ""          # the same id twice does nothing; empty: made from what is asked
deleted = false          # the leaver deleted its data; set by itself where the leaver is not connected
deny = ""                # a new run: an earlier run folder (or a file of names) whose leavers are never asked
operator = ""            # the operator's private key, a file at the server: the run keeps a signed log of its rounds
methods = "not"          # both: several, with commas; unlearn: one
until = ""               # mode unlearn: "recovered", "recovered,40" or a number of rounds; empty: unlearning.rounds
nodes = ""               # name=node-id pairs; empty: registered names, or what the nodes say
min-nodes = {nodes}            # wait for so many clients ...
wait-seconds = 120       # ... but not longer than this
round-timeout = 600      # seconds; who has not answered by then is left out of the round
max-rows = 1000000       # a node that says it holds more rows takes no part
server-data = true       # the server holds the data set, of which it uses the test part
public = ""              # unlabelled data at the server, for FUKD: package.module:function
allow-code = false       # whether code may be run that the experiment, a run folder or `public` names
preset = ""              # a preset, or a TOML file, instead of the defaults
set = ""                 # changes on top: "training.rounds=20; model.name=cnn-tiny"

# Any key of an experiment config, as for `unfed run`; lists are written as strings.
[tool.flwr.app.config.experiment]
name = "{name}"
data.name = "digits"
partition.clients = {nodes}
model.name = "cnn-small"
training.rounds = 10
training.batch = 16
training.lr = 0.01
unlearning.rounds = 5
"""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the app goes.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many clients the federation has.")] = 4,
    run_folder: Annotated[Path | None, typer.Option(help="Where results go; default DIR/run.")] = None,
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
    name = "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-") or "unfed-app"
    text = TEMPLATE.format(name=name, version=unfed.__version__, folder=where, nodes=nodes)
    storage.deliver(file, text.encode())
    say(f"Wrote {file}. Start a SuperLink and {nodes} SuperNodes, then: flwr run {folder} --stream")


@app.command()
def costs(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    ls: Annotated[Path | None, typer.Option(help="Output of `flwr ls --format json`, for Flower's own count.")] = None,
    as_json: Json = False,
) -> None:
    """Show what crossed: by the paper's rule, as tensors, as messages.

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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "models (4 bytes × P)", "tensors", "messages"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for name, counted in jobs.items():
        table.add_row(name, *(bytes_text(value) for value in counted.values()))
    stdout.print(table)
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
    told = records.read(FlowerTraffic, storage.read_json(ls, "list of Flower runs"), str(ls), again)
    return [{"run": str(r.run), **r.traffic.to_json()} for r in told.runs if str(r.run) in own]
