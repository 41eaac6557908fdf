"""What `unlearn` gives back: the model, what it did before and after, and how to read that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from unfed import storage
from unfed.folder.info import RunInfo
from unfed.measures.forgotten import Forgetting
from unfed.measures.metrics import COLUMNS, GAP_METRICS, average_gap, reading
from unfed.measures.trajectory import Line
from unfed.report.sentences import fell
from unfed.report.wording import flops_text, seconds_text
from unfed.values import Value, is_measured, not_measured

NO_RETRAIN = not_measured("no Retrain")


@dataclass(frozen=True, eq=False)
class Result:
    """What `unfed.unlearn` returns: the new model, and measurements before and after.

    Print it for a table and the verdict.

    Examples:
        >>> result = unfed.unlearn(model, data=(x, y), forget=[0, 1, 2], method="ft", epochs=1)
        >>> result.gap
        'not measured: no Retrain'
        >>> page = result.report("report.html")
    """

    model: nn.Module
    """The unlearned model, a new module; the one that was handed in is as it was."""
    before: Line
    """Accuracy in percent on `retain`, `forget`, `test`; `mia`; mean losses: as numbers, or why there is none."""
    after: Line
    """The same for the unlearned model, with `flops` and `seconds`."""
    retrain: Line | None
    """The same for Retrain at its best epoch, where it was asked for."""
    title: str
    epochs: int
    lines: Sequence[Line]
    """Every evaluated epoch of every model, as in a run folder's trajectory."""
    info: RunInfo

    @property
    def gap(self) -> Value:
        """The average gap to Retrain over retain, forget, test and mia."""
        return NO_RETRAIN if self.retrain is None else average_gap(self.after, self.retrain)

    def report(self, path: str | Path | None = None) -> str:
        """Make the HTML report.

        Args:
            path: Where to write it too; None writes nothing.

        Returns:
            The report as text.

        Raises:
            UnfedError: The file cannot be written.
        """
        from unfed.report.html import render  # draws with matplotlib, which takes a second to import

        page = render(self.info, self.lines, rule="last")
        if path is not None:
            storage.deliver(Path(path), page.encode())
        return page

    @property
    def forgetting(self) -> Forgetting | None:
        """Whether the model forgot: `kind` is forgotten, remembers, nothing, unseen or undecided."""
        by_method = self.info.forgetting(str(self.after["request"]))
        return by_method.get(self.after["method"], {}).get(self.after["seed"])

    @property
    def verdict(self) -> str:
        """Whether the model forgot, in one or two sentences with the next step."""
        if (found := self.forgetting) is None:
            return "Retrain never saw these rows."
        other = "other layers=" if self.after["method"] == "not" else "more epochs="
        return found.sentence(f'Try {other}, or method="retrain".')

    @property
    def note(self) -> str:
        """A warning if the model lost much accuracy; else empty."""
        other = ', fewer layers=, or method="sealed"' if self.after["method"] == "not" else ", or fewer layers="
        return fell(self.before, self.after, f"more epochs=, another lr={other}")

    def __str__(self) -> str:
        width = max(len(self.title), 8)
        header = "".join(f"{COLUMNS[name].title:>9}" for name in GAP_METRICS)
        retrain = "  not run" if self.retrain is None else _cells(self.retrain)
        value = self.gap
        gap = f"{value:.2f}" if is_measured(value) else str(value).replace("not measured: ", "not measured, ", 1)
        epochs = "one shot" if self.epochs == 0 else f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        flops = reading(self.after, "flops")
        computed = flops_text(flops) if is_measured(flops) else f"FLOPs {flops}"
        cost = f"{epochs}, {computed}, {seconds_text(float(self.after['seconds']))}"
        return "\n".join(
            [
                f"{self.title:<{width}}{header}",
                f"{'before':<{width}}{_cells(self.before)}",
                f"{'after':<{width}}{_cells(self.after)}",
                f"{'Retrain':<{width}}{retrain}",
                f"gap: {gap} · {cost}",
                self.verdict,
                *([self.note] if self.note else []),
            ]
        )


def _cells(line: Line) -> str:
    """The four numbers; a reason is written once where the cells that lack a number begin."""
    text, said = "", ""
    for name in GAP_METRICS:
        value = reading(line, name)
        if is_measured(value):
            text += f"{value:9.{COLUMNS[name].decimals}f}"
        elif value != said:
            text, said = f"{text}  {value}", str(value)
    return text
