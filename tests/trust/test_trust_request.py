"""A signed request: believed from whoever may ask for it, in time, as it was signed; and from nobody else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from unfed.errors import UnfedError
from unfed.trust import participation, request, signing
from unfed.trust.participation import OPERATOR, Roster
from unfed.trust.request import NotBelieved, Opening
from unfed.trust.signing import SigningKey

OPERATES, THREE, FOUR, STRANGER = (SigningKey.drawn() for _ in range(4))
ROSTER: Roster = participation.opened_roster(
    participation.sign_roster(OPERATES.id, {"3": THREE.public, "4": FOUR.public}, OPERATES), OPERATES.public
)
OWN = {"clients": ["3"]}


def asked(what: Any = None, agent: str = "3", **changes: Any) -> dict[str, Any]:
    return {**request.value(what or OWN, agent, OPERATES.id, "0" * 64), **changes}


def refused(signed: signing.Envelope, reason: str, moment: str | None = None) -> None:
    with pytest.raises(NotBelieved) as caught:
        request.believed(signed, ROSTER, moment)
    assert caught.value.reason == reason


def test_a_client_asks_for_its_own_data() -> None:
    value = asked()
    found = request.believed(request.sign(value, THREE), ROSTER)
    assert (found.id, found.agent, found.kind) == (value["agent-request-id"], "3", "clients")
    assert found.request().clients == ("3",)
    assert found.model == "0" * 64


def test_the_operator_asks_for_anything() -> None:
    for scope in (OWN, {"clients": ["3", "4"]}, {"classes": [1, 2]}):
        signed = request.sign(asked(scope, OPERATOR), OPERATES)
        assert request.believed(signed, ROSTER).scope == scope


def test_a_client_asks_for_nobody_elses_data_and_for_no_class() -> None:
    others = Opening.drawn([("4", 1)]).scope()
    for scope in ({"clients": ["4"]}, {"clients": ["3", "4"]}, {"classes": [1]}, {"samples": others}):
        refused(request.sign(asked(scope), THREE), "not its own")


def test_whoever_is_not_on_the_roster_or_signs_for_another_is_refused() -> None:
    refused(request.sign(asked(), STRANGER), "signature")
    refused(request.sign(asked(), FOUR), "agent")
    refused(request.sign(asked({"clients": ["4"]}, "4"), THREE), "agent")
    refused(request.sign(asked(agent=OPERATOR), THREE), "agent")
    refused(request.sign({**asked(), "business-id": STRANGER.id}, THREE), "business")


def test_a_request_is_believed_only_in_its_time() -> None:
    value = asked()
    signed = request.sign(value, THREE)
    refused(signed, "expired", "2100-01-01T00:00:00Z")
    refused(signed, "early", "2000-01-01T00:00:00Z")
    assert request.believed(signed, ROSTER, value["expires-at"])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for name, inner in value.items() for p in _paths(inner, (*path, name))]
    if isinstance(value, list):
        return [p for place, inner in enumerate(value) for p in _paths(inner, (*path, place))]
    return [path]


def _flipped(value: Any, path: tuple[Any, ...]) -> Any:
    found = copy.deepcopy(value)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    last = inner[path[-1]]
    inner[path[-1]] = (
        last + 1 if isinstance(last, int) else ("x" if last is None else last[:-1] + chr(ord(last[-1]) ^ 1))
    )
    return found


@pytest.mark.parametrize("scope", [OWN, {"samples": Opening.drawn([("3", 1), ("3", 7)]).scope()}], ids=["all", "some"])
def test_flipping_any_field_of_a_signed_request_refuses_it(scope: Any) -> None:
    value = asked(scope)
    good = request.sign(value, THREE)
    paths = _paths(value)
    assert len(paths) >= 10
    for path in paths:
        payload = json.dumps(_flipped(value, path), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert payload != good.payload
        refused(signing.Envelope(payload, good.type, good.signatures), "signature")


@pytest.mark.parametrize(
    "change",
    [
        {"exercise": "access"},
        {"drp.version": "0.9"},
        {"regime": "none"},
        {"agent-request-id": "../out"},
        {"agent-id": ""},
        {"issued-at": "yesterday"},
        {"expires-at": "2026-13-01T00:00:00Z"},
        {"expires-at": "2020-01-01T00:00:00Z"},
        {"model": "abc"},
        {"scope": {}},
        {"scope": {"clients": []}},
        {"scope": {"clients": ["3"], "classes": [1]}},
        {"scope": {"clients": [3]}},
        {"scope": {"classes": [-1]}},
        {"scope": {"samples": [["3", 1]]}},
        {"scope": {"samples": {"client": "3", "count": 0, "commitment": "0" * 64}}},
        {"more": 1},
    ],
)
def test_a_request_that_is_not_in_the_protocols_words_is_not_even_signed(change: dict[str, Any]) -> None:
    with pytest.raises(UnfedError):
        request.sign(asked(**change), THREE)
    loose = signing.sign(request.TYPE, asked(**change), THREE)  # signed by other means it is refused all the same
    refused(loose, "malformed")


def test_samples_are_committed_to_and_their_ids_are_not_in_what_is_signed() -> None:
    opening = Opening.drawn([("3", 70_001), ("3", 70_002)])
    signed = request.sign(asked({"samples": opening.scope()}), THREE)
    for secret in (b"70001", b"70002", opening.salt, opening.salt.hex().encode()):
        assert secret not in signed.payload
    found = request.believed(signed, ROSTER)
    assert found.request(Opening.from_json(opening.to_json())).samples == opening.samples
    with pytest.raises(UnfedError, match="--opening"):
        found.request()
    for other in (Opening.drawn(opening.samples), Opening(opening.samples[:1], opening.salt)):
        with pytest.raises(UnfedError, match="not that of this|not the one of this"):
            found.request(other)


def test_a_roster_that_somebody_else_signed_or_that_names_a_key_twice_is_refused() -> None:
    with pytest.raises(UnfedError, match="known keys"):
        participation.opened_roster(participation.sign_roster(STRANGER.id, {}, STRANGER), OPERATES.public)
    with pytest.raises(UnfedError, match="twice"):
        participation.sign_roster(OPERATES.id, {"3": THREE.public, "4": THREE.public}, OPERATES)
    with pytest.raises(UnfedError, match="twice"):
        participation.sign_roster(OPERATES.id, {"3": OPERATES.public}, OPERATES)


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-11-15T10:00:00Z", "2026-12-15T10:00:00Z"),
        ("2026-12-31T10:00:00Z", "2027-01-31T10:00:00Z"),
        ("2026-01-31T10:00:00Z", "2026-02-28T10:00:00Z"),
        ("2028-01-30T10:00:00Z", "2028-02-29T10:00:00Z"),
    ],
)
def test_an_answer_is_due_within_one_month(received: str, due: str) -> None:
    assert request.month_later(received) == due
