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

from unfed.errors import Halted, UnfedError, listed, typed
from unfed.runs import foreign
from unfed.runs.onlooker import keeps_log
from unfed.runs.record import Record
from unfed.runs.requests import Entry, now
from unfed.trust import envelope, merkle, story, verifier
from unfed.trust.canonical import read_file
from unfed.trust.envelope import Envelope
from unfed.trust.folder import TrustFolder
from unfed.trust.keys import PublicKey, SigningKey
from unfed.trust.log import Checkpoint, leaf_in
from unfed.trust.participation import ROUND, prove_absence
from unfed.trust.verdict import Verdict, verdict
from unfed.trust.verifier import BUNDLE, PREDICATE, STATEMENT, NotVerified


@dataclass(frozen=True)
class FromLog:
    """What a log adds to a bundle."""

    participation: Sequence[Mapping[str, Any]] | None = None
    """One proof of absence for each client that left, in their order."""
    why_not: str = "this run keeps no log"
    """Why there is no such proof, where there is none."""
    acknowledgement: Envelope | None = None


def from_log(record: Record, entry: Entry) -> FromLog:
    """What the log of a run adds to the evidence of one request."""
    folder = record.folder
    if not keeps_log(folder.path):
        return FromLog()
    trust = TrustFolder(folder.path)
    story.enter(folder, trust)
    answer = trust.acknowledgement(entry.request.id)
    if entry.request.kind != "client":
        return FromLog(None, "the request is about rows, and the log says nothing about rows", answer)
    own = [(n, leaf) for n, leaf in enumerate(trust.log.leaves) if leaf.get("request") == entry.request.id]
    # A round that was under way when the request came may still have asked the leaver: then after its own beginning.
    places = [own[0][0], *(n for n, leaf in own if leaf["type"] == ROUND)][:2] if own else []
    why = "the request does not stand in the log"
    for place in places:
        try:
            names = [trust.pseudonyms.known(client) for client in entry.request.clients]
            return FromLog([_out_after(trust, one, place) for one in names], "", answer)
        except Halted:
            raise
        except UnfedError as error:
            why = str(error).rstrip(".")
    return FromLog(None, why, answer)


def _out_after(trust: TrustFolder, pseudonym: bytes, place: int) -> dict[str, Any]:
    """That a pseudonym is in no round after a place in the log, and in one before it, where it is in one.

    Without the second anybody could say so of a pseudonym that is nobody's.
    """
    proof = prove_absence(trust.log, trust.participants, pseudonym, place)
    size = Checkpoint.from_json(envelope.shown(envelope.read(proof["checkpoint"]))).size
    lines = trust.log.lines
    for earlier in reversed(range(place)):
        leaf = leaf_in(lines[earlier], f"leaf {earlier}")
        members = trust.participants.of(leaf["participants"]["root"]) if leaf["type"] == ROUND else []
        if pseudonym in members:
            index = members.index(pseudonym)
            path = merkle.inclusion([merkle.leaf_hash(one) for one in members], index)
            told = {"leaf": earlier, "line": lines[earlier].decode(), "place": index, "path": merkle.hexed(path)}
            return {**proof, "before": {**told, "inclusion": merkle.hexed(trust.log.inclusion(earlier, size))}}
    return {**proof, "before": None}


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
    _refuse_foreign(bundle if bundle.is_dir() else bundle.parent if bundle.name == foreign.FILE else None)
    try:
        kept = None if log is None else read_file(log, "checkpoint", verifier.LARGEST)
        data = read_file(bundle, "bundle", verifier.LARGEST)
        return verdict(data, [key.pem for key in keys], kept, model)
    except NotVerified as error:
        raise UnfedError(f"{bundle} is not verified: {error}") from error


def _refuse_foreign(folder: Path | None) -> None:
    """Say of what a Flower app of one's own wrote down that nobody signed it, and what it is about."""
    if folder is None or not (folder / foreign.FILE).is_file():
        return
    kept = foreign.evidence(folder)
    left = [f"client {name}" for name in kept["forgotten"]] + [f"class {number}" for number in kept.get("classes", ())]
    raise UnfedError(
        f"{folder} is what a Flower app wrote down of taking {listed(left, 'and') or 'a node'} out; nobody signed it,"
        f" so there is nothing to verify, and `{typed('report', folder)}` shows it."
    )
