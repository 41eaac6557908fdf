"""What the commands do more in a run that keeps a log of signed requests.

Nothing of the extra is imported unless the run has a folder `trust/`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unfed.errors import UnfedError, UnfedWarning
from unfed.folder.folder import RunFolder
from unfed.requests.entry import Entry
from unfed.requests.options import RequestOptions
from unfed.runs.onlooker import keeps_log
from unfed.runs.run import Run


def received(
    run: Run, signed: Path, opening: Path | None, handling: tuple[str | None, str | None, int | None, RequestOptions]
) -> tuple[str, str]:
    """Take a signed request in: its id, and a sentence.

    It is to be handled like this: method, until, seed, options.
    """
    from unfed.trust import acknowledgement, intake
    from unfed.trust.canonical import read_file
    from unfed.trust.folder import TrustFolder

    opened = None if opening is None else intake.opening_in(read_file(opening, "opening"))
    taken = intake.receive(run, read_file(signed, "request"), opened, intake.Handling(*handling))
    trust, name = TrustFolder(run.folder.path), taken.entry.request.id
    due = acknowledgement.verified(taken.acknowledgement, [trust.operator]).expected_by
    answer = trust.acknowledgement_file(name)
    return name, f"Request {name!r} is believed and filed, to be dealt with by {due}; the signed answer is {answer}."


def revoked(run: Run, name: str, file: Path) -> Entry:
    """Let a request go by the signed revocation in a file."""
    from unfed.trust import envelope, revocation
    from unfed.trust.canonical import read_file

    data = read_file(file, "revocation")
    told = envelope.shown(envelope.read(data, "revocation"))
    if not isinstance(told, dict) or told.get("agent-request-id") != name:
        raise UnfedError(f"{file} does not revoke request {name!r}; give the right file.")
    return revocation.receive(run, data)


@contextmanager
def entered(folder: RunFolder, purged: Sequence[str] = ()) -> Iterator[None]:
    """Enter in the log what a command does in this block, where the run keeps one.

    Without the operator's key it is not begun.
    """
    if not keeps_log(folder.path):
        yield
        return
    from unfed.trust import story
    from unfed.trust.folder import TrustFolder

    trust = TrustFolder(folder.path)
    trust.require_key()
    yield
    story.enter(folder, trust, purged)


def due_dates(run: Path) -> dict[str, str]:
    """By when each signed request was promised to be dealt with, by its id."""
    if not keeps_log(run):
        return {}
    try:
        from unfed.trust.folder import TrustFolder

        leaves = TrustFolder(run).log.leaves
    except UnfedError as error:  # where a run stands can be said all the same
        warnings.warn(f"When signed requests are due is not known: {error}", UnfedWarning, stacklevel=2)
        return {}
    return {leaf["request"]: leaf["expected_by"] for leaf in leaves if leaf["type"] == "acknowledgement"}


def log_faults(run: Path) -> list[str]:
    """What is wrong with the log of a run, one sentence each; nothing where it keeps none."""
    try:
        if not keeps_log(run):
            return []
    except UnfedError:  # a damaged state, which whoever reads the folder has named already
        return []
    from unfed.trust.checking import faults_of

    return faults_of(run)
