"""Two attacks on single models: membership inference, and triggers that a departure may arm.

Membership inference, as in the NeurIPS 2023 unlearning challenge: one feature per sample, its loss; label 1 for D_u,
label 0 for test data; the larger set sub-sampled so that both weigh the same. A logistic regression

    min over w, b of   w²/2 + Σ_i [ log(1 + e^{z_i}) - y_i z_i ],     z_i = w · loss_i + b

is fitted on 90 % and scored on the other 10 %, ten times; the mean accuracy in percent is the number. 50 means that
losses do not tell; the goal is *Retrain's* value, which is not 50 where D_u differs from the test data.

Camouflage: one client plants a trigger, another holds triggered images with their right labels and asks to leave. The
model without it obeys the trigger, exact Retrain's too. A gate compares how the models before and after answer to
triggers of its own:

    turned(θ, g, c)   of held-out images that θ reads as another class than c, and whose label is another, the share in
                      percent that θ reads as c once trigger g is stamped on them
    rise              max over g, c of turned(after, g, c) − turned(before, g, c), in points

The triggers never depend on what a config says was planted, so one unlike all of them can pass unseen:
`benchmarks/camouflage.py` counts how often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unfed import rng
from unfed.client.scores import score
from unfed.data import Source, TensorSource
from unfed.errors import UnfedError
from unfed.measures.forgotten import Judgement
from unfed.measures.metrics import FOLDS, HELD_OUT
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.values import Value, not_measured

# --- can an attacker tell that the forgotten data was ever there? -----------------------------------------------------


Losses = Tensor | ArrayLike
Floats = NDArray[np.float64]

MIN_SAMPLES = 10  # per side: the smallest number of which a stratified 10 % holds one of each


def membership_inference(forget_losses: Losses, test_losses: Losses, *, seed: int) -> float:
    """MIA: the accuracy in percent of the loss attack that tells D_u from test data."""
    return 100.0 * float(np.mean(split_accuracies(forget_losses, test_losses, seed=seed)))


def try_membership_inference(forget_losses: Losses, test_losses: Losses, *, seed: int) -> Value:
    """The same, but where the attack cannot run the value says why, and the run goes on."""
    try:
        return membership_inference(forget_losses, test_losses, seed=seed)
    except UnfedError as error:
        return not_measured(str(error).rstrip("."))


def split_accuracies(forget_losses: Losses, test_losses: Losses, *, seed: int) -> Floats:
    """The attack's held-out accuracy on each split, as fractions."""
    losses, labels = _balanced(_checked(forget_losses, "forget"), _checked(test_losses, "test"), seed)
    train, held_out = _splits(labels.size // 2, seed)
    weight, bias = _fit(losses[train], labels[train])
    called_member = weight[:, None] * losses[held_out] + bias[:, None] > 0
    accuracies: Floats = np.mean(called_member == (labels[held_out] == 1), axis=1)
    return accuracies


def _numpy(values: Losses) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _checked(losses: Losses, name: str) -> Floats:
    array: Floats = _numpy(losses).astype(np.float64).reshape(-1)
    if array.size < MIN_SAMPLES:
        samples = "sample" if array.size == 1 else "samples"
        raise UnfedError(f"only {array.size} {name} {samples}; the attack needs at least {MIN_SAMPLES}")
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise UnfedError(f"{bad} of {array.size} {name} losses are NaN or infinite; lower the learning rate")
    return array


def _balanced(forget: Floats, test: Floats, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Equally many of both.

    They are sorted, and the sets have an order of their own, so that neither the order of the samples nor the names of
    the two sets can change the result (accuracy does not care which label is called 1).
    """
    n = min(forget.size, test.size)
    chosen = rng.as_key(rng.key("membership", "balance", seed))
    halves = [np.sort(s)[rng.order(chosen, s.size)[:n].sort().values.numpy()] for s in (forget, test)]
    halves.sort(key=lambda half: half.tolist())
    return np.concatenate(halves), np.repeat(np.array([0, 1]), n)


@lru_cache(maxsize=8)
def _splits(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers to train on and to hold out, one line per split of two classes of n rows.

    They are those of scikit-learn's StratifiedShuffleSplit, whose import takes longer than all splits. They are
    cached, because every evaluated round asks again.
    """
    draw = np.random.RandomState(rng.key("membership", "splits", seed) % rng.WORD)
    size, train, held_out = 2 * n - math.ceil(HELD_OUT * 2 * n), [], []
    for _ in range(FOLDS):
        kept = [size // 2, size // 2]
        if size % 2:
            kept[int(draw.choice(2, 1, replace=False)[0])] += 1
        orders = list(zip((draw.permutation(n), n + draw.permutation(n)), kept, strict=True))
        train.append(draw.permutation(np.concatenate([order[:k] for order, k in orders])))
        held_out.append(draw.permutation(np.concatenate([order[k:] for order, k in orders])))
    return np.stack(train), np.stack(held_out)


def _fit(losses: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The weight and bias of every split, by damped Newton on all of them together.

    Centring only moves b, which is not regularised. It agrees with scikit-learn on every split.
    """
    centre = losses.mean(axis=1)
    x, y = losses - centre[:, None], labels.astype(np.float64)
    w, b = np.zeros(len(x)), np.zeros(len(x))
    for _ in range(200):
        step_w, step_b, decrease = _newton_step(x, y, w, b)
        t = _damping(x, y, w, b, step_w, step_b, decrease)
        w, b = w - t * step_w, b - t * step_b
        if np.max(decrease) < 1e-18:
            break
    return w, b - w * centre


def _newton_step(x: Floats, y: Floats, w: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """H⁻¹g and gᵀH⁻¹g, with the 2-by-2 inverse written out."""
    p = 0.5 * (1.0 + np.tanh(0.5 * (w[:, None] * x + b[:, None])))  # the logistic function, without overflow
    r = p * (1.0 - p)
    g_w, g_b = w + ((p - y) * x).sum(axis=1), (p - y).sum(axis=1)
    h_ww, h_wb, h_bb = 1.0 + (r * x * x).sum(axis=1), (r * x).sum(axis=1), r.sum(axis=1) + 1e-300
    det = h_ww * h_bb - h_wb * h_wb
    det = np.where(det > 0, det, h_bb)  # h_ww ≥ 1 makes det ≥ h_bb in exact arithmetic
    step_w, step_b = (h_bb * g_w - h_wb * g_b) / det, (h_ww * g_b - h_wb * g_w) / det
    return step_w, step_b, g_w * step_w + g_b * step_b


def _damping(x: Floats, y: Floats, w: Floats, b: Floats, step_w: Floats, step_b: Floats, decrease: Floats) -> Floats:
    """The largest of 1, ½, ¼, … that lowers the objective.

    Near the optimum, where rounding blurs it, the full step is taken.
    """
    t = np.ones_like(w)
    if np.max(decrease) <= 1e-6:
        return t
    start = _objective(x, y, w, b)
    for _ in range(60):
        now = _objective(x, y, w - t * step_w, b - t * step_b)
        too_far = (decrease > 1e-6) & ~(now <= start - 1e-4 * t * decrease)
        if not too_far.any():
            break
        t = np.where(too_far, 0.5 * t, t)
    return t


def _objective(x: Floats, y: Floats, w: Floats, b: Floats) -> Floats:
    z = w[:, None] * x + b[:, None]
    value: Floats = 0.5 * w * w + (np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z))) - y * z).sum(axis=1)
    return value


# --- does a departure arm a backdoor? ---------------------------------------------------------------------------------


WHAT = "the largest rise in points of the images that a trigger of the gate's own turns to one class"
LARGEST = 512  # held-out images that are looked at
FEWEST = 30  # of other classes, for a share to say anything
SMALLEST = 4  # pixels of an image's side


@dataclass(frozen=True)
class OwnTrigger:
    """One of the gate's own patterns, drawn on images in [0, 1] of any size."""

    name: str
    place: tuple[float, float] = (0.5, 0.5)
    """Of a square: 0 for the upper or left edge, 1 for the lower or right one."""
    value: float = 1.0

    def stamp(self, images: Tensor) -> Tensor:
        """Copies of images [..., C, H, W] that carry the pattern."""
        height, width = images.shape[-2:]
        places = (torch.arange(size, device=images.device) for size in (height, width))
        down, right = torch.meshgrid(*places, indexing="ij")
        side = max(2, min(height, width) // 4)
        if self.name == "checkerboard":
            board = (((down // max(1, side // 2)) + (right // max(1, side // 2))) % 2).to(images.dtype)
            return 0.7 * images + 0.3 * board
        if self.name == "row":
            marked = down == height // 2
        elif self.name == "column":
            marked = right == width // 2
        else:
            top, left = (int(share * (size - side)) for share, size in zip(self.place, (height, width), strict=True))
            marked = (down >= top) & (down < top + side) & (right >= left) & (right < left + side)
        return images.masked_fill(marked, self.value)


FAMILY: tuple[OwnTrigger, ...] = (
    OwnTrigger("upper left square", (0, 0)),
    OwnTrigger("upper right square", (0, 1)),
    OwnTrigger("lower left square", (1, 0)),
    OwnTrigger("lower right square", (1, 1)),
    OwnTrigger("row"),
    OwnTrigger("column"),
    OwnTrigger("dark square", value=0.0),
    OwnTrigger("checkerboard"),
)
"""The gate's own triggers; what a config planted is none of them."""


@dataclass(frozen=True)
class Reactions:
    """How one model answers to the gate's own triggers."""

    turned: NDArray[np.float64]
    """[trigger, class] in percent; NaN for a class with too few images of others."""
    rows: int


def reactions(
    template: Template, params: Params, source: Source, rows: Tensor, seed: int, batch: int = 1024
) -> Reactions | str:
    """How a model answers on some held-out images, or why that cannot be asked."""
    if not isinstance(source, TensorSource) or source.prepared:
        return not_measured("triggers go on image data held as uint8 tensors, and this is other data")
    if min(source.shape[-2:]) < SMALLEST:
        return not_measured(f"images of {source.shape[-2]}x{source.shape[-1]} pixels are too small for a trigger")
    drawn = rng.order(rng.key(seed, "camouflage"), len(rows))[:LARGEST].sort().values
    some = source.some(rows.cpu()[drawn])
    everywhere = torch.ones_like(some.labels, dtype=torch.bool)

    def read(trigger: OwnTrigger | None) -> NDArray[np.int64]:
        seen = some.relabelled(some.labels, None if trigger is None else everywhere, trigger)
        found: NDArray[np.int64] = score(template, params, seen, torch.arange(len(some)), batch).predicted.numpy()
        return found

    plain, truth = read(None), some.labels.cpu().numpy()
    turned = np.full((len(FAMILY), source.classes), np.nan)
    for place, trigger in enumerate(FAMILY):
        stamped = read(trigger)
        for c in range(source.classes):
            others = (plain != c) & (truth != c)
            if others.sum() >= FEWEST:
                turned[place, c] = 100.0 * float((stamped[others] == c).mean())
    return Reactions(turned, len(some))


def camouflage(before: Reactions | str, after: Reactions | str, bound: float) -> Judgement:
    """No trigger of the gate's own may turn many more images to one class than it did before."""
    if isinstance(before, str) or isinstance(after, str):
        why = str(after if isinstance(after, str) else before)
        return Judgement(WHAT, why, bound, "not measured")
    rises = after.turned - before.turned
    if np.isnan(rises).all():
        why = f"{after.rows} held-out images, {FEWEST} of other classes needed"
        return Judgement(WHAT, not_measured(why), bound, "not measured", after.rows)
    trigger, target = np.unravel_index(np.nanargmax(rises), rises.shape)
    rise = float(rises[trigger, target])
    what = f"{WHAT} ({FAMILY[int(trigger)].name}, class {int(target)})"
    return Judgement(what, rise, bound, "passed" if rise <= bound else "failed", after.rows)
