"""Every number that is measured or counted in a run.

Each has a name, a title, a unit, a direction, and the places where it is shown.

The trajectory, the reporting rules, tables, pages, the command line and the documentation read this one list. A column
that is added here is read by the rules and listed in the docs; what it means stands with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["%", "nats", "points", "bytes", "FLOP", "s", "rounds"]
Place = Literal["table", "page", "docs"]


@dataclass(frozen=True)
class Column:
    """One number: what it is called, in which unit, and which direction is good."""

    name: str
    title: str
    unit: Unit
    good: Literal["high", "low", "as Retrain", "-"]
    text: str
    """What it means, in words short enough for a tooltip."""
    shown: tuple[Place, ...] = ("docs",)
    decimals: int = 2
    """How many of them a table prints."""


_EVERYWHERE: tuple[Place, ...] = ("table", "page", "docs")

METRICS = (
    Column(
        "retain",
        "Retain",
        "%",
        "as Retrain",
        "Accuracy in percent on the training data that stays. Unlearning should leave it as it was.",
        _EVERYWHERE,
    ),
    Column(
        "forget",
        "Forget",
        "%",
        "as Retrain",
        "Accuracy in percent on the data that was to be forgotten. The goal is Retrain's value, not zero: a model that"
        " never saw the data is still right on some of it. Where data was poisoned, right means the poisoned label.",
        _EVERYWHERE,
    ),
    Column(
        "test",
        "Test",
        "%",
        "as Retrain",
        "Accuracy in percent on data that nobody trained on. When a class is forgotten, it is left out here.",
        _EVERYWHERE,
    ),
    Column(
        "mia",
        "MIA",
        "%",
        "as Retrain",
        "Membership inference: how often an attacker who sees only each sample's loss tells forgotten data from test"
        " data, in percent. 50 is a coin toss. The goal is Retrain's value, which is not 50 where the forgotten data"
        " differs from the test data.",
        _EVERYWHERE,
        decimals=1,  # a mean over few splits, which the paper prints with one
    ),
    Column("validation", "Validation", "%", "high", "Accuracy in percent on the rows that clients hold out."),
    Column(
        "backdoor",
        "Backdoor",
        "%",
        "low",
        "How often the trigger that was planted in the forgotten data still makes the model answer the planted class,"
        " on test images that carry it, in percent. Low is good.",
        _EVERYWHERE,
    ),
    Column("retain_loss", "Retain loss", "nats", "low", "Mean cross-entropy on the training data that stays."),
    Column("forget_loss", "Forget loss", "nats", "as Retrain", "Mean cross-entropy on the forgotten data."),
    Column("test_loss", "Test loss", "nats", "low", "Mean cross-entropy on data that nobody trained on."),
    Column("loss_gap", "Loss gap", "nats", "as Retrain", "The distance between retain and forget loss (Eq. 1)."),
)
"""What is measured of a model, in the order in which rules and tables go through it."""

COSTS = (
    Column(
        "comm_bytes",
        "Bytes",
        "bytes",
        "low",
        "Model parameters sent to clients and back from the start of unlearning to the reported round, four bytes each;"
        " one download and one upload per participant and round.",
        _EVERYWHERE,
    ),
    Column("wire_bytes", "On the wire", "bytes", "low", "Bytes of every tensor that crossed, in its own type."),
    Column(
        "serialised_bytes", "Messages", "bytes", "low", "Bytes of whole messages, where messages are real (Flower)."
    ),
    Column(
        "flops",
        "FLOPs",
        "FLOP",
        "low",
        "Floating-point operations of training from the start of unlearning to the reported round: three forward passes"
        " for every sample trained on. Evaluation is not counted.",
        _EVERYWHERE,
    ),
    Column(
        "stored_server_bytes", "Stored at the server", "bytes", "low", "History kept since training, at the server."
    ),
    Column(
        "stored_original_bytes",
        "Stored by the original",
        "bytes",
        "low",
        "What the method as first published would have kept for the same rounds.",
    ),
    Column("seconds", "Seconds", "s", "low", "Seconds of work on this machine, evaluation not counted."),
)
"""What is counted from the start of a job on; each is cumulative."""

COLUMNS = {column.name: column for column in (*METRICS, *COSTS)}
GAP_METRICS = ("retain", "forget", "test", "mia")
"""The four metrics of the paper's Avg. Gap, in the order of its tables."""


def written(name: str, value: float) -> str:
    """A value with its unit, for a line of text."""
    column = COLUMNS.get(name)
    return f"{value:.2f} %" if column is not None and column.unit == "%" else f"{value:.4f}"


def shown_in(place: Place) -> tuple[str, ...]:
    """The names of the columns that are shown in a place."""
    return tuple(column.name for column in COLUMNS.values() if place in column.shown)
