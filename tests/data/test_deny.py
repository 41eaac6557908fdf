"""The deny list: who and what was forgotten is in no training view of the next run either."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import SMALL
from unfed import storage
from unfed.config.config import Config
from unfed.data import ClientData, DenyList, Request, TensorSource, keep_out
from unfed.data.scope import recognisable, row_digests
from unfed.data.source import DatasetSource
from unfed.errors import UnfedError
from unfed.runs.run import Run
from unfed.runs.simulated import simulated

KEY = bytes(range(32))


class Small(Protocol):
    def __call__(self, *sets: str) -> Config: ...


def images(run: Run, views: tuple[str, ...] = ("all", "retain", "val")) -> set[bytes]:
    """Every row that training, recovery or validation could see, by its pixels."""
    world, found = run.world(0), set()
    for client in world.clients:
        source = client.source
        assert isinstance(source, TensorSource)
        for view in views:
            found |= {source.images[row].numpy().tobytes() for row in client.rows[client.view(view)].tolist()}
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run from which client 1, class 7 and two single rows of client 2 were taken out."""
    config = Config.parse(SMALL, ["training.rounds=1", "request=[]", "evaluation.attack=false"])
    run = Run.create(config, tmp_path_factory.mktemp("left") / "left")
    run.execute()
    for name, request in {
        "client": Request("client", clients=("1",)),
        "class": Request("class", classes=(7,)),
        "rows": Request("rows", samples=(("2", 0), ("2", 5))),
    }.items():
        run.forget(request, "ft", until=1)
        assert run.queue.book.find(name) is not None
    return run.folder.path


@pytest.fixture
def left(trained: Path, tmp_path: Path) -> Run:
    """A copy of that run."""
    return Run.open(shutil.copytree(trained, tmp_path / "left"))


def test_the_next_run_trains_on_nothing_that_was_forgotten(left: Run, small: Small, tmp_path: Path) -> None:
    """In another partition too, where the rows lie with other clients at other positions."""
    client = left.world(0).clients[2]
    source = client.source
    assert isinstance(source, TensorSource)
    rows = {source.images[row].numpy().tobytes() for row in client.rows[[0, 5]].tolist()}
    sets = ("training.rounds=1", "request=[]", f'deny.run="{left.folder.path}"', "seeds.partition=99")
    run = Run.create(small(*sets), tmp_path / "next")
    assert not rows & images(run), "a row offered again is refused"
    clients = run.world(0).clients
    assert len(clients[1].train) == 0 and len(clients[1].val) == 0
    for own in clients:
        assert 7 not in own.labels[own.train].tolist() and 7 not in own.labels[own.val].tolist()
    run.execute()
    asked = {name for line in run.lines() for names in line["asked"].values() for name in names}
    assert asked == {"0", "2", "3"}


def test_the_list_goes_on_from_run_to_run_and_a_run_that_is_opened_again_keeps_it(
    left: Run, small: Small, tmp_path: Path
) -> None:
    first = Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "first")
    second = Run.create(small("request=[]", f'deny.run="{first.folder.path}"'), tmp_path / "second")
    assert second.config.deny.rows == first.config.deny.rows and len(first.config.deny.rows) == 2
    again = Run.open(second.folder.path)
    assert images(again) == images(second) == images(first)
    assert (again.config.deny.clients, again.config.deny.classes) == (("1",), (7,))


def test_what_was_withdrawn_is_not_on_the_list(small: Small, tmp_path: Path) -> None:
    run = Run.create(small("training.rounds=1", "request=[]", "evaluation.attack=false"), tmp_path / "run")
    run.execute()
    run.queue.file(Request("client", clients=("1",)), "ft", "1", 0)
    run.withdraw("client")
    after = Run.create(small("request=[]", f'deny.run="{run.folder.path}"'), tmp_path / "next")
    assert after.config.deny.clients == () and len(after.world(0).clients[1].train)


def test_the_list_without_its_key_gives_nothing_away(left: Run, tmp_path: Path, small: Small) -> None:
    """Neither pixels nor a plain hash of them stand in the folder, and the key is for the owner alone."""
    after = Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "next")
    for folder in (left.folder.path, after.folder.path):
        assert stat.S_IMODE((folder / "deny.key").stat().st_mode) == 0o600
        key = (folder / "deny.key").read_text()
        text = "".join(path.read_text() for path in folder.rglob("*.json"))
        assert key not in text
    entry = left.queue.book.find("rows")
    assert entry is not None
    client = left.world(0).clients[2]
    with_key = row_digests(
        bytes.fromhex((left.folder.path / "deny.key").read_text()), client.source, client.rows[[0, 5]]
    )
    assert sorted(with_key) == list(entry.rows)
    assert not set(entry.rows) & set(row_digests(KEY, client.source, client.rows)), "under another key it is no match"
    other = Run.create(small("training.rounds=1", "request=[]", "evaluation.attack=false"), tmp_path / "other")
    other.execute()
    other.queue.file(Request("rows", samples=(("2", 0), ("2", 5))), "ft", "1", 0)
    again = other.queue.book.find("rows")
    assert again is not None and not set(again.rows) & set(entry.rows), "two federations' lists cannot be joined"


def test_rows_without_their_key_are_an_error_and_never_let_in(left: Run, small: Small, tmp_path: Path) -> None:
    after = Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "next")
    (after.folder.path / "deny.key").unlink()
    with pytest.raises(UnfedError, match="its key is not there; restore deny.key"):
        Run.open(after.folder.path).world(0)
    (left.folder.path / "deny.key").write_text("zz")
    with pytest.raises(UnfedError, match="deny.key is damaged"):
        Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "third")
    (left.folder.path / "deny.key").unlink()
    with pytest.raises(UnfedError, match="no deny.key; restore the file"):
        Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "fourth")


def test_a_list_that_leaves_nothing_or_a_folder_that_is_none_is_one_sentence(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="Every training row is on the deny list"):
        Run.create(small("request=[]", "deny.clients=['0', '1', '2', '3']"), tmp_path / "run")
    with pytest.raises(UnfedError, match="no deny list at .*nowhere; name a run folder, or a file"):
        Run.create(small("request=[]", f'deny.run="{tmp_path / "nowhere"}"'), tmp_path / "run")
    with pytest.raises(UnfedError, match="is not a run folder"):
        Run.create(small("request=[]", f'deny.run="{tmp_path}"'), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("dark", "bright"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(20):
            grey = np.random.default_rng(i).integers(0, 128, (9, 9), dtype=np.uint8) + 127 * (name == "bright")
            Image.fromarray(grey.astype(np.uint8)).save(tmp_path / "images" / name / f"{i}.png")
    return tmp_path / "images"


def test_pictures_that_are_stretched_otherwise_are_not_let_in_by_silence(
    pictures: Path, small: Small, tmp_path: Path
) -> None:
    kept = ("request=[]", 'data.name="imagefolder"', f'data.root="{pictures}"', "partition.clients=2", "methods.run=[]")
    run = Run.create(small(*kept, "data.resize=8", "training.rounds=1"), tmp_path / "left")
    run.execute()
    run.queue.file(Request("rows", samples=(("0", 0),)), "ft", "1", 0)
    deny = f'deny.run="{tmp_path / "left"}"'
    with pytest.raises(UnfedError, match="by pixels at size 8, not 12; set data.resize = 8"):
        Run.create(small(*kept, "data.resize=12", deny), tmp_path / "next")
    assert Run.create(small(*kept, "data.resize=8", deny), tmp_path / "next").config.deny.rows


def test_rows_that_a_data_set_draws_anew_are_never_taken_for_recognised() -> None:
    class Drawing:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return torch.rand(1, 2, 2), row % 2

    source = DatasetSource(Drawing(), classes=2, warn=False)
    assert not recognisable(source, torch.arange(4)), "whoever asks by such rows has none on the list"
    client = ClientData("a", source, torch.arange(4), torch.tensor([0, 1, 2]), torch.tensor([3]))
    with pytest.raises(UnfedError, match="random transforms hide them"):
        keep_out([client], DenyList(rows=frozenset({"0" * 64}), key=KEY))
    assert keep_out([client], DenyList(classes=frozenset({1})))[0].train.tolist() == [0, 2]


def test_by_hand() -> None:
    """Four rows, of which rows 0 and 3 are the same picture: one on the list is both."""
    pixels = torch.tensor([1, 2, 3, 1], dtype=torch.uint8).reshape(4, 1, 1, 1)
    source = TensorSource(pixels, torch.tensor([0, 1, 2, 1]), classes=3)
    client = ClientData("a", source, torch.arange(4), torch.tensor([0, 1, 2]), torch.tensor([3]))
    digest = row_digests(KEY, source, torch.tensor([0]))
    (kept,) = keep_out([client], DenyList(rows=frozenset(digest), key=KEY))
    assert kept.train.tolist() == [1, 2] and kept.val.tolist() == []
    (kept,) = keep_out([client], DenyList(classes=frozenset({1})))
    assert kept.train.tolist() == [0, 2] and kept.val.tolist() == []
    assert keep_out([client], DenyList()) == (client,)


def test_run_json_has_the_list_and_not_the_key(left: Run, small: Small, tmp_path: Path) -> None:
    after = Run.create(small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "next")
    kept = json.loads((after.folder.path / "run.json").read_text())["config"]["deny"]
    assert kept["clients"] == ["1"] and kept["classes"] == [7] and len(kept["rows"]) == 2 and "key" not in kept


def test_clients_that_bring_their_own_rows_are_not_let_in_by_silence(small: Small, tmp_path: Path) -> None:
    world = simulated(small("request=[]"), 0)
    with pytest.raises(UnfedError, match="This world was built without the deny list"):
        Run.create(small("request=[]", "deny.clients=['1']"), tmp_path / "run", world)


def test_a_run_killed_while_it_was_made_is_begun_again_in_its_folder_with_the_key(
    left: Run, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has a run.json has the key too, so that no kill leaves a run that cannot go on."""
    config, where = small("request=[]", f'deny.run="{left.folder.path}"'), tmp_path / "next"

    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(storage, "write_json", killed)
        Run.create(config, where)
    assert (where / "deny.key").exists() and not (where / "run.json").exists()
    assert len(Run.create(config, where).world(0).clients) == 4
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "deny.key").write_text("of another list")
    Run.create(small("request=[]"), fresh)
    assert not (fresh / "deny.key").exists()
