"""Averages by hand, and updates that must not be averaged."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unfed.client.plan import Plan
from unfed.engines import Block
from unfed.engines.base import Visit, parted
from unfed.errors import Refused
from unfed.federation.aggregate import CheckedUpdate, all_finite, average

OLD = {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([0.5]), "count": torch.tensor(3)}


def block(*clients: Any, samples: Any = None, **tensors: Any) -> Any:
    n = len(clients)
    ones = tuple(1 for _ in clients)
    return Block(clients, tensors, samples or ones, ones, tuple(0 for _ in range(n)))


def update(client: Any, w: Any, mean: Any = 0.5, count: Any = 4, samples: Any = 1) -> Any:
    return block(
        client,
        samples=(samples,),
        w=torch.tensor([w]),
        mean=torch.tensor([[mean]]),
        count=torch.tensor([count]),
    )


def test_two_clients_by_hand() -> None:
    # weights 1 and 3: w = ([1,2] + 3·[5,10]) / 4 = [4, 8], mean = (0 + 3·1) / 4
    new = average(OLD, [update("a", [1.0, 2.0], 0.0, 4, 1), update("b", [5.0, 10.0], 1.0, 5, 3)])
    assert new["w"].tolist() == [4.0, 8.0]
    assert new["mean"].tolist() == [0.75]
    assert int(new["count"]) == 5  # an integer counter is copied, not averaged
    assert new["count"].dtype == OLD["count"].dtype


def test_a_stacked_block_equals_single_blocks() -> None:
    single = average(OLD, [update("a", [1.0, 2.0], 0.0, 4, 1), update("b", [5.0, 10.0], 1.0, 5, 3)])
    stacked = block(
        "a",
        "b",
        samples=(1, 3),
        w=torch.tensor([[1.0, 2.0], [5.0, 10.0]]),
        mean=torch.tensor([[0.0], [1.0]]),
        count=torch.tensor([4, 5]),
    )
    for name, value in average(OLD, [stacked]).items():
        assert torch.equal(value, single[name])


def pair(first: float, second: float) -> Block:
    """Two clients of one and three rows."""
    w, same = torch.tensor([[first, 2.0], [second, 10.0]]), torch.full((2, 1), 0.5)
    found: Block = block("a", "b", samples=(1, 3), w=w, mean=same, count=torch.tensor([4, 5]))
    return found


def test_what_a_check_has_summed_up_is_averaged_to_the_same_bits_as_often_as_it_is_asked() -> None:
    plain, (checked, refused) = pair(1 / 3, 1 / 7), CheckedUpdate(pair(1 / 3, 1 / 7), OLD, 1).result()
    assert not refused and checked.moved is not None and checked.moved.start is OLD
    for _ in range(2):  # an average that added to the sums in place would move further each time
        for name, value in average(OLD, [checked, plain]).items():
            assert torch.equal(value, average(OLD, [plain, plain])[name])


def test_federations_of_one_stack_are_checked_and_averaged_to_the_same_bits_as_alone() -> None:
    starts = [OLD, {**OLD, "w": torch.tensor([0.3, -0.7])}, {**OLD, "w": torch.tensor([2.0, 1.0])}]
    own = [pair(1 / 3, 1 / 7), update("c", [0.1, 0.2], 0.5, 6, 9), pair(1.5, -2.5)]
    names = tuple(name for one in own for name in one.clients)
    stacked = {name: torch.cat([one.params[name] for one in own]) for name in OLD}
    whole = block(*names, samples=tuple(n for one in own for n in one.samples), **stacked)
    visits = [Visit(Plan(0, 1, ()), start, one.clients, {}) for start, one in zip(starts, own, strict=True)]
    for start, one, found in zip(starts, own, parted(whole, visits), strict=True):
        assert found.clients == one.clients and found.moved is not None and found.moved.start is start
        (alone, _), checked = CheckedUpdate(one, start, 1).result(), CheckedUpdate(found, start, 1)
        good, refused = checked.result()
        assert not refused and good.moved is found.moved, "nothing is computed again"
        for name, value in average(start, [alone]).items():
            assert torch.equal(average(start, [good])[name], value)
        again = CheckedUpdate(one, start, 1)
        again.result()
        assert checked.lengths == again.lengths and checked.size == again.size


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_bad_client_of_one_federation_leaves_the_others_of_its_stack_alone(bad: float) -> None:
    whole = block(
        "a", "b", "a", "b", samples=(1, 3, 1, 3), w=torch.tensor([[1.0, 2.0], [bad, 10.0], [1.0, 2.0], [5.0, 10.0]]),
        mean=torch.zeros(4, 1), count=torch.tensor([4, 5, 4, 5]),
    )  # fmt: skip
    visits = [Visit(Plan(0, 1, ()), OLD, ("a", "b"), {})] * 2
    spoilt, fine = parted(whole, visits)
    assert spoilt.moved is None, "a mean that is not finite is not handed on"
    kept, refused = CheckedUpdate(spoilt, OLD, 1).result()
    assert kept.clients == ("a",) and [r.client for r in refused] == ["b"]
    kept, refused = CheckedUpdate(fine, OLD, 1).result()
    assert not refused and average(OLD, [kept])["w"].tolist() == [4.0, 8.0]


def test_sums_that_overflow_are_not_averaged() -> None:
    old = {"w": torch.tensor([1.0, 2.0]).half()}
    far = block("a", "b", samples=(1000, 1000), w=torch.tensor([[101.0, 2.0], [201.0, 2.0]]).half())
    checked, refused = CheckedUpdate(far, old, 1).result()
    # 1000·100 + 1000·200 is more than half precision holds, (101 + 201) / 2 is not
    assert not refused and average(old, [checked])["w"].tolist() == [151.0, 2.0]


def test_a_check_from_another_start_is_made_again() -> None:
    checked, _ = CheckedUpdate(pair(1.0, 5.0), OLD, 1).result()
    elsewhere = {**OLD, "w": torch.tensor([1.0, 0.0])}
    again = CheckedUpdate(checked, elsewhere, 1)
    again.result()
    # a: (0, 2), and mean 0; b: (4, 10), and mean 0
    assert again.lengths == pytest.approx({"a": 2.0, "b": 116**0.5}) and again.size == pytest.approx(1.25**0.5)


def test_sums_from_another_start_are_not_used() -> None:
    checked, _ = CheckedUpdate(pair(1.0, 5.0), OLD, 1).result()
    assert average({**OLD, "w": torch.tensor([0.0, 0.0])}, [checked])["w"].tolist() == [4.0, 8.0]


def test_a_number_alone_and_a_tensor_without_entries_are_averaged_in_a_stack() -> None:
    # (1·1 + 3·5) / 4 = 4, beside numbers of twice the width
    old = {"scale": torch.tensor(1.0), "none": torch.zeros(0, 3), "wide": torch.zeros(1, 2, dtype=torch.float64)}
    stacked = {"scale": torch.tensor([1.0, 5.0]), "none": torch.zeros(2, 0, 3), "wide": torch.ones(2, 1, 2).double()}
    new = average(old, [block("a", "b", samples=(1, 3), **stacked)])
    assert float(new["scale"]) == 4.0 and new["none"].shape == (0, 3)
    assert torch.equal(new["wide"], torch.ones(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_entry_that_is_not_finite_is_seen_wherever_it_stands(bad: float, place: int) -> None:
    tensors = [torch.full((3,), 3e38), torch.ones(2, dtype=torch.float64), torch.ones(2, 2).half(), torch.zeros(0)]
    assert all_finite(tensors)
    tensors[place][-1] = bad
    assert not all_finite(tensors)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=9), st.integers(0, 1000))
def test_what_nobody_changed_stays_bit_equal(samples: Any, seed: int) -> None:
    old = {"w": torch.randn(50, generator=torch.Generator().manual_seed(seed))}
    blocks = [block(str(k), samples=(n,), w=old["w"][None].clone()) for k, n in enumerate(samples)]
    assert torch.equal(average(old, blocks)["w"], old["w"])


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(Refused, match="no update to average"):
        average(OLD, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"w": torch.tensor([[1.0, float("nan")]])}, "NaN or infinite values in 'w'"),
        ({"mean": torch.tensor([[float("inf")]])}, "NaN or infinite values in 'mean'"),
        ({"w": torch.tensor([[1.0, 2.0, 3.0]])}, r"'w' has shape \(3,\), not \(2,\)"),
        ({"w": torch.tensor([[1.0, 2.0]], dtype=torch.float64)}, "'w' is torch.float64, not torch.float32"),
        ({"x": torch.tensor([[1.0]])}, "has an unknown tensor 'x'"),
    ],
)
def test_a_bad_update_is_refused_and_named(change: Any, reason: str) -> None:
    good = update("b", [1.0, 2.0])
    kept, refusals = CheckedUpdate(block("b", **{**good.params, **change}), OLD, round=7).result()
    assert kept.clients == ()
    assert [(r.round, r.client) for r in refusals] == [(7, "b")]
    import re

    assert re.search(reason, refusals[0].reason)


def test_a_missing_tensor_is_named() -> None:
    kept, refusals = CheckedUpdate(block("b", w=torch.tensor([[1.0, 2.0]])), OLD, 1).result()
    assert kept.clients == () and "lacks the tensor 'count'" in refusals[0].reason


@pytest.mark.parametrize("samples", [0, -1])
def test_a_weight_that_is_not_positive_is_refused(samples: Any) -> None:
    kept, refusals = CheckedUpdate(update("b", [1.0, 2.0], samples=samples), OLD, 1).result()
    assert kept.clients == () and "not positive" in refusals[0].reason


def test_only_the_bad_client_of_a_block_is_refused() -> None:
    mixed = block(
        "a",
        "b",
        "c",
        w=torch.tensor([[1.0, 2.0], [float("nan"), 2.0], [3.0, 4.0]]),
        mean=torch.zeros(3, 1),
        count=torch.tensor([1, 1, 1]),
    )
    kept, refusals = CheckedUpdate(mixed, OLD, 1).result()
    assert kept.clients == ("a", "c")
    assert kept.params["w"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [r.client for r in refusals] == ["b"]


def test_numbers_whose_sum_is_too_large_are_no_model() -> None:
    huge = torch.finfo(torch.float32).max
    good, bad = CheckedUpdate(update("a", [huge, -huge]), OLD, 1).result()
    assert good.clients == () and "its norm is not a finite number" in bad[0].reason
