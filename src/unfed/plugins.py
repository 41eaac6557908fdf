"""The one importer of users' code: methods, model factories, data factories, loaders.

    a name in data ─► allowed? ─► imported ─► of the right kind? ─► called          whatever goes wrong is one sentence

A name is `package.module:thing`, or `FILE.py` for a method. It stands in a TOML file, in `run.json`, in a message of a
server: in data, and data is not believed. So nothing is imported, nor even looked for, unless the person at the
keyboard said so: `--allow-code` on the command line, `with unfed.allow_code():` in Python, the very same name in a
node's own config. What a program hands over as an object (a module, a registered method) is its own code.

The current folder is not on the path of the command line either: a `matplotlib.py` that happens to lie there is data.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from unfed.errors import UnfedError, nearest


@dataclass(frozen=True)
class _Leave:
    """The names that may be run (None is every name), and how to get leave for another."""

    names: frozenset[str] | None = frozenset()
    remedy: str = "add --allow-code if you trust it (in Python: with unfed.allow_code():)"


_leave: ContextVar[_Leave] = ContextVar("unfed code", default=_Leave())  # noqa: B039  (it is frozen)


@contextmanager
def allow_code() -> Iterator[None]:
    """Allow code that a config or a run folder names: your own data set, model or method.

    Returns:
        A context manager. Outside it, such a config is refused and nothing is imported.

    Examples:
        >>> with unfed.allow_code():
        ...     config = unfed.Config.preset("demo")  # or your own file, which may name code
    """
    with _given(_Leave(None)):
        yield


@contextmanager
def allow_only(names: Collection[str], remedy: str = _Leave.remedy) -> Iterator[None]:
    """Inside it, code of exactly these names may be run, whatever was allowed outside.

    `remedy` is what the refusal of any other code tells the user to do.
    """
    with _given(_Leave(frozenset(names), remedy)):
        yield


@contextmanager
def _given(leave: _Leave) -> Iterator[None]:
    token = _leave.set(leave)
    try:
        yield
    finally:
        _leave.reset(token)


def looks_like_code(name: str) -> bool:
    """Whether a name says where code lies: `package.module:thing` or `FILE.py`."""
    return ":" in name or name.endswith(".py")


def permit(named: Iterable[tuple[str, str]], source: str | Path = "") -> None:
    """Refuse, before any of it is touched, code that was not allowed.

    The code is given as (key, name) pairs, as they stand in `source`.
    """
    leave = _leave.get()
    for key, name in named:
        if leave.names is not None and name not in leave.names:
            where = f"{key} in {source}" if source else key
            raise UnfedError(f"{where} names code, {name!r}, which is not run unasked; {leave.remedy}.")


# --- the path ---------------------------------------------------------------------------------------------------------


def leave_current_folder() -> None:
    """Take the current folder off the path, here and in processes that this one starts."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    own = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    here = Path().resolve()
    if here not in own:  # the current folder may hold Python's own packages
        sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]


@contextmanager
def current_folder_last() -> Iterator[None]:
    """Inside it, modules are also looked for in the current folder, after everything that is installed."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


# --- importing --------------------------------------------------------------------------------------------------------


def load(name: str, what: str, key: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """The thing that a name means, once it was allowed and found to be what is `wanted`.

    `what` it is for ("model") and the `key` it stands under are for the sentences; in a file, exactly one thing of its
    own must fit.
    """
    permit([(key, name)])
    return _in_file(name, what, fits, wanted) if name.endswith(".py") else _in_module(name, what, fits, wanted)


def _in_module(name: str, what: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """What lies at `package.module:thing`."""
    where, _, thing = name.partition(":")
    try:
        module = importlib.import_module(where)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        raise UnfedError(
            f"The module {where!r} of the {what} {name!r} cannot be imported ({brief(error)}); mend it, or set"
            " PYTHONPATH to its folder."
        ) from error
    if not hasattr(module, thing):
        raise UnfedError(
            f"The module {where!r} has no {thing!r}, which should be the {what}; name another one after the colon."
            f"{nearest(thing, vars(module))}"
        )
    found = getattr(module, thing)
    if not fits(found):
        raise UnfedError(f"The {what} {name!r} is {_kind(found)}; it must be {wanted}.")
    return found


def _in_file(name: str, what: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """The one thing of its own in a Python file that fits."""
    module = _file_module(name, what)
    found = [v for v in vars(module).values() if fits(v) and getattr(v, "__module__", None) == module.__name__]
    if len(found) != 1:
        raise UnfedError(f"{name} holds {len(found)} {what}s; such a file has exactly one: {wanted}.")
    return found[0]


def _file_module(name: str, what: str) -> ModuleType:
    """A Python file as a module.

    The same content is run once; it hides no other module, whatever the file's name.
    """
    path = Path(name)
    if path.exists() and not path.is_file():
        raise UnfedError(f"{name} is a folder, a pipe or a device; give a Python file.")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UnfedError(
            f"There is no file {name} to read ({error.strerror}); give a Python file, a {what}'s name or"
            " package.module:Class."
        ) from error
    digest = hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + source).hexdigest()[:16]
    own = f"unfed_file_{path.stem}_{digest}"
    if own in sys.modules:
        return sys.modules[own]
    module = ModuleType(own)
    module.__file__ = str(path)
    sys.modules[own] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[own]
        raise UnfedError(f"{name} could not be loaded ({brief(error)}); mend it first.") from error
    return module


def call(function: Callable[..., Any], name: str, what: str, *args: Any, **kwargs: Any) -> Any:
    """What a user's function gives; whatever it raises becomes a sentence with its name."""
    try:
        return function(*args, **kwargs)
    except UnfedError:
        raise
    except (Exception, SystemExit) as error:
        raise UnfedError(f"The {what} {name!r} failed ({brief(error)}); call it by itself to see where.") from error


def brief(error: BaseException) -> str:
    """An error in a few words: its type and the first line of what it says."""
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _kind(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
