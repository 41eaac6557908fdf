"""Many clients as rectangles: which rows, and which words, each of them takes in step t.

    order[c] = argsort(words(key_c, 0 … n_c−1), padding last)         one sort for the whole stack, on the device
    batch[c] = order[c, begin_c(t) : end_c(t)]                        padded to the widest, padded rows weigh 0

A client's place in its passes is a closed form of t (`PhaseSteps`), so clients with few rows may be in their third pass
while others are in their first, and nobody waits. Every word is the hash that the client would draw alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unfed import rng
from unfed.client.batch import bounds, label_key, positions_of, visit_key
from unfed.client.plan import Phase, Plan
from unfed.data import ClientData, Source
from unfed.model.functional import Template
from unfed.model.params import Params

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
    def of(phase: Phase, counts: Sequence[int]) -> PhaseSteps:
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
        """Where the batch of step t (from 0) begins, and how many rows it has.

        It says so for the first `active` clients.
        """
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
        positions = [positions_of(phase, c) for c in clients]
        rows = [c.rows[p] for c, p in zip(clients, positions, strict=True)]
        forget = [c.forget[p] for c, p in zip(clients, positions, strict=True)]
        padded = [pad_sequence(table, batch_first=True).to(device) for table in (positions, rows, forget)]
        return PaddedRows(padded[0], padded[1], padded[2], tuple(len(p) for p in positions), clients[0].source)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.positions, self.rows, self.forget))


@dataclass(frozen=True)
class Crew:
    """The clients of a stack in one phase: who they are, what they hold, which steps they take.

    Plans differ between federations that are computed side by side, in seed and round only.
    """

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    held: PaddedRows
    course: PhaseSteps


class StackedPhase:
    """One phase on one stack, its clients sorted by falling number of steps.

    It is what both ways to run a phase begin with.
    """

    def __init__(
        self,
        template: Template,
        phase: Phase,
        crew: Crew,
        shared: Mapping[str, Params],
        own: Mapping[str, Params],
    ) -> None:
        names, held, course = crew.names, crew.held, crew.course
        self.template, self.phase, self.held = template, phase, held
        self.order = np.argsort(-course.total, kind="stable")
        self.course = course.pick(self.order.tolist())
        # Never waiting for the device: while it works on one client, the host prepares the next.
        self.places = torch.from_numpy(self.order).to(held.rows.device, non_blocking=True)
        self.names = tuple(names[i] for i in self.order)
        self.plans = tuple(crew.plans[i] for i in self.order)
        self.shared, self.own = shared, own

    def running(self, t: int) -> int:
        """How many clients have a step t."""
        return int(np.searchsorted(-self.course.total, -t, side="left"))


class BatchDealer:
    """Deals the batches of one phase to a stack of clients, sorted by falling number of steps."""

    def __init__(
        self,
        plans: Sequence[Plan],
        phase: Phase,
        names: Sequence[str],
        held: PaddedRows,
        places: Tensor,
        course: PhaseSteps,
    ) -> None:
        """`places` says where in `held` the clients of the (sorted) stack are found."""
        device = held.rows.device
        self.course, self._source = course, held.source
        self._held = [table[places] for table in (held.positions, held.rows, held.forget)]
        self._counts = torch.from_numpy(course.rows).to(device)
        self._keys = torch.tensor(visit_keys(plans, phase, names), dtype=torch.int64, device=device)
        self._labels = label_keys(plans, phase, names)
        self.tables: list[Tensor] = []
        """Rows, forget marks, augmentation words, label words, dropout keys, in the order of the clients' passes."""

    def turn(self, t: int, active: int, done: Integers) -> bool:
        """Shuffle anew for the clients that begin a pass at step t.

        `done` passes were made before this phase.
        """
        begins = self.course.begins(t, active)
        if len(begins) == 0:
            return False
        device, width, steps = self._keys.device, int(self.course.rows[begins].max()), int(self.course.per_pass.max())
        everybody = len(begins) == active
        where = torch.from_numpy(begins).to(device)
        who = slice(0, active) if everybody else where
        epochs = torch.from_numpy(done[begins] + self.course.turn(t, begins)).to(device)
        labels = None if self._labels is None else torch.tensor(self._labels, device=device)[who]
        held = [table[who, :width] for table in self._held]
        fresh = shuffled(self._keys[who], epochs, self._counts[who], held, steps, labels)
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


def visit_keys(plans: Sequence[Plan], phase: Phase, names: Sequence[str]) -> list[int]:
    """The key of every client's visit, for the phase's view."""
    return [visit_key(plan, name, phase.view) for plan, name in zip(plans, names, strict=True)]


def label_keys(plans: Sequence[Plan], phase: Phase, names: Sequence[str]) -> list[int] | None:
    """The keys of labels that are drawn once and for all, if they are."""
    found = [label_key(plan, phase, name) for plan, name in zip(plans, names, strict=True)]
    return [key for key in found if key is not None] or None


def shuffled(
    keys: Tensor,
    epochs: Tensor,
    counts: Tensor,
    held: Sequence[Tensor],
    steps: int,
    labels: Tensor | None = None,
) -> list[Tensor]:
    """Rows, forget marks, augmentation words and label words in the order of a pass.

    Beside them it gives dropout keys per step.
    """
    keys = rng.fold(keys, epochs)[:, None]
    places = torch.arange(held[0].shape[1], device=keys.device)
    words = rng.words(rng.fold(keys, rng.ORDER), places)
    words = torch.where(places < counts[:, None], words, rng.WORD)
    order = torch.argsort(words, dim=1, stable=True)
    positions, rows, forget = (table.gather(1, order) for table in held)
    return [
        rows,
        forget,
        rng.words(rng.fold(keys, rng.AUGMENT), positions),
        rng.words(rng.fold(keys, rng.LABEL) if labels is None else labels[:, None], positions),
        rng.fold(rng.fold(keys, rng.DROPOUT), torch.arange(steps, device=keys.device)),
    ]
