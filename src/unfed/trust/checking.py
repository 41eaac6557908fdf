"""Is what a run keeps of signed requests whole, and does the log say what the run folder says?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.requests.entry import Entry
from unfed.runs.record import RunRecord
from unfed.runs.trust_log import logs_named
from unfed.trust import log as logs
from unfed.trust.folder import ROSTER, TrustFolder, envelope_at
from unfed.trust.log import Checkpoint
from unfed.trust.logbook import due
from unfed.trust.participation import ROUND
from unfed.trust.signing import canonical


def faults_of(run: Path, kept: Checkpoint | None = None) -> list[str]:
    """One sentence for each thing that is wrong; `kept` is a checkpoint that somebody else has."""
    try:
        trust = TrustFolder(run)
        said = logs.faults(trust.log, [trust.operator], kept)
        return said or _against_folder(RunFolder(run), trust)
    except UnfedError as error:
        return [str(error)]
    except OSError as error:
        return [f"Something could not be read ({error}); restore it from a copy."]


def _against_folder(folder: RunFolder, trust: TrustFolder) -> list[str]:
    """Whether everything that the folder says happened stands in the log, rounds and all."""
    said: list[str] = []
    if trust.roster.business != trust.operator.id:  # one that was changed is refused when it is read
        said.append(f"{trust.path / ROSTER} is the roster of another operator; sign it anew.")
    for origin, state in logs_named(folder).items():
        if origin != trust.log.origin:
            said.append(f"{trust.path} has another log than the one that was kept when {state} was saved; restore it.")
    leaves, lines = trust.log.leaves, set(trust.log.lines)
    entries = folder.book().entries
    missing = [leaf for leaf in due(folder, trust, entries) if canonical(leaf) not in lines]
    if missing and not folder.busy():
        said.append(
            f"{len(missing)} things that happened in {folder.path} are not in its log yet (first a"
            f" {missing[0]['type']} at {missing[0]['at']}); {RunRecord(folder).going_on} enters them."
        )
    models = {leaf["model"] for leaf in leaves if leaf["type"] == ROUND}
    begun = next((leaf for leaf in leaves if leaf["type"] == "begin"), {})
    before = begun.get("models-before")
    since = ""
    if isinstance(before, list):
        models |= {model for model in before if isinstance(model, str)}
    else:  # a log from before these were named, which has the moment alone
        since = str(begun.get("at", ""))
    for leaf in leaves:
        if leaf["type"] == "in-force" and leaf["at"] >= since and leaf["model"] not in (None, *models):
            said.append(
                f"The model of request {leaf['request']!r} came into force, but no round in the log ends with it:"
                " it was made without the log."
            )
    for root in dict.fromkeys(leaf["participants"]["root"] for leaf in leaves if leaf["type"] == ROUND):
        try:
            trust.participants.of(root)
        except UnfedError as error:
            said.append(str(error))
    return list(dict.fromkeys([*said, *_signed(trust, leaves, entries)]))


def _signed(trust: TrustFolder, leaves: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> Iterator[str]:
    """Whether the signed files are those that were logged; the answers to purged clients may be gone."""
    gone = {entry.request.id for entry in entries if entry.purged and entry.request.clients}
    places: dict[str, Callable[[str], Path]] = {
        "roster": lambda name: trust.path / ROSTER,
        "request": trust.request_file,
        "acknowledgement": trust.acknowledgement_file,
        "declined": trust.declined_file,
    }
    last = {(leaf["type"], str(leaf.get("request"))): leaf.get("sha256") for leaf in leaves}
    for (kind, name), digest in last.items():
        if kind not in places or (kind == "acknowledgement" and name in gone):
            continue
        path = places[kind](name)
        try:
            kept = envelope_at(path, kind)
        except UnfedError as error:
            yield str(error)
        else:
            if kept is None or kept.digest != digest:
                yield f"{path} is not the {kind} that was logged; restore it from a copy."
