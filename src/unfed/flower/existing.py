"""Forget a client, or a class, in a Flower app you already have.

It takes five lines in the server app and one in the client app.

    from unfed.flower import Unlearn, negate, node_with
    strategy = Unlearn(
        lambda: FedAvg(min_available_nodes=3),        your strategy, built anew: a used one still carries the leaver
        perturb=negate(Net()),                        NoT, once, on the arrays that training left
        exclude=node_with(client="north"),            who leaves, or of_class(3): see leaving.py
    )
    result = strategy.start(grid, trained, num_rounds=5)

The strategy sees a `SubsetGrid` without the leaver. Of a reply only that is judged which the strategy aggregates, the
arrays and the weight; metrics are left alone. A reply is refused and named if it has other tensors, NaN, or a weight
that is not positive or out of all proportion, or if its update is longer than the model and 10 times the usual; one
with more than half of the weight of all is named. A round without a usable reply changes nothing, as in a stock
strategy; the last good arrays are kept (`strategy.arrays`, and in a file if `keep` names one, from which the next start
goes on).
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import Result, Strategy

from unfed import storage
from unfed.engines.base import Refusal
from unfed.errors import Refused, UnfedError, listed
from unfed.federation.robust import Robust
from unfed.flower.earlier import turned
from unfed.flower.evidence import Enough, Evidence
from unfed.flower.judging import Judge, check_forgets, minimum, setting
from unfed.flower.keeping import Beginning
from unfed.flower.leaving import Exclude
from unfed.flower.negating import Perturb, applied
from unfed.flower.probes import Probes
from unfed.flower.subset import SubsetGrid
from unfed.flower.wire import differing, digest, from_arrays, whole
from unfed.flower.worth import Worth
from unfed.json_checks import is_number
from unfed.remote.replies import said
from unfed.requests.reversible import warn_of_way_back

log = logging.getLogger("flwr")


class Unlearn(Strategy):
    """A strategy that starts by forgetting: perturb once, then your own strategy without the leaver.

    To go on from a round that you saved after the perturbation, pass `perturb=None`: negating twice is not negating. Or
    name a file with `keep`, and start again: it goes on from the last good round of that file by itself. What your
    strategy carries from round to round (a momentum) begins anew.
    """

    def __init__(
        self,
        strategy_factory: Callable[[], Strategy],
        perturb: Perturb | None,
        exclude: Exclude,
        *,
        gone: bool = False,
        wait: float = 30.0,
        keep: str | Path | None = None,
        deny: str | Path | None = None,
        evidence: str | Path | Evidence | None = None,
        refuse_above: float = Robust.refuse_above,
    ) -> None:
        """`gone`: the leaver need not be connected · `wait`: seconds until too few nodes are an error.

        `deny`: a run or evidence folder, or a file of names; who was forgotten there stays out as well.
        `evidence`: a folder to write down what was done (see evidence.py).
        `refuse_above`: refuse an update longer than the model and so many times the usual; 0: never.
        """
        if not is_number(refuse_above) or refuse_above < 0:
            raise UnfedError(f"refuse_above is a number from 0 on, not {refuse_above!r}; leave it out for the default.")
        self._refuse_above = float(refuse_above)
        self._deny = deny
        self._evidence = Evidence(evidence) if isinstance(evidence, str | Path) else evidence
        self._factory, self._perturb, self._exclude = strategy_factory, perturb, exclude
        self._gone, self._wait, self._keep = gone, wait, None if keep is None else Path(keep)
        if self._keep is not None:
            storage.refuse_other(self._keep, links=True)
        self._inner: Strategy | None = None
        self._judge: Judge | None = None
        self._subset: SubsetGrid | None = None
        self._begun: Beginning | None = None
        self._done, self._before = 0, 0
        self._asked: set[int] = set()
        self._heavy: list[str] = []
        self._not_kept: list[str] = []
        self._digests: dict[str, str | list[str]] = {}
        self._turns, self._turned = False, list[str]()
        self._worth: Worth | None = None
        self.refusals: list[Refusal] = []
        """Updates that were not aggregated, with the node's id for a name."""
        self.arrays: ArrayRecord | None = None
        """The arrays of the last round that went well; before the first, the perturbed ones."""

    @property
    def _folder(self) -> Path | None:
        return None if self._evidence is None else self._evidence.folder

    @property
    def inner(self) -> Strategy:
        if self._inner is None:
            raise UnfedError("The strategy is built by start(); call that first.")
        return self._inner

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **kwargs: Any) -> Result:
        """As your strategy's own start, with the trained model's arrays."""
        if num_rounds < 1:
            raise UnfedError(
                f"num_rounds = {num_rounds}, but nothing is forgotten before those who stay have trained again; take 1"
                " or more."
            )
        inner, initial_arrays = self._built(), whole(initial_arrays)
        if self._evidence is not None and isinstance(self._evidence.undo, Probes):
            self._evidence.undo.check(from_arrays(initial_arrays))
        begun, perturbed = digest(initial_arrays), self._perturbed(initial_arrays)
        changed = differing(initial_arrays, perturbed)
        sizes, names = {name: math.prod(array.shape) for name, array in perturbed.items()}, listed(changed, "and")
        counts = sum(sizes[name] for name in changed), sum(sizes.values())
        log.info("unfed: the perturbation changes %s: %d of %d numbers", names or "nothing", *counts)
        self._turns = bool(changed) and not differing(initial_arrays, self._perturbed(perturbed))
        self._turned = turned(self._deny, begun, changed if self._turns else ())
        if self._turns:
            warn_of_way_back("This perturbation", "a training without the leaver")
        subset = SubsetGrid(grid, self._exclude, self._gone, minimum(inner), self._wait, self._deny)
        subset.settle()
        self._inner, self._subset, self.refusals, self._not_kept = inner, subset, [], []
        self._judge, self._done = Judge(inner, initial_arrays, self._refuse_above), 0
        self._begun = Beginning(begun, sorted(one.mark for one in subset.leavers), self._perturb is not None)
        self._digests = {"before": begun, "perturbed": digest(perturbed), "changed": changed}
        subset.classes.weight = setting(inner, "weighted_by_key")
        self.arrays = self._kept(subset, initial_arrays) or perturbed
        self._before = before = self._done
        given = dict(zip(("timeout", "train_config", "evaluate_config", "evaluate_fn"), args, strict=False)) | kwargs
        rounds = max(0, num_rounds - before)
        if not rounds:
            log.info("unfed: all %d rounds are in %s already", num_rounds, self._keep)
        for what, place in (("arrays are kept in", self._keep), ("evidence is written to", self._folder)):
            if place is not None:  # a relative one lies where the server app happens to run
                log.info("unfed: %s %s", what, place.absolute())
        if self._evidence is not None:
            return self._witnessed(self._evidence, initial_arrays, rounds, given)
        result = self._rounds(rounds, given)
        self._check_classes()
        return result

    def _check_classes(self) -> None:
        """Refuse to call a class forgotten that nobody had."""
        assert self._subset is not None
        if not self._gone:
            self._subset.classes.check_seen(self._done)

    def _rounds(self, rounds: int, given: dict[str, Any]) -> Result:
        """The rounds that are left, numbered after those that were done before."""
        assert self._subset is not None and self.arrays is not None
        before, central = self._before, given.get("evaluate_fn")
        if not rounds:
            return Result(arrays=self.arrays)
        if central is not None:
            given = {**given, "evaluate_fn": lambda server_round, arrays: central(server_round + before, arrays)}
        result = super().start(self._subset, self.arrays, rounds, **given)
        for what in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, what, {number + before: found for number, found in getattr(result, what).items()})
        if self._done == before:
            refused = [f"node {r.client}: {r.reason}" for r in self.refusals]
            why = "; ".join([*self._not_kept, *refused][:3]) or "nobody answered"
            raise Refused(
                f"None of {rounds} rounds had a usable update ({why}), so nothing was learned; mend these clients and"
                " start again."
            )
        return result

    def _witnessed(self, evidence: Evidence, initial: ArrayRecord, rounds: int, given: dict[str, Any]) -> Result:
        """The same rounds, with everything that is done written down."""
        assert self._subset is not None and self.arrays is not None
        central = given.get("evaluate_fn")
        about = {
            "strategy": type(self.inner).__name__,
            "leavers": self._subset.found(),
            "forgotten": sorted({name for one in self._subset.leavers for name in one.names}),
            "unnamed": [one.words for one in self._subset.leavers if one.is_node and not one.names],
            "classes": [*self._subset.classes.now],
            "classes_before": [*self._subset.classes.before],
            "turned": self._turned,
        }
        self._worth = worth = Worth(self.inner, self._subset, given, central)
        if evidence.begin(about, self._digests, self._done):
            self._look(evidence, initial, worth, central is not None)
        evidence.check_metric()
        self._catch_up(evidence, worth, central)

        def told(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics: MetricRecord | None = central(server_round, arrays) if central else None
            if server_round > self._before:
                evidence.told(server_round, "server", metrics)
            return metrics

        try:
            result = self._rounds(rounds, {**given, "evaluate_fn": told} if central else given)
        except Enough:
            log.info("unfed: what the rounds were to go on for has come; they end")
            result = Result(self.arrays, *(evidence.metrics[what] for what in ("train", "evaluate", "server")))
        self._check_classes()
        if self._done > self._before or not evidence.finished:
            self._close(evidence, initial, worth)
        return result

    def _catch_up(self, evidence: Evidence, worth: Worth, central: Any) -> None:
        """Have the last kept round evaluated, where an earlier start ended before that was done."""
        assert self._subset is not None and self.arrays is not None
        for who in evidence.unheard(self._done):
            evidence.told(self._done, "train", None, arrays=digest(self.arrays))
            if who == "evaluate":
                messages = self.configure_evaluate(0, self.arrays, worth.config, self._subset)
                self.aggregate_evaluate(0, self._subset.send_and_receive(messages, timeout=worth.timeout))
            elif central is not None:
                evidence.told(self._done, who, central(self._done, self.arrays))

    def _close(self, evidence: Evidence, initial: ArrayRecord, worth: Worth) -> None:
        """Measure the model after; what cannot be measured any more says why, and costs no model."""
        assert self.arrays is not None
        after, probes = self.arrays, evidence.undo
        heard = evidence.last_heard()
        parts: dict[str, Callable[[], None]] = {
            "Forget accuracy": lambda: evidence.leaver(
                "after", worth.to_leavers(after, self._done) if heard is None else heard
            )
        }
        if probes:
            parts["Undoing"] = lambda: self._turned_back(evidence, worth)
        if isinstance(probes, Probes):
            parts["Probes"] = lambda: evidence.probed(probes.found(from_arrays(initial), from_arrays(after)))
        for name, measure in parts.items():
            try:
                measure()
            except Exception as error:
                log.warning("unfed: %s of the model after is not measured: %s", name, error)
                evidence.unmeasured(name, said(error))
        assert self._subset is not None
        evidence.found(self._subset.found())
        evidence.end("all rounds", digest(after))

    def _look(self, evidence: Evidence, initial: ArrayRecord, worth: Worth, central: bool) -> None:
        """What the model before is worth to those who stay, to the server, and to who left and gave leave."""
        evidence.before("evaluate", *worth.to_the_staying(initial))
        if central:
            evidence.before("server", [], worth.to_the_server(initial))
        evidence.leaver("before", worth.to_leavers(initial, 0))

    def _turned_back(self, evidence: Evidence, worth: Worth) -> None:
        """What the model after is worth once the perturbation is taken back, where it is its own inverse."""
        assert self.arrays is not None
        if not self._turns:
            evidence.undone(reason="the perturbation is not its own inverse, so there is nothing to turn back")
            return
        back = self._perturbed(self.arrays)
        asked, said = worth.to_the_staying(back)
        answers = worth.to_leavers(back, self._done)
        evidence.undone(asked=asked, evaluate=said, server=worth.to_the_server(back), leaver=answers)

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
                f"{type(inner).__name__} has a start() of its own, which Unlearn would not go through; perturb the"
                " arrays yourself and hand your strategy a SubsetGrid."
            )
        check_forgets(inner)
        return inner

    def _perturbed(self, initial: ArrayRecord) -> ArrayRecord:
        if self._perturb is None:
            return initial
        changed = applied(self._perturb, from_arrays(initial))
        return ArrayRecord(OrderedDict((name, changed[name]) for name in initial))

    def _kept(self, subset: SubsetGrid, initial: ArrayRecord) -> ArrayRecord | None:
        """Where an earlier start of the same unlearning got to, if its file is there."""
        if self._keep is None or self._begun is None or not self._keep.exists():
            return None
        found = self._begun.load(self._keep)
        self._done = found.round
        subset.classes.seen |= found.seen
        return ArrayRecord(OrderedDict((name, found.arrays[name]) for name in initial))

    def _good(self, arrays: ArrayRecord, round: int) -> None:
        """Keep a round's arrays under its number: rounds that changed nothing have numbers too."""
        self.arrays, self._done = arrays, round
        if self._keep is not None and self._begun is not None and self._subset is not None:
            self._begun.save(self._keep, arrays, round, self._subset.classes.seen)

    # --- the hooks --------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with self._looking():
            messages = list(self.inner.configure_train(server_round + self._before, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id for message in messages}
        return self._noted(server_round, "train", messages)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the usable replies.

        Without any, or without a finite result, nothing changes.
        """
        number = server_round + self._before
        arrays, metrics = self._aggregated_train(number, list(replies))
        if self._evidence is not None and self.arrays is not None:
            own = [f"node {r.client} in round {r.round}: {r.reason}" for r in self.refusals if r.round == number]
            rows = None if self._subset is None else self._subset.classes.of_round()
            more: dict[str, Any] = {"left_out": rows} if rows else {}
            more |= {"heavy": self._heavy} if self._heavy else {}
            self._evidence.told(number, "train", metrics, refused=own, arrays=digest(self.arrays), **more)
        return arrays, metrics

    def _looking(self) -> AbstractContextManager[None]:
        assert self._subset is not None
        return self._subset.configuring()

    def _noted(self, server_round: int, what: str, messages: Iterable[Message]) -> Iterable[Message]:
        if self._evidence is None:
            return messages
        return self._evidence.asked(server_round + self._before, what, messages)

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
        self._good(typed, number)
        return typed, metrics

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
        if self._worth is not None:
            messages = self._worth.seen(messages)
        return self._noted(server_round, "evaluate", messages)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        out = self._out()
        heard = [reply for reply in replies if reply.metadata.src_node_id not in out]
        metrics = self.inner.aggregate_evaluate(server_round + self._before, heard)
        if self._evidence is not None:
            self._evidence.told(server_round + self._before, "evaluate", metrics)
            if self._evidence.forgotten is not None and self._worth is not None and self.arrays is not None:
                answers = self._worth.to_leavers(self.arrays, server_round + self._before)
                self._evidence.heard(server_round + self._before, answers)
        return metrics

    def summary(self) -> None:
        log.info("\t├──> Unlearning without node(s) %s", ", ".join(map(str, sorted(self._out()))) or "(none connected)")
        if self._subset is not None and self._subset.classes.all:
            log.info("\t├──> Unlearning without rows of %s, which every client leaves out", self._subset.classes.words)
        self.inner.summary()

    def _out(self) -> frozenset[int]:
        return frozenset() if self._subset is None else self._subset.excluded
