"""A step of a stack, recorded once and replayed.

It is traced, rewritten, compiled and captured in a CUDA graph.

    batch(t) ─► loss ─► ∇ ─► advance ─► carry, t + 1          everything on the device; nothing comes from the host

The recorded step reads its place from a counter on the device and picks its own rows, so a whole epoch is the same
graph replayed, with no launch, no copy and no Python in between. Rates and penalties are tensors, so a schedule does
not record again. A client that has finished while others go on is frozen by `where`; when half of the stack has
finished, a graph of half the width takes over.

Tracing happens below Python (`make_fx`): whatever the step calls, objectives, `vmap`, autograd, arrives as one flat
list of tensor operations, and the compiler never sees a Python object that it could trip over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from unfed.client import objectives
from unfed.client.plan import Phase, Term
from unfed.client.step import Carry
from unfed.engines.compiled import convolution, half_precision, handwritten
from unfed.engines.compiled.capture import Backend, Untraceable, as_traced, ready, reason
from unfed.engines.compiled.fused import fused_block
from unfed.engines.compiled.graph_edits import lift
from unfed.engines.stack import (
    Integers,
    PaddedRows,
    StackedPhase,
    at,
    copied,
    cut,
    shuffled,
    stacked_step,
)
from unfed.errors import UnfedError
from unfed.model.calling import computed_by
from unfed.model.functional import Template

# A stack narrower than this many rows per step leaves an H200 idle, so shrinking it further would gain nothing.
BUSY_ROWS = 256
# Recorded steps kept per template; each holds its own buffers.
KEPT = 8

# Tables of rows are at least this wide, and a power of two: clients of different sizes share a recording.
TABLE = 1024

Options = dict[str, str | int | bool | Callable[..., Any]]

# What the compiler gets; the graph around the step is captured here, so it must not make its own.
# On Hopper a kernel may be set up while the one before it ends, which saves 19 of a step's 482 µs.
OPTIONS: Options = {"triton.cudagraphs": False, "triton.enable_pdl": True}
# And where layer norms are trained: their gradients are faster in two kernels than in one with a slow sum behind it.
WITH_LAYER_NORMS: Options = {"triton.mix_order_reduction": False}


def recordable(phase: Phase) -> bool:
    """Whether every step of the phase is the same.

    A rule that acts every n-th step, or that may stop a client early, makes a visit that happens once: it is not worth
    a recording.
    """
    rules = (*phase.after, *phase.penalties)
    return phase.stop is None and phase.optimiser.plateau is None and all(r.get("every", 1) == 1 for r in rules)


@lru_cache(64)
def signature(phase: Phase) -> Phase:
    """The phase without what may change from visit to visit.

    That is its rate, its penalties' strength, and whose rows it takes.

    Rows and the draws of a view are loaded into the buffers, so phases that differ in nothing else share a recording:
    a minute of compiling a ViT, for MoDE's two.
    """
    bare = tuple(
        Term(rule.name, tuple((n, v) for n, v in rule.numbers if n not in dials(rule))) for rule in phase.penalties
    )
    slow = replace(phase.optimiser, lr=0.0)
    return replace(phase, view="retain", penalties=bare, optimiser=slow, epochs=0, steps=None, cap=None)


def dials(rule: Term) -> dict[str, float]:
    """The numbers of a penalty that a server may change from round to round."""
    return {n: float(v) for n, v in rule.numbers if isinstance(v, int | float) and not isinstance(v, bool)}


def inductor(module: Any, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """PyTorch's compiler, with static shapes and without graphs of its own.

    Its worker processes stay: put to sleep after a minute and woken again, they can hang for ever (pytorch#176968).
    """
    from torch._inductor import config

    if hasattr(config, "quiesce_async_compile_pool"):  # since PyTorch 2.8
        config.quiesce_async_compile_pool = False
    return torch.compile(module, fullgraph=True, dynamic=False, options=options_for(module))


def options_for(module: Any) -> Options:
    """What the compiler gets for this step, as far as its version knows of it."""
    from torch._inductor import list_options

    normed = any(n.target is torch.ops.aten.native_layer_norm_backward.default for n in module.graph.nodes)
    known = set(list_options())
    wanted = OPTIONS if not normed else WITH_LAYER_NORMS | OPTIONS
    return {name: value for name, value in wanted.items() if name in known}


compiler: Backend = inductor
"""What turns a traced step into what is captured; set it to `as_traced` to test or to measure without one."""


class Shape(NamedTuple):
    """What a recorded step was recorded for."""

    clients: int
    rows: int
    """Rows in the widest batch."""
    weighted: bool
    """Whether some of them may be padding."""


class Deck:
    """The buffers that recorded steps read and write, for one kind of phase on stacks of one size."""

    def __init__(
        self, template: Template, phase: Phase, held: PaddedRows, tree: dict[str, Any], backend: Backend
    ) -> None:
        self._template, self._phase, self._source, self._backend = template, phase, held.source, backend
        self.buffers: dict[str, Any] = pytree.tree_map(torch.zeros_like, tree)
        torch.arange(len(tree["numbers"]), out=self.buffers["numbers"])
        self._steps: dict[Shape, Callable[[], object]] = {}
        self._deal: Callable[[], object] | None = None
        self._begin: Callable[[], object] | None = None
        self._constants: list[Tensor] = []
        self._seated: tuple[PaddedRows, bytes] | None = None
        self.shapes: tuple[bytes, list[Shape]] = (b"", [])
        """The steps of the last visit, and the course that they belong to."""

    def record(self, shape: Shape) -> Callable[[], object]:
        """The step of this shape; recording it writes into the buffers."""
        if shape not in self._steps:
            self._steps[shape] = self._record(shape.clients, lambda now: self._step(now, shape), self._backend)
        return self._steps[shape]

    def dealing(self) -> Callable[[], object]:
        """Shuffles for those who begin a pass, as `visit` says; recording it writes into the buffers."""
        if self._deal is None:
            self._deal = self._record(len(self.buffers["held"][0]), self._shuffle, self._backend)
        return self._deal

    def beginning(self) -> Callable[[], object]:
        """Every client at the start that is loaded, without moments; recording it writes into the buffers."""
        if self._begin is None:
            self._begin = self._record(len(self.buffers["held"][0]), self._start, as_traced)
        return self._begin

    def seat(self, at: StackedPhase) -> None:
        """Load the rows that the clients hold; nothing is copied for those of the round before."""
        held, who = at.held, (at.held, at.course.bytes)
        if self._seated is not None and self._seated[0] is held and self._seated[1] == who[1]:
            return
        for buffer, table in zip(self.buffers["held"], (held.positions, held.rows, held.forget), strict=True):
            buffer[:, : table.shape[1]].copy_(table[at.places])
        for name, buffer in self.buffers["course"].items():
            buffer.copy_(torch.from_numpy(getattr(at.course, name)), non_blocking=True)
        self._seated = who

    def load(self, lr: float, penalties: Sequence[Term], values: Mapping[str, Any]) -> None:
        """Fill what differs from visit to visit; what is one for all clients is spread over them."""
        self.buffers["t"].zero_()
        self.buffers["lr"].fill_(lr)
        for buffers, rule in zip(self.buffers["penalties"], penalties, strict=True):
            for name, value in dials(rule).items():
                buffers[name].fill_(value)
        if "marked" in self.buffers:
            self.buffers["marked"].zero_()
        for name, value in values.items():
            into, new = pytree.tree_leaves(self.buffers[name]), pytree.tree_leaves(value)
            torch._foreach_copy_(into, [t.expand_as(b) for t, b in zip(new, into, strict=True)]) if into else None

    def _record(self, width: int, function: Callable[[dict[str, Any]], None], backend: Backend) -> Callable[[], object]:
        view = {name: part if name in _SHARED else cut(part, 0, width) for name, part in self.buffers.items()}
        leaves, spec = pytree.tree_flatten(view)

        def flat(*tensors: Tensor) -> None:
            function(pytree.tree_unflatten(list(tensors), spec))

        with torch.no_grad(), computed_by(block=fused_block):
            try:
                module = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
            except UnfedError:
                raise
            except Exception as error:
                raise Untraceable(reason(error)) from error
            if width > 1:  # a client alone has ungrouped convolutions, which the libraries do well
                convolution.rewrite(module, width)
            half_precision.rewrite(module)
            constants = lift(module, leaves[0].device)
            self._constants += constants  # a captured graph reads them where they lie, so they must stay
            return ready(module, [*leaves, *constants], backend, _said.setdefault(self._template, set()))

    def _shuffle(self, now: dict[str, Any]) -> None:
        """`BatchDealer.turn`, for anyone who begins a pass."""
        keys, epochs, begins = now["visit"]
        fresh = shuffled(keys, epochs, now["course"]["rows"], now["held"], now["tables"][4].shape[1], now["numbers"])
        for table, new in zip(now["tables"], fresh, strict=True):
            table.copy_(torch.where((begins > 0)[:, None], new, table))

    def _start(self, now: dict[str, Any]) -> None:
        """`StackedPhase.begun`, into the carry: one replay instead of a launch for every tensor."""
        start = now["own"].get("start") or now["shared"]["start"]
        for name, buffer in (now["carry"]["params"] | now["carry"]["state"]).items():
            buffer.copy_(start[name])
        for buffer in now["carry"]["optimiser"].values():
            buffer.zero_()

    def _step(self, now: dict[str, Any], shape: Shape) -> None:
        """The step itself, writing its results where it found its inputs."""
        t, course, carry = now["t"], now["course"], now["carry"]
        batch, valid = self._batch(t, course, now["tables"], shape.rows)
        numbers = zip(self._phase.penalties, now["penalties"], strict=True)
        live = tuple(Term(rule.name, tuple({**dict(rule.numbers), **values}.items())) for rule, values in numbers)
        phase = replace(self._phase, penalties=live)
        dtype = next(iter(carry["params"].values())).dtype
        step = stacked_step(self._template, phase, now["shared"], now["lr"])
        weights = {"weight": valid.to(dtype)} if shape.weighted else {}
        after = step(carry, batch | weights, now["own"], 1)
        going = t < course["total"]

        def put(old: Tensor, new: Tensor) -> None:
            old.copy_(torch.where(going.view(-1, *[1] * (new.dim() - 1)), new, old))

        pytree.tree_map(put, carry, {name: after[name] for name in carry})
        if "marked" in now:
            now["marked"].add_((batch["forget"] & going[:, None]).sum(1))
        t.add_(1)

    def _batch(
        self, t: Tensor, course: Mapping[str, Tensor], tables: Sequence[Tensor], rows: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """`BatchDealer.batch`, with the place in the pass computed on the device."""
        place = t % course["per_pass"].clamp(min=1)
        begin = place * self._phase.batch
        end = torch.where(place == course["batches"] - 1, course["rows"], begin + self._phase.batch)
        places = torch.arange(rows, device=t.device)
        valid = places < (end - begin)[:, None]
        index = begin[:, None] + torch.where(valid, places, 0)
        row, forget, augment, labels = (table.gather(1, index) for table in tables[:4])
        x, y = self._source.fetch(row, augment)
        key = tables[4].gather(1, place[:, None])[:, 0]
        return {"x": x, "y": y, "forget": forget & valid, "draws": labels, "key": key}, valid


_CARRIED = ("params", "state", "optimiser")
"""What a step changes; the rest of a carry is for rules that stop, and such phases are not recorded."""
_SHARED = ("t", "lr", "penalties", "shared", "visit", "numbers")
_decks: WeakKeyDictionary[Template, OrderedDict[Any, Deck]] = WeakKeyDictionary()
_said: WeakKeyDictionary[Template, set[str]] = WeakKeyDictionary()
"""What was said about steps that could not be compiled."""


class Replay(StackedPhase):
    """One phase on one stack, by replaying recorded steps."""

    def __call__(self, carry: Carry | None, done: Integers) -> tuple[Carry, list[int], list[int]]:
        """The carry after the phase; each client's steps, and rows of D_u seen where those are counted."""
        total, done = self.course.total, done[self.order]
        steps = int(total[0])
        if steps == 0:
            return carry or self.begun(), [0] * len(total), [0] * len(total)
        deck = self._deck()
        if deck.shapes[0] != self.course.bytes:
            deck.shapes = self.course.bytes, [self._shape(t) for t in range(steps)]
        shapes, deal = deck.shapes[1], deck.dealing()
        begin = deck.beginning() if carry is None else None
        for shape in dict.fromkeys(shapes):
            deck.record(shape)
        deck.seat(self)
        visit = np.zeros((3, len(total)), dtype=np.int64)  # keys, passes, and who begins one
        visit[0] = self.keys
        for t, shape in enumerate(shapes):
            begins = self.course.begins(t, self.running(t))
            if len(begins):
                visit[1:] = 0
                visit[1, begins] = done[begins] + self.course.turn(t, begins)
                visit[2, begins] = 1
                # From ordinary memory the driver takes its own copy first, so nothing waits and `visit` can be reused.
                deck.buffers["visit"].copy_(torch.from_numpy(visit), non_blocking=True)
                deal()
            if t == 0:  # loaded while the device deals
                now = {"shared": self.shared, "own": self._sorted(self.own)}
                if carry is not None:
                    now["carry"] = self._sorted({name: carry[name] for name in _CARRIED})
                deck.load(self.phase.optimiser.lr, self.phase.penalties, now)
                if begin is not None:
                    begin()
            deck.record(shape)()
        if self.sorted:
            marked = deck.buffers["marked"].tolist() if "marked" in deck.buffers else [0] * len(total)
            return copied(deck.buffers["carry"]), total.tolist(), marked
        back = torch.argsort(self.places)
        marked = deck.buffers["marked"][back].tolist() if "marked" in deck.buffers else [0] * len(total)
        return at(deck.buffers["carry"], back), total[np.argsort(self.order)].tolist(), marked

    def _sorted(self, tree: Any) -> Any:
        """In the order of the stack, except what is spread over all clients or sorted already."""
        if self.sorted:
            return tree
        return pytree.tree_map(lambda t: t if t.stride(0) == 0 else t[self.places], tree)

    def _shape(self, t: int) -> Shape:
        """Which recorded step serves step t.

        The stack's width says it, halved while that saves work, and the batch's width.

        Row weights let one recording serve batches of any size up to its own. Only batch statistics pay for weights, so
        full batches have a recording without them where a model has such statistics, and nowhere else.
        """
        running, width = self.running(t), len(self.course.total)
        most = max(1, min(self.phase.batch, int(self.course.rows.max())))
        if width == 1:  # other clients come to this deck later, with other numbers of rows
            most = min(self.phase.batch, _power_of_two(most))
        while width > 1 and (half := -(-width // 2)) >= running and half * most >= BUSY_ROWS:
            width = half
        sizes = self.course.spans(t, running)[1]
        rows = max(int(sizes.max()), most)
        return Shape(width, rows, not self.template.batch_normed or bool((sizes < rows).any()))

    def _tree(self) -> dict[str, Any]:
        """All that a step reads, in the buffers' shapes, padded so that cohorts share a recording."""
        device, count, carry = self.held.rows.device, len(self.course.total), self.begun()
        dtype = next(iter(carry["params"].values())).dtype
        width, steps = self._rectangle()

        def number(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        word, mark = torch.int64, torch.bool
        tree: dict[str, Any] = {
            "t": number(word),
            "lr": number(dtype),
            "penalties": [{n: number(dtype) for n in dials(rule)} for rule in self.phase.penalties],
            "shared": self.shared,
            "own": self.own,
            "course": {n: number(word, count) for n in _COURSE},
            "held": [number(kind, count, width) for kind in (word, word, mark)],
            "visit": number(word, 3, count),
            "numbers": number(word, max(width, steps)),
            "tables": [number(kind, count, width) for kind in (word, mark, word, word)] + [number(word, count, steps)],
            "carry": pytree.tree_map(lambda t: number(t.dtype, *t.shape), {name: carry[name] for name in _CARRIED}),
        }
        if objectives.find(self.phase.objective.name).forget_forwards:
            tree["marked"] = number(word, count)
        return tree

    def _rectangle(self) -> tuple[int, int]:
        """How many rows a client, and how many steps a pass, may have."""
        longest = int(self.course.rows.max()), int(self.course.per_pass.max())
        return max(TABLE, _power_of_two(longest[0])), max(TABLE, _power_of_two(longest[1]))

    def _deck(self) -> Deck:
        """The buffers for this kind of phase, made on first use and kept with the template."""
        contexts = [*self.shared.items(), *self.own.items()]
        kept = _decks.setdefault(self.template, OrderedDict())
        key = (
            signature(self.phase),
            self._rectangle(),
            id(self.held.source),
            compiler,
            handwritten.chosen,
            self.template.autocast,
            len(self.order),
            tuple(self.own),
            tuple((context, n, t.shape, t.dtype) for context, params in contexts for n, t in params.items()),
        )
        if key not in kept:
            kept[key] = Deck(self.template, self.phase, self.held, self._tree(), compiler)
        kept.move_to_end(key)
        while len(kept) > KEPT:
            kept.popitem(last=False)
        return kept[key]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


_COURSE = ("rows", "batches", "per_pass", "total")
