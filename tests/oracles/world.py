"""The other side: the same federation as unfed has it, and the draws that both share.

Three clients of 10, 30 and 15 rows in float64, batches of seven: each client takes several steps in an epoch, and the
last of c's is of eight rows, because its fifteenth would stand alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oracles import plain
from oracles.plain import Federation, Model, Net
from unfed import rng
from unfed.client.plan import VIEW_NUMBERS, Optimiser, Phase
from unfed.data import ClientData, TensorSource
from unfed.engines import Sequential
from unfed.federation.history import Recorder
from unfed.federation.protocol import Server
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import Schedule, Settings, State
from unfed.methods.base import Method
from unfed.model.functional import Template, forward_flops
from unfed.model.params import Params, params_of

SIZES = {"a": 10, "b": 30, "c": 15}
HELD_OUT = 8  # the server's own rows
LR, MOMENTUM, DECAY, EPOCHS, BATCH = 0.2, 0.9, 0.05, 2, 7
TRAINING, UNLEARNING = 3, 7  # seeds


def fresh(seed: int) -> Params:
    """An initialisation larger than PyTorch's, so that the models differ in what they say; statistics of its own."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    found = {}
    for name, like in params_of(Net()).items():
        value = torch.randn(like.shape, generator=generator, dtype=torch.float64)
        if name.endswith("running_var"):
            value = value.square() + 0.5
        found[name] = value if like.is_floating_point() else like
    return found


def floats(params: Params) -> Model:
    """What a plain model is made of."""
    return {name: t for name, t in params.items() if t.is_floating_point()}


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    n = sum(SIZES.values()) + HELD_OUT
    x = torch.randn(n, 1, 3, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=generator)


X, Y = _data()
SOURCE = TensorSource(X, Y, classes=3, dtype=torch.float64)
PUBLIC = X[-HELD_OUT:]


# --- unfed's side -----------------------------------------------------------------------------------------------------


def clients(**forget: Sequence[int]) -> dict[str, ClientData]:
    """The three clients; by name, which of their rows are to be forgotten."""
    found, begin = {}, 0
    for name, size in SIZES.items():
        marks, everything = torch.zeros(size, dtype=torch.bool), torch.arange(size)
        marks[list(forget.get(name, ()))] = True
        found[name] = ClientData(name, SOURCE, begin + everything, everything, everything[:0], marks)
        begin += size
    return found


def gone(*names: str) -> dict[str, ClientData]:
    """The three clients, of whom these leave."""
    return clients(**{name: range(SIZES[name]) for name in names})


def server_rows() -> ClientData:
    """The server's own data, which carries no label that could help."""
    rows, everything = torch.arange(len(SOURCE) - HELD_OUT, len(SOURCE)), torch.arange(HELD_OUT)
    return ClientData("server", SOURCE, rows, everything, everything[:0])


def template() -> Template:
    return Template(Net(), (1, 3, 3)).to("cpu", torch.float64)


def engine_of(who: Mapping[str, ClientData]) -> Sequential:
    """Who asks these clients, one after another."""
    return Sequential(template(), who)


def serve(who: Mapping[str, ClientData], params: Params, **given: Any) -> JobServer:
    """The server that a method meets; what is given stands in place of this file's numbers."""
    made = template()
    rule = Optimiser(lr=given.pop("lr", LR), momentum=MOMENTUM, decay=DECAY, rule=given.pop("rule", "sgd"))
    phase = Phase(epochs=given.pop("epochs", EPOCHS), batch=given.pop("batch", BATCH), optimiser=rule)
    settings = Settings(
        phase,
        rounds=given.pop("rounds", 4),
        schedule=given.pop("schedule", Schedule()),
        keep=given.pop("keep", False),
    )
    scope = given.pop("scope", ())
    members = Members(who, Sequential(made, who), given.pop("public", None))
    seed, history = given.pop("seed", UNLEARNING), given.pop("history", None)
    setup = replace(Setup(made, fresh, forward_flops(made)), **given)
    server = JobServer(setup, members, params, settings, seed, history)
    server.scope = scope
    return server


def recorded(
    who: Mapping[str, ClientData], params: Params, rounds: int, method: Method, **given: Any
) -> tuple[Params, Any]:
    """θ* after some rounds of training, and what a method kept of them."""
    server = serve(who, params, **({"seed": TRAINING} | given))
    server.recorders = {"it": Recorder(method)}
    state = State(params)
    for _ in range(rounds):
        state = server.recover(state)
    return state.params, server.recorders["it"].history


def states(method: Method, server: Server) -> Iterator[State]:
    """The state after the method's own phase, and after each round until it is done."""
    state = method.begin(server)
    yield state
    while not state.done:
        state = method.round(server, state)
        yield state


def after(method: Method, server: Server, rounds: int) -> State:
    """The state after some rounds, or earlier where the method is done."""
    for state in states(method, server):
        if state.round == rounds:
            break
    return state


# --- the plain side ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Addressed:
    """The draws of a job, read at the addresses that unfed gives them."""

    seed: int

    def _pass(self, round: int, client: str, view: str, epoch: int) -> int:
        return rng.fold(rng.fold(rng.key(self.seed, "train", round, client), VIEW_NUMBERS[view]), epoch)

    def order(self, round: int, client: str, view: str, epoch: int, n: int) -> Tensor:
        return rng.order(rng.fold(self._pass(round, client, view, epoch), rng.ORDER), n)

    def labels(self, round: int, client: str, epoch: int, rows: Tensor, classes: int) -> Tensor:
        return rng.below(rng.words(rng.fold(self._pass(round, client, "forget", epoch), rng.LABEL), rows), classes)

    def fresh(self, *purpose: str | int) -> Model:
        return floats(fresh(rng.key(self.seed, *purpose)))


def plainly(who: Mapping[str, ClientData], seed: int = UNLEARNING, **numbers: Any) -> Federation:
    """The same clients for a twin."""
    own = {name: plain.Client(X[client.rows], Y[client.rows], client.forget) for name, client in who.items()}
    given = {"lr": LR, "momentum": MOMENTUM, "decay": DECAY, "epochs": EPOCHS, "batch": BATCH}
    return Federation(own, Addressed(seed), **(given | numbers))


# --- comparing --------------------------------------------------------------------------------------------------------


def differ(a: Model, b: Model) -> bool:
    """Whether two models are so far apart that `agree` cannot take one for the other."""
    return plain.square(floats(a), floats(b), list(floats(a))) > 1e-6


def agree(found: Params, expected: Model, tolerance: float = 1e-10) -> None:
    """Tensor by tensor, entry by entry, running statistics included."""
    assert floats(found).keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=partial("{}: {}".format, name))


def same_way(
    method: Method, server: Server, twin: Iterator[Model], rounds: int, tolerance: float = 1e-10
) -> list[Model]:
    """Round 0 and each further round agree with the twin's, and each differs from the one before; gives them."""
    seen: list[Model] = []
    for state, expected in zip(states(method, server), twin, strict=False):
        agree(state.params, expected, tolerance)
        assert not seen or differ(seen[-1], expected)
        seen.append(expected)
        if state.round == rounds:
            break
    assert len(seen) == rounds + 1
    return seen
