"""One line per evaluated round: what the model does on D_r, on D_u and on test data.

    Retain, Forget, Test    accuracy in percent on ∪ D_r^k (training part), on D_u, on the test set
    Validation              mean over the retained clients of the accuracy on their own held-out rows
    loss gap δ(θ)           |L_{D_r}(θ) − L_{D_u}(θ)|
    MIA                     membership inference, D_u against test; 50 means "cannot tell"
    backdoor                share of stamped test images of other classes that are read as the target class

Forgotten classes are taken out of the test set, and forgotten rows out of the validation rows: a model that forgot a
class must not be asked for it. What cannot be measured says why. Rows that were purged are in no column but that of
their own request, and there as a share of many or not at all: no value of a single one leaves this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfed.client.scores import Scores, Way, called, score
from unfed.data import ClientData, Request, Source, TensorSource, triggered
from unfed.errors import UnfedError
from unfed.measures.attacks import Reactions, reactions, try_membership_inference
from unfed.measures.forgotten import Evidence, Losses
from unfed.measures.metrics import loss_gap
from unfed.measures.undo.scene import View
from unfed.model.functional import Template
from unfed.model.params import Params
from unfed.values import Value, not_measured

NOT_HELD_OUT = not_measured("no held-out data")
DELETED = not_measured("its owners have deleted it")
GONE = not_measured("all of it had left before")
PURGED = not_measured("all of it was purged")
NOT_YET = not_measured("the attack is still being computed")
WHOSE = "forget/request"
"""Which of several requests took out each forgotten row, among the scores of single rows."""
PLANTED = not_measured("a backdoor was planted in its rows, so rows of one label are not alike")
FEWEST = 10
"""Rows below which a share of purged rows is not written down, as tables hide small counts."""
Again = dict[str, Value]
"""What left by an earlier request, looked at once more on the model that a later request leaves:

    forget      accuracy on what the request itself took out
    chance      of a class: one in so many classes, more than which a model that never saw it does not reach
    expected    of a client or of samples, what a model that never saw them would reach about, without Retrain:
                Σ_y n_y/n · (accuracy on held-out rows of label y), n_y of its n rows of label y
    mia         membership inference, its rows against test data
    backdoor    how often it works, of a client that planted one; of no other
    rows        how many those shares are of: of five rows each counts 20 points, and three may be hard to read

A request stays forgotten while forget is at most chance, or stands near what is expected. What cannot be measured says
why. Purged rows are measured again while their owners offer them, but only as a share of many rows: a share of a few
tells of single ones.
"""


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one evaluated round, and the per-sample scores behind them."""

    numbers: dict[str, Value]
    samples: dict[str, Tensor]
    earlier: dict[str, Value] = field(default_factory=dict)
    """Accuracy on what each earlier request takes out, by its id: whether it stays forgotten."""
    own: Value | None = None
    """Accuracy on what the last request itself takes out; None where nothing left before, and `forget` says it."""
    attack: Callable[[], Value] | None = None
    """Computes the MIA where that is still to be done: it needs no device, and may run beside the next round."""
    rows: dict[str, int] = field(default_factory=dict)
    """How many rows each accuracy is of; the MIA compares equally many of `forget` and `test`."""

    def complete(self) -> Evaluation:
        """With every number, computed now where it was not."""
        if self.attack is None:
            return self
        return replace(self, numbers=self.numbers | {"mia": self.attack()}, attack=None)


class Scorer(Protocol):
    """Scores models against one scope, wherever its rows lie."""

    forgotten_rows: int

    def __call__(self, params: Params) -> Evaluation:
        """Every column that can be had."""
        ...

    def begun(self, params: Params) -> Evaluation:
        """The same as soon as the device is free again: `complete` gives what may be missing."""
        ...

    def validation(self, params: Params) -> Value:
        """Only the retained clients' mean validation accuracy."""
        ...

    def evidence(self, params: Params) -> Evidence:
        """What a model shows of the last request alone.

        It is read on its rows that were in until now, beside held-out ones.
        """
        ...

    def reactions(self, params: Params) -> Reactions | str:
        """How a model answers on held-out images to triggers of the gate's own, or why that is not known."""
        ...

    def again(self, params: Params, besides: Collection[str] = ()) -> dict[str, Again]:
        """What a model shows of every request but the last and those of these ids, by its id."""
        ...


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What all evaluations of one world have in common."""

    template: Template
    held_out: Source | None
    """The test data, if there is any."""
    seed: int
    """Of the attack's draws."""
    batch: int = 1024
    attack: bool = True
    """Whether membership inference is tried."""
    samples: bool = True
    """Whether the scores of single rows are kept."""
    target_class: int | None = None
    """What a backdoor says, where a client was poisoned."""
    poisoned: str | None = None
    """That client."""
    way: Way = called
    """How logits are computed."""

    def score(self, params: Params, source: Source, rows: Tensor) -> Scores:
        """How a model does on some rows of a source."""
        return score(self.template, params, source, rows, self.batch, self.way)


class HeldOut:
    """The test data as it is asked after some requests, and the attacks that need it.

    Forgotten classes are taken out.
    """

    def __init__(self, yardstick: Yardstick, requests: Sequence[Request]) -> None:
        self._yardstick, source = yardstick, yardstick.held_out
        self._leaving = requests[-1].clients if requests else ()
        gone = [c for request in requests for c in request.classes]
        labels = torch.empty(0, dtype=torch.int64) if source is None else source.labels.cpu()
        self._rows = (~torch.isin(labels, torch.tensor(gone, dtype=labels.dtype))).nonzero().flatten()
        if source is not None and len(self._rows) == 0:
            raise UnfedError(
                "Every class of the test set would be forgotten, so nothing is left to test; ask for less."
            )
        self._stamped: tuple[Tensor, Source] | None = None
        if source is not None and yardstick.target_class is not None:
            rows, stamped = triggered(source, yardstick.target_class)
            kept = torch.isin(rows.cpu(), self._rows)
            self._stamped = rows.cpu()[kept], stamped

    def scores(self, params: Params) -> Scores | None:
        """How a model does on the test rows; None where there are none."""
        stick = self._yardstick
        return None if stick.held_out is None else stick.score(params, stick.held_out, self._rows)

    def membership(self, forget: Scores, test: Scores | None) -> Value:
        """Whether the forgotten rows can be distinguished from the test rows by their losses."""
        if test is None:
            return NOT_HELD_OUT
        if not self._yardstick.attack:
            return not_measured("evaluation.attack is off")
        return try_membership_inference(forget.loss, test.loss, seed=self._yardstick.seed)

    def backdoor(self, params: Params) -> Value:
        """The share of stamped test images that are read as the target class."""
        if self._stamped is None:
            return not_measured("no client was poisoned")
        rows, source = self._stamped
        return self._yardstick.score(params, source, rows).accuracy

    def counts(self) -> dict[str, int]:
        """How many test rows there are, and stamped ones."""
        return {name: len(view.rows) for name, view in self.views().items() if view is not None}

    def views(self) -> dict[str, View | None]:
        """The test rows and the stamped ones; None where there are none."""
        source = self._yardstick.held_out
        return {
            "test": None if source is None else View(source, self._rows),
            "backdoor": None if self._stamped is None else View(self._stamped[1], self._stamped[0]),
        }

    def losses(self, params: Params) -> Losses | str:
        """The losses on the test rows with their labels, or why there are none."""
        source, test = self._yardstick.held_out, self.scores(params)
        if source is None or test is None:
            return NOT_HELD_OUT
        return Losses.of(test.loss, source.labels.cpu()[self._rows], test.correct)

    def stamped(self, params: Params) -> NDArray[np.bool_] | str:
        """For each stamped test image whether the backdoor works, if it is the leaver who planted it."""
        if self._stamped is None:
            return not_measured("no client was poisoned")
        if self._yardstick.poisoned not in self._leaving:
            return not_measured("the client that planted the backdoor is not the one who leaves")
        rows, source = self._stamped
        return self._yardstick.score(params, source, rows).correct.cpu().numpy()

    def everything(self, params: Params) -> tuple[Scores, Tensor] | None:
        """How a model does on all test rows, forgotten classes too, and their labels."""
        source = self._yardstick.held_out
        if source is None:
            return None
        return self._yardstick.score(params, source, torch.arange(len(source.labels))), source.labels.cpu()

    def planted_by(self, request: Request) -> bool:
        """Whether a request takes out the client that planted the backdoor, and that backdoor can be tried."""
        return self._stamped is not None and self._yardstick.poisoned in request.clients

    def reactions(self, params: Params) -> Reactions | str:
        """How a model answers on the test images to triggers of the gate's own, or why that is not known."""
        stick = self._yardstick
        if stick.held_out is None:
            return NOT_HELD_OUT
        return reactions(stick.template, params, stick.held_out, self._rows, stick.seed, stick.batch)


class Scope(Protocol):
    """Knows which rows of the clients a request names."""

    def scoped(self, requests: Sequence[Request], gone: Sequence[Request] = ()) -> Mapping[str, ClientData]:
        """The clients with these requests marked; of those that are `gone` no row is left at all."""
        ...

    def named(self, request: Request) -> Tensor:
        """The training rows that one request names."""
        ...


class Evaluator:
    """Scores models against one scope: Retain, Forget, Test, MIA and the rest.

    With an empty scope D_u is empty, and says so.
    """

    def __init__(self, yardstick: Yardstick, scope: Scope, requests: Sequence[Request]) -> None:
        self._yardstick, self._scope, self._requests = yardstick, scope, tuple(requests)
        holders = list(scope.scoped(requests).values())
        self._source = holders[0].source
        self._retain = torch.cat([c.rows[c.view("retain")] for c in holders])
        self._forget = torch.cat([c.rows[c.view("forget")] for c in holders])
        self.forgotten_rows = len(self._forget)
        deleted, purged = [r for r in requests if r.deleted], [r for r in requests if r.purged]
        if away := [*deleted, *purged]:  # deleted rows cannot be scored, purged ones must not be
            self._forget = self._forget[~torch.isin(self._forget, torch.cat([scope.named(one) for one in away]))]
        self._no_forget = DELETED if deleted else PURGED if purged else not_measured("nothing was forgotten yet")
        own = self._taken_out()
        self._purged = {r.id: rows for r, rows in zip(self._requests, own, strict=True) if r.purged}
        self._whose = self._owners(own)
        order, count = self._whose.argsort(stable=True), torch.bincount(self._whose, minlength=len(own))
        places = order.split(count.tolist())
        self._places = {request.id: at for request, at in zip(requests[:-1], places, strict=False)}
        self._own = places[-1] if len(self._requests) > 1 else None
        # Validation speaks of the clients that stay: one without a retained row has left.
        staying = [c for c in holders if len(c.view("retain"))]
        self._val = torch.cat([c.rows[c.view("val")] for c in staying])
        self._owner = torch.cat([torch.full((len(c.view("val")),), k) for k, c in enumerate(staying)])
        self._held_out = HeldOut(yardstick, requests)

    def evidence(self, params: Params) -> Evidence:
        """What a model shows of the last request alone.

        It is read on its rows that were in until now, beside held-out ones.
        """
        stamped = self._held_out.stamped(params)
        if not self._requests or self._requests[-1].deleted:
            return Evidence(self._no_forget, self._no_forget, self._no_forget, stamped)
        if not len(rows := self._last):
            return Evidence(GONE, GONE, GONE, stamped)
        seen, labels = self._score(params, rows), self._source.labels
        own: Losses | str = Losses.of(seen.loss, labels[rows.to(labels.device)], seen.correct)
        if self._planted(rows):
            own = PLANTED
        return Evidence(own, self._held_out.losses(params), seen.correct.cpu().numpy(), stamped)

    @cached_property
    def _last(self) -> Tensor:
        """The last request's rows that no other names."""
        scoped = self._scope.scoped(self._requests, gone=self._requests[:-1])
        return torch.cat([c.rows[c.view("forget")] for c in scoped.values()])

    def reactions(self, params: Params) -> Reactions | str:
        """How a model answers on the test images to triggers of the gate's own, or why that is not known."""
        return self._held_out.reactions(params)

    def again(self, params: Params, besides: Collection[str] = ()) -> dict[str, Again]:
        """What a model shows of every request but the last and those of these ids, by its id."""
        asked = [request for request in self._requests[:-1] if request.id not in besides]
        if not asked:
            return {}
        held_out, source = self._held_out, self._source
        seen, test, others = self._score(params, self._forget), held_out.scores(params), held_out.everything(params)
        found: dict[str, Again] = {}
        shares = {request.id: share for request, share in zip(self._requests, self._shares(seen), strict=True)}
        for request in asked:
            places, own = self._places[request.id], self._of_purged(params, request)
            accuracy = shares[request.id] if own is None else _share(own)
            rows = self._forget[places.to(self._forget.device)] if own is None else self._purged[request.id]
            usual, mia = accuracy, accuracy
            if not isinstance(accuracy, str):
                labels = source.labels[rows.to(source.labels.device)].cpu()
                usual = PLANTED if self._planted(rows) else expected(labels, others, source.classes)
                mia = held_out.membership(own if isinstance(own, Scores) else seen[places], test)
            beside: Again = {"chance": 100.0 / source.classes} if request.classes else {"expected": usual}
            found[request.id] = {"forget": accuracy, **beside, "mia": mia}
            if not isinstance(accuracy, str):
                found[request.id]["rows"] = len(rows)
            if held_out.planted_by(request):
                found[request.id]["backdoor"] = held_out.backdoor(params)
        return found

    def _shares(self, forget: Scores) -> list[Value]:
        """The accuracy on what each request took out, or why it is not known."""
        weights = forget.correct.cpu().double()
        right = torch.bincount(self._whose, weights=weights, minlength=len(self._requests)).tolist()
        count = torch.bincount(self._whose, minlength=len(self._requests)).tolist()
        return [
            100.0 * (own / rows) if rows else DELETED if request.deleted else PURGED if self._purged else GONE
            for request, own, rows in zip(self._requests, right, count, strict=True)
        ]

    def _of_purged(self, params: Params, request: Request) -> Scores | str | None:
        """How a model does on what a purged request took out, or why that is not said.

        None of any other request. What comes of these scores must speak of all of them together.
        """
        if not request.purged:
            return None
        rows = self._purged[request.id]
        if request.deleted or not len(rows):
            return DELETED if request.deleted else GONE
        return too_few(len(rows)) or self._score(params, rows)

    def _planted(self, rows: Tensor) -> bool:
        """Whether one of these rows carries a trigger."""
        flags = self._source.stamped if isinstance(self._source, TensorSource) else None
        return flags is not None and bool(flags[rows.to(flags.device)].any())

    def _taken_out(self) -> list[Tensor]:
        """The rows that each request takes out itself, which had not left before; none of deleted data."""
        if not self._requests:
            return []
        named = [self._scope.named(request) for request in self._requests]
        sizes = [len(rows) for rows in named]
        rows = torch.cat(named)
        number = torch.arange(len(named), device=rows.device).repeat_interleave(torch.tensor(sizes, device=rows.device))
        _, place = torch.unique(rows, return_inverse=True)
        first = torch.full_like(rows, len(named)).scatter_reduce(0, place, number, "amin")
        own = (first[place] == number).split(sizes)
        return [r[:0] if one.deleted else r[mine] for one, r, mine in zip(self._requests, named, own, strict=True)]

    def _owners(self, taken: Sequence[Tensor]) -> Tensor:
        """Of every forgotten row that can be scored, the number of the request that took it out."""
        whose = torch.zeros(len(self._forget), dtype=torch.int16)
        if len(whose) == 0 or not taken:
            return whose
        rows, number = torch.cat([*taken]), torch.arange(len(taken)).repeat_interleave(torch.tensor([*map(len, taken)]))
        found, order = self._forget.sort()
        at = torch.searchsorted(found, rows).clamp(max=len(found) - 1)
        there = found[at] == rows
        whose[order[at[there]].cpu()] = number[there.cpu()].to(whose.dtype)
        return whose

    def __call__(self, params: Params) -> Evaluation:
        return self.begun(params).complete()

    def begun(self, params: Params) -> Evaluation:
        """Everything but the attack, which the result knows how to compute."""
        seen = self._score(params, torch.cat([self._retain, self._forget, self._val]))
        kept, gone = len(self._retain), len(self._retain) + len(self._forget)
        retain, forget, val = seen[:kept], seen[kept:gone], seen[gone:]
        test = self._held_out.scores(params)
        nothing, some = self._no_forget, len(forget) > 0
        numbers: dict[str, Value] = {
            "retain": retain.accuracy,
            "forget": forget.accuracy if some else nothing,
            "test": NOT_HELD_OUT if test is None else test.accuracy,
            "validation": self._mean_validation(val),
            "retain_loss": retain.mean_loss,
            "forget_loss": forget.mean_loss if some else nothing,
            "test_loss": NOT_HELD_OUT if test is None else test.mean_loss,
            "loss_gap": loss_gap(retain.mean_loss, forget.mean_loss) if some else nothing,
            "mia": NOT_YET if some else nothing,
            "backdoor": self._held_out.backdoor(params),
        }
        again: dict[str, Value] = {}
        shares = self._shares(forget)
        for one, share in zip(self._requests[:-1], shares, strict=False):
            apart = self._of_purged(params, one)
            again[one.id] = share if apart is None else _share(apart)
        own = None if self._own is None else shares[-1]
        attack = partial(self._held_out.membership, forget, test) if some else None
        columns = sample_columns(forget, test) if self._yardstick.samples else {}
        if columns and self._own is not None:  # a purge cuts out the rows of one request
            columns[WHOSE] = self._whose
        rows = {"retain": kept, "forget": len(forget), **self._held_out.counts()}
        rows |= {} if self._own is None else {"own": len(self._own)}
        return Evaluation(numbers, columns, again, own, attack, {name: count for name, count in rows.items() if count})

    def views(self) -> dict[str, View | None]:
        """The rows behind Retain, Forget, Test and backdoor; None where there are none to ask for."""
        return {
            "retain": View(self._source, self._retain),
            "forget": View(self._source, self._forget),
            **self._held_out.views(),
        }

    def validation(self, params: Params) -> Value:
        """Only the retained clients' mean validation accuracy."""
        return self._mean_validation(self._score(params, self._val))

    def _mean_validation(self, val: Scores) -> Value:
        if len(val) == 0:
            return not_measured("no validation rows are held out")
        right = torch.bincount(self._owner, weights=val.correct.double())
        count = torch.bincount(self._owner, minlength=len(right))
        return 100.0 * float((right[count > 0] / count[count > 0]).mean())

    def _score(self, params: Params, rows: Tensor) -> Scores:
        return self._yardstick.score(params, self._source, rows)


def _share(found: Scores | str) -> Value:
    return found if isinstance(found, str) else found.accuracy


def sample_columns(forget: Scores, test: Scores | None) -> dict[str, Tensor]:
    """Per-sample columns, so that another attack needs no new run."""
    kinds = {"loss": torch.float32, "correct": torch.bool, "confidence": torch.float32, "entropy": torch.float32}
    parts = {part: scores for part, scores in (("forget", forget), ("test", test)) if scores is not None}
    return {f"{p}/{c}": getattr(scores, c).to(kind) for p, scores in parts.items() for c, kind in kinds.items()}


def too_few(rows: int | None) -> str:
    """Why nothing is said of a purged request that took out so many rows; empty if something is."""
    several = "1 row was" if rows == 1 else "rows were" if rows is None else f"{rows} rows were"
    return not_measured(f"its {several} purged, {FEWEST} needed") if rows is None or rows < FEWEST else ""


def expected(labels: Tensor, held_out: tuple[Scores, Tensor] | None, classes: int) -> Value:
    """What a model that never saw rows of these labels would read right of them, in percent."""
    if held_out is None:
        return not_measured("no held-out data")
    seen, theirs = held_out
    right = torch.bincount(theirs, weights=seen.correct.cpu().double(), minlength=classes)
    count, own = torch.bincount(theirs, minlength=classes), torch.bincount(labels, minlength=classes)
    if bool((count[own > 0] == 0).any()):
        return not_measured("no held-out row has a label of its rows")
    return 100.0 * float((own * right / count.clamp(min=1)).sum() / own.sum())
