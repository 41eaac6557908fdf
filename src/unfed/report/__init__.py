"""Turn a run folder into tables, figures and pages.

    lines of trajectory.jsonl ─► rules.rows(lines, rule) ─► tables.markdown / latex / records
    run.info()                ├► figures.curves, cost_bars, gap_by_cost ─┐
                              ├► html.officer_part ──────────────────────┼► html.render ─► one self-contained page
                              └► sentences, tables, undo, sections ──────┘   compare.render ─► one for several runs

`folder.info` has the values that a run says of itself. Import `html` and `compare` from their own modules, so that a
table on the terminal does not wait for matplotlib. Nothing here trains, attacks or measures.
"""

from __future__ import annotations

from unfed.folder.info import RunInfo
from unfed.report.rules import RULES, Row, rows
from unfed.report.tables import latex, markdown

__all__ = ["RULES", "Row", "RunInfo", "latex", "markdown", "rows"]
