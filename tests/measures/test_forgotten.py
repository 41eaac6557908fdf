"""Is it forgotten? The statistics by hand, and what the judgement says where it cannot know."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unfed.measures.forgotten import (
    Advantage,
    Evidence,
    Forgetting,
    Losses,
    advantage,
    backdoor_forgotten,
    class_forgotten,
    did_it_forget,
    halves,
    opposite_signs,
    rows_forgotten,
    rows_needed,
    share_rows_needed,
    upper_share,
)
from unfed.values import not_measured

WHY = not_measured("no client was poisoned")


def losses(*pairs: tuple[float, int]) -> Losses:
    return Losses.of(np.array([loss for loss, _ in pairs]), np.array([label for _, label in pairs]))


def drawn(rows: int, shift: float, seed: int = 0, labels: int = 4) -> Losses:
    """Losses whose size depends on the label, so that only a comparison within labels is fair."""
    source = np.random.default_rng(seed)
    label = source.integers(0, labels, rows)
    return Losses.of(np.exp(source.normal(size=rows) + label - shift), label)


def shown(forget: Losses | str, held_out: Losses | str, right: object = None, stamped: object = WHY) -> Evidence:
    return Evidence(forget, held_out, np.zeros(0, bool) if right is None else right, stamped)  # type: ignore[arg-type]


def flags(right: int, rows: int) -> np.ndarray:
    return np.arange(rows) < right


def test_the_advantage_and_its_error_by_hand() -> None:
    """Label 0: losses 1, 3 against 2, 3: wins 1, ½ of 2 -> placements 1, ¼. Label 1: 5 against 4, 6 -> ½."""
    found = advantage(losses((1, 0), (3, 0), (5, 1)), losses((2, 0), (3, 0), (4, 1), (6, 1)), margin=0.5)
    placements = [1.0, 0.25, 0.5]
    assert found.value == pytest.approx(2 * sum(placements) / 3 - 1)
    over_rows = sum((p - 7 / 12) ** 2 for p in placements) / 2 / 3
    # held out, label 0: of 1 and 3, the row 2 is beaten by one (½), the row 3 by one and a half (¾): S² = 1/32
    # label 1: 4 is beaten by none, 6 by the one: S² = 1/2
    over_held_out = (2 / 3) ** 2 * (1 / 32) / 2 + (1 / 3) ** 2 * (1 / 2) / 2
    assert found.error == pytest.approx(2 * math.sqrt(over_rows + over_held_out))
    assert found.rows == 3


def test_only_rows_of_one_label_are_compared() -> None:
    """A leaver that holds easy labels only is not called fitted for that."""
    forget, held_out = losses(*[(0.1 + 0.01 * i, 0) for i in range(9)]), [(0.1 + 0.01 * i, 0) for i in range(9)]
    hard = [(9.0 + i, 1) for i in range(50)]
    assert advantage(forget, losses(*held_out, *hard), 0.5).value == pytest.approx(0.0)


def test_rows_whose_label_nobody_holds_out_do_not_count() -> None:
    found = advantage(losses((1, 0), (2, 0), (1, 7)), losses((3, 0), (4, 0), (5, 7)), margin=0.5)
    assert found.rows == 2 and found.value == 1.0


def test_the_bound_holds_in_nineteen_of_twenty_cases() -> None:
    """Of a model that never saw D_u the true advantage is 0: the upper bound is below it once in twenty draws."""
    below = sum(advantage(drawn(150, 0, 2 * s), drawn(400, 0, 2 * s + 1), 0.2).upper < 0 for s in range(400))
    assert 8 <= below <= 34  # 400 draws at 5 %: 20 ± 3.3 standard deviations


def test_as_many_rows_as_needed_let_nearly_all_pass() -> None:
    """What `rows_needed` promises: with so many rows, a model at 0 stays under the margin with 99 %."""
    shares, held = {0: 1.0}, {0: 400}
    n = rows_needed(shares, held, 0.2)
    assert n is not None
    passed = sum(advantage(drawn(n, 0, s, 1), drawn(400, 0, 9000 + s, 1), 0.2).upper <= 0.2 for s in range(400))
    assert passed >= 388


def test_needed_rows_by_hand() -> None:
    """One label, 1,000 held out, margin 0.2: 12·(0.2 / 2·3.9712)² = 0.0076093; less 1/1000 leaves 0.0066093."""
    assert rows_needed({0: 1.0}, {0: 1000}, 0.2) == math.ceil(1.001 / 0.0066093) == 152
    assert rows_needed({0: 1.0}, {0: 50}, 0.2) is None


def test_upper_bounds_of_shares_by_hand() -> None:
    """None of n: 1 − 0.05^(1/n). One of two: the larger root of p² − 2p... P(at most 1 of 2) = 1 − p² = 0.05."""
    assert upper_share(0, 29) == pytest.approx(100 * (1 - 0.05 ** (1 / 29)))
    assert upper_share(1, 2) == pytest.approx(100 * math.sqrt(0.95))
    assert upper_share(2, 2) == 100.0
    assert share_rows_needed(10.0) == 29
    assert upper_share(0, 29) <= 10.0 < upper_share(0, 28)


def test_a_class_is_forgotten_if_it_is_read_no_better_than_by_chance() -> None:
    before = shown("", "", flags(98, 100))
    assert class_forgotten(before, shown("", "", flags(4, 100)), 10).verdict == "passed"
    assert class_forgotten(before, shown("", "", flags(10, 100)), 10).verdict == "failed"
    assert class_forgotten(before, before, 10).verdict == "failed"


def test_a_backdoor_is_judged_where_there_is_one() -> None:
    before = shown("", "", stamped=flags(90, 100))
    assert backdoor_forgotten(before, shown("", "", stamped=flags(0, 100)), 10).verdict == "passed"
    assert backdoor_forgotten(before, before, 10).verdict == "failed"
    assert backdoor_forgotten(shown("", ""), shown("", ""), 10).value == WHY


def test_too_few_rows_are_not_measured_and_it_is_said_how_many_are_needed() -> None:
    few = shown("", "", flags(0, 12))
    assert class_forgotten(shown("", "", flags(12, 12)), few, 10).value == "not measured: 12 rows, 29 needed"
    held = drawn(2000, 0, 1)
    found = rows_forgotten(shown(drawn(30, 3), held), shown(drawn(30, 0), held), 0.2)
    assert found.verdict == "not measured" and "30 rows" in str(found.value) and "are needed" in str(found.value)
    none = rows_forgotten(shown(drawn(30, 3), drawn(9, 0)), shown(drawn(30, 0), drawn(9, 0)), 0.2)
    assert "no number suffices with so few held-out rows" in str(none.value)


def test_rows_pass_if_they_look_like_held_out_ones_and_fail_if_they_are_fitted() -> None:
    held = drawn(2000, 0, 1)
    fitted, forgotten = shown(drawn(300, 1), held), shown(drawn(300, 0), held)
    assert rows_forgotten(fitted, forgotten, 0.2).verdict == "passed"
    assert rows_forgotten(fitted, fitted, 0.2).verdict == "failed"
    assert rows_forgotten(fitted, shown(drawn(300, -2), held), 0.2).verdict == "passed", "higher losses are no fault"


def test_an_attack_that_sees_nothing_in_the_model_before_says_nothing() -> None:
    """Its silence about the model after would be called forgetting, whatever was done."""
    same = shown(drawn(300, 0), drawn(2000, 0, 1))
    found = rows_forgotten(same, same, 0.2)
    assert found.verdict == "not measured" and "its silence now says nothing" in str(found.value)


def test_the_two_halves_share_no_row_and_leave_none_out() -> None:
    first, second = halves(101, 5)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(101))
    whole = shown(drawn(101, 0), drawn(50, 0), flags(3, 101), flags(2, 7))
    parts = [whole.part(5, 0), whole.part(5, 1)]
    assert [len(p.forget) for p in parts] == [50, 51] and [len(p.stamped) for p in parts] == [3, 4]
    assert not isinstance(parts[0].forget, str) and not isinstance(whole.forget, str)
    assert np.array_equal(parts[0].forget.loss, whole.forget.loss[first.numpy()])
    assert whole.part(5, 0).held_out is not whole.held_out and shown("why", "why").part(5, 1).forget == "why"


def test_what_cannot_be_scored_gives_its_own_reason() -> None:
    gone = not_measured("its owners have deleted it")
    assert rows_forgotten(shown(gone, gone), shown(gone, gone), 0.2).value == gone
    assert class_forgotten(shown(gone, gone, gone), shown(gone, gone, gone), 10).value == gone


def test_bounds_are_one_sided() -> None:
    found = Advantage(0.1, 0.02, 500, 300)
    assert found.upper == pytest.approx(0.1 + 1.6448536 * 0.02) and found.sees and found.enough
    assert not Advantage(0.04, 0.02, 500, 300).sees and not Advantage(0.1, 0.02, 200, 300).enough


# --- did it forget? -------------------------------------------------------------------------------------------------


def scored(rows: int, shift: float, seed: int = 0) -> Losses:
    """The same rows as another model fits them: their labels stay, their losses are drawn again."""
    label = np.arange(rows) % 4
    return Losses.of(np.exp(np.random.default_rng(seed).normal(size=rows) + label - shift), label)


def answered(
    before: Evidence, after: Evidence, whole_class: bool = False, opposite: tuple[str, ...] = ()
) -> Forgetting:
    return did_it_forget(before, after, 10, whole_class, opposite)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(2.0, 0.0, "forgotten"), (2.0, 2.0, "nothing"), (2.0, 1.0, "remembers"), (0.0, 0.0, "unseen")],
)
def test_what_rows_gave_away_before_is_looked_for_after(before: float, after: float, kind: str) -> None:
    found = answered(shown(scored(300, before), scored(500, 0, 1)), shown(scored(300, after, 2), scored(500, 0, 3)))
    assert found.kind == kind and found.rows == 300 and found.by == "loss"


def test_few_rows_decide_nothing() -> None:
    held = scored(500, 0, 1)
    found = answered(shown(scored(9, 3.0), held), shown(scored(9, 3.0), held))
    assert found.sentence() == "Whether it was forgotten cannot be decided: 9 rows are too few."
    assert answered(shown(scored(12, 0.3), held), shown(scored(12, 0.0, 2), held)).kind == "undecided", "within noise"


def test_a_model_that_never_saw_the_rows_is_seldom_said_to_have_had_them() -> None:
    """IID rows that θ* fits like unseen ones: a false "nothing was forgotten" in at most two of a hundred cases."""
    kinds = [
        answered(
            shown(scored(100, 0, 4 * s), scored(300, 0, 4 * s + 1)),
            shown(scored(100, 0, 4 * s + 2), scored(300, 0, 4 * s + 3)),
        ).kind
        for s in range(200)
    ]
    assert kinds.count("unseen") > 100 and sum(kind in ("nothing", "remembers") for kind in kinds) <= 4


def test_rows_that_are_fitted_worse_than_unseen_ones_are_not_called_forgotten() -> None:
    held = scored(500, 0, 1)
    found = answered(shown(scored(300, 2.0), held), shown(scored(300, -2.0), held))
    assert (found.kind, found.why) == ("undecided", "its rows are now fitted worse than unseen ones")


def test_accuracy_speaks_where_losses_do_not() -> None:
    """All forgotten rows are read right, of the unseen ones four in five; losses are alike."""
    loss = scored(200, 0)
    rows = [Losses(loss.loss, loss.label, flags(right, 200)) for right in (200, 160, 160)]
    np.random.default_rng(0).shuffle(rows[1].right)  # type: ignore[arg-type]
    kept = answered(shown(rows[0], rows[1]), shown(rows[0], rows[1]))
    assert (kept.kind, kept.by) == ("nothing", "accuracy")
    assert answered(shown(rows[0], rows[1]), shown(rows[1], rows[1])).kind == "forgotten"


@pytest.mark.parametrize(("after", "kind"), [(5, "forgotten"), (12, "forgotten"), (69, "remembers"), (96, "nothing")])
def test_a_backdoor_and_a_class_are_measured_against_chance(after: int, kind: str) -> None:
    before, now = shown(WHY, WHY, flags(97, 100), flags(97, 100)), shown(WHY, WHY, flags(after, 100), flags(after, 100))
    found = answered(before, now)
    assert (found.kind, found.by) == (kind, "backdoor")
    then, late = (Evidence(one.forget, one.held_out, one.right, WHY) for one in (before, now))
    assert (answered(then, late, whole_class=True).kind, answered(then, late).kind) == (kind, "undecided")


def test_a_layer_that_takes_the_opposite_sign_gives_the_old_function_back() -> None:
    before = {"embed": torch.randn(9, 4), "head": torch.randn(3, 4), "bias": torch.ones(3)}
    swapped = {"embed": -before["embed"], "head": -before["head"], "bias": -before["bias"]}
    assert opposite_signs(before, swapped, ["embed"]) == ["head"], "a bias of three numbers may turn by chance"
    assert opposite_signs(before, {**swapped, "head": before["head"]}, ["embed"]) == []
    assert opposite_signs(before, {**swapped, "embed": before["embed"]}, ["embed"]) == [], "embed came back instead"
    assert opposite_signs(before, swapped, []) == []
    few = shown(scored(3, 0), scored(50, 0, 1))
    found = answered(few, few, opposite=("head",))
    assert found.kind == "nothing" and found.sentence("Try X.") == (
        "Nothing was forgotten: head took the opposite sign as well, which takes the negation back. Try X."
    )


def test_what_retrain_shows_as_well_proves_nothing() -> None:
    kept, some = Forgetting("nothing", "loss", 50), Forgetting("remembers", "loss", 50)
    gone, sign = Forgetting("forgotten", "loss", 50), Forgetting("nothing", "sign", 3, "head")
    assert kept.beside(None) == kept and kept.beside(gone) == kept and kept.beside(some) == kept
    assert kept.beside(kept).kind == some.beside(some).kind == some.beside(kept).kind == "undecided"
    assert gone.beside(kept) == gone and sign.beside(kept) == sign


def test_an_answer_comes_back_from_a_file_and_a_damaged_one_is_none() -> None:
    found = Forgetting("nothing", "sign", 3, "head")
    assert Forgetting.of(vars(found)) == found
    assert Forgetting.of(None) is Forgetting.of({"kind": "perhaps"}) is Forgetting.of("nothing") is None
