"""Files of kept results as they are read: they may be damaged, or come from somebody else's machine.

    schema ─► every field that is read, by its type ─► names that become files ─► the config

What does not fit is one sentence that names the file; nothing of it is written anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError
from unfed.runs.config import Config
from unfed.runs.names import check_folder

Fits = Callable[[Any], bool]
"""Whether a field can be what it is said to be."""
SCHEMA = 1


def fields_of(path: Path, what: str, fields: Mapping[str, Fits]) -> dict[str, Any]:
    """The fields of a file, `preset` and `config` among them, if each fits."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnfedError(f"{path} holds no {what} ({error}); make it again.") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise UnfedError(f"{path} holds no {what} (no schema); make it again.")
    if raw["schema"] != SCHEMA:
        raise UnfedError(f"{path} has schema {raw['schema']}, this version reads {SCHEMA}; make it again.")
    for name, fits in {"preset": is_text, "config": is_table, **fields}.items():
        if name not in raw or not fits(raw[name]):
            raise UnfedError(f"{path} holds no {what} (its {name} is missing or damaged); make it again.")
    try:
        check_folder(raw["preset"])
        Config.kept(raw["config"])
    except UnfedError as error:
        raise UnfedError(f"{path} holds no {what} ({str(error).removesuffix('.')}); make it again.") from error
    return raw


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_made(value: Any) -> bool:
    """When and by what something was made: of which revisions, above all."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("created"), str)
        and isinstance(value.get("revisions"), dict)
        and all(isinstance(table, dict) for name, table in value.items() if name in ("versions", "trained", "apart"))
    )


def are_made(value: Any) -> bool:
    return isinstance(value, list) and all(is_made(one) and _names(one.get("jobs")) for one in value)


def are_jobs(columns: Collection[str]) -> Fits:
    """Whether these are jobs, SEED/REQUEST/METHOD, each with these columns, one value a line."""
    return lambda value: isinstance(value, dict) and all(_is_job(*pair, columns) for pair in value.items())


def _is_job(name: str, own: Any, columns: Collection[str]) -> bool:
    seed, _, rest = name.partition("/")
    named = seed.isascii() and seed.isdigit() and len(seed) <= 20 and "/" in rest
    lengths = {_length(own.get(column)) for column in columns} if isinstance(own, dict) else {-1}
    return named and len(lengths) == 1 and -1 not in lengths


def _length(column: Any) -> int:
    """How many values a column has, if each is a number, or says why there is none; else −1."""
    plain = isinstance(column, list) and all(one is None or isinstance(one, int | float | str) for one in column)
    return len(column) if plain else -1


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
