"""What may be aggregated of the replies to a round, and what the average of them must be.

Of a reply only that is judged which the strategy aggregates: the arrays under its key, and the weight that it uses.
Metrics and further records are the app's own affair. An update is refused for its length by the rule of
`federation/robust.py`; replies that are not of the usual form have no length.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic, Strategy

from unfed.errors import UnfedError
from unfed.federation.aggregate import all_finite
from unfed.federation.robust import Lengths
from unfed.flower.classes import NOT_LEFT_OUT
from unfed.flower.wire import from_arrays, packed
from unfed.model.params import Params
from unfed.remote.messages import (
    TYPES,
    Declared,
    Failure,
    Unreadable,
    as_declared,
    attempt,
    finite,
    said,
    unpacked,
)

MINIMUMS = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")
TREES = (FedXgbBagging, FedXgbCyclic)
TIMES = 10_000
"""A weight of more than so many times the median of the others' is refused: alone it would be the average."""
_PIECE = 8192
"""Numbers that are measured at once: they stay in the cache, and NumPy starts no threads for so few."""

Numbers = np.ndarray[Any, Any]


class Judge:
    """Knows the arrays that went out, and where the strategy finds arrays and weights in a reply."""

    def __init__(self, strategy: Strategy, arrays: ArrayRecord, refuse_above: float = 0.0) -> None:
        own = [type(layer).aggregate_train.__module__ for layer in layers(strategy)]
        self._own = any(not module.startswith("flwr.") for module in own)
        self._weight = setting(strategy, "weighted_by_key")
        self._key = setting(strategy, "arrayrecord_key")
        self._usual = True
        self._times, self._lengths = refuse_above, list[float]()
        self._like: dict[str, Declared] = {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()}

    def sift(
        self, replies: Iterable[Message], out: Collection[int], start: ArrayRecord
    ) -> tuple[list[Message], list[tuple[Message, str]]]:
        """The replies that may be aggregated in a round from this start, and the others with the reason.

        A strategy with an aggregation of its own may have replies of a form of its own (compressed, differences,
        without weights): where not one has the usual form, only who has left, failed or sent NaN is refused.
        """
        found, at = list(replies), {name: one.in_place(name) for name, one in packed(start).items()}
        at = {name: old for name, old in at.items() if old.dtype.kind == "f"}
        lengths, refused = self._sorted(found, partial(self._read, out=out, start=at))
        if self._own and found and not lengths:
            lengths, refused = self._sorted(found, partial(self._read_loosely, out=out))
            self._usual = not lengths
        good, refused = self._weighted([reply for reply in found if id(reply) in lengths], refused)
        long = self._too_long([lengths[id(reply)] for reply in good], at) if self._usual else {}
        refused += [(good[i], why) for i, why in long.items()]
        return [reply for i, reply in enumerate(good) if i not in long], refused

    def _too_long(self, far: Sequence[float], start: Mapping[str, Numbers]) -> dict[int, str]:
        """Which replies are too far from the start of the round, and why."""
        found, size = {str(i): length for i, length in enumerate(far)}, math.sqrt(sum(map(_square, start.values())))
        lengths = Lengths(self._times, self._lengths, found, size)
        why = lengths.too_long(found, lengths.limit)
        self._lengths = lengths.usual()
        return {int(i): f"{words} (see Unlearn's refuse_above)" for i, words in why.items()}

    def _weighted(
        self, good: list[Message], refused: list[tuple[Message, str]]
    ) -> tuple[list[Message], list[tuple[Message, str]]]:
        """The same without weights that are out of all proportion to the others'."""
        weights = self._weights(good)
        others = [statistics.median(weights[:i] + weights[i + 1 :]) for i in range(len(weights)) if len(weights) > 1]
        absurd = [
            (reply, f"its weight {self._weight!r} is {own:g}, over {TIMES} times the others' median ({usual:g})")
            for reply, own, usual in zip(good, weights, others, strict=False)
            if own > TIMES * usual
        ]
        return [reply for reply in good if all(reply is not one for one, _ in absurd)], refused + absurd

    def heavy(self, good: Sequence[Message]) -> list[tuple[int, str]]:
        """Find the node whose reply has more than half of the weight of several."""
        weights = self._weights(good)
        shares = [own / sum(weights) for own in weights] if len(weights) > 1 else []
        return [
            (reply.metadata.src_node_id, f"it has {share:.1%} of the weight of all {len(good)} replies")
            for reply, share in zip(good, shares, strict=False)
            if share > 0.5
        ]

    def _weights(self, good: Sequence[Message]) -> list[float]:
        """The weight of each reply; empty where the strategy takes none, or replies are of another form."""
        key = self._weight if self._usual else None
        return [] if key is None else [max(_weights_in(reply, key)) for reply in good]

    def _sorted(
        self, replies: Sequence[Message], read: Callable[[Message], float]
    ) -> tuple[dict[int, float], list[tuple[Message, str]]]:
        """The length of each usable update, by its reply's `id`, and the other replies with the reason."""
        found = [(reply, attempt(partial(read, reply))) for reply in replies]
        refused = [(reply, why.reason) for reply, why in found if isinstance(why, Failure)]
        return {id(reply): length for reply, length in found if not isinstance(length, Failure)}, refused

    def _read_loosely(self, reply: Message, out: Collection[int]) -> float:
        self._arrived(reply, out)
        for record in reply.content.array_records.values():
            finite(from_arrays(record))
        return 0.0

    def _read(self, reply: Message, out: Collection[int], start: Mapping[str, Numbers]) -> float:
        """‖θ_k − θ‖ of the arrays that are aggregated, in float64; it is finite only if all of them are."""
        self._arrived(reply, out)
        squares = 0.0
        for record in self._aggregated(reply):
            like = {name: _as_trained(known, record.get(name)) for name, known in self._like.items()}
            sent = as_declared(packed(record), like)
            arrays = {name: one.in_place(name) for name, one in sent.items()}
            squares += sum(_square(new, start[name]) for name, new in arrays.items() if name in start)
            if not math.isfinite(squares) or any(a.dtype.kind == "f" for n, a in arrays.items() if n not in start):
                finite(unpacked(sent))
        if self._weight is not None:
            self._weigh(reply, self._weight)
        return math.sqrt(squares)

    def _arrived(self, reply: Message, out: Collection[int]) -> None:
        if reply.metadata.src_node_id in out:
            raise Unreadable("it has left this federation")
        if reply.has_error():
            last = said((reply.error.reason or "no reason given").strip().splitlines()[-1])
            raise Unreadable(last if reply.error.code == NOT_LEFT_OUT else f"it failed: {last}")
        if not reply.content.array_records:  # or stock strategies would drop the whole round for it
            raise Unreadable("it sent no arrays")

    def _weigh(self, reply: Message, key: str) -> None:
        weights = _weights_in(reply, key)
        if not weights:
            raise Unreadable(f"its metrics lack the weight {key!r}")
        for weight in weights:
            if not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
                raise Unreadable(f"its weight {key!r} is {said(weight, 40)}, which is not a positive number")

    def _aggregated(self, reply: Message) -> list[ArrayRecord]:
        """The arrays that the strategy looks at: those under its key, or the only ones there are."""
        records = reply.content.array_records
        return [record for name, record in records.items() if name == self._key or len(records) == 1]

    def learn_types(self, replies: Iterable[Message]) -> None:
        """A stock strategy's training may leave float64 everywhere; clients know what their tensors are."""
        if not self._usual:
            return
        records = [record for reply in replies for record in self._aggregated(reply)]
        for name, known in self._like.items() if records else ():
            found = {_as_trained(known, record[name]) for record in records}
            self._like[name] = found.pop() if len(found) == 1 else known

    def typed(self, arrays: ArrayRecord) -> Params | str:
        """The average in the types of the model (averaging turns counters into floats), or why it is not one."""
        found = from_arrays(arrays)
        if not all_finite(list(found.values())):
            return "its average is not finite"
        for name, (shape, _) in self._like.items():
            if name not in found or tuple(found[name].shape) != shape:
                return f"its result is not of the model's form ({name!r} is gone, or has another shape)"
        kinds = {name: getattr(torch, dtype) for name, (_, dtype) in self._like.items()}
        return {name: _as(value, kinds.get(name, value.dtype)) for name, value in found.items()}


def layers(strategy: Strategy) -> Sequence[Strategy]:
    """A strategy, and whatever strategies it is wrapped around, whatever it calls them."""
    found = [strategy]
    for layer in found:
        inner = [own for own in getattr(layer, "__dict__", {}).values() if isinstance(own, Strategy)]
        found += [own for own in inner if not any(own is one for one in found)]
    return found


def setting(strategy: Strategy, name: str) -> str | None:
    """What a strategy, or the first it is wrapped around that says so, calls something."""
    return next((str(getattr(layer, name)) for layer in layers(strategy) if hasattr(layer, name)), None)


def minimum(strategy: Strategy) -> int:
    """How many nodes a strategy waits for, at most."""
    waits: list[Any] = [getattr(layer, name, 0) for layer in layers(strategy) for name in MINIMUMS]
    return max((int(number or 0) for number in waits), default=0)


def check_forgets(strategy: Strategy) -> None:
    """Refuse strategies whose model is a collection, in which what the leaver gave stays as it is."""
    trees = next((type(layer).__name__ for layer in layers(strategy) if isinstance(layer, TREES)), None)
    if trees is not None:
        raise UnfedError(f"{trees} keeps the trees of the leaver; train a new model over SubsetGrid(grid, exclude).")


@np.errstate(all="ignore")
def _square(new: Numbers, old: Numbers | None = None) -> float:
    """‖new − old‖² in float64."""
    flat, other, square = new.reshape(-1), None if old is None else old.reshape(-1), 0.0
    for place in range(0, len(flat), _PIECE):
        piece = slice(place, place + _PIECE)
        delta = np.subtract(flat[piece], 0 if other is None else other[piece], dtype=np.float64)
        square += float(delta @ delta)
    return square


def _weights_in(reply: Message, key: str) -> list[Any]:
    return [metrics[key] for metrics in reply.content.metric_records.values() if key in metrics]


def _as_trained(known: Declared, array: Array | None) -> Declared:
    """What an array must be; a narrower one may come where a strategy had made a float64 of it.

    Averaging turns counters into float64, and FedAdam and its like turn everything into it; clients load such arrays
    into their own model and answer in its types.
    """
    narrower = array is not None and known[1] == "float64" and array.dtype in TYPES
    return (known[0], array.dtype) if narrower and array is not None else known


def _as(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor.to(kind) if kind.is_floating_point else tensor.round().to(kind)
