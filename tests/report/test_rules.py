"""The three rules on trajectories small enough to do by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest

from unfed.errors import UnfedError
from unfed.folder.job_notes import JobNotes
from unfed.methods import State
from unfed.report import tables
from unfed.report.rules import RULES, Row, rows, trajectories
from unfed.requests.options import Until
from unfed.runs.job import Ending


def line(method: str, t: int, metrics: tuple[float | str, ...] = (90, 50, 80, 50), **more: Any) -> Any:
    """One evaluated round; metrics are retain, forget, test, mia. Every round costs 100 bytes and 7 FLOPs."""
    base = dict(zip(("retain", "forget", "test", "mia"), metrics, strict=True))
    cost: dict[str, float] = {"comm_bytes": 100 * t, "wire_bytes": 110 * t, "flops": 7 * t, "stored_server_bytes": 0}
    cost |= {"seconds": float(t)}
    state = {"seed": 0, "request": "r1", "method": method, "round": t, "done": False, "model": True}
    return {**state, **base, "validation": 70.0, "validation_before": 90.0, "backdoor": 5.0, **cost, **more}


def only(found: list[Row], method: str) -> Row:
    (row,) = [row for row in found if row.method == method]
    return row


RETRAIN = [line("retrain", 1, (50, 50, 50, 50)), line("retrain", 4, (90, 40, 80, 50), done=True)]
NOT = [
    line("not", 0, (90, 40, 80, 50), validation=10.0),  # a perfect gap, but nothing is a result at round 0
    line("not", 1, (80, 30, 70, 50), validation=80.0),  # gaps 10, 10, 10, 0: 7.5
    line("not", 2, (89, 42, 78, 51), validation=89.4),  # gaps 1, 2, 2, 1: 1.5
    line("not", 3, (92, 46, 82, 52), validation=89.5),  # gaps 2, 6, 2, 2: 3
    line("not", 4, (94, 48, 82, 52), validation=91.0, done=True),  # gaps 4, 8, 2, 2: 4
]


def test_best_gap_takes_the_smallest_average_gap_and_the_cost_up_to_it() -> None:
    row = only(rows(RETRAIN + NOT, "best-gap"), "not")
    assert row.rounds == (2,)
    assert row.average_gap.mean == 1.5
    assert [row.gaps[name].mean for name in ("retain", "forget", "test", "mia")] == [1, 2, 2, 1]
    assert row.costs["comm_bytes"].mean == 200 and row.costs["flops"].mean == 14
    assert row.average_gap.std is None and row.finished and not row.verdict


def test_best_gap_prefers_the_earlier_of_two_equals() -> None:
    twice = [line("ft", 1, (91, 40, 80, 50)), line("ft", 2, (91, 40, 80, 50), done=True)]
    assert only(rows(RETRAIN + twice), "ft").rounds == (1,)


def test_retrain_stands_at_its_last_round_under_every_rule() -> None:
    for rule in RULES:
        row = only(rows(RETRAIN + NOT, rule), "retrain")
        assert row.rounds == (4,) and row.metrics["retain"].mean == 90


def test_recovered_takes_the_first_round_within_half_a_point() -> None:
    row = only(rows(RETRAIN + NOT, "recovered"), "not")
    assert row.rounds == (3,)  # 89.5 is within 0.5 of 90.0; 89.4 is not
    assert row.average_gap.mean == 3
    assert only(rows(RETRAIN + NOT, "recovered", recovered_within=0.6), "not").rounds == (2,)


@pytest.mark.parametrize(("now", "met"), [(90.1, True), (90.09, False)])
def test_a_job_stops_where_the_rule_says_recovered_whatever_the_binary_fractions(now: float, met: bool) -> None:
    assert 90.2 - 0.1 > 90.1, "in binary fractions"
    found = only(
        rows([line("not", 1, validation=now, validation_before=90.2)], "recovered", recovered_within=0.1), "not"
    )
    assert (not found.verdict) == met
    missing = Ending(Until.of("recovered"), 9, within=0.1).missing(
        State({}, round=1), cast(Any, {"validation": now}), 90.2
    )
    assert (missing == []) == met


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_method_that_ends_by_itself_has_recovered_only_if_it_has(rounds: int) -> None:
    """FedEraser after its replay, SSD at once: `--until recovered` had taken whatever they left."""
    ending, state = Ending(Until.of("recovered"), 9, within=1.0), State({}, round=rounds, done=True)
    for value, outcome in ((90.0, "done"), (80.0, "not recovered")):
        notes, seen = JobNotes(best=value), cast(Any, {"validation": value})
        notes.missing = ending.missing(state, seen, 90.5)
        assert ending.outcome(state, notes, seen) == outcome
    said = str(ending.missed("x", state, notes, "not recovered", 90.5))
    assert said.endswith("its method has ended and takes no more rounds; --until N leaves the model to the gate.")
    assert Ending(Until.of("3"), 3).outcome(state, JobNotes()) == "done"


def test_recovered_needs_no_retrain() -> None:
    row = only(rows(NOT, "recovered"), "not")
    assert row.rounds == (3,)
    assert row.average_gap.mean == "not measured: no Retrain of this request"


def test_never_recovered_says_how_close_it_came_and_still_counts_its_cost() -> None:
    row = only(rows(RETRAIN + NOT, "recovered", recovered_within=-5), "not")
    assert row.verdict == "not recovered within 4 rounds (best 91.0 at round 4)"
    assert row.metrics["retain"].mean == row.verdict == row.average_gap.mean
    assert row.costs["comm_bytes"].mean == 400 and row.rounds == (4,)


def test_an_unfinished_run_has_not_recovered_yet() -> None:
    row = only(rows(NOT[:3], "recovered"), "not")
    assert row.verdict == "not recovered yet after 2 rounds (best 89.4 at round 2)"
    assert not row.finished


def test_rounds_without_a_model_do_not_count() -> None:
    calibrating = [
        line("federaser", 1, (90, 40, 80, 50), validation=95.0, model=False),
        line("federaser", 2, (70, 40, 80, 50), validation=95.0, done=True),
    ]
    for rule in RULES:
        assert only(rows(RETRAIN + calibrating, rule), "federaser").rounds == (2,)
    for rule in ("best-gap", "last"):
        verdict = only(rows(RETRAIN + calibrating[:1], rule), "federaser").verdict
        assert verdict == "not measured: no usable model after 1 rounds"


def test_a_one_shot_method_is_its_round_zero() -> None:
    ssd = [line("ssd", 0, (88, 40, 80, 50), validation=89.9, done=True)]
    for rule in RULES:
        row = only(rows(RETRAIN + ssd, rule), "ssd")
        assert row.rounds == (0,) and row.average_gap.mean == 0.5


def test_last_takes_the_last_round() -> None:
    row = only(rows(RETRAIN + NOT, "last"), "not")
    assert row.rounds == (4,) and row.average_gap.mean == 4


def test_without_retrain_best_gap_shows_the_last_round_and_says_so() -> None:
    row = only(rows(NOT), "not")
    assert row.rounds == (4,)
    assert "no Retrain" in row.note
    assert row.gaps["forget"].mean == "not measured: no Retrain of this request"


def test_an_unmeasured_metric_is_carried_into_its_gap_and_the_average() -> None:
    missing = "not measured: only 3 forget samples"
    lines = RETRAIN + [line("not", t, (89, 42, 78, missing), done=t == 2) for t in (1, 2)]
    row = only(rows(lines), "not")
    assert row.metrics["mia"].mean == row.gaps["mia"].mean == row.average_gap.mean == missing
    assert row.gaps["retain"].mean == 1 and row.rounds == (2,)
    assert "no round has an average gap" in row.note


def test_recovered_carries_an_unmeasured_validation() -> None:
    missing = "not measured: no validation rows are left"
    row = only(rows([line("not", 1, validation=missing, done=True)], "recovered"), "not")
    assert row.verdict == missing


def test_gaps_are_taken_between_seed_means_with_the_spread_of_the_per_seed_gaps() -> None:
    """Retain 88 and 92 against 90 and 90: the means agree (gap 0), yet each seed is 2 away (spread of 2, 2 is 0)."""
    lines = []
    for seed, retain in ((0, 88.0), (1, 92.0)):
        lines.append(line("retrain", 3, (90, 40, 80, 50), seed=seed, done=True))
        lines.append(line("not", 2, (retain, 40 + 4 * seed, 80, 50), seed=seed, done=True))
    row = only(rows(lines), "not")
    assert row.seeds == (0, 1) and row.metrics["retain"].mean == 90
    assert row.metrics["retain"].std == pytest.approx(8**0.5)
    assert row.gaps["retain"].mean == 0 and row.gaps["retain"].std == 0
    assert row.gaps["forget"].mean == 2 and row.gaps["forget"].std == pytest.approx(8**0.5)
    assert row.average_gap.mean == 0.5  # (0 + 2 + 0 + 0) / 4
    assert row.average_gap.std == pytest.approx(0.5**0.5)  # of 0.5 and 1.5
    assert row.seed_gap is not None and row.seed_gap.mean == 1.0  # where nothing cancels


def test_each_seed_is_reported_at_its_own_round() -> None:
    second = [dict(item, seed=1) for item in RETRAIN + NOT if not (item["method"] == "not" and item["round"] == 2)]
    row = only(rows(RETRAIN + NOT + second), "not")
    assert row.rounds == (2, 3) and row.costs["comm_bytes"].mean == 250


def test_a_seed_that_never_recovered_is_not_averaged_away() -> None:
    slow = [dict(item, seed=1, validation=60.0) for item in NOT]
    row = only(rows(NOT + slow, "recovered"), "not")
    assert row.verdict == "not recovered within 4 rounds (best 60.0 at round 1) in 1 of 2 seeds"
    both: list[Any] = [dict(item, seed=2, validation=61.0) for item in NOT] + slow
    verdict = only(rows(both, "recovered"), "not").verdict
    assert verdict == "not recovered within 4 rounds (best 61.0 at round 1) in 2 of 2 seeds"


def test_seeds_without_retrain_do_not_enter_the_gap() -> None:
    second = [dict(item, seed=1, retain=0.0) for item in NOT]
    assert only(rows(RETRAIN + NOT + second, "last"), "not").gaps["retain"].mean == 4


def test_before_comes_first_then_retrain_and_training_lines_stay_out() -> None:
    train: Any = dict(line("train", 60), request=None)
    before: Any = line("before", 0, (97, 99, 98, 70), done=True)
    found = rows([train, *NOT, before, *RETRAIN], "recovered")
    assert [row.method for row in found] == ["before", "retrain", "not"]
    assert found[0].metrics["forget"].mean == 99 and found[0].costs["flops"].mean == 0


def test_requests_have_their_own_retrain() -> None:
    other = [dict(item, request="r2") for item in NOT]
    found = rows(RETRAIN + NOT + other)
    assert [row.average_gap.mean for row in found if row.method == "not"] == [
        1.5,
        "not measured: no Retrain of this request",
    ]


def test_recovered_says_when_retrain_itself_recovered() -> None:
    late = [line("retrain", t, validation=70.0 + 10 * t, done=t == 3) for t in (1, 2, 3)]
    assert only(rows(late, "recovered"), "retrain").note == "last round; itself recovered at round 2"


def test_a_round_written_twice_counts_as_written_last() -> None:
    again = line("not", 4, (10, 10, 10, 10), done=True)
    assert trajectories([*NOT, again])["r1"]["not"][0][-1]["retain"] == 10


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(UnfedError, match="Did you mean 'best-gap'"):
        rows(NOT, "bestgap")


def test_the_order_in_which_lines_were_written_does_not_matter() -> None:
    for rule in RULES:
        assert rows(NOT[::-1] + RETRAIN[::-1], rule) == rows(RETRAIN + NOT, rule)


def test_nothing_evaluated_gives_no_rows() -> None:
    assert rows([]) == [] and rows([cast(Any, {**line("train", 1), "request": None})]) == []


def test_gaps_that_cancel_between_seeds_are_told_seed_by_seed() -> None:
    """NoT is 2 above Retrain in one seed and 2 below in the other, FT 1 above in both: the column puts NoT first."""
    lines = []
    for seed, off in ((0, 2.0), (1, -2.0)):
        for method, apart in (("before", 9.0), ("retrain", 0.0), ("not", off), ("ft", 1.0)):
            lines.append(line(method, 1, (80 + apart,) * 4, seed=seed, done=True))
    found = rows(lines, "last")
    assert only(found, "not").average_gap.mean == 0 and only(found, "ft").average_gap.mean == 1
    told = tables.seed_by_seed(found)
    assert told.endswith("The mean of the seeds' own average gaps: Before 9.00, NoT 2.00, FT 1.00.")
    assert told in tables.markdown(found)
    same = [one for one in found if one.method != "not"]
    assert tables.seed_by_seed(same) == "", "where nothing cancels there is nothing to tell"
    in_csv = {row["method"]: row["average_gap_seed_by_seed"] for row in tables.records(found)}
    assert in_csv == {"before": 9.0, "retrain": 0.0, "not": 2.0, "ft": 1.0}
