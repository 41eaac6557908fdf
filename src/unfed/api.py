"""The short way in: negate a model in one line, read a run's results, write its report."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from unfed import storage
from unfed.errors import UnfedError, UnfedWarning, expect
from unfed.folder.carriers import enter, hand_out
from unfed.folder.folder import RunFolder
from unfed.model.calling import unwrapped
from unfed.model.functional import Template
from unfed.model.layers import Choice, cancellations, choose, frozen, refuse_both_halves
from unfed.model.networks import reset
from unfed.model.params import Params, load_into, params_of
from unfed.model.perturb import negate as negated
from unfed.model.tensor_table import WEIGHTS, table_of
from unfed.report import Row, RunInfo, rows
from unfed.runs.run import Run
from unfed.runs.status import info_of

if TYPE_CHECKING:
    from unfed.analysis.advice import Advice
    from unfed.report.compare import Compared
    from unfed.report.drawing import Picture


def negate(
    model: nn.Module,
    layers: str | int | Sequence[str | int] = "first",
    *,
    include_bias: bool = False,
    dry_run: bool = False,
) -> tuple[Choice, ...]:
    """Negate layers of a model in place (Eq. 3 of the paper) and say which tensors, and why.

    This is the paper's PyTorch listing, with names beside indices. Fine-tune on the retained data afterwards: negation
    alone leaves a broken model. With `dry_run` nothing changes.
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


def suggest(
    module: nn.Module,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    lr: float = 0.02,
    batch: int = 16,
    seed: int = 0,
) -> Advice:
    """Which layer to perturb and how, with reasons and doubts; the module is not changed.

    `data` are rows and labels that stay, at least 40: then every candidate is perturbed and given one round at this
    rate, which needs no Retrain. Without data it follows from the module's graph alone.
    """
    from unfed.analysis.advice import Prober, Sample, advise

    module = _with_numbers(unwrapped(_module(module)))
    fresh = _fresh_of(module)
    if data is None:
        return advise(module, fresh=fresh, seed=seed)
    if not (isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)):
        raise UnfedError("data must be a pair of tensors, rows and labels that stay; or leave it out.")
    params = params_of(module)
    some = next((t for t in params.values() if t.is_floating_point()), data[0])
    # Where the module lies, and in its type: data of a loader comes on the CPU, and numbers of NumPy are double.
    rows = data[0].to(some.device, some.dtype if data[0].is_floating_point() else data[0].dtype)
    labels = data[1].to(some.device, data[1].dtype if data[1].is_floating_point() else torch.int64)
    sample = Sample(rows, labels, lr, batch, seed)
    prober = Prober(Template(module, rows.shape[1:]), params, sample)
    return advise(module, example=rows[:2], prober=prober, fresh=fresh, seed=seed)


def _with_numbers(module: nn.Module) -> nn.Module:
    """The module, if its layers can be perturbed.

    Where all are frozen nothing is meant by it, and all may move.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise UnfedError("A scripted module cannot be copied and changed; give the module that it was made of.")
    tensors = list(module.parameters())
    if any(isinstance(tensor, UninitializedParameter) for tensor in tensors):
        raise UnfedError("Some layers are lazy and have no shape yet; run one batch through the module first.")
    if any(tensor.is_meta for tensor in tensors):
        raise UnfedError("The module lies on the meta device and holds no numbers; load its weights first.")
    if tensors and not any(tensor.requires_grad for tensor in tensors):
        module = copy.deepcopy(module)
        for tensor in module.parameters():
            tensor.requires_grad_(tensor.is_floating_point())
    return module


def _fresh_of(module: nn.Module) -> Callable[[int], Params] | None:
    """Draws the module's own initialisation, where all of its layers can be drawn anew."""
    weights = {tensor.name for tensor in table_of(module).tensors.values() if tensor.kind in WEIGHTS}

    def drawn(seed: int) -> Params:
        own = copy.deepcopy(module)
        return params_of(own) if not set(reset(own, seed)) & weights else {}

    return drawn if drawn(0) else None


def results(run: Run | str | Path, rule: str = "best-gap") -> list[Row]:
    """One row per request and method, as a reporting rule reads the trajectory.

    Rules are best-gap, recovered and last.
    """
    run = _run(run)
    return rows(run.lines(), rule, recovered_within=run.config.evaluation.recovered_within)


def write_report(run: Run | str | Path, path: str | Path | None = None, rule: str = "last") -> Path:
    """Write the HTML report of a run, finished or not; by default to `report.html` in its folder."""
    from unfed.report.html import render  # matplotlib is slow to import, and only a report needs it

    run = _run(run)
    target = Path(path) if path is not None else run.folder.path / "report.html"
    page = render(RunInfo.of(info_of(run)), run.lines(), rule=rule).encode()
    if path is None:
        storage.sweep_dead(run.folder.path.iterdir())
    hand_out(run.folder, "report", target, page)
    return target


def plot(run: Run | str | Path, what: str = "forget", rule: str = "last") -> Picture:
    """A picture of a run: a notebook shows it, `.save("forget.pdf")` writes it, `.rows` are its numbers.

    `what` is a measure by round (forget, test, backdoor, mia), a cost (cost-flops, cost-comm_bytes, cost-seconds),
    the gap against a cost (gap-by-flops, gap-by-comm_bytes) or training. Of several requests, say REQUEST-forget.
    """
    from unfed.report import figures  # matplotlib is slow to import

    opened = _run(run)
    return figures.one(figures.pictures(RunInfo.of(opened.info()), opened.lines(), rule), what)


def compared(folders: Sequence[str | Path]) -> list[Compared]:
    """Several runs, opened for a comparison; each is named by its folder."""
    from unfed.report.compare import Compared, names_of

    if len(folders) < 2:
        raise UnfedError(f"A comparison needs at least two runs, not {len(folders)}; `unfed report RUN` shows one.")
    paths = [Path(folder) for folder in folders]
    names = names_of(paths)
    runs = [Run.open(path) for path in paths]  # all of them first: a folder that is no run is found at once
    return [Compared(name, RunInfo.of(info_of(run)), run.lines()) for name, run in zip(names, runs, strict=True)]


def compare(folders: Sequence[str | Path], path: str | Path = "compare.html", rule: str = "best-gap") -> Path:
    """Write one HTML report of several runs, finished or not."""
    from unfed.report.compare import render

    target = Path(path)
    page = render(compared(folders), rule=rule).encode()
    enter_comparison(folders, target, page)
    storage.deliver(target, page)
    return target


def enter_comparison(folders: Sequence[str | Path], path: Path, data: bytes) -> None:
    """Enter a comparison in every run that is in it."""
    for folder in folders:
        enter(RunFolder(folder), "comparison", path, data)
