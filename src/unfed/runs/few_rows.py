"""What a trajectory tells of a purged request that took out only a few rows, and how that goes.

    its own lines              forget, own, forget_loss, loss_gap, mia    ─► "not measured: its 5 rows were purged, …"
    lines of those who left    what is measured again of it               ─► the same
    after it                   forget, over all that left until then      ─► over the others, as of a purge on

Lines grow or shrink by it, so every state that vouches for them vouches for the new ones: the states first, the
trajectory last. While the old one is there it tells which states have moved, so a process killed at any moment is gone
on with. Means over many rows stay, though two of them that differ by a few rows speak of those few.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.measures import trajectory
from unfed.measures.again import FEWEST, too_few
from unfed.measures.trajectory import Line
from unfed.runs.config import Config
from unfed.runs.folder import RunFolder
from unfed.runs.requests import Entry, overlap, owners
from unfed.runs.trajectory_file import TRAJECTORY
from unfed.values import Value, is_measured

OWN = ("forget", "own", "forget_loss", "loss_gap", "mia")


@dataclass(frozen=True)
class FewRows:
    """Of which lines a request's few rows are taken out."""

    request: str
    why: str
    """What stands in the place of the numbers."""
    named: frozenset[str]
    """Whose lines are about its rows: its own, those of the job that it shared, of a comparison that named them."""
    little: frozenset[str]
    """The requests after it by which few rows are out in all, so that a mean over all of them speaks of each too."""
    rows: Mapping[str, int]
    """How many rows each request took out itself."""

    def of(self, line: Line) -> Line:
        """The line without them."""
        gone: tuple[str, ...] = ()
        made: dict[str, Any] = dict(line)
        if line["request"] in self.named:
            gone = OWN
        elif is_measured((line.get("earlier") or {}).get(self.request)):  # else no number of the line is over its rows
            made["earlier"] = {**line["earlier"], self.request: self.why}
            made["forget"] = self._of_the_others(line)
            gone = OWN if line["request"] in self.little else ()
        for name in gone:
            if is_measured(made.get(name)):
                made[name] = self.why
        return made  # type: ignore[return-value]

    def _of_the_others(self, line: Line) -> Value:
        """Forget without the few rows: over the others that it was over, or the line's own request."""
        own: Value = self.why if (said := line.get("own")) is None else said
        forget = line["forget"]
        shares = {name: share for name, share in line["earlier"].items() if is_measured(share)}
        shares |= {str(line["request"]): own} if is_measured(own) else {}
        if not is_measured(forget) or not set(shares) <= set(self.rows):
            return own if is_measured(forget) else forget
        others = {name: share for name, share in shares.items() if name != self.request}
        if not others or abs(self._mean(shares) - forget) > 1e-6:  # it was over other rows: not those purged before
            return own
        return self._mean(others)

    def _mean(self, shares: Mapping[str, Any]) -> float:
        weight = sum(self.rows[name] for name in shares)
        return sum(self.rows[name] * float(share) for name, share in shares.items()) / weight


def few_rows(folder: RunFolder, request: str) -> FewRows:
    """What is to be taken out for a request, as the folder tells it."""
    entries = {entry.request.id: entry for entry in folder.requests()}
    entry, described = entries[request], folder.description()
    config, counted = Config.kept(described["config"]), {one["id"]: one for one in described["requests"]}
    compared = [
        name
        for name, asked in zip(config.request_ids(), config.request, strict=True)
        if 0 < (counted[name].get("forgotten_rows") or FEWEST) < FEWEST
        and overlap(asked.owners(), owners(entry.request))
    ]
    few = frozenset(name for name, one in entries.items() if _rows_out(one) < FEWEST)
    own = () if entry.request.deleted else (request, entry.shared)  # nobody could score what was deleted
    named = frozenset(name for name in (*own, *compared) if name)
    rows = {name: _rows(one) for name, one in entries.items() if _rows(one)}
    return FewRows(request, too_few(_rows(entry)), named, few, rows)


def _rows(entry: Entry) -> int:
    return int((entry.described or {}).get("forgotten_rows") or 0)


def _rows_out(entry: Entry) -> int:
    return int((entry.described or {}).get("rows_out") or _rows(entry))


def told_of(folder: RunFolder, request: str) -> bool:
    """Whether the trajectory tells of a request's few rows; of deleted ones only a comparison can."""
    about = few_rows(folder, request)
    return any(about.of(line) != line for line in folder.lines())


def take_out(folder: RunFolder, request: str) -> None:
    """Take the numbers of a request's few rows out of the trajectory.

    The states vouch for what is left.
    """
    about = few_rows(folder, request)
    old = storage.content(folder.trajectory)
    old = old[: old.rfind(b"\n") + 1]
    new, moved = _changed(old, about)
    for path, numbers in list(folder.states()):
        _move(path, numbers, old, new, moved)
    storage.write_bytes(folder.trajectory, new)
    folder.reread()


def _changed(old: bytes, about: FewRows) -> tuple[bytes, dict[int, int]]:
    """The lines without the few rows, and where each place between two lines has gone."""
    new, place, moved = bytearray(), 0, {0: 0}
    for number, text in enumerate(old.splitlines(keepends=True), 1):
        line = trajectory.read(text.rstrip(b"\n"), f"Line {number} of {TRAJECTORY}")
        less = about.of(line)
        new += text if less == line else trajectory.write(less).encode() + b"\n"
        place += len(text)
        moved[place] = len(new)
    return bytes(new), moved


def _move(path: Path, numbers: dict[str, Any], old: bytes, new: bytes, moved: dict[int, int]) -> None:
    """Let a state vouch for the new lines, unless it does, or they are those of before."""
    offset, said = int(numbers["offset"]), (numbers.get("bound") or {}).get("trajectory")
    before, after = _sha256(old[:offset]), _sha256(new[:offset])
    if said == after:  # moved by a purge that was killed, or nothing changes up to here
        return
    if offset not in moved or said not in (None, before):
        raise UnfedError(f"{path} does not vouch for the trajectory that is there; restore both from a copy.")
    tensors, kept = storage.load(path, "saved state")
    place = moved[offset]
    kept |= {"offset": place}
    if "bound" in kept:
        kept |= {"bound": {**kept["bound"], "trajectory": _sha256(new[:place])}}
    if isinstance(diary := kept.get("diary"), dict) and diary.get("offset") in moved:
        kept |= {"diary": {**diary, "offset": moved[diary["offset"]]}}
    storage.save(path, tensors, kept)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
