"""What each measure means, in words short enough for a tooltip.

A column's heading is a button that shows its text; the same texts stand once more as a list, for print and for reading
through. What an attack did is part of its number, so it is said in full.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A name as the page shows it, and what it means."""

    name: str
    text: str


MEASURES = {
    "retain": Measure(
        "Retain", "Accuracy in percent on the training data that stays. Unlearning should leave it as it was."
    ),
    "forget": Measure(
        "Forget",
        "Accuracy in percent on the data that was to be forgotten. The goal is Retrain's value, not zero: a model that"
        " never saw the data is still right on some of it. Where data was poisoned, right means the poisoned label.",
    ),
    "test": Measure(
        "Test",
        "Accuracy in percent on data that nobody trained on. When a class is forgotten, it is left out here.",
    ),
    "mia": Measure(
        "MIA",
        "Membership inference: how often an attacker who sees only each sample's loss tells forgotten data from test"
        " data, in percent. 50 is a coin toss. The goal is Retrain's value, which is not 50 where the forgotten data"
        " differs from the test data.",
    ),
    "gap": Measure(
        "Average gap",
        "The mean of the four distances to Retrain (Retain, Forget, Test, MIA), in percentage points. Zero would be a"
        " model that scores as if it had never seen the data. The star marks the smallest.",
    ),
    "delta": Measure("Δ", "The distance to Retrain's value, in percentage points."),
    "backdoor": Measure(
        "Backdoor",
        "How often the trigger that was planted in the forgotten data still makes the model answer the planted class,"
        " on test images that carry it, in percent. Low is good.",
    ),
    "comm_bytes": Measure(
        "Bytes",
        "Model parameters sent to clients and back from the start of unlearning to the reported round, four bytes each;"
        " one download and one upload per participant and round.",
    ),
    "flops": Measure(
        "FLOPs",
        "Floating-point operations of training from the start of unlearning to the reported round: three forward passes"
        " for every sample trained on. Evaluation is not counted.",
    ),
    "rounds": Measure("Rounds", "The round that is reported, which is also how many rounds were needed to get there."),
    "sha256": Measure(
        "SHA-256",
        "A checksum of a tensor's bytes as they lie in the model file. Equal checksums mean equal tensors, bit for bit;"
        " it says that something changed, not what was forgotten.",
    ),
}

# Which explanation belongs to which heading of the results table.
HEADINGS = {
    **{f"{MEASURES[name].name} (Δ)": name for name in ("retain", "forget", "test", "mia")},
    "Avg. gap": "gap",
    "Backdoor": "backdoor",
    "Bytes": "comm_bytes",
    "FLOPs": "flops",
    "Rounds": "rounds",
}

ATTACK = (
    "The membership inference attack is the one of the NeurIPS 2023 unlearning challenge: a logistic regression on one"
    " number per sample, its loss under the model; forgotten data against test data, the larger set sub-sampled to the"
    " size of the smaller; ten random splits, each scored on a tenth that was held out; the mean accuracy is shown. It"
    " knows the model's answers and the true labels, not the training."
)
