"""Where every request stands, quickly: an SQLite index over the run folder and its log.

The files are the only truth. The index is made from them, knows from which, and is made again where it is gone,
damaged or of another day; nothing is ever read from it that the files do not say.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.folder.folder import RunFolder
from unfed.requests.entry import Entry
from unfed.trust.folder import TrustFolder

FILE = "index.sqlite"
_LAYOUT = 1
_COLUMNS = (
    "id",
    "number",
    "state",
    "reason",
    "phase",
    "agent",
    "kind",
    "created",
    "changed",
    "received",
    "expected_by",
)


@dataclass(frozen=True)
class Row:
    """A request as the index has it."""

    id: str
    number: int
    state: str
    reason: str | None
    phase: str
    """Where it is inside its state: filed, perturbed, round k, gated, published."""
    agent: str | None
    """Who signed it; None where it was asked without a signature."""
    kind: str
    created: str
    changed: str | None
    received: str | None
    expected_by: str | None


def rows(folder: RunFolder, trust: TrustFolder) -> list[Row]:
    """Every request in the order in which they came."""
    path, stamp = trust.path / FILE, _stamp(folder, trust)
    with contextlib.suppress(sqlite3.Error, ValueError), _opened(path) as base:
        if base.execute("SELECT value FROM meta").fetchone()[0] == stamp:
            return [Row(*row) for row in base.execute(f"SELECT {', '.join(_COLUMNS)} FROM requests ORDER BY number")]
    refresh(folder, trust)
    return _rows(folder, trust)


def refresh(folder: RunFolder, trust: TrustFolder) -> None:
    """Make the index anew from the files as they are; one that cannot be written is none."""
    path, stamp, found = trust.path / FILE, _stamp(folder, trust), _rows(folder, trust)
    for _ in range(2):
        try:
            with _opened(path) as base:
                _fill(base, stamp, found)
            return
        except sqlite3.OperationalError:  # somebody else fills it, or the disk is full: the files are there
            return
        except sqlite3.DatabaseError:  # damaged: away with it
            for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
                storage.remove(trust.path / name)


def _fill(base: sqlite3.Connection, stamp: str, found: Sequence[Row]) -> None:
    with base:
        base.execute("CREATE TABLE IF NOT EXISTS meta (value TEXT)")
        base.execute(f"CREATE TABLE IF NOT EXISTS requests ({', '.join(_COLUMNS)})")
        base.execute("DELETE FROM meta")
        base.execute("DELETE FROM requests")
        base.execute("INSERT INTO meta VALUES (?)", (stamp,))
        marks = ", ".join("?" for _ in _COLUMNS)
        base.executemany(
            f"INSERT INTO requests VALUES ({marks})", [tuple(getattr(row, name) for name in _COLUMNS) for row in found]
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        path.touch(mode=storage.PRIVATE)
    base = sqlite3.connect(path, timeout=10.0)
    try:
        base.execute("PRAGMA journal_mode=WAL")
        yield base
    finally:
        base.close()


def _stamp(folder: RunFolder, trust: TrustFolder) -> str:
    """From which files an index was made: the log grows, a request's file is replaced at every step."""
    files = sorted((folder.path / "requests").glob("*.json"))
    told = [[path.name, path.stat().st_mtime_ns, path.stat().st_size] for path in files]
    return json.dumps([_LAYOUT, len(trust.log.lines), told])


def _rows(folder: RunFolder, trust: TrustFolder) -> list[Row]:
    leaves = trust.log.leaves
    about: dict[Any, list[Mapping[str, Any]]] = {}
    for leaf in leaves:
        about.setdefault(str(leaf.get("request")), []).append(leaf)
    return [
        _row(entry, trust, about.get(entry.request.id, []) if entry.shared is None else leaves_about(entry, leaves))
        for entry in folder.book().entries
    ]


def leaves_about(entry: Entry, leaves: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The leaves that tell of a request, in their order: its own, and the rounds of a job that it shared."""
    return [leaf for leaf in leaves if leaf.get("request") in entry.names]


def _row(entry: Entry, trust: TrustFolder, own: Sequence[Mapping[str, Any]]) -> Row:
    received = next((leaf["at"] for leaf in own if leaf["type"] == "request"), None)
    due = next((leaf["expected_by"] for leaf in own if leaf["type"] == "acknowledgement"), None)
    agent = trust.agent(entry.request.id)
    moments = (entry.created, entry.changed, received, due)
    return Row(
        entry.request.id, entry.number, entry.state, entry.reason, phase(own), agent, entry.request.kind, *moments
    )


def phase(leaves: Sequence[Mapping[str, Any]]) -> str:
    """Where a request is inside its state, by the last leaf about it that says so."""
    words = {"gate": "gated", "in-force": "published", "request": "filed"}
    for leaf in reversed(leaves):
        if leaf["type"] == "round":
            return "perturbed" if leaf["round"] == 0 else f"round {leaf['round']}"
        if leaf["type"] in words:
            return words[leaf["type"]]
    return "filed"
