"""Plans on real, separate machines: the engine contract over Flower's grid.

    train     plan, params, context  ──►  every client that is asked  ──►  update, sample counts, dropped samples
    measure   the same, summed counts or gradients back

Answers are put into the order in which clients were asked, whatever order they came in, so an average here is the
average of a simulation, bit for bit. A client that is away, too late, unwilling, or that answers something else than it
was asked becomes a refusal with its reason; the round goes on with the others, down to the quorum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from unfed.client.measuring import Scores
from unfed.client.plan import Measure, Plan
from unfed.data import Request
from unfed.engines.base import Block, Context, Drawn, PerClient, Refusal, Traffic, context_of
from unfed.errors import UnfedError
from unfed.flower.nodes import Directory
from unfed.flower.post import Failure
from unfed.flower.wire import MEASURE, SCORES, TRAIN, Ask, context_names, from_arrays, own_part, seeds_of, to_arrays
from unfed.model.params import Params

Sums = Mapping[str, Tensor]


class Flower:
    """Sends plans to Flower nodes; every block holds one client."""

    name = "flower"

    def __init__(
        self,
        directory: Directory,
        shard: str,
        like: Params,
        scope: Sequence[Request] = (),
        gone: Sequence[Request] = (),
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        self._directory, self._shard, self._like = directory, shard, like
        self._scope, self._gone, self._dropped = tuple(scope), tuple(gone), dict(dropped or {})
        self._traffic = Traffic()

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
            asks[name] = replace(self._ask(TRAIN, name, plan.to_json(), groups), drawn=drawn)
        for name, found in self._send(asks, str(plan.round), shared):
            block = found if isinstance(found, Failure) else self._block(name, found)
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
        for name, found in self._send(asks, "", shared, counted):
            measures = asked[name]
            if isinstance(found, Failure):
                yield name, [found] * len(measures)
            else:
                yield name, [self._sums(found, place, what) for place, what in enumerate(measures)]

    def scores(self, view: str, params: Params, clients: Sequence[str]) -> Iterator[tuple[str, Scores | Failure]]:
        """One score per row, from those who give them."""
        shared = {"params": params}
        asks = {name: self._ask(SCORES, name, json.dumps(view), shared) for name in clients}
        for name, found in self._send(asks, "", shared, counted=False):
            yield name, found if isinstance(found, Failure) else _scores(found)

    # --- messages -------------------------------------------------------------------------------------------------

    def _ask(self, kind: str, client: str, body: str, tensors: Mapping[str, Params]) -> Ask:
        scope, gone = own_part(self._scope, client), own_part(self._gone, client)
        return Ask(kind, client, self._shard, scope, gone, body, tensors)

    def _send(
        self, asks: Mapping[str, Ask], group: str, shared: Mapping[str, Params], counted: bool = True
    ) -> Iterator[tuple[str, RecordDict | Failure]]:
        """The answers in the order of the asks."""
        self._directory.look(self._shard)
        nodes = {name: node for name in asks if (node := self._directory.node(name)) is not None}
        packed = {name: to_arrays(tensors) for name, tensors in shared.items()} if nodes else {}
        delivery = self._directory.post.send({node: asks[name] for name, node in nodes.items()}, group, packed)
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

    def _block(self, name: str, records: RecordDict) -> Block | Failure:
        """An update as a block of one. Keys, shapes, types and NaN are left to `aggregate.Check`, which names them."""
        try:
            counts = records.metric_records["counts"]
            samples, trained, forwarded, dropped = (
                _whole(counts[key]) for key in ("samples", "trained", "forwarded", "dropped")
            )
            params = from_arrays(records.array_records["params"])
            state = records.array_records.get("optimiser")
            optimiser = None if state is None else from_arrays(state)
        except (KeyError, ValueError, UnfedError) as error:
            return Failure(f"its answer cannot be read ({error})")
        expected = self._dropped.get(name)
        if expected is not None and dropped != expected:
            return Failure(f"it left out {dropped} rows, where the requests in force take out {expected}")
        ordered = {n: params[n] for n in self._like if n in params} | params
        device = next(iter(self._like.values())).device

        def stacked(tensors: Params) -> Params:
            return {n: t.to(device).unsqueeze(0) for n, t in tensors.items()}

        kept = None if optimiser is None else stacked(optimiser)
        return Block((name,), stacked(ordered), (samples,), (trained,), (forwarded,), kept)

    def _sums(self, records: RecordDict, place: int, what: Measure) -> Sums | Failure:
        refused = records.config_records["answer"].get(f"refused.{place}")
        if refused:
            return Failure(str(refused))
        numbers = records.metric_records.get(f"sums.{place}")
        if numbers is None or not all(isinstance(value, int | float) for value in numbers.values()):
            return Failure("its answer lacks a measure it was asked for")
        sums = {name: _double(value) for name, value in numbers.items()}
        needed = {"count", "correct", "loss"} if what.what == "correct" else {"count", "batches"}
        if needed - sums.keys() or not all(bool(value >= 0) for value in sums.values()):
            return Failure("the sums in its answer are negative or not a number")
        if not all(bool(value.isfinite()) for value in sums.values()):
            return Failure("the sums in its answer are not finite")
        if what.what == "correct":
            return Failure("it counts more right answers than rows") if sums["correct"] > sums["count"] else sums
        try:
            tensors = from_arrays(records.array_records[f"tensors.{place}"])
        except (KeyError, UnfedError) as error:
            return Failure(f"its answer cannot be read ({error})")
        for name, tensor in tensors.items():
            if name not in self._like or tensor.shape != self._like[name].shape or not bool(tensor.isfinite().all()):
                return Failure(f"its {what.what} of {name!r} has another shape or is not finite")
        device = next(iter(self._like.values())).device
        return sums | {name: tensor.to(device) for name, tensor in tensors.items()}


def _scores(records: RecordDict) -> Scores | Failure:
    try:
        columns = from_arrays(records.array_records["scores"])
        scores = Scores(*(columns[name] for name in Scores.__dataclass_fields__))
    except (KeyError, UnfedError) as error:
        return Failure(f"its scores cannot be read ({error})")
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or not bool(scores.loss.isfinite().all()):
        return Failure("its scores are not finite, or not one per row")
    return scores


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no count")
    return value


def _double(value: Any) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)
