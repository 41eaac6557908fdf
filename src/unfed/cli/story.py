"""What a run with a planted backdoor has to tell, in a few sentences."""

from __future__ import annotations

from unfed.cli.display import percent
from unfed.report.tables import name_of
from unfed.runs.run import Run
from unfed.values import Value, is_measured


def story(run: Run) -> list[str]:
    """What became of a planted backdoor, from the last line of each compared method; else nothing.

    A request that came later takes somebody else out, and the backdoor is not meant to go with it.
    """
    poison, compared = run.config.poison, {None, *run.config.request_ids()}
    last = {str(line["method"]): line for line in run.lines() if line["request"] in compared}
    before = last.get("before")
    if poison is None or before is None or not is_measured(before.get("backdoor")):
        return []
    who = f"client {poison.client}"
    told = [
        f"{who.capitalize()} planted a backdoor: before unlearning it fires on {percent(before['backdoor'])} of the"
        " stamped test images of other classes."
    ]
    for method, line in last.items():
        if method in ("before", "train"):
            continue
        told.append(f"{_after(name_of(method), line['round'], line['backdoor'])} forget {_plain(line['forget'])}.")
    if "retrain" in last:
        told.append(
            f"Retrain shows what unlearning should look like: there {who} never took part. All this is evidence about"
            " one model and one attack, not a guarantee."
        )
    return told


def _after(name: str, rounds: int, backdoor: Value) -> str:
    return f"{name + ':':<12} after {rounds:>3} rounds the backdoor fires on {percent(backdoor):>7};"


def _plain(value: Value) -> str:
    return percent(value) if is_measured(value) else str(value)
