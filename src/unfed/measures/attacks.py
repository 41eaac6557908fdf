"""Can an attacker tell that the forgotten data was ever there?

Membership inference, as in the NeurIPS 2023 unlearning challenge: one feature per sample, its loss under the model;
label 1 for D_u, label 0 for test data; the larger set sub-sampled so that both weigh the same. A logistic regression

    min over w, b of   w²/2 + Σ_i [ log(1 + e^{z_i}) - y_i z_i ],     z_i = w · loss_i + b

is fitted on 90 % and scored on the held-out 10 %, ten times; the mean accuracy in percent is the number. 50 means that
losses do not tell; an ideal method matches *Retrain's* value, which is not 50 where D_u differs from the test data. How
far so few rows can be trusted: `sampling`.

`method="sklearn"` is the readable reference. `method="newton"` solves the same two-parameter problem on the same
splits, all of them at once, and agrees with it on every split.

Does a departure arm a backdoor?

One client plants a trigger, another one holds triggered images with their right labels (the camouflage), and asks to
leave: the model without it obeys the trigger, and so would exact Retrain's. What a gate can do is to compare, class by
class, how the model before and the model after answer to triggers of the gate's own:

    turned(θ, g, c)   of held-out images that θ reads as another class than c, and whose label is another, the share in
                      percent that θ reads as c once trigger g is stamped on them
    rise              max over g, c of turned(after, g, c) − turned(before, g, c), in points

The family is fixed here and never looks at what a config says was planted. A trigger unlike all of it can pass unseen:
`benchmarks/camouflage.py` counts how often, and how often an honest leaver raises an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

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
Method = Literal["newton", "sklearn"]

MIN_SAMPLES = 10  # per side: the smallest number of which a stratified 10 % holds one of each


def membership_inference(
    forget_losses: Losses, test_losses: Losses, *, seed: int, folds: int = FOLDS, method: Method = "newton"
) -> float:
    """MIA: the accuracy in percent of the loss attack that tells D_u from test data."""
    return 100.0 * float(np.mean(split_accuracies(forget_losses, test_losses, seed=seed, folds=folds, method=method)))


def try_membership_inference(forget_losses: Losses, test_losses: Losses, *, seed: int) -> Value:
    """The same, but where the attack cannot run the value says why, and the run goes on."""
    try:
        return membership_inference(forget_losses, test_losses, seed=seed)
    except UnfedError as error:
        return not_measured(str(error).rstrip("."))


def split_accuracies(
    forget_losses: Losses, test_losses: Losses, *, seed: int, folds: int = FOLDS, method: Method = "newton"
) -> Floats:
    """The attack's held-out accuracy on each split, as fractions."""
    if method not in ("newton", "sklearn"):
        raise UnfedError(f"There is no attack method {method!r}; use 'newton' or 'sklearn'.")
    if folds < 1:
        raise UnfedError(f"The attack needs at least one split, not {folds}; leave folds at 10.")
    losses, labels = _balanced(_checked(forget_losses, "forget"), _checked(test_losses, "test"), seed)
    train, held_out = _splits(labels.size // 2, seed, folds)
    fit = _fit_newton if method == "newton" else _fit_sklearn
    weight, bias = fit(losses[train], labels[train])
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
def _splits(n: int, seed: int, folds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers to train on and to hold out, one line per split.

    They are cached, because every evaluated round asks again.
    """
    # Imported where it is used: it takes a second, and a Flower client's process starts again for every message.
    from sklearn.model_selection import StratifiedShuffleSplit  # type: ignore[import-untyped, unused-ignore]

    labels = np.repeat(np.array([0, 1]), n)
    state = rng.key("membership", "splits", seed) % rng.WORD
    splitter = StratifiedShuffleSplit(n_splits=folds, test_size=HELD_OUT, random_state=state)
    train, held_out = zip(*splitter.split(np.zeros((labels.size, 1)), labels), strict=True)
    return np.stack(train), np.stack(held_out)


def _fit_sklearn(losses: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """One sklearn fit per split.

    It has the default regularisation and is iterated to convergence, so that the answer is *the* answer (at the default
    tolerance lbfgs stops so early that samples near the boundary change sides).
    """
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped, unused-ignore]

    fits = [
        LogisticRegression(tol=1e-10, max_iter=10_000).fit(x[:, None], y) for x, y in zip(losses, labels, strict=True)
    ]
    return np.array([fit.coef_[0, 0] for fit in fits]), np.array([fit.intercept_[0] for fit in fits])


def _fit_newton(losses: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Damped Newton on (w, b) for all splits together. Centring only moves b, which is not regularised."""
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

Shape = Literal["square", "row", "column", "dark square", "checkerboard"]


@dataclass(frozen=True)
class OwnTrigger:
    """One of the gate's own patterns, drawn on images in [0, 1] of any size."""

    shape: Shape
    place: tuple[int, int] = (0, 0)
    """Of a square: 0 for the upper or left edge, 1 for the lower or right one."""

    @property
    def name(self) -> str:
        if self.shape != "square":
            return self.shape
        return f"{'lower' if self.place[0] else 'upper'} {'right' if self.place[1] else 'left'} square"

    def stamp(self, images: Tensor) -> Tensor:
        """Copies of images [..., C, H, W] that carry the pattern."""
        height, width = images.shape[-2:]
        down = torch.arange(height, device=images.device)[:, None].expand(height, width)
        right = torch.arange(width, device=images.device)[None, :].expand(height, width)
        side = max(2, min(height, width) // 4)
        if self.shape == "checkerboard":
            board = (((down // max(1, side // 2)) + (right // max(1, side // 2))) % 2).to(images.dtype)
            return 0.7 * images + 0.3 * board
        if self.shape == "row":
            return images.masked_fill(down == height // 2, 1.0)
        if self.shape == "column":
            return images.masked_fill(right == width // 2, 1.0)
        if self.shape == "dark square":
            top, left = (height - side) // 2, (width - side) // 2
            return images.masked_fill(_box(down, right, top, left, side), 0.0)
        top, left = self.place[0] * (height - side), self.place[1] * (width - side)
        return images.masked_fill(_box(down, right, top, left, side), 1.0)


def _box(down: Tensor, right: Tensor, top: int, left: int, side: int) -> Tensor:
    return (down >= top) & (down < top + side) & (right >= left) & (right < left + side)


FAMILY: tuple[OwnTrigger, ...] = (
    *(OwnTrigger("square", (y, x)) for y in (0, 1) for x in (0, 1)),
    OwnTrigger("row"),
    OwnTrigger("column"),
    OwnTrigger("dark square"),
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
    chosen = rows.cpu()[drawn].to(source.images.device)
    images, labels = source.images[chosen], source.labels[chosen]

    def read(trigger: OwnTrigger | None) -> NDArray[np.int64]:
        flags = None if trigger is None else torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        seen = TensorSource(
            images,
            labels,
            classes=source.classes,
            transform=source.transform,
            stamped=flags,
            trigger=trigger,
            dtype=source.dtype,
        )
        found: NDArray[np.int64] = score(template, params, seen, torch.arange(len(labels)), batch).predicted.numpy()
        return found

    plain, truth = read(None), labels.cpu().numpy()
    turned = np.full((len(FAMILY), source.classes), np.nan)
    for place, trigger in enumerate(FAMILY):
        stamped = read(trigger)
        for c in range(source.classes):
            others = (plain != c) & (truth != c)
            if others.sum() >= FEWEST:
                turned[place, c] = 100.0 * float((stamped[others] == c).mean())
    return Reactions(turned, len(labels))


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
