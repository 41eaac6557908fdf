"""The file of an unlearning's last good arrays, from which the same call goes on.

It says from which arrays they come, who had left, and whether anything was perturbed: whoever goes on says the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord

from unfed import storage
from unfed.errors import UnfedError
from unfed.flower.wire import from_arrays
from unfed.model.params import Params

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Kept:
    """What a file of kept arrays holds."""

    arrays: Params
    round: int
    seen: frozenset[int]
    """The classes of which somebody had left rows out by then."""


@dataclass(frozen=True)
class Beginning:
    """What an unlearning begins with: its arrays by their digest, who leaves, whether it perturbs."""

    arrays: str
    left: list[str]
    perturbed: bool

    def save(self, file: Path, arrays: ArrayRecord, round: int, seen: Collection[int]) -> None:
        about = {"begun": self.arrays, "round": round, "left": self.left, "perturbed": self.perturbed}
        storage.save(file, from_arrays(arrays), about | ({"seen": sorted(seen)} if seen else {}))

    def load(self, file: Path) -> Kept:
        """What the file holds, or the sentence that says of which other unlearning it is."""
        found, about = storage.load(file, "file of kept arrays")
        if about.get("begun") != self.arrays:
            raise UnfedError(f"{file} was kept on the way from another model; move it away, or give keep another name.")
        if about.get("left") != self.left:
            others = " and ".join(about.get("left", ())) or "nobody knows who"
            raise UnfedError(
                f"{file} was kept while others left ({others}), and who leaves now may have trained in its"
                " rounds; move it away, or give keep another name."
            )
        if self.perturbed and not about.get("perturbed"):
            raise UnfedError(
                f"{file} was kept by a start without a perturbation, so nothing in it was perturbed; move it"
                " away, or give keep another name."
            )
        round = int(about["round"])
        log.info("unfed: going on after round %d, kept in %s", round, file)
        return Kept(found, round, frozenset(map(int, about.get("seen", ()))))
