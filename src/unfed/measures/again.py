"""What left earlier, looked at once more on the model that a later request leaves.

    forget      accuracy on what the request itself took out
    chance      of a class: one in so many classes, more than which a model that never saw it does not reach
    expected    of a client or of samples, what a model that never saw them would reach about, without Retrain:
                Σ_y n_y/n · (accuracy on held-out rows of label y), n_y of its n rows of label y
    mia         membership inference, its rows against test data
    backdoor    how often it works, of a client that planted one; of nobody else
    rows        how many those shares are of: of five rows each counts 20 points, and three may be hard to read

A request stays forgotten while forget is at most chance, or stands near what is expected. What cannot be measured says
why. What was purged is looked at all the same while its owners offer it, for whoever left wants to stay out; but as a
share of many rows only, for a share of a few tells of single ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unfed.client.scores import Scores
from unfed.values import Value, not_measured

Again = dict[str, Value]
"""forget, chance or expected, mia, rows, and backdoor where the request's clients planted one."""
PLANTED = not_measured("a backdoor was planted in its rows, so rows of one label are not alike")
FEWEST = 10
"""Rows below which a share of purged rows is not written down, as tables hide small counts."""


def too_few(rows: int | None) -> str:
    """Why nothing is said of a purged request that took out so many rows; empty if something is."""
    several = "1 row was" if rows == 1 else "rows were" if rows is None else f"{rows} rows were"
    return not_measured(f"its {several} purged, {FEWEST} needed") if rows is None or rows < FEWEST else ""


def expected(labels: Tensor, held_out: tuple[Scores, Tensor] | None, classes: int) -> Value:
    """What a model that never saw rows of these labels would read right of them, in percent."""
    if held_out is None:
        return not_measured("no held-out data")
    seen, theirs = held_out
    right = torch.bincount(theirs, weights=seen.correct.cpu().double(), minlength=classes)
    count, own = torch.bincount(theirs, minlength=classes), torch.bincount(labels, minlength=classes)
    if bool((count[own > 0] == 0).any()):
        return not_measured("no held-out row has a label of its rows")
    return 100.0 * float((own * right / count.clamp(min=1)).sum() / own.sum())
