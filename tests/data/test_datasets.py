"""Data sets by name: the bundled digits, and whatever a user's factory returns."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

from unfed.data import DATASETS, DatasetSource, Raw, TensorSource, Transform, load
from unfed.data.partition import natural
from unfed.data.source import Source
from unfed.errors import UnfedError, UnfedWarning

pytestmark = pytest.mark.usefixtures("allow_code")


def tensors(source: Source) -> TensorSource:
    assert isinstance(source, TensorSource)
    return source


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Puts a function into an importable module and gives its address."""

    def put(make: Any) -> str:
        module = types.ModuleType("users_own_data")
        module.__dict__["make"] = make
        monkeypatch.setitem(sys.modules, "users_own_data", module)
        return "users_own_data:make"

    return put


def test_digits_are_1437_and_360_images_scaled_to_bytes() -> None:
    data = load("digits", seed=3)
    train, test = tensors(data.train), tensors(data.test)
    assert (len(train), len(test), train.shape, train.classes) == (1437, 360, (1, 8, 8), 10)
    assert data.classes == tuple("0123456789")
    both = torch.cat([train.images, test.images]).reshape(-1, 64).numpy()
    expected = np.round(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, both)) == sorted(map(bytes, expected))


def test_digits_are_normalised_by_the_training_parts_own_statistics() -> None:
    data = load("digits", dtype=torch.float64)
    x, _ = data.train.fetch(torch.arange(len(data.train)))
    assert abs(float(x.mean())) < 1e-9 and abs(float(x.std(unbiased=False)) - 1) < 1e-9
    assert tensors(data.test).transform == tensors(data.train).transform


def test_the_seed_moves_the_split_and_nothing_else_does() -> None:
    first, again, other = (tensors(load("digits", seed=s).test).images for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_test_size_and_a_transform_can_be_asked_for() -> None:
    data = load("digits", test_size=100, transform=Transform(flip=0.5, resize=10, crop=8))
    assert (len(data.train), len(data.test)) == (1697, 100)
    transform = tensors(data.train).transform
    assert transform.flip == 0.5 and len(transform.mean) == 1
    assert tensors(load("digits", transform=Transform(mean=(0.5,), std=(0.5,))).train).transform.mean == (0.5,)


def test_a_new_data_set_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    part = torch.zeros(4, 3, 5, 5, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    published = Transform(flip=0.5, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    raw = Raw(part, ("cat", "dog"), test=part, transform=published)
    monkeypatch.setitem(DATASETS, "pets", lambda root: raw)
    data = load("pets")
    assert data.classes == ("cat", "dog") and tensors(data.train).transform == published
    pooled = load("pets", test_size=3, transform=Transform())
    assert (len(pooled.train), len(pooled.test)) == (5, 3)
    assert tensors(pooled.train).transform == Transform(mean=published.mean, std=published.std)


def test_a_constant_channel_is_not_divided_by_zero(factory: Callable[[Any], str]) -> None:
    part = torch.full((3, 1, 4, 4), 255, dtype=torch.uint8), torch.tensor([0, 1, 1])
    x, _ = load(factory(lambda: (part, part))).train.fetch(torch.arange(3))
    assert torch.equal(x, torch.zeros(3, 1, 4, 4))


def test_a_factory_may_return_images(factory: Callable[[Any], str]) -> None:
    train = torch.arange(48, dtype=torch.uint8).reshape(3, 1, 4, 4), torch.tensor([0, 1, 1])
    test = np.zeros((2, 1, 4, 4), dtype=np.uint8), np.array([2, 0])
    data = load(factory(lambda: (train, test)), transform=Transform(flip=0.5))
    assert data.classes == ("0", "1", "2") and data.train.classes == 3 and data.train.resident
    assert tensors(data.train).transform.flip == 0.5


def test_a_factory_may_return_prepared_samples_of_any_shape(factory: Callable[[Any], str]) -> None:
    part = torch.eye(3, 7), torch.tensor([0, 1, 2])
    data = load(factory(lambda root: (part, part)), root="somewhere", dtype=torch.float64)
    x, y = data.test.fetch(torch.tensor([2, 0]))
    assert torch.equal(x, torch.eye(3, 7, dtype=torch.float64)[[2, 0]]) and y.tolist() == [2, 0]


def test_a_factory_may_say_whose_its_training_rows_are(factory: Callable[[Any], str]) -> None:
    x, y = torch.eye(6), torch.tensor([0, 1, 0, 1, 0, 1])
    data = load(factory(lambda: ((x, y, ["Söhne & Co", "b", "b", "b", "a", "a"]), (x, y))))
    assert data.groups == ("Söhne & Co", "a", "b") and data.owners is not None
    dealt = natural(data.owners, 3, seed=0).rows
    assert [sorted(rows.tolist()) for rows in dealt] == [[1, 2, 3], [4, 5], [0]], (
        "the largest first; one may hold one row"
    )


class Own:
    classes = ("cat", "dog", "bird")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int, /) -> Any:
        return torch.full((2,), float(index)), index % 2


def test_a_factory_may_return_map_style_data_sets_and_is_warned_once(factory: Callable[[Any], str]) -> None:
    with pytest.warns(UnfedWarning) as caught:
        data = load(factory(lambda: (Own(), Own())))
    assert len(caught) == 1 and isinstance(data.test, DatasetSource)
    assert data.classes == ("cat", "dog", "bird") and data.train.classes == data.test.classes == 3
    assert data.train.fetch(torch.tensor([3]))[0].tolist() == [[3.0, 3.0]]


def broken() -> Any:
    raise ValueError("no disk\nat all")


PART = torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 1])
FLOATS = torch.zeros(3, 4), torch.tensor([0, 1, 1])


@pytest.mark.filterwarnings("ignore::unfed.errors.UnfedWarning")
@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (broken, {}, r"'users_own_data:make' failed \(ValueError: no disk\); call it by itself"),
        (lambda: 3, {}, r"must return \(train, test\), not a int"),
        (lambda: (PART, Own()), {}, "mixes tensors and data sets"),
        (lambda: (3, 4), {}, "returned a int, which has no len"),
        (lambda: (PART, FLOATS), {}, r"\[1, 4, 4\] uint8 and test samples of \[4\] float32; make them alike"),
        (lambda: (Own(), Own()), {"test_size": 2}, "test_size cannot be used"),
        (lambda: (Own(), Own()), {"transform": Transform()}, "A transform cannot be used"),
        (lambda: (FLOATS, FLOATS), {"transform": Transform(flip=0.5)}, "taken as prepared, without a transform"),
        (lambda: ((*PART, [1, 2]), PART), {}, "names the owners of 2 rows, and there are 3"),
        (lambda: ((*PART, [1, 2, 2]), PART), {"test_size": 2}, "test_size cannot be used .* whose test rows"),
        (lambda: (PART, PART), {"test_size": 6}, "test_size must be between 1 and 5 for"),
        ("not a function", {}, r"'users_own_data:make' is a str; it must be a function that returns \(train, test\)"),
    ],
)
def test_a_factory_that_breaks_the_rules_is_refused(
    factory: Callable[[Any], str], make: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UnfedError, match=sentence):
        load(factory(make), **options)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("digit", {}, "no data set 'digit'; the names are .*digits.* Did you mean 'digits'"),
        ("no.such.module:make", {}, r"'no.such.module' .* cannot be imported \(ModuleNotFoundError"),
        ("json:laod", {}, "The module 'json' has no 'laod'.* Did you mean 'load'"),
        (":make", {}, "cannot be imported"),
        ("digits", {"test_size": 0}, "test_size must be between 1 and 1796"),
        ("digits", {"test_size": 1797}, "test_size must be between 1 and 1796"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        load(name, **options)


def test_names_in_the_place_of_class_numbers_are_refused_with_what_numbers_them(
    factory: Callable[[Any], str],
) -> None:
    x, names = np.zeros((4, 3), np.float32), np.array(["cat", "dog", "dog", "cat"])
    with pytest.raises(UnfedError, match=r"Labels must be numbers, not an array of <U3; .*return_inverse"):
        load(factory(lambda: ((x, names), (x, names))))
    numbers = np.unique(names, return_inverse=True)[1]
    assert load(factory(lambda: ((x, numbers), (x, numbers)))).train.labels.tolist() == [0, 1, 1, 0]
