"""Where ablations are made: a federation with θ* and Retrain, and what becomes of θ* under a perturbation.

    digits     8x8 digits, ten clients, 40 rounds and 12 of recovery, small networks, on a CPU
    cifar10    CIFAR-10, ten clients, 300 rounds and 60 of recovery, the fitted CNN, on a GPU in bf16

Client 0 is poisoned, and leaves unless a cell says that somebody else does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unfed.data import Request
from unfed.federation.server import JobServer
from unfed.federation.state import State
from unfed.model.layers import Choice
from unfed.model.params import Params
from unfed.model.perturb import perturb
from unfed.model.sealing import seal
from unfed.paper.claims.scene import LEAVER, ClaimScene, TrialSize, gap

NAMED = {"cnn": "cnn-small", **{n: f"small_networks:{n}" for n in ("mlp", "convnext", "mixer", "text")}}
SLOW = {"mlp": 0.05, "convnext": 0.05, "efficientnet-tiny": 0.05, "mixer": 0.05, "text": 0.05}
"""Rates at which a network learns within these rounds, where the preset's is too small."""
WITHIN = 2.0
"""Points of θ*'s test accuracy at which a model counts as recovered."""
POISON = 'poison={client="0",target_class=0}'


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
    def scene(self) -> ClaimScene:
        name, rate = self.network, None
        if self.setting.small:
            name, rate = NAMED.get(name, name), SLOW.get(name)
        changes = (*self.setting.changes, *((f"training.lr={rate}",) if rate else ()), *self.changes)
        return ClaimScene(
            self.folder,
            self.seed,
            self.setting.effort,
            name,
            changes=changes,
            preset=self.setting.preset,
            request=self.request,
        )

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
