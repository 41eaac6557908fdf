"""What a report says of a method that did poorly, by hand: half of the way, and five points of Test."""

from __future__ import annotations

from typing import Any, cast

import pytest

from test_rules import line
from unfed.report.rules import rows
from unfed.report.tables import judged, shortcomings

BEFORE = line("before", 0, (90, 90, 80, 60), backdoor="not measured: no client was poisoned")
RETRAIN = line("retrain", 4, (90, 40, 80, 50), backdoor="not measured: no client was poisoned", done=True)


def said(forget: float, test: float, **more: object) -> list[str]:
    own: Any = line("ft", 4, (90, forget, test, 50), done=True, **more)
    return shortcomings(rows([BEFORE, RETRAIN, own], "last"))


@pytest.mark.parametrize(("forget", "says"), [(65, ""), (66, "still right on 66.0 %"), (14, "went past forgetting")])
def test_more_than_half_of_the_way_still_to_go_is_told(forget: float, says: str) -> None:
    found = said(forget, 80, backdoor="not measured: no client was poisoned")
    assert len(found) == bool(says) and says in "".join(found)


def test_points_of_test_accuracy_that_are_lost_are_told() -> None:
    none = "not measured: no client was poisoned"
    assert said(40, 75, backdoor=none) == []
    (found,) = said(40, 74.9, backdoor=none)
    assert found == "FT costs 5.1 points of test accuracy against Retrain (74.9 instead of 80.0 %)."


def test_a_backdoor_is_asked_before_the_forgotten_rows() -> None:
    """It is gone, so that it does not matter that the model is still right on the rows."""
    before, retrain = (cast(Any, {**some, "backdoor": value}) for some, value in ((BEFORE, 90.0), (RETRAIN, 2.0)))
    for value, short in ((10.0, "taken out"), (60.0, "partly")):
        own = line("ft", 4, (90, 88, 80, 50), backdoor=value, done=True)
        found = {row.method: row for row in rows([before, retrain, own], "last")}
        assert judged(found["ft"], found["before"], found["retrain"]) == short
        assert judged(found["ft"], found["before"], None) == "not measured"
        assert judged(found["ft"], found["retrain"], found["retrain"]) == "not measured", "there is no way to go"
