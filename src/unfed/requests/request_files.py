"""The deletion requests of a run folder as their files say it.

    requests/NUMBER-ID.json      one request each, with its state; NUMBER is the order in which they were filed

These files are the only truth about the queue. Files of the time before states are read as what they meant then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from unfed import storage
from unfed.config.names import check_id, check_label
from unfed.requests.entry import Entry, now


def read(folder: Path, left_model: Callable[[int, str, str], bool]) -> list[Entry]:
    """Every request in its order; `left_model` knows which (seed, request, method) came to its end."""
    found: list[tuple[Entry, bool]] = []
    for file in sorted((folder / "requests").glob("*.json")):
        raw = storage.read_json(file, "request")
        entry = Entry.from_json(raw, f"The request file {file}")
        check_id(entry.request.id, f"request id in {file}")
        check_label(entry.method, f"method in {file}")
        found.append((entry, "state" in raw))
    found.sort(key=lambda pair: pair[0].number)
    entries, moment = [entry for entry, _ in found], now()
    return [entry.at(moment) if told else _before_states(entry, entries, left_model) for entry, told in found]


def _before_states(entry: Entry, entries: Sequence[Entry], left_model: Callable[[int, str, str], bool]) -> Entry:
    """A request of the time before states: served in its order if its job has ended, else waiting."""
    if not left_model(entry.seed, entry.request.id, entry.method):
        return entry
    earlier = tuple(e.request.id for e in entries if e.number < entry.number and e.seed == entry.seed)
    return replace(entry, state="fulfilled", served=entry.number, earlier=earlier)
