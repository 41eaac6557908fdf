"""The world of a simulation: a config's data set, dealt to clients who all live in this process.

    config ─► data ─► partition ─► (poison) ─► clients, template, fresh initialisation

It is a function of (config, seed): build it twice and it is the same twice. That is why a run can be resumed from its
config alone, and why nothing of it is ever saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unfed import rng, storage
from unfed.config.config import Config, Seeds
from unfed.config.tables import PoisonConfig
from unfed.data import (
    ClientData,
    Dataset,
    Partition,
    Source,
    TensorSource,
    backdoor,
    camouflage,
    confuse,
    dirichlet,
    iid,
    keep_out,
    load,
    natural,
    shards,
    split,
)
from unfed.data.fetch.tables import TableFile
from unfed.engines import Batched
from unfed.engines.choice import EngineChoice, choose_engine, fixed_order
from unfed.errors import UnfedError, UnfedWarning
from unfed.folder.folder import RunFolder
from unfed.folder.layout import NODES, Description, how_to_go_on
from unfed.model.calling import Inputs, unwrapped
from unfed.model.functional import Flops, Template, forward_flops
from unfed.model.networks import build, head_of, translated
from unfed.model.params import Params, cast, check_like, digests, fingerprint, params_of
from unfed.runs.world import DTYPES, Residents, World

# --- what a config names, made ----------------------------------------------------------------------------------------


HALVES = {"bf16": torch.bfloat16}

# One client's forward pass over a batch: digits takes 3 to 10 MFLOP, the fitted CNN on 32x32 images 2 GFLOP.
SMALL_STEP_FLOPS = 100_000_000


# --- the machine ------------------------------------------------------------------------------------------------------


def pick_device(name: str) -> torch.device:
    """auto: CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        count = torch.cuda.device_count()
        raise UnfedError(f"device = {name!r} is not there; this machine has {count} CUDA devices; take cpu or auto.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UnfedError("device = 'mps' is not there on this machine; use cpu.")
    return device


def small_step(batch: int, forward_flops: Flops) -> bool:
    """Whether a step is too small for more than one CPU thread.

    One that could not be counted is not called small.
    """
    return not isinstance(forward_flops, str) and batch * forward_flops < SMALL_STEP_FLOPS


def cpu_threads(config: Config, device: torch.device, forward_flops: Flops) -> int:
    """How many CPU threads work on one operation: fixed, because the last bits of a sum may depend on it.

    Waking a second thread for a step of a few MFLOP costs more than it gives: on two busy cores the digits demo took
    seven times the CPU seconds with two threads.
    """
    wanted = config.engine.threads
    if wanted is None and device.type == "cpu":
        wanted = 1 if small_step(config.training.batch, forward_flops) else None
    return wanted or torch.get_num_threads()


# --- data -------------------------------------------------------------------------------------------------------------


def data_set(config: Config, seeds: Seeds, device: torch.device, name: str | None = None) -> Dataset:
    """The data set of a config, or another of this name read in the same way."""
    data = config.data
    wanted = {n: getattr(data, n) for n in ("flip", "pad_crop", "resize", "crop")}
    found = load(
        data.name if name is None else name,
        root=TableFile(data.root, data.label, data.owner) if name is None else data.root,
        test_size=data.test_size,
        seed=seeds.partition,
        device=device,
        dtype=DTYPES[config.engine.precision],
        transform={n: value for n, value in wanted.items() if value is not None},
    )
    return found if data.train_size is None else found.thinned(data.train_size, seeds.partition)


@dataclass(frozen=True, eq=False)
class Hand:
    """Who was dealt what."""

    clients: tuple[ClientData, ...]
    repaired: tuple[int, ...]
    """Clients that were topped up to the least number of rows."""


def partitioned(config: Config, seeds: Seeds, dataset: Dataset) -> Partition:
    """The rows of a data set by who gets them, as the config says."""
    part, seed, labels = config.partition, seeds.partition, dataset.train.labels.cpu()
    if part.scheme == "iid":
        return iid(labels, part.clients, seed)
    if part.scheme == "dirichlet":
        return dirichlet(labels, part.clients, part.beta, seed, part.min_samples)
    if part.scheme == "natural":
        if dataset.owners is None:
            what = f"The data set {dataset.name!r} does not say whose its rows are"
            raise UnfedError(f"{what}; name a column in data.owner, return (x, y, owners), or set partition.scheme.")
        return natural(dataset.owners, part.clients, seed)
    return shards(labels, part.clients, part.shards_per_client, seed)


def deal(config: Config, seeds: Seeds, dataset: Dataset, dealt: Partition | None = None) -> Hand:
    """A data set in the hands of its clients, one of them poisoned if the config says so.

    Who gets which rows is for the config to say, unless it is given.
    """
    part, seed, source = config.partition, seeds.partition, dataset.train
    dealt = partitioned(config, seeds, dataset) if dealt is None else dealt
    keys = [rng.key(seed, "validation", k) for k in range(part.clients)]
    splits = [split(len(rows), key, part.validation) for rows, key in zip(dealt.rows, keys, strict=True)]
    if config.poison is not None:
        training = {str(k): rows[splits[k][0]] for k, rows in enumerate(dealt.rows)}
        source = poisoned(config.poison, source, training, seed)
    clients = [
        ClientData(str(k), source, rows, *splits[k], numbers=dataset.numbers(rows)) for k, rows in enumerate(dealt.rows)
    ]
    return Hand(keep_out(clients, config.deny.listed()), dealt.repaired)


def poisoned(how: PoisonConfig, source: Source, training: Mapping[str, Tensor], seed: int) -> Source:
    """The source after those whom the config names have poisoned their training rows, given by client."""
    for name in how.everybody:
        if name not in training:
            raise UnfedError(f"poison.client = {name!r} is not one of the clients 0 to {len(training) - 1}.")
    for name in (how.client, *how.colluders):
        if how.kind == "confusion":
            source = confuse(source, training[name], how.classes, seed, how.share)
        else:
            source = backdoor(source, training[name], how.target_class, seed, how.share)
    if how.hidden_by is not None:
        assert isinstance(source, TensorSource)
        source = camouflage(source, training[how.hidden_by], how.target_class, seed, how.share)
    return source


# --- model ------------------------------------------------------------------------------------------------------------


def template_of(
    config: Config,
    module: torch.nn.Module,
    shape: Sequence[int],
    device: torch.device,
    inputs: Inputs | None = None,
) -> Template:
    """A model as a config computes it: on this device, in its precision, wherever it is trained."""
    template = Template(module, shape, inputs).to(device, DTYPES[config.engine.precision])
    if not template.trainable:
        raise UnfedError("No parameter of the model can be trained; set requires_grad on those that should move.")
    template.autocast = HALVES.get(config.engine.precision)
    return template


@dataclass(frozen=True)
class Network:
    """The model of a config, for inputs of this shape and so many classes."""

    config: Config
    shape: tuple[int, ...]
    classes: int
    device: torch.device
    inputs: Inputs | None = None
    """How a row is taken apart, where it is not one tensor of floats."""

    def module(self, seed: int) -> torch.nn.Module:
        model = self.config.model
        made = build(model.name, shape=self.shape, classes=self.classes, seed=seed, **model.options)
        return unwrapped(made)

    def template(self) -> Template:
        made = template_of(self.config, self.module(0), self.shape, self.device, self.inputs)
        if len(made.gives) != 1 or made.gives[0] < self.classes:
            gives = f"[{', '.join(['N', *map(str, made.gives)])}]"
            what = f"The model {self.config.model.name!r} gives {gives}, but the data has {self.classes} classes"
            raise UnfedError(f"{what}; let it give logits [N, {self.classes}].")
        return made

    def fresh(self, seed: int) -> Params:
        """A new initialisation by the model's own rules."""
        return self._cast(params_of(self.module(seed)))

    def initial(self, template: Template, seed: int, needed: bool = True) -> tuple[Params, str] | tuple[None, None]:
        """The checkpoint that training starts from, if the config names one, and its fingerprint.

        That is of what is taken from it: a fresh head is drawn by this seed. A run that goes on need not have it any
        more; a training that begins then asks for it (`training.start_of`).
        """
        path = self.config.model.initial
        if path is None or not (needed or path.exists()):
            return None, None
        tensors, numbers = storage.load(path, "checkpoint model.initial")
        if back := storage.way_back(numbers):
            warnings.warn(
                f"The checkpoint {path} can be turned back ({back}), and the same method here may do so; use --method"
                " sealed or retrain.",
                UnfedWarning,
                stacklevel=2,
            )
        params, own = translated(template.module, tensors), Params()
        if self.config.model.fresh_head:
            head = head_of(template.module) + "."
            own = {name: t for name, t in self.fresh(seed).items() if name.startswith(head)}
            params = {name: t for name, t in params.items() if not name.startswith(head)} | own
        check_like(params, template.like, f"The checkpoint {path}")
        begun = self._cast({name: params[name] for name in template.like})
        return begun, fingerprint(digests({name: t for name, t in begun.items() if name not in own}))

    def _cast(self, params: Mapping[str, torch.Tensor]) -> Params:
        return cast(dict(params), DTYPES[self.config.engine.precision], self.device)


# --- the world --------------------------------------------------------------------------------------------------------


def simulated(config: Config, seed: int, kept: Description | None = None) -> World:
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
    if about.elsewhere:
        instead = how_to_go_on(about, folder.path.resolve())
        raise UnfedError(f"The clients of this run are {NODES[about.engine]}; go on with {instead}.")
    if about.call:
        raise UnfedError(f"{folder.path} is of a call of unfed.unlearn; make it again, with checkpoint= this folder.")
    return simulated(config, seed, about)


def _choose(
    config: Config,
    template: Template,
    flops: Flops,
    source: Source,
    clients: tuple[ClientData, ...],
    kept: Description | None,
) -> tuple[EngineChoice, int | None]:
    """The engine and the size of its stacks: as a run began, or as suits today."""
    batch = config.training.batch
    if kept is not None:
        choice = choose_engine(kept.engine, template, source, batch, flops)  # can it still?
        chunk = kept.chunk if "chunk" in kept.model_fields_set else config.engine.chunk
        return replace(choice, why="as the run began"), chunk
    # One client has no other to be stacked with.
    wanted = "sequential" if config.setting == "central" and config.engine.name == "auto" else config.engine.name
    choice = choose_engine(wanted, template, source, batch, flops)
    if choice.name == "sequential":
        return choice, None
    widest = min(batch + 1, max(len(client.train) for client in clients))
    return choice, Batched(template, {}, config.engine.chunk).chunk(widest)
