"""A run in the tracker that a team already looks at: TensorBoard, Weights & Biases, MLflow.

    run.execute(tracked(run, ["tensorboard"]))          in Python
    unfed run demo --track tensorboard                  on the command line

Each is one small observer: it hears of every evaluated round and writes its numbers down. It can change nothing, and
what goes wrong in it is a warning, never the end of a run. W&B works offline unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError, UnfedWarning, extra, listed, nearest
from unfed.measures import metrics
from unfed.requests.entry import Job
from unfed.runs.progress import PassingWatch, Watch
from unfed.runs.run import Run
from unfed.values import is_measured

NUMBERS = tuple(column.name for column in (*metrics.METRICS, *metrics.COSTS))


class Tracker(Watch):
    """An observer that writes down the numbers of every evaluated round; `write` says where."""

    package = ""
    extra = ""

    def __init__(self, run: Run, folder: Path) -> None:
        """Begin; a package that is missing is named with the extra that brings it."""
        self._several = len(run.config.seed_list) > 1
        self._broken = False
        try:
            self.start(run, folder)
        except ImportError as error:
            raise UnfedError(
                f"--track {self.extra} needs the package {self.package}; install it with"
                f" {extra(self.extra)}, or with `pip install {self.package}`."
            ) from error

    def start(self, run: Run, folder: Path) -> None:
        """Open whatever the numbers are written to."""
        raise NotImplementedError

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """Write the numbers of one round, by name."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over."""
        raise NotImplementedError

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """A round was evaluated: its numbers are written."""
        if line is None:
            return
        of = self.prefix(job)
        self._try(lambda: self.write({f"{of}/{n}": float(line[n]) for n in NUMBERS if is_measured(line.get(n))}, round))

    def prefix(self, job: Job) -> str:
        """Whose numbers they are: `train`, or `REQUEST/METHOD`; with several seeds, the seed too."""
        who = job.label if job.request is None else f"{job.request}/{job.label}"
        return f"{who}/seed-{job.seed}" if self._several else who

    def end(self) -> None:
        """Close it; a fault there loses no model."""
        self._try(self.close)

    def _try(self, act: Any) -> None:
        if self._broken:
            return
        try:
            act()
        except Exception as error:
            self._broken = True
            warnings.warn(
                f"Tracking to {self.package} stopped ({type(error).__name__}: {error}); the run goes on.",
                UnfedWarning,
                stacklevel=4,
            )


class TensorBoard(Tracker):
    """Event files for `tensorboard --logdir tracking/tensorboard`."""

    package, extra = "tensorboard", "tensorboard"

    def start(self, run: Run, folder: Path) -> None:
        """One folder of events per run."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard" / run.folder.path.resolve().name))

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """One scalar each."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases, offline: `wandb sync` sends it when someone wants to."""

    package, extra = "wandb", "wandb"

    def start(self, run: Run, folder: Path) -> None:
        """One run of the project `unfed`; rounds of different jobs overlap, so each has its own axis."""
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_SILENT", "true")  # it has a way of talking in between
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        name = run.folder.path.resolve().name
        self._run = wandb.init(project="unfed", name=name, mode=mode, dir=str(folder), config=run.config.to_json())
        self._axes: set[str] = set()

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """All numbers of a round, over that job's own rounds."""
        of = next(iter(numbers), "").rpartition("/")[0]
        if of not in self._axes:
            self._axes.add(of)
            self._run.define_metric(f"{of}/*", step_metric=f"{of}/round")
        self._run.log({**numbers, f"{of}/round": round})

    def close(self) -> None:
        """Finish it."""
        self._run.finish()


class MLflow(Tracker):
    """A run of the experiment `unfed`, in `tracking/mlflow.db` or where MLFLOW_TRACKING_URI says."""

    package, extra = "mlflow", "mlflow"

    def start(self, run: Run, folder: Path) -> None:
        """The config's plain values become its parameters."""
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        mlflow.set_experiment("unfed")
        self._mlflow = mlflow
        self._run = mlflow.start_run(run_name=run.folder.path.resolve().name)
        flat = dict(_flat(run.config.to_json()))
        mlflow.log_params({key: str(value)[:500] for key, value in flat.items() if value is not None})

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """One metric each."""
        for name, value in numbers.items():
            self._mlflow.log_metric(name, value, step=round)

    def close(self) -> None:
        """End it."""
        self._mlflow.end_run()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        found += _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else [(f"{prefix}{key}", item)]
    return found


def known(names: Sequence[str]) -> None:
    """Refuse a tracker that there is not."""
    for name in names:
        if name not in TRACKERS:
            raise UnfedError(f"--track takes {listed(TRACKERS)}, not {name!r}.{nearest(name, TRACKERS)}")


def tracked(run: Run, names: Sequence[str], watch: Watch | None = None, folder: str | Path = "tracking") -> Several:
    """A watch that tells each of these trackers, and the watch from before."""
    known(names)
    return Several(watch or Watch(), [TRACKERS[name](run, Path(folder)) for name in dict.fromkeys(names)])


class Several(PassingWatch):
    """Trackers before another watch, who hear of rounds alone."""

    def __init__(self, watch: Watch, trackers: Sequence[Tracker]) -> None:
        super().__init__(watch)
        self._trackers = trackers

    def goes_on(self, job: Job, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """All hear it."""
        super().goes_on(job, round, rounds, line)
        for tracker in self._trackers:
            tracker.goes_on(job, round, rounds, line)

    def close(self) -> None:
        """The run is over, or was stopped."""
        for tracker in self._trackers:
            tracker.end()
