"""The model card of an exported model, in the form that Hugging Face's tools read.

    DIR/model.safetensors   the weights
    DIR/config.json         network, options, job
    DIR/README.md           this card: what was asked, what was done, what was measured, what that does not show

The numbers are those of the model's own job after its last round, beside the model before and Retrain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unfed.folder.info import RunInfo
from unfed.measures.trajectory import Line
from unfed.report import sentences, tables
from unfed.report.html import page
from unfed.report.rules import asked, rows
from unfed.report.undo import NOT_PROBED, UndoSection
from unfed.report.wording import words_of
from unfed.requests.entry import Job


def model_card(
    run: RunInfo, lines: Sequence[Line], job: Job, about: Mapping[str, Any], evidence: Mapping[str, str]
) -> str:
    """The card of one model. `evidence`: the SHA-256 of evidence files of its request, by name."""
    facts: dict[str, Any] = {}
    if (request := asked(run, lines).get(job.request or "")) is not None:
        found = [row for row in rows(lines, "last") if row.request == request.id]
        found = [row for row in found if row.is_before or row.is_reference or row.method == job.label]
        own = next((row for row in found if row.method == job.label), None)
        tried = [one for one in run.undo if (one.request, one.method) == (request.id, job.label)]
        exact = own is not None and own.is_reference
        untried = "nothing to undo: the model was trained without it from the beginning" if exact else NOT_PROBED
        facts = {
            "happened": sentences.first_sentence(run, request.model_copy(update={"method": job.label}), found),
            "table": tables.markdown(found, words=words_of(run)),
            "lasts": sentences.lasting(UndoSection.of(tried, untried), own),
            "trust": sentences.trust(len(run.seeds) or 1, any(row.is_reference for row in found)),
        }
    return page("card.md.j2", run=run, job=job, about=about, evidence=evidence, request=request, **facts)
