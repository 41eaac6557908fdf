"""Models that a training kept on its way, and who had a part in them.

    training.keep_every = N     state/SEED/train.kept-ROUND         after every N-th round, but for the last
    trajectory.jsonl            "asked": {ROUND: [CLIENT, …], …}    who was asked to train in which round

A client counts from the first round in which it was asked, whether its update was taken or not. A kept model is
untouched by some clients only if the trajectory says of every round up to it who was asked, and none of them was. Nor
may a round have been taken back on the way: that is decided by validation rows, and theirs may be among these.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from unfed import storage
from unfed.errors import UnfedError, option
from unfed.federation.history import History
from unfed.folder.folder import PARAMS, RunFolder, saved_at
from unfed.folder.layout import client_list, names_of
from unfed.methods.retrain import KEPT
from unfed.requests.entry import Job


def asked(folder: RunFolder, seed: int) -> dict[int, set[str]]:
    """Who was asked to train, by the rounds of a training that are recorded."""
    found: dict[int, set[str]] = {}
    for line in folder.lines():
        if (line["seed"], line["request"]) == (seed, None):
            for round, clients in (line.get("asked") or {}).items():
                found.setdefault(int(round), set()).update(clients)
    return found


def touched(folder: RunFolder, seed: int, clients: Collection[str]) -> list[Path]:
    """The kept models in which these clients may have a part.

    These are all of them where it is not known whose rows leave.
    """
    kept = folder.kept_states(folder.state_file(Job(seed, None, "train")))
    clean = _untouched(folder, seed, clients) if kept else {}
    return [path for round, path in kept.items() if round not in clean]


def _untouched(folder: RunFolder, seed: int, clients: Collection[str]) -> dict[int, Path]:
    """The kept models in which none of these clients has a part, by their rounds."""
    known, rounds = client_list(folder.path), asked(folder, seed)
    names = names_of(clients, known.names if known else {})
    first = next((r for r in range(1, len(rounds) + 2) if r not in rounds or rounds[r] & names), 0)
    found = {}
    for round, path in folder.kept_states(folder.state_file(Job(seed, None, "train"))).items():
        notes = {} if (saved := saved_at(path)) is None else saved.diary.to_json()
        if clients and round < first and not notes.get("careful") and not notes.get("aside"):
            found[round] = path
    return found


def before(folder: RunFolder, seed: int, clients: Collection[str]) -> History:
    """The newest kept model in which none of these clients has a part, and how many rounds made it.

    Raises:
        UnfedError: No such model is kept.
    """
    if not (clean := _untouched(folder, seed, clients)):
        rounds = sorted(asked(folder, seed).items())
        took = ((round, min(own)) for round, names in rounds if (own := names & {*clients}))
        when = next((f": client {name} took part in round {round}" for round, name in took), "")
        raise UnfedError(
            f"No kept model is from before those who leave took part{when}; use {option('method', 'retrain')} with"
            " start = 'fresh'."
        )
    round = max(clean)
    tensors, _ = storage.load(clean[round], "kept model")
    return History(rounds=round, shared={KEPT: storage.part(tensors)[PARAMS]})
