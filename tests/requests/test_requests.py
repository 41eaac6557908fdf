"""A request's states: which steps there are, what is written down, and how files of before are read."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfed.config.config import Config
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.requests.book import Book, in_force
from unfed.requests.entry import REASONS, STATES, Entry, date_of

AT = "2026-01-02T03:04:05Z"
LEGAL = {
    ("open", "in_progress"),
    ("open", "revoked"),
    ("open", "expired"),
    ("in_progress", "open"),
    ("in_progress", "fulfilled"),
    ("open", "denied"),
    ("in_progress", "denied"),
    ("in_progress", "revoked"),
    ("denied", "open"),
    ("denied", "denied"),
    ("expired", "denied"),
    ("denied", "revoked"),
    ("expired", "open"),
    ("expired", "revoked"),
}


def entry(number: Any = 1, state: Any = "open", **values: Any) -> Any:
    reason: Literal["refused"] | None = "refused" if state == "denied" else None
    made = Request(f"r{number}", clients=(str(number),))
    return Entry(number, made, "not", "recovered", AT, 0, state=state, reason=reason, **values)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_every_step_that_is_not_in_the_table_is_refused(before: Any, after: Any) -> None:
    reason = "gate" if after == "denied" else None
    if (before, after) in LEGAL:
        stepped = entry(state=before).stepped(after, AT, reason=reason)
        assert (stepped.state, stepped.reason, stepped.changed) == (after, reason, AT)
    else:
        with pytest.raises(UnfedError, match=rf"Request 'r1' is {before}; it can become .*, not {after}"):
            entry(state=before).stepped(after, AT, reason=reason)


@pytest.mark.parametrize(("state", "reason"), [("denied", None), ("fulfilled", "gate")])
def test_a_request_is_denied_for_a_reason_and_nothing_else_has_one(state: Any, reason: str) -> None:
    with pytest.raises(UnfedError, match="denied for a reason"):
        entry(state="in_progress").stepped(state, AT, reason=reason)


def book(entries: Sequence[Entry]) -> Book:
    return Book(Path("run"), Config(), tuple(entries), {}, lambda job: None)


def test_only_what_was_withdrawn_takes_part_again() -> None:
    assert {state: entry(state=state).accepted for state in STATES} == {s: s != "revoked" for s in STATES}
    assert [s for s in STATES if entry(state=s).owed] == ["denied", "expired"]
    assert [s for s in STATES if entry(state=s).waiting] == ["open", "in_progress"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", "2026-01-31T23:59:59Z"),
        ("2026-01-31T12:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
    ],
)
def test_a_date_is_a_moment_in_utc_and_a_day_lasts_until_its_end(text: Any, moment: Any) -> None:
    assert date_of(text) == moment


@pytest.mark.parametrize("text", ["soon", "2026-13-01", "", "31.01.2026"])
def test_what_is_no_date_is_said_so(text: Any) -> None:
    with pytest.raises(UnfedError, match="is no date; write it as 2026-01-31"):
        date_of(text)


def test_what_was_not_begun_by_its_date_has_expired() -> None:
    waiting = entry(expires="2026-01-31T23:59:59Z")
    assert waiting.at("2026-01-31T23:59:59Z").state == "open"
    assert waiting.at("2026-02-01T00:00:00Z").state == "expired"
    begun = waiting.stepped("in_progress", AT, begun=AT)
    assert begun.at("2027-01-01T00:00:00Z").state == "in_progress"
    put_off = begun.stepped("open", AT, why="nobody answered")
    assert put_off.at("2027-01-01T00:00:00Z").state == "open"


def test_asked_again_it_is_open_and_what_was_tried_is_written_down() -> None:
    denied = entry(state="in_progress").stepped("denied", AT, reason="not recovered", why="too few rounds")
    again = denied.asked_again(replace(denied, method="retrain", until="20"), "2026-01-03T00:00:00Z")
    assert (again.state, again.reason, again.why, again.method, again.until) == ("open", None, None, "retrain", "20")
    assert again.attempts == (
        {"method": "not", "until": "recovered", "reason": "not recovered", "why": "too few rounds", "at": AT},
    )
    assert again.methods == ("not", "retrain") and again.number == denied.number


def test_a_date_that_has_passed_does_not_come_again() -> None:
    expired = entry(expires="2026-01-31T23:59:59Z").at("2026-02-01T00:00:00Z")
    again = expired.asked_again(replace(expired, expires=None), "2026-02-02T00:00:00Z")
    assert again.at("2026-02-03T00:00:00Z").state == "open" and again.attempts == ()
    later = expired.asked_again(replace(expired, expires="2026-03-01T00:00:00Z"), "2026-02-02T00:00:00Z")
    assert later.at("2026-03-02T00:00:00Z").state == "expired"


# --- order ------------------------------------------------------------------------------------------------------------


def test_the_order_of_service_is_not_the_order_of_filing() -> None:
    served = [entry(1, "fulfilled", served=3), entry(2, "fulfilled", served=1), entry(3, "denied"), entry(4)]
    assert [e.number for e in in_force(served)] == [2, 1]
    full, empty = book(served), book([])
    assert (full.next_place, full.next_number, empty.next_place, empty.next_number) == (4, 5, 1, 1)


def number(found: Entry | None) -> int:
    assert found is not None
    return found.number


def test_what_was_begun_has_its_turn_before_what_was_asked_first() -> None:
    queue = [entry(1), entry(2, "in_progress"), entry(3, "denied"), entry(4, "revoked"), entry(5)]
    assert number(book(queue).turn([0])) == 2
    assert number(book(queue).turn([0], put_off=[2])) == 1
    assert number(book(queue).turn([0], put_off=[1, 2])) == 5
    assert book(queue).turn([7]) is None and book(queue).turn([0], [1, 2, 5]) is None


# --- files ------------------------------------------------------------------------------------------------------------


@given(
    state=st.sampled_from(STATES),
    reason=st.sampled_from(REASONS),
    words=st.text(max_size=20),
    served=st.none() | st.integers(1, 9),
    earlier=st.lists(st.text(min_size=1, max_size=5), max_size=3),
)
def test_an_entry_survives_its_file(state: Any, reason: Any, words: Any, served: Any, earlier: Any) -> None:
    made = Entry(
        7, Request("x", classes=(3,)), "not", "4", AT, 2, {"id": "x"}, state, reason if state == "denied" else None,
        words, AT, AT, served, AT, tuple(earlier), ({"method": "ft", "why": words},),
    )  # fmt: skip
    assert Entry.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 9},
        {"state": "done"},
        {"state": 3},
        {"state": "denied"},
        {"state": "denied", "reason": "bad luck"},
        {"reason": "gate"},
        {"number": "1"},
        {"number": True},
        {"served": "1"},
        {"request": None},
        {"request": {"id": "x"}},
        {"attempts": [["method"]]},
        {"attempts": {"method": "not"}},
        {"attempts": [{"method": 3}]},
    ],
)
def test_a_damaged_file_is_one_sentence(change: Any) -> None:
    raw = {**entry().to_json(), **change}
    with pytest.raises(UnfedError):
        Entry.from_json(raw, "The request file x.json")


def test_a_file_that_is_no_table_is_one_sentence() -> None:
    with pytest.raises(UnfedError, match="x.json has the layout 'list'"):
        Entry.from_json([], "x.json")
