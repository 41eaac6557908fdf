"""What an unlearning in a foreign app did, written down after every round.

    DIR/unlearning.json     who left, who was asked in each round (to train and to evaluate apart), SHA-256 of the
                            arrays before, perturbed and after each round, the app's own metrics before and after

It is asked for by `Unlearn(…, evidence=DIR)`; `unfed report DIR` makes the page, and `deny=DIR` keeps the leaver out of
later runs. The model before is evaluated once, by those who stay; whoever left is asked only with its leave, and what
it says stands apart (worth.py). With `recover` the rounds end as soon as that metric is back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord

import unfed
from unfed import storage
from unfed.errors import UnfedError
from unfed.measures.metrics import recovered
from unfed.runs.requests import now

FILE = "unlearning.json"


class Recovered(Exception):
    """The named metric is back where it was."""


class Evidence:
    """A folder of evidence.

    `recover` names a metric (more is better) that ends the rounds once it is `within` reach of what it was. With `undo`
    the model after is evaluated once more with the perturbation taken back, as anybody could who holds it.
    """

    def __init__(
        self, folder: str | Path, recover: str | None = None, within: float = 0.0, *, undo: bool = False
    ) -> None:
        self.folder, self.recover, self.within, self.undo = Path(folder), recover, within, undo
        self._kept: dict[str, Any] = {}
        self.metrics: dict[str, dict[int, MetricRecord]] = {"train": {}, "evaluate": {}, "server": {}}

    def begin(self, about: Mapping[str, Any], digests: Mapping[str, Any], done: int) -> bool:
        """Open the folder; whether the model before is still to be evaluated."""
        path = self.folder / FILE
        self.metrics = {"train": {}, "evaluate": {}, "server": {}}
        if path.exists():
            self._kept = storage.read_json(path, "evidence of an unlearning")
            if self._kept["arrays"]["before"] != digests["before"] or not done:
                raise UnfedError(f"{self.folder} holds evidence of another unlearning; give evidence another folder.")
            self._kept["rounds"] = [line for line in self._kept["rounds"] if line["round"] <= done]
            return False
        self._kept = {"schema": 1, "unfed": unfed.__version__, "created": now(), **about, "arrays": dict(digests)}
        self._kept |= {"recover": self.recover, "before": {}, "rounds": [], "finished": None, "leaver": {}}
        with storage.disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return True

    def before(self, source: str, asked: Sequence[int], metrics: MetricRecord | None) -> None:
        """Note what the model before is worth, as clients (`evaluate`) or the server (`server`) say."""
        found = None if metrics is None else plain(metrics)
        self._kept["before"][source] = {"asked": sorted(asked), "metrics": found}
        self._write()

    def leaver(self, when: str, answers: Sequence[Mapping[str, Any]]) -> None:
        """Note what those who left, and gave leave, say of the model before or after."""
        if answers:
            self._kept.setdefault("leaver", {})[when] = list(answers)
            self._write()

    def undone(self, **found: Any) -> None:
        """Note what the model after is worth with the perturbation taken back, or why nobody knows."""
        self._kept["undo"] = {key: plain(v) if isinstance(v, MetricRecord) else v for key, v in found.items()}
        self._write()

    def asked(self, round: int, what: str, messages: Iterable[Message]) -> list[Message]:
        """The same messages; to whom they go is noted before they are sent."""
        if what == "train" and self._is_back():
            raise Recovered
        found = list(messages)
        self._line(round)[what] = sorted({message.metadata.dst_node_id for message in found})
        self._write()
        return found

    def told(self, round: int, what: str, metrics: MetricRecord | None, **more: Any) -> None:
        """Note what came of a round."""
        line = self._line(round)
        if metrics is not None:
            self.metrics[what][round] = metrics
            line["metrics"][what] = plain(metrics)
        line |= more
        self._write()

    def end(self, how: str, after: str) -> None:
        self._kept["finished"] = "recovered" if self._is_back() else how
        self._kept["arrays"]["after"] = after
        self._write()

    def _line(self, round: int) -> dict[str, Any]:
        rounds: list[dict[str, Any]] = self._kept["rounds"]
        if not rounds or rounds[-1]["round"] != round:
            rounds.append({"round": round, "train": [], "evaluate": [], "refused": [], "arrays": None, "metrics": {}})
        return rounds[-1]

    def _is_back(self) -> bool:
        if self.recover is None or not self._kept["rounds"]:
            return False
        for source in ("evaluate", "server"):
            was = ((self._kept["before"].get(source) or {}).get("metrics") or {}).get(self.recover)
            is_now = self._kept["rounds"][-1]["metrics"].get(source, {}).get(self.recover)
            if isinstance(was, int | float) and isinstance(is_now, int | float):
                return recovered(float(is_now), float(was), self.within)
        return False

    def check_metric(self) -> None:
        """Refuse, before anything is changed, to wait for a metric that the app does not report."""
        told = [found["metrics"] or {} for found in self._kept["before"].values()]
        known = sorted({name for metrics in told for name in metrics})
        if self.recover is not None and self.recover not in known:
            raise UnfedError(
                f"The app reports no metric {self.recover!r} of the model before (it reports"
                f" {', '.join(known) or 'none'}), so recovery cannot be judged; name another, or leave recover out."
            )

    def _write(self) -> None:
        storage.write_json(self.folder / FILE, self._kept)


def plain(metrics: MetricRecord) -> dict[str, Any]:
    """Metrics as JSON has them: what is not finite stands as a word."""
    return {name: _finite(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if math.isfinite(value) else str(value)
