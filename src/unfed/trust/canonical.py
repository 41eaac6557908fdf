"""The one way to write a JSON value down (RFC 8785): who means the same signs the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rfc8785

from unfed import json_checks, storage
from unfed.errors import UnfedError

LARGEST = 4 << 20
"""Bytes that a signed value may have; what is larger is not read."""


def read_file(path: Path, what: str, most: int = LARGEST) -> bytes:
    """The bytes of a file that somebody sent, if it is one and they are not too many."""
    try:
        return storage.content(path, most)
    except OSError as error:
        raise UnfedError(f"The {what} {path} cannot be read ({error.strerror or error}); check the path.") from error


def canonical(value: Any) -> bytes:
    """The value as RFC 8785 writes it; what has no such form (NaN, 2^53 and more) is refused."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeError) as error:
        raise UnfedError(f"This value cannot be signed: {str(error).removesuffix('.')}.") from error


def parsed(data: bytes, what: str) -> Any:
    """The value in these bytes; anything but JSON that names each thing once is refused with a sentence."""
    if len(data) > LARGEST:
        raise UnfedError(f"The {what} has {len(data):,} bytes, more than {LARGEST:,}; send a smaller one.")
    try:
        return json_checks.parsed(data, _no_constant)
    except ValueError as error:
        raise UnfedError(f"The {what} cannot be read as JSON ({_short(error)}); ask for it again.") from error


def canonical_value(data: bytes, what: str) -> Any:
    """The value in these bytes, if they are its canonical form."""
    value = parsed(data, what)
    try:
        same = canonical(value) == data
    except UnfedError:  # it has no canonical form
        same = False
    if not same:
        raise UnfedError(f"The {what} is not written as RFC 8785 has it, so others could read it otherwise; sign anew.")
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"it holds {word}")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
