"""What `Unlearn` wrote before it had a ledger: `unlearning.json`, read as one run with one request.

    DIR/unlearning.json ─► whom it took out (a deny list); its page, the same as of any run

Nothing is written in this layout any more, and nothing of Flower is imported to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unfed import storage
from unfed.errors import UnfedError
from unfed.folder.info import RunInfo
from unfed.measures.trajectory import Line, OfApp, read, write
from unfed.values import not_measured

FILE = "unlearning.json"
Metrics = dict[str, float | int | str | list[float | int | str]]
_METHOD = "not"
_COLUMNS = ("retain", "forget", "test", "validation", "mia", "flops", "comm_bytes", "wire_bytes", "seconds")


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class OldAnswer(_Table):
    """What a leaver said with its leave, or why it said nothing."""

    node: int
    metrics: Metrics | None = None
    why: str = "it did not answer"


class OldRows(_Table):
    """How many rows of each class a node left out, of how many."""

    node: int
    rows: dict[str, Annotated[int, Field(ge=0)]]
    of: Annotated[int, Field(ge=0)]


class OldBefore(_Table):
    """Who was asked of the model before, and what they said."""

    asked: list[int]
    metrics: Metrics | None


class OldLeaver(_Table):
    """Who left, and under which ids."""

    who: str
    nodes: list[int]


class OldRound(_Table):
    """Who was asked in a round, and what came of it."""

    round: Annotated[int, Field(ge=0)]
    train: list[int]
    evaluate: list[int]
    refused: list[str]
    arrays: str | None
    metrics: dict[str, Metrics]
    leaver: list[OldAnswer] = []
    left_out: list[OldRows] = []
    heavy: list[str] = []


class OldUndo(_Table):
    """What the model was worth with the perturbation taken back, or why that is not known."""

    reason: str | None = None
    evaluate: Metrics | None = None
    server: Metrics | None = None
    leaver: list[OldAnswer] = []

    def told(self) -> dict[str, Any]:
        found = {"reason": self.reason, "evaluate": self.evaluate, "server": self.server}
        return {name: value for name, value in (found | {"leaver": _answers(self.leaver)}).items() if value}


class OldEvidence(_Table):
    """One unlearning in an app that is not unfed's own."""

    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    created: str
    strategy: str
    leavers: list[OldLeaver]
    forgotten: list[str]
    unnamed: list[str] = []
    classes: list[Annotated[int, Field(ge=0)]] = []
    classes_before: list[Annotated[int, Field(ge=0)]] = []
    arrays: dict[str, str | list[str]]
    before: dict[str, OldBefore]
    rounds: list[OldRound]
    finished: str | None
    leaver: dict[str, list[OldAnswer]] = {}
    undo: OldUndo | None = None
    unmeasured: dict[str, str] = {}

    @staticmethod
    def of(folder: Path) -> OldEvidence:
        """What stands in the folder, every field of its type."""
        path = folder / FILE
        try:
            return OldEvidence.model_validate(storage.read_json(path, "evidence of an unlearning"))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise UnfedError(f"{path} is damaged ({where}: {first['msg']}); restore it from a copy.") from error

    def as_run(self, name: str) -> tuple[RunInfo, list[Line]]:
        """The same as what a run says of itself, and its lines, for its page."""
        kind, who = ("client", self.forgotten or self.unnamed) if self.leavers else ("class", [])
        asked = {"id": name, "kind": kind, "clients": who, "classes": self.classes, "state": "fulfilled"}
        asked |= {"created": self.created, "method": _METHOD, "standing": self.finished or "not finished"}
        run: dict[str, Any] = {
            "name": name,
            "created": self.created,
            "engine": "flower",
            "seeds": [0],
            "requests": [asked],
        }
        run |= {"app": {"strategy": self.strategy, **self.arrays}}
        was = {source: one.metrics for source, one in self.before.items() if one.metrics is not None}
        evaluated = [str(node) for node in self.before["evaluate"].asked] if "evaluate" in self.before else []
        first: dict[str, Any] = {**was, "evaluated": evaluated, "leaver": _answers(self.leaver.get("before", []))}
        lines = [self._line(name, "before", 0, first)]
        for place, one in enumerate(self.rounds):
            last = place == len(self.rounds) - 1
            told: dict[str, Any] = {**one.metrics, "evaluated": [*map(str, one.evaluate)], "heavy": one.heavy}
            told["leaver"] = _answers(one.leaver or (self.leaver.get("after", []) if last else []))
            told |= {"fingerprint": one.arrays} if one.arrays else {}
            told["left_out"] = {str(own.node): {"rows": own.rows, "of": own.of} for own in one.left_out}
            told |= {"unmeasured": self.unmeasured} if last and self.unmeasured else {}
            told |= {"turned_back": self.undo.told()} if last and self.undo is not None else {}
            more = {"asked": {str(one.round): [*map(str, one.train)]}, "done": last and self.finished is not None}
            refused = [{"round": one.round, "client": "?", "reason": sentence} for sentence in one.refused]
            lines.append(self._line(name, _METHOD, one.round, told, **more, refused=refused))
        return RunInfo.of(run), lines

    def _line(self, name: str, method: str, round: int, app: dict[str, Any], **more: Any) -> Line:
        known = {key: value for key, value in app.items() if key in OfApp.__annotations__}
        values = dict.fromkeys(_COLUMNS, not_measured("the app has metrics of its own"))
        line = {"seed": 0, "request": name, "method": method, "round": round, **values, **more, "app": known}
        return read(write(line), f"{name}/{FILE}")


def _answers(found: list[OldAnswer]) -> dict[str, Any]:
    return {str(one.node): one.why if one.metrics is None else one.metrics for one in found}
