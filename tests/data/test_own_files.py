"""Tables and texts of one's own: every format gives the same rows, and what is no number is named."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import unfed
from unfed.config.config import Config
from unfed.data import TensorSource, load
from unfed.data.fetch.tables import TableFile
from unfed.errors import UnfedError
from unfed.runs.run import Run

AGES, INCOMES = [30 + i % 40 for i in range(60)], [1000.5 * i for i in range(60)]
WORKS = ["yes" if i % 3 else "no" for i in range(60)]
TOWNS = ["Bern" if i < 25 else "Chur" for i in range(60)]
COLUMNS: dict[str, list[Any]] = {"age": AGES, "works": WORKS, "income": INCOMES, "town": TOWNS}


def csv_text(columns: Mapping[str, list[Any]], comma: str = ",") -> str:
    rows = [comma.join(columns), *(comma.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(rows) + "\n"


class Table:
    """As much of a table of pyarrow as is read here."""

    column_names = tuple(COLUMNS)

    def column(self, name: str) -> Any:
        return types.SimpleNamespace(to_pylist=lambda: COLUMNS[name])


def written(folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same table in one of the formats."""
    path = folder / f"people{suffix}"
    if suffix == ".npz":
        np.savez(path, allow_pickle=False, **{name: np.array(values) for name, values in COLUMNS.items()})
    elif suffix == ".parquet":
        path.touch()
        found = importlib.util.find_spec
        fake = types.SimpleNamespace(parquet=types.SimpleNamespace(read_table=lambda path: Table()))
        monkeypatch.setitem(sys.modules, "pyarrow", fake)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "pyarrow" or found(name))
    else:
        comma = {".tsv": "\t", "; .csv": ";"}.get(suffix, ",")
        path = folder / f"people{suffix.strip('; ')}"
        path.write_text("\ufeff" + csv_text(COLUMNS, comma), encoding="utf-8")  # as spreadsheets write it
    return path


@pytest.mark.parametrize("suffix", [".csv", "; .csv", ".tsv", ".parquet", ".npz"])
def test_every_format_gives_the_same_columns_and_labels(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = unfed.read(written(tmp_path, suffix, monkeypatch), label="works", owner="town")
    assert (found.columns, found.classes) == (("age", "income"), ("no", "yes"))
    assert torch.equal(found.x, torch.tensor([AGES, INCOMES], dtype=torch.float64).float().T)
    assert found.y.tolist() == [int(one == "yes") for one in WORKS]
    assert found.owners is not None and [*found.owners] == TOWNS


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.parquet").touch()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    with pytest.raises(UnfedError, match=r"needs pyarrow, which is not installed; .*parquet"):
        unfed.read(tmp_path / "people.parquet")


def test_names_of_classes_are_numbered_as_the_model_has_them_and_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("age,label\n3,yes\n4,yes\n")
    assert unfed.read(tmp_path / "few.csv", classes=("yes", "no")).y.tolist() == [0, 0]
    assert unfed.read(tmp_path / "few.csv", classes=("no", "yes")).y.tolist() == [1, 1]
    with pytest.raises(UnfedError, match="The label 'yes' of few.csv is none of no or maybe; add it to classes"):
        unfed.read(tmp_path / "few.csv", classes=("no", "maybe"))


def test_whole_numbers_stay_the_labels_they_are(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("age,target\n3,2\n4,0\n5,2.0\n")
    found = unfed.read(tmp_path / "numbers.csv")
    assert found.y.tolist() == [2, 0, 2] and found.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("age,label\n3,0\nold,1\n", {}, "Row 1 of t.csv has 'old' in the column 'age', which is no number; .*tokenise"),
        ("age,label\n3,0\n,1\n", {}, "Row 1 of t.csv has '' in the column 'age', .*fill gaps"),
        ("age,label\nnan,0\n", {}, "has 'nan' in the column 'age', which is no number"),
        ("age,label\n3,\n", {}, "Row 0 of t.csv has no label; fill it"),
        ("age,label\n3,0.5\n", {}, "has the label 0.5; unfed forgets in classifiers only"),
        ("age,work\n3,0\n", {}, "has no column 'labels' but age and work; name the label's column"),
        ("age,work\n3,0\n", {"label": "works"}, "has no column 'works' .* Did you mean 'work'"),
        ("age,y\n3,0\n", {"owner": "town"}, "has no column 'town' .*name the owner's column"),
        ("age,y\n3,0\n4\n", {}, "Row 1 of .* has 1 cells and the header has 2"),
        ("age,age,y\n3,4,0\n", {}, "two columns of one name"),
        ("age,y\n", {}, "t.csv has no rows"),
        ("y\n0\n", {}, "no column beside the label"),
        ("", {}, "has no column 'labels'"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(
    text: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UnfedError, match=sentence) as caught:
        unfed.read(tmp_path / "t.csv", **options)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_a_missing_one_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").touch()
    (tmp_path / "t.npz").write_bytes(b"PK no zip")
    np.savez(tmp_path / "pickled.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2))
    for name, says in (
        ("t.xlsx", "is none of .csv, .tsv, .parquet or .npz; convert it"),
        ("gone.csv", "There is no file .*gone.csv; check the path"),
        ("t.npz", r"t.npz cannot be read \("),
        ("pickled.npz", r"pickled.npz cannot be read \(Object arrays cannot be loaded"),
    ):
        with pytest.raises(UnfedError, match=says):
            unfed.read(tmp_path / name)


# --- in a config ------------------------------------------------------------------------------------------------------


def test_a_table_is_standardised_by_its_training_part_and_the_run_records_how(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(csv_text(COLUMNS))
    config = Config.parse(
        {
            "name": "people",
            "data": {"name": "table", "root": str(tmp_path / "people.csv"), "label": "works", "owner": "town"},
            "partition": {"scheme": "natural", "clients": 2},
            "model": {"name": "mlp"},
            "training": {"rounds": 1},
            "unlearning": {"rounds": 1},
            "request": {"clients": ["0"]},
            "methods": {"run": ["not"]},
        }
    )
    run = Run.create(config, tmp_path / "run")
    run.execute()
    found = run.world(0).dataset
    assert len(found.test) == 12 and found.groups == ("Bern", "Chur")
    assert isinstance(found.train, TensorSource)
    assert torch.allclose(found.train.images.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(found.train.images.std(0, correction=0), torch.ones(2))
    kept = Run.open(tmp_path / "run").description
    assert kept.classes == ("no", "yes") and kept.columns == found.columns
    mean, std = kept.columns["income"]
    raw = found.train.images[:, 1].double() * std + mean
    assert min(abs(float(raw[3]) - one) for one in INCOMES) < 1e-2, "what was in the file can be had back"


def test_two_files_are_the_split_and_number_their_labels_together(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("age,size,label\n1,1,cat\n3,1,dog\n")
    (tmp_path / "test.csv").write_text("size,age,label\n1,2,dog\n5,7,ant\n")
    found = load("table", root=tmp_path)
    assert found.classes == ("ant", "cat", "dog")
    assert found.train.labels.tolist() == [1, 2] and found.test.labels.tolist() == [2, 0]
    assert isinstance(found.test, TensorSource)
    assert found.test.images.tolist() == [[0.0, 0.0], [5.0, 4.0]], "by names, and a constant column is not divided"
    (tmp_path / "test.csv").write_text("size,label\n1,dog\n")
    with pytest.raises(UnfedError, match=r"test.csv and train.csv have different columns"):
        load("table", root=tmp_path)
    (tmp_path / "test.csv").unlink()
    with pytest.raises(UnfedError, match="must hold one train file and one test file"):
        load("table", root=tmp_path)


def test_arrays_of_images_are_taken_as_they_lie_with_their_own_split(tmp_path: Path) -> None:
    grey = np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8)
    colour = np.stack([grey] * 3, -1)
    labels = np.array([0, 1, 0, 1])
    for images in (grey, colour):
        np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
        found = load("table", root=tmp_path / "images.npz")
        assert len(found.train) == 4 and len(found.test) == 2 and found.columns == {}
        assert found.train.shape == (1 if images is grey else 3, 8, 8)
        assert isinstance(found.train, TensorSource) and found.train.images[1, 0].tolist() == grey[1].tolist()


@pytest.mark.parametrize("how", ["folders", "halves", "table"])
def test_texts_of_folders_and_of_tables_become_token_ids(how: str, tmp_path: Path) -> None:
    texts = {f"{name}-{i}": (name, f"a {name} text, number {i}") for name in ("good", "bad") for i in range(5)}
    root = tmp_path / "reviews"
    halves = [root / "train", root / "test"] if how == "halves" else [root]
    for file, (name, text) in texts.items():
        for half in halves:
            (half / name).mkdir(parents=True, exist_ok=True)
            (half / name / f"{file}.txt").write_text(text)
    if how == "table":
        root = tmp_path / "reviews.csv"
        root.write_text("text,stars,label\n" + "".join(f'"{text}",5,{name}\n' for name, text in texts.values()))
    found = load("text", root=root)
    assert found.classes == ("bad", "good") and found.train.shape == (64,)
    assert isinstance(found.train, TensorSource) and found.train.images.dtype == torch.int64
    assert (len(found.train), len(found.test)) == ((10, 10) if how == "halves" else (8, 2))


def test_texts_are_tokenised_by_the_callers_own_function(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,y\nab,0\nba,1\n")
    found = unfed.read(tmp_path / "t.csv", tokenise=lambda text: [ord(letter) - 96 for letter in text])
    assert found.x.tolist() == [[1, 2], [2, 1]]
    (tmp_path / "t.csv").write_text("text,y\nab,0\nb,1\n")
    with pytest.raises(UnfedError, match="Row 1 of t.csv has 1 tokens and row 0 2; pad or cut them"):
        unfed.read(tmp_path / "t.csv", tokenise=lambda text: [ord(letter) for letter in text])
    (tmp_path / "t.csv").write_text("one,two,y\na,b,0\n")
    with pytest.raises(UnfedError, match="columns one and two; call the one to tokenise 'text'"):
        load("text", root=tmp_path / "t.csv")


def test_columns_cannot_be_named_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="data.label and data.owner name columns of table or text; leave them out"):
        load("digits", root=TableFile(None, "label"))
    with pytest.raises(UnfedError, match="needs data.root"):
        load("table")


# --- objects ----------------------------------------------------------------------------------------------------------


class DictRows(Dataset[Any]):
    """Rows as the `datasets` library has them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": [1 + row, 2, 3], "attention_mask": [1, 1, 0], "label": row % 2, "note": "left out"}


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        weight = attention_mask[..., None].float()
        return self.out((self.embedding(input_ids) * weight).sum(-2) / weight.sum(-2))


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch, allow_code: None) -> Callable[..., str]:
    def made(make: Any, name: str = "make") -> str:
        module = sys.modules.setdefault("users_own_tables", types.ModuleType("users_own_tables"))
        monkeypatch.setitem(sys.modules, "users_own_tables", module)
        monkeypatch.setattr(module, name, make, raising=False)
        return f"users_own_tables:{name}"

    return made


def twice(part: Any) -> Any:
    return part, part


def test_a_factory_may_return_files_tensor_data_sets_and_loaders(tmp_path: Path, factory: Callable[..., str]) -> None:
    (tmp_path / "few.csv").write_text("age,label\n3,yes\n4,no\n")
    few = unfed.read(tmp_path / "few.csv")
    x, y = torch.rand(6, 3), torch.arange(6) % 2
    assert load(factory(lambda: (few, few))).classes == ("no", "yes")
    whole = TensorDataset(x, y)
    for made in (whole, DataLoader(whole, batch_size=2, shuffle=True)):
        found = load(factory(partial(twice, made)))
        assert isinstance(found.train, TensorSource) and torch.equal(found.train.images, x)
    some: Any = DataLoader(whole, sampler=SubsetRandomSampler([0, 1]))
    with pytest.raises(UnfedError, match="sampler or collate_fn of its own .*return its data set"):
        load(factory(lambda: (some, some)))


@pytest.mark.filterwarnings("ignore::unfed.errors.UnfedWarning")
def test_rows_that_are_dicts_train_in_a_federation(tmp_path: Path, factory: Callable[..., str]) -> None:
    raw = {
        "name": "dicts",
        "data": {"name": factory(lambda: (DictRows(), DictRows()))},
        "partition": {"clients": 2, "min_samples": 1},
        "model": {"name": factory(lambda: Reads(), "model")},
        "training": {"rounds": 1, "batch": 2},
        "unlearning": {"rounds": 1},
        "request": {"clients": ["0"]},
        "methods": {"run": ["not"]},
    }
    run = Run.create(Config.parse(raw), tmp_path / "run")
    run.execute()
    assert run.lines()[-1]["method"] == "not"


WRONG: dict[str, tuple[Any, str]] = {
    "texts": ((["a film", "a play"], torch.tensor([0, 1])), "data holds raw text; tokenise it first"),
    "a dict": ({"text": ["a film", "a play"], "labels": [0, 1]}, "data holds raw text; tokenise it first"),
    "rows": ([("a film", 0), ("a play", 1)], "Row 0 of data holds raw text; tokenise it first"),
    "dicts": ([{"text": "a film", "label": 0}], "Row 0 of data holds raw text; tokenise it first"),
    "batches": (iter([("a film", 0)]), "Item 0 of data holds raw text; tokenise it first"),
    "names": (({"input_ids": torch.ones(2, 3).long()}, np.array(["cat", "dog"])), r"no numbers \(such as 'cat'\); num"),
    "names in a dict": ({"input_ids": torch.ones(2, 3).long(), "labels": ["cat", "dog"]}, "such as 'cat'"),
    "a row's name": ([(torch.ones(3).long(), "cat")], "Row 0 of data has labels that are no numbers .such as 'cat'"),
}


@pytest.mark.filterwarnings("ignore::unfed.errors.UnfedWarning")
@pytest.mark.parametrize("case", WRONG)
def test_raw_texts_and_names_for_labels_are_refused_with_the_next_step(case: str) -> None:
    data, says = WRONG[case]
    with pytest.raises(UnfedError, match=says) as caught:
        unfed.unlearn(Reads(), data=data, forget=[0], method="ft")
    assert "\n" not in str(caught.value)
