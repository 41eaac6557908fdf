"""A list of single samples.

It is a CSV file with the header `client,position`, or `row`, read once and kept as it was.

    client,position           row
    clinic-3,17               1052
    clinic-3,42               703

A position counts in the client's own order, which is drawn where a data set is dealt to clients, so a centralised run
refuses it; a row is the number that the data set itself gives.

What a list says is its text. The text is kept with its SHA-256 (what `sha256sum` says of the file), so that a request
means the same rows after the file is gone or was replaced.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError

Samples = tuple[tuple[str, int], ...]

MOST_BYTES = 64 * 2**20
MOST_ROWS = 1_000_000
_DIGITS = 15  # more than any client holds rows
_HEADERS = (["client", "position"], ["row"])
_KNOWN = "row, or client,position with a comma"
_NOBODY = ""  # whose a row is that is named by its number; no client is called so


@dataclass(frozen=True)
class SampleList:
    """The text of a list, byte for byte, and where it was read."""

    source: str
    text: str

    @staticmethod
    def read(path: str | Path) -> SampleList:
        try:
            return SampleList(str(path), storage.content(Path(path), MOST_BYTES).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def asked(self) -> dict[str, Any]:
        """What a request says that takes out the samples of this list."""
        named = {"rows": self.rows} if self.rows else {"samples": self.samples}
        return {**named, "listed": self.sha256}

    @property
    def samples(self) -> Samples:
        """(client, position) of every line; a mistake is named with its line."""
        if self.rows:
            raise UnfedError(
                f"The sample list {self.source} names rows of the data set, which a run whose data lies here can look"
                " up, and nobody else; write client,position."
            )
        return _parsed(self.text, self.source)

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the training set, where the list names these, and else none."""
        found = _parsed(self.text, self.source)
        return tuple(row for _, row in found) if found[0][0] == _NOBODY else ()


def read_samples(path: str | Path) -> Samples:
    """The samples listed in a CSV file with the header `client,position`."""
    return SampleList.read(path).samples


def drawn_order(what: str) -> UnfedError:
    """Why positions name nothing that anybody knows where one place holds a whole data set."""
    return UnfedError(
        f"One place holds all data here, in an order that was drawn, so the positions in {what} would name other"
        " samples than they seem to; name rows of the data set, from 0 on: a list with the header row, or"
        " Request(id, rows=…)."
    )


def _unreadable(path: str | Path, error: Exception) -> UnfedError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UnfedError(f"The sample list {path} cannot be read ({reason}); give a CSV file in UTF-8.")


@lru_cache(maxsize=8)  # a run asks for its requests again and again
def _parsed(text: str, path: str) -> Samples:
    try:
        numbered = list(_numbered(text.removeprefix("\ufeff"), path))
    except csv.Error as error:
        raise _unreadable(path, error) from error
    if not numbered:
        raise UnfedError(f"The sample list {path} is empty; write a header, {_KNOWN}, and one line per sample.")
    header = numbered[0][1]
    if header not in _HEADERS:
        raise UnfedError(
            f"Line {numbered[0][0]} of {path} is {','.join(header)[:100]!r} and must be the header {_KNOWN}; write it"
            " so."
        )
    if len(numbered) == 1:
        raise UnfedError(f"The sample list {path} has a header and no sample; add one line per sample.")
    first: dict[tuple[str, int], int] = {}
    for line, cells in numbered[1:]:
        sample = _read_line(path, line, cells, header)
        if sample in first:
            raise UnfedError(f"Line {line} of {path} repeats line {first[sample]}; remove one of them.")
        first[sample] = line
    return tuple(first)


def _numbered(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """(number, cells) of every line that has something on it."""
    reader, found = csv.reader(io.StringIO(text, newline="")), 0
    for line in reader:
        if any(line):
            found += 1
            if found > MOST_ROWS + 1:
                raise UnfedError(
                    f"The sample list {path} has more than {MOST_ROWS:,} samples; ask for them in several requests."
                )
            yield reader.line_num, [cell.strip() for cell in line]


def _read_line(path: str, line: int, cells: list[str], header: list[str]) -> tuple[str, int]:
    if len(cells) != len(header) or not cells[0]:
        what = " and ".join(f"a {name}" for name in header)
        raise UnfedError(f"Line {line} of {path} must hold {what}, not {','.join(cells)[:100]!r}.")
    number = cells[-1]
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
        raise UnfedError(
            f"Line {line} of {path} has the {header[-1]} {number[:100]!r}; it must be an integer from 0 on."
        )
    return cells[0] if len(cells) == 2 else _NOBODY, int(number)
