"""What a client lets be done with its data: its own node config decides, not the server.

    always        training on retained rows, and counted metrics (how many, how many right, the summed loss) of
                  retained and validation rows
    allow="…"     forget       also train and count on the rows that are to be forgotten
                  gradients    also answer with summed gradients
                  samples      also answer with the loss of single rows (for membership inference)

`all` means the retained rows and those to be forgotten, so it counts as `forget` where the client holds any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unfed.client.plan import Measure, Plan
from unfed.data import ClientData
from unfed.errors import UnfedError, listed, nearest

KINDS = ("forget", "gradients", "samples")


def allowed(node: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of question that a node config allows beyond the usual ones."""
    words = [word.strip() for word in str(node.get("allow", "")).split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            raise UnfedError(f"The node config allows {word!r}; it can allow {listed(KINDS)}.{nearest(word, KINDS)}")
    return frozenset(words)


def objection_to_plan(plan: Plan, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not run a plan; empty if it will."""
    for phase in plan.phases:
        if phase.view == "val":
            return "it does not train on validation rows"
        reason = _objection_to_view(phase.view, client, allow, "train on")
        if reason:
            return reason
    return ""


def objection_to_measure(what: Measure, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not answer a measure; empty if it will."""
    if what.what != "correct" and "gradients" not in allow:
        return 'it does not give gradients (its node config would need allow="gradients")'
    return _objection_to_view(what.view, client, allow, "measure")


def objection_to_scores(view: str, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not give one score per row; empty if it will."""
    if "samples" not in allow:
        return 'it does not give losses of single rows (its node config would need allow="samples")'
    return _objection_to_view(view, client, allow, "measure")


def _objection_to_view(view: str, client: ClientData, allow: frozenset[str], verb: str) -> str:
    concerned = view == "forget" or (view == "all" and len(client.view("forget")) > 0)
    if concerned and "forget" not in allow:
        return f'it does not {verb} rows that are to be forgotten (its node config would need allow="forget")'
    return ""
