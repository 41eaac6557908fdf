"""From a run folder to something a person can read.

Rules choose rounds, tables and figures show them.

    lines of trajectory.jsonl ─► rules.rows(lines, rule) ─► tables.markdown / latex / plain
                              ├► figures.curves, cost_bars, gap_by_cost ─┐
    Run.info()                ├► officer.officer_view ───────────────────┼► html.render ─► one self-contained page
                              └► words.sentence, ranking.words ──────────┘   compare.render ─► one for several runs

`html` and `compare` are imported from their own modules, so that a table on the console does not wait for matplotlib.
Nothing here trains, attacks or measures: whatever is shown was written by the run.
"""

from __future__ import annotations

from unfed.report.rules import RULES, Row, rows
from unfed.report.tables import latex, markdown, plain

__all__ = ["RULES", "Row", "latex", "markdown", "plain", "rows"]
