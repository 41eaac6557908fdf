"""A run folder whose clients are elsewhere: the same layout, the same jobs, another world.

Beside the documented files it holds `clients.json`: everybody who took part, in the order in which answers are
averaged, what each holds (so that one which is away when a run is resumed is still known), and every name it went by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder import deny
from unfed.folder.folder import RunFolder
from unfed.folder.layout import client_list
from unfed.methods import Method, State
from unfed.model.params import cast, check_like
from unfed.remote.nodes import Census
from unfed.remote.population import KnownClients, Nodes
from unfed.remote.world import nodes_of
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.world import World

Maker = Callable[[Config, int, KnownClients], World]
"""(config, seed, what is known of the clients from before) -> the world over the nodes that are connected."""


def reopened(folder: RunFolder, make: Maker) -> Run:
    """A run folder whose clients a server can reach."""
    return Run(folder, partial(_build, make))


def begun(config: Config, folder: str | Path, make: Maker) -> Run:
    """A new folder, once the nodes that are there were found to be able to do what is asked."""
    where, config = RunFolder(folder), deny.imported(config)
    if config.deny.rows:
        raise UnfedError(
            f"The deny list of {config.deny.run} has {len(config.deny.rows)} single rows, and rows that lie at nodes"
            " cannot be recognised here; write the clients that must stay out into a file, one per line, and name that."
        )
    world = make(config, config.seed_list[0], KnownClients(note=partial(_note, where)))
    requests = config.requests()
    for i in range(len(requests)):
        for label in config.methods.run:
            able(world, label, config.method(label), requests[: i + 1])
    run = Run.create(config, folder, world, partial(_build, make))
    _note(where, nodes_of(world).past)
    return run


def _build(make: Maker, folder: RunFolder, config: Config, seed: int) -> World:
    world = make(config, seed, _past(folder))
    _note(folder, nodes_of(world).past)
    return world


# --- who took part ----------------------------------------------------------------------------------------------------


def _past(folder: RunFolder) -> KnownClients:
    """Who took part so far, in their order, and what they hold."""
    raw, note = client_list(folder.path), partial(_note, folder)
    if raw is None:
        return KnownClients(folder.description().clients, note=note)
    held = {name: Census.from_json(held.to_json()) for name, held in raw.held.items()}
    return KnownClients(raw.order, held, raw.names, note)


def _note(folder: RunFolder, past: KnownClients) -> None:
    """Write down who takes part, now and whenever somebody joins.

    It is written before the round in which a client is first asked.

    A run that is resumed from the round before therefore asks the same clients in the same order.
    """
    before = _past(folder)
    held = {name: census.to_json() for name, census in {**before.held, **past.held}.items()}
    names = {name: sorted({*before.names.get(name, ()), *own}) for name, own in past.names.items()}
    storage.write_json(folder.path / "clients.json", {"order": list(past.order), "held": held, "names": names})


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
    """Take somebody out of the model in force; the same request twice does nothing."""
    known = {entry.request.id: entry.request for entry in run.folder.book().entries}
    if request.id in known:  # whether the leaver was there is a matter of the day it was first asked
        request = replace(request, deleted=known[request.id].deleted)
    world = run.world(run.one_seed(None))
    able(world, method, run.config.method(method), [*run.queue.book.besides(world.seed, [request.id]), request])
    outcome = run.forget(request, method, until, watch=watch)
    if outcome.status == "queued":
        raise UnfedError(f"Another server is at work in {run.folder.path}; stop it, or wait for it.")


def settled(nodes: Nodes, request: Request) -> Request:
    """The request, as `deleted` where its leaver is not connected any more.

    Who is gone cannot be asked for anything.
    """
    absent = [name for name in request.clients if not nodes.directory.nodes(name) and nodes.knows(name)]
    return replace(request, deleted=True) if absent else request


def able(world: World, label: str, method: Method, requests: Sequence[Request]) -> None:
    """Refuse, before any work starts, a method that asks for what these nodes or this server do not give."""
    if "public" in method.needs and world.public({}) is None:
        raise UnfedError(
            f'{label} needs unlabelled data at the server; name it with public="package.module:function", or use not.'
        )
    if "forget" not in method.needs or requests[-1].deleted:
        return
    for name, client in world.scoped(requests, gone=requests[:-1]).items():
        if len(client.view("forget")) and not nodes_of(world).allows(name, "forget"):
            raise UnfedError(
                f"{label} works on the rows that are to be forgotten, but client {name} does not allow that; set"
                ' allow="forget" in its node config, or use not, ft or retrain.'
            )
