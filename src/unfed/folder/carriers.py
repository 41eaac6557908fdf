"""Carriers: the files of a run that still carry what a request takes out, and what left the folder.

    θ* ──► served before it ──► THE REQUEST ──► served after it          what stands left of it, or grew out of that,
      └──► compared, tried in vain                                       carries it; what stands right of it does not

A model is without a request if it fulfilled it, was drawn without its rows, or began at a model without it; states say
at which model they began. A model that a public inverse turns back (`requests/reversible.py`) counts as a carrier once
another is in force. Histories, what a method keeps for itself, and running statistics that `begin` did not set back are
listed too. Momentum is not: no optimiser goes on from before a request.

`handed-out.jsonl` lists what left the folder, one line per file, written before the file. A new report replaces its
line; an export does not, because the earlier file may have been passed on.

A model kept by `training.keep_every` (`state/SEED/train.kept-ROUND`) is untouched by a client if the trajectory names
who was asked in every round up to it, the client was never asked, and no round was taken back on the way.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import Halted, UnfedError, UnfedWarning, option
from unfed.federation.history import History
from unfed.federation.state import OPTIMISER
from unfed.folder import locks as presence
from unfed.folder import study_results
from unfed.folder.folder import BEST, OVER, PARAMS, WITHOUT, RunFolder, left_out_at, saved_at
from unfed.folder.histories import HISTORY, HistoryLog
from unfed.folder.layout import client_list, names_of
from unfed.folder.study_results import left_out, read_at
from unfed.folder.subtraction import Differences
from unfed.measures.trajectory import Line
from unfed.methods import METHODS
from unfed.methods.retrain import KEPT
from unfed.records import Count, read_text
from unfed.requests.book import Book, overlap, owners
from unfed.requests.entry import Entry, Job, now
from unfed.requests.reversible import turned_back, way_back
from unfed.requests.saved_state import SavedState

# --- models that a training kept on its way, and who had a part in them -----------------------------------------------


def asked(folder: RunFolder, seed: int) -> dict[int, set[str]]:
    """Who was asked to train, by the rounds of a training that are recorded."""
    found: dict[int, set[str]] = {}
    for line in folder.lines():
        if (line["seed"], line["request"]) == (seed, None):
            for round, clients in (line.get("asked") or {}).items():
                found.setdefault(int(round), set()).update(clients)
    return found


def touched(folder: RunFolder, seed: int, clients: Collection[str]) -> list[Path]:
    """The kept models in which these clients may have a part.

    These are all of them where it is not known whose rows leave.
    """
    kept = folder.kept_states(folder.state_file(Job(seed, None, "train")))
    clean = _untouched(folder, seed, clients) if kept else {}
    return [path for round, path in kept.items() if round not in clean]


def _untouched(folder: RunFolder, seed: int, clients: Collection[str]) -> dict[int, Path]:
    """The kept models in which none of these clients has a part, by their rounds."""
    known, rounds = client_list(folder.path), asked(folder, seed)
    names = names_of(clients, known.names if known else {})
    first = next((r for r in range(1, len(rounds) + 2) if r not in rounds or rounds[r] & names), 0)
    found = {}
    for round, path in folder.kept_states(folder.state_file(Job(seed, None, "train"))).items():
        notes = {} if (saved := saved_at(path)) is None else saved.diary.to_json()
        if clients and round < first and not notes.get("careful") and not notes.get("aside"):
            found[round] = path
    return found


def before(folder: RunFolder, seed: int, clients: Collection[str]) -> History:
    """The newest kept model in which none of these clients has a part, and how many rounds made it.

    Raises:
        UnfedError: No such model is kept.
    """
    if not (clean := _untouched(folder, seed, clients)):
        rounds = sorted(asked(folder, seed).items())
        took = ((round, min(own)) for round, names in rounds if (own := names & {*clients}))
        when = next((f": client {name} took part in round {round}" for round, name in took), "")
        instead = f"{option('method', 'retrain')} with start = 'fresh'"
        raise UnfedError(f"No kept model is from before those who leave took part{when}; use {instead}.")
    round = max(clean)
    tensors, _ = storage.load(clean[round], "kept model")
    return History(rounds=round, shared={KEPT: storage.part(tensors)[PARAMS]})


# --- what left the folder ---------------------------------------------------------------------------------------------


HANDED_OUT = "handed-out.jsonl"
What = Literal["export", "report", "comparison", "index", "evidence"]


@dataclass(frozen=True)
class HandedFile:
    """A file that was written from what is in a run folder."""

    what: str
    file: str
    """Its path inside the run folder, or from the root of the disk."""
    sha256: str
    at: str
    seed: Count | None = None
    request: str | None = None
    method: str | None = None
    """Of an export, whose model it is."""

    @property
    def job(self) -> Job | None:
        if self.seed is None or self.method is None:
            return None
        return Job(self.seed, self.request, self.method)

    def path(self, folder: Path) -> Path:
        return folder / self.file


def hand_out(folder: RunFolder, what: What, path: Path, data: bytes, job: Job | None = None) -> None:
    """Enter a file in a run folder, and write it."""
    enter(folder, what, path, data, job)
    storage.deliver(path, data)


def enter(folder: RunFolder, what: What, path: Path, data: bytes, job: Job | None = None) -> None:
    """Enter a file that is about to be written; where nothing can be written down, that is said."""
    about: dict[str, Any] = {} if job is None else {"seed": job.seed, "request": job.request, "method": job.label}
    one = HandedFile(what, _name_inside(folder.path, path), hashlib.sha256(data).hexdigest(), now(), **about)
    try:
        with presence.held(folder.path, "requests", wait=-1):
            storage.sweep(folder.path.glob(f".{HANDED_OUT}.*.tmp"))
            lines = [line for line in handed(folder) if not _same_handed(line, one)]
            text = "".join(json.dumps(asdict(line), separators=(",", ":")) + "\n" for line in [*lines, one])
            storage.write_bytes(folder.path / HANDED_OUT, text.encode())
    except Halted as error:
        warnings.warn(f"{path} is not entered in {folder.path / HANDED_OUT}: {error}", UnfedWarning, stacklevel=3)


def _name_inside(folder: Path, path: Path) -> str:
    """How a file is called in the list: a folder that is moved takes its own files along."""
    full, own = path.absolute(), folder.absolute()
    return full.relative_to(own).as_posix() if full.is_relative_to(own) else str(full)


def _same_handed(known: HandedFile, new: HandedFile) -> bool:
    """Whether an entry stands for another: of an export, only the same content does."""
    same = (known.what, known.file) == (new.what, new.file)
    return same and (new.what != "export" or known.sha256 == new.sha256)


def handed(folder: RunFolder) -> list[HandedFile]:
    """What left a run folder, in the order in which it was last written."""
    path = folder.path / HANDED_OUT
    if not path.exists():
        return []
    lines = storage.content(path).splitlines() or [b""]  # it is begun with its first line
    return [read_text(HandedFile, text, f"Line {n} of {path}", "restore the file") for n, text in enumerate(lines, 1)]


# --- what carries a request -------------------------------------------------------------------------------------------


Kind = Literal[
    "model", "state", "history", "part", "samples", "undo", "study", "population", "statistics", "trajectory"
]
MEAN = "running_mean"
_OWN = (PARAMS, BEST, OPTIMISER)


@dataclass(frozen=True, slots=True)
class Carrier:
    """A file, or a folder of files, that carries what a request takes out."""

    request: str
    file: str
    """Its path inside the run folder, with slashes."""
    what: str
    kind: Kind
    part: str = ""
    """Which group of tensors, or of which request, where the rest of the file does not carry it."""


class ReadOnce(RunFolder):
    """A run folder for a look at many requests.

    Each file is read once, however many of them ask for it. What requests of one shared recovery have in common is
    looked up once.
    """

    def __init__(self, folder: RunFolder, book: Book) -> None:
        super().__init__(folder.path)
        self._book = book
        self.standing, self.after, self.in_force = cache(self._standing), cache(self._after), cache(self._in_force)
        self.samples = cache(self._samples)
        self.names_at = cache(lambda file: storage.names_of(self.path / file))
        self.left_out_of_probe, self.probe = cache(left_out), cache(read_at)
        self.found = cache(self._found)
        self.studied = cache(lambda: [(path, study_results.studied(path)) for path in study_results.study_files(self)])
        self.beside = cache(lambda file: (self.good_states(self.path / file), HistoryLog(self.path / file).files()))

    @cached_property
    def _states(self) -> list[tuple[Path, SavedState]]:
        return list(super().states())

    @cached_property
    def _lines(self) -> list[Line]:
        return super().lines()

    def states(self) -> Iterator[tuple[Path, SavedState]]:
        return iter(self._states)

    def saved(self, job: Job) -> SavedState | None:
        return self.jobs(job.seed).get(job.path)

    def lines(self) -> list[Line]:
        return self._lines

    def jobs(self, seed: int) -> Mapping[Path, SavedState]:
        """The saved states of a repetition by their jobs."""
        return self._by_seed.get(str(seed), {})

    @cached_property
    def _by_seed(self) -> dict[str, dict[Path, SavedState]]:
        found: dict[str, dict[Path, SavedState]] = {}
        for path, saved in self._states:
            job = path.relative_to(self.path / "state").with_suffix("")
            found.setdefault(job.parts[0], {})[job] = saved
        return found

    @cached_property
    def began_at(self) -> Mapping[Path, Sequence[Path]]:
        """The jobs that began at each job's model."""
        found: dict[Path, list[Path]] = {}
        for job, saved in (pair for own in self._by_seed.values() for pair in own.items()):
            if saved.base.model is not None:
                found.setdefault(Path(saved.base.model), []).append(job)
        return found

    def _in_force(self, seed: int) -> tuple[list[Entry], dict[int, int]]:
        """The requests in force in their order, and the index of each by its number."""
        line = self._book.in_force(seed)
        return line, {entry.number: i for i, entry in enumerate(line)}

    def _after(self, seed: int, place: int) -> frozenset[Path]:
        """The jobs of the requests that were served at a place or later, and what grew out of them."""
        line = (e for e in self.in_force(seed)[0] if (e.served or 0) >= place)
        return self.grown({Job(seed, name, e.method).path for e in line for name in e.names})

    @cached_property
    def started_over(self) -> list[tuple[Entry, list[str]]]:
        """The requests for which a method trained from the beginning, each with those methods."""
        known = cache(lambda label: _draws_anew(self._book.config, label))
        own = ((entry, [label for label in entry.methods if known(label)]) for entry in self._book.entries)
        return [(entry, labels) for entry, labels in own if labels]

    def grown(self, clean: Collection[Path]) -> frozenset[Path]:
        """These jobs, and those that began at their models."""
        found = new = set(clean)
        while new := {job for base in new for job in self.began_at.get(base, ())} - found:
            found = found | new
        return frozenset(found)

    def _standing(
        self, seed: int, clients: Sequence[str], clean: frozenset[Path], tried: frozenset[Path]
    ) -> list[Carrier]:
        """What no request alone decides: models, states, running statistics."""
        return _Look(self, seed, "", clients, clean, tried).standing()

    def _found(self, top: str, seed: int, kind: str) -> list[tuple[Path, str, Path]]:
        """The jobs that have a file of a kind, with its name in the folder, and itself."""
        files = sorted((self.path / top / str(seed)).rglob(kind))
        inside = [path.relative_to(self.path / top) for path in files]
        return [(job.with_suffix(""), f"{top}/{job.as_posix()}", path) for job, path in zip(inside, files, strict=True)]

    def _samples(self, seed: int) -> list[tuple[Path, str, frozenset[str], frozenset[str]]]:
        """The jobs of whose models scores are kept, each with its folder's name.

        Then the requests without whose rows they all are, and those whose rows can be taken out of them all.
        """
        files: dict[Path, list[Path]] = {}
        for job, _, path in self.found("samples", seed, "*.safetensors"):
            files.setdefault(job.parent, []).append(path)

        def all_say(own: Sequence[Path], what: str) -> frozenset[str]:
            return frozenset.intersection(*(frozenset(left_out_at(path, what)) for path in own))

        return [
            (job, f"samples/{job.as_posix()}", all_say(own, WITHOUT), all_say(own, OVER))
            for job, own in sorted(files.items())
        ]


def influence(folder: RunFolder, book: Book) -> list[Carrier]:
    """Every file that still carries what a request takes out, and how."""
    found: list[Carrier] = []
    folder, config = ReadOnce(folder, book), book.config
    for entry in (one for one in book.entries if one.accepted):
        found += carriers(folder, book, entry)
    compared = config.request_ids()
    for i, (name, request) in enumerate(zip(compared, config.request, strict=True)):
        for seed in config.seed_list:
            clean = frozenset(Job(seed, own, label).path for own in compared[i:] for label in config.methods.run)
            found += _Look(folder, seed, name, request.clients, clean).all()
    return found


def carriers(folder: RunFolder, book: Book, entry: Entry) -> list[Carrier]:
    """What still carries one request that was accepted.

    Of one that others had taken out before, it is what carries those.
    """
    folder = folder if isinstance(folder, ReadOnce) else ReadOnce(folder, book)
    if entry.left_by:
        found = [one for other in _left_by(book, entry) for one in carriers(folder, book, other)]
        return list({(one.file, one.part): replace(one, request=entry.request.id) for one in found}.values())
    clean = without(folder, book, entry)
    tried = frozenset(Job(entry.seed, name, label).path for label in entry.methods for name in entry.names) - clean
    later = [e for e in book.entries if e.seed == entry.seed and (e.leaves_out(entry) or _may_have(e))]
    scored = {name for e in later for name in e.names}
    look = _Look(folder, entry.seed, entry.request.id, entry.request.clients, clean, tried, scored)
    named = zip(book.config.request_ids(), book.config.request, strict=True)
    look.overlapping = [name for name, asked in named if overlap(asked.owners(), owners(entry.request))]
    look.differences = Differences(folder, book.config, book.entries, entry.request.id)
    return [*look.all(), *_turned_back(folder, book, entry)]


def _turned_back(folder: ReadOnce, book: Book, entry: Entry) -> Iterator[Carrier]:
    """Models without it that anyone who has them can turn back, and that are not in force any more."""
    line, index = folder.in_force(entry.seed)
    after = line[index[entry.number] :] if entry.number in index else []
    gone = [e for e in turned_back(book, after) if e.served != line[-1].served]
    how = f"anyone who has it can turn back {way_back(book, entry)}; it is not in force"
    for one, name in ((e, name) for e in gone for name in e.names):
        job = Job(entry.seed, name, one.method)
        if folder.model_file(job).exists():
            yield Carrier(entry.request.id, f"models/{job.path.as_posix()}.safetensors", how, "model")
        if (saved := folder.saved(job)) is not None and saved.purged is None:
            yield Carrier(entry.request.id, f"state/{job.path.as_posix()}.safetensors", how, "state")


def look(
    folder: RunFolder, seed: int, clients: Sequence[str], clean: frozenset[Path], compared: Sequence[str] = ()
) -> list[Carrier]:
    """What carries clients that no request was filed for.

    `clean` are the jobs that left them out, `compared` the requests of a comparison that did.
    """
    return _Look(ReadOnce(folder, folder.book()), seed, next(iter(compared), ""), clients, clean, scored=compared).all()


def without(folder: RunFolder, book: Book, entry: Entry) -> frozenset[Path]:
    """The jobs, by their paths, whose models are without what a request takes out."""
    folder = folder if isinstance(folder, ReadOnce) else ReadOnce(folder, book)
    if entry.left_by:
        others = [without(folder, book, other) for other in _left_by(book, entry)]
        return frozenset.intersection(*others) if others else frozenset()
    in_force = entry.number in folder.in_force(entry.seed)[1]
    found = folder.after(entry.seed, entry.served or 0) if in_force else frozenset()
    more = _drawn_without(folder, book, entry)
    return folder.grown(found | more) if more else found


def _left_by(book: Book, entry: Entry) -> list[Entry]:
    """The requests that took out what a request asked for which had nothing left to take out."""
    return [one for one in book.entries if one.request.id in entry.left_by]


def _drawn_without(folder: ReadOnce, book: Book, entry: Entry) -> set[Path]:
    """The jobs that started over without what a request takes out: no model of theirs ever knew it."""
    served = [
        (name, labels)
        for e, labels in folder.started_over
        if e.seed == entry.seed and e.leaves_out(entry)
        for name in e.names
    ]
    anew = [label for label in book.config.methods.run if _draws_anew(book.config, label)]
    compared = [(name, anew) for name in _compared_without(book.config, entry.request)] if anew else []
    return {Job(entry.seed, name, label).path for name, labels in [*served, *compared] for label in labels}


def _compared_without(config: Config, request: Request) -> Iterator[str]:
    """The requests of a comparison by which all owners of a request's rows have left."""
    gone, own = set[str](), owners(request)
    for name, asked in zip(config.request_ids(), config.request, strict=True):
        gone |= set(asked.clients)
        if own and gone >= own:
            yield name


def _may_have(other: Entry) -> bool:
    """Whether a request was tried, and its file no longer says without whose rows."""
    return other.begun is not None and not other.earlier and bool(other.attempts)


def _draws_anew(config: Config, label: str) -> bool:
    """Whether a method starts over, as far as that is known without building it."""
    kind = METHODS.get(config.methods.name_of(label))
    return kind is not None and kind.lineage == "anew"


@dataclass
class _Look:
    """A look through a repetition's files for what carries one request.

    `clean` are the jobs that left it out.
    """

    folder: ReadOnce
    seed: int
    request: str
    clients: Sequence[str]
    clean: frozenset[Path]
    tried: frozenset[Path] = frozenset()
    """Jobs that were to take it out, and whose models are not in force."""
    scored: Collection[str] = ()
    """Its own request and those after it: those who left are scored with those who leave, row by row, until purged."""
    overlapping: Collection[str] = ()
    """The requests of the comparison that may name the same rows."""
    differences: Differences | None = None
    """Decides which means tell of it; None where no request was filed."""

    @cached_property
    def _spoken_of(self) -> frozenset[str]:
        return frozenset((self.request, *self.scored, *self.overlapping))

    def all(self) -> list[Carrier]:
        standing = self.folder.standing(self.seed, tuple(self.clients), self.clean, self.tried)
        return [
            *(replace(one, request=self.request) for one in standing),
            *self._samples(),
            *self._undo(),
            *self._studies(),
            *self._population(),
            *self._trajectory(),
        ]

    def standing(self) -> list[Carrier]:
        """What only the jobs decide; requests of one shared recovery have it in common."""
        return [*self._models(), *self._jobs(), *self._statistics()]

    def _carrier(self, file: str, what: str, kind: Kind, part: str = "") -> Carrier:
        return Carrier(self.request, file, what, kind, part)

    def _grew(self, job: Path, what: str) -> str:
        """Whether something was trained with it, grew out of that, or tried to take it out."""
        if job in self.tried:
            return f"{what} that was to take it out, and is not in force"
        if len(job.parts) == 2:
            return f"{what} that was trained with it"
        return f"{what} that was trained with it, or grew out of one that was"

    def _models(self) -> Iterator[Carrier]:
        for job, file, _ in self.folder.found("models", self.seed, "*.safetensors"):
            if job not in self.clean:
                yield self._carrier(file, self._grew(job, "a model"), "model")

    def _jobs(self) -> Iterator[Carrier]:
        """States as a whole, and of clean ones the parts that come from before."""
        for job, saved in self.folder.jobs(self.seed).items():
            file = f"state/{job.as_posix()}.safetensors"
            if job.name == "before" or saved.purged:
                continue
            if job not in self.clean:
                yield self._carrier(file, self._grew(job, "the state of a model"), "state")
            good, logs = self.folder.beside(file)
            for kept in good:
                what = self._grew(job, "an earlier state of a model")
                yield self._carrier(kept.relative_to(self.folder.path).as_posix(), what, "state")
            train = job.parts[1:] == ("train",)
            for state in touched(self.folder, self.seed, self.clients) if train else ():
                what = "a model that training kept after it had taken part"
                yield self._carrier(state.relative_to(self.folder.path).as_posix(), what, "state")
            for label, history in saved.histories.items():
                own = [client for client in self.clients if client in history.clients]
                what = f"records of client {', '.join(own)}" if own else "records of others, made beside it"
                if saved.log is not None:
                    log = f"state/{(job.parent / saved.log.file).as_posix()}"
                    yield self._carrier(log, f"history for {label}: {what}", "history")
                else:
                    yield self._carrier(file, f"history for {label}: {what}", "part", HISTORY)
            for own_log in logs:
                if saved.log is None or own_log.name != saved.log.file:
                    what = "history that no state counts any more"
                    yield self._carrier(own_log.relative_to(self.folder.path).as_posix(), what, "history")
            if job in self.clean:
                groups = {name.partition("/")[0] for name in self.folder.names_at(file)}
                for group in sorted(g for g in groups if g not in _OWN):
                    yield self._carrier(file, f"what its method kept beside the model ({group})", "part", group)

    def _samples(self) -> Iterator[Carrier]:
        for job, file, without, apart in self.folder.samples(self.seed):
            if len(job.parts) == 2:
                if job not in self.clean:
                    yield self._carrier(file, "scores by a model that carries it", "samples")
            elif (asked := job.parts[1]) in self._spoken_of and self.request not in without:
                what = "how a model scores its rows" + self._among_others(asked)
                part = self.request if asked != self.request and self.request in apart else ""
                yield self._carrier(file, what, "samples", part)

    def _among_others(self, request: str) -> str:
        return "" if request in (self.request, *self.overlapping) else ", among those of others"

    def _undo(self) -> Iterator[Carrier]:
        for job, file, path in self.folder.found("undo", self.seed, "*.json"):
            what = "what came back of it when it was probed"
            if job.parts[1] in (self.request, *self.overlapping):
                yield self._carrier(file, what, "undo")
            elif self.differences is not None and self.request not in self.folder.left_out_of_probe(path):
                probe = self.folder.probe(path)
                if probe is None and job.parts[1] in self._spoken_of:  # of a layout that this version cannot cut
                    yield self._carrier(file, what + self._among_others(job.parts[1]), "undo")
                elif probe is not None and self.differences.of_probe(probe) != probe:
                    yield self._carrier(file, what + self._among_others(job.parts[1]), "undo", self.request)

    def _studies(self) -> Iterator[Carrier]:
        """What older versions computed from a model with it."""
        for path, studied in self.folder.studied():
            jobs = [job for job in studied if job.seed == self.seed]
            if any(job.path not in self.clean for job in jobs):
                what = "numbers computed from a model that carries it"
                yield self._carrier(path.relative_to(self.folder.path).as_posix(), what, "study")

    def _population(self) -> Iterator[Carrier]:
        """What many models say about its rows, by their numbers (`study_results.py`)."""
        for name in (self.request, *self.overlapping):
            file = f"population/{name}.json"
            if name and (self.folder.path / file).exists():
                yield self._carrier(file, "how exposed its rows are, one by one", "population")

    def _trajectory(self) -> Iterator[Carrier]:
        """Means from which one over a few of its rows follows."""
        if self.differences is not None and self.differences.of_trajectory:
            what = "how right models were on fewer than 10 of its rows, as it stands there or by subtraction"
            yield self._carrier(self.folder.trajectory.name, what, "trajectory", self.request)

    def _statistics(self) -> Iterator[Carrier]:
        """Running statistics that went on from the model before, in models without it."""
        states = self.folder.jobs(self.seed)
        kept = {job: names for job in self.clean if (names := _carried(states, job, self.clean))}
        for job, names in sorted(kept.items()):
            file = f"models/{job.as_posix()}.safetensors"
            if (self.folder.path / file).exists():
                what = f"running statistics of {len(names)} layers: not begun afresh, moved on retained data since"
                yield self._carrier(file, what, "statistics")


def _carried(
    states: Mapping[Path, SavedState], job: Path, clean: Collection[Path], seen: frozenset[Path] = frozenset()
) -> list[str]:
    """The running statistics of a model that no job since the request has started afresh."""
    saved = states.get(job)
    if saved is None or (beginning := saved.diary.beginning) is None:
        return []
    kept = [n for n in beginning.shapes if n.endswith(MEAN) and beginning.changes.get(n) != "set to zero"]
    base = Path(saved.base.model or ".")
    if base not in clean or base in (seen := seen | {job}):
        return kept
    before = _carried(states, base, clean, seen)
    return [name for name in kept if name in before]
