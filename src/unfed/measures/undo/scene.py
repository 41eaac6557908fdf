"""What an attacker and a judge look at: rows, and the numbers of a model on them.

    Retain, Forget, Test      accuracy in percent on D_r, on D_u, on test data
    MIA                       membership inference, D_u against test
    backdoor                  share of stamped test images of other classes that are read as the target class

A scene is a functional model and views of data, nothing else: the same measurements run on a laptop, on CUDA, and over
a population of models. Whatever cannot be measured says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unfed import rng
from unfed.client.scores import Scores, Way, called, mean_gradient, score
from unfed.data import Source
from unfed.measures.attacks import try_membership_inference
from unfed.model.functional import Template
from unfed.model.layers import weights_of
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.values import Value, not_measured

NO_FORGET = not_measured("no forgotten row is there to be scored")
NO_TEST = not_measured("no held-out data")
NO_BACKDOOR = not_measured("no data was poisoned")


@dataclass(frozen=True, eq=False)
class View:
    """Some rows of a source."""

    source: Source
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, count: int, seed: int) -> View:
        """At most `count` of the rows: the first of an order that the seed draws."""
        return View(self.source, self.rows[rng.order(seed, len(self.rows))[:count].to(self.rows.device)])

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(x, y) as evaluation sees them."""
        return self.source.fetch(self.rows, None)


@dataclass(frozen=True, eq=False)
class Scene:
    """A functional model, the data around one request, and where fresh layers come from."""

    template: Template
    retain: View
    forget: View
    test: View | None
    backdoor: View | None
    fresh: Callable[[int], Params]
    """The model's own initialisation under a seed."""
    seed: int = 0
    """Of the attacker's draws and of the membership attack."""
    batch: int = 1024
    stack: bool = False
    """Whether fits of a grid go as one stack: where the batched engine takes the network, it can."""
    way: Way = called
    """How the logits of a look are computed: as the run's own evaluation computes them."""
    classes: tuple[int, ...] = ()
    """The classes that were asked to leave."""

    def numbers(self, params: Params) -> dict[str, Any]:
        """Retain, Forget, Test, MIA and backdoor of a model, and of how many rows Forget and Test are."""
        forget, test = self._scores(params, self.forget), self._scores(params, self.test)
        mia: Value = NO_TEST if test is None else NO_FORGET
        if forget is not None and len(forget) and test is not None:
            mia = try_membership_inference(forget.loss, test.loss, seed=self.seed)
        rows = {name: len(seen) for name, seen in (("forget", forget), ("test", test)) if seen is not None}
        retain = self._scored(params, self.retain).accuracy
        return {"retain": retain, **self.quick(params, forget, test), "mia": mia, "rows": rows}

    def forgotten(self, params: Params) -> Value:
        """Forget alone."""
        seen = self._scores(params, self.forget)
        return seen.accuracy if seen is not None and len(seen) else NO_FORGET

    def quick(self, params: Params, forget: Scores | None = None, test: Scores | None = None) -> dict[str, Value]:
        """Forget, Test and backdoor alone: what a grid of attacks is judged by."""
        forget = forget or self._scores(params, self.forget)
        test = test or self._scores(params, self.test)
        stamped = self._scores(params, self.backdoor)
        return {
            "forget": forget.accuracy if forget is not None and len(forget) else NO_FORGET,
            "test": NO_TEST if test is None else test.accuracy,
            "backdoor": NO_BACKDOOR if stamped is None else stamped.accuracy,
        }

    def logits(self, params: Params, view: View) -> tuple[Tensor, Tensor]:
        """(logits, labels) of a view's rows, on the CPU in double."""
        return self._rows(params, view, self.way)

    def features(self, params: Params, view: View) -> tuple[Tensor, Tensor]:
        """(what enters the head, labels) of a view's rows, the same way."""
        return self._rows(params, view, lambda net, x: net.features(x).flatten(1))

    def _rows(self, params: Params, view: View, way: Way) -> tuple[Tensor, Tensor]:
        net, found = self.template.bind(params), []
        with torch.no_grad():
            for rows in torch.split(view.rows, self.batch):
                x, y = view.source.fetch(rows, None)
                found.append((way(net, x).double().cpu(), y.cpu()))
        empty = torch.empty(0, view.source.classes, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        values, labels = zip(*found, strict=True) if found else ((part,) for part in empty)
        return torch.cat(tuple(values)), torch.cat(tuple(labels))

    def read_as(self, params: Params, view: View, target: int) -> float:
        """The share of a view's rows that are read as one class, in percent."""
        return 100.0 * float((self._scored(params, view).predicted == target).double().mean())

    def retain_loss(self, params: Params) -> float:
        """Mean loss on D_r."""
        return self._scored(params, self.retain).mean_loss

    def hidden(self) -> tuple[str, ...]:
        """The convolution and dense weights in front of the head, from the input on."""
        head = head_of(self.template.module)
        return tuple(n for n in weights_of(self.template.module) if n != head and not n.startswith(f"{head}."))

    def gradient(self, params: Params, view: View) -> Params:
        """∇ of the mean loss on a view, in eval mode."""
        return mean_gradient(self.template, params, view.source, view.rows, self.batch)

    def _scores(self, params: Params, view: View | None) -> Scores | None:
        return None if view is None else self._scored(params, view)

    def _scored(self, params: Params, view: View) -> Scores:
        return score(self.template, params, view.source, view.rows, self.batch, self.way)
