"""Many clients as rectangles of rows and words, and the one step mapped over them.

    order[c] = argsort(words(key_c, 0 … n_c−1), padding last)         one sort for the whole stack, on the device
    batch[c] = order[c, begin_c(t) : end_c(t)]                        padded to the widest, padded rows weigh 0

A client's place in its passes is a closed form of t (`PhaseSteps`), so clients with few rows may be in their third pass
while others are in their first, without waiting. Every word is the hash that the client would draw alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from unfed import rng
from unfed.client.batch import Batch, Models, bounds, visit_key
from unfed.client.plan import Phase, Plan
from unfed.client.step import Carry, Slope, advance, gradients, loss_of, step
from unfed.client.step import start as begin
from unfed.data import ClientData, Source
from unfed.model.functional import Template
from unfed.model.params import Params

# --- many clients as rectangles: which rows, and which words, each of them takes in step t ----------------------------


Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class PhaseSteps:
    """The steps of one phase for every client, in closed form; `batch.passes` is its readable twin."""

    rows: Integers
    """n_c: rows in the view."""
    batches: Integers
    """Batches in a whole pass, where a last batch of one row has joined the one before it."""
    per_pass: Integers
    """Steps taken in a pass: all batches, or as many as the cap allows."""
    total: Integers
    """Steps in the phase."""
    batch: int

    @staticmethod
    @lru_cache(64)  # every round asks twice, and most rounds the same
    def of(phase: Phase, counts: tuple[int, ...]) -> PhaseSteps:
        rows = np.asarray(counts, dtype=np.int64)
        batches = np.asarray([len(bounds(n, phase.batch)) for n in counts], dtype=np.int64)
        per_pass = batches if phase.cap is None else np.minimum(batches, max(0, phase.cap))
        total = per_pass * phase.epochs if phase.steps is None else np.where(per_pass > 0, phase.steps, 0)
        return PhaseSteps(rows, batches, per_pass, total, phase.batch)

    @property
    def bytes(self) -> bytes:
        """What tells this course from others."""
        return b"".join(part.tobytes() for part in (self.rows, self.batches, self.per_pass, self.total))

    def pick(self, places: Sequence[int]) -> PhaseSteps:
        """The course of the clients at these places."""
        where = list(places)
        return PhaseSteps(self.rows[where], self.batches[where], self.per_pass[where], self.total[where], self.batch)

    def spans(self, t: int, active: int) -> tuple[Integers, Integers]:
        """Where the batches of step t (from 0) begin for the first `active` clients, and their sizes."""
        place = t % self.per_pass[:active]
        begin = place * self.batch
        last = place == self.batches[:active] - 1
        return begin, np.where(last, self.rows[:active], begin + self.batch) - begin

    def begins(self, t: int, active: int) -> Integers:
        """The places, among the first `active` clients, of those that begin a pass at step t."""
        return np.flatnonzero(t % np.maximum(self.per_pass[:active], 1) == 0)

    def turn(self, t: int, places: Integers) -> Integers:
        """The number of the pass, within the phase, in which step t finds the clients at these places."""
        return t // np.maximum(self.per_pass[places], 1)

    def samples(self, taken: Sequence[int]) -> list[int]:
        """How many rows each client went through in its first `taken` steps."""
        found = []
        for n, batches, m, steps in zip(self.rows, self.batches, self.per_pass, taken, strict=True):
            whole, rest = divmod(int(steps), int(m)) if m else (0, 0)
            full = int(n) if m == batches else int(m) * self.batch
            found.append(whole * full + rest * self.batch)
        return found

    def passes(self, taken: Sequence[int]) -> list[int]:
        """How many passes each client began in its first `taken` steps."""
        return [-(-int(steps) // int(m)) if m else 0 for m, steps in zip(self.per_pass, taken, strict=True)]


@dataclass(frozen=True)
class PaddedRows:
    """One view of some clients, padded to the longest, on the device."""

    positions: Tensor
    rows: Tensor
    forget: Tensor
    counts: tuple[int, ...]
    source: Source

    @staticmethod
    def of(clients: Sequence[ClientData], phase: Phase, device: torch.device) -> PaddedRows:
        positions = [c.view(phase.view) for c in clients]
        rows = [c.rows[p] for c, p in zip(clients, positions, strict=True)]
        forget = [c.forget[p] for c, p in zip(clients, positions, strict=True)]
        padded = [pad_sequence(table, batch_first=True).to(device) for table in (positions, rows, forget)]
        return PaddedRows(padded[0], padded[1], padded[2], tuple(len(p) for p in positions), clients[0].source)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.positions, self.rows, self.forget))


class StackedPhase:
    """One phase on one stack, its clients sorted by falling number of steps.

    It is what both ways to run a phase begin with. Plans differ between federations that are computed side by side, in
    seed and round only.
    """

    def __init__(
        self,
        template: Template,
        phase: Phase,
        asked: Sequence[tuple[str, Plan]],
        held: PaddedRows,
        shared: Mapping[str, Params],
        own: Mapping[str, Params],
    ) -> None:
        self.template, self.phase, self.held, self.shared, self.own = template, phase, held, shared, own
        self.whole = PhaseSteps.of(phase, held.counts)
        """The steps of the clients in the order in which they were asked."""
        self.order = np.argsort(-self.whole.total, kind="stable")
        self.sorted = bool((self.order[1:] > self.order[:-1]).all())
        """Whether they came in that order."""
        self.course = self.whole if self.sorted else self.whole.pick(self.order.tolist())
        self.keys = [visit_key(asked[i][1], asked[i][0], phase.view) for i in self.order]
        """Of every client's visit to the phase's view."""

    @cached_property
    def places(self) -> Tensor:
        """The order, on the device."""
        # Never waiting for the device: while it works on one client, the host prepares the next.
        return torch.from_numpy(self.order).to(self.held.rows.device, non_blocking=True)

    def begun(self) -> Carry:
        """What a phase begins with: every client's start, and no moments."""
        own = self.own.get("start")
        first = self.shared["start"] if own is None else {name: t[0] for name, t in own.items()}
        carry: Carry = expand(begin(self.template, self.phase, first), len(self.order))
        if own is None:
            return carry
        return carry | {part: {name: own[name] for name in carry[part]} for part in ("params", "state")}

    def running(self, t: int) -> int:
        """How many clients have a step t."""
        return int(np.searchsorted(-self.course.total, -t, side="left"))


class BatchDealer:
    """Deals the batches of one phase to a stack of clients, sorted by falling number of steps."""

    def __init__(self, of: StackedPhase) -> None:
        self.course, self._source, device = of.course, of.held.source, of.places.device
        self._held = [table[of.places] for table in (of.held.positions, of.held.rows, of.held.forget)]
        self._counts = torch.from_numpy(of.course.rows).to(device)
        self._keys = torch.tensor(of.keys, dtype=torch.int64, device=device)
        self.tables: list[Tensor] = []
        """Rows, forget marks, augmentation words, label words, dropout keys, in the order of the clients' passes."""

    def turn(self, t: int, active: int, done: Integers) -> bool:
        """Shuffle for the clients that begin a pass at step t; `done` passes came before this phase."""
        begins = self.course.begins(t, active)
        if len(begins) == 0:
            return False
        device, width, steps = self._keys.device, int(self.course.rows[begins].max()), int(self.course.per_pass.max())
        everybody = len(begins) == active
        where = torch.from_numpy(begins).to(device)
        who = slice(0, active) if everybody else where
        epochs = torch.from_numpy(done[begins] + self.course.turn(t, begins)).to(device)
        held = [table[who, :width] for table in self._held]
        numbers = torch.arange(max(width, steps, rng.LABEL + 1), device=device)
        fresh = shuffled(self._keys[who], epochs, self._counts[who], held, steps, numbers)
        if everybody:
            self.tables = fresh
        else:
            for table, new in zip(self.tables, fresh, strict=True):
                table[where, : new.shape[1]] = new
        return True

    def batch(self, t: int, active: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """The batches of step t, [active, widest, …]; `weight` is there only where some rows are padding."""
        begin, size = self.course.spans(t, active)
        width, device = int(size.max()), self._keys.device
        rows, forget, augment, labels, masks = (table[:active] for table in self.tables)
        weight = None
        if bool((begin == begin[0]).all()) and bool((size == width).all()):
            cut = slice(int(begin[0]), int(begin[0]) + width)
            rows, forget, augment, labels = (table[:, cut] for table in (rows, forget, augment, labels))
            keys = masks[:, int(t % self.course.per_pass[0])]
        else:
            places = torch.arange(width, device=device)
            valid = places < torch.from_numpy(size).to(device)[:, None]
            # Padding repeats the batch's first row: its loss is as finite as that row's, so 0 · loss is 0.
            index = torch.from_numpy(begin).to(device)[:, None] + torch.where(valid, places, 0)
            rows, forget, augment, labels = (table.gather(1, index) for table in (rows, forget, augment, labels))
            forget = forget & valid
            step = torch.from_numpy(t % self.course.per_pass[:active]).to(device)
            keys = masks.gather(1, step[:, None])[:, 0]
            weight = valid.to(dtype) if bool((size < width).any()) else None
        x, y = self._source.fetch(rows, augment)
        batch = {"x": x, "y": y, "forget": forget, "draws": labels, "key": keys}
        return batch if weight is None else batch | {"weight": weight}


def shuffled(
    keys: Tensor, epochs: Tensor, counts: Tensor, held: Sequence[Tensor], steps: int, numbers: Tensor
) -> list[Tensor]:
    """Rows, forget marks, augmentation and label words in a pass's order; dropout keys per step.

    `numbers` is 0, 1, 2, … as a tensor: those that a compiler makes itself have 32 bits, and a hash needs 64.
    """
    keys = rng.fold(keys, epochs)[:, None]
    # One fold for all purposes, one call for all words: on a GPU every operation on these small tensors is a launch.
    purposes = rng.fold(keys, numbers[rng.ORDER : rng.LABEL + 1])[..., None]
    ordering, augment, dropout, label = purposes.unbind(1)
    places = numbers[: held[0].shape[1]]
    words = torch.where(places < counts[:, None], rng.words(ordering, places), rng.WORD)
    order = torch.argsort(words, dim=1, stable=True)
    positions, rows, forget = (table.gather(1, order) for table in held)
    drawn = rng.words(torch.stack([augment, label], 1), positions[:, None])
    return [rows, forget, *drawn.unbind(1), rng.fold(dropout, numbers[:steps])]


# --- the one step, mapped over a stack --------------------------------------------------------------------------------


Step = Callable[[Carry, Mapping[str, Tensor], Mapping[str, Params], int], Carry]


def stacked_step(template: Template, phase: Phase, shared: Mapping[str, Params], lr: Tensor | None = None) -> Step:
    """`client.step` for a stack: (carry, batch, per-client context, number) -> carry."""

    def loss(weights: Params, state: Params, batch: dict[str, Tensor], own: dict[str, Params]) -> tuple[Tensor, Params]:
        models = Models(template, {**shared, **own})
        value, (after, _) = loss_of(phase, state, _rows(batch), batch["key"], models)(weights)
        return value, after

    plain = elementwise(phase)

    def after(carry: Carry, grads: Params, state: Params, value: Tensor, own: dict[str, Params], number: int) -> Carry:
        models = Models(template, {**shared, **own})
        return advance(phase, carry, Slope(grads, state, value), models, number, lr, mapped=not plain)

    def alone(carry: Carry, batch: dict[str, Tensor], own: Mapping[str, Params], number: int) -> Carry:
        """A stack of one without a map: matrix products, attention and norms stay the kernels they are."""
        with torch.enable_grad():
            return step(phase, carry, _rows(batch), batch["key"], Models(template, {**shared, **own}), number, lr)

    def stacked(carry: Carry, batch: Mapping[str, Tensor], own: Mapping[str, Params], number: int) -> Carry:
        if len(batch["y"]) == 1:
            one: Carry = expand(alone(_first(carry), _first(dict(batch)), _first(dict(own)), number), 1)
            return one
        leaves = {name: t.detach().requires_grad_() for name, t in carry["params"].items()}
        with torch.enable_grad(), mappable_attention(batch["y"]):
            values, state = vmap(loss)(leaves, carry["state"], dict(batch), dict(own))
            grads = gradients(values.sum(), leaves)
        values = values.detach()
        if plain:
            return after(carry, grads, state, values, dict(own), number)
        return _mapped(after, number)(carry, grads, state, values, dict(own))

    return stacked


def _rows(batch: Mapping[str, Tensor]) -> Batch:
    return Batch(batch["x"], batch["y"], batch["forget"], batch["draws"], batch.get("weight"))


@contextmanager
def mappable_attention(some: Tensor) -> Iterator[None]:
    """Attention that a map over clients can go around: on CUDA, products and a softmax, written out.

    PyTorch's fused kernels refuse their own sums when they are mapped ("LSE is not correctly aligned"), and its plain
    form the types of a gradient under autocast. The CPU's kernels can be mapped.
    """
    if not some.is_cuda:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH), _WrittenOut():  # the first for calls that hide inside another function
        yield


class _WrittenOut(TorchFunctionMode):
    """Plain attention as softmax(q kᵀ / √d) v; a call with a mask, dropout or more is left as it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and len(args) == 3 and not kwargs:
            query, key, value = args
            weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(-1)
            return weights.to(value.dtype) @ value
        return func(*args, **(kwargs or {}))


def _mapped(after: Callable[..., Carry], number: int) -> Callable[..., Carry]:
    def one(carry: Carry, grads: Params, state: Params, value: Tensor, own: dict[str, Params]) -> Carry:
        return after(carry, grads, state, value, own, number)

    mapped: Callable[..., Carry] = vmap(one)
    return mapped


def elementwise(phase: Phase) -> bool:
    """Whether the second half of the step treats every entry alike, so that a stack needs no map."""
    plain = phase.optimiser.rule == "sgd" and phase.optimiser.clip is None and phase.optimiser.plateau is None
    return plain and not phase.after and phase.stop is None


# --- nested dictionaries of stacked tensors ---------------------------------------------------------------------------


def expand(tree: Any, count: int) -> Any:
    return pytree.tree_map(lambda t: t.expand(count, *t.shape), tree)


def _first(tree: Any) -> Any:
    return pytree.tree_map(lambda t: t[0], tree)


def stack(trees: Sequence[Any]) -> Any:
    return pytree.tree_map(lambda *ts: torch.stack(ts), *trees)


def at(tree: Any, places: Tensor) -> Any:
    return pytree.tree_map(lambda t: t[places], tree)


def copied(tree: Any) -> Any:
    """The same tensors elsewhere; a launch for each type of number, not for each tensor of a large model."""
    leaves, spec = pytree.tree_flatten(tree)
    found = [torch.empty_like(t) for t in leaves]
    for dtype in {t.dtype for t in leaves}:
        places = [i for i, t in enumerate(leaves) if t.dtype == dtype]
        torch._foreach_copy_([found[i] for i in places], [leaves[i] for i in places])
    return pytree.tree_unflatten(found, spec)


def cut(tree: Any, begin: int, end: int) -> Any:
    return pytree.tree_map(lambda t: t[begin:end], tree)


def join(trees: Sequence[Any]) -> Any:
    return trees[0] if len(trees) == 1 else pytree.tree_map(lambda *ts: torch.cat(ts), *trees)
