"""Where we differ from the paper: the tables that are made of what was tried."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import differences
from unfed.paper import record


def test_variants_that_learn_at_other_speeds_are_compared_at_the_same_retain() -> None:
    curve = [{"retain": 60.0, "test": 58.0}, {"retain": 75.0, "test": 70.0}, {"retain": 85.0, "test": 76.0}]
    assert differences.test_at(curve, 80.0) == pytest.approx(73.0)
    assert differences.test_at(curve, 90.0) is None


def test_the_record_becomes_a_table_and_what_was_not_measured_a_dash(tmp_path: Path) -> None:
    last = {"retain": 90.0, "forget": 81.0, "test": 80.0, "mia": "not measured: off"}
    row = {"variant": "no flip", "curve": [last], "retain_all_rows": 88.0, "retain_augmented": 89.5}
    (tmp_path / "record.jsonl").write_text(json.dumps(row) + "\n")
    assert "| no flip | 90.00 | 81.00 | 80.00 | – | 88.00 | 89.50 | – |" in differences.table(tmp_path / "record.jsonl")


def test_retain_over_all_rows_counts_the_fifth_that_nobody_trained_on() -> None:
    root = Path(differences.__file__).resolve().parent.parent
    (path,) = (root / "results").glob("cifar10-cnn-434b*.json")
    rows = {row.split(" | ")[0]: row.split(" | ")[1:] for row in differences.rows_table(path).splitlines()[2:]}
    assert len(rows) == 8
    ends = [columns for job, columns in record.read(path).jobs.items() if job.endswith("/retrain")]
    train, val = (sum(end[name][-1] for end in ends) / len(ends) for name in ("retain", "validation"))
    assert rows["| Retrain"][:2] == [f"{train:.2f}", f"{0.8 * train + 0.2 * val:.2f}"]


def test_the_table_is_put_into_the_page_once(tmp_path: Path) -> None:
    last = {"retain": 90.0, "forget": 81.0, "test": 80.0, "mia": 50.0}
    where = {"command": "python benchmarks/differences.py", "hardware": "GPU", "torch": "2", "date": "2026-11-16T03"}
    row = {"variant": "no flip", "curve": [last], "retain_all_rows": 88.0, "retain_augmented": 89.5, "rounds": 9}
    (tmp_path / "record.jsonl").write_text(json.dumps(row | where) + "\n")
    made = differences.section(tmp_path / "record.jsonl")
    page = differences.with_section("# Page\n\nFirst.\n", made)
    assert page.startswith("# Page\n\nFirst.\n\n## One change") and "records/record.jsonl" in page
    assert differences.with_section(page, made) == page
    assert differences.with_section(page + "\n## More\n\nLast.\n", made) == page + "\n## More\n\nLast.\n"
