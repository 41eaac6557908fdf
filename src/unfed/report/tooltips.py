"""What each measure means, in words short enough for a tooltip.

A column's heading is a button that shows its text; the same texts stand once more as a list, for print and for reading
through. What an attack did is part of its number, so it is said in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from unfed.measures.metrics import COLUMNS, COSTS, GAP_METRICS, shown_in
from unfed.report.wording import Wording


@dataclass(frozen=True)
class Tooltip:
    """A name as the page shows it, and what it means."""

    name: str
    text: str


MEASURES = {
    **{name: Tooltip(COLUMNS[name].title, COLUMNS[name].text) for name in GAP_METRICS},
    "gap": Tooltip(
        "Average gap",
        "The mean of the four distances to Retrain (Retain, Forget, Test, MIA), in percentage points. Zero would be a"
        " model that scores as if it had never seen the data. A star marks the smallest and what chance may put behind"
        " it, unless those are more than half of the methods, or doing nothing is as near.",
    ),
    "delta": Tooltip("Δ", "The distance to Retrain's value, in percentage points."),
    **{name: Tooltip(COLUMNS[name].title, COLUMNS[name].text) for name in shown_in("page") if name not in GAP_METRICS},
    "rounds": Tooltip(
        "Rounds",
        "The round that is reported, which is also how many were needed to get there.",
    ),
    "sha256": Tooltip(
        "SHA-256",
        "A checksum of a tensor's bytes as they lie in the model file. Equal checksums mean equal tensors, bit for bit;"
        " it says that something changed, not what was forgotten.",
    ),
}


def measures(words: Wording) -> Mapping[str, Tooltip]:
    """What a setting's page explains, in its words: a cost that it does not have is left out."""
    costs = {column.name for column in COSTS} - set(words.columns)
    found = {name: replace(one, text=words.said(one.text)) for name, one in MEASURES.items() if name not in costs}
    return found | {"rounds": replace(found["rounds"], name=words.units)}


# Which explanation belongs to which heading of the results table.
HEADINGS = {
    **{f"{MEASURES[name].name} (Δ)": name for name in GAP_METRICS},
    "Avg. gap": "gap",
    **{COLUMNS[name].title: name for name in shown_in("table") if name not in GAP_METRICS},
    "Rounds": "rounds",
    "Epochs": "rounds",
}

ATTACK = (
    "The membership inference attack is the one of the NeurIPS 2023 unlearning challenge: a logistic regression on one"
    " number per sample, its loss under the model; forgotten data against test data, the larger set sub-sampled to the"
    " size of the smaller; ten random splits, each scored on a tenth that was held out; the mean accuracy is shown. It"
    " knows the model's answers and the true labels, not the training."
)
