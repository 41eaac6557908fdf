"""The deny list: what a run forgot, handed on to the next run of the federation.

    run.json      config.deny: what this run took over from the one before
    requests/     each accepted request: clients by name, classes by number, single rows as keyed hashes (`rows`)
    deny.key      the key of those hashes, for the owner of the folder alone; it goes on from run to run

`[deny] run = "RUN"` in a config takes the list of RUN over: none of it is in any training view of the new run. What
was withdrawn is not on the list. In the place of RUN a file may stand, with the name of one client per line.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.config.config import Config
from unfed.config.tables import DenyConfig
from unfed.data import ClientData, Request
from unfed.data.datasets import stretched
from unfed.data.scope import KEY_BYTES, recognisable, row_digests
from unfed.errors import UnfedError
from unfed.folder.folder import KEY, RunFolder
from unfed.folder.layout import client_list, names_of

Scoped = Callable[[Sequence[Request]], Mapping[str, ClientData]]
"""Requests -> every client with the rows that they name marked."""


def imported(config: Config) -> Config:
    """The config with the list of the run that it names.

    One that names none, or has it already, is as it was.
    """
    own = config.deny
    if own.run is None or own.clients or own.classes or own.rows:
        return config
    found: dict[str, Any]
    if not own.run.exists():
        raise UnfedError(f"There is no deny list at {own.run}; name a run folder, or a file with one client per line.")
    found = {"clients": _names(own.run)} if own.run.is_file() else _of_run(RunFolder(own.run), config)
    return config.model_copy(update={"deny": own.model_copy(update=found)})


def _of_run(folder: RunFolder, config: Config) -> dict[str, Any]:
    """What a run took over from the one before, and all that it was asked to forget itself."""
    earlier = Config.kept(folder.description().config, str(folder.path / "run.json"))
    before = earlier.deny
    asked = [entry for entry in folder.book().entries if entry.accepted]
    unseen = next((entry.request.id for entry in asked if entry.request.named and not entry.rows), None)
    if unseen is not None:
        what = f"Request {unseen!r} of {folder.path} took out single samples, which cannot be recognised elsewhere"
        raise UnfedError(f"{what}; name a file of clients as deny.run instead, one per line.")
    rows = sorted({*before.rows, *(row for entry in asked for row in entry.rows)})
    sides = [stretched(one.data.name, one.data.resize) for one in (earlier, config)]
    if rows and sides[0] != sides[1] and earlier.data.name == config.data.name:
        what = f"The deny list of {folder.path} knows its rows by pixels at size {sides[0]}, not {sides[1]}"
        raise UnfedError(f"{what}; set data.resize = {sides[0]}.")
    left = {name for entry in asked for name in entry.request.clients}
    known = client_list(folder.path)
    goes_by = known.names if known else {}
    key = key_in(folder.path) if rows else None
    if rows and key is None:
        raise UnfedError(f"{folder.path} has rows on its deny list, but no deny.key; restore the file.")
    return {
        "clients": tuple(sorted({*before.clients, *names_of(left, goes_by)})),
        "classes": tuple(sorted({*before.classes, *(number for e in asked for number in e.request.classes)})),
        "rows": tuple(rows),
        "key": None if key is None else key.hex(),
    }


def on_list(path: str | Path) -> DenyConfig:
    """What is on the deny list of a run or evidence folder, or in a file with one client's name per line."""
    return imported(Config.parse({"deny": {"run": str(path)}})).deny


def _names(file: Path) -> tuple[str, ...]:
    with storage.disk_errors(file):
        text = storage.content(file).decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    found = sorted({line for line in lines if line and not line.startswith("#")})
    odd = next((name for name in found if len(name) > 100 or not name.isprintable() or "\ufffd" in name), None)
    if odd is not None or not found:
        what = "no name in it" if odd is None else f"a line that is no client's name ({odd[:40]!r})"
        raise UnfedError(f"The deny list {file} has {what}; write one client per line.")
    return tuple(found)


def key_of(config: Config) -> bytes | None:
    """What the new run's `deny.key` holds: the key of a list that was taken over."""
    return None if config.deny.key is None else _written(bytes.fromhex(config.deny.key))


def with_key(config: Config, folder: Path) -> Config:
    """A config as it was read from a folder, with the key that `run.json` does not hold."""
    key = key_in(folder) if config.deny.rows and config.deny.key is None else None
    if key is None:
        return config
    return config.model_copy(update={"deny": config.deny.model_copy(update={"key": key.hex()})})


def rows_of(request: Request, scoped: Scoped, folder: RunFolder) -> tuple[str, ...]:
    """The keyed hashes of the single rows that a request names.

    Clients and classes are known by their names.

    The key is made when it is first needed. Rows that lie elsewhere are not seen here, so they have none; nor have
    those of a data set that draws.
    """
    if request.kind != "instance" or folder.description().elsewhere:
        return ()
    key = key_in(folder.path)
    if key is None:
        key = secrets.token_bytes(KEY_BYTES)
        storage.write_bytes(folder.path / KEY, _written(key))
    clients = scoped([request])
    marked = [(c.source, c.rows[c.forget]) for c in clients.values() if bool(c.forget.any())]
    if not all(recognisable(source, rows) for source, rows in marked):
        return ()  # a run that names this one as its deny list says so
    return tuple(sorted({digest for source, rows in marked for digest in row_digests(key, source, rows)}))


def key_in(folder: Path) -> bytes | None:
    """The key in a run's `deny.key`, if it has one."""
    path = folder / KEY
    if not path.exists():
        return None
    with storage.disk_errors(path):
        text = storage.content(path).decode("ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UnfedError(f"{path} is damaged (it holds no key of {KEY_BYTES} bytes); restore the file.")
    return key


def _written(key: bytes) -> bytes:
    return key.hex().encode()
