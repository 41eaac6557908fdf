"""A partition is an exact cover: every row has one owner, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unfed.data import Partition, dirichlet, iid, shards, split
from unfed.data.partition import Deal, _topped_up, portion
from unfed.errors import UnfedError

LABELS = torch.arange(200) % 5

CUTS: dict[str, Callable[[Tensor, int, int], Partition]] = {
    "iid": iid,
    "dirichlet": lambda labels, clients, seed: dirichlet(labels, clients, 0.1, seed, min_samples=1),
    "flat dirichlet": lambda labels, clients, seed: dirichlet(labels, clients, 100.0, seed, min_samples=1),
    "shards": lambda labels, clients, seed: shards(labels, clients, 2, seed),
}


def rows_of(partition: Partition) -> list[list[int]]:
    return [rows.tolist() for rows in partition.rows]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(CUTS)), st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 9), st.data()
)
def test_every_row_has_exactly_one_owner(cut: str, labels: list[int], seed: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, len(labels) // 2))
    partition = CUTS[cut](torch.tensor(labels), clients, seed)
    dealt = rows_of(partition)
    assert len(dealt) == len(partition) == clients and all(dealt)
    assert sorted(row for rows in dealt for row in rows) == list(range(len(labels)))
    assert partition.rows.sizes.tolist() == [len(rows) for rows in dealt]


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_the_seed_decides_and_nothing_else(cut: str) -> None:
    assert rows_of(CUTS[cut](LABELS, 7, 3)) == rows_of(CUTS[cut](LABELS, 7, 3))
    assert rows_of(CUTS[cut](LABELS, 7, 3)) != rows_of(CUTS[cut](LABELS, 7, 4))


@pytest.mark.parametrize("cut", sorted(CUTS))
def test_a_client_holds_its_rows_in_a_random_order(cut: str) -> None:
    dealt = rows_of(CUTS[cut](LABELS, 4, 0))
    assert any(rows != sorted(rows) for rows in dealt)
    by_label = [[int(LABELS[row]) for row in rows] for rows in dealt]
    assert any(labels != sorted(labels) for labels in by_label)


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert [len(rows) for rows in iid(torch.zeros(11), 4, 0).rows] == [3, 3, 3, 2]


def test_a_small_beta_skews_and_a_large_beta_does_not() -> None:
    labels = torch.arange(2000) % 10

    def largest_share(beta: float) -> float:
        counts = [torch.bincount(labels[rows], minlength=10) for rows in dirichlet(labels, 10, beta, 1).rows]
        return float(torch.stack([c.max() / c.sum() for c in counts]).mean())

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(1000.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 50), st.sampled_from([1e-3, 0.01, 0.1, 1.0]), st.integers(1, 5))
def test_nobody_is_left_with_too_few_rows_and_the_repair_is_recorded(seed: int, beta: float, least: int) -> None:
    partition = dirichlet(LABELS, 30, beta, seed, min_samples=least)
    sizes = partition.rows.sizes
    assert sizes.min() >= least and sizes.sum() == len(LABELS)
    assert all(sizes[k] == least for k in partition.repaired)


def test_a_mild_draw_repairs_nobody_and_a_wild_one_says_whom() -> None:
    assert dirichlet(LABELS, 4, 100.0, 0).repaired == ()
    assert len(dirichlet(LABELS, 60, 0.01, 0).repaired) > 10


def test_a_draw_that_starves_somebody_is_drawn_again() -> None:
    """Three rows each for ten clients of 200 rows: some first draws miss that, hardly any ten in a row do."""
    repaired = [dirichlet(LABELS, 10, 0.5, seed, min_samples=3).repaired for seed in range(60)]
    assert sum(map(bool, repaired)) <= 1


def test_every_class_is_dealt_by_a_draw_of_its_own() -> None:
    shares = [torch.bincount(LABELS[rows], minlength=5) for rows in dirichlet(LABELS, 4, 0.3, 0, min_samples=1).rows]
    assert len({tuple(column.tolist()) for column in torch.stack(shares).T}) == 5


def greedy(sizes: list[int], least: int) -> list[int]:
    """The slow truth: one row at a time, from the largest client to the first that lacks one."""
    sizes = list(sizes)
    while min(sizes) < least:
        sizes[max(range(len(sizes)), key=lambda k: sizes[k])] -= 1
        sizes[next(k for k, size in enumerate(sizes) if size < least)] += 1
    return sizes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 4))
def test_topping_up_takes_one_row_at_a_time_from_the_largest(sizes: list[int], least: int) -> None:
    if sum(sizes) < least * len(sizes) or min(sizes) >= least:
        return
    owner = _topped_up(Deal(torch.arange(sum(sizes)), np.array(sizes)), least)
    assert sorted(np.bincount(owner, minlength=len(sizes)).tolist()) == sorted(greedy(sizes, least))
    before = np.repeat(np.arange(len(sizes)), sizes)
    assert (owner != before).sum() == sum(max(least - size, 0) for size in sizes)


def test_each_client_is_dealt_its_number_of_shards() -> None:
    partition = shards(LABELS, 10, 2, 0)  # 20 shards of 10 rows, 4 per class: a shard never spans two classes
    for rows in partition.rows:
        counts = torch.bincount(LABELS[rows], minlength=5)
        assert len(rows) == 20 and bool((counts % 10 == 0).all()) and int((counts > 0).sum()) <= 2


def test_a_deal_reads_like_a_tuple_of_tensors() -> None:
    deal = iid(torch.zeros(10), 3, 0).rows
    assert [r.tolist() for r in deal[1:]] == [deal[1].tolist(), deal[-1].tolist()] and len(deal) == 3
    for beyond in (3, -4):
        with pytest.raises(IndexError):
            deal[beyond]


def test_a_hundred_thousand_clients_are_dealt_at_once() -> None:
    partition = iid(torch.zeros(400_000), 100_000, 0)
    assert len(partition.rows[99_999]) == 4 and len(torch.unique(partition.rows.order)) == 400_000


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.floats(0.0, 0.999), st.integers(0, 2**62))
def test_a_split_is_disjoint_complete_sorted_and_leaves_something_to_train_on(n: int, part: float, key: int) -> None:
    train, val = split(n, key, part)
    assert sorted(train.tolist() + val.tolist()) == list(range(n))
    assert train.tolist() == sorted(train.tolist()) and val.tolist() == sorted(val.tolist())
    assert len(train) >= 1 and len(val) == min(portion(part, n), n - 1)


def test_a_split_is_80_to_20_and_moves_with_the_key() -> None:
    train, val = split(100, 1)
    assert (len(train), len(val)) == (80, 20)
    assert val.tolist() == split(100, 1)[1].tolist() != split(100, 2)[1].tolist()
    assert len(split(9, 0, 0.0)[1]) == 0


def test_a_portion_is_what_the_decimal_says() -> None:
    assert [portion(0.29, 100), portion(0.8, 9), portion(0.1, 30), portion(0.8, 5)] == [29, 7, 3, 4]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: iid(LABELS, 0, 0), "at least one client"),
        (lambda: iid(LABELS, 201, 0), "201 clients cannot share 200 rows; take at most 200"),
        (lambda: dirichlet(LABELS, 0, 0.1, 0), "at least one client"),
        (lambda: dirichlet(LABELS, 3, 0.0, 0), "must be a positive number, not 0.0"),
        (lambda: dirichlet(LABELS, 3, float("nan"), 0), "must be a positive number, not nan"),
        (lambda: dirichlet(LABELS, 3, 0.1, 0, min_samples=0), "min_samples must be at least 1"),
        (lambda: dirichlet(LABELS, 101, 0.1, 0), "need 202 rows, and there are 200"),
        (lambda: shards(LABELS, 3, 0, 0), "per_client is a number of shards"),
        (lambda: shards(LABELS, 100, 3, 0), "need 300 rows, and there are 200"),
        (lambda: split(0, 0), "without rows cannot be split"),
        (lambda: split(5, 0, 1.0), "must be at least 0 and below 1, not 1.0"),
    ],
)
def test_an_impossible_partition_is_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UnfedError, match=sentence):
        call()
