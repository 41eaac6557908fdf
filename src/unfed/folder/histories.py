"""The recorded histories of a job's saved state; a save writes only what changed.

    state/SEED/JOB.safetensors      says: histories (clients, rounds, numbers) and the log: its file, length, SHA-256
    state/SEED/JOB.history-N        the records themselves, one part per save; what comes later replaces what was before

A part is written before the state that counts it: killed in between, the state still vouches for the length before, and
the next part is written over the rest. When half of a file is out of date, or a leaver is purged, all that counts is
written to file N + 1, and file N goes once the state says so.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from unfed import storage
from unfed.errors import UnfedError
from unfed.federation.history import ClientRecord, History
from unfed.model.params import Params, tensor_bytes
from unfed.requests.saved_state import LogNote, SavedState

Key = tuple[str, str, str]
"""(label, "shared" or "own", name of a group or of a client)."""
HISTORY = "history"
"""How the log of a state is called: JOB.history-N."""
_SLACK = 1 << 20
_SIZE = 8


def _records(histories: Mapping[str, History]) -> Iterator[tuple[Key, ClientRecord]]:
    for label, history in histories.items():
        yield from (((label, "shared", name), ClientRecord(tensors)) for name, tensors in history.shared.items())
        yield from (((label, "own", name), record) for name, record in history.own.items())


def _outline(history: History) -> dict[str, Any]:
    """What a state says of a history; the records are in the log."""
    return {
        "rounds": history.rounds,
        "groups": list(history.shared),
        "clients": list(history.own),
        "numbers": dict(history.numbers),
        "purged": list(history.purged),
    }


class HistoryLog:
    """The log beside one state file."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._said: LogNote | None = None
        self._hash = hashlib.sha256()
        self._known: dict[Key, tuple[Mapping[str, Any], dict[str, weakref.ref[Tensor]]]] = {}

    def save(self, histories: Mapping[str, History], said: LogNote | None) -> dict[str, Any]:
        """Write what changed, and give what the state must say of it.

        `said` is what the state on the disk says of its log.

        Where that is not what this process wrote or read, all of it is written.
        """
        if not histories:
            return {"histories": {}}
        records = list(_records(histories))
        live = sum(tensor_bytes(record.tensors) for _, record in records)
        if self._said is None or self._said != said or self._said.length > 2 * live + _SLACK:
            self._begin_anew(records)
        else:
            self._append([(key, record) for key, record in records if self._changed(key, record)])
        self._known = {key: _seen(record) for key, record in records}
        return {
            "histories": {label: _outline(h) for label, h in histories.items()},
            "log": self._said and self._said.to_json(),
        }

    def tidy(self) -> None:
        """Take away what no state counts any more; once the state is on the disk."""
        kept = None if self._said is None else self._said.file
        for path in self.files():
            if path.name != kept:
                with contextlib.suppress(OSError):
                    path.unlink()

    def files(self) -> list[Path]:
        """Every log that lies beside the state, those that it does not count any more included."""
        return sorted(self._state.parent.glob(f"{glob.escape(self._state.stem)}.{HISTORY}-*"))

    def _begin_anew(self, records: list[tuple[Key, ClientRecord]]) -> None:
        taken = [int(p.name.rpartition("-")[2]) for p in self.files()]
        name = f"{self._state.stem}.{HISTORY}-{1 + max(taken, default=0)}"
        part = _packed(records, {})
        storage.write_bytes(self._state.parent / name, part)
        self._hash = hashlib.sha256(part)
        self._said = LogNote(file=name, length=len(part), sha256=self._hash.hexdigest())

    def _append(self, records: list[tuple[Key, ClientRecord]]) -> None:
        if not records or self._said is None:
            return
        part = _packed(records, self._known)
        storage.write_at(self._state.parent / self._said.file, self._said.length, part)
        self._hash.update(part)
        length = self._said.length + len(part)
        self._said = LogNote(file=self._said.file, length=length, sha256=self._hash.hexdigest())

    def _changed(self, key: Key, record: ClientRecord) -> bool:
        if key not in self._known:
            return True
        numbers, tensors = self._known[key]
        return numbers != record.numbers or set(tensors) != set(record.tensors) or bool(_new(record, tensors))

    # --- reading --------------------------------------------------------------------------------------------------

    def load(self, saved: SavedState | None) -> dict[str, History]:
        """The histories that a state counts."""
        if saved is None or not saved.histories or saved.log is None:
            return {}
        data = self._read(saved.log)
        found = _replayed(data, self._state.parent / saved.log.file)
        histories = {}
        for label, outline in saved.histories.items():
            try:
                shared = {name: found[label, "shared", name].tensors for name in outline.groups}
                own = {name: found[label, "own", name] for name in outline.clients}
            except KeyError as error:
                what = f"The recorded history for {label} beside {self._state} lacks {error}"
                raise UnfedError(f"{what}; restore it from a copy, or train again.") from error
            histories[label] = History(outline.rounds, shared, own, dict(outline.numbers), outline.purged)
        self._said, self._hash = saved.log, hashlib.sha256(data)
        self._known = {key: _seen(record) for key, record in _records(histories)}
        return histories

    def _read(self, said: LogNote) -> bytes:
        """The part of the log that a state counts, if it is what was written."""
        path = self._state.parent / said.file
        try:
            if path.parent != self._state.parent or not path.name.startswith(f"{self._state.stem}.{HISTORY}-"):
                raise ValueError("it lies elsewhere")
            if path.stat().st_size < said.length:  # before so many bytes are asked for
                raise ValueError("its end is gone")
            storage.refuse_no_file(path)
            with open(path, "rb") as file:
                data = file.read(said.length)
            if hashlib.sha256(data).hexdigest() != said.sha256:
                raise ValueError("its SHA-256 differs")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            what = f"The history {path} is not what {self._state} vouches for ({reason})"
            raise UnfedError(f"{what}; restore it from a copy, or train again.") from error
        return data

    def verify(self, saved: SavedState) -> None:
        """Refuse a log that is not what its state vouches for."""
        if saved.log is not None:
            self._read(saved.log)


def _seen(record: ClientRecord) -> tuple[Mapping[str, Any], dict[str, weakref.ref[Tensor]]]:
    return dict(record.numbers), {name: weakref.ref(tensor) for name, tensor in record.tensors.items()}


def _new(record: ClientRecord, known: Mapping[str, weakref.ref[Tensor]]) -> Params:
    """The tensors that are not those that were saved.

    Methods make new ones and never change one in place.
    """
    return {n: t for n, t in record.tensors.items() if n not in known or known[n]() is not t}


def _packed(
    records: list[tuple[Key, ClientRecord]],
    known: Mapping[Key, tuple[Mapping[str, Any], dict[str, weakref.ref[Tensor]]]],
) -> bytes:
    """One part of a history file: its length, then a safetensors file of what is new.

    The file holds the tensors that are new, with the rest in its header.
    """
    tensors: Params = {}
    listed: list[list[Any]] = []
    for place, (key, record) in enumerate(records):
        new = _new(record, known[key][1]) if key in known else record.tensors
        tensors |= {f"{place}/{name}": t.detach().cpu().contiguous().clone() for name, t in new.items()}
        listed.append([*key, dict(record.numbers), list(record.tensors)])
    part = safetensors.torch.save(tensors, {"records": json.dumps(listed, separators=(",", ":"))})
    return len(part).to_bytes(_SIZE, "little") + part


def _replayed(data: bytes, path: Path) -> dict[Key, ClientRecord]:
    """Every record as it stands after the last part."""
    found: dict[Key, ClientRecord] = {}
    start = 0
    try:
        while start < len(data):
            size = int.from_bytes(data[start : start + _SIZE], "little")
            part = data[start + _SIZE : start + _SIZE + size]
            tensors = safetensors.torch.load(part)
            header = int.from_bytes(part[:8], "little")
            listed = json.loads(json.loads(part[8 : 8 + header])["__metadata__"]["records"])
            for place, (label, kind, name, numbers, names) in enumerate(listed):
                before = found.get((label, kind, name), ClientRecord())
                new = {n: tensors[f"{place}/{n}"] for n in names if f"{place}/{n}" in tensors}
                own = {n: new[n] if n in new else before.tensors[n] for n in names}
                found[label, kind, name] = ClientRecord(own, numbers)
            start += _SIZE + size
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise UnfedError(f"The history {path} cannot be read ({error}); restore it from a copy.") from error
    return found
