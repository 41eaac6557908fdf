"""Is it forgotten?

It says what can be said without Retrain, one-sided, and only where there are rows enough to say it.

    class             accuracy on the class: its upper 95 % bound (Clopper–Pearson) is at most chance, 100 / classes
    planted backdoor  share of stamped test images that are read as the target: the same bound, the same chance
    client, samples   advantage of "D_u has lower loss than held-out data of the same labels":

        A = Σ_y n_y/n · [P(ℓ_u < ℓ_h) + ½ P(ℓ_u = ℓ_h)]   over u ∈ D_u, h held out, both of label y     (Mann–Whitney)
        advantage = 2A − 1        upper = advantage + 1.645 · 2 √Var A

    Var A by DeLong: each row's share of pairs won, S²/n over D_u and Σ_y (n_y/n)² S_y²/h_y over the held-out rows.

0 means that D_u looks like data the model never saw, 1 that every row of D_u is fitted better than all of those. A
model that never saw D_u stands near 0, for rows of one label are alike whoever holds them; below 0 is not held against
a model. The silence of an attack says something only where it could have spoken. So it must have spoken about the
model before, which was trained on D_u (lower 99 % bound above 0, upper bound above the margin), and there must be so
many rows that a model at 0 would pass with 99 % (`rows_needed`). Else the answer is "not measured", and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfed import rng
from unfed.errors import counted
from unfed.values import Value, not_measured

# Of standard normal draws so many percent lie below.
Z99, Z95 = 2.3263478740408408, 1.6448536269514722

Verdict = Literal["passed", "failed", "not measured"]

Floats = NDArray[np.float64]
Column = Tensor | NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class Losses:
    """One loss and one label per row."""

    loss: Floats
    label: NDArray[np.int64]

    @staticmethod
    def of(loss: Column, label: Column) -> Losses:
        return Losses(_numpy(loss).astype(np.float64), _numpy(label).astype(np.int64))

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, places: Column) -> Losses:
        chosen = _numpy(places)
        return Losses(self.loss[chosen], self.label[chosen])


@dataclass(frozen=True)
class Advantage:
    """How much better an attacker does than chance who calls low losses members.

    It lies between −1 and 1, and comes with its error.
    """

    value: float
    error: float
    rows: int
    """Rows of D_u that were compared: those whose label has held-out rows."""
    needed: int | None
    """Rows that it takes, at the margin that was asked for; None if no number does, for want of held-out rows."""

    @property
    def upper(self) -> float:
        """The upper 95 % bound."""
        return self.value + Z95 * self.error

    @property
    def sees(self) -> bool:
        """Whether the attack tells D_u from held-out data, 99 % sure."""
        return self.value - Z99 * self.error > 0

    @property
    def enough(self) -> bool:
        """Whether there are rows enough to decide."""
        return self.needed is not None and self.rows >= self.needed


def advantage(forget: Losses, held_out: Losses, margin: float) -> Advantage:
    """The advantage of "D_u has lower loss than held-out data of the same labels".

    It comes with DeLong's standard error.
    """
    shared = [y for y in np.unique(forget.label) if np.count_nonzero(held_out.label == y) >= 2]
    counts = {int(y): int(np.count_nonzero(forget.label == y)) for y in shared}
    n = sum(counts.values())
    if n < 2:
        return Advantage(math.nan, math.inf, n, None)
    placements, variance, held = [], 0.0, {}
    for y, n_y in counts.items():
        mine, theirs = forget.loss[forget.label == y], held_out.loss[held_out.label == y]
        placements.append(_won(mine, theirs))
        held[y] = len(theirs)
        variance += (n_y / n) ** 2 * float(np.var(_won(-theirs, -mine), ddof=1)) / len(theirs)
    won = np.concatenate(placements)
    variance += float(np.var(won, ddof=1)) / n
    shares = {y: n_y / n for y, n_y in counts.items()}
    return Advantage(2 * float(won.mean()) - 1, 2 * math.sqrt(variance), n, rows_needed(shares, held, margin))


def rows_needed(shares: dict[int, float], held_out: dict[int, int], margin: float) -> int | None:
    """Rows of D_u with which a model at advantage 0 stays under the margin with 99 %.

    It is None if no number of rows suffices.

    At 0 the variance of A is ((1 + Σ w_y/h_y)/n + Σ w_y²/h_y) / 12, with the labels' shares w_y.
    """
    allowed = (margin / (2 * (Z95 + Z99))) ** 2 * 12 - sum(w * w / held_out[y] for y, w in shares.items())
    if allowed <= 0:
        return None
    return math.ceil((1 + sum(w / held_out[y] for y, w in shares.items())) / allowed)


def _won(mine: Floats, theirs: Floats) -> Floats:
    """For each of mine, the share of theirs that is larger; an equal one counts half."""
    ordered = np.sort(theirs)
    larger = len(ordered) - np.searchsorted(ordered, mine, side="right")
    equal = np.searchsorted(ordered, mine, side="right") - np.searchsorted(ordered, mine, side="left")
    return (larger + 0.5 * equal) / len(ordered)


# --- shares of rows -------------------------------------------------------------------------------------------------


def upper_share(right: int, rows: int) -> float:
    """The upper 95 % bound of a share of which `right` of `rows` were seen (Clopper–Pearson), in percent."""
    if right >= rows:
        return 100.0
    low, high = right / rows, 1.0
    while high - low > 1e-12:  # the largest share under which so few are still seen once in twenty times
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(right, rows, middle) > 0.05 else (low, middle)
    return 100.0 * high


def _at_most(right: int, rows: int, share: float) -> float:
    """P(at most `right` of `rows`) for a binomial share."""
    if share >= 1.0:
        return 0.0
    logs = [
        math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1)
        + (k * math.log(share) if k else 0.0) + (rows - k) * math.log1p(-share)
        for k in range(right + 1)
    ]  # fmt: skip
    return math.fsum(math.exp(value) for value in logs)


def share_rows_needed(chance: float) -> int:
    """Rows of which none may be right for the bound to be at most `chance` percent."""
    return math.ceil(math.log(0.05) / math.log1p(-chance / 100.0))


def halves(rows: int, key: int) -> tuple[Tensor, Tensor]:
    """Two halves of range(rows), drawn by a key: one for the rule that stops, one for the judgement."""
    order = rng.order(key, rows)
    return order[: rows // 2].sort().values, order[rows // 2 :].sort().values


# --- judgements -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What one model shows of one request.

    These are the losses of its rows and of held-out ones, and what the model reads right.
    """

    forget: Losses | str
    """D_u, or why there is none."""
    held_out: Losses | str
    right: NDArray[np.bool_] | str
    """For each row of D_u whether it is read as its label."""
    stamped: NDArray[np.bool_] | str
    """For each stamped test image whether it is read as the target of the backdoor that the leaver planted."""
    counted: bool = False
    """Whether the owners of D_u only counted: which row was read right is then not known."""

    def part(self, key: int, which: Literal[0, 1]) -> Evidence:
        """One of two halves of every set of rows.

        The halves are apart so that the rule that stops never saw what the judgement is about.
        """

        def half(rows: Any) -> Any:
            return rows if isinstance(rows, str) else rows[halves(len(rows), key)[which].numpy()]

        together = not_measured("its owners count all their rows together, so none can be kept for the judgement")
        right = together if self.counted and not isinstance(self.right, str) else half(self.right)
        return Evidence(half(self.forget), half(self.held_out), right, half(self.stamped), self.counted)


@dataclass(frozen=True)
class Judgement:
    """A value, the bound that it must not exceed, and the verdict, with what was measured in words."""

    what: str
    value: Value
    bound: float
    verdict: Verdict
    rows: int | None = None
    before: Value | None = None
    """The same value of the model that was in force before."""


def class_forgotten(before: Evidence, after: Evidence, classes: int) -> Judgement:
    """A forgotten class is read right at most as often as by chance."""
    what = "the upper 95 % bound of the accuracy on the class in percent"
    return _share(what, before.right, after.right, 100.0 / classes)


def backdoor_forgotten(before: Evidence, after: Evidence, classes: int) -> Judgement:
    """A forgotten backdoor works at most as often as chance would have it."""
    what = "the upper 95 % bound of stamped test images read as the target in percent"
    return _share(what, before.stamped, after.stamped, 100.0 / classes)


def _share(what: str, before: NDArray[np.bool_] | str, after: NDArray[np.bool_] | str, chance: float) -> Judgement:
    if isinstance(before, str) or isinstance(after, str):
        return _unmeasured(what, chance, str(after if isinstance(after, str) else before))
    rows, needed = len(after), share_rows_needed(chance)
    was, value = (upper_share(int(seen.sum()), len(seen)) if len(seen) else 100.0 for seen in (before, after))
    if rows < needed:
        return _unmeasured(what, chance, f"{rows} rows, {needed} needed", rows)
    if was <= chance:
        why = f"the model before is at {was:.1f} already, so there is nothing to lose"
        return _unmeasured(what, chance, why, rows, was)
    return Judgement(what, value, chance, "passed" if value <= chance else "failed", rows, was)


def rows_forgotten(before: Evidence, after: Evidence, margin: float) -> Judgement:
    """Forgotten rows are fitted no better than held-out rows of the same labels."""
    what = "the upper 95 % bound of the advantage of an attack that calls low losses members"
    for found in (after.forget, after.held_out, before.forget, before.held_out):
        if isinstance(found, str):
            return _unmeasured(what, margin, found)
    was, now = (advantage(e.forget, e.held_out, margin) for e in (before, after))  # type: ignore[arg-type]
    if not now.enough:
        there = f"{counted(now.rows, 'row')} with held-out rows of the same label to compare with"
        needed = "no number suffices with so few held-out rows" if now.needed is None else f"{now.needed} are needed"
        return _unmeasured(what, margin, f"{there}, {needed}", now.rows)
    if not (was.sees and was.upper > margin):
        why = (
            f"the attack could not tell these rows from held-out ones in the model before either (advantage"
            f" {was.value:+.3f} ± {was.error:.3f}), so its silence now says nothing"
        )
        return _unmeasured(what, margin, why, now.rows, was.upper)
    return Judgement(what, now.upper, margin, "passed" if now.upper <= margin else "failed", now.rows, was.upper)


def _unmeasured(what: str, bound: float, why: str, rows: int | None = None, before: Value | None = None) -> Judgement:
    return Judgement(what, not_measured(why), bound, "not measured", rows, before)


def _numpy(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
