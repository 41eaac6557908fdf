"""The log: it only grows, and whoever cuts, edits or re-orders it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unfed.errors import UnfedError
from unfed.trust import log as merkle
from unfed.trust import signing, verifier
from unfed.trust.log import CHECKPOINTS, LOG, Checkpoint, Log, checkpoint_in, faults
from unfed.trust.participation import Participants, Pseudonyms
from unfed.trust.signing import SigningKey

KEY = SigningKey.drawn()


def leaf(number: int) -> dict[str, Any]:
    return {"type": "test", "at": "2026-01-01T00:00:00Z", "number": number}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Seven leaves, signed for after the third, the fifth and the last."""
    made = Log(tmp_path / "trust", "test")
    for numbers in (range(3), range(3, 5), range(5, 7)):
        made.append(*(leaf(number) for number in numbers))
        made.sign(KEY)
    return made


def test_what_was_appended_is_read_in_its_order_by_another_process(log: Log) -> None:
    assert [one["number"] for one in Log(log.folder, "test").leaves] == list(range(7))
    assert faults(Log(log.folder, "test"), [KEY.public]) == []


def test_a_leaf_is_shown_under_a_signed_checkpoint(log: Log) -> None:
    first, _, last = (checkpoint_in(one, [KEY.public]) for one in log.checkpoints())
    assert (first.size, last.size) == (3, 7)
    assert verifier.climbed(log.hashes[4], 4, 7, merkle.hexed(log.inclusion(4, 7))).hex() == last.root


def test_nothing_new_is_signed_where_nothing_was_added(log: Log) -> None:
    assert log.sign(KEY) == log.latest()
    assert len(log.checkpoints()) == 3


@pytest.mark.parametrize("left", [None, b"", b"half a line"])
def test_a_log_that_lost_all_its_checkpoints_does_not_pass_for_one_that_was_signed_for(
    log: Log, left: bytes | None
) -> None:
    path = log.folder / CHECKPOINTS
    path.unlink() if left is None else path.write_bytes(left)
    (said,) = faults(Log(log.folder, "test"), [KEY.public])
    assert said.startswith("None of the 7 leaves") and f"{path} is gone or was emptied" in said


def _swap(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], *lines[2:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "its end is gone"),
        (lambda lines: _edited(lines), "changed"),
        (_swap, "changed,"),
        (lambda lines: [*lines[:3], *lines[4:], lines[3]], "moved"),
        (lambda lines: [lines[0], *lines], "changed,"),
        (lambda lines: [b"nothing", *lines[1:]], "JSON"),
    ],
    ids=["cut", "edited", "re-ordered", "moved to the end", "doubled", "damaged"],
)
def test_a_log_that_was_tampered_with_is_found(log: Log, change: Any, said: str) -> None:
    path = log.folder / LOG
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    found = faults(Log(log.folder, "test"), [KEY.public])
    assert found and any(said in sentence for sentence in found)
    tampered = Log(log.folder, "test")
    tampered.append(leaf(7))
    with pytest.raises(UnfedError, match="is not the one whose first 7 leaves were signed for"):
        tampered.sign(KEY)
    assert len(tampered.checkpoints()) == 3, "nobody puts his signature under it"


def _edited(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"number":2', b'"number":20') for line in lines]


def test_a_log_cut_back_with_its_checkpoints_is_found_by_whoever_kept_one(log: Log) -> None:
    kept = checkpoint_in(log.latest(), [KEY.public])
    for name, count in ((LOG, 3), (CHECKPOINTS, 1)):
        path = log.folder / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))
    cut = Log(log.folder, "test")
    assert faults(cut, [KEY.public]) == []  # the folder alone cannot tell
    assert any("its end is gone" in sentence for sentence in faults(cut, [KEY.public], kept))


def test_a_checkpoint_of_another_key_or_another_log_does_not_count(log: Log) -> None:
    assert any("known keys" in one for one in faults(log, [SigningKey.drawn().public]))
    foreign = Checkpoint(origin="another", size=1, root="0" * 64, at="2026-01-01T00:00:00Z")
    assert any("another log" in one for one in faults(log, [KEY.public], foreign))


def test_half_a_line_that_a_killed_process_left_is_no_leaf(log: Log) -> None:
    for name in (LOG, CHECKPOINTS):
        with open(log.folder / name, "ab") as file:
            file.write(b'{"half')
    again = Log(log.folder, "test")
    assert len(again.leaves) == 7
    again.append(leaf(7))
    again.sign(KEY)
    assert [one["number"] for one in again.leaves] == list(range(8))
    assert faults(again, [KEY.public]) == []


# --- who took part ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rounds(tmp_path: Path) -> tuple[Log, Participants, Pseudonyms]:
    """Clients a to e take part in two rounds, then c leaves, and the others go on."""
    folder = tmp_path / "trust"
    log = Log(folder, "test")
    log.append(leaf(0))
    names, people = Pseudonyms(folder), Participants(folder)
    for number, members in enumerate(("abcde", "abcde", "abde", "abd"), 1):
        root = people.root(names.of(members).values())
        at = {"at": "2026-01-01T00:00:00Z", "round": number, "method": "not", "model": "m"}
        log.append({"type": "round", **at, "participants": root})
    log.sign(KEY)
    return log, people, names


def test_a_destroyed_secret_leaves_a_log_that_speaks_of_nobody(
    rounds: tuple[Log, Participants, Pseudonyms],
) -> None:
    log, _, names = rounds
    before = names.known("c")
    assert names.destroy(["c", "nobody"]) == ["c"]
    with pytest.raises(UnfedError, match="destroyed"):
        names.known("c")
    assert before.hex().encode() not in (log.folder / "pseudonyms.json").read_bytes()
    assert Pseudonyms(log.folder).of(["c"])["c"] != before  # drawn anew, it is somebody else
    assert signing.shown(log.latest())["size"] == 5
