"""One client after another: the readable reference, and the right engine for large models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from unfed.data import ClientData
from unfed.engines.base import Block, Context, context_of
from unfed.local import visit
from unfed.measuring import measure
from unfed.params import Params
from unfed.plan import Measure, Plan
from unfed.template import Template


class Sequential:
    """Calls the one step for each client in turn; every block holds one client."""

    name = "sequential"

    def __init__(self, template: Template, clients: Mapping[str, ClientData]) -> None:
        self._template, self._clients = template, clients

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block]:
        for name in clients:
            kept = None if optimiser is None else optimiser.get(name)
            done = visit(self._template, plan, self._clients[name], params, context_of(context, name), kept)
            yield Block(
                (name,),
                {n: t.unsqueeze(0) for n, t in done.params.items()},
                (done.samples,),
                (done.trained,),
                (done.forwarded,),
                {n: t.unsqueeze(0) for n, t in done.optimiser.items()} if plan.keep else None,
            )

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        for name in clients:
            yield name, measure(self._template, what, self._clients[name], params)
