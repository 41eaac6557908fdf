"""How the demo's story ends: what NoT did can be undone, and what lasts."""

from __future__ import annotations

from typing import Any

from unfed.cli.display import percent
from unfed.report.undo_section import ABOVE
from unfed.runs.probe import first_look
from unfed.runs.run import Run
from unfed.values import is_measured


def ending(run: Run) -> list[str]:
    """What comes of NoT's model, and of Retrain's, when NoT's layers are negated back, in sentences.

    The folder keeps it, so that the report can show it.
    """
    found = first_look(run, "not")
    if found is None:
        return []
    turned, control = (found["measured"][who]["flip"] for who in ("unlearned", "retrain"))
    return told(turned, control, run.command("probe"))


def told(turned: dict[str, Any], control: dict[str, Any], probe: str) -> list[str]:
    """Both in sentences; nothing where there is no way back."""
    if not (is_measured(turned.get("backdoor")) and is_measured(control.get("backdoor"))):
        return []
    more = turned["backdoor"] > control["backdoor"] + ABOVE
    first = "It can be undone" if more else "Turned back it shows little more than Retrain"
    return [
        f"{first}: with its first layer negated once more, without data or training, NoT's model fires on"
        f" {percent(turned['backdoor'])} and is right on {percent(turned['forget'])} of the forgotten data (Retrain's,"
        f" treated alike: {percent(control['backdoor'])} and {percent(control['forget'])}).",
        f"What lasts is Retrain, at the price of starting over; Sealed has no inverse to apply. `{probe}` tries other"
        " ways to undo every model of this run.",
    ]
