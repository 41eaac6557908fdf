"""The world of a simulation: a config's data set, dealt to clients who all live in this process.

    config ─► data ─► partition ─► (poison) ─► clients, template, fresh initialisation

It is a function of (config, seed): build it twice and it is the same twice. That is why a run can be resumed from its
config alone, and why nothing of it is ever saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from unfed.config.config import Config, Seeds
from unfed.data import ClientData, Source
from unfed.engines import Batched
from unfed.engines.choice import EngineChoice, choose_engine
from unfed.engines.determinism import fixed_order
from unfed.errors import UnfedError
from unfed.folder.clients import NODES, elsewhere, how_to_go_on
from unfed.folder.folder import RunFolder
from unfed.model.flops import Flops, forward_flops
from unfed.model.functional import Template
from unfed.runs.from_config import DTYPES, Network, cpu_threads, data_set, deal, pick_device
from unfed.runs.world import Residents, World


def simulated(config: Config, seed: int, kept: Mapping[str, Any] | None = None) -> World:
    """The federation that a config describes, for one seed.

    `kept` is what a run wrote down when it began: which engine, how many clients share a stack. Both change the last
    bits of a result, so a run goes on with them whatever would be picked today.
    """
    seeds, device = Seeds.of(config, seed), pick_device(config.device)
    fixed_order(device)
    if device.type == "mps" and DTYPES[config.engine.precision] == torch.float64:
        raise UnfedError("The mps device has no float64; set engine.precision to float32.")
    dataset = data_set(config, seeds, device)
    hand = deal(config, seeds, dataset)
    network = Network(config, dataset.train.shape, dataset.train.classes, device, dataset.train.inputs)
    template = network.template()
    initial, checkpoint = network.initial(template, seeds.training, needed=kept is None)
    flops = forward_flops(template)
    choice, chunk = _choose(config, template, flops, dataset.train, hand.clients, kept)
    world = World(
        config=config,
        seed=seed,
        holders=Residents(hand.clients, seeds.partition),
        template=template,
        device=device,
        forward_flops=flops,
        fresh=network.fresh,
        initial=initial,
        checkpoint=checkpoint,
        loaded=dataset,
        held_out=dataset.test,
        repaired=hand.repaired,
        threads=cpu_threads(config, device, flops),
        choice=choice,
        chunk=chunk,
    )
    world.settle()
    return world


def as_it_began(folder: RunFolder, config: Config, seed: int) -> World:
    """The world of a run folder, as it was when the run began."""
    about = folder.description()
    if elsewhere(about):
        raise UnfedError(
            f"The clients of this run are {NODES[about['engine']]}, so it cannot go on here; go on with"
            f" {how_to_go_on(about, folder.path.resolve())}."
        )
    if about.get("call"):
        raise UnfedError(
            f"{folder.path} belongs to a call of unfed.unlearn with a model and data of its own; make that call again,"
            " with checkpoint= this folder."
        )
    return simulated(config, seed, about)


def _choose(
    config: Config,
    template: Template,
    flops: Flops,
    source: Source,
    clients: tuple[ClientData, ...],
    kept: Mapping[str, Any] | None,
) -> tuple[EngineChoice, int | None]:
    """The engine and the size of its stacks: as a run began, or as suits today."""
    batch = config.training.batch
    if kept is not None:
        choose_engine(kept["engine"], template, source, batch, flops)  # can it still?
        return EngineChoice(kept["engine"], "as the run began"), kept.get("chunk", config.engine.chunk)
    # One client has nobody to be stacked with.
    wanted = "sequential" if config.setting == "central" and config.engine.name == "auto" else config.engine.name
    choice = choose_engine(wanted, template, source, batch, flops)
    if choice.name == "sequential":
        return choice, None
    widest = min(batch + 1, max(len(client.train) for client in clients))
    return choice, Batched(template, {}, config.engine.chunk).chunk(widest)
