"""Forget a site, or a class, in an NVFlare job you already have: its FedAvg with more arguments.

    job.to_server(UnlearnFedAvg(exclude=["site-3"], negate=["conv1.weight"], ledger="/a/whole/path", num_rounds=5))

The persistor's model is perturbed once (NoT: the named weights are negated), and the rounds go on without the leaver,
who gets no further task. Where classes leave, every task names them, and the client script leaves their rows out:

    received = flare.receive()
    stays = staying_rows(received, labels)                          train on x[stays], labels[stays]
    flare.send(noted(received, FLModel(params=…, meta={…})))

An update with other weights than the model's, with NaN, or without a word on the rows of a class that left, is refused
and named. The ledger is an ordinary run folder, the same for every request on a model: the same job goes on from its
last good round, and a request that is fulfilled there is not done again.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg

from unfed.engines.base import Refusal
from unfed.errors import Refused, UnfedError, listed
from unfed.folder.layout import client_list
from unfed.measures.trajectory import OfApp
from unfed.model.params import Params, digests, fingerprint
from unfed.nvflare.transport import SPEECH
from unfed.remote.ledger import AppLedger, Before, plain, requests_of
from unfed.remote.messages import Failure, Unreadable, attempt, finite, said
from unfed.remote.negating import applied, method_of, negate_arrays
from unfed.remote.probes import Probes
from unfed.remote.rows import ALL_ROWS, ASKED, LEFT_OUT, class_words, staying, unheeded
from unfed.requests.reversible import warn_of_way_back

log = logging.getLogger("unfed.nvflare")
NOTE = "unfed-rows-left-out"
"""In the meta of a reply: what its client says of the rows of classes that left."""


class UnlearnFedAvg(FedAvg):
    """NVFlare's FedAvg that starts by forgetting."""

    num_rounds: int
    start_round: int

    def __init__(
        self,
        *args: Any,
        ledger: str = "",
        exclude: list[str] | None = None,
        classes: list[int] | None = None,
        negate: list[str] | None = None,
        gone: bool = False,
        **kwargs: Any,
    ) -> None:
        """Say what to forget, and where it is written down; all else is FedAvg's own.

        Args:
            args: See FedAvg.
            ledger: A run folder on the server's machine, by its whole path; the same for every request on a model.
            exclude: The sites that leave, by the names they were provisioned with.
            classes: The classes that leave, by their label numbers.
            negate: The weights that are negated once, by their names in the model; none: the rounds alone (FT).
            gone: The leaver need not be connected, nor need any site hold rows of the classes.
            kwargs: See FedAvg: `num_rounds`, `num_clients`, `persistor_id`, `aggregation_weights`, …
        """
        super().__init__(*args, **kwargs)
        self.ledger, self.gone = ledger, gone
        # A job is exported by the attributes that have the arguments' names.
        self.exclude, self.classes, self.negate = exclude or [], classes or [], negate or []
        self._out: frozenset[str] = frozenset()
        self._without: list[int] = []
        self._book: AppLedger | None = None
        self._before: Params = {}
        self._seen: set[int] = set()
        self._asked: list[str] = []
        self._good: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, str] = {}
        self._done = 0

    def probes(self) -> Probes | None:
        """Override it to try every way of undoing on the last model, with rows that the server holds."""
        return None

    def run(self) -> None:
        """What NVFlare calls; a refusal ends the job with its sentence."""
        try:
            self._unlearn()
        except UnfedError as error:
            self.panic(f"unfed: {error}")

    def _unlearn(self) -> None:
        if not self.ledger.startswith("/"):
            raise UnfedError("Say where it is written down: ledger='/a/whole/path', on the server's machine.")
        ledger, loaded = AppLedger(self.ledger, SPEECH), self.load_model()
        self._before = before = tensors(loaded.params if loaded is not None else {})
        if not before:
            raise UnfedError("The persistor has no trained model to forget in; name one, as in its initial_ckpt=….")
        perturb = negate_arrays(*self.negate) if self.negate else None
        perturbed = before if perturb is None else applied(perturb, before)
        ledger.turned(before, self.negate)
        if (probes := self.probes()) is not None:
            probes.check(before)
        earlier, sites = ledger.left(self.exclude), [client.name for client in self.engine.get_clients()]
        self._check(ledger, sites)
        self._out, self._without = earlier.clients | {*self.exclude}, sorted({*self.classes, *earlier.classes})
        if not {*sites} - self._out:
            raise UnfedError("No site would be left to train; exclude fewer, or connect more.")
        if self.negate:
            warn_of_way_back("Negating weights", "a training without the leaver")
        rounds: int = self.num_rounds
        asked = requests_of(sorted(self.exclude), sorted(self.classes), self.gone)
        with ledger.opened("FedAvg", before, Before()):
            names = {site: {site} for site in sorted({*sites, *self.exclude})}
            saved = ledger.begin(asked, method_of(perturb), (before, perturbed), self.negate, names, rounds)
            params, self._done = (perturbed, 0) if saved is None else saved
            self._seen |= {*ledger.turn.about["seen"]}
            self.model = FLModel(ParamsType.FULL, like(params, loaded.params))
            if ledger.turn.settled:
                log.info("unfed: request %s is fulfilled in %s; nothing is done again", asked[0].id, ledger.path)
                self.save_model(self.model)
                return
            if saved is None:
                ledger.was(OfApp(evaluated=[]))
            self._book, self.start_round = ledger, self._done
            self.num_rounds = max(0, rounds - self._done)
            super().run()
            if self.abort_signal.triggered:
                log.warning("unfed: the job was aborted; the same job goes on after round %d", self._done)
                return
            self._end(ledger)

    def _check(self, ledger: AppLedger, sites: list[str]) -> None:
        """Refuse what cannot be meant: no leaver, a site that is not there, a ledger of other sites."""
        if not self.exclude and not self.classes:
            raise UnfedError("Say who leaves: exclude=['site-3'], or classes=[3].")
        known = client_list(ledger.path) if ledger.there else None
        order = known.order if known else ()
        if order and not {*order} & {*sites}:
            raise UnfedError(f"{ledger.path} is the ledger of another federation, of {listed(order, 'and')}.")
        odd = next((site for site in self.exclude if site not in {*sites, *order}), None)
        if odd is not None and not self.gone:
            raise UnfedError(
                f"There is no site {odd!r} in this job, where there are {listed(sorted(sites), 'and')}; name one of"
                " these, or set gone=True if it has left."
            )

    def _end(self, ledger: AppLedger) -> None:
        if not self._done:
            why = "; ".join(f"{site}: {reason}" for site, reason in self._refused.items()) or "no site answered"
            raise Refused(f"No round had a usable update ({said(why, 200)}), so nothing was learned; mend these sites.")
        missing = [] if self.gone else [number for number in self.classes if number not in self._seen]
        if missing:
            why = f"No site that trained had a row of {class_words(missing)}; name classes by their label numbers."
            ledger.refuse(why)
            raise Refused(why)
        after = tensors(self.model.params)
        if (probes := self.probes()) is not None:
            try:
                ledger.probed(probes.found(self._before, after), self._before, after)
            except Exception as error:  # it costs no model
                log.warning("unfed: the probes failed: %s", error)
                ledger.told(unmeasured={"Probes": said(error)})
        ledger.end(after, {})
        log.info("unfed: done; the ledger is %s", ledger.path)

    # --- FedAvg's own steps -----------------------------------------------------------------------------------------

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """The sites of a round: never one that left."""
        staying = [client.name for client in self.engine.get_clients() if client.name not in self._out]
        if not staying:  # NVFlare takes an empty list of targets for all sites
            raise Refused("No site that stays is connected any more; connect one, and submit the same job again.")
        return random.sample(staying, min(num_clients or len(staying), len(staying)))

    def send_model(self, *args: Any, callback: Callable[[FLModel], Any] | None = None, **kwargs: Any) -> None:
        """A round's task, which names the classes that left; replies are judged before they are averaged."""
        data, self._good, self._refused = kwargs["data"], {}, {}
        self._asked = sorted(kwargs["targets"])
        data.meta = {**(data.meta or {}), **({ASKED: self._without} if self._without else {})}

        def judged(result: FLModel) -> Any:
            site = str(result.meta.get("client_name"))
            why = attempt(lambda: self._judge(result))
            if isinstance(why, Failure):
                self._refused[site] = why.reason
                log.warning("unfed: site %s in round %d: %s", site, self.current_round + 1, why.reason)
                return False
            self._good[site] = why
            return callback(result) if callback else None

        super().send_model(*args, callback=judged, **kwargs)

    def _judge(self, result: FLModel) -> dict[str, Any]:
        """What a usable update says of the rows that it left out; else it is refused."""
        site, meta = str(result.meta.get("client_name")), result.meta
        if site in self._out:
            raise Unreadable("it has left this federation")
        sent = tensors(result.params or {})
        if sent.keys() != self._before.keys() and (result.params_type == ParamsType.FULL or not sent):
            raise Unreadable("its update has not the weights of the model")
        odd = next((n for n, t in sent.items() if n not in self._before or t.shape != self._before[n].shape), None)
        if odd is not None:
            raise Unreadable(f"its {odd!r} is not of the model's form")
        finite(sent)
        weight = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1)
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
            raise Unreadable(f"its weight is {said(weight, 40)}, which is not a positive number")
        if not self._without:
            return {}
        note = meta.get(NOTE)
        if not isinstance(note, Mapping):
            raise Unreadable(
                f"it does not say that it left {class_words(self._without)} out; let its script train on"
                " staying_rows(received, labels) and send noted(received, reply)"
            )
        if why := unheeded(note, self._without, [], str(FLMetaKey.NUM_STEPS_CURRENT_ROUND)):
            raise Unreadable(why)
        return {"rows": dict(zip(map(str, self._without), note[LEFT_OUT], strict=True)), "of": note[ALL_ROWS]}

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """The model after a round, written down; a round without a usable update changes nothing."""
        ledger, number, old = self._book, self.current_round + 1, model.params
        assert ledger is not None
        self._refused |= {
            site: "it did not answer" for site in self._asked if site not in {*self._good, *self._refused}
        }
        if self._good and ledger.turn.line is not None and (metrics := aggr_result.metrics):
            # With an update a site sends what the model that it got is worth to it: the round before's.
            ledger.told(evaluate=plain(metrics), evaluated=sorted(self._good))
        ledger.asked(number, self._asked)
        if self._good:
            model = super().update_model(model, aggr_result)
            params = typed(tensors(model.params), self._before)
            if not all(bool(torch.isfinite(t).all()) for t in params.values()):
                raise Refused(f"The average of round {number} is not finite; the round before it is in {ledger.path}.")
            model.params, self._done = like(params, old), number
            for one in self._good.values():
                self._seen |= {int(name) for name, count in one.get("rows", {}).items() if count}
            ledger.good(params, number, len(self._good), self._seen)
        self.model = model
        refused = [Refusal(number, site, why) for site, why in sorted(self._refused.items())]
        found = {"left_out": self._good if self._without else {}}
        ledger.trained(refused, fingerprint=fingerprint(digests(tensors(model.params))), **found)
        return model


def tensors(params: Mapping[str, Any]) -> Params:
    """An FLModel's weights, of NumPy or PyTorch, as tensors of their own."""
    arrays = np.ndarray | np.generic | torch.Tensor  # an average of counters is one number of NumPy's
    odd = next((name for name, value in params.items() if not isinstance(value, arrays)), None)
    if odd is not None:
        raise Unreadable(f"its {odd!r} is a {type(params[odd]).__name__}, and no array")
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in params.items()}


def typed(params: Params, before: Params) -> Params:
    """An average in the types of the model: averaging turns counters into floats."""
    kinds = {name: before[name].dtype for name in params}
    return {n: (t if kinds[n].is_floating_point else t.round()).to(kinds[n]) for n, t in params.items()}


def like(params: Params, before: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as NVFlare had them: of NumPy or PyTorch."""
    return {n: t if isinstance(before.get(n), torch.Tensor) else t.numpy() for n, t in params.items()}


def staying_rows(received: FLModel, labels: Iterable[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows a site may train on: `x[stays]`, with False for every row of a class that leaves.

    Args:
        received: What `flare.receive()` returned.
        labels: One class number for each row, as a tensor, an array or a list.
    """
    return staying(received.meta, labels)


def noted(received: FLModel, reply: FLModel) -> FLModel:
    """The reply to send, with what `staying_rows` left out."""
    if ASKED in received.meta and LEFT_OUT in received.meta:
        reply.meta = {**(reply.meta or {}), NOTE: {key: received.meta[key] for key in (ASKED, LEFT_OUT, ALL_ROWS)}}
    return reply
