"""What things are called in each setting: a federation, one place that holds all data, Flower.

    federated   rounds, clients, bytes exchanged
    central     epochs, one place; nobody is asked and nothing is sent
    flower      rounds, nodes, a server; whole messages and two clocks

Pages, tables and the terminal take these words from here, so that a run is told in the words of those who ran it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unfed.report.units import bytes_text, flops_text, seconds_text

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
