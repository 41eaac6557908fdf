"""The digest of a growing file equals that of its start read anew, and a cut is not overlooked."""

from pathlib import Path

import pytest
import torch

from unfed import storage
from unfed.federation.state import State
from unfed.folder.consistency import DigestSoFar, digest_of_start
from unfed.folder.folder import RunFolder
from unfed.requests.entry import Job


def test_it_reads_on_where_it_stopped_and_equals_the_start_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, so_far, begun = tmp_path / "lines", DigestSoFar(), list[int]()
    whole = storage.content

    def seen(path: Path, start: int = 0) -> bytes:
        begun.append(start)
        return whole(path, start=start)

    assert so_far.of_start(path, 0) == digest_of_start(path, 0) and so_far.of_start(path, 1) is None
    for n in range(3):
        length = storage.append_line(path, f"line {n}")
        with monkeypatch.context() as patch:
            patch.setattr(storage, "content", seen)
            found = so_far.of_start(path, length)
        assert found == digest_of_start(path, length)
    assert begun == [0, 7, 14]
    assert so_far.of_start(path, 9) == digest_of_start(path, 9) and so_far.of_start(path, 22) is None


def test_after_a_cut_it_forgets_and_another_file_in_its_place_is_read_whole(tmp_path: Path) -> None:
    path, so_far = tmp_path / "lines", DigestSoFar()
    storage.append_line(path, "one")
    so_far.of_start(path, 4)
    storage.cut(path, 0)
    so_far.forget()
    storage.append_line(path, "two")
    assert so_far.of_start(path, 4) == digest_of_start(path, 4)
    storage.write_bytes(path, b"six\n")
    assert so_far.of_start(path, 4) == digest_of_start(path, 4)


def test_a_folder_that_cut_its_trajectory_vouches_for_what_came_instead(tmp_path: Path) -> None:
    folder, job = RunFolder(tmp_path), Job(0, None, "train")
    for line in ("one", "two"):
        length = storage.append_line(folder.trajectory, line)
        folder.save_state(job, State({"w": torch.ones(1)}, round=1), {"offset": length, "finished": None})
        saved = folder.saved(job)
        assert saved is not None and saved.bound.trajectory == digest_of_start(folder.trajectory, length)
        storage.remove(folder.state_file(job))
        folder.cut_back()
