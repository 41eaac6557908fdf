"""The world of a server whose clients are elsewhere.

Methods and jobs see the same world as in a simulation; the only difference is that a client's outline cannot be read
(`population.py`), that plans travel (`engine.py`) and that models are scored by those who hold the rows
(`evaluator.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Dataset, Request
from unfed.errors import UnfedError
from unfed.model.flops import forward_flops
from unfed.remote.engine import Remote
from unfed.remote.evaluator import Memory, RemoteEvaluator
from unfed.remote.node_data import describe
from unfed.remote.nodes import Directory
from unfed.remote.population import KnownClients, Nodes, ScopedClients, meet
from unfed.runs.simulated import Network, data_set, pick_device, small_step
from unfed.runs.world import World


@dataclass(frozen=True, eq=False)
class Holdings:
    """What the server itself holds: nothing, unless it is told to."""

    dataset: Dataset | None = None
    """Its own data set; only the test part is ever read."""
    public: ClientData | None = None
    """Unlabelled data; clients' rows cannot stand in for it here."""
    loads: bool = False
    """Whether it loads the data set that the config names."""


def remote_world(
    config: Config, seed: int, directory: Directory, server: Holdings | None = None, past: KnownClients | None = None
) -> World:
    """The world as a server can know it, over the nodes that a directory knows."""
    if config.setting == "central":
        raise UnfedError("A centralised setting has no clients elsewhere; use unfed.unlearn, or drop `setting`.")
    server, past = server or Holdings(), past or KnownClients()
    device, seeds = pick_device(config.device), Seeds.of(config, seed)
    dataset = server.dataset or (data_set(config, seeds, device) if server.loads else None)
    own = None if dataset is None else (tuple(dataset.train.shape), dataset.train.classes)
    meeting = meet(directory, describe(config, seed), past, own)
    network = Network(config, meeting.shape, meeting.classes, device)
    template = network.template()
    initial, checkpoint = network.initial(template, seeds.training, needed=not past.order)
    flops = forward_flops(template)
    threads = config.engine.threads or (1 if small_step(config.training.batch, flops) else None)
    shard = describe(config, seed, meeting.shape, meeting.classes, threads)
    nodes = Nodes(directory, shard, meeting, past.note)
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
