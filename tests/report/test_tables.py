"""Tables show every number once, mark the best gap, and say why a number is missing."""

from __future__ import annotations

from typing import Any

import pytest

from pages import plain
from unfed.errors import UnfedError
from unfed.report.rules import Row, rows
from unfed.report.tables import latex, markdown, star
from unfed.report.wording import bytes_text, flops_text, seconds_text

METRICS = ("retain", "forget", "test", "mia", "backdoor", "validation", "validation_before")


def line(method: str, t: int, *metrics: float | str, **more: Any) -> Any:
    state = {"seed": 0, "request": "r1", "method": method, "round": t, "done": True, "model": True}
    values = dict(zip(METRICS, metrics, strict=False))
    return {**state, **values, "comm_bytes": 3_550_000 * t, "flops": 1.7e9 * t, **more}


def one_line(line: Any) -> list[Any]:
    """A trajectory of a single line."""
    return [line]


LINES = [
    line("before", 0, 98.2, 99.1, 98.1, 61.0, 93.1, 97, 97),
    line("retrain", 20, 97.5, 24.0, 97.4, 51.0, 3.9, 97, 97),
    line("ft", 2, 98.5, 97.0, 98.0, 60.0, 88.0, 97, 97),
    line("not", 2, 97.1, 23.5, 97.2, 52.3, 4.2, 97, 97),
]


def test_a_row_by_hand() -> None:
    header, body = plain(rows(LINES))
    assert header == [
        "Method", "Retain (Δ)", "Forget (Δ)", "Test (Δ)", "MIA (Δ)", "Avg. gap", "Backdoor", "Bytes", "FLOPs", "Rounds",
    ]  # fmt: skip
    # gaps 0.4, 0.5, 0.2, 1.3: 0.6
    assert body[3] == [
        "NoT", "97.10 (0.40)", "23.50 (0.50)", "97.20 (0.20)", "52.3 (1.3)", "0.60 ★", "4.20",
        "7.1 MB", "3.4 GFLOP", "2",
    ]  # fmt: skip
    assert body[1][:6] == ["Retrain", "97.50", "24.00", "97.40", "51.0", "reference"]
    assert body[0][0] == "Before" and body[0][-1] == "\u2014"


def test_a_row_whose_reading_was_fitted_says_so_in_every_form() -> None:
    found = rows([*LINES, line("mode", 2, 97.1, 23.5, 97.2, 52.3, 4.2, 97, 97)])
    assert [cells[0] for cells in plain(found)[1]] == ["Before", "Retrain", "FT", "NoT", "MoDE (fitted)"]
    assert "MoDE (fitted) &" in latex(found)
    written = markdown(found)
    assert "| MoDE (fitted) |" in written and "not that the paper's number is reproduced" in written
    assert "fitted" not in markdown(rows(LINES))


def test_where_forget_counts_those_who_left_before_the_rows_of_the_request_itself_stand_below() -> None:
    second: list[Any] = [{**one, "own": 36.6667 if one["method"] == "not" else 50.0} for one in LINES[2:]]
    assert "NoT: on what this request takes out 36.67 %; Forget counts what left before it too." in markdown(
        rows(second)
    )
    assert "takes out" not in markdown(rows(LINES))


def test_only_the_best_method_is_marked_never_before_or_retrain() -> None:
    _, body = plain(rows(LINES))
    assert [cells[0] for cells in body if "★" in cells[5]] == ["NoT"]
    assert markdown(rows(LINES)).count("**") == 2
    assert latex(rows(LINES)).count(r"\textbf") == 1


def test_nobody_is_marked_who_is_no_nearer_to_retrain_than_doing_nothing_and_it_is_said_why() -> None:
    near = [{**LINES[3], "method": "before"}, *LINES[1:]]  # θ* has the very numbers of the best method
    found = rows(near)
    assert not any("★" in cell for cells in plain(found)[1] for cell in cells)
    assert star(found) == "No ★: no method is nearer to Retrain than Before"
    why = "No method is nearer to Retrain than Before, which is what doing nothing leaves; none is marked as best."
    assert why in markdown(found) and "**" not in markdown(found) and r"\textbf" not in latex(found)
    assert "No method" not in markdown(rows(LINES))
    nearer: Any = {**LINES[3], "method": "before", "mia": 52.31}  # by a hair: 0.6025 is shown as 0.60
    assert "★" not in str(plain(rows([nearer, *LINES[1:]]))[1])


def test_of_several_requests_each_has_its_own_doing_nothing() -> None:
    near: list[Any] = [{**LINES[3], "method": "before"}, *LINES[1:]]
    both = rows(LINES + [dict(item, request="r2") for item in near])
    assert [(cells[0], cells[1]) for cells in plain(both)[1] if "★" in cells[6]] == [("r1", "NoT")]
    assert star(both) == "★ smallest average gap to Retrain; none where no method is nearer than Before"
    assert "r2: No method is nearer to Retrain than Before" in markdown(both)


def test_the_backdoor_column_appears_only_when_measured() -> None:
    without: list[Any] = [dict(item, backdoor="not measured: no backdoor in this run") for item in LINES]
    assert "Backdoor" not in plain(rows(without))[0]
    some = [dict(LINES[1], backdoor="not measured: no stamped images"), *LINES[2:]]
    assert plain(rows(some))[1][0][6] == "not measured: no stamped images"


def test_a_missing_backdoor_does_not_run_into_the_costs_that_before_has_none_of() -> None:
    both: list[Any] = [dict(one, request="r2", backdoor="not measured: no client was poisoned") for one in LINES]
    before = next(one for one in latex(rows(LINES + both)).splitlines() if one.startswith("r2 & Before"))
    assert before.endswith(r"not measured: no client was poisoned & --- & --- & --- \\")


def test_the_rule_is_always_named() -> None:
    for rule in ("best-gap", "recovered", "last"):
        assert rule in markdown(rows(LINES, rule)).splitlines()[0]
        assert rule in latex(rows(LINES, rule)).splitlines()[0]


def test_not_measured_is_shown_never_blank() -> None:
    missing = "not measured: only 3 forget samples; the attack needs at least 10"
    found = rows([*LINES[:3], line("not", 2, 97.1, 23.5, 97.2, missing, 4.2, 97, 97)])
    cells = plain(found)[1][3]
    assert cells[4] == missing and cells[5] == missing
    assert missing in markdown(found) and missing in latex(found)


def test_without_retrain_the_gap_says_so() -> None:
    cells = plain(rows([LINES[3]]))[1][0]
    assert cells[1] == "97.10 (Δ not measured)" and cells[5] == "not measured: no Retrain of this request"


def test_missing_costs_say_so() -> None:
    cells = plain(rows(one_line({**LINES[3], "flops": "not measured: the model is not traceable"})))[1][0]
    assert cells[8] == "not measured: the model is not traceable"


def test_a_verdict_takes_the_place_of_the_metrics() -> None:
    found = rows([*LINES[:3], line("not", 2, 97.1, 23.5, 97.2, 52.3, 4.2, 60, 97)], "recovered")
    cells = plain(found)[1][3]
    assert cells[1] == "not recovered within 2 rounds (best 60.0 at round 2)" and cells[2] == "\u2014"
    assert r"\multicolumn{6}{l}{not recovered within 2 rounds (best 60.0 at round 2)} & 7.1 MB" in latex(found)


def test_seeds_show_their_spread_and_their_rounds() -> None:
    second = [dict(item, seed=1, round=item["round"] + 1, retain=float(item["retain"]) + 1) for item in LINES]
    cells = plain(rows(LINES + second))[1][3]
    assert cells[1] == "97.60 ± 0.71 (0.40)" and cells[5] == "0.60 ± 0.00 ★" and cells[-1] == "2–3"


def test_several_requests_are_told_apart() -> None:
    both = rows(LINES + [dict(item, request="r|2") for item in LINES])
    header, body = plain(both)
    assert header[0] == "Request" and {cells[0] for cells in body} == {"r1", "r|2"}
    assert "r\\|2" in markdown(both) and "\n| --- | --- | ---: |" in markdown(both), "names stand at the left"
    assert latex(both).count(r"\midrule") == 2


def test_user_strings_are_escaped() -> None:
    odd = rows(one_line({**LINES[3], "method": "my_method & <b>|100%"}))
    assert r"my\_method \& \textless{}b\textgreater{}|100\%" in latex(odd)
    assert "my_method & &lt;b>\\|100%" in markdown(odd)


def test_every_line_of_a_markdown_table_has_the_same_width() -> None:
    lines = [item for item in markdown(rows(LINES)).splitlines() if item.startswith("|")]
    assert len({item.count("|") for item in lines}) == 1 and len(lines) == 2 + len(LINES)


def test_unfinished_methods_are_noted() -> None:
    assert "- NoT: not finished; what there is up to round 2." in markdown(rows(one_line({**LINES[3], "done": False})))


def test_one_table_shows_one_rule() -> None:
    mixed: list[Row] = rows(LINES, "last") + rows(LINES, "recovered")
    with pytest.raises(UnfedError, match="One table shows one rule"):
        plain(mixed)


def test_no_rows_make_an_empty_table() -> None:
    assert plain([])[1] == []


def test_units() -> None:
    assert [bytes_text(v) for v in (0, 999, 1000, 7_100_000, 999_999, 1.48e12)] == [
        "0 B", "999 B", "1.0 kB", "7.1 MB", "1.0 MB", "1.5 TB",
    ]  # fmt: skip
    assert flops_text(3.4e9) == "3.4 GFLOP" and flops_text(9.88e21) == "9.9 ZFLOP"
    assert [seconds_text(v) for v in (3.21, 245, 7380)] == ["3.2 s", "4 min 5 s", "2 h 3 min"]


def test_a_method_of_one_s_own_goes_by_its_last_part() -> None:
    from unfed.report.tables import name_of

    assert [name_of(m) for m in ("not", "my.package:Shrink", "methods/shrink.py", "plain")] == [
        "NoT", "Shrink", "shrink", "plain",
    ]  # fmt: skip


def over_seeds(method: str, *gaps: float) -> list[Any]:
    """A method whose four metrics are each this far above Retrain's, seed by seed."""
    return [
        {**LINES[1], "method": method, "seed": seed, **{m: 80.0 + gap for m in ("retain", "forget", "test", "mia")}}
        for seed, gap in enumerate(gaps)
    ]


def test_nobody_is_marked_the_best_alone_within_the_spread_of_seeds() -> None:
    """1.0 ± 0.1 leads 1.2 ± 0.1 by less than two standard deviations of the difference, 0.28, and 2.0 ± 0.1 by more."""
    found = rows(
        [
            *over_seeds("retrain", 0, 0, 0),
            *over_seeds("ft", 0.9, 1.0, 1.1),
            *over_seeds("not", 1.1, 1.2, 1.3),
            *over_seeds("mode", 1.9, 2.0, 2.1),
            *over_seeds("pgd", 2.9, 3.0, 3.1),
        ]
    )
    assert [cells[0] for cells in plain(found)[1] if "★" in cells[5]] == ["FT", "NoT"]
    assert star(found) == "★ smallest average gap to Retrain, and what is within two standard deviations of it"
    assert star(rows(LINES)) == "★ smallest average gap to Retrain"
