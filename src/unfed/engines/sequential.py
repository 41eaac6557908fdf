"""One client after another: the readable reference, and the right engine for large models.

    step.visit                                  the reference: one step after another, in plain PyTorch
    a stack of one, recorded and replayed       on CUDA: the same step, traced, compiled, captured in a CUDA graph

A large model fills the device alone, so nothing is stacked: linear layers stay matrix products, attention stays fused,
and batches are fetched on the device inside the graph. Whatever cannot be recorded (a rule that acts every n-th step, a
data set that is not on the device, a model that draws for itself or branches on a value) goes through the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from unfed.client.plan import Measure, Plan
from unfed.client.scores import measure
from unfed.client.step import visit
from unfed.data import ClientData
from unfed.engines.base import Block, Context, Visit, context_of
from unfed.engines.batched import Batched
from unfed.engines.compiled.capture import reason
from unfed.engines.compiled.recorded import recordable
from unfed.errors import UnfedError, UnfedWarning
from unfed.model.functional import Template
from unfed.model.params import Params


class Sequential:
    """Runs the one step for each client in turn; every block holds one client."""

    name = "sequential"

    def __init__(self, template: Template, clients: Mapping[str, ClientData], compile: bool | None = None) -> None:
        self._template, self._clients = template, clients
        wanted = template.device.type == "cuda" if compile is None else compile
        self._stack = Batched(template, clients, 1, compile=True) if wanted and not template.draws_its_own else None
        self._proven = False
        """Whether a visit was recorded and replayed; until then this model may turn out to be one that cannot be."""

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block]:
        recorded = plan.phases and all(recordable(phase) for phase in plan.phases)
        for name in clients:
            block = self._replay(plan, params, name, context, optimiser) if recorded else None
            if block is None:
                kept = None if optimiser is None else optimiser.get(name)
                done = visit(self._template, plan, self._clients[name], params, context_of(context, name), kept)
                block = Block(
                    (name,),
                    {n: t.unsqueeze(0) for n, t in done.params.items()},
                    (done.samples,),
                    (done.trained,),
                    (done.forwarded,),
                    {n: t.unsqueeze(0) for n, t in done.optimiser.items()} if plan.keep else None,
                )
            yield block

    def _replay(
        self, plan: Plan, params: Params, name: str, context: Context, optimiser: Mapping[str, Params] | None
    ) -> Block | None:
        """The visit as a stack of one, or None where that is not to be had."""
        if self._stack is None or not self._clients[name].source.resident:
            return None
        try:
            (block,) = self._stack.visit([Visit(plan, params, (name,), context, optimiser)])
        except UnfedError:
            raise
        except Exception as error:
            if self._proven:
                raise
            # A user's module may do what cannot be traced, such as branching on a value. It still can be trained.
            self._stack = None
            warnings.warn(
                f"this model's training step cannot be compiled ({reason(error)}), so it runs operation by operation;"
                " set engine.compile to false to do so from the start",
                UnfedWarning,
                stacklevel=2,
            )
            return None
        self._proven = True
        return block

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        for name in clients:
            yield name, measure(self._template, what, self._clients[name], params)
