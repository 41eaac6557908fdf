"""The evidence bundle: one file that says what became of a request, signed, for others to check.

    DSSE envelope, signed by the operator
      in-toto Statement
        subject      the models by their fingerprints: "model", the one in force, and "model before"
        predicate    findings         what the run folder says (`findings.py`)
                     log              every leaf of the log, and the signed checkpoint over them
                     participation    for each client that left: its pseudonym is in no tree of a later round
                     acknowledgement  the operator's signed answer: the client's signed request, and its key
                     made             when the bundle was made

A bundle holds no tensor and no sample's id, and nothing of what the two models give away together. `unfed verify` reads
it, and so does `verifier.py`, one file without this library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed.errors import Halted, UnfedError
from unfed.requests.entry import Entry, now
from unfed.runs.record import RunRecord, keeps_log
from unfed.trust import log as merkle
from unfed.trust import logbook, signing, verifier
from unfed.trust.folder import TrustFolder
from unfed.trust.participation import ROUND
from unfed.trust.signing import Envelope, PublicKey, SigningKey, read_file
from unfed.trust.verdict import Verdict, verdict
from unfed.trust.verifier import BUNDLE, PREDICATE, STATEMENT, NotVerified


@dataclass(frozen=True)
class FromLog:
    """What a log adds to a bundle."""

    log: Mapping[str, Any] | None = None
    """Every leaf, and the checkpoint that is signed over them."""
    participation: Sequence[Mapping[str, Any]] | None = None
    """One proof of absence for each client that left, in their order."""
    acknowledgement: Envelope | None = None
    why_not: str = ""
    """Why there is no proof of absence, where there could be one."""


def from_log(record: RunRecord, entry: Entry) -> FromLog:
    """What the log of a run adds to the evidence of one request."""
    folder = record.folder
    if not keeps_log(folder.path):
        return FromLog()
    trust = TrustFolder(folder.path)
    logbook.enter(folder, trust)
    signed = trust.log.latest()
    lines = trust.log.lines[: merkle.checkpoint_of(signing.shown(signed)).size]
    leaves = trust.log.leaves[: len(lines)]
    whole = {"leaves": [line.decode() for line in lines], "checkpoint": signed.to_json()}
    answer = trust.kept("acknowledgement", entry.request.id)
    asked = next((n for n, leaf in enumerate(leaves) if leaf.get("request") == entry.request.id), len(leaves))
    proofs, why = None, ""
    if entry.request.kind == "client":
        try:
            names = [trust.pseudonyms.known(client) for client in entry.request.clients]
            proofs = [_absence(trust, leaves, one, asked) for one in names]
        except Halted:
            raise
        except UnfedError as error:
            why = str(error)
    return FromLog(whole, proofs, answer, why)


def _absence(trust: TrustFolder, leaves: Sequence[Mapping[str, Any]], pseudonym: bytes, asked: int) -> dict[str, Any]:
    """That a pseudonym is in no round after a place in the log, and in one before it, where it is in one.

    Without the second, absence could be shown of a pseudonym that is no client's. A round that was under way when the
    request came may have asked the leaver: the first one after it needs no proof.
    """
    rounds = {place: leaf for place, leaf in enumerate(leaves) if leaf["type"] == ROUND}
    later = [place for place in rounds if place > asked]
    absences: dict[str, Any] = {}
    for place in later:
        root = rounds[place]["participants"]["root"]
        if root in absences:
            continue
        members = trust.participants.of(root)
        if pseudonym not in members:
            absences[root] = merkle.absence(members, pseudonym)
        elif place != later[0]:
            said = f"round {rounds[place]['round']} of {rounds[place]['method']} (leaf {place} of the log)"
            raise UnfedError(f"The leaver took part in {said}, so no proof of its absence can be made.")
    before = None
    for place in sorted((one for one in rounds if one < asked and rounds[one]["round"]), reverse=True):
        members = trust.participants.of(rounds[place]["participants"]["root"])
        if pseudonym in members:
            path = merkle.inclusion([verifier.leaf(one) for one in members], members.index(pseudonym))
            before = {"leaf": place, "place": members.index(pseudonym), "path": merkle.hexed(path)}
            break
    return {"pseudonym": pseudonym.hex(), "absences": absences, "before": before}


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
            "log": log.log,
            "participation": None if log.participation is None else [dict(one) for one in log.participation],
            "acknowledgement": None if log.acknowledgement is None else log.acknowledgement.to_json(),
        },
    }
    return signing.sign(BUNDLE, statement, key)


def verify(bundle: Path, keys: Sequence[PublicKey], log: Path | None = None, model: Path | None = None) -> Verdict:
    """What a bundle shows; where something does not hold, the sentence that says so."""
    kept = None if log is None else read_file(log, "checkpoint", verifier.LARGEST)
    return verified(read_file(bundle, "bundle", verifier.LARGEST), keys, str(bundle), kept, model)


def verified(
    data: bytes, keys: Sequence[PublicKey], what: str, log: bytes | None = None, model: Path | None = None
) -> Verdict:
    """The same of a bundle's bytes."""
    try:
        return verdict(data, [key.pem for key in keys], log, model)
    except NotVerified as error:
        raise UnfedError(f"{what} is not verified: {error}") from error
