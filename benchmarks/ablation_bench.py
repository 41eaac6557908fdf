"""Where ablations are made: a federation with θ* and Retrain, and what becomes of θ* under a perturbation.

    digits     8x8 digits, ten clients, 40 rounds and 12 of recovery, small networks, on a CPU
    cifar10    CIFAR-10, ten clients, 300 rounds and 60 of recovery, the fitted CNN, on a GPU in bf16

Client 0 is poisoned, and leaves unless a cell says that somebody else does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unfed import storage
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import Request, Source
from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.model.layers import WEIGHTS, Choice, choose, table_of
from unfed.model.params import Params, cast, check_like
from unfed.model.perturb import perturb
from unfed.model.sealing import seal
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from unfed.values import is_measured

NAMED = {"cnn": "cnn-small", **{n: f"small_networks:{n}" for n in ("mlp", "convnext", "mixer", "text")}}
SLOW = {"mlp": 0.05, "convnext": 0.05, "efficientnet-tiny": 0.05, "mixer": 0.05, "text": 0.05}
RATES = {"resnet-tiny": 0.05, "vit-tiny": 0.1}
"""Rates at which a network learns within these rounds, where the preset's is too small."""
WITHIN = 2.0
"""Points of θ*'s test accuracy at which a model counts as recovered."""
POISON = 'poison={client="0",target_class=0}'
LEAVER = Request("client-0-leaves", clients=("0",))


@dataclass(frozen=True)
class TrialSize:
    """How many rounds of training and of recovery."""

    rounds: int
    recovery: int


@dataclass(frozen=True, eq=False)
class AblationScene:
    """A federation with θ* and Retrain; both are trained when they are first asked for, and kept in the folder."""

    config: Config
    effort: TrialSize
    request: Request
    folder: Path | None = None

    @cached_property
    def world(self) -> World:
        return simulated(self.config, self.config.seed_list[0])

    @property
    def test(self) -> Source:
        assert self.world.held_out is not None  # the preset's own
        return self.world.held_out

    @cached_property
    def weights(self) -> tuple[Choice, ...]:
        """Every convolution and dense weight, in order: one choice each."""
        table = table_of(self.world.template.module)
        return choose(self.world.template.module, [t.name for t in table.tensors.values() if t.kind in WEIGHTS])

    @cached_property
    def trained(self) -> Params:
        """θ*, with all clients."""
        return self._train("trained", [])

    @cached_property
    def retrained(self) -> Params:
        """Retrain, without the leaver."""
        return self._train("retrained", [self.request])

    def _train(self, name: str, requests: Sequence[Request]) -> Params:
        place = None if self.folder is None else self.folder / "models" / f"{self._key(name)}.safetensors"
        if place is not None and place.exists():
            kept = storage.load(place, "model")[0]
            check_like(kept, self.world.template.like, f"The model {place}")
            return cast(kept, self.world.dtype, self.world.device)
        server = self.server(requests, self.effort.rounds)
        state = State(server.init())
        while state.round < self.effort.rounds:
            state = server.recover(state)
        if place is not None:
            storage.save(place, state.params, {"kind": "model"})
        return state.params

    def server(self, requests: Sequence[Request], rounds: int) -> JobServer:
        """Runs the rounds without those who leave."""
        world, clients = self.world, self.world.scoped(requests)
        key = world.seeds.request(requests[-1].id) if requests else world.seeds.training
        settings = replace(world.training_settings(), rounds=rounds)
        return JobServer(world.setup(), Members(clients, world.engine(clients)), world.template.like, settings, key)

    def _key(self, name: str) -> str:
        told = json.dumps([self.config.to_json(), name, self.effort.rounds, self.request.to_json()], sort_keys=True)
        return f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def accuracy(self, params: Params) -> float:
        """On all test images, in percent."""
        return score(self.world.template, params, self.test, torch.arange(len(self.test))).accuracy

    def numbers(self, params: Params) -> dict[str, float]:
        """Retain, Forget, Test and MIA, in percent."""
        found = self.world.evaluator([self.request])(params).numbers
        return {name: float(value) for name, value in found.items() if is_measured(value)}


def gap(numbers: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The average gap to Retrain."""
    names = [name for name in ("retain", "forget", "test", "mia") if name in numbers and name in reference]
    return sum(abs(numbers[name] - reference[name]) for name in names) / len(names)


@dataclass(frozen=True)
class Setting:
    """Which data, how long, and where."""

    preset: str
    changes: tuple[str, ...]
    effort: TrialSize
    every: int
    """Rounds between two looks at the test accuracy."""
    small: bool = True
    """Whether networks are the ones for digits."""


SETTINGS = {
    "digits": Setting("digits-cnn", (POISON, "data.test_size=797"), TrialSize(rounds=40, recovery=12), 2),
    "cifar10": Setting(
        "cifar10-cnn",
        (POISON, 'device="cuda"', 'engine.precision="bf16"'),
        TrialSize(rounds=300, recovery=60),
        5,
        small=False,
    ),
}


@dataclass(frozen=True, eq=False)
class Bench:
    """One network and one seed, with θ* and Retrain."""

    network: str
    seed: int
    changes: tuple[str, ...] = ()
    request: Request = LEAVER
    setting: Setting = SETTINGS["digits"]
    folder: Path | None = None
    """Where θ* and Retrain are kept."""
    known: dict[Any, tuple[Params, dict[str, Any]]] = field(default_factory=dict, repr=False)
    """What was recovered already, by perturbation and layers."""

    @cached_property
    def scene(self) -> AblationScene:
        name, rate, effort = self.network, RATES.get(self.network), self.setting.effort
        if self.setting.small:
            name, rate = NAMED.get(name, name), SLOW.get(name, rate)
        sets = [f"seed={self.seed}", f'model.name="{name}"', f"training.rounds={effort.rounds}"]
        sets += [f"unlearning.rounds={effort.recovery}", 'device="cpu"']
        sets += [f"training.lr={rate}"] if rate else []
        config = Config.preset(self.setting.preset, [*sets, *self.setting.changes, *self.changes])
        return AblationScene(config, effort, self.request, self.folder)

    @cached_property
    def reference(self) -> dict[str, float]:
        return self.scene.numbers(self.scene.retrained)

    @cached_property
    def before(self) -> dict[str, float]:
        return self.scene.numbers(self.scene.trained)

    @cached_property
    def server(self) -> JobServer:
        """Who recovers; the same for every cell, whose rounds are drawn from their number alone."""
        return self.scene.server([self.request], self.setting.effort.recovery)

    def perturbed(self, choices: tuple[Choice, ...], how: str) -> Params:
        theta, world = self.scene.trained, self.scene.world
        if how == "none":
            return theta
        if how.startswith("sealed "):
            draw = hashlib.sha256(f"ablation {self.seed}".encode()).digest()
            return seal(theta, choices, how.removeprefix("sealed "), draw, world.fresh, keep=0.3)
        return perturb(theta, choices, how, seed=self.seed, fresh=world.fresh)

    def recovered(
        self, choices: tuple[Choice, ...], how: str, server: JobServer | None = None
    ) -> tuple[Params, dict[str, Any]]:
        """The model after recovery, and what became of it, and how fast; the usual recovery is made once."""
        key = how, tuple((choice.name, choice.rows) for choice in choices)
        if server is None and key in self.known:
            return self.known[key]
        found = self._recovered(choices, how, server or self.server)
        if server is None:
            self.known[key] = found
        return found

    def _recovered(self, choices: tuple[Choice, ...], how: str, server: JobServer) -> tuple[Params, dict[str, Any]]:
        scene, goal = self.scene, self.before["test"] - WITHIN
        state, curve = State(self.perturbed(choices, how)), []
        start = scene.accuracy(state.params)
        while state.round < self.setting.effort.recovery:
            state = server.recover(state)
            if state.round % self.setting.every == 0:
                curve.append((state.round, round(scene.accuracy(state.params), 2)))
        found = scene.numbers(state.params)
        return state.params, {
            "gap": gap(found, self.reference),
            "back": next((r for r, test in curve if test >= goal), None),
            "start": start,
            "curve": curve,
            "numbers": kept(found),
        }

    def cell(self, choices: tuple[Choice, ...], how: str, server: JobServer | None = None) -> dict[str, Any]:
        """What becomes of θ* under a perturbation; with the public inverse applied too, where there is one."""
        params, cell = self.recovered(choices, how, server)
        if how in ("negate", "flip-both") and "flipped" not in cell:  # both are their own inverse, and public
            cell["flipped"] = kept(self.scene.numbers(perturb(params, choices, how, seed=0)))
        return cell


def kept(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers that a record keeps."""
    return {n: round(numbers[n], 3) for n in ("retain", "forget", "test", "mia", "backdoor") if n in numbers}
