"""A world: everything that exists before a request arrives, as one value.

    who builds it                          whose rows                          who trains on them
    runs/simulated.py:simulated            a config's, dealt to clients        this process
    central/world.py:own_world             the caller's own, in one place      this process
    remote/server.py:remote_world           the nodes', never seen here         the nodes

Everything above (jobs, runs, folders, reports) is written over this value alone, whatever built it. Another setting is
another builder: it says who holds what (`Holders`), what the model is, and, where that differs, who runs plans and
who scores models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from unfed.client.plan import Optimiser, Phase
from unfed.client.scores import called
from unfed.config.config import Config, Seeds
from unfed.config.tables import RecoveryConfig, UnlearningConfig
from unfed.data import ClientData, Dataset, Request, Source, mark
from unfed.data import public as validation_images
from unfed.data.scope import Marks, rows_named
from unfed.engines import Batched, Engine, Sequential
from unfed.engines.choice import EngineChoice, as_trained, fixed_library, fixed_order
from unfed.errors import UnfedError
from unfed.federation.robust import Robust
from unfed.federation.server import AsItWas, Setup
from unfed.federation.state import Schedule, Settings
from unfed.measures.evaluator import Evaluator, Scorer, Yardstick
from unfed.model.functional import Flops, Template
from unfed.model.params import Params

# In bf16 the params stay float32: only matrix products and convolutions of training are cast.
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def process_as_before() -> Iterator[None]:
    """Leave a caller's process with the number of threads it had, and with its way of choosing kernels."""
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    onednn: Any = torch.backends.mkldnn
    chosen, asked = (cudnn.deterministic, cudnn.benchmark), onednn.enabled
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = chosen
        onednn.enabled = asked


# --- who holds what ---------------------------------------------------------------------------------------------------


class Holders(Protocol):
    """The clients of a world, and which of their rows a request concerns."""

    @property
    def clients(self) -> tuple[ClientData, ...]:
        """Everybody, in the order in which answers are averaged."""
        ...

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> dict[str, ClientData]:
        """The clients with the forget sets of these requests marked.

        Of those that are `gone` no row is left at all.
        """
        ...

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a training row that a request asks for is still in, once these others are out."""
        ...

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in who joined since the last time, but none whom these requests name.

        It says whether there was anybody.
        """
        ...


@dataclass(frozen=True, eq=False)
class Residents:
    """Clients whose rows lie here; no client comes or goes."""

    clients: tuple[ClientData, ...]
    seed: int
    """Of the draws by which a request for a fraction takes rows."""
    _known: dict[Request, Marks] = field(default_factory=dict)
    _rows: dict[Request, Tensor] = field(default_factory=dict)

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> dict[str, ClientData]:
        marked = mark(self.clients, requests, self.seed, self._known)
        if not gone:
            return {c.name: c for c in marked}
        before = mark(self.clients, gone, self.seed, self._known)
        return {c.name: replace(c, train=c.train[~b.forget[c.train]]) for c, b in zip(marked, before, strict=True)}

    def named(self, request: Request) -> Tensor:
        """The training rows that a request names; every evaluator asks for those of all its requests."""
        if request not in self._rows:
            self._rows[request] = rows_named(self.clients, request, self.seed, self._known)
        return self._rows[request]

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        return any(len(c.view("forget")) for c in self.scoped([*gone, request], gone=gone).values())

    def admit(self, requests: Sequence[Request]) -> bool:
        return False


# --- what differs between settings, as it is where the rows lie here --------------------------------------------------


def local_engine(world: World, clients: Mapping[str, ClientData]) -> Engine:
    """Plans run in this process: as the config says, or as suits the model and the device."""
    if world.choice.name == "batched":
        return Batched(world.template, clients, world.chunk, world.config.engine.compile)
    return Sequential(world.template, clients, world.config.engine.compile)


def local_evaluator(world: World, requests: Sequence[Request]) -> Evaluator:
    """Models are scored on rows that lie here."""
    assert isinstance(world.holders, Residents)
    return Evaluator(world.yardstick, world.holders, requests)


ONE_BY_ONE = EngineChoice("sequential", "nothing else was asked for")


# --- the value --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """Everything that exists before a request arrives."""

    config: Config
    seed: int
    holders: Holders
    template: Template
    """The model as a pure function."""
    device: torch.device
    forward_flops: Flops
    """What one sample's way through the model costs."""
    fresh: Callable[[int], Params]
    """A new initialisation, as a function of a seed."""
    initial: Params | None = None
    """The model that training starts from, where it is given; where no client trains, θ* itself."""
    checkpoint: str | None = None
    """The fingerprint of what was read of it from `model.initial`, where that names a file."""
    held_out: Source | None = None
    """The test data, if there is any."""
    loaded: Dataset | None = None
    """The data set that was read here, where one was."""
    repaired: tuple[int, ...] = ()
    """Clients that were topped up when the data was dealt."""
    public: Callable[[Mapping[str, ClientData]], ClientData | None] = validation_images
    """Unlabelled images at the server, if there are any; by default held-out rows of the clients that stay."""
    threads: int | None = None
    """CPU threads that work on one operation; None leaves the process as it is."""
    choice: EngineChoice = ONE_BY_ONE
    chunk: int | None = None
    """Clients per stack, if stacks are made and their size is fixed."""
    engines: Callable[[World, Mapping[str, ClientData]], Engine] = local_engine
    """Makes what runs plans at some clients."""
    evaluators: Callable[[World, Sequence[Request]], Scorer] = local_evaluator
    """Makes who scores models against some requests."""

    # --- what follows from it -----------------------------------------------------------------------------------------

    @cached_property
    def seeds(self) -> Seeds:
        return Seeds.of(self.config, self.seed)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.engine.precision]

    @property
    def parameters(self) -> int:
        """How many numbers train."""
        return self.template.parameters

    @property
    def central(self) -> bool:
        """Whether one place holds all data: no messages, and one optimiser from epoch to epoch."""
        return self.config.setting == "central"

    @property
    def clients(self) -> tuple[ClientData, ...]:
        return self.holders.clients

    @property
    def classes(self) -> int:
        """How many classes the rows have, wherever they lie."""
        return self.clients[0].source.classes

    @property
    def dataset(self) -> Dataset:
        """The data set that was read here."""
        if self.loaded is None:
            raise UnfedError("This world holds no data set of its own; ask its clients.")
        return self.loaded

    @property
    def yardstick(self) -> Yardstick:
        """What all evaluations have in common."""
        how, poison = self.config.evaluation, self.config.poison
        return Yardstick(
            self.template,
            self.held_out,
            self.seeds.evaluation,
            how.batch,
            how.attack,
            bool(how.samples),
            None if poison is None else poison.trigger_class,
            None if poison is None else poison.client,
            as_trained if how.precision == "engine" else called,
        )

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> dict[str, ClientData]:
        """The clients with the forget sets of these requests marked.

        Of those that are `gone` no row is left at all.
        """
        return self.holders.scoped(requests, gone)

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a training row that a request asks for is still in, once these others are out."""
        return self.holders.holds(request, gone)

    def admit(self, requests: Sequence[Request]) -> bool:
        """Take in who joined since the last time, but none whom these requests name.

        It says whether there was anybody.
        """
        return self.holders.admit(requests)

    def engine(self, clients: Mapping[str, ClientData]) -> Engine:
        """What runs plans at these clients."""
        return self.engines(self, clients)

    def evaluator(self, requests: Sequence[Request]) -> Scorer:
        """Who scores models against the scope of these requests."""
        return self.evaluators(self, requests)

    def setup(self, as_it_was: AsItWas | None = None) -> Setup:
        """What a server knows of its surroundings here; `as_it_was` reaches clients as they were."""
        return Setup(self.template, self.fresh, self.forward_flops, not self.central, as_it_was)

    def settle(self) -> None:
        """Set this process as the world needs it, so that a run is repeated bit for bit."""
        fixed_order(self.device)
        fixed_library(self.device, self.template.autocast)
        if self.threads is not None and self.threads != torch.get_num_threads():
            torch.set_num_threads(self.threads)

    # --- settings -------------------------------------------------------------------------------------------------

    def training_settings(self) -> Settings:
        train = self.config.training
        optimiser = Optimiser(train.optimiser, train.lr, train.momentum, train.decay, train.clip)
        return Settings(
            phase=Phase(epochs=train.epochs, batch=train.batch, optimiser=optimiser),
            rounds=train.rounds,
            schedule=Schedule(**train.schedule.model_dump()),
            participation=train.participation,
            drop_out=train.drop_out,
            quorum=train.quorum,
            robust=Robust(**train.robust.model_dump()),
            keep=self.central,
        )

    def unlearning_settings(self, retrain: bool, label: str | None = None, config: Config | None = None) -> Settings:
        """The settings of recovery: those of training, but for what the config says.

        The config (the world's, unless a request brings its own) may say it of unlearning, or of the method with this
        label alone. Retrain is training again, without D_u: it listens to its own table only. Where one place holds all
        data, a method brings its own recipe.
        """
        settings, config = self.training_settings(), config or self.config
        again = UnlearningConfig(rounds=config.unlearning.retrain_rounds or config.training.rounds)
        own = again if retrain else config.unlearning
        alone = RecoveryConfig() if label is None else config.methods.recovery(label)
        rounds = alone.rounds or own.rounds
        lr = own.lr if alone.lr is None and not alone.tune else alone.lr
        tune = (own.tune if alone.lr is None else ()) if alone.tune is None else alone.tune
        stated = own.schedule if alone.schedule is None else alone.schedule
        schedule = settings.schedule if retrain else Schedule()
        if stated is not None:
            schedule = Schedule(**stated.model_dump())
        if self.central and label is not None and not retrain:
            recipe = config.methods.method(label).recipe
            lr = recipe.lr if lr is None else lr
            if stated is None:
                over = None if recipe.over is None else min(recipe.over, rounds)
                schedule = Schedule("cosine", minimum=min(recipe.minimum, lr), over=over)
        phase = replace(settings.phase, epochs=alone.epochs or own.epochs or settings.phase.epochs)
        phase = phase if lr is None else phase.with_optimiser(lr=lr)
        phase = phase if own.clip is None else phase.with_optimiser(clip=own.clip)
        robust = settings.robust if own.robust is None else Robust(**own.robust.model_dump())
        settings = replace(settings, tune=tune, tune_rounds=config.unlearning.tune_rounds)
        return replace(settings, rounds=rounds, phase=phase, schedule=schedule, robust=robust)
