"""The server: whatever carries the messages, it trains, unlearns and evaluates what can be.

It saves every round and goes on after a crash.

    mode = "both"       wait for nodes ─► train θ* ─► every method on the request          (comparing, trying out)
    mode = "train"      wait for nodes ─► train θ*
    mode = "unlearn"    an existing run folder, or a checkpoint ─► one method on the request, until recovered
    resume-from = DIR   whatever is not done yet in a run folder; NoT is not negated twice
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed import plugins
from unfed.config.config import Config
from unfed.data import ClientData, DatasetSource, Request, TensorSource, Unlabelled
from unfed.errors import UnfedError, in_a_run_config
from unfed.folder.folder import RunFolder
from unfed.remote.node_data import describe
from unfed.remote.nodes import Directory
from unfed.remote.options import CALLED, Options
from unfed.remote.population import KnownClients
from unfed.remote.runs import Maker, adopt, begun, reopened, serve, settled
from unfed.remote.transport import Messenger, Speech, Transport
from unfed.remote.world import Holdings, nodes_of, remote_world
from unfed.requests.entry import Job
from unfed.runs import trust_log
from unfed.runs.progress import QuietWatch
from unfed.runs.run import Run
from unfed.runs.simulated import pick_device
from unfed.runs.world import DTYPES, World
from unfed.values import is_measured


def run(
    transport: Transport,
    values: Mapping[str, Any],
    speech: Speech | None = None,
    running: Callable[[], None] = lambda: None,
) -> Run:
    """Do what a run config asks for; `running` is called once there is a run folder to work in."""
    options = Options.of(values)
    remedy = "set allow-code=true in the run config if you trust it"
    with in_a_run_config(CALLED), plugins.allow_code() if options.allow_code else plugins.allow_only((), remedy):
        return _work(transport, options, speech or Speech(), running)


def _work(transport: Transport, options: Options, speech: Speech, running: Callable[[], None]) -> Run:
    directory = Directory(Messenger(transport, options.round_timeout), options.bound, speech, options.max_rows)
    folder, watch = options.folder, _Log(speech.log)

    def make(config: Config, seed: int, past: KnownClients) -> World:
        directory.keep_out(config.deny.clients)
        directory.wait(options.min_nodes, describe(config, seed), options.wait_seconds)
        held = Holdings(public=_public(options.public, config), loads=options.server_data)
        world = remote_world(config, seed, directory, held, past)
        for name in directory.names:
            speech.log.info("unfed: client %s is node %s", name, directory.node(name))
        for name, reason in nodes_of(world).refused.items():
            speech.log.warning("unfed: client %s takes no part: %s", name, reason)
        return world

    if options.resume_from:
        opened = reopened(RunFolder(folder), make)
        _same_list(opened, options)
        _begin_log(opened, options)
        running()
        opened.execute(watch)
        return opened
    request = options.request()
    if options.mode != "train" and request is None:
        raise UnfedError("Say who leaves: forget-clients, forget-classes or forget-samples.")
    if options.mode == "unlearn":
        assert request is not None
        opened = _to_unlearn_from(options, folder, make)
        _begin_log(opened, options)
        if not options.request_id:
            asked = {"clients": request.clients, "classes": request.classes, "samples": request.samples}
            request = replace(request, id=trust_log.request_name(opened.folder, asked))
        running()
        _unlearn(opened, options, request, watch)
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
    _begin_log(new, options)
    running()
    new.execute(watch)
    return new


def _begin_log(run: Run, options: Options) -> None:
    """Where an operator is named: rounds and requests are logged from here on."""
    if options.operator:
        trust_log.begin_log(run.folder.path, Path(options.operator))


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


def _unlearn(opened: Run, options: Options, request: Request, watch: QuietWatch) -> None:
    if options.checkpoint:
        adopt(opened, options.checkpoint)
    nodes = nodes_of(opened.world(opened.one_seed(None)))
    until = options.until or str(opened.config.unlearning.rounds)
    serve(opened, settled(nodes, request), options.method_list[0], until, watch)


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
    """One line per round in the self._log."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def begins(self, job: Job, round: int, rounds: int) -> None:
        self._log.info("unfed: %s begins at round %d of %d", "/".join(job.path.parts), round, rounds)

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        seen = {name: (line or {}).get(name) for name in ("validation", "test", "forget")}
        shown = ", ".join(f"{name} {value:.1f} %" for name, value in seen.items() if is_measured(value))
        self._log.info("unfed: %s round %d/%d %s", job.label, round, rounds, shown)
        for refused in (line or {}).get("refused", ()):
            self._log.warning(
                "unfed: client %s in round %s: %s", refused["client"], refused["round"], refused["reason"]
            )

    def ends(self, job: Job, outcome: str) -> None:
        self._log.info("unfed: %s ends: %s", "/".join(job.path.parts), outcome)
