"""Numbers of few rows: their error is as large as drawn rows show, and nobody is crowned for luck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pages import plain, render, sentence
from test_rules import line
from unfed.measures.attacks import membership_inference
from unfed.measures.metrics import accuracy_error, attack_error
from unfed.report import tables
from unfed.report.rules import Row, rows

ROWS = {"retain": 400, "forget": 40, "test": 1000}
NO_BACKDOOR = "not measured: no client was poisoned"
REQUEST = {"id": "r1", "kind": "client", "clients": ["3"]}


def last(method: str, *metrics: float | str, **more: Any) -> Any:
    """The last round of a method, over few forgotten rows unless it is said otherwise."""
    return line(
        method, 0 if method == "before" else 4, metrics, done=True, **{"backdoor": NO_BACKDOOR, "rows": ROWS} | more
    )


def marked(found: list[Row]) -> list[str]:
    return [cells[0] for cells in plain(found)[1] if "★" in str(cells)]


@pytest.mark.parametrize("lead", [0.0, 1.0])
def test_attacks_on_drawn_losses_scatter_by_the_error_that_is_said(lead: float) -> None:
    """40 rows against 40, alike and not: by a coin toss for each row alone it would be a quarter less."""
    drawn = np.random.default_rng(0)
    seen = [membership_inference(drawn.normal(0, 1, 40), drawn.normal(lead, 1, 400), seed=n) for n in range(300)]
    said = attack_error(float(np.mean(seen)), 40)
    assert 0.85 < np.std(seen) / said < 1.25
    assert np.std(seen) > 1.1 * accuracy_error(float(np.mean(seen)), 80)


def test_accuracies_on_drawn_rows_scatter_by_the_error_that_is_said() -> None:
    drawn = np.random.default_rng(0).binomial(40, 0.9, 2000) / 0.4
    assert np.std(drawn) == pytest.approx(accuracy_error(90, 40), rel=0.1)


def test_three_of_three_rows_are_not_certain() -> None:
    """Five of seven with the four that are added: √(5/7 · 2/7 / 7) = 17.1 points."""
    assert accuracy_error(100, 3) == pytest.approx(17.07, abs=0.01)


def test_how_far_mia_and_forget_are_trusted_is_said_below_the_table_and_in_the_csv() -> None:
    found = rows([last("retrain", 90, 40, 80, 50), last("not", 90, 42, 80, 50)], "last")
    (told,) = tables.by_chance(found)
    assert told == (
        "With 40 forgotten rows, chance alone moves MIA by up to ± 7.5 and Forget by up to ± 7.5 points (one standard"
        " error); take no smaller difference for a finding."
    )
    assert told in tables.markdown(found)
    record = tables.records(found)[1]
    assert record["mia_error"] == pytest.approx(attack_error(50, 40)) and record["forget_error"] > record["test_error"]


def test_the_attack_is_trusted_by_the_smaller_of_its_two_sides() -> None:
    (few,) = rows([last("retrain", 90, 40, 80, 50, rows=ROWS | {"forget": 4000, "test": 25})], "last")
    assert few.errors["mia"] == attack_error(50, 25)


def test_of_several_seeds_the_rows_of_each_are_told() -> None:
    lines = [last("not", 90, 40, 80, 50, seed=n, rows=ROWS | {"forget": 40 + n}) for n in (0, 1)]
    (told,) = tables.by_chance(rows(lines, "last"))
    assert told == (
        "With 40 to 41 forgotten rows in each seed, chance alone moves MIA by up to ± 7.5 and Forget by up to ± 7.4"
        " points (one standard error)."
    )


def test_a_run_that_does_not_say_its_rows_is_told_as_it_was() -> None:
    old = [last(method, 90, 40, 80, 50, rows={}) for method in ("retrain", "not")]
    assert tables.by_chance(rows(old, "last")) == []
    assert tables.star(rows(old, "last")) == "★ smallest average gap to Retrain"


def test_a_star_that_stands_nowhere_is_not_explained() -> None:
    none = "No ★: no method has an average gap to Retrain"
    assert tables.star(rows([last("before", 90, 99, 80, 60), last("not", 90, 40, 80, 50)], "last")) == none
    unmeasured = [last("retrain", 90, 40, 80, 50), last("not", 90, 40, 80, "not measured: off")]
    assert tables.star(rows(unmeasured, "last")) == none


def test_nobody_is_marked_the_best_alone_by_fewer_rows_than_tell() -> None:
    """FT is 1 point off in Forget, NoT 3, PGD 40; 40 rows tell 5.7 points of an average gap, 40,000 far less."""
    lines = [last("before", 90, 99, 80, 50), last("retrain", 90, 50, 80, 50)]
    lines += [last("ft", 90, 51, 80, 50), last("not", 90, 53, 80, 50)]
    lines += [last("pgd", 90, 90, 80, 50), last("mode", 90, 91, 80, 50)]
    found = rows(lines, "last")
    assert marked(found) == ["FT", "NoT"] and tables.star(found).endswith("within two standard errors of it")
    many = rows([one | {"rows": dict.fromkeys(ROWS, 40_000)} for one in lines], "last")
    assert marked(many) == ["FT"]


def test_where_more_than_half_would_be_marked_nobody_is_and_a_sentence_names_them() -> None:
    """FT, NoT and PGD are within the noise of 40 rows; MoDE is far off. Of four methods three are marked or none."""
    lines = [last("before", 90, 99, 80, 50), last("retrain", 90, 50, 80, 50)]
    lines += [last(method, 90, 50 + off, 80, 50) for method, off in {"ft": 1, "not": 3, "pgd": 2, "mode": 40}.items()]
    found = rows(lines, "last")
    said = (
        "FT, NoT and PGD share the smallest average gap, as far as these seeds and rows tell; they are more than half"
        " of the methods, so none is marked as best."
    )
    assert marked(found) == []
    assert tables.star(found) == "No ★: more than half of the methods share the smallest average gap"
    written = tables.markdown(found)
    assert f"- {said}" in written and "**" not in written and said in render({"name": "r"}, lines)
    clear = [one | {"request": "r2", "rows": dict.fromkeys(ROWS, 40_000)} for one in lines]
    both = rows([*lines, *clear], "last")
    assert f"r1: {said}" in tables.by_chance(both) and {*marked(both)} == {"r2"}
    assert tables.star(both).endswith("two standard errors of it; none where that is more than half of the methods")
    assert marked(rows(lines[:3], "last")) == ["FT"], "one method alone is no crowd"


def test_doing_nothing_that_is_as_near_as_can_be_told_is_named() -> None:
    lines = [last("before", 90, 55, 80, 50), last("retrain", 90, 50, 80, 50), last("ft", 90, 51, 80, 50)]
    said = "Chance may be all that puts a method nearer to Retrain than Before, which is what doing nothing leaves."
    assert said in tables.by_chance(rows(lines, "last"))
    far = [lines[0] | {"forget": 99.0}, *lines[1:]]
    assert said not in tables.by_chance(rows(far, "last"))


def test_methods_that_rows_do_not_tell_apart_share_the_first_place() -> None:
    off = {"ft": 51, "not": 53, "pgd": 52, "mode": 54}
    lines = [last("retrain", 90, 50, 80, 50), *(last(method, 90, forget, 80, 50) for method, forget in off.items())]
    found = rows(lines, "last")
    assert [row.method for row in found if tables.is_smallest(row, found)] == list(off)


@pytest.mark.parametrize(("rows_", "verdict"), [(3, "not measured"), (10, "not measured"), (12, "taken out")])
def test_fewer_than_six_rows_between_before_and_retrain_show_nothing(rows_: int, verdict: str) -> None:
    """Half of the rows: of three it is one or two, of ten five."""
    count = ROWS | {"forget": rows_}
    lines = [last("before", 90, 100, 80, 50, rows=count), last("retrain", 90, 50, 80, 50, rows=count)]
    found = {row.method: row for row in rows([*lines, last("not", 90, 50, 80, 50, rows=count)], "last")}
    assert tables.judged(found["not"], found["before"], found["retrain"]) == verdict
    said = sentence(REQUEST, list(found.values()))
    assert ("was taken out" in said) == (verdict == "taken out")
    if verdict == "not measured":
        assert said.endswith("for Retrain and the old model differ there by fewer than 6 rows, which chance may do.")


def test_rows_of_all_seeds_count_and_those_of_the_request_itself() -> None:
    """Two of ten rows in each of three seeds are six; where others left before, its own rows are meant."""
    lines = [
        last(method, 90, forget, 80, 50, seed=seed, rows=ROWS | {"forget": 10})
        for seed in range(3)
        for method, forget in (("before", 100), ("retrain", 80), ("not", 80))
    ]
    found = {row.method: row for row in rows(lines, "last")}
    assert tables.judged(found["not"], found["before"], found["retrain"]) == "taken out"
    later = [one | {"own": one["forget"], "rows": ROWS | {"forget": 500, "own": 9}} for one in lines]
    found = {row.method: row for row in rows(later, "last")}
    assert tables.judged(found["not"], found["before"], found["retrain"]) == "not measured"


def test_test_accuracy_that_a_few_test_rows_lost_is_no_shortcoming() -> None:
    for tested, short in ((50, 0), (60, 1)):  # ten points of them: five rows, six rows
        count = ROWS | {"test": tested}
        found = rows([last("retrain", 90, 50, 80, 50, rows=count), last("not", 90, 50, 70, 50, rows=count)], "last")
        assert len(tables.shortcomings(found)) == short


def test_without_a_number_on_the_forgotten_data_nobody_says_that_retrain_hardly_differs() -> None:
    gone = "not measured: its owners have deleted it"
    lines = [last("before", 90, gone, 80, gone), last("retrain", 90, gone, 80, gone), last("not", 90, gone, 80, gone)]
    assert "hardly differs" not in sentence(REQUEST, rows(lines, "last"))


@pytest.mark.parametrize(
    ("forget", "verdict"), [((92, 92, 90), "taken out"), ((100, 90, 88), "not measured"), ((100, 100, 98), "partly")]
)
def test_seeds_on_both_sides_of_the_middle_show_nothing(forget: tuple[float, ...], verdict: str) -> None:
    """Before 100, Retrain 90, the middle 95: of the second method the mean is 92.7, and one seed forgot nothing."""
    own = zip(range(3), forget, strict=True)
    lines = [last("before", 90, 100, 80, 50, seed=seed) for seed in range(3)]
    lines += [last("retrain", 90, 90, 80, 50, seed=seed) for seed in range(3)]
    found = {row.method: row for row in rows([*lines, *(last("not", 90, f, 80, 50, seed=s) for s, f in own)], "last")}
    assert tables.judged(found["not"], found["before"], found["retrain"]) == verdict
    assert len(tables.shortcomings(list(found.values()))) == (verdict == "partly")
    if verdict == "not measured":
        assert "for seeds and rows leave open on which side of the middle" in sentence(REQUEST, list(found.values()))


@pytest.mark.parametrize(("forget", "verdict"), [(70, "taken out"), (75, "not measured"), (85, "partly")])
def test_a_few_rows_do_not_decide_on_which_side_of_the_middle_a_model_stands(forget: float, verdict: str) -> None:
    """Twenty rows: Before reads all of them, Retrain ten; 15 are five from both, 14 six from Before, 17 seven off."""
    count = ROWS | {"forget": 20}
    lines = [last("before", 90, 100, 80, 50, rows=count), last("retrain", 90, 50, 80, 50, rows=count)]
    found = {row.method: row for row in rows([*lines, last("not", 90, forget, 80, 50, rows=count)], "last")}
    assert tables.judged(found["not"], found["before"], found["retrain"]) == verdict


def test_samples_that_are_a_share_are_named_without_a_comma_before_the_colon() -> None:
    asked = {"id": "r1", "kind": "instance", "fraction": 0.2, "forgotten_rows": 60}
    said = sentence(asked, rows([last("not", 90, 40, 80, 50)], "last"))
    assert said.startswith("60 samples, 20 % of the data of every client: after NoT")


def test_a_request_that_takes_out_other_rows_in_each_seed_says_so() -> None:
    lines = [last("not", 90, 40, 80, 50, seed=seed, rows=ROWS | {"forget": 46 + seed}) for seed in (0, 1)]
    run = {"name": "r", "requests": [{**REQUEST, "forgotten_rows": 46}], "seeds": [0, 1]}
    for shown, told in ((lines, "46 to 47 training samples, by seed"), (lines[:1], "46 training samples")):
        page = render(run, shown)
        assert f"The request covers {told}." in page and f"Client 3, {told}<" in page
