"""The evidence bundle: one file that says what became of a request, signed, for others to check.

    DSSE envelope, signed by the operator
      in-toto Statement
        subject      the models by their fingerprints: "model", the one in force, and "model before"
        predicate    findings         what the run folder says (`findings.py`)
                     participation    for each client that left, that it took part in no round after its request
                     acknowledgement  the operator's signed answer to the signed request, where there was one
                     made             when the bundle was made

A bundle holds no tensor and no sample's id, and nothing of what the two models give away together. `unfed verify` reads
it, and so does `verifier.py`, one file without this library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError
from unfed.runs.requests import now
from unfed.trust import envelope, verifier
from unfed.trust.envelope import Envelope
from unfed.trust.keys import PublicKey, SigningKey
from unfed.trust.verifier import BUNDLE, PREDICATE, STATEMENT, NotVerified, Verdict


@dataclass(frozen=True)
class FromLog:
    """What a log adds to a bundle."""

    participation: Sequence[Mapping[str, Any]] | None = None
    """One proof of absence for each client that left, in their order."""
    why_not: str = "this run keeps no log"
    """Why there is no such proof, where there is none."""
    acknowledgement: Envelope | None = None


def sign(findings: Mapping[str, Any], key: SigningKey, log: FromLog = FromLog()) -> Envelope:  # noqa: B008
    """The bundle about what was found, signed by the operator."""
    models = findings["models"]
    subjects = {"model": models["after"]} | ({"model before": models["before"]} if "before" in models else {})
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": PREDICATE,
        "predicate": {
            "made": now(),
            "findings": dict(findings),
            "participation": None if log.participation is None else [dict(one) for one in log.participation],
            "no_participation": None if log.participation else log.why_not,
            "acknowledgement": None if log.acknowledgement is None else log.acknowledgement.to_json(),
        },
    }
    return envelope.sign(BUNDLE, statement, key)


def verify(bundle: Path, keys: Sequence[PublicKey], log: Path | None = None, model: Path | None = None) -> Verdict:
    """What a bundle shows; where something does not hold, the sentence that says so."""
    try:
        kept = None if log is None else _read(log)
        return verifier.verify(_read(bundle), [key.pem for key in keys], kept, model)
    except NotVerified as error:
        raise UnfedError(f"Not verified: {error}") from error


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(verifier.LARGEST + 1)
    except OSError as error:
        raise UnfedError(f"{path} cannot be read ({error.strerror}); check the path.") from error
