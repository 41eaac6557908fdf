"""One line per evaluated round: what the model does on D_r, on D_u and on test data.

    Retain, Forget, Test    accuracy in percent on ∪ D_r^k (training part), on D_u, on the test set
    Validation              mean over the retained clients of the accuracy on their own held-out rows
    loss gap δ(θ)           |L_{D_r}(θ) − L_{D_u}(θ)|
    MIA                     membership inference, D_u against test; 50 means "cannot tell"
    backdoor                share of stamped test images of other classes that are read as the target class

Forgotten classes are taken out of the test set, and forgotten rows out of the validation rows: a model that forgot a
class must not be asked for it. What cannot be measured says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfed.client.measuring import Scores, score
from unfed.data import ClientData, Request, triggered
from unfed.errors import UnfedError
from unfed.measures.attacks import try_membership_inference
from unfed.measures.forgotten import Evidence, Losses
from unfed.measures.metrics import loss_gap
from unfed.model.params import Params
from unfed.values import Value, not_measured

if TYPE_CHECKING:
    from unfed.runs.world import World

NOT_HELD_OUT = not_measured("no held-out data")


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one evaluated round, and the per-sample scores behind them."""

    numbers: dict[str, Value]
    samples: dict[str, Tensor]
    earlier: dict[str, Value] = field(default_factory=dict)
    """Accuracy on what each earlier request takes out, by its id: whether it stays forgotten."""


class Evaluator:
    """Scores models against one scope: Retain, Forget, Test, MIA and the rest.

    With an empty scope D_u is empty, and says so.
    """

    def __init__(self, world: World, clients: Mapping[str, ClientData], requests: Sequence[Request]) -> None:
        self._world, self._config = world, world.config.evaluation
        holders = list(clients.values())
        self._source = holders[0].source
        self._retain = torch.cat([c.rows[c.view("retain")] for c in holders])
        self._forget = torch.cat([c.rows[c.view("forget")] for c in holders])
        self.forgotten_rows = len(self._forget)
        deleted = [request for request in requests if request.deleted]
        if deleted:  # what its owners have deleted, nobody can score
            marked = world.scoped(deleted).values()
            gone_rows = torch.cat([c.rows[c.view("forget")] for c in marked])
            self._forget = self._forget[~torch.isin(self._forget, gone_rows)]
        self._no_forget = not_measured("its owners have deleted it" if deleted else "nothing was forgotten yet")
        self._places = {request.id: self._places_of(request) for request in requests[:-1]}
        # Validation speaks of the clients that stay: one without a retained row has left.
        staying = [c for c in holders if len(c.view("retain"))]
        self._val = torch.cat([c.rows[c.view("val")] for c in staying])
        self._owner = torch.cat([torch.full((len(c.view("val")),), k) for k, c in enumerate(staying)])
        gone = [c for request in requests for c in request.classes]
        self._held_out = world.held_out
        labels = torch.empty(0, dtype=torch.int64) if self._held_out is None else self._held_out.labels.cpu()
        self._test = (~torch.isin(labels, torch.tensor(gone, dtype=labels.dtype))).nonzero().flatten()
        if self._held_out is not None and len(self._test) == 0:
            raise UnfedError(
                "Every class of the test set would be forgotten, so nothing is left to test; ask for less."
            )
        self._attack = self._triggered()
        self._requests = tuple(requests)

    def evidence(self, params: Params) -> Evidence:
        """What a model shows of the last request alone: its rows that were in until now, beside held-out ones."""
        world, batch = self._world, self._config.batch
        if not self._requests or self._requests[-1].deleted:
            return Evidence(self._no_forget, self._no_forget, self._no_forget, self._stamped(params))
        scoped = world.scoped(self._requests, gone=self._requests[:-1])
        rows = torch.cat([c.rows[c.view("forget")] for c in scoped.values()])
        seen, labels = score(world.template, params, self._source, rows, batch), self._source.labels
        held_out: Losses | str = NOT_HELD_OUT
        if self._held_out is not None:
            test = score(world.template, params, self._held_out, self._test, batch)
            held_out = Losses.of(test.loss, self._held_out.labels.cpu()[self._test])
        own = labels[rows.to(labels.device)]
        return Evidence(Losses.of(seen.loss, own), held_out, seen.correct.cpu().numpy(), self._stamped(params))

    def _stamped(self, params: Params) -> NDArray[np.bool_] | str:
        """For each stamped test image whether the backdoor works, if it is the leaver who planted it."""
        poison = self._world.config.poison
        if self._attack is None or poison is None:
            return not_measured("no client was poisoned")
        if not self._requests or poison.client not in self._requests[-1].clients:
            return not_measured("the client that planted the backdoor is not the one who leaves")
        rows, source = self._attack
        return score(self._world.template, params, source, rows, self._config.batch).correct.cpu().numpy()

    def _places_of(self, request: Request) -> Tensor:
        """Where the rows of one request stand among those that are scored; empty where it cannot be asked for."""
        own = torch.cat([c.rows[c.view("forget")] for c in self._world.scoped([request]).values()])
        return torch.isin(self._forget, own).nonzero().flatten().cpu() if not request.deleted else own[:0]

    def _triggered(self) -> tuple[Tensor, Any] | None:
        poison = self._world.config.poison
        if poison is None:
            return None
        rows, source = triggered(self._world.dataset.test, poison.target_class)
        kept = torch.isin(rows.cpu(), self._test)
        return rows.cpu()[kept], source

    def __call__(self, params: Params) -> Evaluation:
        world, batch = self._world, self._config.batch
        rows = torch.cat([self._retain, self._forget, self._val])
        seen = score(world.template, params, self._source, rows, batch)
        sizes = [len(self._retain), len(self._forget), len(self._val)]
        retain, forget, val = (seen[place] for place in torch.split_with_sizes(torch.arange(len(rows)), sizes))
        test = None
        if self._held_out is not None:
            test = score(world.template, params, self._held_out, self._test, batch)
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
            "mia": self._membership(forget, test) if some else nothing,
            "backdoor": self._backdoor(params),
        }
        again: dict[str, Value] = {
            name: forget[places].accuracy if len(places) else not_measured("its owners have deleted it")
            for name, places in self._places.items()
        }
        return Evaluation(numbers, sample_columns(forget, test) if self._config.samples else {}, again)

    def validation(self, params: Params) -> Value:
        """Only the retained clients' mean validation accuracy."""
        return self._mean_validation(score(self._world.template, params, self._source, self._val, self._config.batch))

    def _mean_validation(self, val: Scores) -> Value:
        if len(val) == 0:
            return not_measured("no client holds validation rows")
        right = torch.bincount(self._owner, weights=val.correct.double())
        count = torch.bincount(self._owner, minlength=len(right))
        return 100.0 * float((right[count > 0] / count[count > 0]).mean())

    def _membership(self, forget: Scores, test: Scores | None) -> Value:
        if test is None:
            return NOT_HELD_OUT
        if not self._config.attack:
            return not_measured("evaluation.attack is off")
        return try_membership_inference(forget.loss, test.loss, seed=self._world.seeds.evaluation)

    def _backdoor(self, params: Params) -> Value:
        if self._attack is None:
            return not_measured("no client was poisoned")
        rows, source = self._attack
        return score(self._world.template, params, source, rows, self._config.batch).accuracy


def sample_columns(forget: Scores, test: Scores | None) -> dict[str, Tensor]:
    """Per-sample columns, so that another attack needs no new run."""
    return {
        f"{part}/{column}": getattr(scores, column).to(kind)
        for part, scores in (("forget", forget), ("test", test))
        if scores is not None
        for column, kind in (
            ("loss", torch.float32),
            ("correct", torch.bool),
            ("confidence", torch.float32),
            ("entropy", torch.float32),
        )
    }
