"""Which numbers would tell of fewer than ten purged rows, alone or by subtraction, and how they go.

Every number is a mean over a set of rows under one model. What a request took out itself is its atom: no set parts it.
A purged atom of fewer than ten rows is hidden, by two rules:

    1. No number is over forgotten rows with the atom among them: forget, own, earlier, losses, again, gate, probes.
    2. The lines that show one model all count the atom as retained, or none does. A model is shown by the job that made
       it and, at round 0 and `before`, by the jobs that begin at it: where these count otherwise, their Retain goes.

So no linear combination of numbers of one model isolates the atom. By rule 1 it is in retained sets alone, by rule 2 in
all of them or in none. All of them hold the rows that never left; in a combination without those, the weights of
retained sets sum to zero, and so does the atom's. Atoms that are not hidden have ten rows or more.

Validation rows that leave with a request are in no forgotten set, so rule 2 alone is about them: what a job that
begins at a model says of Validation there goes, and so does the drop that its gate read.

A comparison's requests are atoms too, hidden where they are few and may be purged ones. They part served requests'
atoms at θ*, the one model that both show: there the served lines go where a purged request may be parted.

Lines grow or shrink by it, so every state that vouches for them vouches for the new ones: the states first, the
trajectory last. While the old one is there it tells which states have moved, so a killed process is gone on with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.folder.consistency import TRAJECTORY
from unfed.folder.folder import RunFolder
from unfed.folder.layout import Undoing
from unfed.measures import trajectory
from unfed.measures.evaluator import FEWEST, GONE, PURGED, too_few
from unfed.measures.trajectory import JobKey, Line, job_of
from unfed.records import Plain
from unfed.requests.book import overlap, owners
from unfed.requests.entry import Entry, Job
from unfed.requests.saved_state import SavedState
from unfed.values import Value, is_measured, not_measured

OWN = ("forget", "own", "forget_loss", "loss_gap", "mia")
RETAIN = ("retain", "retain_loss", "loss_gap")
BEFORE = "validation_before"
VALIDATION = ("validation", BEFORE)
AMONG = not_measured(f"fewer than {FEWEST} purged rows would follow from it")
PROBED = {"forget", "forget_rise", "area", "areas", "rounds_until_back", "retain", "losses", "peak"}
PROBED |= {"true", "variation", "variation_of_equal_shares", "back_1", "back_5", "class_back"}
PROBED |= {"reads_5", "reads_20", "reads_100"}
"""What a probe tells of forgotten and retained rows."""


@dataclass(frozen=True)
class Atom:
    """The rows that a purged request took out itself, few to train on or few for validation."""

    request: str
    names: frozenset[str]
    """Whose lines are about its rows: its own, and those of the job that it shared."""
    why: str
    """What stands in the place of the numbers over its training rows; empty where these are many."""
    retained: tuple[str, ...]
    """The numbers that count it where it is retained."""
    deleted: bool = False
    """Whether its owners had deleted it: it could not be scored once it was asked for."""


class Differences:
    """Decides which numbers of a run may stand, as its requests are purged; `also` counts as purged."""

    def __init__(self, folder: RunFolder, config: Config, entries: Sequence[Entry], also: str = "") -> None:
        self._folder, described = folder, folder.description()
        self._compared = list(config.request_ids())
        self._about: dict[str, Plain] = {one.id: one.to_json() for one in described.requests}
        self._about |= {e.request.id: e.described or {} for e in entries}
        purged = [e for e in entries if e.purged or e.request.id == also]
        atoms = [self._atom(e.request.id, e.names, bool(e.left_by), e.request.deleted) for e in purged]
        self._parted: set[int] = set()
        for entry in purged:
            near = [asked for asked in config.requests() if overlap(owners(asked), owners(entry.request))]
            alone = not (entry.earlier or entry.together or len(near) > 1)
            if near and not (alone and _same(near[0], entry.request)):
                self._parted.add(entry.seed)
            atoms += [self._atom(one.id, (one.id,)) for one in near]
        self.atoms = [atom for atom in atoms if atom.retained]
        self._saved = cache(folder.saved)
        self._lines = folder.lines() if self.atoms or self._parted else []
        self._also = also

    @cached_property
    def _last(self) -> dict[Path, Line]:
        return {_path(job_of(line)): line for line in self._lines}

    def _rows(self, request: str) -> Any:
        return self._about.get(request, {}).get("forgotten_rows")

    def _atom(self, request: str, names: Iterable[str], left: bool = False, deleted: bool = False) -> Atom:
        rows, held = self._rows(request), self._about.get(request, {}).get("validation_rows")
        few = not left and (rows is None or 0 < rows < FEWEST)
        retained = (RETAIN if few else ()) + (VALIDATION if held is None or 0 < held < FEWEST else ())
        return Atom(request, frozenset(names), too_few(rows) if few else "", retained, deleted)

    @cached_property
    def unsaid(self) -> set[str | None]:
        """Whose lines do not say what Validation was before."""
        return {line["request"] for line in self._lines if self.of(line).get(BEFORE) == AMONG}

    @cached_property
    def of_trajectory(self) -> bool:
        """Whether a number of the trajectory must go; a request's own lines tell soonest."""
        return any(self.of(line) != line for line in sorted(self._lines, key=lambda one: one["request"] != self._also))

    def _out_at(self, job: Path) -> frozenset[str]:
        """The requests whose rows a job's last line does not count as retained."""
        return _scope(self._last[job]) if job in self._last else frozenset()

    # --- lines ----------------------------------------------------------------------------------------------------

    def of(self, line: Line) -> Line:
        """The line without the numbers that must go."""
        made: dict[str, Any] = dict(line)
        if line["request"] is None:
            return line
        base, begins = self._base(line), line["round"] == 0
        for atom in self.atoms:
            if atom.why:
                self._forgotten(made, atom)
            counted = base is not None and bool(atom.names & self._out_at(base))
            if base is None or counted != bool(atom.names & _scope(line)):
                _hide(made, atom.retained if begins else {BEFORE} & {*atom.retained}, AMONG)
        at_first = base is None or len(base.parts) == 2  # θ*
        if at_first and line["seed"] in self._parted and line["request"] not in self._compared:
            _hide(made, (*RETAIN, *OWN, *VALIDATION) if begins else (BEFORE,), AMONG)
            made |= {"earlier": _blank(line["earlier"], AMONG)} if begins and line.get("earlier") else {}
        return made  # type: ignore[return-value]

    def _forgotten(self, made: dict[str, Any], atom: Atom) -> None:
        """Rule 1: no mean over forgotten rows with the atom among them."""
        earlier = made.get("earlier") or {}
        if made["request"] in atom.names and not atom.deleted:
            _hide(made, OWN, atom.why)
            made.pop("watched", None)
        elif not atom.deleted and earlier.get(atom.request, GONE) not in (atom.why, AMONG, GONE, PURGED):
            made["forget"] = self._of_the_others(made, atom)
            made["earlier"] = {**earlier, atom.request: atom.why}
            _hide(made, ("forget_loss", "loss_gap"), AMONG)

    def _of_the_others(self, line: Mapping[str, Any], atom: Atom) -> Value:
        """Forget without the atom: over the others that it was over, or the line's own request."""
        own: Value = AMONG if (said := line.get("own")) is None else said
        forget = line["forget"]
        shares = {name: share for name, share in line["earlier"].items() if is_measured(share)}
        shares |= {str(line["request"]): own} if is_measured(own) else {}
        if not is_measured(forget) or not all(map(self._rows, shares)):
            return own if is_measured(forget) else forget
        others = {name: share for name, share in shares.items() if name != atom.request}
        if not others or abs(self._mean(shares) - forget) > 1e-6:  # it was over other rows: not those purged before
            return own
        return self._mean(others)

    def _mean(self, shares: Mapping[str, Any]) -> float:
        weight = sum(map(self._rows, shares))
        return float(sum(self._rows(name) * share for name, share in shares.items()) / weight)

    def _base(self, line: Line) -> Path | None:
        """The job at whose model a line's job began; None if that is not known any more."""
        seed, request, method = job_of(line)
        if request in self._compared:
            place = self._compared.index(request)
            first = method == "before" or place == 0
            return Job(seed, None if first else self._compared[place - 1], "train" if first else method).path
        saved = self._saved(Job(seed, request, method))
        if saved is None or not saved.base.model or saved.start != line.get("start", 1):
            return None
        return Path(saved.base.model)

    # --- what else is written of requests -------------------------------------------------------------------------

    def of_entry(self, entry: Entry) -> Entry:
        """A request's file without what it tells of hidden atoms: measured again, or by the gate."""
        few = {atom.request: atom.why for atom in self.atoms if atom.why}
        shown = {atom.request for atom in self.atoms if atom.why and not atom.deleted}
        again = {n: dict.fromkeys(said, few[n]) if n in shown else said for n, said in entry.again.items()}
        why = {"forgotten": few[entry.request.id]} if entry.request.id in few else {}
        why |= {"utility": AMONG} if self.unsaid & {*entry.names} else {}
        tried = tuple(_tried(one, why) for one in entry.attempts)
        return replace(entry, again=again, gate=_judged(entry.gate, why), attempts=tried)

    def of_probe(self, probe: Undoing) -> Undoing:
        """A probe of another request without what it measured over hidden atoms."""
        job = Job(probe.seed, probe.request, probe.method)
        inside = self._out_at(job.path) - {*probe.without}
        saved = self._saved(job)
        base = Path((saved and saved.base.model) or "")
        at_first = job.seed in self._parted and job.request not in self._compared and len(base.parts) < 3
        if at_first or any(inside & atom.names for atom in self.atoms if atom.why):
            return probe.model_copy(update={"measured": _without(probe.measured)})
        return probe


@cache
def _path(key: JobKey) -> Path:
    return Job(*key).path


def _same(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same rows; a share of samples is drawn for each."""
    return one.fraction is None and all(
        getattr(one, name) == getattr(other, name) for name in ("clients", "classes", "samples", "rows", "fraction")
    )


def _scope(line: Line) -> frozenset[str]:
    """The requests whose rows a line does not count as retained."""
    return frozenset({*(line.get("earlier") or {}), *([line["request"]] if line["request"] else [])})


def _hide(made: dict[str, Any], names: Iterable[str], why: str) -> None:
    made |= {name: why for name in names if is_measured(made.get(name))}


def _blank(value: Any, why: str) -> Any:
    """The same with a sentence in the place of every number."""
    if isinstance(value, dict):
        return {name: _blank(own, why) for name, own in value.items()}
    return [_blank(own, why) for own in value] if isinstance(value, list) else why if is_measured(value) else value


def _without(measured: Any) -> Any:
    if not isinstance(measured, dict):
        return [_without(own) for own in measured] if isinstance(measured, list) else measured
    return {
        name: _blank(own, AMONG) if name in PROBED else own if name == "rows" else _without(own)
        for name, own in measured.items()
    }


def _judged(gate: Mapping[str, Any] | None, why: Mapping[str, str]) -> Mapping[str, Any] | None:
    """A gate's findings without the values of some checks, by their names; the verdicts stay."""
    if gate is None:
        return None
    hidden = [
        {**one, **{n: _blank(one[n], why[one["name"]]) for n in ("value", "before") if n in one}}
        if one["name"] in why
        else one
        for one in gate["checks"]
    ]
    return {**gate, "checks": hidden}


def _tried(one: Mapping[str, Any], why: Mapping[str, str]) -> Mapping[str, Any]:
    """An attempt without these values, which its own sentence may name."""
    gate = _judged(one.get("gate"), why)
    says = gate != one.get("gate") or ("utility" in why and "%" in str(one.get("why")))
    return {**one, "gate": gate, "why": next(iter(why.values()))} if says else one


# --- the trajectory ---------------------------------------------------------------------------------------------------


def as_it_stands(folder: RunFolder) -> Differences:
    """What decides, as the folder tells it."""
    return Differences(folder, Config.kept(folder.description().config), folder.book().entries)


def take_out(folder: RunFolder) -> None:
    """Take the numbers that must go out of the trajectory; the states vouch for what is left."""
    about = as_it_stands(folder)
    old = storage.content(folder.trajectory)
    old = old[: old.rfind(b"\n") + 1]
    new, moved = _changed(old, about)
    few = {name for atom in about.atoms if atom.why for name in atom.names}
    states = list(folder.states())
    offsets = {saved.offset for _, saved in states}
    before, after = _digests(old, offsets), _digests(new, offsets | {*moved.values()})
    for path, saved in states:
        gone: dict[str, Any] = {"watched": ""} if path.parent.name in few else {}
        first = (
            "best_round" in saved.diary.model_fields_set and saved.diary.best_round == 0
        )  # the best Validation is that of the beginning
        gone |= {"best": -1.0} if first and path.parent.name in about.unsaid else {}
        _move(path, saved, before, after, moved, gone)
    storage.write_bytes(folder.trajectory, new)


def _changed(old: bytes, about: Differences) -> tuple[bytes, dict[int, int]]:
    """The lines that may stand, and where each place between two lines has gone."""
    new, place, moved = bytearray(), 0, {0: 0}
    for number, text in enumerate(old.splitlines(keepends=True), 1):
        line = trajectory.read(text.rstrip(b"\n"), f"Line {number} of {TRAJECTORY}")
        less = about.of(line)
        new += text if less == line else trajectory.write(less).encode() + b"\n"
        place += len(text)
        moved[place] = len(new)
    return bytes(new), moved


def _move(
    path: Path,
    saved: SavedState,
    before: Mapping[int, str],
    after: Mapping[int, str],
    moved: Mapping[int, int],
    gone: dict[str, Any],
) -> None:
    """Let a state vouch for the new lines, unless it does, or they are those of before."""
    offset, said = saved.offset, saved.bound.trajectory
    if said == after[offset]:  # moved by a purge that was killed, or nothing changes up to here
        return
    if offset not in moved or said not in (None, before[offset]):
        raise UnfedError(f"{path} does not vouch for the trajectory that is there; restore both from a copy.")
    tensors, kept = storage.load(path, "saved state")
    place = moved[offset]
    kept |= {"offset": place}
    if "bound" in kept:
        kept |= {"bound": {**kept["bound"], "trajectory": after[place]}}
    if isinstance(diary := kept.get("diary"), dict) and diary.get("offset") in moved:
        kept |= {"diary": {**diary, "offset": moved[diary["offset"]], **gone}}
    storage.save(path, tensors, kept)


def _digests(data: bytes, places: Iterable[int]) -> dict[int, str]:
    """SHA-256 of what comes before each of these places, in one pass."""
    found, sum_, last = dict[int, str](), hashlib.sha256(), 0
    for place in sorted({*places}):
        sum_.update(data[last:place])
        found[place], last = sum_.copy().hexdigest(), place
    return found
