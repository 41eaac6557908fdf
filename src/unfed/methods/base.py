"""A method is two functions over explicit state.

    begin(server)        -> State        the request arrives: NoT negates, Retrain starts afresh
    round(server, state) -> State        until done; by default FedAvg over the retained data

State is params, tensors and numbers, nothing else: it can be saved after any round and read back. A method declares
what it `needs` and which scopes it serves, so that a run which cannot provide them is refused before any work starts.
Its hyperparameters are its dataclass fields; each says where its default comes from.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from unfed.errors import UnfedError, listed, nearest
from unfed.params import Params

if TYPE_CHECKING:
    from unfed.federation import Server

CLIENT, CLASS, INSTANCE = "client", "class", "instance"
ALL_SCOPES = frozenset({CLIENT, CLASS, INSTANCE})

NEEDS = {
    "retain": "the retained data, at the clients that stay",
    "init": "a factory that makes a freshly initialised model",
    "forget": "the forgotten data, at the clients that leave",
    "history": "history that was recorded during training",
    "public": "unlabelled data at the server",
}


@dataclass(frozen=True)
class State:
    """Everything a job needs to go on: what is saved is exactly this."""

    params: Params
    round: int = 0
    tensors: Mapping[str, Params] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    model: bool = True
    """Whether params are a usable model yet."""


def option(default: Any, says: str, source: str) -> Any:
    """A hyperparameter with its meaning, and where its default comes from: `paper`, `original` or `ours`."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: default, metadata={"says": says, "source": source})
    return field(default=default, metadata={"says": says, "source": source})


@dataclass(frozen=True)
class Method(ABC):
    """What every method is."""

    name: ClassVar[str]
    title: ClassVar[str]
    cite: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"retain"})
    scopes: ClassVar[frozenset[str]] = ALL_SCOPES

    def check(self, module: nn.Module) -> None:  # noqa: B027  (most methods have nothing to check)
        """Raise the sentence that says which hyperparameter does not fit the model; called before any work starts."""

    @abstractmethod
    def begin(self, server: Server) -> State:
        """The request has arrived: the state before the first round."""

    def round(self, server: Server, state: State) -> State:
        """One round further."""
        return server.recover(state)

    @classmethod
    def options(cls) -> list[tuple[str, Any, str, str]]:
        """(name, default, meaning, source) of every hyperparameter."""
        return [(f.name, f.default, f.metadata.get("says", ""), f.metadata.get("source", "")) for f in fields(cls)]


METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name."""
    METHODS[method.name] = method
    return method


def admit(label: str, method: Method, scope: str, provided: frozenset[str]) -> None:
    """Refuse, before any work starts, a method that does not serve the scope or needs what is not there."""
    if scope not in method.scopes:
        able = sorted(name for name, m in METHODS.items() if scope in m.scopes)
        raise UnfedError(f"{label} does not serve {scope}-wise requests; use {listed(able)}.")
    for need in sorted(method.needs - provided):
        able = sorted(name for name, m in METHODS.items() if m.needs <= provided and scope in m.scopes)
        raise UnfedError(f"{label} needs {NEEDS[need]}, which this run does not have; use {listed(able)}.")


def find(name: str) -> type[Method]:
    """A method by name, or a user's own by `package.module:Class`."""
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UnfedError(f"The method {name!r} could not be imported ({error}); check the path.") from error
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise UnfedError(f"{name!r} is not a method; it must be a subclass of unfed.methods.Method.")
        return found
    raise UnfedError(
        f"The method {name!r} is not known; use {listed(METHODS)}, or package.module:Class.{nearest(name, METHODS)}"
    )
