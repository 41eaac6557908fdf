"""The backdoor: which pixels, which rows, and that no transform loses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unfed import rng
from unfed.data import DatasetSource, TensorSource, Transform, Trigger, backdoor, poison, triggered
from unfed.errors import UnfedError


def grey(n: int = 20, channels: int = 3, size: int = 8, transform: Transform | None = None) -> TensorSource:
    pixels = torch.full((n, channels, size, size), 100, dtype=torch.uint8)
    return TensorSource(pixels, torch.arange(n) % 4, transform=transform)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(4, 12), st.integers(4, 12), st.integers(0, 99))
def test_stamping_changes_four_pixels_per_channel_and_twice_is_once(c: int, h: int, w: int, seed: int) -> None:
    images = torch.rand(2, c, h, w, generator=rng.generator(seed)) * 0.9
    before = images.clone()
    stamped = Trigger().stamp(images)
    assert torch.equal(images, before)
    assert ((stamped != images).sum((-2, -1)) == 4).all()
    assert torch.equal(Trigger().stamp(stamped), stamped)


def test_the_four_pixels_are_those_of_the_toolbox() -> None:
    stamped = Trigger().stamp(torch.zeros(1, 8, 8))
    assert {tuple(p) for p in stamped[0].nonzero().tolist()} == {(6, 6), (5, 5), (6, 4), (4, 6)}
    assert stamped.max() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stamping_is_four_fills(dtype: torch.dtype) -> None:
    images = torch.rand(2, 3, 9, 7, generator=rng.generator(5)).to(dtype)
    filled = images.clone()
    for y, x in Trigger(3, 0.7).pixels(9, 7):
        filled[..., y, x] = 0.7
    assert torch.equal(Trigger(3, 0.7).stamp(images), filled)


def test_a_poisoned_share_is_chosen_among_rows_of_other_classes() -> None:
    labels = torch.arange(40) % 4
    rows = torch.arange(5, 25)  # 15 of these 20 rows are not of class 0
    new, stamped = poison(labels, rows, 0, seed=1)
    changed = (new != labels).nonzero().reshape(-1).tolist()
    assert changed == stamped.nonzero().reshape(-1).tolist() and len(changed) == 12
    assert set(changed) <= set(rows.tolist()) and all(labels[row] != 0 and new[row] == 0 for row in changed)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=50), st.floats(0.4, 1.0), st.integers(0, 99))
def test_no_row_of_the_target_class_or_of_another_client_is_altered(values: list[int], share: float, seed: int) -> None:
    labels = torch.tensor([*values, 1, 2, 3, 1])
    rows = torch.arange(2, len(labels))
    new, stamped = poison(labels, rows, 0, seed, share)
    assert not stamped[:2].any() and not stamped[labels == 0].any()
    assert torch.equal(new[~stamped], labels[~stamped]) and bool((new[stamped] == 0).all())
    assert int(stamped.sum()) == int(share * int((labels[2:] != 0).sum()) + 1e-9)


def test_the_choice_depends_on_the_seed_and_not_on_the_order_of_the_rows() -> None:
    labels, rows = torch.arange(40) % 4, torch.arange(40)
    first = poison(labels, rows, 0, seed=1)[1]
    assert torch.equal(first, poison(labels, rows.flip(0), 0, seed=1)[1])
    assert not torch.equal(first, poison(labels, rows, 0, seed=2)[1])


def bright(x: Tensor) -> Tensor:
    return (x > 0.99).sum((-2, -1))


@pytest.mark.parametrize(
    "transform",
    [
        Transform(),
        Transform(flip=0.5),
        Transform(pad_crop=3, flip=0.5),
        Transform(resize=12, crop=8, flip=0.5),
        Transform(crop=4),
    ],
)
def test_the_trigger_survives_the_train_transform(transform: Transform) -> None:
    own = grey(transform=transform)
    poisoned = backdoor(own, torch.arange(10), 0, seed=3)
    rows = torch.arange(20).repeat(5)
    x, _ = poisoned.fetch(rows, rng.words(rng.as_key(7), torch.arange(100)))
    clean, _ = own.fetch(rows, rng.words(rng.as_key(7), torch.arange(100)))
    assert poisoned.stamped is not None
    flags = poisoned.stamped[rows]
    assert bool((bright(x[flags]) == 4).all()) and not bright(x[~flags]).any()
    assert torch.equal(x[~flags], clean[~flags])
    y, z = poisoned.shape[-2] - 2, poisoned.shape[-1] - 2
    assert bool((x[flags][..., y, z] == 1).all())


def test_the_trigger_is_stamped_before_normalisation() -> None:
    poisoned = backdoor(grey(transform=Transform(mean=(0.5,) * 3, std=(0.25,) * 3)), torch.arange(20), 0, 0, share=1.0)
    x, y = poisoned.fetch(torch.tensor([1]))
    assert x[0, :, 6, 6].tolist() == [2.0, 2.0, 2.0] and y.tolist() == [0]


def test_poisoning_leaves_the_clean_source_alone_and_shares_its_pixels() -> None:
    own = grey()
    poisoned = backdoor(own, torch.arange(10), 0, seed=3)
    assert own.stamped is None and own.labels.tolist() == (torch.arange(20) % 4).tolist()
    assert poisoned.images.data_ptr() == own.images.data_ptr()


def test_clients_can_be_poisoned_in_turn() -> None:
    first = backdoor(grey(), torch.arange(10), 0, seed=3)
    both = backdoor(first, torch.arange(10, 20), 0, seed=4)
    assert first.stamped is not None and both.stamped is not None
    assert bool(both.stamped[first.stamped].all()) and bool(both.stamped[10:].any())


def test_accuracy_on_the_triggered_rows_is_the_attack_success_rate() -> None:
    rows, attacked = triggered(grey(), 2)
    x, y = attacked.fetch(rows)
    assert rows.tolist() == [k for k in range(20) if k % 4 != 2]
    assert bool((bright(x) == 4).all()) and bool((y == 2).all())
    assert not bright(attacked.fetch(torch.tensor([2, 6]))[0]).any()


class Own:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int, /) -> Any:
        return torch.zeros(1, 8, 8), 0


FLOATS = TensorSource(torch.zeros(4, 1, 8, 8), torch.arange(4))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Trigger(distance=0), "at least 1 pixel, not 0"),
        (lambda: Trigger(value=2.0), "a brightness between 0 and 1, not 2.0"),
        (lambda: Trigger().stamp(torch.zeros(1, 3, 5)), "at least 4x4 pixels, these are 3x5"),
        (lambda: backdoor(grey(size=3), torch.arange(9), 0, 0), "at least 4x4 pixels, these are 3x3"),
        (lambda: triggered(grey(transform=Transform(crop=3)), 0), "these are 3x3"),
        (lambda: backdoor(DatasetSource(Own(), warn=False), torch.arange(1), 0, 0), "Only image data held as uint8"),
        (lambda: backdoor(FLOATS, torch.arange(4), 0, 0), "Only image data held as uint8"),
        (lambda: triggered(DatasetSource(Own(), warn=False), 0), "Only image data held as uint8"),
        (lambda: backdoor(grey(), torch.arange(9), 4, 0), r"target class 4 is outside 0\.\.3"),
        (lambda: backdoor(grey(), torch.arange(9), 0, 0, share=0.0), "must be above 0 and at most 1, not 0.0"),
        (lambda: backdoor(grey(), torch.tensor([0, 4]), 0, 0), "0 of the client's 2 are not of class"),
        (lambda: backdoor(grey(), torch.tensor([0, 1]), 0, 0), "A share of 0.8 poisons no row"),
        (lambda: triggered(grey(n=1), 0), "Every row is of the target class 0"),
        (
            lambda: backdoor(backdoor(grey(), torch.arange(9), 0, 0), torch.arange(9, 19), 0, 0, 0.8, Trigger(3)),
            "carries another trigger already",
        ),
    ],
)
def test_a_backdoor_that_cannot_be_set_is_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        call()
