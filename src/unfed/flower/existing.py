"""Forget a client in a Flower app you already have: five lines in the server app.

    from unfed.flower import Unlearn, negate, registered
    strategy = Unlearn(
        lambda: FedAvg(min_available_nodes=3),        your strategy, built anew: a used one still carries the leaver
        perturb=negate(Net()),                        Eq. 3, once, on the arrays that training left
        exclude=registered("client-3"),               whoever leaves: node ids, or a name bound to a key
    )
    result = strategy.start(grid, trained, num_rounds=5)

`SubsetGrid` hides the leaver from the strategy (stock strategies cannot filter nodes) and refuses every message to it
and every reply from it. An update with other tensors, or with NaN in it, is refused and named; a round without any
usable update is an error, where a stock strategy would return empty arrays and raise nothing.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from unfed.engines.base import Refusal
from unfed.errors import Refused, UnfedError
from unfed.flower.wire import from_arrays
from unfed.model.layers import choose
from unfed.model.params import Params, params_of
from unfed.model.perturb import negate as negated

log = logging.getLogger("flwr")

Exclude = Collection[int] | Callable[[Grid], Collection[int]]
"""Node ids, or a function that finds them among those connected, whenever somebody looks."""
Perturb = Callable[[Params], Params]


def negate(module: nn.Module, layers: Iterable[str | int] = ("first",), include_bias: bool = False) -> Perturb:
    """NoT's perturbation (Eq. 3) as a function of a state dict: the chosen layers of this architecture, negated."""
    chosen = choose(module, tuple(layers), include_bias)
    own, state = params_of(module), module.state_dict(keep_vars=True)
    # A tied weight stands in a state dict under each of its names: all of them are the same number.
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    aliases = {name: [other for other, t in state.items() if t is places[name]] or [name] for name in own}

    def changed(arrays: Params) -> Params:
        missing = [name for name in own if name not in arrays]
        if missing:
            raise UnfedError(
                f"The arrays have no {missing[0]!r}, so they are not of this model; give negate the right one."
            )
        new = negated({name: arrays[name] for name in own}, chosen)
        out = dict(arrays)
        for name, value in new.items():
            for alias in aliases[name]:
                out[alias] = value
        return out

    return changed


def registered(*names: str) -> Callable[[Grid], Collection[int]]:
    """The nodes that were registered under these names (`flwr supernode register KEY FEDERATION --name NAME`)."""

    def found(grid: Grid) -> Collection[int]:
        nodes = list(grid.get_nodes())
        if nodes and not any(node.name for node in nodes):
            raise UnfedError(
                "No connected node has a registered name, so the leaver cannot be told apart; register the nodes' keys"
                " with --name, or exclude by node id."
            )
        return [node.node_id for node in nodes if node.name in names]

    return found


class SubsetGrid(Grid):
    """A grid without some of its nodes: they are not listed, not sent to, and not listened to."""

    def __init__(self, grid: Grid, exclude: Exclude) -> None:
        self._grid, self._exclude = grid, exclude

    @property
    def excluded(self) -> frozenset[int]:
        return frozenset(self._exclude(self._grid) if callable(self._exclude) else self._exclude)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        self._refuse([dst_node_id])
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        out = self.excluded
        return [node for node in self._grid.get_node_ids() if node not in out]

    def get_nodes(self) -> Iterable[NodeInfo]:
        out = self.excluded
        return [node for node in self._grid.get_nodes() if node.node_id not in out]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._allowed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._heard(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._heard(self._grid.send_and_receive(self._allowed(messages), timeout=timeout))

    def _allowed(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        self._refuse([message.metadata.dst_node_id for message in found])
        return found

    def _refuse(self, nodes: Iterable[int]) -> None:
        out = self.excluded
        for node in nodes:
            if node in out:
                raise UnfedError(f"Node {node} has left this federation, so no message goes to it; choose other nodes.")

    def _heard(self, replies: Iterable[Message]) -> list[Message]:
        out = self.excluded
        return [reply for reply in replies if reply.metadata.src_node_id not in out]


class Unlearn(Strategy):
    """A strategy that starts by forgetting: perturb once, then your own strategy without the leaver.

    To go on from a round that was saved after the perturbation, pass `perturb=None`: negating twice is not negating.
    """

    def __init__(self, strategy_factory: Callable[[], Strategy], perturb: Perturb | None, exclude: Exclude) -> None:
        self._factory, self._perturb, self._exclude = strategy_factory, perturb, exclude
        self._inner: Strategy | None = None
        self._like: dict[str, tuple[tuple[int, ...], str]] = {}
        self._out: Callable[[], frozenset[int]] = frozenset
        self.refusals: list[Refusal] = []
        """Updates that were not aggregated, with the node's id for a name."""

    @property
    def inner(self) -> Strategy:
        if self._inner is None:
            raise UnfedError("The strategy is built by start(); call that first.")
        return self._inner

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """As your strategy's own start, with the trained model's arrays."""
        inner = self._factory()
        if not isinstance(inner, Strategy) or inner is self._inner:
            raise UnfedError(
                "strategy_factory must return a new strategy on every call; a used one carries the leaver in its"
                " momentum."
            )
        if type(inner).start is not Strategy.start:
            raise UnfedError(
                f"{type(inner).__name__} has a start() of its own, which Unlearn would not go through; perturb the"
                " arrays yourself and hand your strategy a SubsetGrid."
            )
        subset = SubsetGrid(grid, self._exclude)
        self._check_enough(inner, subset)
        self._inner, self._out, self.refusals = inner, lambda: subset.excluded, []
        self._like = {name: (tuple(array.shape), array.dtype) for name, array in initial_arrays.items()}
        arrays = initial_arrays
        if self._perturb is not None:
            changed = self._perturb(from_arrays(initial_arrays))
            arrays = ArrayRecord(OrderedDict((name, changed[name]) for name in initial_arrays))
        return super().start(subset, arrays, *args, **kwargs)

    @staticmethod
    def _check_enough(inner: Strategy, grid: Grid) -> None:
        """Stock strategies wait for their minimum of nodes without a time-out: for ever, if the leaver made it up."""
        least = max((int(getattr(inner, n, 0)) for n in ("min_available_nodes", "min_train_nodes")), default=0)
        left = len(list(grid.get_node_ids()))
        if left < least:
            raise Refused(
                f"{type(inner).__name__} waits for {least} nodes, but without the leaver {left} are connected; start"
                " more, or lower its min_available_nodes and min_train_nodes."
            )

    # --- the hooks --------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        heard = list(replies)
        good = [reply for reply in heard if not self._refused(server_round, reply)]
        if not any(reply.has_content() for reply in good):
            why = "; ".join(f"node {r.client}: {r.reason}" for r in self.refusals if r.round == server_round)
            raise Refused(
                f"Round {server_round} got no usable update of {len(heard)} replies ({why or 'every client failed'});"
                " mend these clients and start again from the last good arrays."
            )
        arrays, metrics = self.inner.aggregate_train(server_round, good)
        return (None if arrays is None else self._typed(arrays)), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        out = self._out()
        return self.inner.aggregate_evaluate(server_round, [r for r in replies if r.metadata.src_node_id not in out])

    def summary(self) -> None:
        log.info("\t├──> Unlearning without node(s) %s", ", ".join(map(str, sorted(self._out()))) or "(none connected)")
        self.inner.summary()

    # --- what may be aggregated -------------------------------------------------------------------------------------

    def _refused(self, server_round: int, reply: Message) -> bool:
        reason = self._reason(reply)
        if reason:
            node = str(reply.metadata.src_node_id)
            self.refusals.append(Refusal(server_round, node, reason))
            log.warning("unfed: node %s in round %d: %s", node, server_round, reason)
        return bool(reason)

    def _reason(self, reply: Message) -> str:
        if reply.metadata.src_node_id in self._out():
            return "it has left this federation"
        if reply.has_error():
            return f"it failed: {(reply.error.reason or 'no reason given').strip().splitlines()[-1]}"
        for record in reply.content.array_records.values():
            shapes = {name: tuple(array.shape) for name, array in record.items()}
            if shapes != {name: shape for name, (shape, _) in self._like.items()}:
                odd = next(n for n in {**shapes, **self._like} if shapes.get(n) != self._like.get(n, (None,))[0])
                return f"its update has another {odd!r} than the model"
            try:
                bad = [n for n, t in from_arrays(record).items() if t.is_floating_point() and not _finite(t)]
            except UnfedError as error:
                return str(error)
            if bad:
                return f"its update has NaN or infinite values in {bad[0]!r}"
        for metrics in reply.content.metric_records.values():
            for name, value in metrics.items():
                if isinstance(value, float) and not math.isfinite(value):
                    return f"its metric {name!r} is {value}"
        return ""

    def _typed(self, arrays: ArrayRecord) -> ArrayRecord:
        """Averaging turns integer counters into floats; a model that is loaded wants them as they were."""
        tensors = from_arrays(arrays)
        kinds = {name: getattr(torch, dtype) for name, (_, dtype) in self._like.items()}
        typed = OrderedDict((name, _as(value, kinds.get(name, value.dtype))) for name, value in tensors.items())
        return ArrayRecord(typed)


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _as(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor.to(kind) if kind.is_floating_point else tensor.round().to(kind)
