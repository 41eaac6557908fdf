"""A federation small enough to be computed by hand, and the hand.

Three clients of 10, 30 and 15 rows, a network of 43 weights, float64. A batch holds more rows than any client, so one
pass is one step and no order of rows can matter. What `by hand` means here: `torch.optim` on a plain module, a loss
written out, and weighted sums; nothing of unfed but the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unfed.client.plan import Optimiser, Phase
from unfed.data import ClientData, TensorSource
from unfed.engines import Sequential
from unfed.federation.history import Recorder
from unfed.federation.schedule import Schedule, Settings
from unfed.federation.server import JobServer, Members, Setup
from unfed.methods import Method, State
from unfed.model.flops import forward_flops
from unfed.model.functional import Template
from unfed.model.params import Params, load_into, params_of

SIZES = {"a": 10, "b": 30, "c": 15}
HELD_OUT = 8  # rows of nobody: the server's own
LR, MOMENTUM, DECAY, EPOCHS = 0.2, 0.9, 0.05, 2


class Tiny(nn.Module):
    """z = head(tanh(body(x)))"""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head.forward(torch.tanh(self.body(x)))


def fresh(seed: int) -> Params:
    """An initialisation larger than PyTorch's, so that the models differ in what they say."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    return {n: torch.randn(t.shape, generator=generator, dtype=torch.float64) for n, t in params_of(Tiny()).items()}


def _data() -> TensorSource:
    generator = torch.Generator().manual_seed(5)
    n = sum(SIZES.values()) + HELD_OUT
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=generator)
    return TensorSource(x, y, classes=3, dtype=torch.float64)


SOURCE = _data()


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


def rows(client: ClientData, view: str = "retain") -> tuple[Tensor, Tensor]:
    """(x, y) of a client's view."""
    return SOURCE.fetch(client.rows[client.view(view)])


def template() -> Template:
    return Template(Tiny(), (4,)).to("cpu", torch.float64)


def engine_of(who: Mapping[str, ClientData]) -> Sequential:
    """Who asks these clients, one after another."""
    return Sequential(template(), who)


def serve(who: Mapping[str, ClientData], params: Params, **given: Any) -> JobServer:
    """The server that a method meets; what is given stands in place of this file's numbers."""
    made = template()
    rule = Optimiser(lr=given.pop("lr", LR), momentum=MOMENTUM, decay=DECAY)
    phase = Phase(epochs=given.pop("epochs", EPOCHS), batch=given.pop("batch", 64), optimiser=rule)
    settings = Settings(phase, rounds=4, schedule=given.pop("schedule", Schedule()), keep=given.pop("keep", False))
    scope = given.pop("scope", ())
    members = Members(who, Sequential(made, who), given.pop("public", None))
    seed, history = given.pop("seed", 7), given.pop("history", None)
    setup = replace(Setup(made, fresh, forward_flops(made)), **given)
    server = JobServer(setup, members, params, settings, seed, history)
    server.scope = scope
    return server


def recorded(
    who: Mapping[str, ClientData], params: Params, rounds: int, method: Method, **given: Any
) -> tuple[Params, Any]:
    """θ* after some rounds, and what a method kept of them."""
    server = serve(who, params, **given)
    server.recorders = {"it": Recorder(method)}
    state = State(params)
    for _ in range(rounds):
        state = server.recover(state)
    return state.params, server.recorders["it"].history


# --- the hand ---------------------------------------------------------------------------------------------------------


def module_of(params: Params) -> Tiny:
    module = Tiny().double()
    load_into(module, params)
    return module


Loss = Callable[[Tiny], Tensor]


def cross_entropy(x: Tensor, y: Tensor) -> Loss:
    """−mean log softmax(z)_y"""
    return lambda net: -net(x).log_softmax(1)[torch.arange(len(y)), y].mean()


def kl(target: Tensor, z: Tensor) -> Tensor:
    """mean over rows of KL(softmax(target) ‖ softmax(z)), by PyTorch's own function."""
    return F.kl_div(z.log_softmax(1), target.softmax(1), reduction="batchmean")


def stepped(
    params: Params,
    *losses: Loss,
    times: int = EPOCHS,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    clip: float | None = None,
    after: Callable[[Tiny, int], bool | None] | None = None,
    **numbers: Any,
) -> Params:
    """Each loss in turn, `times` steps each, with one optimiser; `after` a step may change the module, or stop."""
    module = module_of(params)
    if make is torch.optim.SGD:
        numbers = {"lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY} | numbers
    optimiser = make(module.parameters(), **numbers)
    number = 0
    for loss in losses:
        for _ in range(times):
            number += 1
            optimiser.zero_grad()
            loss(module).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimiser.step()
            if after is not None and after(module, number):
                return params_of(module)
    return params_of(module)


def mean(models: Mapping[str, Params], weights: Mapping[str, int]) -> Params:
    """Σ n_k θ_k / Σ n_k"""
    total = sum(weights[name] for name in models)
    names = next(iter(models.values()))
    return {n: torch.stack([weights[k] / total * m[n] for k, m in models.items()]).sum(0) for n in names}


def locals_of(params: Params, who: Mapping[str, ClientData], view: str = "retain", **numbers: Any) -> dict[str, Params]:
    """Every client's model after its local epochs; who holds no row of the view has none."""
    return {
        name: stepped(params, cross_entropy(*rows(c, view)), **numbers) for name, c in who.items() if len(c.view(view))
    }


def fedavg(params: Params, who: Mapping[str, ClientData], **numbers: Any) -> Params:
    """One round over the retained rows."""
    return mean(locals_of(params, who, **numbers), {name: len(c.view("retain")) for name, c in who.items()})


def square(a: Params, b: Params) -> float:
    """‖a − b‖²"""
    return sum(float((a[n] - b[n]).square().sum()) for n in a)


def differ(a: Params, b: Params) -> bool:
    """Whether two models are so far apart that `agree` cannot take one for the other."""
    return square(a, b) > 1e-6


def agree(found: Params, expected: Params, tolerance: float = 1e-10) -> None:
    """Tensor by tensor, entry by entry."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=partial("{}: {}".format, name))
