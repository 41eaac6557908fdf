"""Randomness is a function of its address."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from unfed import rng

keys = st.integers(0, 2**63 - 1)


def test_a_key_depends_on_every_part_of_its_address() -> None:
    found = {rng.key(1, "train", 2, "a"), rng.key(2, "train", 2, "a"), rng.key(1, "x", 2, "a")}
    found |= {rng.key(1, "train", 3, "a"), rng.key(1, "train", 2, "b"), rng.key(1, "train", 2)}
    assert len(found) == 6
    assert rng.key(1, "2") != rng.key("1", 2)


def test_keys_and_words_are_the_same_on_every_machine() -> None:
    assert rng.key(0, "train", 1, "3") == 0x3712819B1255B206
    assert rng.words(rng.as_key(7), torch.arange(3)).tolist() == [3950080511, 2841986018, 1213419465]
    assert int(rng.fold(rng.as_key(7), 3)) == 2178964887594413712


@given(keys, st.integers(1, 200))
def test_an_order_is_a_permutation(key: Any, n: Any) -> None:
    assert sorted(rng.order(rng.as_key(key), n).tolist()) == list(range(n))


@given(keys)
def test_distinct_positions_get_distinct_words_in_range(key: Any) -> None:
    words = rng.words(rng.as_key(key), torch.arange(5000))
    assert len(words.unique()) == 5000
    assert int(words.min()) >= 0 and int(words.max()) < 2**32


@given(keys, st.integers(0, 2**31))
def test_a_child_key_is_a_key(key: Any, data: Any) -> None:
    child = int(rng.fold(rng.as_key(key), data))
    assert 0 <= child < 2**63 and child != key


def test_one_key_alone_draws_what_it_draws_in_a_stack() -> None:
    keys = rng.fold(rng.as_key(5), torch.arange(4))
    stacked = torch.vmap(lambda k: rng.words(k, torch.arange(6)))(keys)
    for k, row in zip(keys, stacked, strict=True):
        assert torch.equal(rng.words(k, torch.arange(6)), row)
        assert torch.equal(rng.order(k, 6), torch.argsort(row, stable=True))


def test_words_are_spread_evenly_and_keys_are_unrelated() -> None:
    bits = torch.stack([rng.words(rng.fold(rng.as_key(9), k), torch.arange(20_000)) for k in range(8)]).double()
    unit = bits / 2**32
    assert torch.all((unit.mean(1) - 0.5).abs() < 0.01)
    between = np.corrcoef(unit.numpy())
    assert np.abs(between - np.eye(8)).max() < 0.03
    along = torch.stack([unit[:, 1:] - 0.5, unit[:, :-1] - 0.5]).prod(0).mean(1) * 12
    assert torch.all(along.abs() < 0.03)


def test_chance_is_never_at_zero_and_always_at_one() -> None:
    words = rng.words(rng.as_key(1), torch.arange(10_000))
    assert not rng.chance(words, 0.0).any()
    assert rng.chance(words, 1.0).all()
    assert abs(float(rng.chance(words, 0.3).double().mean()) - 0.3) < 0.02


@given(keys, st.integers(1, 2**31 - 1))
def test_below_stays_below(key: Any, high: Any) -> None:
    found = rng.below(rng.words(rng.as_key(key), torch.arange(50)), high)
    assert int(found.min()) >= 0 and int(found.max()) < high


def test_seeded_code_draws_by_its_seed_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    with rng.seeded(3):
        first = torch.rand(4)
    with rng.seeded(3):
        second = torch.rand(4)
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


@given(keys, st.integers(1, 400), st.integers(1, 400))
def test_a_sample_is_the_beginning_of_the_order(key: Any, n: Any, count: Any) -> None:
    assert rng.first(key, n, count).tolist() == sorted(rng.order(key, n)[:count].tolist())


@given(keys, st.integers(0, 400))
def test_an_order_is_the_same_by_a_number_and_by_a_tensor(key: Any, n: Any) -> None:
    assert rng.order(key, n).tolist() == rng.order(rng.as_key(key), n).tolist()
