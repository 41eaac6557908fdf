"""A run folder: one documented layout, from which every table and report is computed afterwards.

    run.json                                   schema, config, versions, seeds, clients, model size
    trajectory.jsonl                           one line per evaluated round: all metrics, all ledger columns
    samples/SEED/JOB/ROUND.safetensors         per-sample loss, correctness, confidence, entropy of D_u and test
    state/SEED/JOB.safetensors                 what a job needs to go on
    state/SEED/train.good-ROUND                the last good states before it, until the training has ended
    state/SEED/train.kept-ROUND                states kept by `training.keep_every` (`carriers.py`)
    state/SEED/JOB.history-N                   the histories that were recorded up to that state (`histories.py`)
    models/SEED/JOB.safetensors                what came out of it
    undo/SEED/JOB.json                         what attacks brought back (`study_results.py`)
    population/REQUEST.json                    how sure many models of the same config make it (`study_results.py`)
    requests/NUMBER-ID.json                    deletion requests in the order in which they came, and where each stands
    tombstones.json                            what was purged on purpose (`purge.py`)
    progress.json                              where a running process is (a hint for `status`, nothing depends on it)

JOB is `train`, or REQUEST/METHOD. Every saved state says how long the trajectory was when it was saved; what no state
vouches for is cut off when work goes on, so a resumed run writes the same bytes again.
"""

from __future__ import annotations

import contextlib
import glob
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unfed import records, storage
from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError, option, typed
from unfed.federation.history import History
from unfed.federation.state import State
from unfed.folder import consistency
from unfed.folder import locks as presence
from unfed.folder.consistency import TRAJECTORY
from unfed.folder.histories import HistoryLog
from unfed.folder.layout import Description, ModelHeader, ScoresHeader, described
from unfed.measures import trajectory
from unfed.measures.evaluator import WHOSE
from unfed.measures.trajectory import Line, job_of
from unfed.model.params import Params, digests, fingerprint
from unfed.requests import book as books
from unfed.requests.book import Book
from unfed.requests.entry import Entry, Job
from unfed.requests.saved_state import SavedState

SCHEMA = 2  # 1 kept the path of a sample list, not what it said
KEY = "deny.key"
GOOD = 3
"""How many good states before the newest one a training keeps until it has ended."""


Purge = Callable[[History, Collection[str]], History]
"""A method's rule for a history without some clients."""


# The groups of a saved state: the params, and those of the best epoch, where that is the model that counts.
PARAMS = "params"
BEST = "best"
PRUNED = "pruned"  # names the group that is read from the job's model (`purge.py`)
OVER = "over"  # the requests whose rows scores and probes speak of, in their order
WITHOUT = "without"  # what scores and probes say: the requests, purged or deleted, whose rows they do not speak of


def saved_at(path: Path) -> SavedState | None:
    """What a saved state says, if there is one.

    It may be replaced, and during a purge go, while others look.
    """
    if not path.exists():
        return None
    return consistency.of_its_job(storage.numbers_of(path), path)


def digests_at(path: Path) -> dict[str, str] | None:
    """The digests of a model's tensors, as its file's own header has them; None where there is none."""
    if not path.exists():
        return None
    found = records.read(ModelHeader, storage.numbers_of(path, "model"), f"The model {path}").sha256
    return None if found is None else dict(found)


def left_out_at(path: Path, said: str = WITHOUT) -> list[str]:
    """The purged requests of whose rows a file of scores does not speak, or what else it names."""
    numbers = storage.numbers_of(path, "file of scores")
    return list(getattr(records.read(ScoresHeader, numbers, f"The file of scores {path}"), said))


def _description(path: Path) -> Description:
    """What a `run.json` says."""
    found = storage.read_json(path, "run description")
    if (layout := found.get("schema") if isinstance(found, dict) else None) != SCHEMA:
        what = f"{path.parent} was written in layout {layout!r}, this version reads layout {SCHEMA}"
        raise UnfedError(f"{what}; use the version of unfed that wrote it.")
    return described(found, str(path))


def _config(path: Path) -> Config:
    """The config in a `run.json`."""
    return Config.kept(_description(path).config, str(path))


class RunFolder:
    """Reads and writes the layout; knows nothing of training."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._logs: dict[Path, HistoryLog] = {}
        self._digest = consistency.DigestSoFar()

    # --- run.json -------------------------------------------------------------------------------------------------

    def create(self, description: Description, key: bytes | None = None) -> None:
        """Begin a run in a new or empty folder, for its owner alone; killed in here, it can be begun again.

        `run.json` comes last, after the key of a deny list that was taken over: what has it is whole.
        """
        begun = (self.path / "run.json").is_file()
        go_on = f", or go on with `{typed('resume', self.path)}`" if begun else ""
        taken = UnfedError(f"{self.path} is not empty; choose another folder with {option('out')}{go_on}.")
        if not self.vacant():
            raise taken
        with storage.disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with presence.held(self.path, "work") as free:
            if not (free and self.vacant()):
                raise taken
            storage.sweep(self.path.iterdir())
            if key is None:
                storage.remove(self.path / KEY)  # of a beginning that was killed
            else:
                storage.write_bytes(self.path / KEY, key)
            storage.write_json(self.path / "run.json", {"schema": SCHEMA, **description.to_json()})

    def vacant(self) -> bool:
        """Whether a run can begin here: nothing is there, or only what a killed beginning left."""
        if not self.path.exists():
            return True
        return self.path.is_dir() and all(
            storage.is_leftover(path) or path.name in (KEY, *presence.LOCKS) for path in self.path.iterdir()
        )

    def description(self) -> Description:
        """What `run.json` says."""
        found = storage.unchanged(self.path / "run.json", _description)
        if found is None:
            raise UnfedError(f"{self.path} is not a run folder (it has no run.json); `unfed run` makes one.")
        return found

    # --- trajectory -----------------------------------------------------------------------------------------------

    @property
    def trajectory(self) -> Path:
        return self.path / TRAJECTORY

    def append(self, line: Line) -> int:
        """Add a line to the trajectory; how long it is then."""
        return storage.append_line(self.trajectory, trajectory.write(line))

    def lines(self) -> list[Line]:
        """All whole lines that states vouch for, and those after them of jobs that have not ended.

        A job that has ended adds none, but while someone is at work on it once more.
        """
        states = list(self.states())
        length = consistency.vouched(self.path, states)
        data = storage.content(self.trajectory) if self.trajectory.exists() else b""
        texts, vouched = data.split(b"\n")[:-1], data.count(b"\n", 0, length)  # the last line may be torn
        lines = [trajectory.read(text, f"Line {n} of {self.trajectory}") for n, text in enumerate(texts, 1)]
        ended = {path for path, saved in states if saved.finished}
        if lines[vouched:] and not self.busy():
            lines[vouched:] = [one for one in lines[vouched:] if self.state_file(Job(*job_of(one))) not in ended]
        return lines

    def length(self) -> int:
        """How long the trajectory is, in bytes."""
        return self.trajectory.stat().st_size if self.trajectory.exists() else 0

    def cut_back(self) -> None:
        """Cut the trajectory to what a saved state vouches for."""
        storage.cut(self.trajectory, consistency.vouched(self.path, list(self.states())))
        self._digest.forget()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def state_file(self, job: Job) -> Path:
        return self._file("state", job)

    def model_file(self, job: Job) -> Path:
        return self._file("models", job)

    def _file(self, folder: str, job: Job) -> Path:
        path = self.path / folder / job.path
        return path.with_name(path.name + ".safetensors")

    def states(self) -> Iterator[tuple[Path, SavedState]]:
        """What every saved state says."""
        for path in sorted((self.path / "state").rglob("*.safetensors")):
            if (saved := saved_at(path)) is not None:
                yield path, saved

    def save_state(
        self,
        job: Job,
        state: State,
        numbers: Mapping[str, Any],
        histories: Mapping[str, History] | None = None,
        keep: bool = True,
        every: int = 0,
        pruned: bool = False,
    ) -> None:
        """A state, and what changed in the histories that belong to it.

        The state counts them, so they can never come from two different rounds. A training keeps the state before,
        if `keep` says that it is good, and a few more, until it has ended; of every so many rounds, for good.
        Params that the job's model holds already are `pruned`: not written a second time.
        """
        path, log = self.state_file(job), self._log(self.state_file(job))
        whole = {"round": state.round, "done": state.done, "model": state.model, "numbers": dict(state.numbers)}
        whole["bound"] = {"job": job.path.as_posix(), **self._bound(state, numbers)}
        before = saved_at(path)
        kept = log.save(histories or {}, None if before is None else before.log)
        if job.request is None:
            self._keep_good(path, keep, ended=bool(numbers.get("finished")))
            self._keep_for_rewind(path, keep, every, state.round)
        whole |= {PRUNED: PARAMS} if pruned else {}
        groups = {**({} if pruned else {PARAMS: state.params}), **state.tensors}
        storage.save(path, storage.join(groups), {**whole, **numbers, **kept})
        log.tidy()

    def good_states(self, state: Path) -> list[Path]:
        """The good states before a training's newest one that are kept, the oldest first."""
        return sorted(state.parent.glob(f"{glob.escape(state.stem)}.good-*"))

    def _keep_good(self, path: Path, keep: bool, ended: bool) -> None:
        if keep and not ended and (saved := saved_at(path)) is not None:
            storage.link(path, path.with_name(f"{path.stem}.good-{saved.round:09d}"))
        kept = self.good_states(path)
        for old in kept if ended else kept[:-GOOD]:
            storage.remove(old)

    def kept_states(self, state: Path) -> dict[int, Path]:
        """The states that a training kept for good, by their rounds."""
        return {int(path.name[-9:]): path for path in sorted(state.parent.glob(f"{glob.escape(state.stem)}.kept-*"))}

    def _keep_for_rewind(self, path: Path, keep: bool, every: int, round: int) -> None:
        """Keep the state before the one of `round`.

        What is not before it belongs to rounds that were taken back.
        """
        saved = saved_at(path)
        if keep and every and saved is not None and 0 < saved.round < round and saved.round % every == 0:
            storage.link(path, path.with_name(f"{path.stem}.kept-{saved.round:09d}"))
        for later in (kept for at, kept in self.kept_states(path).items() if at >= round):
            storage.remove(later)

    def step_back(self, job: Job) -> tuple[State, SavedState] | None:
        """Put the last good state of a training in the place of its newest; None where none is left."""
        path = self.state_file(job)
        if not (kept := self.good_states(path)):
            return None
        with storage.disk_errors(path):
            kept[-1].replace(path)
        self.cut_back()
        return self.load_state(job)

    def _log(self, state: Path) -> HistoryLog:
        return self._logs.setdefault(state, HistoryLog(state))

    def _bound(self, state: State, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """What a state vouches for besides itself."""
        came_out = state.tensors.get(BEST) or state.params
        return {
            "run": consistency.file_digest(self.path / "run.json"),
            "trajectory": self._digest.of_start(self.trajectory, int(numbers["offset"])),
            "model": fingerprint(digests(came_out)) if numbers.get("finished") and came_out else None,
            **consistency.log_kept(self.path),
        }

    def load_state(self, job: Job) -> tuple[State, SavedState] | None:
        path = self.state_file(job)
        if not path.exists():
            return None
        tensors, numbers = storage.load(path, "saved state")
        saved, groups = consistency.of_its_job(numbers, path), storage.part(tensors)
        if saved.pruned is not None:
            groups[saved.pruned] = self.load_model(job)
        state = State(
            params=groups.pop(PARAMS, {}),
            round=saved.round,
            tensors=groups,
            numbers=dict(saved.numbers),
            done=saved.done,
            model=saved.model,
        )
        return state, saved

    def load_histories(self, job: Job) -> dict[str, History]:
        """What was recorded up to a job's saved state, by label; nothing where there is no state."""
        path = self.state_file(job)
        return self._log(path).load(saved_at(path))

    def purge(self, seed: int, clients: Collection[str], purges: Mapping[str, Purge]) -> None:
        """Take these clients' records out of every history in the folder; done twice, it does nothing.

        A request that is fulfilled does this by itself; `purge.py` is the command that deletes models.
        """
        for path in sorted((self.path / "state" / str(seed)).rglob("*.safetensors")):
            saved = saved_at(path)
            if saved is None or not any(set(clients) & set(history.clients) for history in saved.histories.values()):
                continue
            tensors, numbers = storage.load(path, "saved state")
            left = {label: purges[label](h, clients) for label, h in self._log(path).load(saved).items()}
            log = self._logs[path] = HistoryLog(path)  # all that is left goes into a new file, and the old one goes
            storage.save(path, tensors, {**numbers, **log.save(left, saved.log)})
            log.tidy()

    def saved(self, job: Job) -> SavedState | None:
        return saved_at(self.state_file(job))

    def finished(self, job: Job) -> bool:
        saved = self.saved(job)
        return saved is not None and bool(saved.finished)

    def came_out(self, job: Job) -> str | None:
        """The fingerprint of the model that a job left, as its state says."""
        saved = self.saved(job)
        return None if saved is None else saved.bound.model

    def save_model(self, job: Job, params: Params, numbers: Mapping[str, Any]) -> None:
        storage.save(self.model_file(job), params, numbers)

    def load_model(self, job: Job) -> Params:
        """The model that a job left; one that its state does not vouch for is refused."""
        path = self.model_file(job)
        if not path.exists():
            raise UnfedError(consistency.gone(path))
        return consistency.model_at(path, self.saved(job))

    def buried(self, job: Job) -> books.Tombstone | None:
        """The tombstone of a job's model, if that was purged."""
        return books.tombstones(self.path).get(self.model_file(job).relative_to(self.path).as_posix())

    def drop_samples(self, job: Job) -> None:
        """Take away what an attempt that is given up scored, before the next one scores."""
        shutil.rmtree(self.path / "samples" / job.path, ignore_errors=True)

    def save_samples(
        self, job: Job, round: int, samples: Mapping[str, Tensor], requests: Iterable[Request], only: bool = False
    ) -> None:
        """Scores of single rows after a round; their file names the requests that they leave out.

        Where only the last are kept, the others go.
        """
        path = self.path / "samples" / job.path / f"{round:06d}.safetensors"
        asked = [*requests]
        out = [request.id for request in asked if request.purged or request.deleted]
        whose = {OVER: [request.id for request in asked]} if WHOSE in samples else {}
        if samples:
            storage.save(path, samples, {"round": round, **({WITHOUT: out} if out else {}), **whose})
        for other in set(path.parent.glob("*.safetensors")) - {path} if samples and only else ():
            storage.remove(other)

    # --- requests -------------------------------------------------------------------------------------------------

    def book(self) -> Book:
        """Every deletion request as it stands now; refused where one is gone."""
        listed = books.filed_list(self.path)  # first: what is filed while the files are read is not missing
        entries = self.filed()
        for sentence in books.missing(self.path, entries, listed):
            raise UnfedError(sentence)
        config = storage.unchanged(self.path / "run.json", _config)
        return Book(self.path, config or Config(), entries, books.tombstones(self.path), self.saved)

    def filed(self) -> tuple[Entry, ...]:
        """Every deletion request whose file is there."""
        return books.filed_here(self.path)

    def put_request(self, entry: Entry) -> None:
        """Write a request; the lock `requests` must be held."""
        books.write_entry(self.path, entry)
        if entry.number not in books.filed_list(self.path):
            books.note_filed(self.path, self.filed())  # with what a killed process left unlisted

    # --- who is at work -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, name: str = "work", wait: bool = False) -> Iterator[bool]:
        """Hold a lock of the folder: True if it was free, or waited for.

        It ends with the process, however it ends.
        """
        held = presence.at_work(self.path) if name == "work" else presence.held(self.path, name, -1 if wait else 0)
        with held as free:
            if free:
                self._sweep(name)
            yield free

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Hold the lock of the work; refused while another process has it."""
        with self.lock() as free:
            if not free:
                raise UnfedError(f"Another process is at work in {self.path}; see `{typed('status', self.path)}`.")
            yield

    def _sweep(self, lock: str) -> None:
        """Take away what killed processes left, of the files that only the holder of this lock writes."""
        if lock == "requests":
            storage.sweep((self.path / "requests").glob(".*.tmp"))
            return
        for kind in ("state", "models", "samples", "undo", "theory", "advice", "population"):
            storage.sweep((self.path / kind).rglob(".*.tmp"))
        for name in ("run.json", "clients.json", "progress.json", books.TOMBSTONES):
            storage.sweep(self.path.glob(f".{name}.*.tmp"))

    def busy(self) -> bool:
        """Whether a process is at work here now."""
        return presence.busy(self.path)
