"""What an unlearning in a foreign app did, written down after every round.

    DIR/unlearning.json     who left, or which classes, and how many rows of them each client left out in each round;
                            who was asked in each round (to train and to evaluate apart), SHA-256 of the arrays before,
                            perturbed and after each round, the app's own metrics before and after

It is asked for by `Unlearn(…, evidence=DIR)`; `unfed report DIR` makes the page, and `deny=DIR` keeps the leaver out of
later runs. The model before is evaluated once, by those who stay; whoever left is asked only with its leave, and what
it says stands apart (worth.py). With `recover` the rounds end as soon as that metric is back, with `forgotten` as soon
as who left knows its rows no better than those who stay know theirs, with both as soon as both hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Message, MetricRecord

import unfed
from unfed import storage
from unfed.errors import UnfedError
from unfed.folder import foreign
from unfed.measures.metrics import recovered
from unfed.requests.entry import now

if TYPE_CHECKING:
    from unfed.flower.probes import Probes


class Enough(Exception):
    """Whatever the rounds were to go on for has come."""


class Evidence:
    """A folder of evidence.

    `recover` names a metric (more is better) that ends the rounds once it is `within` reach of what it was.
    `forgotten` names one that whoever left, with its leave, measures after every round: the rounds end once it is at
    most what those who stay measure of the same model. With `undo` the model after is evaluated once more with the
    perturbation taken back, as anybody could who holds it; `undo=Probes(…)` tries every other way too (probes.py).
    """

    def __init__(
        self,
        folder: str | Path,
        recover: str | None = None,
        within: float = 0.0,
        *,
        forgotten: str | None = None,
        undo: bool | Probes = False,
    ) -> None:
        self.folder, self.recover, self.within = Path(folder), recover, within
        self.forgotten, self.undo = forgotten, undo
        self._kept: dict[str, Any] = {}
        self.metrics: dict[str, dict[int, MetricRecord]] = {"train": {}, "evaluate": {}, "server": {}}

    def begin(self, about: Mapping[str, Any], digests: Mapping[str, Any], done: int) -> bool:
        """Open the folder; whether the model before is still to be evaluated."""
        path = self.folder / foreign.FILE
        self.metrics = {"train": {}, "evaluate": {}, "server": {}}
        self._kept = {
            "schema": foreign.SCHEMA,
            "unfed": unfed.__version__,
            "created": now(),
            **about,
            "arrays": dict(digests),
        }
        self._kept |= {
            "recover": self.recover,
            "until_forgotten": self.forgotten,
            "before": {},
            "rounds": [],
            "finished": None,
            "leaver": {},
        }
        if path.exists():
            self._go_on(foreign.evidence(self.folder), done)
            return not done
        with storage.disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return True

    def _go_on(self, old: dict[str, Any], done: int) -> None:
        """Take up what an earlier start wrote; whom its broken rounds asked is not thrown away.

        Before the first good round all else is as it is said now: a name that was wrong then must not stay.
        """
        new, known, rounds = self._kept, old["arrays"], old["rounds"]
        begun = any(line["arrays"] not in (None, known["perturbed"]) for line in rounds) or old["finished"]
        same = all(old.get(key, new[key]) == new[key] for key in ("forgotten", "unnamed", "classes", "classes_before"))
        if known["before"] != new["arrays"]["before"] or (begun and not done) or (done and not same):
            raise UnfedError(
                f"{self.folder} holds evidence of another unlearning, or of one of which no arrays were kept"
                " (keep=FILE); give evidence another folder."
            )
        broken = [line for line in rounds if line["round"] > done]
        leavers = _both(new["leavers"], old["leavers"])  # another run may number them anew
        if done:
            self._kept = {
                **old,
                "rounds": [line for line in rounds if line["round"] <= done],
                "finished": None if broken else old["finished"],
            }
            self._kept.pop("unmeasured", None)
        self._kept |= {"leavers": leavers, "abandoned": [*old.get("abandoned", ()), *broken]}

    @property
    def finished(self) -> str | None:
        """How the rounds ended, if they did."""
        found: str | None = self._kept.get("finished")
        return found

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

    def unmeasured(self, what: str, why: str) -> None:
        """Note what could not be measured of the model after."""
        self._kept.setdefault("unmeasured", {})[what] = why
        self._write()

    def probed(self, found: Mapping[str, Any]) -> None:
        """Note what the probes brought back."""
        self._kept["probes"] = dict(found)
        self._write()

    def asked(self, round: int, what: str, messages: Iterable[Message]) -> list[Message]:
        """The same messages; to whom they go is noted before they are sent."""
        if what == "train" and (ends := self._ends()) and all(ends.values()):
            raise Enough
        found = list(messages)
        self._kept["finished"] = None
        self._line(round)[what] = sorted({message.metadata.dst_node_id for message in found})
        self._write()
        return found

    def unheard(self, round: int) -> list[str]:
        """Who spoke of the model before and not of this round's, because a start ended in the middle of it."""
        rounds, before = self._kept["rounds"], self._kept["before"].items()
        if self.finished or not rounds or rounds[-1]["round"] != round:
            return []
        return [who for who, told in before if told["metrics"] is not None and who not in rounds[-1]["metrics"]]

    def told(self, round: int, what: str, metrics: MetricRecord | None, **more: Any) -> None:
        """Note what came of a round."""
        line = self._line(round)
        if metrics is not None:
            self.metrics[what][round] = metrics
            line["metrics"][what] = plain(metrics)
        line |= more
        self._write()

    def heard(self, round: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """Note what those who left, and gave leave, say of a round's model."""
        self._line(round)["leaver"] = list(answers)
        self._write()

    def last_heard(self) -> list[Mapping[str, Any]] | None:
        """What they said of the last round's model; None where they were not asked."""
        found: list[Mapping[str, Any]] | None = self._kept["rounds"][-1].get("leaver") if self._kept["rounds"] else None
        return found

    def found(self, leavers: Sequence[Mapping[str, Any]]) -> None:
        """Note under which ids those who left were seen; one that came back has another."""
        self._kept["leavers"] = _both(leavers, self._kept["leavers"])
        self._write()

    def end(self, how: str, after: str) -> None:
        """Note how the rounds ended, and with which arrays."""
        ends = self._ends()
        missed = " and ".join(word for word, holds in ends.items() if not holds)
        self._kept["finished"] = f"{how}, not {missed}" if missed else ", ".join(ends) or how
        self._kept["arrays"]["after"] = after
        self._write()

    def _line(self, round: int) -> dict[str, Any]:
        rounds: list[dict[str, Any]] = self._kept["rounds"]
        if not rounds or rounds[-1]["round"] != round:
            rounds.append({"round": round, "train": [], "evaluate": [], "refused": [], "arrays": None, "metrics": {}})
        return rounds[-1]

    def _ends(self) -> dict[str, bool]:
        """The ends that were asked for, and whether the last round has come there."""
        asked = {"recovered": (self.recover, self._is_back), "forgotten": (self.forgotten, self._is_forgotten)}
        some = bool(self._kept["rounds"])
        return {word: some and holds() for word, (metric, holds) in asked.items() if metric is not None}

    def _is_forgotten(self) -> bool:
        """Whether nobody who left scores higher on its rows than those who stay do on theirs."""
        line = self._kept["rounds"][-1]
        bound = line["metrics"].get("evaluate", {}).get(self.forgotten)
        told = [one.get("metrics", {}).get(self.forgotten) for one in line.get("leaver", ())]
        numbers = [value for value in (bound, *told) if isinstance(value, int | float)]
        return bool(told) and len(numbers) == 1 + len(told) and max(told) <= bound

    def _is_back(self) -> bool:
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
        if self.forgotten is None:
            return
        if self.forgotten not in ((self._kept["before"].get("evaluate") or {}).get("metrics") or {}):
            raise UnfedError(
                f"Those who stay report no metric {self.forgotten!r} of the model before, so there is nothing to hold"
                " what was forgotten against; name another, or leave forgotten out."
            )
        left = self._kept.get("leaver", {}).get("before", [])
        if not self._kept["leavers"]:
            raise UnfedError(
                "Nobody left whom one could ask when it is forgotten: rows of a class are scored by nobody but the app"
                " itself; leave forgotten out."
            )
        if not left or any(self.forgotten not in one.get("metrics", {}) for one in left):
            raise UnfedError(
                f'Nobody who left gave leave (allow="forget" in its node config) and reports {self.forgotten!r}, so'
                " nobody can tell when it is forgotten; leave forgotten out."
            )

    def _write(self) -> None:
        storage.write_json(self.folder / foreign.FILE, self._kept)


def _both(leavers: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same leavers, with the nodes that they had before as well."""
    nodes = {one["who"]: one["nodes"] for one in before}
    return [{**one, "nodes": sorted({*one["nodes"], *nodes.get(one["who"], ())})} for one in leavers]


def plain(metrics: MetricRecord) -> dict[str, Any]:
    """Metrics as JSON has them: what is not finite stands as a word."""
    return {name: _finite(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if math.isfinite(value) else str(value)
