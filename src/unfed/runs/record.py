"""A run as its folder describes it; nothing that it names is built to read it.

`RunRecord` holds config, jobs, trajectory and requests. `logged` enters rounds in the log of signed requests, where the
run keeps one (`RUN/trust/`): the extra `unfed.trust` is loaded by name, only then, and no work is done without it.
`affected` lists what still carries a client (files of the folder, what was handed out, what crossed the wire), and what
to do about each; backups and other copies are not known here.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import plugins
from unfed.config.config import Config
from unfed.errors import UnfedError, listed, typed
from unfed.folder import carriers, consistency, deny, study_results
from unfed.folder.carriers import Carrier
from unfed.folder.folder import RunFolder
from unfed.folder.info import RunInfo
from unfed.folder.job_notes import last_starts
from unfed.folder.layout import MethodFacts, client_list, how_to_go_on
from unfed.measures import trajectory
from unfed.measures.trajectory import Line
from unfed.requests.book import in_force, request_file
from unfed.requests.entry import Entry, Job
from unfed.requests.options import Until
from unfed.requests.reversible import inverse_by, turned_back, way_back, what_was_done
from unfed.runs import description, together
from unfed.runs.progress import Watch

_RUNS_CODE = ("evaluate", "forget", "probe", "resume")
"""Commands that build what a run names, and so want leave for it."""


class RunRecord:
    """What is written in a run folder: its config, its jobs, its trajectory, its requests."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.only: frozenset[str] | None = None
        """Of a comparison, the methods that are looked at and run; None: all."""
        self.description = folder.description()
        read = Config.kept(self.description.config, str(folder.path / "run.json"))
        self.config = deny.with_key(read, folder.path)

    def permit(self) -> None:
        """Refuse, before any work is begun, code that the config or a request names and that was not allowed."""
        plugins.permit(self.config.code(), self.folder.path / "run.json")
        for entry in self.folder.book().entries:
            named = self.config.methods.code([entry.method], "method") if entry.accepted else ()
            plugins.permit(named, request_file(self.folder.path, entry))

    def one_seed(self, seed: int | None) -> int:
        """The repetition that is meant; a run with several must say which."""
        seeds = self.config.seed_list
        if seed is None and len(seeds) > 1:
            raise UnfedError(f"This run has {len(seeds)} repetitions; say which one with --seed, {listed(seeds)}.")
        if seed is not None and seed not in seeds:
            raise UnfedError(f"This run has no seed {seed}; use {listed(seeds)}.")
        return seeds[0] if seed is None else seed

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> list[str]:
        """The methods of the comparison, in their order."""
        return [label for label in self.config.methods.run if self.only is None or label in self.only]

    def jobs(self) -> list[tuple[Job, int]]:
        """Every job of this run in its order, with its number of rounds."""
        found: list[tuple[Job, int]] = []
        for seed in self.config.seed_list:
            if self.trains:
                found.append((self.training_job(seed), self.config.training.rounds))
            for label in self.labels:
                for request in self.description.requests:
                    found.append((Job(seed, request.id, label), self.about(label).rounds))
        for entry in (one for one in self.folder.book().entries if not one.left_by):
            rounds = Until.of(entry.until).rounds or self.about(entry.method, entry).rounds
            if (shared := _shared(entry)) and (shared, rounds) not in found:
                found.append((shared, rounds))
            found.append((Job(entry.seed, entry.request.id, entry.method), rounds))
        return found

    @property
    def trains(self) -> bool:
        """Whether θ* is made here; a call of `unlearn` is handed it."""
        return not self.description.call

    def about(self, label: str, entry: Entry | None = None) -> MethodFacts:
        """Title, needs and rounds of a method as they were written down when it was chosen.

        Nothing is built for it.
        """
        if served := ((entry and entry.described) or {}).get("served_by"):
            return MethodFacts.model_validate(served)
        return self.description.methods.get(label) or description.plain_facts(self.config, label)

    def ahead(self) -> list[tuple[Job, int]]:
        """The jobs without those of requests on which no one works any more."""
        entries = self.folder.book().entries
        over = {Job(e.seed, e.request.id, e.method) for e in entries if e.owed or not e.accepted}
        wanted = {_shared(e) for e in entries if e.accepted and not e.owed}
        over |= {job for e in entries if (job := _shared(e)) is not None and job not in wanted}
        return [(job, rounds) for job, rounds in self.jobs() if job not in over]

    def trained(self, seed: int) -> bool:
        """Whether θ* of a repetition was made; it may have been purged since."""
        job = self.training_job(seed)
        there = self.folder.model_file(job).exists() or self.folder.buried(job) is not None
        return self.folder.finished(job) and there

    def training_job(self, seed: int) -> Job:
        """The job that makes θ* of a repetition."""
        return Job(seed, None, "train")

    # --- for a report -------------------------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """The trajectory; the last line of a job that has ended says `done`, whatever made it end.

        Of a job that was begun again, only what came since; the file has it all.
        """
        lines = last_starts(self.folder.lines())
        if self.only is not None:
            lines = [line for line in lines if line["method"] not in {*self.config.methods.run} - self.only]
        last = trajectory.last_of_each(lines)
        for job, _ in self.jobs():
            if self.folder.finished(job) and job.key in last:
                last[job.key]["done"] = True
        for line in lines:
            if back := self.description.undone.get(line["method"], {}).get(line["request"] or ""):
                line["undoes"] = list(back)
        return lines

    def way_out(self, entry: Entry) -> str:
        """How a request that is owed can be settled."""
        name = entry.request.id
        rounds = self.config.unlearning.retrain_rounds or self.config.training.rounds
        again = f"`{self.command('forget', '--id', name, '--method', 'retrain', '--until', rounds)}`"
        if self.description.elsewhere:
            again = f'the same run config with mode="unlearn" methods="retrain" until="{rounds}"'
        if self.description.app:
            return f"{self.going_on}, tries it again; `{self.command('withdraw', name)}` lets it go"
        accept = ""
        if entry.gate is not None and not self.description.elsewhere:
            accept = f"`{self.command('forget', '--id', name, '--accept')}` puts its model in force all the same, "
        let_go = "" if self._signed(name) else f", {self.letting_go(name)} lets it go"
        return f"{accept}{again} trains again without it{let_go}"

    def letting_go(self, name: str) -> str:
        """What lets a request go: of a signed one, its client's signed revocation."""
        if self._signed(name):
            return f"`{self.command('withdraw', name, '--revocation', 'FILE')}` with its client's signed revocation"
        return f"`{self.command('withdraw', name)}`"

    def _signed(self, name: str) -> bool:
        return (self.folder.path / "trust" / "requests" / f"{name}.json").exists()

    @property
    def going_on(self) -> str:
        """What goes on with this run, after 'go on with '; not always a command of ours."""
        if self.description.elsewhere or self.description.call:
            return how_to_go_on(self.description, self.folder.path)
        return f"`{self.command('resume')}`"

    def no_model(self, job: Job) -> str:
        """Why a job of this run has no model though none was purged, and what can be done about it."""
        mine = [e for e in self.folder.book().entries if (e.seed, e.method) == (job.seed, job.label)]
        mine = [e for e in mine if job.request in e.names]
        saved = self.folder.saved(job)
        settled = bool(mine) and not any(entry.waiting for entry in mine)
        if saved is not None and saved.finished and (settled or saved.pruned):
            return consistency.gone(self.folder.model_file(job))
        if settled:
            what = f"Request {mine[0].request.id!r} is {mine[0].standing} and left no model"
            return f"{what}: {self.way_out(mine[0])}." if mine[0].owed else f"{what}; ask again under another --id."
        return f"This run has no model {job.path.as_posix()} yet; go on with {self.going_on}."

    def command(self, name: str, *arguments: object) -> str:
        """A command for this run as one types it: quoted, and with leave for code where the run needs it."""
        leave = ["--allow-code"] if name in _RUNS_CODE and self.config.code() else []
        return typed(name, self.folder.path, *arguments, *leave)

    def info(self) -> RunInfo:
        """`run.json` with the requests that came later, and what is known of their models."""
        book = self.folder.book()
        entries, own = book.entries, description.plain_request
        asked = [description.request_info(e, self.way_out, e.described or own(e.request)) for e in entries]
        shared = [own(one) for one in together.shared_requests(entries)]
        served = {(e.seed, e.request.id): self.about(e.method, e) for e in entries}
        needs = {
            job: () if job.request is None else served.get((job.seed, job.request), self.about(job.label)).needs
            for job, _ in self.jobs()
        }
        return RunInfo.of(
            {
                **self.description.to_json(),
                "requests": [*(one.to_json() for one in self.description.requests), *asked, *shared],
                "methods": {**self.description.methods} | {e.method: self.about(e.method, e) for e in entries},
                "influence": carriers.influence(self.folder, book),
                "undo": study_results.measured(self.folder, self.config),
                "probes_purged": study_results.purged(self.folder),
                "population": study_results.of_run(self.folder),
                "jobs": [description.job_info(self.folder, job, rounds, needs[job]) for job, rounds in self.jobs()],
            }
        )


def _shared(entry: Entry) -> Job | None:
    """The job that a request shares with others, if it does."""
    return None if entry.shared is None else Job(entry.seed, entry.shared, entry.method)


# --- the log of signed requests, for a run that keeps one: the extra that writes it -----------------------------------


def keeps_log(run: Path) -> bool:
    """Whether a run has a log, or had one when a state was saved.

    One that has lost its description, or all of it, is refused by its reader.
    """
    there = any((run / "trust" / name).exists() for name in ("operator.json", "log.jsonl"))
    return there or bool(logs_named(RunFolder(run)))


def logs_named(folder: RunFolder) -> dict[str, Path]:
    """The origins of the logs that were kept when a run's states were saved, each with such a state."""
    said = ((saved.bound.log, path) for path, saved in folder.states())
    return {str(origin): path for origin, path in said if origin}


def logged(run: RunRecord, watch: Watch | None = None) -> AbstractContextManager[Watch]:
    """The watch, with the log behind it where the run keeps one."""
    if not keeps_log(run.folder.path):
        return nullcontext(watch or Watch())
    found: AbstractContextManager[Watch] = _extra("logbook").logged(run, watch)
    return found


def signing_client(run: Path, request: str) -> str | None:
    """The client that signed a request; None where the operator did, or it came unsigned."""
    agent: str | None = _extra("folder").TrustFolder(run).agent(request) if keeps_log(run) else None
    return None if agent == "operator" else agent


def begin_log(run: Path, key: Path) -> None:
    """Begin the log of a run, signed by the operator's key; one that was begun with it goes on."""
    _extra("folder").TrustFolder.begin(run, key)


def request_name(folder: RunFolder, given: dict[str, Any]) -> str:
    """A request's id made from what is asked, so that asking twice is asking once.

    The log keeps ids for good, so where there is one an id tells no one who left, and no one can try out which rows.
    """
    plain = description.request_id(given)
    asked_before = any(entry.request.id == plain for entry in folder.book().entries)  # before the log began, perhaps
    if asked_before or not keeps_log(folder.path):
        return plain
    asked = json.dumps({kind: value for kind, value in given.items() if value}).encode()
    secret: bytes = _extra("folder").TrustFolder(folder.path).secret
    return f"r-{hmac.digest(secret, b'unfed request' + asked, hashlib.sha256).hex()[:16]}"


def _extra(part: str) -> Any:
    return importlib.import_module(f"unfed.trust.{part}")


# --- what still carries a client, wherever it is known to be, and what to do about each -------------------------------


@dataclass(frozen=True)
class Affected:
    """One thing that carries a client."""

    kind: str
    """As of a `Carrier` or a `HandedFile`, or upload or download."""
    file: str
    what: str
    do: str


@dataclass(frozen=True)
class _Seen:
    """A repetition as one client is in it."""

    seed: int
    entry: Entry | None
    """By which request the client left, or is to leave."""
    clean: Collection[Path]
    """The jobs whose models are without it."""
    found: Sequence[Carrier]
    compared: tuple[str, ...] = ()
    """Where no request was filed for it: those of a comparison that leave it out."""


def affected(run: RunRecord, client: str) -> list[Affected]:
    """Every model, state, export, report and upload that still carries a client."""
    if run.config.setting == "central":
        raise UnfedError("A centralised run has no clients; its report lists what still carries a request.")
    known = clients_of(run)
    if client not in known:
        raise UnfedError(f"This run has no client {client!r}; it has {listed(sorted(known))}.")
    found: list[Affected] = []
    seeds = [_seen(run, client, seed) for seed in run.config.seed_list]
    for seen in seeds:
        found += _in_folder(run, client, seen)
        found += _turned_back(run, seen)
    found += _handed_out(run, seeds)
    if run.description.elsewhere:
        for seen in seeds:
            found += _crossed(run, client, seen)
    return found


def clients_of(run: RunRecord) -> list[str]:
    """Who ever took part, or was named as a leaver."""
    known = client_list(run.folder.path)
    order = known.order if known else ()
    named = [name for entry in run.folder.book().entries for name in entry.request.clients]
    return list(dict.fromkeys([*run.description.clients, *order, *named]))


def _seen(run: RunRecord, client: str, seed: int) -> _Seen:
    book = run.folder.book()
    entries = book.entries
    own = [e for e in entries if e.accepted and e.seed == seed and client in e.request.clients]
    entry = next(iter([*in_force(own), *own]), None)
    if entry is not None:
        clean = carriers.without(run.folder, book, entry)
        return _Seen(seed, entry, clean, carriers.carriers(run.folder, book, entry))
    asked = [i for i, request in enumerate(run.config.request) if client in request.clients]
    compared = run.config.request_ids()[asked[0] :] if asked else ()
    clean = frozenset(Job(seed, name, label).path for name in compared for label in run.config.methods.run)
    return _Seen(seed, None, clean, carriers.look(run.folder, seed, (client,), clean, compared), tuple(compared))


# --- the folder -------------------------------------------------------------------------------------------------------


def _in_folder(run: RunRecord, client: str, seen: _Seen) -> Iterator[Affected]:
    served = run.folder.book().in_force(seen.seed)
    job = Job(seen.seed, served[-1].request.id, served[-1].method) if served else run.training_job(seen.seed)
    in_force = run.folder.model_file(job)
    for one in seen.found:
        here = one.kind == "model" and run.folder.path / one.file == in_force
        what = f"{one.what}: it is in force" if here else one.what
        yield Affected(one.kind, one.file, what, _do(run, client, seen.entry, one))


def _turned_back(run: RunRecord, seen: _Seen) -> Iterator[Affected]:
    """The models in force that are without the client until a public perturbation is taken back."""
    shown = {one.file for one in seen.found}
    purged = {entry.request.id for entry in run.folder.book().entries if entry.purged}
    for job, (name, what) in _ways_back(run, seen).items():
        if run.folder.model_file(job).exists() and f"models/{job.path.as_posix()}.safetensors" not in shown:
            do = f"`{run.command('probe', '--request', name)}` shows how far; {_end(run, seen)}"
            if run.description.elsewhere:
                do = f"`{run.command('report')}` shows how far, if the server probed it; {_end(run, seen)}"
            if name in purged:
                do = f"how far cannot be shown any more, for the request was purged; {_end(run, seen)}"
            yield Affected("model", f"models/{job.path.as_posix()}.safetensors", what, do)


def _end(run: RunRecord, seen: _Seen) -> str:
    command = ending(run, seen.entry) if seen.entry else ""
    return f"`{command}` ends it" if command else _LASTS


def ending(run: RunRecord, entry: Entry) -> str:
    """The command that ends the way back to what a request took out.

    It is a request of its own, for a tuned Retrain. Empty for a list of rows, and where no request can be filed here.
    """
    asked = entry.request
    whom = [word for name in asked.clients for word in ("--client", name)]
    whom += [word for label in asked.classes for word in ("--class", str(label))]
    if not whom or run.description.elsewhere or run.description.call:
        return ""
    seed = ["--seed", entry.seed] if len(run.config.seed_list) > 1 else []
    return run.command("forget", *whom, *seed, "--id", f"{asked.id}-lasts")


def _ways_back(run: RunRecord, seen: _Seen) -> dict[Job, tuple[str, str]]:
    """The jobs whose models can be rid of what took the client out: for which request, and how."""
    book = run.folder.book()
    line = book.in_force(seen.seed)
    names = () if seen.entry is None else seen.entry.left_by or (seen.entry.request.id,)
    found = {
        Job(seen.seed, entry.request.id, entry.method): (
            one.request.id,
            f"{_CAN} {way_back(book, one)}",
        )
        for place, one in enumerate(line)
        if one.request.id in names
        for entry in turned_back(book, line[place:])
    }
    for label in run.config.methods.run if seen.compared else ():
        first = seen.compared[0]
        if how := inverse_by(book, run.config, Job(seen.seed, first, label)):
            done = what_was_done(run.config, label, first, how)
            undone, back = run.description.undone.get(label, {}), False
            for name in seen.compared:
                back ^= name in undone and name != first  # as published, every further request turns the layer round
                said = f"request {name!r} turned back" if back else _CAN
                found[Job(seen.seed, name, label)] = first, f"{said} {done}"
    return found


def _do(run: RunRecord, client: str, entry: Entry | None, one: Carrier) -> str:
    if entry is None:
        forget = f"`{run.command('forget', '--client', client)}`"
        if run.description.elsewhere:
            forget = f'the same run config with mode="unlearn" forget-clients="{client}"'
        return f"{forget}, then `unfed purge` it"
    name = entry.request.id
    purge = listed((f"`{run.command('purge', '--request', one)}`" for one in entry.left_by or [name]), last="and")
    if entry.waiting:
        return f"request {name!r} is {entry.standing}: {run.going_on}, then {purge}"
    if entry.owed:
        return f"request {name!r} is {entry.standing}: {run.way_out(entry)}; then {purge}"
    if one.kind == "statistics":
        return "part of a model that stays; a later request by sealed or retrain begins them afresh"
    return purge


_CAN = "anyone who has it can turn back"
_LASTS = "sealed and retrain leave no way back"
_PAGES = {
    "report": ("a report", "`unfed report`"),
    "comparison": ("a comparison", "`unfed compare`"),
    "index": ("an index of runs", "`unfed index`"),
    "evidence": ("an evidence bundle", "`unfed bundle`"),
}
"""What it is called, and what writes it again."""


# --- outside ----------------------------------------------------------------------------------------------------------


def _handed_out(run: RunRecord, seeds: Sequence[_Seen]) -> Iterator[Affected]:
    where, of = run.folder.path, {seen.seed: seen for seen in seeds}
    for one in carriers.handed(run.folder):
        path = one.path(where)
        there = consistency.file_digest(path) == one.sha256
        if one.what == "export":
            if one.job is None or one.job.seed not in of:
                continue
            back = _ways_back(run, of[one.job.seed]).get(one.job)
            if one.job.path in of[one.job.seed].clean and back is None:
                continue
            what = f"the model {one.job.path.as_posix()}, exported on {one.at} (SHA-256 {one.sha256})"
            shown = "ask everyone who was given it to delete it; `unfed export` hands out the model in force"
            do = f"delete it and {shown}" if there else f"it is not there as it was; {shown}"
            if back is not None:
                what += f": {back[1]}"
                do = f"{_LASTS}; ask everyone who was given it to take what they leave instead"
        else:
            called, again = _PAGES.get(one.what, _PAGES["report"])
            what = f"{called} of {one.at}: names and numbers of its requests, no weights"
            again = f"`{run.command('report')}`" if one.what == "report" else again
            do = f"{again} says how it stands now; delete copies that must not name it"
            do = do if there else f"it is not there as it was; {do}"
        yield Affected(one.what, one.file, what, do)


def _crossed(run: RunRecord, client: str, seen: _Seen) -> Iterator[Affected]:
    """What nodes sent and were sent while a job carried the client, as the trajectory tells it."""
    asked: dict[Path, dict[int, set[str]]] = {}
    lines: Sequence[Mapping[str, Any]] = run.folder.lines()
    for line in lines:
        if line["seed"] == seen.seed:
            rounds = asked.setdefault(Job(line["seed"], line["request"], line["method"]).path, {})
            for round, clients in (line.get("asked") or {}).items():
                rounds.setdefault(int(round), set()).update(clients)
    for job, rounds in asked.items():
        if job in seen.clean or not rounds:
            continue
        file = f"models/{job.as_posix()}.safetensors"
        if mine := sum(client in clients for clients in rounds.values()):
            what = f"updates of client {client} in {mine} rounds of {job.as_posix()}"
            yield Affected("upload", file, what, "none is kept here but in histories; the model they went into counts")
        others = listed(sorted(set().union(*rounds.values())), last="and")
        what = f"the models of {len(rounds)} rounds of {job.as_posix()}, sent to {others}"
        yield Affected("download", file, what, "ask these nodes to delete what they keep of them")
