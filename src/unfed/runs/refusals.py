"""Why a request is refused or denied, and what it has left to take out."""

from __future__ import annotations

from collections.abc import Sequence

from unfed.data import Request
from unfed.errors import NotRecovered, Refused, listed
from unfed.requests.entry import Reason
from unfed.runs.world import World


def reason_of(error: Exception) -> Reason:
    """The reason why a request was denied.

    Its rounds did not suffice, a gate said no to what came out, or it could not be served at all.
    """
    if isinstance(error, NotRecovered):
        return "not recovered"
    return "gate" if isinstance(error, Refused) else "refused"


def left_by(world: World, request: Request, others: Sequence[Request]) -> list[Request]:
    """The requests by which every row that a request asks for has left; none if some row is still in."""
    if not others or world.holds(request, others):
        return []
    needed = list(others)
    for other in reversed(others):  # as few as tell the whole of it, the oldest ones first
        rest = [one for one in needed if one is not other]
        if rest and not world.holds(request, rest):
            needed = rest
    return needed


def gone_already(request: Request, by: Sequence[Request]) -> str:
    """The sentence for a request that has nothing to take out."""
    names = listed((repr(one.id) for one in by), last="and")
    what = f"request{'s' if len(by) > 1 else ''} {names}"
    return f"Every training row that request {request.id!r} asks for is out already, by {what}."
