"""What still carries a client, wherever it is known to be, and what to do about each.

    files of the run folder (`carriers.py`) ─ exports, reports, evidence (`handed-out.jsonl`) ─ what crossed the wire

Nothing is built. Backups and other copies are not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError, listed
from unfed.folder import carriers, consistency
from unfed.folder.carriers import Carrier
from unfed.folder.layout import client_list
from unfed.requests.book import in_force
from unfed.requests.entry import Entry, Job
from unfed.requests.reversible import inverse_by, turned_back, way_back, what_was_done
from unfed.runs.record import RunRecord


@dataclass(frozen=True)
class Affected:
    """One thing that carries a client."""

    kind: str
    """model, state, history, part, samples, undo, study, population, statistics, trajectory, export, report,
    comparison, index, evidence, upload or download."""
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
        raise UnfedError(
            "A centralised run has one holder of all data, so no client is in or out of it; what still carries a"
            " request stands in the report, and `unfed purge` deletes it."
        )
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
    clean = {Job(seed, name, label).path for name in compared for label in run.config.methods.run}
    return _Seen(seed, None, clean, carriers.look(run.folder, seed, (client,), clean, compared), tuple(compared))


# --- the folder -------------------------------------------------------------------------------------------------------


def _in_folder(run: RunRecord, client: str, seen: _Seen) -> Iterator[Affected]:
    for one in seen.found:
        what = f"{one.what}: it is in force" if _is_in_force(run, seen.seed, one) else one.what
        yield Affected(one.kind, one.file, what, _do(run, client, seen.entry, one))


def _turned_back(run: RunRecord, seen: _Seen) -> Iterator[Affected]:
    """The models in force that are without the client until a public perturbation is taken back."""
    told = {one.file for one in seen.found}
    purged = {entry.request.id for entry in run.folder.book().entries if entry.purged}
    for job, (name, what) in _ways_back(run, seen).items():
        if run.folder.model_file(job).exists() and f"models/{job.path.as_posix()}.safetensors" not in told:
            do = f"`{run.command('probe', '--request', name)}` shows how far; {_end(run, seen)}"
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


def _is_in_force(run: RunRecord, seed: int, one: Carrier) -> bool:
    served = run.folder.book().in_force(seed)
    job = Job(seed, served[-1].request.id, served[-1].method) if served else run.training_job(seed)
    return one.kind == "model" and run.folder.path / one.file == run.folder.model_file(job)


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


_CAN = "whoever has it can turn back"
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
            told = "ask whoever was given it to delete it; `unfed export` hands out the model in force"
            do = f"delete it and {told}" if there else f"it is not there as it was; {told}"
            if back is not None:
                what += f": {back[1]}"
                do = f"{_LASTS}; ask whoever was given it to take what they leave instead"
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
