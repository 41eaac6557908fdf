"""Plans at clients elsewhere: the engine contract over any transport.

    train     plan, params, context  ──►  every client that is asked  ──►  update, sample counts, dropped samples
    measure   the same, summed counts or gradients back

Answers are put into the order in which clients were asked, so an average here is the average of a simulation, bit for
bit. A client that is away, late or unwilling, or that answers something else, becomes a refusal with its reason; the
round goes on with the others, down to the quorum. No count may be larger than the client's census allows (`Held`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from unfed.client import objectives
from unfed.client.plan import Measure, Phase, Plan
from unfed.client.scores import Scores
from unfed.data import ClientData, Request
from unfed.data.scope import VIEWS, View
from unfed.engines.base import Block, Context, Drawn, PerClient, Refusal, Traffic, context_of
from unfed.model.params import Params, tensor_bytes
from unfed.remote.directory import Directory
from unfed.remote.messages import (
    MEASURE,
    MOST_ROWS,
    SCORES,
    TRAIN,
    Ask,
    Exceeds,
    Failure,
    Packed,
    Reply,
    Unreadable,
    attempt,
    context_names,
    count,
    declared,
    finite,
    own_part,
    said,
    seeds_of,
    tensors,
    unpacked,
)


@dataclass(frozen=True)
class Held:
    """The most rows of each view that a client can have."""

    rows: Mapping[View, int]

    @staticmethod
    def of(client: ClientData | None, exact: bool) -> Held:
        """By its outline; where it has not said yet which rows a request concerns, each may be either kind."""
        if client is None:
            return Held(dict.fromkeys(VIEWS, MOST_ROWS))
        views = {view: len(client.view(view)) for view in VIEWS}
        return Held(views if exact else {**views, "retain": views["all"], "forget": views["all"]})

    def covered(self, plan: Plan) -> int:
        """The rows that a plan's views cover: the weight in the average."""
        views = {phase.view for phase in plan.phases}
        return sum(self.rows[view] for view in (views - {"retain", "forget"} if "all" in views else views))

    def trained(self, plan: Plan) -> int:
        """The rows that go forward and backward in a plan's phases."""
        return sum(self._passed(plan))

    def forwarded(self, plan: Plan) -> int:
        """The rows that go through context models."""
        found = [objectives.find(phase.objective.name) for phase in plan.phases]
        times = [objective.forwards + objective.forget_forwards for objective in found]
        return sum(rows * each for rows, each in zip(self._passed(plan), times, strict=True))

    def _passed(self, plan: Plan) -> list[int]:
        return [_passed(phase, self.rows[phase.view]) for phase in plan.phases]


def _passed(phase: Phase, rows: int) -> int:
    """The most rows that can go through a phase.

    A last batch of one row joins the one before it, see `bounds`.
    """
    batch = min(rows, phase.batch + 1)
    if phase.steps is not None:
        return phase.steps * batch
    return phase.epochs * (rows if phase.cap is None else min(rows, phase.cap * batch))


T = TypeVar("T")
Sums = Mapping[str, Tensor]


class Remote:
    """Sends plans to nodes; every block holds one client."""

    def __init__(
        self,
        directory: Directory,
        shard: str,
        like: Params,
        scope: Sequence[Request] = (),
        gone: Sequence[Request] = (),
        dropped: Mapping[str, int] | None = None,
        clients: Mapping[str, ClientData] | None = None,
    ) -> None:
        self._directory, self._shard, self._like = directory, shard, like
        self._scope, self._gone, self._dropped = tuple(scope), tuple(gone), dict(dropped or {})
        self._clients, self._known = clients or {}, declared(like)
        self._device = next(iter(like.values())).device
        self._traffic = Traffic()
        self.name = directory.speech.engine

    # --- the contract ---------------------------------------------------------------------------------------------

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block | Refusal]:
        seeds = context.seeds if isinstance(context, Drawn) else {}
        models = {n: c for n, c in context.items() if not isinstance(c, PerClient)}
        drawn = seeds_of(models, seeds)
        shared = {"params": params} | context_names({n: c for n, c in models.items() if n not in seeds})
        asks = {}
        for name in clients:
            own = {n: c for n, c in context_of(context, name).items() if n not in seeds}
            groups = {**shared, **context_names(own)}
            if optimiser is not None and name in optimiser:
                groups["optimiser"] = optimiser[name]
            asks[name] = replace(self._ask(TRAIN, name, plan.to_json(), groups), drawn=drawn, group=str(plan.round))
        for name, found in self._send(asks):
            block = self._read(name, found, partial(self._block, name, plan))
            yield Refusal(plan.round, name, block.reason) if isinstance(block, Failure) else block

    def measure(self, what: Measure, params: Params, clients: Sequence[str]) -> Iterator[tuple[str, Sums] | Refusal]:
        for name, found in self.survey({name: [what] for name in clients}, params, counted=what.what != "correct"):
            first = found[0]
            yield Refusal(0, name, first.reason) if isinstance(first, Failure) else (name, first)

    def settle(self) -> Traffic:
        crossed, self._traffic = self._traffic, Traffic()
        return crossed

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def survey(
        self, asked: Mapping[str, Sequence[Measure]], params: Params, counted: bool = False
    ) -> Iterator[tuple[str, list[Sums | Failure]]]:
        """Several measures of each client in one message; each is answered, or not, by itself."""
        shared = {"params": params}
        asks = {
            name: self._ask(MEASURE, name, json.dumps([asdict(what) for what in measures]), shared)
            for name, measures in asked.items()
        }
        for name, found in self._send(asks, counted):
            readers = [partial(self._sums, name, place, what) for place, what in enumerate(asked[name])]
            yield name, [self._read(name, found, reader) for reader in readers]

    def scores(self, view: View, params: Params, clients: Sequence[str]) -> Iterator[tuple[str, Scores | Failure]]:
        """One score per row, from those who give them."""
        shared = {"params": params}
        asks = {name: self._ask(SCORES, name, json.dumps(view), shared) for name in clients}
        for name, found in self._send(asks, counted=False):
            yield name, self._read(name, found, partial(self._scores, name, view))

    # --- messages -------------------------------------------------------------------------------------------------

    def _ask(self, kind: str, client: str, body: str, tensors: Mapping[str, Params]) -> Ask:
        scope, gone = own_part(self._scope, client), own_part(self._gone, client)
        return Ask(kind, client, self._shard, scope, gone, body, tensors)

    def _send(self, asks: Mapping[str, Ask], counted: bool = True) -> Iterator[tuple[str, Reply | Failure]]:
        """The answers in the order of the asks."""
        self._directory.look(self._shard)
        nodes = {name: node for name in asks if (node := self._directory.node(name)) is not None}
        delivery = self._directory.messenger.send({node: asks[name] for name, node in nodes.items()})
        self._directory.silent(delivery.silent)
        if counted:
            before, now = self._traffic, delivery.traffic
            self._traffic = Traffic(before.wire_bytes + now.wire_bytes, before.serialised_bytes + now.serialised_bytes)
        for name in asks:
            if name in nodes:
                yield name, delivery.answers[nodes[name]]
            else:
                yield name, Failure(self._directory.why_not(name))

    # --- reading answers ------------------------------------------------------------------------------------------

    def _read(self, name: str, found: Reply | Failure, read: Callable[[Reply], T]) -> T | Failure:
        """What a reader makes of an answer; a client that counts more than it said it holds is asked again."""
        if isinstance(found, Failure):
            return found

        def noting() -> T:
            try:
                return read(found)
            except Exceeds:
                self._directory.grown.add(name)
                raise

        return attempt(noting)

    def _held(self, name: str) -> Held:
        return Held.of(self._clients.get(name), name in self._dropped)

    def _block(self, name: str, plan: Plan, reply: Reply) -> Block:
        """An update as a block of one.

        Whether its numbers are finite is looked at where updates are averaged.
        """
        counts, held = reply.numbers["counts"], self._held(name)
        dropped, expected = count(counts, "dropped"), self._dropped.get(name)
        if expected is not None and dropped != expected:
            raise Unreadable(f"it left out {dropped} rows, where the requests in force take out {expected}")
        samples = count(counts, "samples", held.covered(plan))
        trained = count(counts, "trained", held.trained(plan))
        forwarded = count(counts, "forwarded", held.forwarded(plan))
        params = tensors(reply.arrays["params"], self._known)
        kept = self._optimiser(reply.arrays.get("optimiser")) if plan.keep else None
        return Block((name,), self._stacked(params), (samples,), (trained,), (forwarded,), kept)

    def _optimiser(self, group: Mapping[str, Packed] | None) -> Params:
        """An optimiser's state: some tensors per parameter, so no more bytes than a few models have."""
        if group is None:
            raise Unreadable("it did not hand its optimiser back")
        if sum(len(packed.data) for packed in group.values()) > 4 * tensor_bytes(self._like) + 4096 * (len(group) + 1):
            raise Unreadable("its optimiser is larger than that of the model can be")
        return self._stacked(finite(unpacked(group), "optimiser"))

    def _stacked(self, found: Mapping[str, Tensor]) -> Params:
        return {name: tensor.to(self._device).unsqueeze(0) for name, tensor in found.items()}

    def _sums(self, name: str, place: int, what: Measure, reply: Reply) -> Sums:
        refused = reply.said.get(f"refused.{place}")
        if refused:
            raise Unreadable(said(refused))
        numbers = reply.numbers.get(f"sums.{place}")
        needed = ("count", "correct", "loss") if what.what == "correct" else ("count", "batches")
        if numbers is None or any(not isinstance(numbers.get(key), int | float) for key in needed):
            raise Unreadable("its answer lacks a measure it was asked for")
        sums = {key: _double(numbers[key]) for key in needed}
        if not all(bool(value >= 0) for value in sums.values()):
            raise Unreadable("the sums in its answer are negative or not a number")
        if not all(bool(value.isfinite()) for value in sums.values()):
            raise Unreadable("the sums in its answer are not finite")
        most = self._held(name).rows[what.view]
        if sums["count"] > most:
            raise Exceeds(f"it counts {sums['count']:.0f} rows of {what.view!r}, where by its census there are {most}")
        if what.what == "correct":
            if sums["correct"] > sums["count"]:
                raise Unreadable("it counts more right answers than rows")
            return sums
        if sums["batches"] > sums["count"]:
            raise Unreadable("it counts more batches than rows")
        group = reply.arrays[f"tensors.{place}"]
        known = {tensor: self._known[tensor] for tensor in group if tensor in self._known}
        found = finite(tensors(group, known, what.what), what.what)
        return sums | {tensor: value.to(self._device) for tensor, value in found.items()}

    def _scores(self, name: str, view: View, reply: Reply) -> Scores:
        """One score per row, no more rows than the client holds."""
        group, most = reply.arrays["scores"], self._held(name).rows[view]
        rows = {tuple(packed.shape) for packed in group.values()}
        if set(group) != set(Scores.__dataclass_fields__) or len(rows) != 1 or len(*rows) != 1:
            raise Unreadable("its scores are not one per row")
        ((length,),) = rows
        if length > most:
            raise Exceeds(f"it scores {length} rows of {view!r}, where by its census there are {most}")
        scores = Scores(**unpacked(group))
        for column, kind in {"correct": torch.bool, "predicted": torch.int64}.items():
            if getattr(scores, column).dtype != kind:
                raise Unreadable(f"its scores have {column!r} as {getattr(scores, column).dtype}, not {kind}")
        finite({column: getattr(scores, column) for column in Scores.__dataclass_fields__}, "scores")
        return scores


def _double(value: Any) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)
