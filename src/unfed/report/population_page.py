"""The page of a population that was judged, without a run."""

from __future__ import annotations

from unfed.report.how_sure import Judged, view
from unfed.report.html import page


def population_page(judged: Judged) -> str:
    """The section "How sure are we?" on a page of its own."""
    subject = f"Request {judged['request']} · {judged['models']} models of each kind · {judged['hardware']}"
    return page("population.html.j2", title=str(judged["name"]), subject=subject, r={"sure": view(judged, "sure")})
