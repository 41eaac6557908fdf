"""The Python API for everyday use: negate a model, read a run's results, write its report."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from unfed import storage
from unfed.errors import UnfedError, UnfedWarning, expect
from unfed.folder.carriers import enter, hand_out
from unfed.folder.folder import RunFolder
from unfed.model.calling import unwrapped
from unfed.model.layers import Choice, cancellations, choose, frozen, refuse_both_halves
from unfed.model.params import load_into, params_of
from unfed.model.perturb import negate as negated
from unfed.report import Row, rows
from unfed.runs.run import Run
from unfed.runs.status import info_of

if TYPE_CHECKING:
    from unfed.report.compare import Compared
    from unfed.report.drawing import Picture


def negate(
    model: nn.Module,
    layers: str | int | Sequence[str | int] = "first",
    *,
    include_bias: bool = False,
    dry_run: bool = False,
) -> tuple[Choice, ...]:
    """Negate layers of a model in place (Eq. 3 of the paper).

    This is the paper's PyTorch listing. Fine-tune on the retained data afterwards: negation alone leaves a broken
    model.

    Args:
        model: Your module.
        layers: `first`, a name, a glob, an index, or a list of these.
        include_bias: Also negate the bias of each chosen weight.
        dry_run: Change nothing; only say what would be negated.

    Returns:
        The chosen tensors, each with its name and why it was chosen.

    Raises:
        UnfedError: There is no such layer, or `model` is no module.

    Examples:
        >>> [choice.name for choice in unfed.negate(model)]
        ['0.weight']
    """
    model = unwrapped(_module(model))
    expect(layers, (str, int, Sequence), "A name or index of a layer, or a list of them,")
    chosen = choose(model, [layers] if isinstance(layers, str | int) else list(layers), include_bias)
    refuse_both_halves(chosen)
    for sentence in (*frozen(model, chosen), *cancellations(model, chosen)):
        warnings.warn(sentence, UnfedWarning, stacklevel=2)
    if not dry_run:
        before = params_of(model)
        after = negated(before, chosen)
        load_into(model, {choice.name: after[choice.name] for choice in chosen})
    return chosen


def _module(given: nn.Module) -> nn.Module:
    advice = " (load the state dict into its module first)" if isinstance(given, Mapping) else ""
    expect(given, nn.Module, f"A torch.nn.Module{advice}")
    return given


def _run(given: Run | str | Path) -> Run:
    """The run that is given, or the one in this folder."""
    return given if isinstance(given, Run) else Run.open(given)


def results(run: Run | str | Path, rule: str = "best-gap") -> list[Row]:
    """Read the results of a run: one row per request and method.

    Args:
        run: A run or its folder.
        rule: Which round counts: `best-gap`, `recovered` or `last`.

    Returns:
        The rows: the model before, Retrain, then the methods as they ran.

    Raises:
        UnfedError: There is no run, or no such rule.

    Examples:
        >>> [row.method for row in unfed.results(run, rule="last")]
        ['before', 'retrain', 'ft', 'not']
    """
    run = _run(run)
    return rows(run.lines(), rule, recovered_within=run.config.evaluation.recovered_within)


def write_report(run: Run | str | Path, path: str | Path | None = None, rule: str = "last") -> Path:
    """Write the HTML report of a run, finished or not.

    Args:
        run: A run or its folder.
        path: The file; default: `report.html` in the run folder.
        rule: Which table comes first: `last`, `recovered` or `best-gap`.

    Returns:
        The file that was written.

    Raises:
        UnfedError: There is no run, or the file cannot be written.

    Examples:
        >>> unfed.write_report(run).name
        'report.html'
    """
    from unfed.report.html import render  # matplotlib is slow to import, and only a report needs it

    run = _run(run)
    target = Path(path) if path is not None else run.folder.path / "report.html"
    page = render(info_of(run), run.lines(), rule=rule).encode()
    if path is None:
        storage.sweep_dead(run.folder.path.iterdir())
    hand_out(run.folder, "report", target, page)
    return target


def plot(run: Run | str | Path, what: str = "forget", rule: str = "last") -> Picture:
    """Draw one figure of a run. A notebook shows it.

    Args:
        run: A run or its folder.
        what: A measure by round (`forget`, `test`, `backdoor`, `mia`), a cost (`cost-flops`, `cost-comm_bytes`,
            `cost-seconds`), the gap by cost (`gap-by-flops`, `gap-by-comm_bytes`) or `training`. With several
            requests: `REQUEST-forget`.
        rule: Which round counts: `last`, `recovered` or `best-gap`.

    Returns:
        The picture: `.save("forget.pdf")` writes it, `.rows` are its numbers.

    Raises:
        UnfedError: There is no run, or no such figure.

    Examples:
        >>> picture = unfed.plot(run, "forget")
        >>> picture.save("forget.svg").name
        'forget.svg'
    """
    from unfed.report import figures  # matplotlib is slow to import

    opened = _run(run)
    return figures.one(figures.pictures(opened.info(), opened.lines(), rule), what)


def compared(folders: Sequence[str | Path]) -> list[Compared]:
    """Several runs, opened for a comparison; each is named by its folder."""
    from unfed.report.compare import Compared, names_of

    if len(folders) < 2:
        raise UnfedError(f"A comparison needs at least two runs, not {len(folders)}; `unfed report RUN` shows one.")
    paths = [Path(folder) for folder in folders]
    names = names_of(paths)
    runs = [Run.open(path) for path in paths]  # all of them first: a folder that is no run is found at once
    return [Compared(name, info_of(run), run.lines()) for name, run in zip(names, runs, strict=True)]


def compare(folders: Sequence[str | Path], path: str | Path = "compare.html", rule: str = "best-gap") -> Path:
    """Write one HTML report of several runs, finished or not."""
    from unfed.report.compare import render

    target = Path(path)
    page = render(compared(folders), rule=rule).encode()
    write_comparison(folders, target, page)
    return target


def write_comparison(folders: Sequence[str | Path], path: Path, data: bytes) -> None:
    """Write a comparison, and enter it in every run that is in it."""
    for folder in folders:
        enter(RunFolder(folder), "comparison", path, data)
    storage.deliver(path, data)
