"""Several federations side by side: what they ask at the same time is computed as one stack.

    federation 0:  … ─ train(plan, θ⁰) ─┐                     ┌─ its blocks ─ average ─ …
    federation 1:  … ─ train(plan, θ¹) ─┼─► train_together ───┼─ its blocks ─ average ─ …
    federation 2:  … ─ train(plan, θ²) ─┘                     └─ its blocks ─ average ─ …

Nothing in a federation knows of the others: server, method and round are the code that runs alone. Each is given a
thread, of which only one runs at any time, from one question to the next; so nothing is ever done twice at once, and
the order is the same every time. When all of them wait, what they asked is answered together, and who asks for another
thing than most of them is answered first: a method whose first rounds are its own (MoDE's guidance) is in step with the
others afterwards, for all the rounds that are left. The readable reference is a loop: `[work() for work in works]`,
which gives the same to the last bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from unfed.client.plan import Measure, Plan
from unfed.engines.base import Block, Context, Visit
from unfed.engines.batched import Batched
from unfed.model.params import Params

T = TypeVar("T")


class Table:
    """Where federations sit side by side, whatever engines they ask."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._here = threading.local()
        self.turns = 0
        """How often who waited was answered."""
        self._cuda: int | None = None
        if device is not None and device.type == "cuda":
            # "cuda" is the device that is current here; every thread begins with the first one.
            self._cuda = torch.cuda.current_device() if device.index is None else device.index

    @property
    def seat(self) -> _Seat[Any] | None:
        """Whose turn it is, as the thread that asks sees it."""
        return getattr(self._here, "seat", None)

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What each work returns. If some fail, the first of them, in the order given, is raised here."""
        seats = [_Seat(work, self._here, self._cuda) for work in works]
        try:
            for seat in seats:
                seat.go_on([])
            while (waiting := [s for s in seats if s.asked is not None]) and all(s.error is None for s in seats):
                turn = _out_of_step(waiting) or waiting
                answers = _answers([s.asked for s in turn if s.asked])
                self.turns += 1
                for seat, blocks in zip(turn, answers, strict=True):
                    seat.go_on(blocks)
        finally:
            for seat in seats:
                seat.give_up()
        for seat in seats:
            if seat.error is not None:
                raise seat.error
        return [seat.result[0] for seat in seats]


class SideBySide:
    """An engine for federations at one table; asked from elsewhere, it is the batched engine itself."""

    name = "batched"

    def __init__(self, engine: Batched, table: Table) -> None:
        self.engine, self.table = engine, table

    def train(
        self,
        plan: Plan,
        params: Params,
        clients: Sequence[str],
        context: Context,
        optimiser: Mapping[str, Params] | None = None,
    ) -> Iterator[Block]:
        seat = self.table.seat
        if seat is None:
            yield from self.engine.train(plan, params, clients, context, optimiser)
        else:
            yield from seat.ask(self.engine, Visit(plan, params, tuple(clients), context, optimiser))

    def measure(
        self, what: Measure, params: Params, clients: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Every federation for itself: measuring is seldom, and one model's rows share batches already."""
        return self.engine.measure(what, params, clients)


def _out_of_step(waiting: Sequence[_Seat[Any]]) -> list[_Seat[Any]]:
    """Those who cannot share a stack with most of the others, until they can or have finished."""
    alike: dict[Any, list[_Seat[Any]]] = {}
    for seat in waiting:
        assert seat.asked is not None
        engine, visit = seat.asked
        alike.setdefault((id(engine), engine.kind(visit)), []).append(seat)
    most = max(alike.values(), key=len)
    return [seat for seat in waiting if seat not in most]


def _answers(asked: Sequence[tuple[Batched, Visit]]) -> list[list[Block]]:
    """The blocks of every visit; those to one engine are made together."""
    engines = {id(engine): engine for engine, _ in asked}
    found: dict[int, list[Block]] = {}
    for number, engine in engines.items():
        places = [i for i, (own, _) in enumerate(asked) if id(own) == number]
        found |= zip(places, engine.train_together([asked[i][1] for i in places]), strict=True)
    return [found[i] for i in range(len(asked))]


class _GivenUp(BaseException):
    """Another federation failed, or Ctrl-C was pressed: what waits here is not answered any more."""


class _Seat(Generic[T]):
    """One federation's thread, which runs only while `go_on` waits for it."""

    def __init__(self, work: Callable[[], T], here: threading.local, cuda: int | None) -> None:
        self.asked: tuple[Batched, Visit] | None = None
        self.result: list[T] = []
        self.error: Exception | None = None
        self._answer: list[Block] | None = []
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._work, self._here, self._cuda = work, here, cuda
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, blocks: list[Block]) -> None:
        """Answer what was asked, and wait until it asks again or has finished."""
        self.asked, self._answer = None, blocks
        self._turn.release()
        self._back.acquire()

    def give_up(self) -> None:
        """Let the thread end, whatever it waits for."""
        self._answer = None
        self._turn.release()
        self._thread.join()

    def ask(self, engine: Batched, visit: Visit) -> list[Block]:
        """In the federation's thread: wait for the blocks of a visit."""
        self.asked = engine, visit
        self._back.release()
        self._turn.acquire()
        if self._answer is None:
            raise _GivenUp
        return self._answer

    def _run(self) -> None:
        self._here.seat = self
        self._turn.acquire()
        try:
            if self._answer is not None:
                if self._cuda is not None:
                    torch.cuda.set_device(self._cuda)
                self.result.append(self._work())
        except _GivenUp:
            pass
        except Exception as error:
            self.error = error
        finally:
            self._back.release()
