"""A source is a function of rows and words: the same alone, in a stack, today and tomorrow."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from unfed import rng
from unfed.data import DatasetSource, TensorSource, Transform, Trigger
from unfed.errors import UnfedError, UnfedWarning

TRANSFORMS = [
    Transform(),
    Transform(flip=0.5, mean=(0.5, 0.4), std=(0.2, 0.3)),
    Transform(pad_crop=2, flip=0.5),
    Transform(resize=9, crop=6, flip=0.5, mean=(0.5, 0.4), std=(0.2, 0.3)),
    Transform(resize=4),
    Transform(crop=5),
]


def images(n: int = 12, channels: int = 2, height: int = 7, width: int = 6) -> Tensor:
    return (torch.arange(n * channels * height * width) * 37 % 256).to(torch.uint8).reshape(n, channels, height, width)


def source(transform: Transform | None = None, **options: Any) -> TensorSource:
    return TensorSource(images(), torch.arange(12) % 3, transform=transform, **options)


def draws(rows: Tensor, seed: int = 0) -> Tensor:
    return rng.words(rng.as_key(rng.key(seed)), torch.arange(rows.numel())).reshape(rows.shape)


def test_pixels_become_normalised_numbers() -> None:
    pixels = torch.tensor([0, 51, 102, 255], dtype=torch.uint8).reshape(1, 1, 2, 2)
    own = TensorSource(pixels, torch.tensor([0]), transform=Transform(mean=(0.2,), std=(0.4,)), dtype=torch.float64)
    x, y = own.fetch(torch.tensor([0]))
    expected = torch.tensor([-0.5, 0.0, 0.5, 2.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    assert torch.allclose(x, expected, atol=1e-12) and x.dtype == torch.float64
    assert y.tolist() == [0] and y.dtype == torch.int64


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("poisoned", [True, False])
def test_a_stacked_fetch_equals_fetching_row_by_row(transform: Transform, training: bool, poisoned: bool) -> None:
    marks: dict[str, Any] = {"stamped": torch.arange(12) % 2 == 0, "trigger": Trigger()} if poisoned else {}
    own = source(transform, dtype=torch.float64, **marks)
    rows = torch.tensor([[3, 0, 11], [3, 7, 3]])
    words = draws(rows) if training else None
    x, y = own.fetch(rows, words)
    assert x.shape == (2, 3, *own.shape) and y.shape == (2, 3)
    for place in np.ndindex(2, 3):
        one, label = own.fetch(rows[place][None], None if words is None else words[place][None])
        assert torch.equal(x[place], one[0]) and y[place] == label[0] == own.labels[rows[place]]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_same_draws_give_the_same_augmentation_and_leave_the_images_alone(transform: Transform) -> None:
    own, rows = source(transform), torch.arange(12)
    first, again = own.fetch(rows, draws(rows))[0], own.fetch(rows, draws(rows))[0]
    assert torch.equal(first, again)
    assert torch.equal(own.images, images())


def test_other_draws_give_another_augmentation() -> None:
    own, rows = source(Transform(pad_crop=2, flip=0.5)), torch.arange(12)
    assert not torch.equal(own.fetch(rows, draws(rows, 1))[0], own.fetch(rows, draws(rows, 2))[0])


def test_half_of_the_rows_are_flipped_and_no_more() -> None:
    rows = torch.zeros(20_000, dtype=torch.int64)
    one = TensorSource(
        torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.tensor([0]), transform=Transform(flip=0.5)
    )
    flipped = one.fetch(rows, draws(rows))[0][:, 0, 0, 0]
    assert 0.485 < float(flipped.mean()) < 0.515
    assert set(flipped.tolist()) == {0.0, 1.0}


def test_a_certain_flip_mirrors_every_row() -> None:
    own, rows = source(Transform(flip=1.0)), torch.arange(12)
    assert torch.equal(own.fetch(rows, draws(rows))[0], own.fetch(rows)[0].flip(-1))


def test_evaluation_draws_nothing() -> None:
    own, rows = source(Transform(flip=1.0, pad_crop=3)), torch.arange(12)
    assert torch.equal(own.fetch(rows)[0], images().float() / 255)


def test_evaluation_crops_the_centre() -> None:
    own, rows = source(Transform(crop=3)), torch.arange(12)
    assert torch.equal(own.fetch(rows)[0], images()[:, :, 2:5, 1:4].float() / 255)


def test_a_random_crop_is_one_of_all_windows_and_all_of_them_occur() -> None:
    rows = torch.full((400,), 5)
    x = source(Transform(crop=5)).fetch(rows, draws(rows))[0]
    corners = {(t, s): images()[5, :, t : t + 5, s : s + 5].float() / 255 for t in range(3) for s in range(2)}
    found = [next(c for c, window in corners.items() if torch.equal(window, sample)) for sample in x]
    assert set(found) == set(corners)


def test_pad_crop_moves_the_image_over_black() -> None:
    rows = torch.full((200,), 5)
    x = source(Transform(pad_crop=1)).fetch(rows, draws(rows))[0]
    padded = F.pad(images()[5].float() / 255, (1, 1, 1, 1))
    windows = [padded[:, t : t + 7, s : s + 6] for t in range(3) for s in range(3)]
    found = {next(k for k, window in enumerate(windows) if torch.equal(window, sample)) for sample in x}
    assert found == set(range(9))


def test_resizing_is_square_and_keeps_a_flat_image_flat() -> None:
    flat = TensorSource(
        torch.full((1, 1, 6, 9), 51, dtype=torch.uint8), torch.tensor([0]), transform=Transform(resize=4)
    )
    x = flat.fetch(torch.tensor([0]))[0]
    assert x.shape == (1, 1, 4, 4) and torch.allclose(x, torch.full_like(x, 0.2))


def test_flip_and_crop_of_a_row_are_independent() -> None:
    rows = torch.zeros(8_000, dtype=torch.int64)
    ramp = TensorSource(
        torch.tensor([[[[0, 100, 200]] * 3]], dtype=torch.uint8).reshape(1, 1, 3, 3),
        torch.tensor([0]),
        transform=Transform(crop=2, flip=0.5),
    )
    x = (ramp.fetch(rows, draws(rows))[0][:, 0, 0] * 255).round().int()
    shares = torch.unique(x, dim=0, return_counts=True)[1] / len(rows)
    assert len(shares) == 4 and bool(((shares > 0.22) & (shares < 0.28)).all())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=0, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from(TRANSFORMS))
def test_a_fetch_has_the_promised_shape_and_labels(rows: list[int], word: int, transform: Transform) -> None:
    own, wanted = source(transform), torch.tensor(rows, dtype=torch.int64)
    x, y = own.fetch(wanted, torch.full_like(wanted, word))
    assert x.shape == (len(rows), *own.shape) and y.tolist() == [row % 3 for row in rows]


@pytest.mark.parametrize("transform", [Transform(mean=(0.5, 0.4), std=(0.2, 0.3)), Transform(resize=4), Transform()])
def test_what_never_changes_is_transformed_once_and_comes_out_the_same(
    transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = {"stamped": torch.arange(12) % 5 == 0, "trigger": Trigger()}
    kept = source(transform, **stamps)
    monkeypatch.setattr("unfed.data.source.MADE_BYTES", 0)
    anew = source(transform, **stamps)
    rows = torch.tensor([[3, 0], [10, 5]])
    assert kept._made is not None and anew._made is None
    assert all(torch.equal(a, b) for a, b in zip(kept.fetch(rows), anew.fetch(rows), strict=True))
    kept.fetch(rows)[0].zero_()  # what is handed out is a copy
    assert torch.equal(kept.fetch(rows, draws(rows))[0], anew.fetch(rows, draws(rows))[0])


def test_only_what_augments_says_so() -> None:
    assert [source(t).augments for t in TRANSFORMS] == [False, True, True, True, False, True]
    assert not TensorSource(torch.zeros(3, 2), torch.arange(3)).augments


def test_prepared_samples_of_any_shape_are_handed_out_as_they_are() -> None:
    values = torch.randn(5, 3, generator=rng.generator(0), dtype=torch.float64)
    own = TensorSource(values, torch.tensor([0, 1, 0, 1, 2]), dtype=torch.float64)
    x, _ = own.fetch(torch.tensor([[4, 0]]), torch.tensor([[1, 2]]))
    assert torch.equal(x, values[[4, 0]][None]) and own.shape == (3,) and own.classes == 3 and own.resident


def test_a_source_moves_with_everything_it_holds() -> None:
    own = source(
        Transform(mean=(0.5, 0.4), std=(0.2, 0.3)), stamped=torch.ones(12, dtype=torch.bool), trigger=Trigger()
    )
    moved = own.to("cpu")
    assert (
        torch.equal(moved.fetch(torch.arange(12))[0], own.fetch(torch.arange(12))[0]) and moved.classes == own.classes
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"flip": 1.5}, "flip is a probability"),
        ({"pad_crop": -1}, "pad_crop is a number of pixels"),
        ({"resize": 0}, "resize is a number of pixels"),
        ({"crop": 0}, "crop is a number of pixels"),
        ({"resize": 8, "crop": 9}, "crop = 9 does not fit into resize = 8"),
        ({"mean": (0.5,)}, "mean has 1 values and std has 0"),
        ({"mean": (0.5,), "std": (0.0,)}, "must be finite and std"),
    ],
)
def test_a_transform_that_makes_no_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        Transform(**options)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"transform": Transform(crop=7)}, "crop = 7 does not fit into images of 7x6"),
        ({"transform": Transform(mean=(0.5,), std=(0.5,))}, "have 1 values, the images have 2 channels"),
        ({"images": images()[:0]}, "The data set is empty"),
        ({"images": images()[0]}, r"must have the shape \[N, C, H, W\]"),
        ({"images": images().int()}, "must be uint8 images or float tensors"),
        ({"images": images().float(), "transform": Transform(flip=0.5)}, "taken as prepared, without a transform"),
        (
            {"images": images().float(), "stamped": torch.zeros(12, dtype=torch.bool), "trigger": Trigger()},
            "A trigger needs uint8 images",
        ),
        ({"labels": torch.zeros(12)}, "Labels must be class numbers"),
        ({"labels": torch.zeros(11, dtype=torch.int64)}, "give one label per sample"),
        ({"labels": torch.arange(12) - 1}, "Row 0 has the label -1, which is outside 0..10"),
        ({"classes": 11}, "Row 11 has the label 11, which is outside 0..10"),
        ({"dtype": torch.int64}, "dtype must be a floating-point type"),
        ({"trigger": Trigger()}, "belong together"),
        ({"stamped": torch.zeros(3, dtype=torch.bool), "trigger": Trigger()}, "must be 12 booleans"),
    ],
)
def test_tensors_that_no_source_can_hold_are_refused(changes: dict[str, Any], sentence: str) -> None:
    options = {"images": images(), "labels": torch.arange(12)} | changes
    with pytest.raises(UnfedError, match=sentence):
        TensorSource(options.pop("images"), options.pop("labels"), **options)


class Items:
    """A user's data set: a list of pairs, with extra attributes as they come."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items = items
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int, /) -> Any:
        return self.items[index]


def wrap(items: list[Any], **attributes: Any) -> DatasetSource:
    return DatasetSource(Items(items, **attributes), warn=False)


def test_a_users_data_set_is_fetched_in_any_shape() -> None:
    own = wrap([(torch.full((2,), float(k)), k % 2) for k in range(4)])
    x, y = own.fetch(torch.tensor([[3, 0], [1, 1]]), torch.zeros(2, 2, dtype=torch.int64))
    assert x[..., 0].tolist() == [[3.0, 0.0], [1.0, 1.0]] and y.tolist() == [[1, 0], [1, 1]]
    assert (own.shape, own.classes, len(own), own.resident) == ((2,), 2, 4, False)
    assert own.fetch(torch.empty(0, dtype=torch.int64))[0].shape == (0, 2)


@pytest.mark.parametrize(
    "picture",
    [
        np.array([[[0, 51]], [[255, 102]]], dtype=np.uint8),
        Image.fromarray(np.array([[[0, 51, 0]], [[255, 102, 0]]], dtype=np.uint8)),
        torch.tensor([[[0], [255]], [[51], [102]]], dtype=torch.uint8),
        torch.tensor([[[0.0], [1.0]], [[0.2], [0.4]]]),
        np.array([[[0.0, 0.2]], [[1.0, 0.4]]]),
    ],
)
def test_arrays_images_and_tensors_become_channels_first_numbers(picture: Any) -> None:
    x = wrap([(picture, 0)]).fetch(torch.tensor([0]))[0]
    assert torch.allclose(x[0, :2], torch.tensor([[[0.0], [1.0]], [[0.2], [0.4]]]))


def test_grey_and_palette_images_are_understood() -> None:
    grey = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    assert wrap([(grey, 0)]).fetch(torch.tensor([0]))[0].tolist() == [[[[0.0, 1.0]]]]
    assert wrap([(grey.convert("1"), 0)]).fetch(torch.tensor([0]))[0].tolist() == [[[[0.0, 1.0]]]]
    assert wrap([(grey.convert("P"), 0)]).shape == (3, 1, 2)


def test_labels_are_read_from_the_list_the_data_set_keeps() -> None:
    pairs = [(torch.zeros(1), np.int64(1)), (torch.zeros(1), torch.tensor(0))]
    for attributes in ({"targets": [1, 0]}, {"labels": torch.tensor([1, 0])}, {}):
        assert wrap(pairs, **attributes).labels.tolist() == [1, 0]


def test_a_target_transform_makes_the_list_of_targets_unusable() -> None:
    pairs = [(torch.zeros(1), 1), (torch.zeros(1), 0)]
    assert wrap(pairs, targets=[5, 6], target_transform=lambda y: y % 5).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("items", "attributes", "sentence"),
    [
        ([], {}, "The data set is empty"),
        ([(torch.zeros(1), 0), torch.zeros(1)], {}, r"Row 1 of the data set is not a pair \(x, y\) but a Tensor"),
        ([(torch.zeros(1), 0), (torch.zeros(1), 0.5)], {}, "Row 1 has the label 0.5, which is not an integer"),
        ([(torch.zeros(1), True)], {}, "Row 0 has the label True, which is not an integer"),
        ([(torch.zeros(1), 0), (torch.zeros(1), -2)], {}, "Row 1 has the label -2, which is outside"),
        ([(torch.zeros(1), 0)], {"targets": [0, 0]}, "has 1 rows and lists 2 labels"),
        ([("a cat", 0)], {}, "Row 0 holds a str, which is no tensor, image or array"),
    ],
)
def test_a_data_set_that_breaks_the_rules_is_refused_by_row(
    items: list[Any], attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UnfedError, match=sentence):
        wrap(items, **attributes)


def test_rows_of_another_shape_or_label_are_named_when_they_are_met() -> None:
    with pytest.raises(UnfedError, match=r"Row 1 has the shape \[3\] and row 0 has \[2\]"):
        wrap([(torch.zeros(2), 0), (torch.zeros(3), 0)]).fetch(torch.tensor([0, 1]))
    with pytest.raises(UnfedError, match="Row 0 comes with the label 0, but the data set listed it as 1"):
        wrap([(torch.zeros(2), 0)], targets=[1]).fetch(torch.tensor([0]))


def test_a_users_data_set_says_what_it_costs() -> None:
    with pytest.warns(UnfedWarning, match="the batched engine and bit-equal resume are off") as caught:
        DatasetSource(Items([(torch.zeros(1), 0)]))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap([(torch.zeros(1), 0)])
