"""The log of signed requests, for a run that keeps one: the extra that writes it.

    RUN/trust/operator.json     there is a log, begun by `unfed run --operator` or `unfed keys roster`

A run asks for it itself, so no way to work leaves rounds out of the log: a command, Python, Flower. The extra
is loaded by its name and only where there is a log, for this room imports nothing from there; without it no work is
done.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from unfed.folder.folder import RunFolder
from unfed.runs import description
from unfed.runs.progress import QuietWatch, Watch
from unfed.runs.record import RunRecord


def keeps_log(run: Path) -> bool:
    """Whether a run has a log, or had one when a state was saved.

    One that has lost its description, or all of it, is refused by whoever reads it.
    """
    there = any((run / "trust" / name).exists() for name in ("operator.json", "log.jsonl"))
    return there or bool(logs_named(RunFolder(run)))


def logs_named(folder: RunFolder) -> dict[str, Path]:
    """The origins of the logs that were kept when a run's states were saved, each with such a state."""
    said = ((saved.bound.log, path) for path, saved in folder.states())
    return {str(origin): path for origin, path in said if origin}


def logged(run: RunRecord, watch: Watch | None = None) -> AbstractContextManager[Watch]:
    """The watch, with the log behind it where the run keeps one."""
    if not keeps_log(run.folder.path):
        return nullcontext(watch or QuietWatch())
    found: AbstractContextManager[Watch] = _extra("logbook").logged(run, watch)
    return found


def signing_client(run: Path, request: str) -> str | None:
    """The client that signed a request; None where the operator did, or it came unsigned."""
    agent: str | None = _extra("folder").TrustFolder(run).agent(request) if keeps_log(run) else None
    return None if agent == "operator" else agent


def begin_log(run: Path, key: Path) -> None:
    """Begin the log of a run, signed by the operator's key; one that was begun with it goes on."""
    _extra("folder").TrustFolder.begin(run, key)


def request_name(folder: RunFolder, given: dict[str, Any]) -> str:
    """A request's id made from what is asked, so that asking twice is asking once.

    The log keeps ids for good, so where there is one an id tells nobody who left, and nobody can try out which rows.
    """
    plain = description.request_id(given)
    asked_before = any(entry.request.id == plain for entry in folder.book().entries)  # before the log began, perhaps
    if asked_before or not keeps_log(folder.path):
        return plain
    asked = json.dumps({kind: value for kind, value in given.items() if value}).encode()
    secret: bytes = _extra("folder").TrustFolder(folder.path).secret
    return f"r-{hmac.digest(secret, b'unfed request' + asked, hashlib.sha256).hex()[:16]}"


def _extra(part: str) -> Any:
    return importlib.import_module(f"unfed.trust.{part}")
