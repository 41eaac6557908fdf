"""What stands below the sentences of a page, in their size: what they do not say.

evidence, not proof · no Retrain · whether it can be undone was not tried, or what came back
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.errors import listed
from unfed.report import undo_section

NOT_PROOF = "This is evidence, not proof: no measurement shows that no trace is left."
_NOT_TRIED = ((undo_section.NOT_PROBED,), (undo_section.PURGED, undo_section.PROBE_PURGED))


def caveats(views: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the sentences of a page do not say; nothing while nothing is measured."""
    views = [view for view in views if view["tables"]["last"]["body"]]
    if not views:
        return []
    said = [NOT_PROOF]
    if not any(view["retrain"] for view in views):
        said.append(
            "There is no Retrain to compare with, so how close this comes to never having seen the data is open."
        )
    undone = [view["undoing"] for view in views]
    untried, purged = ({_small(view): 1 for view in views if view["undoing"]["reason"] in why} for why in _NOT_TRIED)
    tried = any(one["reason"] is None for one in undone)
    if untried and not tried:
        said.append("Whether it can be undone was not tried.")
    elif tried and not any(one["fitted"] for one in undone):
        said.append("Of the ways to undo it, only the perturbation's public inverse was tried.")
    if any(one["weak"] for one in undone):
        said.append("Layers were fitted to bring it back, but too weakly to say anything.")
    if untried and tried:
        said.append(f"Nobody tried to undo it for {listed(untried, 'and')}.")
    if purged:
        said.append(f"Whether it can be undone for {listed(purged, 'and')} cannot be shown any more: it was purged.")
    whose = [f"{view['subject']}: " if len(views) > 1 else "" for view in views]
    back = [_within(who, told) for who, one in zip(whose, undone, strict=True) for told in one["back"]]
    return said + list(dict.fromkeys(back))


def _within(who: str, told: str) -> str:
    """A sentence about one request of several, after its name."""
    return who + (told[0].lower() + told[1:] if who else told)


def _small(view: Mapping[str, Any]) -> str:
    """What a request takes out, inside a sentence."""
    subject = str(view["subject"])
    return subject[0].lower() + subject[1:]
