"""The sentence with which a page begins: what happened, as far as measurements bear it out.

    "Client 0 was taken out by …"                  a model without it is in force, and nobody brought it back
    "Client 0 was hidden, not taken out, by …"     undone, more of it comes back than in Retrain treated alike
    "In a comparison, client 0 …"                  methods were compared; it is still in the model in force

What is said where nothing was measured is in `words.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.report import wording
from unfed.report.rules import Row
from unfed.report.undo_section import brought_back
from unfed.report.words import headline, sentence


def opening(run: Mapping[str, Any], request: Mapping[str, Any], found: Sequence[Row]) -> str:
    """The first sentence about a request, from its rows after the last round."""
    row = headline(found, request)
    undone = row is not None and brought_back(run, request["id"], row.method) is not None
    said = sentence(request, found, wording.of(run), undone=undone)
    if any(request["id"] in model.get("only_compared", ()) for model in run.get("in_force") or []):
        return f"In a comparison, {said[0].lower()}{said[1:]}"
    return said
