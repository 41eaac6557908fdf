"""Forget a client, or a class, in a Flower app you already have.

    from unfed.flower import Unlearn, negate, node_with
    strategy = Unlearn(
        lambda: FedAvg(min_available_nodes=3),        your strategy, built again: a used one still carries the leaver
        perturb=negate(Net()),                        NoT, once, on the arrays that training left
        exclude=node_with(client="north"),            who leaves, or of_class(3): see leaving.py
        ledger="/a/whole/path",                       a run folder; the next request on this model names it too
    )
    result = strategy.start(grid, trained, num_rounds=5)

The strategy sees a `SubsetGrid` without the leaver. Of a reply only the arrays and the weight that the strategy uses
are judged. A reply is refused and named if it has other tensors, NaN, a weight that is not positive or out of all
proportion, or an update longer than the model and 10 times the usual. A round without a usable reply changes nothing.
The last good arrays are kept: in `strategy.arrays`, and in the ledger, from which the same start goes on.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import Result, Strategy

from unfed import records
from unfed.engines.base import Refusal
from unfed.errors import Refused, UnfedError, listed
from unfed.federation.robust import Robust
from unfed.flower.evaluation import Evaluations
from unfed.flower.judging import Judge, check_forgets, minimum, setting
from unfed.flower.leaving import Exclude, gone_before, leavers_of
from unfed.flower.subset import SubsetGrid
from unfed.flower.transport import SPEECH
from unfed.flower.wire import from_arrays, to_arrays, whole
from unfed.model.params import Fixed, Params, digests, fingerprint
from unfed.remote.ledger import AppLedger, Before, Goals, plain, requests_of
from unfed.remote.messages import said
from unfed.remote.negating import Perturb, applied, method_of
from unfed.remote.probes import Probes
from unfed.requests.reversible import warn_of_way_back

log = logging.getLogger("flwr")


class Enough(Exception):
    """Whatever the rounds were to go on for has come."""


class Unlearn(Strategy):
    """A strategy that starts by forgetting: perturb once, then your own strategy without the leaver.

    The same start goes on from the last good round in the ledger; a request that is fulfilled there is not done again.
    To go on from a round that you saved yourself after the perturbation, pass `perturb=None`: negating twice is not
    negating. What your strategy carries from round to round (a momentum) starts again.
    """

    def __init__(
        self,
        strategy_factory: Callable[[], Strategy],
        perturb: Perturb | None,
        exclude: Exclude,
        ledger: str | Path | None,
        *,
        gone: bool = False,
        wait: float = 30.0,
        recover: str | None = None,
        within: float = 0.0,
        forgotten: str | None = None,
        undo: bool | Probes = False,
        refuse_above: float = Robust.refuse_above,
    ) -> None:
        """Say what to forget, and where it is written down.

        Args:
            strategy_factory: Makes your strategy, a new one on every call.
            perturb: What is done once to the arrays, such as `negate(Net())`; None: nothing.
            exclude: Who leaves, or which classes: `node_with(…)`, `of_class(…)`, node ids, a list of these.
            ledger: A run folder, the same for every request on a model. Who left by an earlier one stays out. None:
                nothing is written down, and nothing known of earlier requests.
            gone: The leaver need not be connected.
            wait: Seconds until too few nodes are an error.
            recover: A metric of the app's, better when higher. The rounds end once it is `within` reach of what it was.
            within: See `recover`.
            forgotten: A metric that the leaver measures with its leave. The rounds end once it is at most what those
                who stay measure of the same model.
            undo: Evaluate the last model once more with the perturbation taken back. `Probes(…)` tries every other way.
            refuse_above: Refuse an update longer than the model and so many times the usual; 0: never.
        """
        if not records.fits(records.Number, refuse_above) or refuse_above < 0:
            raise UnfedError(f"refuse_above is a number from 0 on, not {refuse_above!r}; leave it out for the default.")
        if ledger is None and (recover or forgotten or undo):
            raise UnfedError("recover, forgotten and undo are written into a ledger; name its folder with ledger=….")
        self._refuse_above = float(refuse_above)
        self._goals, self._undo = Goals(recover, within, forgotten), undo
        self._factory, self._perturb, self._exclude = strategy_factory, perturb, exclude
        self._gone, self._wait = gone, wait
        self._ledger = None if ledger is None else AppLedger(ledger, SPEECH)
        self._inner: Strategy | None = None
        self._judge: Judge | None = None
        self._subset: SubsetGrid | None = None
        self._evaluations: Evaluations | None = None
        self._done, self._before = 0, 0
        self._asked: set[int] = set()
        self._heavy: list[str] = []
        self._not_kept: list[str] = []
        self._turns = False
        self._mark: str | None = None
        """The fingerprint of `arrays`, once it is needed."""
        self.refusals: list[Refusal] = []
        """Updates that were not aggregated, with the node's id for a name."""
        self.arrays: ArrayRecord | None = None
        """The arrays of the last round that went well; before the first, the perturbed ones."""

    @property
    def inner(self) -> Strategy:
        if self._inner is None:
            raise UnfedError("The strategy is built by start(); call that first.")
        return self._inner

    @property
    def subset(self) -> SubsetGrid:
        """The grid without those who left."""
        assert self._subset is not None, "it is made by start()"
        return self._subset

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **kwargs: Any) -> Result:
        """As your strategy's own start, with the trained model's arrays."""
        if num_rounds < 1:
            why = "nothing is forgotten before those who stay have trained again"
            raise UnfedError(f"num_rounds = {num_rounds}, but {why}; take 1 or more.")
        inner, models, ledger = self._built(), [Fixed(whole(initial_arrays))], self._ledger
        if isinstance(self._undo, Probes):
            self._undo.check(models[0])
        perturbed = self._perturbed(initial_arrays)
        models.append(Fixed(from_arrays(perturbed)))
        changed = _differing(*models)
        sizes, names = {name: math.prod(array.shape) for name, array in perturbed.items()}, listed(changed, "and")
        counts = sum(sizes[name] for name in changed), sum(sizes.values())
        log.info("unfed: the perturbation changes %s: %d of %d numbers", names or "nothing", *counts)
        self._turns = bool(changed) and not _differing(models[0], from_arrays(self._perturbed(perturbed)))
        before = Before()
        if ledger is not None:
            log.info("unfed: the ledger is %s", ledger.path.absolute())  # a relative one lies where the server app runs
            ledger.turned(models[0], changed if self._turns else ())
            before = ledger.left([name for one in leavers_of(self._exclude) for name in one.names])
        elif self._turns:
            log.info("unfed: without a ledger this is taken as the first request on these arrays")
        if self._turns:
            warn_of_way_back("This perturbation", "a training without the leaver")
        earlier = None
        if ledger is not None and (before.clients or before.classes):
            earlier = gone_before(before.clients, before.classes, f"the ledger {ledger.path}")
        self._subset = SubsetGrid(grid, self._exclude, self._gone, minimum(inner), self._wait, earlier)
        self._subset.settle()
        self._inner, self.refusals, self._not_kept, self._mark = inner, [], [], None
        self._judge, self._done, self._before = Judge(inner, initial_arrays, self._refuse_above), 0, 0
        self._subset.classes.weight = setting(inner, "weighted_by_key")
        self.arrays = perturbed
        given = dict(zip(("timeout", "train_config", "evaluate_config", "evaluate_fn"), args, strict=False)) | kwargs
        if ledger is None:
            result = self._rounds(num_rounds, given)
            self._check_classes()
            return result
        taken = [one for one in self._subset.leavers if not one.needed and one is not earlier]
        deny = Before(
            frozenset(name for one in taken for name in one.names),
            tuple(sorted({number for one in taken for number in one.classes})),
        )
        with ledger.opened(type(inner).__name__, models[0], deny):
            turns = changed if self._turns else []
            return self._written(ledger, initial_arrays, models, turns, num_rounds, given)

    def _check_classes(self) -> None:
        """Refuse to call a class forgotten that no client had."""
        if not self._gone:
            self.subset.classes.check_seen(self._done)

    def _rounds(self, rounds: int, given: dict[str, Any]) -> Result:
        """The rounds that are left, numbered after those that were done before."""
        assert self.arrays is not None
        before, central = self._before, given.get("evaluate_fn")
        if not rounds:
            return Result(arrays=self.arrays)
        if central is not None:
            given = {**given, "evaluate_fn": lambda server_round, arrays: central(server_round + before, arrays)}
        result = super().start(self.subset, self.arrays, rounds, **given)
        for what in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, what, {number + before: found for number, found in getattr(result, what).items()})
        if self._done == before:
            refused = [f"node {r.client}: {r.reason}" for r in self.refusals]
            why = "; ".join([*self._not_kept, *refused][:3]) or "no client answered"
            raise Refused(
                f"None of {rounds} rounds had a usable update ({why}), so nothing was learned; mend these clients and"
                " start again."
            )
        return result

    # --- with a ledger ----------------------------------------------------------------------------------------------

    def _written(
        self,
        ledger: AppLedger,
        initial: ArrayRecord,
        models: list[Fixed],
        turns: list[str],
        num_rounds: int,
        given: dict[str, Any],
    ) -> Result:
        """The same rounds, with everything written down.

        `models` are the one before and the perturbed one; they are not kept in memory.
        """
        subset, central = self.subset, given.get("evaluate_fn")
        leaving = subset.leaving()
        asked = requests_of(sorted(leaving), subset.classes.now, self._gone)
        if not asked:
            raise UnfedError("exclude names only who left before, so there is no request; name who leaves now.")
        out = subset.excluded  # once: it looks at every node
        staying = subset.nodes.known_as(node for node in subset.nodes.connected if node not in out)
        method = method_of(self._perturb)
        self._evaluations = evaluations = Evaluations(self.inner, subset, given, central)
        was = None if ledger.begun(asked[0].id, method) else evaluations.before(initial)
        if was is not None:
            self._goals.check(was, bool(leaving))  # before anything is filed
        saved = ledger.begin(asked, method, models, turns, {**staying, **leaving}, num_rounds)
        models.clear()
        if saved is not None:
            self.arrays = ArrayRecord(OrderedDict((name, saved[0][name]) for name in initial))
            self._done = self._before = saved[1]
            subset.classes.seen |= {*ledger.turn.about["seen"]}
        assert self.arrays is not None
        if ledger.turn.settled:
            log.info("unfed: request %s is fulfilled in %s; nothing is done again", asked[0].id, ledger.path)
            return Result(arrays=self.arrays)
        if saved is None:
            ledger.was(evaluations.before(initial) if was is None else was)
        self._goals.check(ledger.turn.before, bool(leaving))
        self._catch_up(ledger, evaluations, central)

        def told(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics: MetricRecord | None = central(server_round, arrays) if central else None
            if server_round > self._before:
                ledger.told(server=metrics)
            return metrics

        rounds = max(0, num_rounds - self._before)
        try:
            result = self._rounds(rounds, {**given, "evaluate_fn": told} if central else given)
        except Enough:
            log.info("unfed: what the rounds were to go on for has come; they end")
            result = Result(self.arrays, *(ledger.metrics[what] for what in ("train", "evaluate", "server")))
        try:
            self._check_classes()
        except Refused as error:
            ledger.refuse(str(error))
            raise
        self._close(ledger, initial, evaluations)
        return result

    def _catch_up(self, ledger: AppLedger, evaluations: Evaluations, central: Any) -> None:
        """Have the last kept round evaluated, where an earlier start ended before that was done."""
        assert self.arrays is not None
        for who in ledger.unheard(self._done):
            if who == "evaluate":
                messages = self.configure_evaluate(0, self.arrays, evaluations.config, self.subset)
                self.aggregate_evaluate(0, self.subset.send_and_receive(messages, timeout=evaluations.timeout))
            elif central is not None:
                ledger.told(server=central(self._done, self.arrays))

    def _close(self, ledger: AppLedger, initial: ArrayRecord, evaluations: Evaluations) -> None:
        """Measure the model after; what cannot be measured any more says why, and costs no model."""
        assert self.arrays is not None
        after, probes, unmeasured = self.arrays, self._undo, dict[str, str]()
        parts: dict[str, Callable[[], None]] = {}
        if "leaver" not in (ledger.turn.last or {}):
            parts["Forget accuracy"] = lambda: ledger.told(leaver=evaluations.to_leavers(after, self._done))
        if probes:
            parts["Undoing"] = lambda: ledger.told(turned_back=self._turned_back(evaluations))
        if isinstance(probes, Probes):
            models = from_arrays(initial), from_arrays(after)
            parts["Probes"] = lambda: ledger.probed(probes.found(*models), *models)
        for name, measure in parts.items():
            try:
                measure()
            except Exception as error:
                log.warning("unfed: %s of the model after is not measured: %s", name, error)
                unmeasured[name] = said(error)
        ledger.told(unmeasured=unmeasured)
        ledger.end(Fixed(from_arrays(after)), self._goals.reached(ledger.turn.before, ledger.turn.last))

    def _turned_back(self, evaluations: Evaluations) -> dict[str, Any]:
        """What the model after is worth once the perturbation is taken back, where it is its own inverse."""
        assert self.arrays is not None
        if not self._turns:
            return {"reason": "the perturbation is not its own inverse, so there is nothing to turn back"}
        back = self._perturbed(self.arrays)
        asked, metrics = evaluations.to_the_staying(back)
        found = {"evaluated": asked, "evaluate": metrics and plain(metrics)}
        central = evaluations.to_the_server(back)
        found |= {"server": central and plain(central), "leaver": evaluations.to_leavers(back, self._done)}
        return {name: value for name, value in found.items() if value}

    def _built(self) -> Strategy:
        make = self._factory if callable(self._factory) else lambda: self._factory
        inner: Any = make()
        if not isinstance(inner, Strategy):
            raise UnfedError(
                f"strategy_factory returned {type(inner).__module__}.{type(inner).__name__}, which is no strategy of"
                " flwr.serverapp; take that one's namesake there, or run Flower's older API over a SubsetGrid."
            )
        if inner is make():
            raise UnfedError(
                f"strategy_factory must make a new strategy on every call, as lambda: {type(inner).__name__}(…) does; a"
                " used one carries the leaver in its momentum."
            )
        if type(inner).start is not Strategy.start:
            raise UnfedError(
                f"{type(inner).__name__} has a start() of its own; perturb first, and give it a SubsetGrid."
            )
        check_forgets(inner)
        return inner

    def _perturbed(self, initial: ArrayRecord) -> ArrayRecord:
        if self._perturb is None:
            return initial
        changed = applied(self._perturb, from_arrays(initial))
        return ArrayRecord(OrderedDict((name, changed[name]) for name in initial))

    # --- the hooks --------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        ledger = self._ledger
        if ledger is not None:
            reached = self._goals.reached(ledger.turn.before, ledger.turn.last)
            if reached and all(reached.values()):
                raise Enough
        with self._looking():
            messages = list(self.inner.configure_train(server_round + self._before, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id for message in messages}
        if ledger is not None:
            ledger.asked(server_round + self._before, self._names(messages))
        return messages

    def _names(self, messages: Iterable[Message]) -> list[str]:
        """What the clients are called that get these messages."""
        return sorted({self.subset.nodes.client(message.metadata.dst_node_id) for message in messages})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the usable replies.

        Without any, or without a finite result, nothing changes.
        """
        number = server_round + self._before
        arrays, metrics = self._aggregated_train(number, list(replies))
        if self._ledger is not None and self.arrays is not None:
            own = [
                replace(r, client=self.subset.nodes.client(int(r.client))) for r in self.refusals if r.round == number
            ]
            found = {"left_out": self.subset.classes.of_round(self.subset.nodes.client), "heavy": self._heavy}
            self._mark = self._mark or fingerprint(digests(from_arrays(self.arrays)))
            self._ledger.trained(own, train=metrics, fingerprint=self._mark, **found)
        return arrays, metrics

    def _looking(self) -> AbstractContextManager[None]:
        return self.subset.configuring()

    def _aggregated_train(
        self, number: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._judge is not None and self.arrays is not None
        self._heavy = []
        out = self._out()  # once for all replies: on real nodes it is a question to the SuperLink
        good, refused = self._judge.sift(replies, out, self.arrays)
        mute = sorted(self._asked - {reply.metadata.src_node_id for reply in replies})
        for reply, why in refused:
            node = reply.metadata.src_node_id
            # The SuperLink itself answers, under its own id, for a node that is gone.
            self._refuse(number, mute.pop(0) if mute and node not in self._asked else node, why)
        for node in mute:
            self._refuse(number, node, "it did not answer")
        if not good:
            log.warning("unfed: round %d got no usable update; the arrays stay as they were", number)
            return None, None
        for node, share in self._judge.heavy(good):
            self._heavy.append(f"node {node} in round {number}: {share}")
            log.warning("unfed: %s", self._heavy[-1])
        self._judge.learn_types(good)
        try:
            arrays, metrics = self.inner.aggregate_train(number, good)
        except InconsistentMessageReplies as error:  # "Skipping aggregation", says Flower, and ends the run
            self._drop(number, said(error))
            return None, None
        if arrays is None or not len(arrays):
            return None, metrics
        typed = self._judge.typed(arrays)
        if isinstance(typed, str):
            self._drop(number, typed)
            return None, metrics
        self.arrays, self._done = to_arrays(typed), number
        if self._ledger is not None:
            self._mark = fingerprint(digests(typed))
            self._ledger.good(typed, number, len(good), self.subset.classes.seen)
        return self.arrays, metrics

    def _drop(self, number: int, why: str) -> None:
        """Note why a round changes nothing though there were replies."""
        log.warning("unfed: round %d is not kept: %s", number, why)
        self._not_kept.append(f"round {number}: {why}")

    def _refuse(self, number: int, node: int, why: str) -> None:
        self.refusals.append(Refusal(number, str(node), why))
        log.warning("unfed: node %s in round %d: %s", node, number, why)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with self._looking():
            messages = list(self.inner.configure_evaluate(server_round + self._before, arrays, config, grid))
        if self._evaluations is not None and self._ledger is not None:
            messages = self._evaluations.seen(messages)
            self._ledger.told(evaluated=self._names(messages))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        out = self._out()
        heard = [reply for reply in replies if reply.metadata.src_node_id not in out]
        metrics = self.inner.aggregate_evaluate(server_round + self._before, heard)
        if self._ledger is not None and self._evaluations is not None and self.arrays is not None:
            self._ledger.told(evaluate=metrics)
            if self._goals.forgotten is not None:
                self._ledger.told(leaver=self._evaluations.to_leavers(self.arrays, server_round + self._before))
        return metrics

    def summary(self) -> None:
        log.info("\t├──> Unlearning without node(s) %s", ", ".join(map(str, sorted(self._out()))) or "(none connected)")
        if self._subset is not None and self._subset.classes.all:
            log.info("\t├──> Unlearning without rows of %s, which every client leaves out", self._subset.classes.words)
        self.inner.summary()

    def _out(self) -> frozenset[int]:
        return frozenset() if self._subset is None else self._subset.excluded


def _differing(ours: Params, theirs: Params) -> list[str]:
    """The names under which the others hold other numbers."""
    return [name for name, own in ours.items() if not own.equal(theirs[name])]
