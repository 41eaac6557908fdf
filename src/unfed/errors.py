"""The errors a user can meet: one sentence that says what is wrong and what to do."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar


class UnfedError(Exception):
    """Bad input: the message is one sentence that says what to do.

    The command line prints it and exits with 2.

    Examples:
        >>> try:
        ...     unfed.Config.preset("demoo")
        ... except unfed.UnfedError as error:
        ...     print(error)
        There is no preset 'demoo'; ... Did you mean 'demo'?
    """

    exit_code = 2


class Refused(UnfedError):
    """A quorum or a gate refused the outcome of valid input; the command line exits with 3.

    It is an `UnfedError`. The old model stays in force, and the request stays owed.

    Examples:
        >>> try:
        ...     outcome = run.forget(unfed.Request("soon", clients=("2",)), method="ft", until="recovered,1")
        ... except unfed.Refused as refused:
        ...     why = str(refused)
    """

    exit_code = 3


class Unanswered(Refused):
    """Too few clients answered.

    They may answer next time, so nothing is decided about what was asked of them.
    """


class NotRecovered(Refused):
    """The rounds that a request was given did not bring its model back to what it could before."""


class AtWork(UnfedError):
    """Another process works in the folder."""


class Halted(UnfedError):
    """The machine cannot go on, whatever is asked of it (a full disk).

    Nothing is decided, and work can be resumed.
    """


class UnfedWarning(UserWarning):
    """A warning: the call works, but perhaps not as you expect.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", unfed.UnfedWarning)  # stop at warnings
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean …?`, or nothing when no known word is close."""
    words = list(known)
    alike = [one for one in words if one.casefold() == word.casefold()]
    close = alike or difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def members(names: Iterable[str]) -> str:
    """Whom there is, where a guess could mean another person: all of them, or the first few and how many."""
    every = list(names)
    if len(every) <= 12:
        return listed(every)
    return f"{', '.join(every[:8])} … {every[-1]} ({len(every)} in all)"


def extra(name: str) -> str:
    """How an extra is installed: from a clone, because no release is on PyPI."""
    return f"`pip install '.[{name}]'` in a clone of unfed"


def typed(*words: object) -> str:
    """A command of ours as one types it: a folder with a blank or a quote in its name is quoted."""
    return shlex.join(["unfed", *map(str, words)])


_keys: ContextVar[Mapping[str, str] | None] = ContextVar("unfed keys", default=None)


@contextmanager
def in_a_run_config(keys: Mapping[str, str]) -> Iterator[None]:
    """Inside it, options are keys of a run config; `keys` has those that are called otherwise there."""
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def option(name: str, value: str = "") -> str:
    """An option as one types it: `--method sealed`, or `methods="sealed"` where a run config is read."""
    keys = _keys.get()
    if keys is None:
        return f"--{name} {value}".rstrip()
    return keys.get(name, name) + (f'="{value}"' if value else "")


def counted(number: int, one: str) -> str:
    """`1 file`, `3 files`."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def listed(words: Iterable[object], last: str = "or") -> str:
    """The words in a sentence: `a, b or c`; `last` stands before the last of them."""
    items = [str(word) for word in words]
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + f" {last} " + items[-1]


def expect(value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Refuse a value whose type a public call does not take; `wanted` says what it takes."""
    if not isinstance(value, kinds):
        raise UnfedError(f"{wanted} is needed here, not a {type(value).__name__}.")
