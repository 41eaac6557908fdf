"""A tensor's SHA-256 is that of its bytes in the file, a job keeps it over a crash, and a change has its right name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch

from unfed import storage
from unfed.errors import UnfedError
from unfed.model import params as digest
from unfed.requests.entry import Job
from unfed.runs.run import Run
from worlds import Small


def test_anybody_can_compute_the_digest_from_the_file(tmp_path: Path) -> None:
    params = {"a": torch.randn(3, 4).t(), "b": torch.tensor(7), "c": torch.zeros(0)}
    storage.save(tmp_path / "m.safetensors", params, {})
    by_hand = {
        n: hashlib.sha256(t.tobytes()).hexdigest()
        for n, t in safetensors.numpy.load_file(tmp_path / "m.safetensors").items()
    }
    assert digest.digests(params) == {name: by_hand[name] for name in params}
    lines = digest.listing(digest.digests(params))
    assert digest.fingerprint(digest.digests(params)) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_fingerprint_is_of_values_and_names_and_the_file_itself_vouches_for_the_shapes(tmp_path: Path) -> None:
    """Saved states, signed logs and evidence hold fingerprints for good: what goes into one stays as it is."""
    params, path = {"a": torch.arange(6.0).reshape(2, 3)}, tmp_path / "m.safetensors"
    known = "a951f71aabbd42c8bdb5ad48e668a032dd80986cf29c3e02a8aabb8ede6e861d"
    assert digest.fingerprint(digest.digests(params)) == known
    assert digest.fingerprint(digest.digests({"a": params["a"].reshape(3, 2)})) == known
    storage.save(path, params, {})
    path.write_bytes(path.read_bytes().replace(b'"shape":[2,3]', b'"shape":[3,2]'))
    with pytest.raises(UnfedError, match="is not what was written there"):
        storage.load(path, "model")


W = torch.tensor([[1.0, -2.0], [0.0, 3.0]])


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (-W, "negated"),
        (torch.tensor([[-1.0, 2.0], [0.0, 3.0]]), "negated: 2 of 4 values"),
        (torch.zeros(2, 2), "set to zero"),
        (W + 1, "changed"),
        (torch.tensor([[5.0, -2.0], [0.0, 3.0]]), "changed: 1 of 4 values"),
    ],
)
def test_a_change_has_its_name(after: Any, said: Any) -> None:
    found = digest.beginning({"w": W, "b": torch.ones(2)}, {"w": after, "b": torch.ones(2)})
    assert found["changes"] == {"w": said} and list(found["begun"]) == ["w"]
    assert found["shapes"] == {"w": [2, 2], "b": [2]} and list(found["went_in"]) == ["w", "b"]


def test_a_job_keeps_what_went_in_what_began_and_what_came_out(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("methods.run=['not', 'ft']"), tmp_path / "run")
    run.execute()
    found = {job.method: job for job in run.info().jobs}
    trained = digest.digests(run.folder.load_model(Job(0, None, "train")))
    begun = {name: job.beginning for name, job in found.items() if job.beginning}
    assert found["train"].came_out == trained and found["train"].beginning is None
    assert begun["not"].went_in == trained == begun["ft"].went_in
    assert begun["not"].changes == {"conv1.weight": "negated"} and not begun["ft"].changes
    assert found["not"].came_out == digest.digests(run.folder.load_model(Job(0, "r1", "not")))
    assert found["not"].file == "models/0/r1/not.safetensors"


def test_a_crash_after_the_beginning_does_not_lose_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unfed.methods import NoT

    class Crash(BaseException):
        pass

    def crash(*args: Any) -> None:
        raise Crash

    run = Run.create(small(), tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(NoT, "round", crash)
        run.execute()
    half = {job.method: job for job in Run.open(tmp_path / "run").info().jobs}["not"]
    assert half.beginning and half.beginning.changes == {"conv1.weight": "negated"} and half.came_out is None
    Run.open(tmp_path / "run").execute()
    whole = {job.method: job for job in Run.open(tmp_path / "run").info().jobs}["not"]
    assert whole.beginning == half.beginning and whole.came_out is not None
