"""The server app: `flwr run DIR` trains, unlearns and evaluates what can be.

It saves every round and goes on after a crash.

    mode = "both"       wait for nodes ─► train θ* ─► every method on the request          (comparing, trying out)
    mode = "train"      wait for nodes ─► train θ*
    mode = "unlearn"    an existing run folder, or a checkpoint ─► one method on the request, until recovered
    resume-from = DIR   whatever is not done yet in a run folder; NoT is not negated twice

`flwr run` starts it by `serverapp = "unfed.flower.server:app"`. What went wrong is raised, so Flower calls the run
failed (`flwr ls`), and stands in `flower.json` in the run folder.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from unfed import plugins
from unfed.data import ClientData, DatasetSource, Request, TensorSource, Unlabelled
from unfed.errors import UnfedError
from unfed.flower.messages import Messenger
from unfed.flower.node_data import describe
from unfed.flower.nodes import Directory
from unfed.flower.options import Options
from unfed.flower.population import KnownClients
from unfed.flower.runs import Maker, adopt, begun, mark, reopened, serve, settled
from unfed.flower.sentences import speak_plainly
from unfed.flower.world import Holdings, flower_world, nodes_of
from unfed.runs.config import Config
from unfed.runs.folder import Job, RunFolder
from unfed.runs.from_config import DTYPES, pick_device
from unfed.runs.progress import QuietWatch
from unfed.runs.run import Run
from unfed.runs.world import World
from unfed.values import is_measured

log = logging.getLogger("flwr")  # what is logged here is what `flwr log` and `flwr run --stream` show

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What Flower calls."""
    speak_plainly()
    _end_with_superlink(Options.of(context.run_config).folder, context.run_id)
    run(grid, context.run_config, context.run_id)


def _end_with_superlink(folder: Path, run_id: int) -> None:
    """End this process when the one that started it is gone.

    Flower's client library goes on trying to reach a dead SuperLink for ever, and would keep the run folder locked: the
    run could not be resumed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        if (folder / "run.json").exists():
            mark(folder, run_id, "failed", "the SuperLink is gone; start it again and resume with resume-from")
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run(grid: Grid, values: Mapping[str, Any], run_id: int = 0) -> Run:
    """Do what a run config asks for, and leave a word on how it ended."""
    options = Options.of(values)
    folder = options.folder
    remedy = "set allow-code=true in the run config if you trust it"
    try:
        with plugins.allow_code() if options.allow_code else plugins.allow_only((), remedy):
            found = _work(grid, options, folder, run_id)
    except (SystemExit, KeyboardInterrupt):  # `flwr stop`
        if (folder / "run.json").exists():
            mark(folder, run_id, "stopped", f"it was stopped; go on with resume-from={str(folder)!r}")
        log.warning("unfed: the run was stopped; go on with resume-from=%r", str(folder))
        raise
    except BaseException as error:
        if (folder / "run.json").exists():
            mark(folder, run_id, "failed", str(error) or type(error).__name__)
        if not isinstance(error, UnfedError):  # whose sentence Flower logs, see sentences.py
            log.error("unfed: the run failed: %s", error)
        raise
    mark(folder, run_id, "finished")
    log.info("unfed: done; the results are in %s", folder)
    return found


def _work(grid: Grid, options: Options, folder: Path, run_id: int) -> Run:
    directory = Directory(Messenger(grid, options.round_timeout), options.bound)

    def make(config: Config, seed: int, past: KnownClients) -> World:
        directory.keep_out(config.deny.clients)
        directory.wait(options.min_nodes, describe(config, seed), options.wait_seconds)
        held = Holdings(public=_public(options.public, config), loads=options.server_data)
        world = flower_world(config, seed, directory, held, past)
        for name in directory.names:
            log.info("unfed: client %s is node %s", name, directory.node(name))
        for name, reason in nodes_of(world).refused.items():
            log.warning("unfed: client %s takes no part: %s", name, reason)
        return world

    if options.resume_from:
        opened = reopened(RunFolder(folder), make)
        _same_list(opened, options)
        mark(folder, run_id, "running")
        opened.execute(_Log())
        return opened
    request = options.request()
    if options.mode != "train" and request is None:
        raise UnfedError("Say who leaves: forget-clients, forget-classes or forget-samples.")
    if options.mode == "unlearn":
        assert request is not None
        opened = _to_unlearn_from(options, folder, make)
        mark(folder, run_id, "running")
        _unlearn(opened, options, request)
        return opened
    if (folder / "run.json").exists():  # said before anybody is waited for and asked what it holds
        raise UnfedError(
            f"There is a run in {folder} already; go on with it by resume-from, or choose another run-folder."
        )
    config = options.config()
    if options.mode == "both":
        assert request is not None
        config = _with_request(config, request, options)
    new = begun(config, folder, make)
    mark(folder, run_id, "running")
    new.execute(_Log())
    return new


def _to_unlearn_from(options: Options, folder: Path, make: Maker) -> Run:
    """The run whose model in force is to forget: the folder's, or a new one for a model file."""
    if len(options.method_list) != 1:
        raise UnfedError(f"mode unlearn takes one method, not {options.methods!r}; mode both compares several.")
    if (folder / "run.json").exists():
        opened = reopened(RunFolder(folder), make)
        _same_list(opened, options)
        if opened.config.requests():  # or whoever was left out in the comparison would be asked again
            compared = ", ".join(asked.id for asked in opened.config.requests())
            raise UnfedError(
                f"The run in {folder} compares methods on {compared}, and its model in force is still the trained one;"
                ' train in another run-folder with mode="train", and unlearn there.'
            )
        return opened
    if not options.checkpoint:
        raise UnfedError(
            f"There is no run in {folder} to unlearn from; train there first, or name a model file with checkpoint=…."
        )
    return begun(options.config(), folder, make)


def _same_list(opened: Run, options: Options) -> None:
    """A run keeps the deny list that it began with."""
    if options.deny and opened.config.deny.run != Path(options.deny):
        raise UnfedError(
            f"The run in {opened.folder.path} began with another deny list ({opened.config.deny.run or 'none'}); who"
            " must stay out is said when a run begins, so begin a new one, or leave deny out."
        )


def _unlearn(opened: Run, options: Options, request: Request) -> None:
    if options.checkpoint:
        adopt(opened, options.checkpoint)
    nodes = nodes_of(opened.world(opened.one_seed(None)))
    until = options.until or str(opened.config.unlearning.rounds)
    serve(opened, settled(nodes, request), options.method_list[0], until, _Log())


def _with_request(config: Config, request: Request, options: Options) -> Config:
    """The config with the request in it, as a comparison reads it."""
    plain: dict[str, Any] = {"id": request.id, "deleted": request.deleted}
    if request.clients:
        plain["clients"] = list(request.clients)
    elif request.classes:
        plain["classes"] = list(request.classes)
    else:
        plain["samples"] = options.forget_samples
    return Config.parse({**config.to_json(), "request": [plain]})


def _public(path: str, config: Config) -> ClientData | None:
    """Unlabelled images that a user's function gives the server: x, (x, y), or a map-style data set."""
    if not path:
        return None
    function = plugins.load(path, "public data", "public", callable, "a function that returns images")
    found = plugins.call(function, path, "public data")
    device, dtype = pick_device(config.device), DTYPES[config.engine.precision]
    if isinstance(found, tuple):
        found = found[0]
    if isinstance(found, Tensor):
        labels = torch.zeros(len(found), dtype=torch.int64)
        source: Any = TensorSource(found.to(device), labels.to(device), classes=1, dtype=dtype)
    elif hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        source = DatasetSource(found, dtype=dtype, device=device, warn=False)
    else:
        raise UnfedError(f"public={path!r} gave a {type(found).__name__}; return a tensor of images, or a data set.")
    places = torch.arange(len(source))
    return ClientData("server", Unlabelled(source), places, places, places[:0])


class _Log(QuietWatch):
    """One line per round in Flower's log."""

    def begins(self, job: Job, round: int, rounds: int) -> None:
        log.info("unfed: %s begins at round %d of %d", "/".join(job.path.parts), round, rounds)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        seen = {name: (line or {}).get(name) for name in ("validation", "test", "forget")}
        shown = ", ".join(f"{name} {value:.1f} %" for name, value in seen.items() if is_measured(value))
        log.info("unfed: %s round %d/%d %s", job.label, round, rounds, shown)
        for refused in (line or {}).get("refused", ()):
            log.warning("unfed: client %s in round %s: %s", refused["client"], refused["round"], refused["reason"])

    def ends(self, job: Job, outcome: str) -> None:
        log.info("unfed: %s ends: %s", "/".join(job.path.parts), outcome)
