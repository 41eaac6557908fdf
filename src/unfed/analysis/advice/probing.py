"""What a perturbation does, without a Retrain: on data that stays, with one round of recovery.

distance    E‖z − z'‖² / E‖z‖² of the head's answers z, before and after the perturbation
drop        1 − CKA of the head's answers: how much of what the head made of the layers is broken
loss        cross-entropy after the perturbation, as a share of guessing's, log C
back        the share of that loss which one pass over the data takes away again
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unfed import rng
from unfed.analysis.cka import Cka
from unfed.client.step import gradients
from unfed.errors import UnfedError
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.values import is_measured

LEAST = 40
"""Rows: below, half of them show neither a loss nor a CKA."""


@dataclass(frozen=True)
class Probe:
    """What was seen of one perturbation of one layer."""

    distance: float
    drop: float
    loss: float
    back: float


@dataclass(frozen=True)
class Sample:
    """Rows that stay: one half to fit, the other to look at."""

    x: Tensor
    y: Tensor
    lr: float = 0.02
    batch: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or self.y.is_floating_point():
            kind = f"{str(self.y.dtype).removeprefix('torch.')} of shape {tuple(self.y.shape)}"
            raise UnfedError(f"Labels are whole numbers, one per row, not {kind}; give the classes' numbers.")
        if len(self.x) != len(self.y):
            raise UnfedError(f"Give as many labels as rows, not {len(self.y)} for {len(self.x)}.")
        if not bool(torch.isfinite(self.x).all()):
            raise UnfedError("Some of the rows hold numbers that are not finite; leave those out.")
        if not self.lr > 0 or self.batch < 1:
            raise UnfedError(f"A round has a rate above 0 and batches of 1 at least, not {self.lr} and {self.batch}.")
        if len(self.x) < LEAST:
            raise UnfedError(f"{len(self.x)} rows are too few for a score; give at least {LEAST}, or none at all.")

    @property
    def half(self) -> int:
        return len(self.x) // 2


class Prober:
    """Looks at perturbed versions of one model."""

    def __init__(self, template: Template, params: Params, sample: Sample) -> None:
        self.template, self.params, self.sample = template, params, sample
        self.before = self._answers(params)
        if self.before.ndim != 2 or self.before.shape[1] < 2:
            raise UnfedError(
                f"A score needs one row of logits for each row, over two classes at least; this model answers"
                f" {len(self.before)} rows with shape {tuple(self.before.shape)}."
            )
        least, most, classes = int(sample.y.min()), int(sample.y.max()), self.before.shape[1]
        if least < 0 or most >= classes:
            raise UnfedError(
                f"The labels go from {least} to {most}, but the model tells classes 0 to {classes - 1} apart."
            )
        self.loss = self._loss(self.before)
        self.accuracy = 100 * float((self.before.argmax(1) == sample.y[sample.half :]).double().mean())

    def __call__(self, perturbed: Mapping[str, Tensor]) -> Probe:
        after = self._answers(perturbed)
        alike = Cka()
        alike.add(self.before, after)
        value = alike.value()
        lost, guess = self._loss(after), math.log(self.before.shape[1])
        again = self._loss(self._answers(self._round(perturbed)))
        return Probe(
            float((self.before - after).square().sum() / self.before.square().sum()),
            1 - float(value) if is_measured(value) else 1.0,
            lost / guess,
            (lost - again) / (lost - self.loss) if lost > self.loss else 0.0,
        )

    @torch.no_grad()
    def _answers(self, params: Mapping[str, Tensor]) -> Tensor:
        return self.template.bind(params)(self.sample.x[self.sample.half :])

    def _loss(self, answers: Tensor) -> float:
        found = float(F.cross_entropy(answers, self.sample.y[self.sample.half :]))
        return found if math.isfinite(found) else 1e6

    def _round(self, params: Mapping[str, Tensor]) -> Params:
        """One pass of plain SGD with momentum over the first half."""
        sample, now = self.sample, dict(params)
        moved = {name: torch.zeros_like(now[name]) for name in self.template.trainable}
        at = rng.first(rng.key("advice", sample.seed), sample.half, sample.half)
        for rows in at.split(sample.batch):
            leaves = {name: now[name].detach().requires_grad_() for name in moved}
            loss = F.cross_entropy(self.template.bind({**now, **leaves})(sample.x[rows]), sample.y[rows])
            for name, slope in gradients(loss, leaves).items():
                moved[name] = 0.9 * moved[name] + slope
                now[name] = (now[name] - sample.lr * moved[name]).detach()
        return now
