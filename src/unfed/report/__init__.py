"""From a run folder to something a person can read: rules choose rounds, tables and figures show them.

    lines of trajectory.jsonl ─► rules.rows(lines, rule) ─► tables.markdown / latex / plain
                              └► figures.curves, cost_bars ─► html.render(run, lines) ─► one self-contained page

`html.render` is imported from its own module, so that a table on the console does not wait for matplotlib.
Nothing here trains, attacks or measures: whatever is shown was written by the run.
"""

from __future__ import annotations

from unfed.report.rules import RULES, Row, rows
from unfed.report.tables import latex, markdown, plain

__all__ = ["RULES", "Row", "latex", "markdown", "plain", "rows"]
