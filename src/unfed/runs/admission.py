"""Admission: what a run can offer a method, and which requests it refuses.

FedEraser replays the training, so it reads the training's history whatever came since. FUKD and PGD start at the model
in force, so their histories must follow the method that makes it: each says by its `lineage` what it does to them.

    lineage                             sums: θ = θ⁰ + Σ_k S_k (FUKD)    rounds: θ is the last one's mean (PGD)
    goes on   FT, GA, ℓ1-sparse, RandL  go on                            go on
    carried   NoT, FUKD                 go on, moved as the model was    begin again with its recovery
    moved     PGD, MoDE, FCU            end                              begin again with its recovery
    anew      Retrain                   begin again                      begin again
    ends      Sealed, all others        end                              end

A method whose history has ended is refused until Retrain (or, for PGD, any recovery that is recorded) begins another.
So is a method that would turn back what an earlier one did, and a request that keeps nothing more out.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import NotRecovered, Refused, UnfedError, UnfedWarning, listed, option
from unfed.federation.history import History, Recorder
from unfed.federation.robust import Robust
from unfed.federation.state import Settings
from unfed.folder import carriers
from unfed.folder.folder import RunFolder
from unfed.folder.histories import HISTORY
from unfed.measures.trajectory import Line
from unfed.measures.undo.flip import INVERSES, REDRAWN
from unfed.methods import METHODS, Method, NoT, Retrain, admit
from unfed.methods.base import Lineage, runs_in
from unfed.requests import book as books
from unfed.requests.book import in_force
from unfed.requests.entry import Entry, Job, Reason
from unfed.requests.gate import gate_of
from unfed.requests.options import RequestOptions, Until
from unfed.requests.reversible import inverse_by, negated_by, turned_back, way_back
from unfed.runs.description import rounds_of
from unfed.runs.job import NO_TRIALS, not_judged
from unfed.runs.together import Worker
from unfed.runs.world import World
from unfed.values import is_measured

# --- what a run can offer a method ------------------------------------------------------------------------------------


def offers(config: Config, label: str, request: Request) -> tuple[frozenset[str], dict[str, str]]:
    """What a run has for a method on a request, and why it lacks the rest."""
    there, missing = {"retain", "init"}, {}
    if config.setting == "central":
        there.add("central")
    if request.deleted:
        missing["forget"] = "its owners have deleted it"
    else:
        there.add("forget")
    robust = Robust(**config.training.robust.model_dump())
    if label not in config.recorded():
        missing["history"] = f'set training.record = ["{label}"] and train again'
    elif not robust.additive:
        missing["history"] = f"under training.robust.rule = {robust.rule!r} no client has a share of its own"
    elif config.training.keep_model != "last":
        missing["history"] = "training.keep_model keeps another model than the one its record leads to"
    else:
        there.add("history")
    if config.partition.validation > 0:
        there.add("public")
    else:
        missing["public"] = "partition.validation is 0, so no images are held out"
    return frozenset(there), missing


def welcome(config: Config, label: str, request: Request, earlier: Sequence[Request]) -> Method:
    """The method, if it can serve the request after the earlier ones.

    If it cannot, it is refused with the sentence that says why not.
    """
    method = config.method(label)
    admit(label, method, request.kind, *offers(config, label, request))
    if rewinds(method):
        _rewindable(config)
    method.after(earlier)
    return method.for_requests([*earlier, request])


def rewinds(method: Method) -> bool:
    """Whether a method starts at a model that training kept."""
    return isinstance(method, Retrain) and method.start == "rewind"


def _rewindable(config: Config) -> None:
    """Refuse to rewind where no model is kept, or what it holds is not known from the run alone."""
    sums = [label for label, method in config.recorded().items() if method.follows == "sums"]
    if not config.training.keep_every:
        why = "this run kept no model; train with training.keep_every = N"
    elif config.model.initial is not None:
        why = "training began at model.initial, and whose data that saw is not known here"
    elif sums:
        why = f"the sums recorded for {listed(sums, 'and')} would lack earlier rounds; train without training.record"
    else:
        return
    raise UnfedError(f"start = 'rewind' is not possible: {why}, or use start = 'fresh'.")


def rewound(folder: RunFolder, world: World, requests: Sequence[Request]) -> History:
    """The newest kept model that no row of these requests has touched, with the rounds behind it.

    Whose rows those are is asked of the world where the requests do not name owners; clients elsewhere all count.
    """
    clients = set[str]()
    for request in requests:
        named = books.owners(request)
        if not named and folder.description().elsewhere:
            named = {client.name for client in world.clients}
        clients |= named or {name for name, client in world.scoped([request]).items() if client.holds("forget")}
    return carriers.before(folder, world.seed, clients)


# What becomes of a history that follows sums or rounds, by the lineage of the method that makes the model in force.
FATES: dict[tuple[str, Lineage], Literal["goes on", "anew", "ends"]] = {
    ("sums", "goes on"): "goes on",
    ("sums", "carried"): "goes on",
    ("sums", "moved"): "ends",
    ("sums", "anew"): "anew",
    ("sums", "ends"): "ends",
    ("rounds", "goes on"): "goes on",
    ("rounds", "carried"): "anew",
    ("rounds", "moved"): "anew",
    ("rounds", "anew"): "anew",
    ("rounds", "ends"): "ends",
}


def unbroken(config: Config, label: str, queue: Sequence[Entry]) -> None:
    """Refuse a method whose history would have ended before its turn comes.

    One that seals is refused too where recorded history would tell its draw.
    """
    _unbroken(config, label, [(entry.request.id, entry.method) for entry in queue])
    method, recorded = config.method(label), config.recorded()
    if method.seals and recorded:
        what = f"This run recorded history for {listed(recorded, 'and')}, which reveals {method.title}'s draw"
        raise UnfedError(f"{what}; use {option('method', 'retrain')}, or train again without training.record.")


def lasting(method: Method, makers: Sequence[tuple[str, Method]], module: nn.Module, title: str) -> None:
    """Refuse a method that would bring back what a request took out.

    `makers` says who served which, oldest first; `title` is how the method is called.
    """
    line = _since_anew(makers, module)
    for i in reversed(range(len(line))):
        if back := method.undoes(module, [other for _, other in line[i:]]):
            instead = f"{option('method', 'sealed')}, which has no way back, or {option('method', 'retrain')}"
            what = f"{title} would turn {listed(back, 'and')} back to what it was before request {line[i][0]!r}"
            raise UnfedError(f"{what}; use {instead}.")


def warn_of_return(method: Method, makers: Sequence[tuple[str, Method]], module: nn.Module) -> None:
    """Warn where what a method takes out can come back all the same.

    Its perturbation can be turned back and follows one of its kind, or a method that lasts was set to do less.
    """
    before = [request for request, other in _since_anew(makers, module) if _invertible(other, module)]
    if before and _invertible(method, module):
        warnings.warn(
            f"{method.title} on other layers keeps request {before[-1]!r} out, but anyone with the published model can"
            f" turn both back; {option('method', 'sealed')} has no way back.",
            UnfedWarning,
            stacklevel=3,
        )
    if short := method.short_of(module):
        warnings.warn(short, UnfedWarning, stacklevel=3)


def _invertible(method: Method, module: nn.Module) -> bool:
    """Whether what a method does to layers, as it says itself, has an inverse that the world knows."""
    did = method.perturbed(module)
    return did is not None and bool(did.choices) and (did.how in INVERSES or (did.seeded and did.how in REDRAWN))


def _since_anew(makers: Sequence[tuple[str, Method]], module: nn.Module) -> list[tuple[str, Method]]:
    """The requests that the model in force is built upon, oldest first.

    They begin with the last one whose method starts over, or draws all that those before it had moved.
    """
    start = 0
    for i, (_, method) in enumerate(makers):
        moved = {c.name for _, m in makers[start:i] if (by := m.perturbed(module)) for c in by.choices}
        if method.lineage == "anew" or (method.seals and moved <= method.drawn(module)):
            start = i
    return list(makers[start:])


def unbroken_by_itself(config: Config, label: str, earlier: Sequence[Request]) -> None:
    """Refuse a method that cannot go on, in a comparison of several requests, with what it leaves itself."""
    _unbroken(config, label, [(request.id, label) for request in earlier])


def _unbroken(config: Config, label: str, before: Sequence[tuple[str, str]]) -> None:
    method, ended = config.method(label), ""
    if not method.follows:
        return
    for request, other in before:
        maker = config.method(other)
        fate = FATES[method.follows, maker.lineage]
        ended = {"goes on": ended, "anew": "", "ends": f"request {request!r} ({maker.title})"}[fate]
    if ended:
        raise UnfedError(_no_way(method, f"that model was rebuilt by {ended}"))


def _no_way(method: Method, why: str) -> str:
    return f"{method.title} needs history of the way to the model in force, but {why}; use not, ft or retrain."


def recordable(config: Config) -> None:
    """Refuse to record rounds that do not lead to θ*, or in which clients have no share of their own."""
    for part, robust in (("training", config.training.robust), ("unlearning", config.unlearning.robust)):
        names = [n for n, method in config.recorded().items() if method.follows or part == "training"]
        if names and robust is not None and not Robust(**robust.model_dump()).additive:
            rule = f"{part}.robust.rule = {robust.rule!r}, which gives no client a share of its own"
            raise UnfedError(f"{listed(names, 'and')} cannot be recorded under {rule}; use mean or norm.")
    if (recorded := config.recorded()) and config.training.keep_model != "last":
        why = f"leads to the last model, but training.keep_model = {config.training.keep_model!r} keeps an earlier one"
        raise UnfedError(f"The history for {listed(recorded, 'and')} {why}; set it to 'last'.")


def history_of(folder: RunFolder, label: str, method: Method, training: Job, previous: Job) -> History | None:
    """What a method starts from, if it needs history at all."""
    if "history" not in method.needs:
        return None
    job = previous if method.follows else training
    not_purged(folder, label, method, job)
    found = folder.load_histories(job)
    if label not in found and job != training:
        raise UnfedError(_no_way(method, f"request {job.request!r} ({job.label}) left none"))
    if label not in found:
        again = f'set training.record = ["{label}"] and train again'
        raise UnfedError(f"{folder.state_file(job)} holds no history for {label}; {again}.")
    return found[label]


def not_purged(folder: RunFolder, label: str, method: Method, job: Job) -> None:
    """Refuse a method whose history a purge took away."""
    saved = folder.saved(job)
    if "history" not in method.needs or (saved is not None and label in saved.histories):
        return
    buried, file = books.tombstones(folder.path), folder.state_file(job).relative_to(folder.path).as_posix()
    if grave := buried.get(f"{file}#{HISTORY}") or buried.get(file):
        instead = f"{option('method', 'not')}, ft or retrain"
        raise UnfedError(f"{method.title} needs history, but {grave.sentence(folder.path)}; use {instead}.")


def recorders(
    folder: RunFolder, config: Config, method: Method, previous: Job, world: World, request: Request
) -> dict[str, Recorder]:
    """Who goes on recording, and from what, while `method` makes the next model in force."""
    followed = {label: recorded for label, recorded in config.recorded().items() if recorded.follows}
    known = folder.load_histories(previous) if followed else {}
    module, seed = world.template.module, world.seeds.request(request.id)
    found: dict[str, Recorder] = {}
    for label, recorded in followed.items():
        fate = FATES[recorded.follows, method.lineage]
        if fate == "anew":
            found[label] = Recorder(recorded)
        elif fate == "goes on" and label in known:
            history = known[label].to(world.device)
            if method.lineage == "carried":
                history = history.mapped(lambda own: method.carry(module, own, seed))
            found[label] = Recorder(recorded, history)
    return found


# --- what a request is refused for ------------------------------------------------------------------------------------


DEFAULT = "default"
"""How a plan calls the tuned Retrain that serves a request without a method."""


@dataclass(frozen=True)
class Offer:
    """What one method would cost and give for a request, as far as that is known before it runs."""

    method: str
    title: str
    rounds: int
    """At most: a goal may be reached before."""
    bytes: float | None
    """As many as the training sent to and from those who stay; None where nothing travels, or that is not known."""
    seconds: float | None
    """As long as the training took for so many rounds; None where that is not known."""
    accuracy: float | None
    """On test data, of the last model that the method made in this run; None where it made none."""
    lasts: str
    """`exact`, `nothing to turn back`, `not shown`, or `no` and what brings the data back."""
    needs: tuple[str, ...]
    """What it takes besides the clients that stay."""
    refused: str
    """Why it cannot serve the request; empty if it can."""


class Admission:
    """Refuses what a run could not serve, each in one sentence."""

    def __init__(self, run: Worker) -> None:
        self._run = run

    def gone_by(self, request: Request, seed: int, others: Sequence[Entry], method: Method) -> tuple[str, ...]:
        """The requests by which every training row of a request left: nothing is left to unlearn.

        None where a row is still in, or left by a request that is owed: then it is still in the model in force; nor
        where a method that lasts ends the way back to what left. Refused is what else keeps nothing more out than the
        others do, and a method that works on rows which are not there.
        """
        world = self._run.world(seed)
        by = left_by(world, request, [e.request for e in others])
        if not by:
            return ()
        if self._keeps_more_out(world, request, [e.request for e in others]):
            settled = left_by(world, request, [e.request for e in others if not (e.owed or e.left_by)])
            if settled or "forget" not in method.needs:
                names = tuple(one.id for one in settled)
                return () if self._ends(method, seed, self._way_back(others, names)) else names
        names, said = tuple(one.id for one in by), ""
        for entry in others:
            if entry.request.id in names and entry.owed:
                said += f" Request {entry.request.id!r} is {entry.standing} and stays owed: {self._run.way_out(entry)}."
            elif entry.request.id in names and entry.waiting:
                said += f" Request {entry.request.id!r} is {entry.standing} and has its turn."
        if not said and (done := self._way_back(others, names)):
            if self._ends(method, seed, done):
                return ()
            ends = f"{option('method', 'sealed')} or retrain ends that"
            said = f" Anyone with the model in force can turn back {done}; {ends}."
        raise UnfedError(gone_already(request, by) + (said or " Nothing is left to do."))

    def _ends(self, method: Method, seed: int, done: str) -> bool:
        """Whether a method is one after which no one can take back what was done."""
        return bool(done) and method.lasts and not method.short_of(self._run.world(seed).template.module)

    def _keeps_more_out(self, world: World, request: Request, others: Sequence[Request]) -> bool:
        """Whether a request names a client or class that no other does, or a validation row in use."""
        named = {name for one in others for name in (*one.clients, *one.classes)}
        if not named.issuperset((*request.clients, *request.classes)):
            return True
        return self._held_out(world, [*others, request]) < self._held_out(world, others)

    def _way_back(self, others: Sequence[Entry], names: Collection[str]) -> str:
        """What was done for one of these requests and can be taken back from the model in force.

        Empty if nothing can.
        """
        book, line = self._run.folder.book(), in_force(others)
        for place, one in enumerate(line):
            if one.request.id in names and line[-1] in [*turned_back(book, line[place:])]:
                return way_back(book, one)
        return ""

    def refuse_if_unable(self, config: Config, method: str, request: Request, ahead: Sequence[Entry], seed: int) -> int:
        """Refuse a method that could not serve the request after those that come before it.

        Returns:
            How many rounds of training it need not repeat.
        """
        chosen = welcome(config, method, request, [e.request for e in ahead])
        unbroken(self._run.config, method, _line(ahead))
        if ahead:
            own = config.method(method).for_requests([*(entry.request for entry in ahead), request])
            module = self._run.world(ahead[0].seed).template.module
            same = [seen for _, made, seen in self._made(ahead) if made == own]
            lasting(same[-1] if same else own, self.makers(ahead), module, own.title)
        if not (rewinds(chosen) and self._run.trained(seed)):  # what is still in training is judged at its turn
            return 0
        return rewound(self._run.folder, self._run.world(seed), [*(e.request for e in ahead), request]).rounds

    def plan(self, request: Request, seed: int, how: RequestOptions) -> list[Offer]:
        """What each method would cost and give; nothing is run, and nothing is written."""
        config = self._run.config
        made = [name for name in METHODS if runs_in(config.method(name), config.setting)]
        last = {line["method"]: line for line in self._run.folder.lines() if line["seed"] == seed and line["round"]}
        labels = dict.fromkeys([*config.methods.run, *made])
        offers = [self._offer(label, request, seed, how.on(config, label), last) for label in labels]
        if not self._run.description.elsewhere:
            tuned, rounds = how.tuned_retrain(config)
            offered = self._offer(Retrain.name, request, seed, tuned.on(config, Retrain.name), last, rounds)
            offers.insert(0, replace(offered, method=DEFAULT, accuracy=None))
        if config.training.keep_every and config.setting != "central":
            again = RequestOptions({**how.set, "start": "rewind"}).on(config, Retrain.name)
            offered = self._offer(Retrain.name, request, seed, again, last)
            offers.append(replace(offered, method=f"{Retrain.name} --set start=rewind"))
        return offers

    def _offer(
        self,
        label: str,
        request: Request,
        seed: int,
        config: Config,
        last: Mapping[str, Line],
        rounds: int | None = None,
    ) -> Offer:
        run, book, chosen = self._run, self._run.folder.book(), config.method(label)
        accepted = [e for e in book.accepted(seed) if e.request.id != request.id]
        module, refused, behind = run.world(seed).template.module, "", 0
        try:
            chosen = welcome(config, label, request, ())
            chosen.check(module)
            if not self.gone_by(request, seed, accepted, chosen):
                behind = self.refuse_if_unable(config, label, request, accepted, seed)
                current = run.current_job(seed) if chosen.follows else Job(seed, None, "train")
                not_purged(run.folder, label, chosen, current)
        except UnfedError as error:
            refused = str(error)
        back = inverse_by(book, config, Job(seed, None, label))
        lasts = "not shown" if not chosen.lasts or chosen.short_of(module) else "nothing to turn back"
        lasts = "exact" if isinstance(chosen, Retrain) else lasts
        settings = run.world(seed).unlearning_settings(isinstance(chosen, Retrain), label, config)
        rounds = max(1, (rounds or rounds_of(config, label, chosen)) - behind) + self._tunes(config, label, settings)
        sent, took = (_in_so_many(rounds, last.get("train"), column) for column in ("comm_bytes", "seconds"))
        took = took and took * settings.phase.epochs / config.training.epochs
        there = {*run.description.clients} - {name for e in accepted for name in e.request.clients}
        sent = sent and sent * len(there - {*request.clients}) / max(len(run.description.clients), 1)
        needs = tuple(sorted(chosen.needs - {"retain", "init"}))
        accuracy = last[label]["test"] if label in last else None
        seen = accuracy if is_measured(accuracy) else None
        return Offer(label, chosen.title, rounds, sent, took, seen, f"no: {back}" if back else lasts, needs, refused)

    def refuse_if_blind(self, entry: Entry, accepted: Sequence[Entry]) -> None:
        """Refuse a goal of which nothing could tell. What is not trained yet is judged at its turn."""
        run, goals = self._run, Until.of(entry.until).goals
        world, config = run.world(entry.seed), entry.how.on(run.config, entry.method)
        out = [*(e.request for e in accepted), entry.request]
        if "recovered" in goals and not self._held_out(world, out):
            raise UnfedError(not_judged("no validation rows are held out"))
        again = isinstance(config.method(entry.method), Retrain)
        if world.unlearning_settings(again, entry.method, config).tune and not self._held_out(world, out):
            raise UnfedError(NO_TRIALS)
        if "forgotten" not in goals or not run.trained(entry.seed):
            return
        evaluator = world.evaluator(out)
        gate_of(world.seeds.evaluation, world.classes, config, entry).measurable(
            evaluator.evidence(run.current(entry.seed))
        )

    def _tunes(self, config: Config, label: str, settings: Settings) -> int:
        """How many rounds trials of learning rates take."""
        each = settings.tune_rounds
        return len(settings.tune) * config.method(label).trial(each).rounds(each, each)

    def _held_out(self, world: World, out: Sequence[Request]) -> int:
        """How many validation rows there are once these are out; who is elsewhere is asked later."""
        if self._run.description.elsewhere:
            return 1
        return sum(len(client.view("val")) for client in world.scoped(out).values())

    def makers(self, ahead: Sequence[Entry]) -> list[tuple[str, Method]]:
        """Which request was served by which method, as it was asked for, on the way to the model in force."""
        return [(request, seen) for request, _, seen in self._made(ahead)]

    def _made(self, ahead: Sequence[Entry]) -> Iterator[tuple[str, Method, Method]]:
        """The same: which request, the method as it was asked for, and what it was seen to be."""
        out: list[Request] = []
        for entry in _line(ahead):
            out.append(entry.request)
            method = entry.how.on(self._run.config, entry.method).method(entry.method).for_requests(out)
            yield entry.request.id, method, self._as_seen(entry, method)

    def _as_seen(self, entry: Entry, method: Method) -> Method:
        """The method as it says itself that it is.

        Where it says nothing of layers, it is NoT of those that its state shows it negated.
        """
        module = self._run.world(entry.seed).template.module
        if method.lineage == "anew" or method.perturbed(module) is not None or method.drawn(module):
            return method
        names = negated_by(self._run.folder.book(), entry.job)
        return NoT(layers=names) if names else method


def _line(ahead: Sequence[Entry]) -> list[Entry]:
    """The requests that made the model in force, or will have; the first of those that share a job."""
    served = {entry.served: entry for entry in reversed(in_force(ahead))}
    return [*reversed(served.values()), *(e for e in ahead if e.waiting)]


def reason_of(error: Exception) -> Reason:
    """The reason why a request was denied.

    Its rounds did not suffice, a gate said no to what came out, or it could not be served at all.
    """
    if isinstance(error, NotRecovered):
        return "not recovered"
    return "gate" if isinstance(error, Refused) else "refused"


def _in_so_many(rounds: int, trained: Line | None, column: str) -> float | None:
    """What the training spent in so many rounds, on average."""
    spent = None if trained is None else trained.get(column)
    return rounds * float(spent) / trained["round"] if trained is not None and is_measured(spent) and spent else None


def left_by(world: World, request: Request, others: Sequence[Request]) -> list[Request]:
    """The requests by which every row that a request asks for has left; none if some row is still in."""
    if not others or world.holds(request, others):
        return []
    needed = list(others)
    for other in reversed(others):  # as few as tell the whole of it, the oldest ones first
        rest = [one for one in needed if one is not other]
        if rest and not world.holds(request, rest):
            needed = rest
    return needed


def gone_already(request: Request, by: Sequence[Request]) -> str:
    """The sentence for a request that has nothing to take out."""
    names = listed((repr(one.id) for one in by), last="and")
    what = f"request{'s' if len(by) > 1 else ''} {names}"
    return f"Every training row that request {request.id!r} asks for is out already, by {what}."
