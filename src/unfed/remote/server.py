"""The server whose clients are elsewhere: it trains, unlearns and evaluates over any transport.

    mode = "both"       wait for nodes ─► train θ* ─► every method on the request          (comparing, trying out)
    mode = "train"      wait for nodes ─► train θ*
    mode = "unlearn"    an existing run folder, or a checkpoint ─► one method on the request, until recovered
    resume-from = DIR   whatever is not done yet in a run folder; NoT is not negated twice

It saves every round and goes on after a crash. Methods and jobs see the same world as in a simulation, but a client's
outline cannot be read (`nodes.py`), plans travel (`engine.py`), and those who hold the rows score models
(`evaluator.py`). Beside the usual files the folder holds `clients.json`: all who took part, in the order in which
answers are averaged, what each holds, and every name it went by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed import plugins, storage
from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Dataset, DatasetSource, Request, TensorSource, Unlabelled
from unfed.errors import UnfedError, in_a_run_config
from unfed.folder import deny
from unfed.folder.folder import RunFolder
from unfed.folder.layout import ClientList, client_list
from unfed.methods import Method, State
from unfed.model.functional import forward_flops
from unfed.model.params import cast, check_like
from unfed.remote.client import describe
from unfed.remote.directory import Directory, note_clients
from unfed.remote.engine import Remote
from unfed.remote.evaluator import Memory, RemoteEvaluator
from unfed.remote.nodes import Nodes, ScopedClients
from unfed.remote.options import CALLED, Options
from unfed.remote.transport import Messenger, Speech, Transport
from unfed.requests.entry import Job
from unfed.runs import record
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.simulated import Network, data_set, pick_device, small_step
from unfed.runs.world import DTYPES, World
from unfed.values import is_measured

# --- the world of a server whose clients are elsewhere ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Holdings:
    """What the server itself holds: nothing, unless asked to."""

    dataset: Dataset | None = None
    """Its own data set; only the test part is ever read."""
    public: ClientData | None = None
    """Unlabelled data; clients' rows cannot stand in for it here."""
    loads: bool = False
    """Whether it loads the data set that the config names."""


Note = Callable[[ClientList], None]
UNKNOWN = ClientList(order=(), held={})


def remote_world(
    config: Config,
    seed: int,
    directory: Directory,
    server: Holdings | None = None,
    past: ClientList = UNKNOWN,
    note: Note = lambda found: None,
) -> World:
    """The world as a server can know it, over the nodes that a directory knows."""
    if config.setting == "central":
        raise UnfedError("A centralised setting has no clients elsewhere; use unfed.unlearn, or drop `setting`.")
    server, device, seeds = server or Holdings(), pick_device(config.device), Seeds.of(config, seed)
    dataset = server.dataset or (data_set(config, seeds, device) if server.loads else None)
    own = None if dataset is None else (tuple(dataset.train.shape), dataset.train.classes)
    nodes = Nodes(directory, describe(config, seed), past, own, note)
    network = Network(config, nodes.shape, nodes.classes, device)
    template = network.template()
    initial, checkpoint = network.initial(template, seeds.training, needed=not past.order)
    flops = forward_flops(template)
    threads = config.engine.threads or (1 if small_step(config.training.batch, flops) else None)
    nodes.shard = describe(config, seed, nodes.shape, nodes.classes, threads)
    return World(
        config=config,
        seed=seed,
        holders=nodes,
        template=template,
        device=device,
        forward_flops=flops,
        fresh=network.fresh,
        initial=initial,
        checkpoint=checkpoint,
        held_out=None if dataset is None else dataset.test,
        loaded=dataset,
        public=lambda clients: server.public,
        engines=_engine,
        evaluators=partial(_evaluator, Memory()),
    )


def nodes_of(world: World) -> Nodes:
    """The clients of a world that is elsewhere."""
    assert isinstance(world.holders, Nodes)
    return world.holders


def _engine(world: World, clients: Mapping[str, ClientData]) -> Remote:
    nodes, like = nodes_of(world), world.template.like
    if isinstance(clients, ScopedClients):
        known = {name: count for name, count in clients.dropped.items() if nodes.present(name)}
        return Remote(nodes.directory, nodes.shard, like, clients.requests, clients.gone, known, clients)
    return Remote(nodes.directory, nodes.shard, like, clients=clients)


def _evaluator(memory: Memory, world: World, requests: Sequence[Request]) -> RemoteEvaluator:
    roster = nodes_of(world).scoped(requests)
    return RemoteEvaluator(world.yardstick, nodes_of(world), roster, _engine(world, roster), memory)


# --- a run folder -----------------------------------------------------------------------------------------------------


Maker = Callable[[Config, int, ClientList, Note], World]
"""(config, seed, what is known of the clients from before, who writes down more) -> the world over connected nodes."""


def reopened(folder: RunFolder, make: Maker) -> Run:
    """A run folder whose clients a server can reach."""
    return Run(folder, partial(_build, make))


def begun(config: Config, folder: RunFolder, make: Maker) -> Run:
    """A new folder, once the connected nodes were found to be able to do what is asked."""
    config = deny.imported(config)
    if config.deny.rows:
        raise UnfedError(
            f"The deny list of {config.deny.run} has {len(config.deny.rows)} single rows, which cannot be recognised at"
            " nodes; name a file of clients instead, one per line."
        )
    world = make(config, config.seed_list[0], UNKNOWN, partial(note_clients, folder.path))
    requests = config.requests()
    for i in range(len(requests)):
        for label in config.methods.run:
            able(world, label, config.method(label), requests[: i + 1])
    run = Run.create(config, folder.path, world, partial(_build, make))
    note_clients(folder.path, nodes_of(world).past)
    return run


def _build(make: Maker, folder: RunFolder, config: Config, seed: int) -> World:
    past = client_list(folder.path) or ClientList(order=folder.description().clients, held={})
    world = make(config, seed, past, partial(note_clients, folder.path))
    note_clients(folder.path, nodes_of(world).past)
    return world


# --- an existing model ------------------------------------------------------------------------------------------------


def adopt(run: Run, file: str | Path) -> None:
    """Take a model file as θ*: the training counts as done, and nothing is known of the way to it."""
    model = run.config.model
    for seed in run.config.seed_list:
        job, world = run.training_job(seed), run.world(seed)
        if run.folder.finished(job):
            continue
        params, _ = storage.load(Path(file), "model")
        check_like(params, world.template.like, f"The model {file}")
        params = cast({name: params[name] for name in world.template.like}, world.dtype, world.device)
        about = {"seed": job.seed, "label": job.label, "round": 0, "source": str(file)}
        run.folder.save_model(job, params, {**about, "architecture": model.name, "options": model.options})
        numbers = {"offset": run.folder.length(), "finished": "adopted", "rounds": 0}
        run.folder.save_state(job, State(params, done=True), numbers)


# --- requests ---------------------------------------------------------------------------------------------------------


def serve(run: Run, request: Request, method: str, until: str, watch: Watch) -> None:
    """Serve a request on the model in force; the same request twice does nothing."""
    known = {entry.request.id: entry.request for entry in run.folder.book().entries}
    if request.id in known:  # whether the leaver was there is a matter of the day it was first asked
        request = replace(request, deleted=known[request.id].deleted)
    world = run.world(run.one_seed(None))
    able(world, method, run.config.method(method), [*run.queue.book.besides(world.seed, [request.id]), request])
    outcome = run.forget(request, method, until, watch=watch)
    if outcome.status == "queued":
        raise UnfedError(f"Another server is at work in {run.folder.path}; stop it, or wait for it.")


def settled(nodes: Nodes, request: Request) -> Request:
    """The request, marked `deleted` if its leaver is no longer connected and cannot be asked."""
    absent = [name for name in request.clients if not nodes.directory.nodes(name) and nodes.knows(name)]
    return replace(request, deleted=True) if absent else request


def able(world: World, label: str, method: Method, requests: Sequence[Request]) -> None:
    """Refuse, before any work starts, a method that asks for what these nodes or this server do not give."""
    if "public" in method.needs and world.public({}) is None:
        raise UnfedError(f'{label} needs unlabelled data at the server: public="package.module:function", or use not.')
    if "forget" not in method.needs or requests[-1].deleted:
        return
    for name, client in world.scoped(requests, gone=requests[:-1]).items():
        if len(client.view("forget")) and not nodes_of(world).allows(name, "forget"):
            raise UnfedError(
                f'{label} works on the forgotten rows, which client {name} does not allow; set allow="forget" in its'
                " node config, or use not, ft or retrain."
            )


# --- the work ---------------------------------------------------------------------------------------------------------


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
    directory = Directory(Messenger(transport, options.round_timeout), speech, options.max_rows)
    folder, watch = RunFolder(options.folder), _Log(speech.log)

    def make(config: Config, seed: int, past: ClientList, note: Note) -> World:
        directory.keep_out(config.deny.clients)
        directory.wait(options.min_nodes, describe(config, seed), options.wait_seconds)
        held = Holdings(public=_public(options.public, config), loads=options.server_data)
        world = remote_world(config, seed, directory, held, past, note)
        for name in directory.names:
            speech.log.info("unfed: client %s is node %s", name, directory.node(name))
        for name, reason in nodes_of(world).refused.items():
            speech.log.warning("unfed: client %s takes no part: %s", name, reason)
        return world

    if options.resume_from:
        opened = reopened(folder, make)
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
            request = replace(request, id=record.request_name(opened.folder, asked))
        running()
        _unlearn(opened, options, request, watch)
        return opened
    if (folder.path / "run.json").exists():  # before any node is waited for
        raise UnfedError(f"There is a run in {folder.path} already; go on with it by resume-from.")
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
        record.begin_log(run.folder.path, Path(options.operator))


def _to_unlearn_from(options: Options, folder: RunFolder, make: Maker) -> Run:
    """The run whose model in force is to forget: the folder's, or a new one for a model file."""
    if len(options.method_list) != 1:
        raise UnfedError(f"mode unlearn takes one method, not {options.methods!r}; mode both compares several.")
    if (folder.path / "run.json").exists():
        opened = reopened(folder, make)
        _same_list(opened, options)
        if opened.config.requests():  # or those left out in the comparison would be asked again
            compared = ", ".join(asked.id for asked in opened.config.requests())
            raise UnfedError(
                f"The run in {folder.path} compares methods on {compared} and puts none in force; train in another"
                ' run-folder with mode="train", and unlearn there.'
            )
        return opened
    if not options.checkpoint:
        raise UnfedError(f"There is no run in {folder.path} to unlearn from; train there, or set checkpoint=….")
    return begun(options.config(), folder, make)


def _same_list(opened: Run, options: Options) -> None:
    """A run keeps the deny list that it began with."""
    if options.deny and opened.config.deny.run != Path(options.deny):
        raise UnfedError(
            f"The run in {opened.folder.path} began with another deny list ({opened.config.deny.run or 'none'}), which"
            " cannot change; begin a new run, or leave deny out."
        )


def _unlearn(opened: Run, options: Options, request: Request, watch: Watch) -> None:
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


class _Log(Watch):
    """Writes one line per round to a log."""

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
