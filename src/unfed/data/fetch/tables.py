"""Tables and texts of your own, from files.

    people.csv · .tsv · .parquet    one column is the label, one may name the owner, the others are numbers
    people.npz                      the same as arrays; or one array x [N, …] beside the labels
    reviews/CLASS/*.txt             texts, one folder per class; or a table with a column of texts
    train.* and test.*, train/ and test/, x_train, y_train, x_test, y_test          split as it lies

Every format gives the same rows: x as floats [N, columns] in the file's order, or token ids [N, length]; labels that
are names as numbers in alphabetical order, whole numbers as they are. A cell that is no number is refused by name.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from unfed import storage
from unfed.data.packing import LABELS
from unfed.errors import UnfedError, expect, extra, listed, nearest

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
Column = npt.NDArray[Any]
Tokeniser = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class TableFile:
    """Where rows lie, and which columns are their label and their owner."""

    path: Path | None
    label: str | None = None
    owner: str | None = None


class FileData(TensorDataset):
    """The rows of a file as tensors x and y, with the names that the file has for them."""

    def __init__(
        self, x: Tensor, y: Tensor, classes: tuple[str, ...], columns: tuple[str, ...], owners: Column | None
    ) -> None:
        super().__init__(x, y)
        self.x, self.y, self.classes, self.columns, self.owners = x, y, classes, columns, owners


def read(
    path: str | Path,
    *,
    label: str | None = None,
    owner: str | None = None,
    tokenise: Tokeniser | None = None,
    classes: Sequence[str] = (),
) -> FileData:
    """Read a table or texts for `unfed.unlearn`: CSV, TSV, Parquet, npz, or a folder of text files.

    Args:
        path: The file; for texts also a folder that holds one folder per class.
        label: The label's column. Default: `label`, `labels`, `target`, `targets` or `y`.
        owner: The column that says whose a row is; it is kept out of x.
        tokenise: Turns a text into token ids, all texts into equally many.
        classes: The names of the classes in the model's order. Default: alphabetical.

    Returns:
        A data set with `x`, `y`, `classes`, `columns` and `owners`. Numbers are as in the file.

    Raises:
        UnfedError: The file cannot be read, or a cell is no number.

    Examples:
        >>> with open("people.csv", "w") as file:
        ...     print("age,income,works", "30,5000,yes", "70,0,no", sep="\\n", file=file)
        >>> people = unfed.read("people.csv", label="works")
        >>> people.columns, people.classes
        (('age', 'income'), ('no', 'yes'))
    """
    expect(path, (str, Path), "The path of a file")
    place = TableFile(Path(path).expanduser(), label, owner)
    assert place.path is not None
    cells = _of_folders(place.path) if place.path.is_dir() else _columns(place.path)
    return _made(place, [(place.path.name, cells)], tokenise, tuple(classes))[0]


def split(place: TableFile, tokenise: Tokeniser | None) -> tuple[FileData, FileData | None]:
    """The training rows, and the test rows if the files bring their own."""
    if place.path is None:
        raise UnfedError("This data set needs data.root: the file, or a folder with train.* and test.*.")
    made = _made(place, _parts(place.path.expanduser(), tokenise is not None), tokenise, ())
    return made[0], made[1] if len(made) > 1 else None


# --- files ------------------------------------------------------------------------------------------------------------


Cells = dict[str, Column]
"""The columns of a file by name: numbers, or texts."""


def _parts(path: Path, texts: bool) -> list[tuple[str, Cells]]:
    """A file, its halves, or the two files or folders of a folder, each with its name."""
    if not path.is_dir():
        cells = _columns(path)
        halves = {half: {n.removesuffix(half): v for n, v in cells.items() if n.endswith(half)} for half in _HALVES}
        return (
            [(path.name + half, own) for half, own in halves.items()] if all(halves.values()) else [(path.name, cells)]
        )
    found = [[file for end in SUFFIXES if (file := path / f"{half}{end}").is_file()] for half in ("train", "test")]
    if [len(files) for files in found] == [1, 1]:
        return [(file.name, _columns(file)) for (file,) in found]
    if not texts:
        raise UnfedError(f"The folder {path} must hold one train file and one test file ({listed(SUFFIXES)}).")
    halved = (path / "train").is_dir() and (path / "test").is_dir()
    return [(part.name, _of_folders(part)) for part in ((path / "train", path / "test") if halved else (path,))]


_HALVES = ("_train", "_test")


def _columns(path: Path) -> Cells:
    """The columns of one file, whatever its format."""
    if path.suffix.lower() not in SUFFIXES:
        raise UnfedError(f"{path} is none of {listed(SUFFIXES)}; convert it, or name your own data factory.")
    if not path.exists():
        raise UnfedError(f"There is no file {path}; check the path.")
    storage.refuse_no_file(path)
    reader = {".parquet": _parquet, ".npz": _npz}.get(path.suffix.lower(), _csv)
    try:
        cells = reader(path)
    except (OSError, ValueError, csv.Error, zipfile.BadZipFile, EOFError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnfedError(f"{path} cannot be read ({said}); write it again.") from error
    # A truth value is a name in a CSV, so it is one everywhere.
    return {name: values.astype(str) if values.dtype.kind == "b" else values for name, values in cells.items()}


def _csv(path: Path) -> Cells:
    csv.field_size_limit(min(sys.maxsize, 1 << 24))
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        tab = "\t" if path.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
        header, *rows = [row for row in csv.reader(file, delimiter=tab) if row] or [[]]
    names = [name.strip() for name in header]
    if len({*names}) < len(names):
        raise UnfedError(f"{path} has two columns of one name; rename one.")
    for row, cells in enumerate(rows):
        if len(cells) != len(names):
            raise UnfedError(f"Row {row} of {path} has {len(cells)} cells and the header has {len(names)}; mend it.")
    return {name: np.array([row[i].strip() for row in rows], dtype=object) for i, name in enumerate(names)}


def _parquet(path: Path) -> Cells:
    if importlib.util.find_spec("pyarrow") is None:
        raise UnfedError(
            f"Reading {path.name} needs pyarrow, which is not installed; install it with {extra('parquet')}."
        )
    from pyarrow import parquet

    table = parquet.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {name: _of_values(values) for name, values in columns.items()}


def _of_values(values: Sequence[Any]) -> Column:
    """Numbers as numbers; anything else as text, of which nothing is the empty one."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return np.array(values)
    return np.array(["" if value is None else str(value) for value in values], dtype=object)


def _npz(path: Path) -> Cells:
    with np.load(path, allow_pickle=False) as packed:
        return {name: packed[name] for name in packed.files}


def _of_folders(path: Path) -> Cells:
    """The text files of a folder per class."""
    files = sorted(file for file in path.glob("*/*.txt") if file.is_file() and not file.name.startswith("."))
    if len({file.parent for file in files}) < 2:
        raise UnfedError(f"The folder {path} must hold at least two folders of .txt files, one per class.")
    texts = np.array([file.read_text(encoding="utf-8", errors="replace") for file in files], dtype=object)
    return {"text": texts, "label": np.array([file.parent.name for file in files], dtype=object)}


# --- columns as tensors -----------------------------------------------------------------------------------------------


def _made(
    place: TableFile, parts: Sequence[tuple[str, Cells]], tokenise: Tokeniser | None, classes: tuple[str, ...]
) -> list[FileData]:
    """The parts as tensors; their labels are numbered together, so a class has one number."""
    first = parts[0][1]
    label = place.label or next((name for name in LABELS if name in first), LABELS[0])
    for file, cells in parts:
        for name, key in ((label, "label"), (place.owner, "owner")):
            if name is not None and name not in cells:
                raise UnfedError(
                    f"{file} has no column {name!r} but {listed(cells, 'and')}; name the {key}'s column with {key}."
                    f"{nearest(name, cells)}"
                )
        if cells.keys() != first.keys():
            raise UnfedError(f"{file} and {parts[0][0]} have different columns; make them alike.")
        if len({len(column) if column.ndim else 0 for column in cells.values()}) > 1 or not len(cells[label]):
            raise UnfedError(f"{file} has no rows, or columns of different lengths; give every row every column.")
    numbers, names = _numbered([cells[label] for _, cells in parts], [file for file, _ in parts], classes)
    made = []
    for (file, cells), y in zip(parts, numbers, strict=True):
        inputs = {name: cells[name] for name in first if name not in (label, place.owner)}
        x, columns = _array(inputs, file) if tokenise is None else (_tokens(inputs, file, tokenise), ())
        made.append(FileData(x, y, names, columns, None if place.owner is None else cells[place.owner]))
    return made


def _numbered(
    labels: Sequence[Column], files: Sequence[str], classes: tuple[str, ...]
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as class numbers, and the classes' names."""
    for file, own in zip(files, labels, strict=True):
        if len(empty := [row for row, value in enumerate(own.tolist()) if value == "" or value != value]):
            raise UnfedError(f"Row {empty[0]} of {file} has no label; fill it, or remove the row.")
    every = np.concatenate(labels)
    found = _floats(every)
    if not classes and np.isfinite(found).all():
        if (odd := found != np.floor(found)).any():
            raise UnfedError(
                f"{files[0]} has the label {found[odd][0]:g}; unfed forgets in classifiers only, so give class numbers"
                " or names."
            )
        names = tuple(str(number) for number in range(int(found.max()) + 1))
        return [torch.from_numpy(_floats(own).astype(np.int64)) for own in labels], names
    names = classes or tuple(sorted({str(value) for value in every.tolist()}))
    places = {name: number for number, name in enumerate(names)}
    if unknown := [str(value) for value in every.tolist() if str(value) not in places]:
        raise UnfedError(f"The label {unknown[0]!r} of {files[0]} is none of {listed(names)}; add it to classes.")
    return [torch.tensor([places[str(value)] for value in own.tolist()]) for own in labels], names


def _array(inputs: Mapping[str, Column], file: str) -> tuple[Tensor, tuple[str, ...]]:
    """Columns side by side as floats; one array of several axes as it is."""
    if len(inputs) == 1 and (lone := next(iter(inputs.values()))).ndim > 1 and lone.dtype.kind in "iuf":
        if lone.dtype == np.uint8 and lone.ndim > 2:  # images, perhaps with their channels last or without
            lone = lone[:, None] if lone.ndim == 3 else lone
            lone = np.moveaxis(lone, -1, 1) if lone.shape[1] not in (1, 3) and lone.shape[-1] in (1, 3) else lone
            return torch.from_numpy(np.ascontiguousarray(lone)), ()
        return torch.from_numpy(lone.astype(np.float32 if lone.dtype.kind == "f" else np.int64)), ()
    columns = []
    for name, values in inputs.items():
        if values.ndim != 1:
            raise UnfedError(f"{file} has several arrays, and {name!r} is no column; keep one array x and the labels.")
        numbers = _floats(values)
        if len(bad := np.flatnonzero(~np.isfinite(numbers))):
            said = values[bad[0]]
            raise UnfedError(
                f"Row {bad[0]} of {file} has {str(said)!r} in the column {name!r}, which is no number; encode or"
                " tokenise texts, fill gaps, or remove the column."
            )
        columns.append(numbers)
    if not columns:
        raise UnfedError(f"{file} has no column beside the label; add what the model reads.")
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32)), tuple(inputs)


def _floats(values: Column) -> npt.NDArray[np.float64]:
    """Numbers, and NaN for whatever is none."""

    def one(value: Any) -> float:
        try:
            return float(value)
        except ValueError:
            return np.nan

    try:
        return values.astype(np.float64)
    except ValueError:
        return np.array([one(value) for value in values.tolist()])


def _tokens(inputs: Mapping[str, Column], file: str, tokenise: Tokeniser) -> Tensor:
    """The column `text`, or the only one, as token ids."""
    if "text" not in inputs and len(inputs) != 1:
        raise UnfedError(f"{file} has the columns {listed(inputs, 'and')}; call the one to tokenise 'text'.")
    texts = inputs["text"] if "text" in inputs else next(iter(inputs.values()))
    ids = [list(tokenise(str(text))) for text in texts.tolist()]
    for row, own in enumerate(ids):
        if len(own) != len(ids[0]):
            raise UnfedError(f"Row {row} of {file} has {len(own)} tokens and row 0 {len(ids[0])}; pad or cut them.")
    return torch.tensor(ids, dtype=torch.int64)
