"""Where claims are tried: digits, ten clients of whom the first leaves, small networks.

Models are trained when they are first asked for and kept in the folder, so that an interrupted command goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed import rng, storage
from unfed.analysis.activations import activations
from unfed.analysis.bound import Sets
from unfed.client.plan import term
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import Request, Source
from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.model.layers import Choice, choose
from unfed.model.params import Params, cast, check_like
from unfed.model.perturb import negate
from unfed.model.tensor_table import WEIGHTS, table_of
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from unfed.values import is_measured

PRESET = "digits-cnn"
LEAVER = Request("client-0-leaves", clients=("0",))
RATES = {"resnet-tiny": 0.05, "vit-tiny": 0.1}
"""Rates at which a network learns within these rounds, where the preset's is too small."""


@dataclass(frozen=True)
class TrialSize:
    """How much is tried."""

    rounds: int = 60
    recovery: int = 20
    draws: int = 2000
    """Random cases of a statement about numbers."""
    seeds: int = 3
    images: int = 360
    widths: tuple[int, ...] = (16, 64, 256, 1024)
    batches: int = 128
    """Gradients whose spectrum is taken."""
    sets: int = 8


FULL = TrialSize()
QUICK = TrialSize(rounds=4, recovery=2, draws=60, seeds=2, images=60, widths=(8, 16), batches=24, sets=2)


@dataclass(frozen=True, eq=False)
class ClaimScene:
    """A federation with the models that claims speak of."""

    folder: Path | None = None
    """Where models are kept."""
    seed: int = 0
    effort: TrialSize = FULL
    model: str = "cnn-small"
    options: tuple[tuple[str, Any], ...] = ()
    changes: tuple[str, ...] = ()
    """Further changes of the preset, as the command line takes them."""
    preset: str = PRESET
    request: Request = LEAVER
    """Who or what leaves."""

    def of(self, model: str, **options: Any) -> ClaimScene:
        """The same with another network."""
        return replace(self, model=model, options=tuple(options.items()))

    @cached_property
    def config(self) -> Config:
        sets = [f"seed={self.seed}", f'model.name="{self.model}"', f"training.rounds={self.effort.rounds}"]
        sets += [f"unlearning.rounds={self.effort.recovery}", 'device="cpu"']
        sets += [f"model.options.{name}={json.dumps(value)}" for name, value in self.options]
        if self.model in RATES:
            sets.append(f"training.lr={RATES[self.model]}")
        return Config.preset(self.preset, [*sets, *self.changes])

    @cached_property
    def world(self) -> World:
        return simulated(self.config, self.seed)

    @property
    def test(self) -> Source:
        found = self.world.held_out
        assert found is not None  # the preset's own
        return found

    @cached_property
    def images(self) -> Tensor:
        """Test rows that layers are watched on."""
        return torch.arange(min(self.effort.images, len(self.test)))

    @cached_property
    def sets(self) -> Sets:
        """D_r and D_u."""
        holders = list(self.world.scoped([self.request]).values())
        rows = {view: torch.cat([c.rows[c.view(view)] for c in holders]) for view in ("retain", "forget")}
        return Sets(holders[0].source, rows["retain"], rows["forget"])

    @cached_property
    def weights(self) -> tuple[Choice, ...]:
        """Every convolution and dense weight, in order: one choice each."""
        table = table_of(self.world.template.module)
        return choose(self.world.template.module, [t.name for t in table.tensors.values() if t.kind in WEIGHTS])

    @cached_property
    def first(self) -> tuple[Choice, ...]:
        """The layer that NoT negates."""
        return choose(self.world.template.module, ("first",))

    # --- models -------------------------------------------------------------------------------------------------------

    @cached_property
    def trained(self) -> Params:
        """θ*, with everybody."""
        return self.train("trained", [], rounds=self.effort.rounds)

    @cached_property
    def retrained(self) -> Params:
        """Retrain, without the leaver."""
        return self.train("retrained", [self.request], rounds=self.effort.rounds)

    @cached_property
    def negated(self) -> Params:
        """Where NoT starts."""
        return negate(self.trained, self.first)

    def recovered(self, name: str, start: Params, rounds: int | None = None) -> Params:
        """A model after rounds of fine-tuning on what stays."""
        return self.train(name, [self.request], start=lambda: start, rounds=rounds or self.effort.recovery)

    def train(
        self,
        name: str,
        requests: Sequence[Request],
        *,
        rounds: int,
        start: Callable[[], Params] | None = None,
        seed: int | None = None,
        held: Sequence[str] = (),
    ) -> Params:
        """Rounds over what these requests leave, from a fresh model or from a given one; `held` tensors stay."""
        place = None if self.folder is None else self.folder / "models" / f"{self._key(name, rounds)}.safetensors"
        if place is not None and place.exists():
            kept = storage.load(place, "model")[0]
            check_like(kept, self.world.template.like, f"The model {place}")
            return cast(kept, self.world.dtype, self.world.device)
        server = self.server(requests, rounds, seed)
        state = State(server.init() if start is None else start())
        after = (*server.base.after, *((term("hold", of="start", names=",".join(held)),) if held else ()))
        while state.round < rounds:
            state = server.advance(
                state, server.participants(state.round + 1, server.retained), replace(server.base, after=after)
            )
        if place is not None:
            storage.save(place, state.params, {"kind": "model"})
        return state.params

    def server(self, requests: Sequence[Request], rounds: int, seed: int | None = None) -> JobServer:
        """Who runs the rounds; another seed draws another start and other batches of the same data."""
        world = self.world
        clients = world.scoped(requests)
        own = world.seeds.request(requests[-1].id) if requests else world.seeds.training
        settings = replace(world.training_settings(), rounds=rounds)
        key = own if seed is None else rng.key(own, "claims", seed)
        return JobServer(world.setup(), Members(clients, world.engine(clients)), world.template.like, settings, key)

    def _key(self, name: str, rounds: int) -> str:
        other = [] if self.request == LEAVER else [self.request.to_json()]  # what is kept under the usual one stays
        told = json.dumps([self.config.to_json(), name, rounds, *other], sort_keys=True)
        return f"{self.model}-{name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    # --- looking ------------------------------------------------------------------------------------------------------

    def accuracy(self, params: Params) -> float:
        """On all test images, in percent."""
        return score(self.world.template, params, self.test, torch.arange(len(self.test))).accuracy

    def loss(self, params: Params) -> float:
        """On what stays."""
        return self.sets.losses(self.world.template, params)[0]

    def numbers(self, params: Params) -> dict[str, float]:
        """Retain, Forget, Test and MIA, in percent."""
        found = self.world.evaluator([self.request])(params).numbers
        return {name: float(value) for name, value in found.items() if is_measured(value)}

    def answers(self, params: Params, layer: str) -> Tensor:
        """What a layer answers to the images."""
        parts = activations(self.world.template, params, self.test, self.images, (layer,))
        return torch.cat([part[layer] for part in parts])


def gap(numbers: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The average gap to Retrain."""
    names = [name for name in ("retain", "forget", "test", "mia") if name in numbers and name in reference]
    return sum(abs(numbers[name] - reference[name]) for name in names) / len(names)
