"""What a request is refused for, when it is filed and again when it is taken up.

Its rows are all gone and it keeps nothing more out, its method could not follow those that come before it, or nothing
could tell when they are forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import NotRecovered, Refused, UnfedError, listed, option
from unfed.folder.clients import elsewhere
from unfed.methods import Method, NoT
from unfed.requests.book import in_force
from unfed.requests.entry import Entry, Reason
from unfed.requests.gate import gate_of
from unfed.requests.options import Until
from unfed.requests.reversible import negated_by, turned_back, way_back
from unfed.runs import offers as lineage
from unfed.runs.together import Worker
from unfed.runs.world import World


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
            said = f" Whoever has the model in force can turn back {done}; {ends}."
        raise UnfedError(gone_already(request, by) + (said or " Nothing is left to do."))

    def _ends(self, method: Method, seed: int, done: str) -> bool:
        """Whether a method is one after which nobody can take back what was done."""
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

    def refuse_if_unable(self, config: Config, method: str, request: Request, ahead: Sequence[Entry]) -> None:
        """Refuse a method that could not serve the request after those that come before it."""
        lineage.welcome(config, method, request, [e.request for e in ahead])
        lineage.unbroken(self._run.config, method, _line(ahead))
        if ahead:
            own = config.method(method).for_requests([*(entry.request for entry in ahead), request])
            module = self._run.world(ahead[0].seed).template.module
            same = [seen for _, made, seen in self._made(ahead) if made == own]
            lineage.lasting(same[-1] if same else own, self.makers(ahead), module, own.title)

    def refuse_if_blind(self, entry: Entry, accepted: Sequence[Entry]) -> None:
        """Refuse a goal of which nothing could tell. What is not trained yet is judged at its turn."""
        run, goals = self._run, Until.of(entry.until).goals
        world, config = run.world(entry.seed), entry.how.on(run.config, entry.method)
        out = [*(e.request for e in accepted), entry.request]
        if "recovered" in goals and not self._held_out(world, out):
            raise UnfedError(
                f"{option('until', 'recovered')} cannot be judged here: no validation rows are held out; use"
                f" {option('until', 'N')}."
            )
        if "forgotten" not in goals or not run.trained(entry.seed):
            return
        evaluator = world.evaluator(out)
        gate_of(world.seeds.evaluation, world.classes, config, entry).measurable(
            evaluator.evidence(run.current(entry.seed))
        )

    def _held_out(self, world: World, out: Sequence[Request]) -> int:
        """How many validation rows there are once these are out; who is elsewhere is asked later."""
        if elsewhere(self._run.folder.description()):
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
    """The requests, of these, that made the model in force, or will have made it.

    They stand in the order of service, of those that shared a job the first.
    """
    served = {entry.served: entry for entry in reversed(in_force(ahead))}
    return [*reversed(served.values()), *(e for e in ahead if e.waiting)]


# --- what a request has left to take out, and why it is denied --------------------------------------------------------


def reason_of(error: Exception) -> Reason:
    """The reason why a request was denied.

    Its rounds did not suffice, a gate said no to what came out, or it could not be served at all.
    """
    if isinstance(error, NotRecovered):
        return "not recovered"
    return "gate" if isinstance(error, Refused) else "refused"


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
