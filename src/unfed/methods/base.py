"""A method is two functions over explicit state.

    begin(server)        -> State        the request arrives: NoT negates, Retrain starts afresh
    round(server, state) -> State        until done; by default FedAvg over the retained data
    record(history, past) -> History     after every round of training, only if the method needs history

State is params, tensors and numbers, nothing else: it can be saved after any round and read back. A method declares
what it `needs` and which scopes it serves, so that a run which cannot provide them is refused before any work starts.
Its hyperparameters are its dataclass fields; each says where its default comes from. Where the paper gives a value per
architecture, the field is None and the value stands in the method's `paper` table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from unfed import plugins
from unfed.data import Request
from unfed.errors import UnfedError, listed, nearest
from unfed.federation.history import FinishedRound, History
from unfed.federation.protocol import Server
from unfed.federation.state import State
from unfed.model.layers import comes_back, turned_by_partners
from unfed.model.params import Params, params_of
from unfed.model.perturb import PERTURBATIONS, Perturbed, perturb

Lineage = Literal["goes on", "carried", "moved", "anew", "ends"]
CLIENT, CLASS, INSTANCE = "client", "class", "instance"
ALL_SCOPES = frozenset({CLIENT, CLASS, INSTANCE})

NEEDS = {
    "retain": "the retained data, at the clients that stay",
    "init": "a factory that makes a freshly initialised model",
    "forget": "the data that is to be forgotten",
    "history": "history that was recorded during training",
    "public": "unlabelled data at the server",
}


@dataclass(frozen=True)
class Recipe:
    """How the paper fine-tunes a method where one place holds all data.

    The learning rate follows a cosine from `lr` down to `minimum`.
    """

    lr: float = 0.01
    minimum: float = 1e-4
    over: int | None = None
    """Epochs until the minimum is reached, where it then stays; None is all of them."""


def option(default: Any, says: str, source: str) -> Any:
    """A hyperparameter with its meaning, and where its default comes from: `paper`, `original` or `ours`."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: default, metadata={"says": says, "source": source})
    return field(default=default, metadata={"says": says, "source": source})


@dataclass(frozen=True)
class Method(ABC):
    """The base of every unlearning method."""

    name: ClassVar[str]
    title: ClassVar[str]
    cite: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"retain"})
    scopes: ClassVar[frozenset[str]] = ALL_SCOPES
    recipe: ClassVar[Recipe] = Recipe()
    """The centralised learning rates; in a federation the run's config decides."""
    federation_only: ClassVar[bool] = False
    """Whether it makes sense only where several clients take part."""

    paper: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The paper's values per architecture, for the fields whose default is None."""
    lineage: ClassVar[Lineage] = "ends"
    """How the model it makes hangs together with what was recorded before; a method that promises nothing ends it.

    goes on   `begin` hands the model on as it is, and every round is recorded: it is `server.advance`, without context
    carried   `begin` moves the model and `carry` a recorded sum with it, and every round is recorded
    moved     `begin`, or rounds of its own, move the model, and the rounds after that are recorded
    anew      `begin` owes the old model nothing, and every round is recorded
    ends      none of these
    """
    follows: ClassVar[Literal["", "sums", "rounds"]] = ""
    """What its history must keep up with when others make the model in force, because a further request starts there:
    sums of updates that the model consists of, or the last rounds only. Without either it reads the training's."""

    seals: ClassVar[bool] = False
    """Whether its params after `begin` must not outlast the first round: beside the old model they give a draw away."""
    lasts: ClassVar[bool] = False
    """Whether what it took out stays out when it serves further requests."""

    def check(self, module: nn.Module) -> None:  # noqa: B027  (most methods have nothing to check)
        """Raise the sentence that says which hyperparameter does not fit the model.

        It is called before any work starts.
        """

    def after(self, earlier: Sequence[Request]) -> None:  # noqa: B027
        """Raise the sentence that says why it cannot come after these requests.

        It is called before any work starts.
        """

    def for_requests(self, requests: Sequence[Request]) -> Self:
        """The method as it serves the last of these requests, after the others; most serve all alike."""
        return self

    def undoes(self, module: nn.Module, earlier: Sequence[Method]) -> tuple[str, ...]:
        """The tensors that it would turn back to what they were before an earlier method began.

        The earlier methods are given oldest first. Negating twice is the identity; so are two mirrorings, and turns of
        90 and of 270 degrees. All that methods say that they do (`perturbed`, `drawn`), from one request to this one,
        is tried on numbered entries: what draws never comes back. Some rows that come back are enough, and so is a
        tensor's partner: a negated scale turns back the negated layer before it (`model/layers.py`).
        """
        numbered = {n: torch.arange(1.0, 1 + t.numel()).reshape(t.shape) for n, t in params_of(module).items()}
        found = set[str]()
        for i, first in enumerate(earlier):
            if (did := first.perturbed(module)) is None:
                continue
            steps = [numbered]
            for method in (*earlier[i:], self):
                steps.append(_stepped(method, module, steps[-1]))
            moved = {choice.name for choice in did.choices}
            found |= {name for name in moved if comes_back(*(step[name] for step in (*steps[:2], *steps[-2:])))}
            found |= moved & turned_by_partners(module, numbered, *steps[-2:])
        return tuple(name for name in numbered if name in found)

    def drawn(self, module: nn.Module) -> frozenset[str]:
        """The tensors that `begin` draws afresh, so that nothing turns them back."""
        return frozenset()

    def short_of(self, module: nn.Module) -> str:
        """Why it may not last with these hyperparameters though it `lasts`; empty if it does."""
        return ""

    @abstractmethod
    def begin(self, server: Server) -> State:
        """The request has arrived: the state before the first round."""

    def round(self, server: Server, state: State) -> State:
        """One round further."""
        return server.recover(state)

    def perturbed(self, module: nn.Module) -> Perturbed | None:
        """What `begin` does to which tensors of the model it is handed; None where it perturbs no layer."""
        return None

    def serves(self, scope: str) -> bool:
        """Whether it takes requests of this scope, with these hyperparameters."""
        return scope in self.scopes

    def rounds(self, unlearning: int, training: int) -> int:
        """How many rounds it takes where the config grants `unlearning` of them and training had `training`."""
        return unlearning

    def trial(self, rounds: int) -> Self:
        """The method as a short trial of a learning rate runs it, over so many rounds; most as they are."""
        return self

    # --- history, for the methods that need it ---

    def record(self, history: History, past: FinishedRound) -> History:
        """The history with one more round in it, called before the round's updates are averaged."""
        return history

    def purge(self, history: History, clients: Collection[str]) -> History:
        """The history without anything that belongs to these clients."""
        return history.without(clients)

    def carry(self, module: nn.Module, sums: Params, seed: int) -> Params:
        """What `begin` under this seed makes of a summand of the model, for a lineage that is `carried`."""
        return sums

    def original_bytes(self, history: History, model_bytes: int) -> int:
        """What the method as first published would have stored for the same rounds."""
        return 0

    # --- hyperparameters ---

    @classmethod
    def options(cls) -> list[tuple[str, Any, str, str]]:
        """(name, default, meaning, source) of every hyperparameter.

        A default per architecture is a `PerModel`.
        """
        return [
            (f.name, cls._default(f.name, f.default), f.metadata.get("says", ""), f.metadata.get("source", ""))
            for f in fields(cls)
        ]

    @classmethod
    def _default(cls, name: str, default: Any) -> Any:
        values = PerModel({family: table[name] for family, table in cls.paper.items() if name in table})
        return values or default

    def on(self, model: str) -> Self:
        """The method with the paper's values for this architecture where nothing else was set."""
        open_ = [f.name for f in fields(self) if getattr(self, f.name) is None and self._default(f.name, None)]
        table = self.paper.get(family(model), {})
        missing = [name for name in open_ if name not in table]
        if missing:
            known = "; ".join(f"{name}: {self._default(name, None)}" for name in missing)
            raise UnfedError(
                f"The paper gives {self.title} no {listed(missing)} for the model {model}; set"
                f" methods.{self.name}.{missing[0]} and the like (the paper's own: {known})."
            )
        return replace(self, **{name: table[name] for name in open_}) if open_ else self


def _stepped(method: Method, module: nn.Module, params: Params) -> Params:
    """The params after what a method says that its `begin` does.

    What it draws is zero, and noise, under which the old weights stay, is nothing.
    """
    did, drawn = method.perturbed(module), {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    if did is not None and did.how in PERTURBATIONS:
        numbers = {"scale": 0.0} if did.how == "noise" else {}
        params = perturb(params, did.choices, did.how, seed=0, fresh=lambda seed: drawn, **numbers)
    return {**params, **{name: drawn[name] for name in method.drawn(module)}}


class PerModel(dict[str, Any]):
    """A default that depends on the architecture."""

    def __str__(self) -> str:
        return ", ".join(f"{value} ({name})" for name, value in self.items())


def family(model: str) -> str:
    """Which of the paper's architectures a model's name stands for: every cnn preset is its CNN."""
    return next((name for name in FAMILIES if model == name or model.startswith(f"{name}-")), model)


FAMILIES = ("cnn", "resnet18", "vit-b-16")


@dataclass(frozen=True)
class Central(Method):
    """A method made for one model and one data set. Inside a federation it must be switched on."""

    federated: bool = option(False, "also in a federation, at the owners; unpublished", "ours")


METHODS: dict[str, type[Method]] = {}

SHIPPED = ("unfed.methods.nr_freeze:NRFreeze",)
"""Methods of this package that are asked for by their path, not by a name; they are not foreign code."""


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name; names of this package are taken."""
    own = METHODS.get(method.name)
    if own is not None and own.__module__.startswith(_HERE) and not method.__module__.startswith(_HERE):
        raise UnfedError(f"The name {method.name!r} is that of {own.title}; give {method.__name__} a name of its own.")
    METHODS[method.name] = method
    return method


_HERE = f"{__name__.rpartition('.')[0]}."


def known_as(method: str | type[Method]) -> str:
    """The name of a method; a class that a program hands over is made known by its own."""
    if isinstance(method, type) and issubclass(method, Method):
        return register(method).name
    if not isinstance(method, str):
        raise UnfedError(
            f"method is a name, or a subclass of unfed.methods.Method, not {type(method).__name__}; hyperparameters are"
            " given as keywords beside it."
        )
    return method


def admit(
    label: str, method: Method, scope: str, provided: frozenset[str], missing: Mapping[str, str] | None = None
) -> None:
    """Refuse, before any work starts, a method that does not serve the scope or needs what is not there.

    `provided` holds what the run has, by the names in `NEEDS`, and "central" where one place holds all data;
    `missing` says why something else is not there.
    """
    if "central" in provided and scope == CLIENT:
        raise UnfedError(
            "A centralised run has one holder of all data, so no client can leave it; ask for classes, samples or a"
            " fraction."
        )
    if "central" in provided and method.federation_only:
        able = _able(scope, provided, provided)
        raise UnfedError(f"{method.title} is made for several clients, and here one place holds all data; use {able}.")
    if isinstance(method, Central) and "central" not in provided and not method.federated:
        raise UnfedError(
            f"{label} is a centralised method; run it with setting = 'central', or switch it on inside a federation"
            f" with methods.{label}.federated = true."
        )
    name = method.title if label == method.name else label
    if not method.serves(scope):
        able = _able(scope, frozenset(NEEDS), provided)
        raise UnfedError(f"{name} does not serve {scope}-wise requests. Use {able}.")
    for need in sorted(method.needs - provided):
        what = "the target client's data" if need == "forget" and scope == CLIENT else NEEDS[need]
        why = (missing or {}).get(need, "this run does not have it")
        # History is recorded per method, so other methods that need history may lack theirs too.
        raise UnfedError(f"{name} needs {what}; {why}. Use {_able(scope, provided - {'history'}, provided)}.")


def runs_in(method: Method, setting: str) -> bool:
    """Whether a method is made for, or switched on in, a setting: "central", or a federation."""
    if setting == "central":
        return not method.federation_only
    return not isinstance(method, Central) or method.federated


def _able(scope: str, provides: frozenset[str], provided: frozenset[str]) -> str:
    """The methods that serve a scope with what is there, in a sentence."""
    central = "central" in provided
    return listed(
        name
        for name, m in sorted(METHODS.items())
        if scope in m.scopes and m.needs <= provides and not (m.federation_only if central else issubclass(m, Central))
    )


def is_code(name: str) -> bool:
    """Whether a method's name means foreign code: a module, a file, or an installed package."""
    if name in METHODS or name in SHIPPED:
        return False
    return plugins.looks_like_code(name) or bool(_installed(name))


def find(name: str, key: str = "the method") -> type[Method]:
    """A method by name, one that an installed package brings, or a user's own.

    A user's own is named `package.module:Class` or `file.py`.

    `key` says where the name stands, for the sentence that asks for leave to run it.
    """
    if name in METHODS:
        return METHODS[name]
    if not is_code(name) and name not in SHIPPED:
        raise UnfedError(
            f"The method {name!r} is not known; use {listed(METHODS)}, or your own, as"
            f" package.module:Class or FILE.py.{nearest(name, METHODS)}"
        )
    if name in SHIPPED:
        with plugins.allow_only({name}):
            return _load(name, key)
    for point in _installed(name):
        plugins.permit([(key, name)])
        with plugins.allow_only({point.value}):
            return _load(point.value, key)
    return _load(name, key)


def _load(name: str, key: str) -> type[Method]:
    found: type[Method] = plugins.load(
        name, "method", key, lambda kind: isinstance(kind, type) and issubclass(kind, Method), "a subclass of Method"
    )
    return found


def _installed(name: str) -> Sequence[metadata.EntryPoint]:
    """What an installed package registered under this name; reading the list runs nothing."""
    return tuple(metadata.entry_points(group="unfed.methods", name=name))
