"""Names and units: the words of each setting, how numbers are written, what measures mean.

    federated   rounds, clients, bytes exchanged
    central     epochs, one place; no client is asked and nothing is sent
    flower      rounds, nodes, a server; whole messages and two clocks

Pages, tables and the terminal take these words from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from unfed.errors import listed
from unfed.folder.layout import Description
from unfed.measures.metrics import COLUMNS, GAP_METRICS, shown_in
from unfed.measures.metrics import COSTS as COST_COLUMNS
from unfed.values import Value, is_measured

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
    power = 0
    # 999.95 would be printed as 1000.0; the next unit says it better.
    while value / 1000**power >= 999.95 and power < len(units) - 1:
        power += 1
    return f"{value / 1000**power:.{min(power, 1)}f} {units[power]}"


def date_text(text: str) -> str:
    """`15 November 2026, 04:00 UTC`; text that is no ISO date is shown as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {moment.tzname()}" if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M}{zone}"


def several(noun: str, names: Sequence[str]) -> tuple[str, bool]:
    """`Client 3`, `Clients 0, 3 and 4`, `9 clients`; and whether that is plural."""
    if len(names) == 1:
        return f"{noun} {names[0]}", False
    many = noun + ("es" if noun.endswith("s") else "s")
    return (f"{len(names)} {many.lower()}" if len(names) > 6 else f"{many} {listed(names, 'and')}"), True


def span_text(rounds: Sequence[int]) -> str:
    """Rounds as a reader would list them: `rounds 1 to 20`, `rounds 1 to 3, 5 and 9`, `no round`."""
    spans: list[list[int]] = []
    for t in sorted(set(rounds)):
        if spans and t == spans[-1][-1] + 1:
            spans[-1].append(t)
        else:
            spans.append([t])
    parts = [f"{span[0]} to {span[-1]}" if len(span) > 2 else " and ".join(map(str, span)) for span in spans]
    if len(parts) > 8:
        return f"{len(set(rounds))} rounds between {spans[0][0]} and {spans[-1][-1]}"
    return f"{'round' if len(set(rounds)) == 1 else 'rounds'} {listed(parts, 'and')}" if parts else "no round"


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
    """One step of a run."""
    holder: str = "client"
    """Who is asked to train."""
    columns: tuple[str, ...] = ("comm_bytes", "flops")
    """The costs that a table of results shows."""
    ledger: tuple[str, ...] = tuple(_COSTS)
    """All costs, for the table of costs; whole messages only where there were any."""

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
        return (f"{usual}, by the server's clock" if (self.setting, name) == ("flower", "seconds") else usual), write

    def cost_text(self, name: str, value: Value) -> str:
        """A cost with its unit, or why there is none."""
        return self.cost(name)[1](value) if is_measured(value) else str(value)


FEDERATED = Wording("federated")
CENTRAL = Wording("central", "epoch", "place", columns=("flops",), ledger=("flops", "seconds"))
FLOWER = Wording("flower", holder="node")


def words_of(run: Description) -> Wording:
    """The words of a run's setting."""
    return next(words for words in (CENTRAL, FLOWER, FEDERATED) if words.setting == run.setting)


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
    "rounds": Tooltip("Rounds", "The round that is reported, which is also how many were needed to get there."),
    "sha256": Tooltip(
        "SHA-256",
        "A checksum of a tensor's bytes as they lie in the model file. Equal checksums mean equal tensors, bit for bit;"
        " it says that something changed, not what was forgotten.",
    ),
}
"""What each measure means, short enough for a tooltip; the same texts stand once more as a list, for print."""

HEADINGS = {
    **{f"{MEASURES[name].name} (Δ)": name for name in GAP_METRICS},
    "Avg. gap": "gap",
    **{COLUMNS[name].title: name for name in shown_in("table") if name not in GAP_METRICS},
    "Rounds": "rounds",
    "Epochs": "rounds",
}
"""Which explanation belongs to which heading of the results table."""


def measures(words: Wording) -> dict[str, Tooltip]:
    """What a setting's page explains, in its words: a cost that it does not have is left out."""
    costs = {column.name for column in COST_COLUMNS} - set(words.columns)
    found = {name: replace(one, text=words.said(one.text)) for name, one in MEASURES.items() if name not in costs}
    return found | {"rounds": replace(found["rounds"], name=words.units)}
