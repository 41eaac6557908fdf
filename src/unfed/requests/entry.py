"""A deletion request as it stands in a run folder.

It says what is asked, where it stands, and which steps it may take.

    open ◄─► in_progress ──► fulfilled      the model that came out is in force
      ├───────────┼────────► denied         for a reason: refused, not recovered, gate, by the operator; asked again
      │           │                         it is open
      ├──────────┄│┄───────► expired        its date passed before it was begun; asked again it is open
      └───────────┴────────► revoked        withdrawn by its owner: a client by its signature, else the operator; or
                                            replaced by a newer signed request of the same client for the same data

From acceptance on a request's rows are in no training view, whatever becomes of it; only withdrawal readmits them. A
request that is denied or expired is owed: the next recovery leaves its rows out and measures them. One whose clients
did not answer is put off: it is open again. One of which nothing was left in training is fulfilled without a model of
its own (`left_by`): it keeps out whom and what it names. The files are the only truth: there is no other list of
requests, and each step is one file, written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, Literal, get_args

from unfed import json_checks as its
from unfed.config.reading import check_id, check_label
from unfed.data import Request
from unfed.errors import UnfedError, listed
from unfed.requests.options import RequestOptions, Until

SHARED = "together-"
"""What the names of jobs begin with that several requests share."""

SCHEMA = 2  # 1 had no states: a request whose job had ended was served, any other was waiting

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

_VALUE = its.either(its.is_text, its.is_plain_number)
_CHECK = its.table_with(
    {**dict.fromkeys(("name", "what", "verdict"), its.is_text), "value": _VALUE, "bound": its.is_plain_number},
    {"decides": its.is_yes, "rows": its.or_null(its.is_count), "before": its.or_null(_VALUE)},
)
_GATE = its.table_with(
    {"checks": its.list_of(_CHECK)}, {"passed": its.is_yes, "accepted": its.or_null(its.table_of(its.is_text))}
)

_MAY: dict[str, Callable[[Any], bool]] = {
    "described": lambda value: isinstance(value, dict),
    "earlier": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "attempts": lambda value: (
        isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("method"), str) for one in value)
    ),
    "rows": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "again": lambda value: (
        isinstance(value, dict)
        and all(
            isinstance(one, dict)
            and all(isinstance(v, (str, float, int)) and not isinstance(v, bool) for v in one.values())
            for one in value.values()
        )
    ),
    "together": lambda value: isinstance(value, list) and all(type(one) is int and one >= 1 for one in value),
    "left_by": its.list_of(its.is_text),
    "gate": _GATE,
}
"""What else a request file may hold, and must look like."""

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
    def path(self) -> Path:
        if self.request is None:
            return Path(str(self.seed), self.label)
        return Path(str(self.seed), self.request, self.label.replace(":", "."))


@dataclass(frozen=True)
class Entry:
    """A deletion request as it stands in the queue."""

    number: int
    request: Request
    method: str
    until: str
    created: str
    seed: int
    described: Mapping[str, Any] | None = None
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
    served: int | None = None
    """Its place among the requests that were fulfilled: the last of them made the model in force."""
    expires: str | None = None
    """Until when it must have been begun, if its owner said so."""
    earlier: tuple[str, ...] = ()
    """The requests whose rows were out for good when it was taken up; a crash does not change what it began with."""
    attempts: tuple[Mapping[str, Any], ...] = ()
    """What was tried before it was asked again: method, until, how, reason, why, gate, at."""
    rows: tuple[str, ...] = ()
    """Keyed hashes of the single rows that it names, for the deny list."""
    how: RequestOptions = field(default_factory=RequestOptions)
    """What was asked besides method and until."""
    gate: Mapping[str, Any] | None = None
    """What the gate found: its checks, whether they passed, who accepted it if they did not."""
    again: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the model that it left shows of every request before it: forget, chance or expected, mia, backdoor."""
    together: tuple[int, ...] = ()
    """The numbers of the requests that it was taken up with, its own among them; none if alone."""
    left_by: tuple[str, ...] = ()
    """Served requests that had taken out every training row it asks for: it is fulfilled, and no model was made."""
    superseded: str | None = None
    """The newer request of the same client for the same data that took its place, after it was owed."""
    purged: str | None = None
    """When what carried it was purged; no value of a single row of it is written from then on."""

    @property
    def job(self) -> Job:
        """The job of its own that serves it."""
        return Job(self.seed, self.request.id, self.method)

    @property
    def accepted(self) -> bool:
        """Whether its rows are out of every training view: all but those that were withdrawn."""
        return self.state != "revoked"

    @property
    def waiting(self) -> bool:
        """Whether there is work to do on it."""
        return self.state in ("open", "in_progress")

    @property
    def owed(self) -> bool:
        """Whether it was accepted, nobody works on it, and it is not fulfilled."""
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
        """One step further; a step that is not in the table is refused."""
        if state not in STEPS[self.state]:
            after = listed(sorted(STEPS[self.state])) or "nothing else"
            raise UnfedError(f"Request {self.request.id!r} is {self.state}; it can become {after}, not {state}.")
        if (state == "denied") != (reason is not None):
            raise UnfedError(f"A request is denied for a reason ({listed(REASONS)}), and only then has one.")
        return replace(self, state=state, reason=reason, why=why, changed=moment, **changes)

    def asked_again(self, asked: Entry, moment: str) -> Entry:
        """Open once more, to be served as it is asked for now; what was tried is written down.

        A date that has passed does not come again.
        """
        tried: dict[str, Any] = {
            "method": self.method,
            "until": self.until,
            "reason": self.reason,
            "why": self.why,
            "at": self.changed,
        }
        tried |= ({"how": self.how.to_json()} if self.how != RequestOptions() else {}) | (
            {"gate": self.gate} if self.gate else {}
        )
        attempts = (*self.attempts, tried) if self.state == "denied" else self.attempts
        expires = asked.expires or (None if self.state == "expired" else self.expires)
        how: dict[str, Any] = {"method": asked.method, "until": asked.until, "how": asked.how}
        how |= {"described": asked.described, "gate": None, "together": ()}
        return self.stepped("open", moment, **how, expires=expires, attempts=attempts, earlier=())

    def buried(self, moment: str) -> Entry:
        """What carried it was purged; the first time counts."""
        return replace(self, purged=self.purged or moment, request=replace(self.request, purged=True))

    def to_json(self) -> dict[str, Any]:
        plain = {**vars(self), "earlier": list(self.earlier), "attempts": [dict(tried) for tried in self.attempts]}
        own = {"request": self.request.to_json(), "how": self.how.to_json(), "rows": list(self.rows)}
        for name in ("together", "again", "left_by", "superseded", "purged"):
            plain.pop(name)
        more: dict[str, Any] = {"together": list(self.together)} if self.together else {}
        more |= {"left_by": list(self.left_by)} if self.left_by else {}
        more |= {"superseded": self.superseded} if self.superseded else {}
        more |= {"purged": self.purged} if self.purged else {}
        more |= {"again": {name: dict(one) for name, one in self.again.items()}} if self.again else {}
        return {**plain, **own, **more, "schema": SCHEMA}

    @staticmethod
    def from_json(raw: Any, where: str = "A request file") -> Entry:
        """The entry that `to_json` wrote, of this layout or the one before.

        Anything else is refused with the sentence that says what is wrong.

        In the layout before there were no states: every request is read as open, and the folder knows better.
        """
        if not isinstance(raw, Mapping) or raw.get("schema") not in (1, SCHEMA):
            found = raw.get("schema") if isinstance(raw, Mapping) else type(raw).__name__
            raise UnfedError(f"{where} has the layout {found!r}, this version reads 1 and {SCHEMA}; restore it.")
        kinds = {"number": int, "method": str, "until": str, "created": str, "seed": int}
        later = {"state": str, "reason": str, "why": str, "changed": str, "begun": str, "served": int, "expires": str}
        later |= {"superseded": str, "purged": str}
        values: dict[str, Any] = {name: raw.get(name) for name in kinds}
        values |= {name: raw[name] for name in later if raw.get(name) is not None}
        for name, value in values.items():
            if not isinstance(value, (kinds | later)[name]) or isinstance(value, bool):
                raise UnfedError(f"{where} has {value!r} as its {name}; restore it from a copy.")
        state, reason = values.get("state", "open"), values.get("reason")
        if state not in STATES or (reason not in REASONS if state == "denied" else reason is not None):
            raise UnfedError(f"{where} has the state {state!r} for the reason {reason!r}; restore it from a copy.")
        try:
            Until.of(values["until"])
        except UnfedError as error:
            raise UnfedError(f"{where} has {values['until'][:60]!r} as its until; restore it from a copy.") from error
        for name, least in (("number", 1), ("seed", 0), ("served", 0)):
            if (value := values.get(name)) is not None and not (its.is_whole(value) and value >= least):
                raise UnfedError(f"{where} has {str(value)[:60]} as its {name}; restore it from a copy.")
        for name, fits in _MAY.items():
            if raw.get(name) is not None and not fits(raw[name]):
                raise UnfedError(f"{where} has {str(raw[name])[:60]!r} as its {name}; restore it from a copy.")
        try:
            request = Request.from_json(raw.get("request"))  # type: ignore[arg-type]
        except UnfedError as error:
            raise UnfedError(f"{where} has a request that cannot be read ({error}); restore it from a copy.") from error
        values |= {"how": RequestOptions.from_json(raw.get("how") or {}, where), "gate": raw.get("gate")}
        values["rows"], values["again"] = tuple(raw.get("rows") or ()), raw.get("again") or {}
        for name in ("earlier", "attempts", "together", "left_by"):
            values[name] = tuple(raw.get(name) or ())
        request = replace(request, purged="purged" in values)
        return Entry(request=request, described=raw.get("described"), **values)
