"""Does the theory hold here?

The paper's claims on this run's models, and which layer to take, as the page shows it.

    theory/SEED/REQUEST.json ─► one table per request          advice/SEED.json ─► a sentence, reasons, doubts

Only what was tried is shown; a page without either has no such section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def view(run: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the page shows; nothing where nobody tried."""
    return {
        "tables": [_table(study) for study in run.get("theory", [])],
        "advice": [_advice(study) for study in run.get("advice", [])],
    }


def _table(study: Mapping[str, Any]) -> dict[str, Any]:
    body = [(str(one["place"]), str(one["says"]), str(one["verdict"]), str(one["seen"])) for one in study["claims"]]
    verdicts = [verdict for _, _, verdict, _ in body if verdict != "not tried"]
    failing = sum(verdict == "fails" for verdict in verdicts)
    return {
        "title": f"Request {study['request']}, seed {study['seed']}",
        "summary": f"Of {len(verdicts)} claims that could be tried, {len(verdicts) - failing} hold or hold under a"
        f" condition, {failing} fail.",
        "body": body,
    }


def _advice(study: Mapping[str, Any]) -> dict[str, Any]:
    found = study["advice"]
    return {
        "title": f"Seed {study['seed']}",
        "sentence": f"Perturb {found['layer']} by {found['perturbation']}.",
        "why": [str(sentence) for sentence in found["why"]],
        "doubts": [str(sentence) for sentence in found["doubts"]],
    }
