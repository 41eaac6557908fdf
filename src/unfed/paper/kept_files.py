"""Files of kept results as they are read: they may be damaged, or come from somebody else's machine.

    schema ─► every field that is read, by its type ─► names that become files ─► the config

What does not fit is one sentence that names the file; nothing of it is written anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from unfed import json_checks as its
from unfed import storage
from unfed.config.config import Config
from unfed.config.reading import check_folder
from unfed.errors import UnfedError

SCHEMA = 1


def fields_of(path: Path, what: str, fields: Mapping[str, its.Check]) -> dict[str, Any]:
    """The fields of a file, `preset` and `config` among them, if each fits."""
    try:
        raw = its.parsed(storage.content(path, storage.MOST_JSON))
    except (OSError, ValueError) as error:
        raise UnfedError(f"{path} holds no {what} ({error}); make it again.") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise UnfedError(f"{path} holds no {what} (no schema); make it again.")
    if raw["schema"] != SCHEMA:
        raise UnfedError(f"{path} has schema {raw['schema']}, this version reads {SCHEMA}; make it again.")
    for name, fits in {"preset": its.is_text, "config": its.is_table, **fields}.items():
        if name not in raw or not fits(raw[name]):
            raise UnfedError(f"{path} holds no {what} (its {name} is missing or damaged); make it again.")
    try:
        check_folder(raw["preset"])
        Config.kept(raw["config"])
    except UnfedError as error:
        raise UnfedError(f"{path} holds no {what} ({str(error).removesuffix('.')}); make it again.") from error
    return raw


_MADE = {**dict.fromkeys(("created", "commit", "hardware"), its.is_text), "revisions": its.table_of(its.is_count)}
_MAY = {
    "versions": its.is_table,
    "trained": its.table_of(its.is_text),
    "apart": its.table_of(its.is_number),
    "beside": its.list_of(its.is_text),
}
is_made = its.table_with(_MADE, _MAY)
"""When, where and by what something was made: of which revisions, above all."""
are_made = its.list_of(its.table_with(_MADE | {"jobs": its.list_of(its.is_text)}, _MAY))
_is_column = its.list_of(its.or_null(its.either(its.is_plain_number, its.is_text, its.is_yes)))
"""Whether each value of a column is a number, or says why there is none."""
_NUMBERS = {"round": its.list_of(its.is_count, 1), "seconds": its.list_of(its.or_null(its.is_number))}
"""Columns that nobody had to measure."""


def are_jobs(columns: Collection[str]) -> its.Check:
    """Whether these are jobs, SEED/REQUEST/METHOD, each with these columns, one value a line."""
    return lambda value: isinstance(value, dict) and all(_is_job(*pair, columns) for pair in value.items())


def _is_job(name: str, own: Any, columns: Collection[str]) -> bool:
    seed, _, rest = name.partition("/")
    named = seed.isascii() and seed.isdigit() and len(seed) <= 20 and "/" in rest
    if not (named and its.table_with(dict.fromkeys(columns, _is_column) | _NUMBERS)(own)):
        return False
    return len({len(own[column]) for column in columns}) == 1
