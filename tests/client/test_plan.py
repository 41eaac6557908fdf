"""A plan travels as JSON and comes back as it was."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unfed.client.plan import Measure, Optimiser, Phase, Plan, term
from unfed.errors import UnfedError

terms = st.builds(
    lambda name, numbers: term(name, **numbers),
    st.sampled_from(["ce", "ball", "hold"]),
    st.dictionaries(
        st.sampled_from(["radius", "every", "of"]), st.integers(0, 9) | st.floats(0, 1) | st.text(max_size=4)
    ),
)
optimisers = st.builds(
    Optimiser,
    rule=st.sampled_from(["sgd", "adam"]),
    lr=st.floats(0, 1),
    clip=st.none() | st.floats(0.1, 9),
    plateau=st.none() | terms,
)
phases = st.builds(
    Phase,
    objective=terms,
    view=st.sampled_from(["retain", "forget", "all", "val"]),
    epochs=st.integers(0, 5),
    steps=st.none() | st.integers(0, 9),
    cap=st.none() | st.integers(1, 9),
    batch=st.integers(1, 64),
    optimiser=optimisers,
    penalties=st.lists(terms, max_size=2).map(tuple),
    after=st.lists(terms, max_size=2).map(tuple),
    stop=st.none() | terms,
)
plans = st.builds(
    Plan,
    seed=st.integers(0, 2**62),
    round=st.integers(0, 999),
    phases=st.lists(phases, max_size=3).map(tuple),
    keep=st.booleans(),
)


@settings(max_examples=20)  # a plan takes long to draw
@given(plans)
def test_a_plan_survives_the_journey(plan: Any) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_a_measure_survives_the_journey() -> None:
    assert Measure.from_json(Measure("gradient", "forget", 32).to_json()) == Measure("gradient", "forget", 32)


def test_equal_rules_are_equal_whatever_the_order_of_their_numbers() -> None:
    assert term("ball", radius=1.0, around="start") == term("ball", around="start", radius=1.0)
    assert hash(term("ball", a=1, b=2)) == hash(term("ball", b=2, a=1))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Phase(view=cast(Any, "retained")), "The view 'retained' is not known.*Did you mean 'retain'"),
        (lambda: Phase(batch=0), "batch size of at least 1"),
        (lambda: Optimiser(rule=cast(Any, "lion")), "use sgd, adam or adamw"),
        (lambda: Optimiser(lr=-1.0), "must not be negative"),
        (lambda: Optimiser(clip=0.0), "clip must be positive"),
        (lambda: Measure(cast(Any, "hessian")), "use correct, gradient or squared_gradient"),
        (lambda: Measure(view=cast(Any, "tset")), "The view 'tset' is not known"),
        (lambda: Plan.from_json("{"), "The plan is no JSON"),
        (lambda: Plan.from_json('{"phases": [{"view": "retain"}]}'), "The plan has no seed"),
        (lambda: Plan.from_json("[1]"), "The plan is damaged"),
        (lambda: Measure.from_json('{"who": 1}'), "The measuring plan has .1. as its who.*use the same version"),
    ],
)
def test_a_wrong_plan_is_named(make: Callable[..., Any], says: str) -> None:
    with pytest.raises(UnfedError, match=says):
        make()
