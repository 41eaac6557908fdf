"""Is it forgotten?

It says what can be said without Retrain, one-sided, and only where there are rows enough to say it.

    class             accuracy on the class: its upper 95 % bound (Clopper–Pearson) is at most chance, 100 / classes
    planted backdoor  share of stamped test images that are read as the target: the same bound, the same chance
    client, samples   advantage of "D_u has lower loss than held-out data of the same labels":

        A = Σ_y n_y/n · [P(ℓ_u < ℓ_h) + ½ P(ℓ_u = ℓ_h)]   over u ∈ D_u, h held out, both of label y     (Mann–Whitney)
        advantage = 2A − 1        upper = advantage + 1.645 · 2 √Var A

    Var A by DeLong: each row's share of pairs won, S²/n over D_u and Σ_y (n_y/n)² S_y²/h_y over the held-out rows.

0 means that D_u looks like data the model never saw, 1 that every row of D_u is fitted better than all of those. A
model that never saw D_u stands near 0, for rows of one label are alike everywhere; below 0 is not held against
a model. The silence of an attack says something only where it could have spoken. So it must have spoken about the
model before, which was trained on D_u (lower 99 % bound above 0, upper bound above the margin), and there must be so
many rows that a model at 0 would pass with 99 % (`rows_needed`). Else the answer is "not measured", and why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfed import rng
from unfed.errors import counted, listed, option
from unfed.model.params import Params
from unfed.values import PREFIX, Value, not_measured

# Of standard normal draws so many percent lie below.
Z99, Z95 = 2.3263478740408408, 1.6448536269514722

Verdict = Literal["passed", "failed", "not measured"]

Floats = NDArray[np.float64]
Column = Tensor | NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class Losses:
    """One loss and one label per row, and where it is known whether the row is read right."""

    loss: Floats
    label: NDArray[np.int64]
    right: NDArray[np.bool_] | None = None

    @staticmethod
    def of(loss: Column, label: Column, right: Column | None = None) -> Losses:
        read = None if right is None else _numpy(right).astype(np.bool_)
        return Losses(_numpy(loss).astype(np.float64), _numpy(label).astype(np.int64), read)

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, places: Column) -> Losses:
        chosen = _numpy(places)
        return Losses(self.loss[chosen], self.label[chosen], None if self.right is None else self.right[chosen])

    @property
    def errors(self) -> Losses:
        """The same with 0 for a row that is read right, and 1 for any other."""
        assert self.right is not None
        return Losses((~self.right).astype(np.float64), self.label)


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
    placed = _placements(forget, held_out)
    n = sum(len(mine) for mine, _ in placed)
    if n < 2:
        return Advantage(math.nan, math.inf, n, None)
    mean, error = _mean_won(placed)
    shares = {y: len(mine) / n for y, (mine, _) in enumerate(placed)}
    held = {y: len(theirs) for y, (_, theirs) in enumerate(placed)}
    return Advantage(2 * mean - 1, 2 * error, n, rows_needed(shares, held, margin))


Placements = list[tuple[Floats, Floats]]
"""For each label that both sets have: the pairs that each row of D_u wins, and that are won over each held-out row."""


def _placements(forget: Losses, held_out: Losses) -> Placements:
    shared = [y for y in np.unique(forget.label) if np.count_nonzero(held_out.label == y) >= 2]
    placed = []
    for y in shared:
        mine, theirs = forget.loss[forget.label == y], held_out.loss[held_out.label == y]
        placed.append((_won(mine, theirs), _won(-theirs, -mine)))
    return placed


def _mean_won(placed: Placements) -> tuple[float, float]:
    """The share of pairs that D_u wins, with DeLong's standard error."""
    won, variance = np.concatenate([mine for mine, _ in placed]), 0.0
    for mine, theirs in placed:
        variance += (len(mine) / len(won)) ** 2 * float(np.var(theirs, ddof=1)) / len(theirs)
    variance += float(np.var(won, ddof=1)) / len(won)
    return float(won.mean()), math.sqrt(variance)


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


# --- did it forget? -------------------------------------------------------------------------------------------------

FEWEST = 10
"""With fewer rows than these nothing is decided."""
VISIBLE = 0.2
"""An advantage that the model before must be shown not to have, for "nothing to forget could be seen"."""
OPPOSITE = -0.9
"""A cosine below which a tensor has taken the opposite sign."""

Kind = Literal["forgotten", "remembers", "nothing", "unseen", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """The lower 99 % bound."""
        return self.value - Z99 * self.error

    @property
    def high(self) -> float:
        return self.value + Z99 * self.error


@dataclass(frozen=True)
class Signal:
    """What shows that a model was trained on some rows: the advantage, or a share above chance."""

    before: Estimate
    after: Estimate
    lost: Estimate
    """Before minus after, on the same rows."""
    rows: int


@dataclass(frozen=True)
class Forgetting:
    """The answer to "did it forget?".

    It holds no measured number, so a purge need not touch it.

    the signal before   after      lost
    none                                             unseen: there was nothing to see
    there               gone       significantly     forgotten
    there               there      significantly     remembers
    there               there      not               nothing
    there               gone       not               undecided: too few rows
    """

    kind: Kind
    by: str = ""
    """What decided: loss, accuracy, class, backdoor or sign."""
    rows: int | None = None
    why: str = ""
    """Why it is undecided, or which tensors took the opposite sign."""

    def sentence(self, remedy: str = "") -> str:
        """The answer in words; `remedy` is the next step where something is left to forget."""
        gone, there = _SIGNS.get(self.by, _SIGNS["loss"])
        if self.kind == "forgotten":
            return f"Forgotten, as far as {counted(self.rows or 0, 'row')} show: {gone}."
        if self.kind == "unseen":
            return f"Nothing to forget could be seen: even the model before shows no trace in {self.rows} rows."
        if self.kind == "undecided":
            return f"Whether it was forgotten cannot be decided: {self.why}."
        if self.by == "sign":
            there = f"{self.why} took the opposite sign as well, which takes the negation back"
        said = f"Nothing was forgotten: {there}" if self.kind == "nothing" else f"Not all was forgotten: {there}"
        return f"{said}. {remedy}".rstrip()

    def beside(self, retrain: Forgetting | None) -> Forgetting:
        """The same where Retrain was checked too.

        Retrain never saw the rows, so what it shows as well proves nothing.
        """
        worse = ("remembers", "nothing")
        if retrain is None or self.by == "sign" or {self.kind, retrain.kind} - {*worse}:
            return self
        if worse.index(self.kind) > worse.index(retrain.kind):
            return self
        return Forgetting("undecided", self.by, self.rows, "Retrain, which never saw these rows, shows the same")

    @staticmethod
    def of(raw: object) -> Forgetting | None:
        """What `vars` of one gave, as a file has it; None where there is none."""
        if not isinstance(raw, dict) or raw.get("kind") not in get_args(Kind):
            return None
        rows = raw.get("rows") if isinstance(raw.get("rows"), int) else None
        return Forgetting(raw["kind"], str(raw.get("by", "")), rows, str(raw.get("why", "")))


_SIGNS = {
    "loss": ("its rows are fitted like unseen ones", "its rows are still fitted better than unseen ones"),
    "accuracy": ("its rows are read like unseen ones", "its rows are still read better than unseen ones"),
    "class": ("the class is read right no more often than by chance", "the class is still read right"),
    "backdoor": ("the planted backdoor works no more often than by chance", "the planted backdoor still works"),
}


def remedy(method: str) -> str:
    """The next step after a method that did not forget."""
    return f"Try {option('method', 'retrain')}{', or other layers' if method == 'not' else ''}."


def did_it_forget(
    before: Evidence, after: Evidence, classes: int, whole_class: bool, opposite: Sequence[str] = ()
) -> Forgetting:
    """Decide whether a model forgot, from what it shows of the request before and after.

    Args:
        before: What the model that went in shows.
        after: What the new model shows, on the same rows.
        classes: How many there are; chance is one in so many.
        whole_class: Whether a class leaves. Else rows are compared with held-out rows of the same labels.
        opposite: Tensors that took the opposite sign beside the negated ones (`opposite_signs`).
    """
    found = _decided(_signals(before, after, classes, whole_class))
    if opposite and found.kind != "forgotten":
        return Forgetting("nothing", "sign", found.rows, listed(opposite, "and"))
    return found


def _decided(signals: dict[str, Signal] | str) -> Forgetting:
    if isinstance(signals, str):
        return Forgetting("undecided", why=signals.removeprefix(PREFIX))
    name, signal = max(signals.items(), key=lambda one: one[1].before.low)
    few = Forgetting("undecided", name, signal.rows, _too_few(signal.rows))
    seen = {name: one for name, one in signals.items() if one.before.low > 0}
    if not seen:
        return few if signal.before.high > VISIBLE else Forgetting("unseen", name, signal.rows)
    there = {name: one for name, one in seen.items() if one.after.low > 0}
    moved = any(one.lost.low > 0 and one.lost.value > one.before.value / 10 for one in seen.values())
    if not there and any(one.after.high < 0 for name, one in seen.items() if name in ("loss", "accuracy")):
        return Forgetting("undecided", name, signal.rows, "its rows are now fitted worse than unseen ones")
    if not there:
        return Forgetting("forgotten", name, signal.rows) if moved else few
    name, signal = max(there.items(), key=lambda one: one[1].after.low)
    much = any(one.lost.high > one.before.value / 2 for one in there.values())
    return Forgetting("remembers" if moved or much else "nothing", name, signal.rows)


def _signals(before: Evidence, after: Evidence, classes: int, whole_class: bool) -> dict[str, Signal] | str:
    """Every signal that can be measured, or why none can."""
    shares = [("backdoor", before.stamped, after.stamped)]
    shares += [("class", before.right, after.right)] if whole_class else []
    found: dict[str, Signal] = {}
    for name, then, now in shares:
        if not (isinstance(then, str) or isinstance(now, str)) and len(now) >= FEWEST:
            was, is_now = _above_chance(then, 1 / classes), _above_chance(now, 1 / classes)
            lost = Estimate(was.value - is_now.value, math.hypot(was.error, is_now.error))
            found[name] = Signal(was, is_now, lost, len(now))
    if found:
        return found
    if whole_class:
        return after.right if isinstance(after.right, str) else _too_few(len(after.right))
    sets: list[Losses] = []
    for one in (before.forget, before.held_out, after.forget, after.held_out):
        if isinstance(one, str):
            return one
        sets.append(one)
    if (rows := sum(len(mine) for mine, _ in _placements(*sets[:2]))) < FEWEST:
        return _too_few(rows)
    found["loss"] = _paired(sets, rows)
    if all(one.right is not None for one in sets):
        found["accuracy"] = _paired([one.errors for one in sets], rows)
    return found


def _paired(sets: Sequence[Losses], rows: int) -> Signal:
    """The advantage before and after, and what it lost on the same rows."""
    placed = _placements(*sets[:2]), _placements(*sets[2:])
    lost = [(a - c, b - d) for (a, b), (c, d) in zip(*placed, strict=True)]
    (was, e), (now, f), (less, g) = map(_mean_won, (*placed, lost))
    return Signal(Estimate(2 * was - 1, 2 * e), Estimate(2 * now - 1, 2 * f), Estimate(2 * less, 2 * g), rows)


def _above_chance(right: NDArray[np.bool_], chance: float) -> Estimate:
    return Estimate(float(right.mean()) - chance, float(right.std(ddof=1)) / math.sqrt(len(right)))


def _too_few(rows: int) -> str:
    return f"{counted(rows, 'row')} {'is' if rows == 1 else 'are'} too few"


def opposite_signs(before: Params, after: Params, negated: Collection[str]) -> list[str]:
    """Weights that took the opposite sign though only `negated` was negated.

    Two linear layers that both change sign compute what they did: −W₂ · −W₁ = W₂ · W₁.
    """

    def turned(name: str) -> bool:
        old, new = (params[name].flatten().double() for params in (before, after))
        return float(torch.cosine_similarity(old, new, dim=0)) < OPPOSITE

    weights = [name for name, old in before.items() if old.is_floating_point() and old.ndim > 1]
    own = [name for name in weights if name in negated]
    if not own or not all(turned(name) for name in own):
        return []
    return [name for name in weights if name not in negated and turned(name)]
