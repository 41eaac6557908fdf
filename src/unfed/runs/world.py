"""The federation that a config describes, for one seed: data, clients, model.

    config ─► data ─► partition ─► (poison) ─► clients, template, fresh initialisation

A world is a function of (config, seed): build it twice and it is the same twice. That is why a run can be resumed
from its config alone, and why nothing of it is ever saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from unfed import rng, storage
from unfed.client.plan import Optimiser, Phase
from unfed.data import ClientData, Dataset, Request, Source, backdoor, dirichlet, iid, load, mark, public, shards, split
from unfed.engines import Batched, Engine, Sequential
from unfed.engines.choice import Choice, choose
from unfed.engines.determinism import fixed_order
from unfed.errors import UnfedError
from unfed.federation.robust import Robust
from unfed.federation.schedule import Schedule, Settings
from unfed.measures.evaluator import Evaluator
from unfed.model.flops import Flops, forward_flops
from unfed.model.functional import Template
from unfed.model.networks import build, head_of, translated
from unfed.model.params import Params, cast, check_like, params_of
from unfed.runs.config import Config
from unfed.runs.config_tables import RecoveryConfig

# In bf16 the params stay float32: only matrix products and convolutions of training are cast.
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}


# One client's forward pass over a batch: digits takes 3 to 10 MFLOP, the paper's CNN on 32x32 images 2 GFLOP.
SMALL_STEP_FLOPS = 100_000_000


@dataclass(frozen=True)
class Seeds:
    """The four seeds of one repetition. All derive from one number unless the config sets them."""

    partition: int
    training: int
    unlearning: int
    evaluation: int

    @staticmethod
    def of(config: Config, seed: int) -> Seeds:
        given = config.seeds.model_dump()
        return Seeds(**{n: rng.key(seed if v is None else v, n) for n, v in given.items()})

    def request(self, request_id: str) -> int:
        """The unlearning seed of a request: the same for every method of a comparison."""
        return rng.key(self.unlearning, request_id)


def small_step(batch: int, forward_flops: Flops) -> bool:
    """Whether a step is too small for more than one CPU thread; one that could not be counted is not called small."""
    return not isinstance(forward_flops, str) and batch * forward_flops < SMALL_STEP_FLOPS


def pick_device(name: str) -> torch.device:
    """auto: CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UnfedError(f"device = {name!r} is not there; this machine has {torch.cuda.device_count()} CUDA devices.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UnfedError("device = 'mps' is not there on this machine; use cpu.")
    return device


def template_of(config: Config, module: torch.nn.Module, shape: Sequence[int], device: torch.device) -> Template:
    """A model as a config computes it: on this device, in its precision, wherever it is trained."""
    template = Template(module, shape).to(device, DTYPES[config.engine.precision])
    template.autocast = torch.bfloat16 if config.engine.precision == "bf16" else None
    return template


@contextmanager
def process_as_before() -> Iterator[None]:
    """Leave a caller's process with the number of threads it had, and with its way of choosing kernels."""
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    chosen = cudnn.deterministic, cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = chosen


class World:
    """Everything that exists before a request arrives."""

    threads: int | None = None
    """CPU threads that work on one operation; None leaves the process as it is."""
    chunk: int | None = None
    """Clients per stack, if stacks are made and their size is fixed."""

    def __init__(self, config: Config, seed: int, kept: Mapping[str, Any] | None = None) -> None:
        """`kept` is what a run wrote down when it began: which engine, how many clients share a stack. Both change the
        last bits of a result, so a run goes on with them whatever would be picked today."""
        self.config, self.seed = config, seed
        self.seeds = Seeds.of(config, seed)
        self.device = pick_device(config.device)
        fixed_order(self.device)
        self.dtype = DTYPES[config.engine.precision]
        if self.device.type == "mps" and self.dtype == torch.float64:
            raise UnfedError("The mps device has no float64; set engine.precision to float32.")
        self.dataset = self._load()
        self.repaired: tuple[int, ...] = ()
        self.clients = self._deal()
        self.template = template_of(config, self._module(0), self.dataset.train.shape, self.device)
        self.forward_flops = forward_flops(self.template)
        self.choice, self.chunk = self._choose(kept)
        self.threads = self._threads()
        self.settle()
        self.parameters = sum(self.template.like[n].numel() for n in self.template.trainable)
        self.initial = self._initial()

    def _threads(self) -> int:
        """How many CPU threads work on one operation: fixed, because the last bits of a sum may depend on it.

        Waking a second thread for a step of a few MFLOP costs more than it gives: on two busy cores the digits demo
        took seven times the CPU seconds with two threads.
        """
        wanted = self.config.engine.threads
        if wanted is None and self.device.type == "cpu":
            wanted = 1 if small_step(self.config.training.batch, self.forward_flops) else None
        return wanted or torch.get_num_threads()

    def settle(self) -> None:
        """Set this process as the world needs it, so that a run is repeated bit for bit."""
        fixed_order(self.device)
        if self.threads is not None and self.threads != torch.get_num_threads():
            torch.set_num_threads(self.threads)

    def _choose(self, kept: Mapping[str, Any] | None) -> tuple[Choice, int | None]:
        """The engine and the size of its stacks: as a run began, or as suits today."""
        config, batch = self.config, self.config.training.batch
        if kept is not None:
            choose(kept["engine"], self.template, self.dataset.train, batch, self.forward_flops)  # can it still?
            return Choice(kept["engine"], "as the run began"), kept.get("chunk", config.engine.chunk)
        # One client has nobody to be stacked with.
        wanted = "sequential" if self.central and config.engine.name == "auto" else config.engine.name
        choice = choose(wanted, self.template, self.dataset.train, batch, self.forward_flops)
        if choice.name == "sequential":
            return choice, None
        widest = min(batch + 1, max(len(client.train) for client in self.clients))
        return choice, Batched(self.template, {}, config.engine.chunk).chunk(widest)

    @property
    def central(self) -> bool:
        """Whether one place holds all data: no messages, and one optimiser from epoch to epoch."""
        return self.config.setting == "central"

    @property
    def held_out(self) -> Source | None:
        """The test data, if there is any."""
        return self.dataset.test

    # --- data -----------------------------------------------------------------------------------------------------

    def _load(self) -> Dataset:
        data = self.config.data
        wanted = {n: getattr(data, n) for n in ("flip", "pad_crop", "resize", "crop")}
        return load(
            data.name,
            root=data.root,
            test_size=data.test_size,
            seed=self.seeds.partition,
            device=self.device,
            dtype=self.dtype,
            transform={n: value for n, value in wanted.items() if value is not None},
        )

    def _deal(self) -> tuple[ClientData, ...]:
        part, seed, source = self.config.partition, self.seeds.partition, self.dataset.train
        labels = source.labels.cpu()
        if part.scheme == "iid":
            dealt = iid(labels, part.clients, seed)
        elif part.scheme == "dirichlet":
            dealt = dirichlet(labels, part.clients, part.beta, seed, part.min_samples)
        else:
            dealt = shards(labels, part.clients, part.shards_per_client, seed)
        self.repaired = dealt.repaired
        keys = [rng.key(seed, "validation", k) for k in range(part.clients)]
        splits = [split(len(rows), key, part.validation) for rows, key in zip(dealt.rows, keys, strict=True)]
        poisoned = self.config.poison
        if poisoned is not None:
            if poisoned.client not in {str(k) for k in range(part.clients)}:
                last = part.clients - 1
                raise UnfedError(f"poison.client = {poisoned.client!r} is not one of the clients 0 to {last}.")
            k = int(poisoned.client)
            training = dealt.rows[k][splits[k][0]]
            source = backdoor(source, training, poisoned.target_class, seed, poisoned.share)
        return tuple(ClientData(str(k), source, rows, *splits[k]) for k, rows in enumerate(dealt.rows))

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> dict[str, ClientData]:
        """The clients with the forget sets of these requests marked; of those that are `gone` no row is left at all."""
        marked = mark(self.clients, requests, self.seeds.partition)
        if not gone:
            return {c.name: c for c in marked}
        before = mark(self.clients, gone, self.seeds.partition)
        return {c.name: replace(c, train=c.train[~b.forget[c.train]]) for c, b in zip(marked, before, strict=True)}

    def holds(self, request: Request, gone: Sequence[Request]) -> bool:
        """Whether a training row that a request asks for is still in, once these others are out."""
        return any(len(c.view("forget")) for c in self.scoped([*gone, request], gone=gone).values())

    def engine(self, clients: dict[str, ClientData]) -> Engine:
        """What runs the plans: as the config says, or as suits the model and the device."""
        if self.choice.name == "batched":
            return Batched(self.template, clients, self.chunk, self.config.engine.compile)
        return Sequential(self.template, clients, self.config.engine.compile)

    def evaluator(self, requests: Sequence[Request]) -> Evaluator:
        """Who scores models against the scope of these requests."""
        return Evaluator(self, self.scoped(requests), requests)

    def public(self, clients: Mapping[str, ClientData]) -> ClientData | None:
        """Unlabelled images at the server, if there are any: held-out rows of the clients that stay."""
        return public(clients)

    # --- model ----------------------------------------------------------------------------------------------------

    def _module(self, seed: int) -> torch.nn.Module:
        model, train = self.config.model, self.dataset.train
        return build(model.name, shape=train.shape, classes=train.classes, seed=seed, **model.options)

    def fresh(self, seed: int) -> Params:
        """A new initialisation by the model's own rules."""
        return cast(params_of(self._module(seed)), self.dtype, self.device)

    def _initial(self) -> Params | None:
        path = self.config.model.initial
        if path is None:
            return None
        module = self.template.module
        params = translated(module, storage.load(path, "checkpoint model.initial")[0])
        if self.config.model.fresh_head:
            head = head_of(module) + "."
            own = {name: t for name, t in self.fresh(self.seeds.training).items() if name.startswith(head)}
            params = {name: t for name, t in params.items() if not name.startswith(head)} | own
        check_like(params, self.template.like, f"The checkpoint {path}")
        return cast({name: params[name] for name in self.template.like}, self.dtype, self.device)

    # --- settings -------------------------------------------------------------------------------------------------

    def training_settings(self) -> Settings:
        train = self.config.training
        optimiser = Optimiser(lr=train.lr, momentum=train.momentum, decay=train.decay)
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

    def unlearning_settings(self, retrain: bool, label: str | None = None) -> Settings:
        """Recovery is as training, but for what the config says of unlearning, or of the method with this label alone.

        Retrain is training again, without D_u. Where one place holds all data, a method brings its own recipe.
        """
        settings, config, own = self.training_settings(), self.config, self.config.unlearning
        if retrain:
            return replace(settings, rounds=own.retrain_rounds or config.training.rounds)
        alone = RecoveryConfig() if label is None else config.methods.recovery(label)
        rounds = alone.rounds or own.rounds
        lr = own.lr if alone.lr is None else alone.lr
        stated = own.schedule if alone.schedule is None else alone.schedule
        schedule = Schedule() if stated is None else Schedule(**stated.model_dump())
        if self.central and label is not None:
            recipe = config.methods.method(label).recipe
            lr = recipe.lr if lr is None else lr
            if stated is None:
                over = None if recipe.over is None else min(recipe.over, rounds)
                schedule = Schedule("cosine", minimum=min(recipe.minimum, lr), over=over)
        phase = settings.phase if lr is None else settings.phase.with_optimiser(lr=lr)
        robust = settings.robust if own.robust is None else Robust(**own.robust.model_dump())
        return replace(settings, rounds=rounds, phase=phase, schedule=schedule, robust=robust)
