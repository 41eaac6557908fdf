"""What things are called: the words of each setting, numbers with their units, and what each measure means.

    federated   rounds, clients, bytes exchanged
    central     epochs, one place; no client is asked and nothing is sent
    flower      rounds, nodes, a server; whole messages and two clocks

Pages, tables and the terminal take these words from here, so that a run is described in its own setting's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unfed.measures.metrics import COLUMNS, COSTS, GAP_METRICS, shown_in

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")


def bytes_text(value: float) -> str:
    """Bytes in decimal units: 7.1 MB."""
    return _scaled(value, BYTES)


def flops_text(value: float) -> str:
    """Floating-point operations: 3.4 GFLOP."""
    return _scaled(value, FLOPS)


def seconds_text(value: float) -> str:
    """A duration: 12.3 s, 4 min 5 s, 2 h 3 min."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _scaled(value: float, units: Sequence[str]) -> str:
    for power, unit in enumerate(units):
        scaled = value / 1000**power
        # 999.95 would be printed as 1000.0; the next unit says it better.
        if scaled < 999.95 or power == len(units) - 1:
            return f"{scaled:.0f} {unit}" if power == 0 else f"{scaled:.1f} {unit}"
    raise AssertionError("the last unit takes everything")


# --- the words of a setting -------------------------------------------------------------------------------------------


_COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "comm_bytes": ("Bytes exchanged", bytes_text),
    "wire_bytes": ("Bytes on the wire", bytes_text),
    "serialised_bytes": ("Messages as packed", bytes_text),
    "flops": ("Computation", flops_text),
    "stored_server_bytes": ("Kept by the server", bytes_text),
    "stored_original_bytes": ("The original would keep", bytes_text),
    "seconds": ("Time", seconds_text),
}


@dataclass(frozen=True)
class Wording:
    """The words of one setting."""

    setting: str
    unit: str = "round"
    """One step of a run: where one place holds all data, nobody goes round."""
    holder: str = "client"
    """Who is asked to train."""
    whose: str = " of every client"
    """Whose data a share of all data is."""
    columns: tuple[str, ...] = ("comm_bytes", "flops")
    """The costs that a table of results shows."""
    ledger: tuple[str, ...] = tuple(_COSTS)
    """All costs, for the table of costs; whole messages only where there were any."""
    asked: str = "Who was asked"
    """The heading above what is known of who took part."""
    folder: str = "the run folder"
    """Where the files of the run lie."""
    elsewhere: str = "backups, models already handed out, what clients keep"
    """Where copies may lie that this run knows nothing of."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names of costs that differ from the usual ones."""

    @property
    def units(self) -> str:
        """The steps of a run, as a heading."""
        return f"{self.unit.capitalize()}s"

    def several(self, count: float) -> str:
        """`1 round`, `3 epochs`."""
        text = f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.3g}"
        return f"{text} {self.unit}{'' if count == 1 else 's'}"

    def said(self, text: str) -> str:
        """A sentence that was written of rounds, in this setting's words."""
        return text if self.unit == "round" else re.sub(r"\bround(s?)\b", rf"{self.unit}\1", text)

    def cost(self, name: str) -> tuple[str, Callable[[float], str]]:
        """What a cost is called, and how its value is written."""
        usual, write = _COSTS[name]
        return self.renamed.get(name, usual), write


FEDERATED = Wording("federated")
CENTRAL = Wording(
    "central",
    unit="epoch",
    holder="place",
    whose="",
    columns=("flops",),
    ledger=("flops", "seconds"),
    asked="Which rows were read",
    elsewhere="backups, models already handed out",
)
FLOWER = Wording(
    "flower",
    holder="node",
    asked="Which nodes were asked",
    folder="the run folder on the server",
    elsewhere="backups, models already handed out, what nodes keep",
    renamed={"seconds": "Time, by the server's clock"},
)


def of(run: Mapping[str, Any]) -> Wording:
    """The words for a run, from what `run.json` says of it."""
    if run.get("call") or (run.get("config") or {}).get("setting") == "central":
        return CENTRAL
    return FLOWER if run.get("engine") in ("flower", "remote") else FEDERATED


def shared(runs: Iterable[Mapping[str, Any]]) -> Wording:
    """The words for several runs on one page: their own where they agree, else those of a federation."""
    found = {one.setting: one for one in map(of, runs)}
    return next(iter(found.values())) if len(found) == 1 else FEDERATED


# --- what measures mean -----------------------------------------------------------------------------------------------


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
