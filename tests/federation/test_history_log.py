"""Histories are added to, not rewritten: a save costs what changed, a kill costs nothing, a purge leaves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unfed import storage
from unfed.errors import UnfedError
from unfed.federation.history import ClientRecord, History
from unfed.folder.folder import RunFolder
from unfed.methods import FUKD, State
from unfed.requests.entry import Job

JOB = Job(0, None, "train")
CLIENTS = 200


def history(clients: int = CLIENTS) -> History:
    own = {f"client-{k}": ClientRecord({"w": torch.full((50,), float(k))}, {"rounds": 1}) for k in range(clients)}
    return History(1, {"initial": {"w": torch.zeros(50)}}, own, {"plan": "p"})


def changed(before: History, client: str) -> History:
    record = before.own[client]
    after = ClientRecord({"w": record.tensors["w"] + 1}, {"rounds": 2})
    return replace(before, rounds=before.rounds + 1, own={**before.own, client: after})


def save(folder: RunFolder, kept: Mapping[str, History], round: int = 1) -> None:
    folder.save_state(JOB, State({"w": torch.ones(2)}, round=round), {"offset": 0, "finished": None}, kept)


def same(a: History, b: History) -> bool:
    def plain(one: History) -> tuple[Any, ...]:
        own = {c: ({n: t.tolist() for n, t in r.tensors.items()}, dict(r.numbers)) for c, r in one.own.items()}
        shared = {g: {n: t.tolist() for n, t in tensors.items()} for g, tensors in one.shared.items()}
        return one.rounds, list(own.items()), list(shared.items()), dict(one.numbers), one.purged

    return plain(a) == plain(b)


def log_of(folder: RunFolder) -> Path:
    (found,) = (folder.path / "state/0").glob("train.history-*")
    return found


def test_a_save_costs_what_changed_and_everything_is_read_back(tmp_path: Path) -> None:
    folder, before = RunFolder(tmp_path), history()
    save(folder, {"a": before, "b": before})
    whole = log_of(folder).stat().st_size
    after = changed(before, "client-7")
    save(folder, {"a": after, "b": before}, 2)
    assert log_of(folder).stat().st_size - whole < whole / 100
    found = RunFolder(tmp_path).load_histories(JOB)  # as another process reads it
    assert same(found["a"], after) and same(found["b"], before)


def test_clients_groups_and_tensors_may_have_any_name(tmp_path: Path) -> None:
    own = {"a/b": ClientRecord({"w/x": torch.arange(3.0)}, {"rounds": [1, 2]}), "c": ClientRecord()}
    before = History(4, {"g/1": {"w": torch.ones(2)}}, own, {"plan": "{}"}, ("z",))
    save(RunFolder(tmp_path), {"x/y": before})
    assert same(RunFolder(tmp_path).load_histories(JOB)["x/y"], before)


def test_whoever_goes_on_adds_to_what_is_there(tmp_path: Path) -> None:
    save(RunFolder(tmp_path), {"a": history()})
    again = RunFolder(tmp_path)
    read = again.load_histories(JOB)["a"]
    whole = log_of(again).stat().st_size
    after = changed(read, "client-0")
    save(again, {"a": after}, 2)
    assert log_of(again).stat().st_size - whole < whole / 50
    assert same(RunFolder(tmp_path).load_histories(JOB)["a"], after)


def test_killed_between_log_and_state_the_state_before_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = RunFolder(tmp_path), history()
    save(folder, {"a": before})

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(storage, "save", killed)
        save(folder, {"a": changed(before, "client-1")}, 2)
    again = RunFolder(tmp_path)
    read = again.load_histories(JOB)["a"]
    assert same(read, before)
    other = changed(read, "client-2")
    save(again, {"a": other}, 2)
    assert same(RunFolder(tmp_path).load_histories(JOB)["a"], other)


def test_what_is_out_of_date_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unfed.folder.histories._SLACK", 0)
    folder, kept = RunFolder(tmp_path), history(3)
    save(folder, {"a": kept})
    for round in range(2, 40):
        for client in list(kept.own):
            kept = changed(kept, client)
        save(folder, {"a": kept}, round)
    assert log_of(folder).stat().st_size < 20_000  # 38 saves of three records of 200 bytes would be more
    assert same(RunFolder(tmp_path).load_histories(JOB)["a"], kept)


def test_a_purged_client_is_in_no_file_any_more(tmp_path: Path) -> None:
    folder, kept = RunFolder(tmp_path), history(5)
    save(folder, {"fukd": kept})
    save(folder, {"fukd": changed(kept, "client-3")}, 2)
    folder.purge(0, ["client-3"], {"fukd": FUKD().purge})
    left = RunFolder(tmp_path).load_histories(JOB)["fukd"]
    assert list(left.own) == ["client-0", "client-1", "client-2", "client-4"] and left.purged == ("client-3",)
    gone = torch.full((50,), 3.0).numpy().tobytes(), torch.full((50,), 4.0).numpy().tobytes()
    assert gone[0] not in log_of(folder).read_bytes() and log_of(folder).read_bytes().count(gone[1]) == 1


@pytest.mark.parametrize("damage", ["flipped", "shortened", "gone"])
def test_a_log_that_is_not_what_its_state_vouches_for_is_refused(tmp_path: Path, damage: str) -> None:
    folder = RunFolder(tmp_path)
    save(folder, {"a": history(5)})
    data = log_of(folder).read_bytes()
    if damage == "gone":
        log_of(folder).unlink()
    else:
        log_of(folder).write_bytes(data[:-1] if damage == "shortened" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UnfedError, match="history .* is not what .* vouches for"):
        RunFolder(tmp_path).load_histories(JOB)
