"""What can be measured where the data is elsewhere.

    Test, backdoor            at the server, if it holds a test set
    Retain, Validation        counted by the clients that stay, summed here
    Forget                    counted by its owners, while they are there and allow it
    MIA                       only where the owners also give the losses of single rows

The columns and numbers are those of a simulation; what could not be measured says why. A request is measured by its own
owners, so an earlier leaver that does not allow it hinders no other. Clients are not asked for single rows of a purged
request. A client that stays but did not answer is named in the column `unheard`: the sums are over the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unfed.client.plan import Measure
from unfed.client.scores import Scores
from unfed.data import Request
from unfed.data.scope import View
from unfed.measures.attacks import Reactions
from unfed.measures.evaluator import PURGED, Again, Evaluation, HeldOut, Yardstick, sample_columns, too_few
from unfed.measures.forgotten import Evidence
from unfed.measures.metrics import loss_gap
from unfed.model.params import Params, digests, fingerprint
from unfed.remote.engine import Remote
from unfed.remote.messages import Failure, own_part
from unfed.remote.nodes import Nodes, ScopedClients
from unfed.values import Value, not_measured

NO_TEST = not_measured("the server holds no test data")
DELETED = not_measured("data deleted")
TOGETHER = not_measured("its owners count the rows of all requests together")
NO_LABELS = not_measured("the clients give no labels of single rows")
NO_SINGLE = not_measured("single rows are not asked for once their request is served")
NO_SCORES = Scores(*(torch.empty(0) for _ in range(5)))
Sums = Mapping[str, Tensor]
Heard = Mapping[str, Mapping[View, Sums | Failure]]
"""Client -> view -> its sums."""


class Memory:
    """What clients counted for the last measured model, by client and the requests about it."""

    def __init__(self) -> None:
        self._model = ""
        self._told: dict[tuple[str, str], Mapping[View, Sums]] = {}

    def of(self, params: Params) -> dict[tuple[str, str], Mapping[View, Sums]]:
        """The answers for this model; those for any other are let go."""
        model = fingerprint(digests(params))
        if model != self._model:
            self._model, self._told = model, {}
        return self._told


class RemoteEvaluator:
    """Scores models by asking those who hold the rows."""

    def __init__(
        self, yardstick: Yardstick, nodes: Nodes, roster: ScopedClients, engine: Remote, memory: Memory
    ) -> None:
        self._yardstick, self._nodes, self._roster = yardstick, nodes, roster
        self._engine, self._memory, self._requests = engine, memory, roster.requests
        self._staying = [name for name, c in roster.items() if len(c.view("retain"))]
        self._owners = [name for name, c in roster.items() if len(c.view("forget"))]
        self.forgotten_rows = sum(len(roster[name].view("forget")) for name in self._owners)
        self._silent = {name: why for name in self._owners if (why := self._objection(name))}
        """Owners who are not asked, and why."""
        self._counting = [name for name in self._owners if name not in self._silent]
        self._purged = [name for name in self._counting if self._all_purged(name)]
        """Owners all of whose rows were purged: they are counted for their own request alone."""
        self._no_forget = self._why_not(self._requests)
        if not self._no_forget and len(self._purged) == len(self._counting):
            self._no_forget = PURGED
        self._held_out = HeldOut(yardstick, self._requests)

    def _why_not(self, requests: Sequence[Request]) -> str:
        """Why the last request cannot be measured; empty if it can."""
        if not requests:
            return not_measured("nothing was forgotten yet")
        if requests[-1].deleted or any(request.deleted and not request.clients for request in requests):
            return DELETED
        return self._why_not_alone(requests[-1])

    def _why_not_alone(self, request: Request) -> str:
        """Why a request's own owners do not count its rows; empty if they do."""
        own = self._own(request)
        if request.deleted or not own:
            return DELETED
        return next((self._silent[name] for name in own if name in self._silent), "")

    def _own(self, request: Request) -> list[str]:
        """Whose rows a request takes out; of classes, all who did not leave as a whole."""
        if request.clients:
            return [name for name in self._owners if name in request.clients]
        left = {name for other in self._requests for name in other.clients}
        named = {name for name, _ in request.samples}
        return [name for name in self._owners if name not in left and (not named or name in named)]

    def _objection(self, name: str) -> str:
        """Why an owner is not even asked; empty if it is."""
        if self._nodes.directory.node(name) is None:
            return not_measured(f"client {name}: {self._nodes.directory.why_not(name)}")
        return "" if self._nodes.allows(name, "forget") else not_measured(f"client {name} does not allow it")

    def _all_purged(self, name: str) -> bool:
        """Whether no row is left of an owner's forgotten ones but those that were purged."""
        own = own_part(self._requests, name)
        return all(one.purged for one in own) or any(one.purged and one.clients for one in own)

    def _alone(self, names: Sequence[str]) -> bool:
        """Whether no owner among these counts the rows of two requests together."""
        return all(len(own_part(self._requests, name)) == 1 for name in names)

    def __call__(self, params: Params) -> Evaluation:
        """All columns that can be had."""
        views: dict[str, list[View]] = {name: ["retain", "val"] for name in self._staying}
        for name in self._counting:
            views.setdefault(name, []).append("forget")
        heard = self._survey(params, views)
        retain, forget = self._total(heard, "retain", self._staying), self._forgotten(heard)
        test = self._held_out.scores(params)
        single = self._forget_scores(params, test)
        numbers: dict[str, Value] = {
            "retain": retain if isinstance(retain, str) else retain.accuracy,
            "forget": forget if isinstance(forget, str) else forget.accuracy,
            "test": NO_TEST if test is None else test.accuracy,
            "validation": self._mean(heard),
            "retain_loss": retain if isinstance(retain, str) else retain.mean_loss,
            "forget_loss": forget if isinstance(forget, str) else forget.mean_loss,
            "test_loss": NO_TEST if test is None else test.mean_loss,
            "loss_gap": _gap(retain, forget),
            "mia": single if isinstance(single, str) else self._held_out.membership(single, test),
            "backdoor": self._held_out.backdoor(params) if test is not None else NO_TEST,
        }
        silent = {n: v["retain"] for n, v in heard.items() if "retain" in v and isinstance(v["retain"], Failure)}
        if silent:
            numbers["unheard"] = "; ".join(f"client {n}: {failure.reason}" for n, failure in silent.items())
        known = NO_SCORES if isinstance(single, str) else single
        earlier = {request.id: _accuracy(self._counted(request, heard)) for request in self._requests[:-1]}
        alone = self._counted(self._requests[-1], heard) if earlier else None
        tallies = {"retain": retain, "forget": forget, "own": alone}
        rows = {name: int(one.count) for name, one in tallies.items() if isinstance(one, Tally) and one.count}
        return Evaluation(
            numbers,
            sample_columns(known, test) if self._yardstick.samples else {},
            earlier,
            None if alone is None else _accuracy(alone),
            rows=rows | self._held_out.counts(),
        )

    def begun(self, params: Params) -> Evaluation:
        """All of it: beside the messages the attack is nothing."""
        return self(params)

    def validation(self, params: Params) -> Value:
        """Only the retained clients' mean validation accuracy."""
        return self._mean(self._survey(params, {name: ["val"] for name in self._staying}))

    def evidence(self, params: Params) -> Evidence:
        """How many rows of the last request are read right, if its owners count them alone.

        They give no labels of single rows, so losses cannot be compared within labels.
        """
        found: Tally | str = self._no_forget
        if not found:
            own = self._own(self._requests[-1])
            asked: dict[str, list[View]] = {name: ["forget"] for name in own}
            found = self._whole(self._survey(params, asked), own) if self._alone(own) else TOGETHER
        right = found if isinstance(found, str) else np.arange(int(found.count)) < int(found.correct)
        single = self._no_forget or NO_LABELS
        stamped = NO_TEST if self._yardstick.held_out is None else self._held_out.stamped(params)
        return Evidence(single, single, right, stamped, counted=True)

    def reactions(self, params: Params) -> Reactions | str:
        """How a model answers on the server's test images to triggers of the gate's own."""
        return NO_TEST if self._yardstick.held_out is None else self._held_out.reactions(params)

    def again(self, params: Params, besides: Collection[str] = ()) -> dict[str, Again]:
        """What can be said of every request but the last and those of these ids: owners keep single rows."""
        earlier = [request for request in self._requests[:-1] if request.id not in besides]
        if not earlier:
            return {}
        heard = self._survey(params, {name: ["forget"] for name in self._counting})
        found: dict[str, Again] = {}
        classes = max(client.source.classes for client in self._roster.values())
        for request in earlier:
            beside: Again = {"chance": 100.0 / classes} if request.classes else {"expected": NO_LABELS}
            counted = self._counted(request, heard)
            found[request.id] = {"forget": _accuracy(counted), **beside, "mia": NO_SINGLE}
            if isinstance(counted, Tally):
                found[request.id]["rows"] = int(counted.count)
            if self._held_out.planted_by(request):
                found[request.id]["backdoor"] = self._held_out.backdoor(params)
        return found

    # --- asking -------------------------------------------------------------------------------------------------------

    def _survey(self, params: Params, views: Mapping[str, list[View]]) -> Heard:
        """What clients count for a model; those that answered for it on the same rows are not asked again.

        A model is often measured more than once: when its training ends, before a request, as what recovery must reach.
        """
        known = self._memory.of(params)
        places = {name: json.dumps([r.to_json() for r in own_part(self._requests, name)]) for name in views}
        asked: dict[str, list[View]] = {}
        for name in self._roster:
            said = known.get((name, places[name]), {}) if name in views else {}
            missing = [view for view in views.get(name, ()) if view not in said]
            if missing:
                asked[name] = missing
        measures = {n: [Measure("correct", v, self._yardstick.batch) for v in missing] for n, missing in asked.items()}
        heard: dict[str, dict[View, Sums | Failure]] = {n: {**known.get((n, places[n]), {})} for n in views}
        for name, found in self._engine.survey(measures, params) if measures else ():
            heard[name] |= zip(asked[name], found, strict=True)
            counted = {view: sums for view, sums in heard[name].items() if not isinstance(sums, Failure)}
            known[name, places[name]] = counted
        return heard

    def _forgotten(self, heard: Heard) -> Tally | str:
        """D_u, as far as it can be asked for, if the last request is in it."""
        return self._no_forget or self._whole(heard, [name for name in self._counting if name not in self._purged])

    def _whole(self, heard: Heard, names: Sequence[str]) -> Tally | str:
        """The rows of some owners, measured whole or not at all."""
        for name in names:
            found = heard[name]["forget"]
            if isinstance(found, Failure):
                return not_measured(f"client {name}: {found.reason}")
        return self._total(heard, "forget", names)

    def _counted(self, request: Request, heard: Heard) -> Tally | str:
        """What was counted over one request's rows, if its owners counted no others with them."""
        whole = request.clients or self._alone(self._owners)  # all that a client holds is what its request takes out
        why = self._why_not_alone(request) or ("" if whole else TOGETHER)
        found = why or self._whole(heard, self._own(request))
        if isinstance(found, str):
            return found
        return (too_few(int(found.count)) if request.purged else "") or found

    def _forget_scores(self, params: Params, test: Scores | None) -> Scores | str:
        """One score per row of D_u, if there is a test set to compare them with and all owners give them."""
        if self._no_forget or test is None:
            return self._no_forget or NO_TEST
        asked = [name for name in self._counting if name not in self._purged]
        for name in asked:
            if not self._nodes.allows(name, "samples"):
                return not_measured(f"client {name} does not give losses of single rows")
            if any(one.purged for one in own_part(self._requests, name)):
                return not_measured(f"client {name} also holds rows that were purged")
        parts = []
        for name, found in self._engine.scores("forget", params, asked):
            if isinstance(found, Failure):
                return not_measured(f"client {name}: {found.reason}")
            parts.append(found)
        columns = Scores.__dataclass_fields__
        return Scores(*(torch.cat([getattr(part, column) for part in parts]) for column in columns))

    # --- summing ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _total(heard: Heard, view: View, names: Sequence[str]) -> Tally | str:
        sums = [heard[name][view] for name in names]
        known = [found for found in sums if not isinstance(found, Failure)]
        count, correct, loss = (sum(float(found[key]) for found in known) for key in ("count", "correct", "loss"))
        if count:
            return Tally(count, correct, loss)
        why = [f"client {n}: {s.reason}" for n, s in zip(names, sums, strict=True) if isinstance(s, Failure)]
        return not_measured(why[0] if why else "no client holds such rows")

    def _mean(self, heard: Heard) -> Value:
        shares = []
        for name in self._staying:
            found = heard[name]["val"]
            if not isinstance(found, Failure) and float(found["count"]):
                shares.append(float(found["correct"]) / float(found["count"]))
        return 100.0 * sum(shares) / len(shares) if shares else not_measured("no client answered with validation rows")


@dataclass(frozen=True)
class Tally:
    """Counts over the rows of several clients."""

    count: float
    correct: float
    loss: float

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100.0 * self.correct / self.count

    @property
    def mean_loss(self) -> float:
        return self.loss / self.count


def _accuracy(found: Tally | str) -> Value:
    return found if isinstance(found, str) else found.accuracy


def _gap(retain: Tally | str, forget: Tally | str) -> Value:
    if isinstance(retain, str) or isinstance(forget, str):
        return forget if isinstance(forget, str) else str(retain)
    return loss_gap(retain.mean_loss, forget.mean_loss)
