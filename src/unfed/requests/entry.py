"""A deletion request in a run folder: what is asked, its state, and which steps it may take.

    open ◄─► in_progress ──► fulfilled      the model that came out is in force
      ├───────────┼────────► denied         for a reason: refused, not recovered, gate, by the operator; asked again
      │           │                         it is open
      ├──────────┄│┄───────► expired        its date passed before it was begun; asked again it is open
      └───────────┴────────► revoked        withdrawn by its owner: a client by its signature, else the operator; or
                                            replaced by a newer signed request of the same client for the same data

From acceptance on a request's rows are in no training view; only withdrawal readmits them. A denied or expired request
is owed: the next recovery leaves its rows out and measures them. One whose clients did not answer is put off: it is
open again. One of which nothing was left in training is fulfilled without a model of its own (`left_by`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PlainValidator

from unfed import records
from unfed.config.reading import check_id, check_label
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.records import Count, JsonRecord, Plain, like
from unfed.requests.options import RequestOptions, Until
from unfed.values import Value, is_measured

SHARED = "together-"
"""What the names of jobs begin with that several requests share."""

SCHEMA = 2  # 1 had no states

Standing = Literal["open", "in_progress", "fulfilled", "denied", "revoked", "expired"]
Reason = Literal["refused", "not recovered", "gate", "by the operator"]
STATES: tuple[Standing, ...] = get_args(Standing)
REASONS: tuple[Reason, ...] = get_args(Reason)

STEPS: dict[Standing, frozenset[Standing]] = {
    "open": frozenset({"in_progress", "denied", "revoked", "expired"}),
    "in_progress": frozenset({"open", "fulfilled", "denied", "revoked"}),
    "fulfilled": frozenset(),
    "denied": frozenset({"open", "denied", "revoked"}),
    "revoked": frozenset(),
    "expired": frozenset({"open", "denied", "revoked"}),
}
"""Where a request may go from where it stands."""

_SECOND = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    return datetime.now(UTC).strftime(_SECOND)


def date_of(text: str) -> str:
    """A date or a moment in ISO 8601, as the moment in UTC; a mere date lasts until its end."""
    try:
        moment = datetime.fromisoformat(text)
        if len(text) <= len("2026-01-01"):
            moment = datetime.combine(moment.date(), time(23, 59, 59))
    except ValueError as error:
        raise UnfedError(f"{text!r} is no date; write it as 2026-01-31, or 2026-01-31T12:00:00Z.") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).strftime(_SECOND)


@dataclass(frozen=True)
class Job:
    """One stretch of rounds: the training of a seed, or one method on one request."""

    seed: int
    request: str | None
    label: str

    def __post_init__(self) -> None:
        """Each of these becomes a file or a folder, wherever it was read, and stays inside."""
        check_label(self.label)
        if self.request is not None:
            check_id(self.request, "request id")
        if not isinstance(self.seed, int):
            raise UnfedError(f"The seed {self.seed!r} is no whole number; restore the file that has it.")

    @property
    def key(self) -> tuple[int, str | None, str]:
        """What the lines of the trajectory say of it."""
        return self.seed, self.request, self.label

    @property
    def name(self) -> str:
        """What sentences call it: `0/train`, `0/REQUEST/METHOD`."""
        return self.path.as_posix()

    @property
    def path(self) -> Path:
        return _path(*self.key)


@lru_cache(maxsize=4096)
def _path(seed: int, request: str | None, label: str) -> Path:
    """A folder of many requests asks for the same ones again and again."""
    return Path(str(seed), *([label] if request is None else [request, label.replace(":", ".")]))


class Check(JsonRecord):
    """What one check of the gate found: a value, the bound that it must not exceed, and the verdict."""

    before: Value | None = None
    """The same of the model before, where that is another thing than the value itself."""
    bound: float
    decides: bool = False
    name: str
    rows: Count | None = None
    value: Value
    verdict: str
    what: str

    @property
    def sentence(self) -> str:
        """The check in words, without a full stop."""
        if not is_measured(self.value):
            return f"{self.name}: {self.value}"
        return f"{self.name} {self.verdict}: {self.what} is {self.value:.3g} (allowed: at most {self.bound:.3g})"


class GateSaid(JsonRecord):
    """What the gate found: its checks, whether they passed, who accepted it if they did not."""

    accepted: Mapping[str, str] | None = None
    checks: tuple[Check, ...]
    forgetting: Plain | None = None
    passed: bool = False


class AttemptSaid(JsonRecord):
    """What was tried before a request was asked again."""

    method: str


@dataclass(frozen=True)
class Entry:
    """A deletion request as it stands in the queue."""

    number: Annotated[int, Field(ge=1, lt=1 << 63)]
    request: Annotated[Request, PlainValidator(Request.from_json)]
    method: str
    until: str
    created: str
    seed: Count
    described: Plain | None = None
    """What the request concerns, in numbers: a report needs no data for it."""
    state: Standing = "open"
    reason: Reason | None = None
    """Why it was denied, in one word."""
    why: str | None = None
    """Why it was denied or put off, in one sentence."""
    changed: str | None = None
    """When it came to stand where it stands."""
    begun: str | None = None
    """When it was first taken up."""
    served: Count | None = None
    """Its place among the requests that were fulfilled: the last of them made the model in force."""
    expires: str | None = None
    """Until when it must have been begun, if its owner said so."""
    earlier: tuple[str, ...] = ()
    """The requests whose rows were out for good when it was taken up; a crash does not change what it began with."""
    attempts: tuple[Annotated[Plain, like(AttemptSaid)], ...] = ()
    """What was tried before it was asked again: method, until, how, reason, why, gate, at."""
    rows: tuple[str, ...] = ()
    """Keyed hashes of the single rows that it names, for the deny list."""
    how: RequestOptions = field(default_factory=RequestOptions)
    """What was asked besides method and until."""
    gate: Annotated[Plain, like(GateSaid)] | None = None
    """What the gate found: its checks, whether they passed, who accepted it if they did not."""
    again: Mapping[str, Mapping[str, int | float | str]] = field(default_factory=dict)
    """What the model that it left shows of every request before it: forget, chance or expected, mia, backdoor."""
    together: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The numbers of the requests that it was taken up with, its own among them; none if alone."""
    left_by: tuple[str, ...] = ()
    """Served requests that had taken out every training row it asks for: it is fulfilled, and no model was made."""
    superseded: str | None = None
    """The newer request of the same client for the same data that took its place, after it was owed."""
    purged: str | None = None
    """When what carried it was purged; no value of a single row of it is written from then on."""

    def __post_init__(self) -> None:
        Until.of(self.until)
        if (self.reason is not None) != (self.state == "denied"):
            raise UnfedError(f"A request is denied for a reason ({listed(REASONS)}), and only then has one.")

    def leaves_out(self, other: Entry) -> bool:
        """Whether its job was begun without another's rows."""
        return other is self or other.request.id in self._out[0] or other.number in self._out[1]

    @cached_property
    def _out(self) -> tuple[frozenset[str], frozenset[int]]:
        """`earlier` and `together`, to look one up in."""
        return frozenset(self.earlier), frozenset(self.together)

    @property
    def job(self) -> Job:
        """The job of its own that serves it."""
        return Job(self.seed, self.request.id, self.method)

    @property
    def accepted(self) -> bool:
        """Whether the request (not its model) was accepted: its rows train no more, unless it is withdrawn."""
        return self.state != "revoked"

    @property
    def waiting(self) -> bool:
        """Whether there is work to do on it."""
        return self.state in ("open", "in_progress")

    @property
    def owed(self) -> bool:
        """Whether it was accepted, no one works on it, and it is not fulfilled."""
        return self.state in ("denied", "expired")

    @property
    def standing(self) -> str:
        """The state in words, with the reason."""
        words = {"in_progress": "in progress", "revoked": "withdrawn"}.get(self.state, self.state)
        words = f"replaced by request {self.superseded}" if self.superseded else words
        why = self.reason or ("nothing of it was left in training" if self.left_by else None)
        return f"{words} ({why})" if why else words

    @property
    def shared(self) -> str | None:
        """The name of the job that it shares with others, if it does."""
        return f"{SHARED}{self.together[0]}" if self.together else None

    @property
    def names(self) -> tuple[str, ...]:
        """What its jobs go by: its own id, and the name of the job that it shares."""
        return (self.request.id,) if self.shared is None else (self.request.id, self.shared)

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that was tried on it, the present one last."""
        return tuple(dict.fromkeys([*(str(tried["method"]) for tried in self.attempts), self.method]))

    def at(self, moment: str) -> Entry:
        """As it stands at a moment: one that was not begun by its date has expired."""
        if self.state != "open" or self.begun is not None or self.expires is None or self.expires >= moment:
            return self
        return self.stepped("expired", self.expires)

    def stepped(
        self, state: Standing, moment: str, reason: Reason | None = None, why: str | None = None, **changes: Any
    ) -> Entry:
        """The request in its next state; a step that is not in the table is refused.

        `fulfilled` with a place in the order of service (`served`) puts its model in force.
        """
        if state not in STEPS[self.state]:
            after = listed(sorted(STEPS[self.state])) or "nothing else"
            raise UnfedError(f"Request {self.request.id!r} is {self.state}; it can become {after}, not {state}.")
        return replace(self, state=state, reason=reason, why=why, changed=moment, **changes)

    def asked_again(self, asked: Entry, moment: str) -> Entry:
        """Open once more, to be served as it is asked for now; what was tried is written down.

        A date that has passed does not come again.
        """
        tried: dict[str, Any] = {name: getattr(self, name) for name in ("method", "until", "reason", "why")}
        tried |= {"at": self.changed} | ({"gate": self.gate} if self.gate else {})
        tried |= {"how": self.how.to_json()} if self.how != RequestOptions() else {}
        attempts = (*self.attempts, tried) if self.state == "denied" else self.attempts
        expires = asked.expires or (None if self.state == "expired" else self.expires)
        how: dict[str, Any] = {"method": asked.method, "until": asked.until, "how": asked.how}
        how |= {"described": asked.described, "gate": None, "together": ()}
        return self.stepped("open", moment, **how, expires=expires, attempts=attempts, earlier=())

    def buried(self, moment: str) -> Entry:
        """What carried it was purged; the first time counts."""
        return replace(self, purged=self.purged or moment, request=replace(self.request, purged=True))

    def to_json(self) -> dict[str, Any]:
        """What is known of it, and nothing that is not."""
        own = {**vars(self), "request": self.request.to_json(), "how": self.how.to_json()}
        return {name: value for name, value in own.items() if value not in (None, (), {})} | {"schema": SCHEMA}

    @staticmethod
    def from_json(raw: Any, where: str = "A request file") -> Entry:
        """The entry that `to_json` wrote."""
        if not isinstance(raw, Mapping) or raw.get("schema") != SCHEMA:
            found = raw.get("schema") if isinstance(raw, Mapping) else type(raw).__name__
            raise UnfedError(f"{where} has the layout {found!r}, this version reads {SCHEMA}; restore it.")
        entry = records.read(Entry, {name: value for name, value in raw.items() if value is not None}, where)
        return entry if entry.purged is None else replace(entry, request=replace(entry.request, purged=True))
