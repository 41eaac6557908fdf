"""The commands over many models: `sweep`, `population`, `judge`, `bench`."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from unfed import plugins
from unfed.cli.console import echo_json, print_table, say, stderr, stdout
from unfed.cli.options import (
    AllowCode,
    ConfigArgument,
    Device,
    Json,
    Methods,
    MethodsOrAll,
    Quiet,
    Sets,
    chosen,
    how,
    out_option,
    output,
    plain,
    plain_file,
    read_config,
    read_with_methods,
    resumable,
    with_device,
)
from unfed.errors import UnfedError, counted

if TYPE_CHECKING:
    from unfed.config.config import Config
    from unfed.folder.study_results import Judged
    from unfed.measures.population.store import Accuracy, Population
    from unfed.report.scorecards import BenchResult
    from unfed.runs.run import Run
    from unfed.studies.grid import Said
    from unfed.studies.grid import Workers as Taken
    from unfed.studies.stress import HarmLeft
    from unfed.studies.sweep import Axis, Member

Jobs = Annotated[int | None, how("How many at once; default: one per core if each uses one thread.")]
Workers = Annotated[
    str | None, how("`ray`: one per GPU or core of the Ray cluster at RAY_ADDRESS, or of this machine.")
]
BESIDE = 3
"""So many methods stand beside each other in a terminal, and Retrain against Retrain beside them."""


# --- sweep ------------------------------------------------------------------------------------------------------------


def sweep(
    config: ConfigArgument,
    over: Annotated[
        list[str], how("A key and its values: `seed=0,1,2`. Repeatable; all combinations run.", "--over")
    ] = [],
    methods: Methods = None,
    jobs: Jobs = None,
    workers: Workers = None,
    sets: Sets = [],
    allow_code: AllowCode = False,
    rule: Annotated[str, output("The table's rule: best-gap, recovered or last.")] = "last",
    dry_run: Annotated[bool, output("Only say which runs there would be.", "--dry-run")] = False,
    out: Annotated[Path | None, out_option("Where the runs go; default runs/NAME-sweep.", file=False)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of some values.

    One page compares them. Runs that differ only in the seed share a line, mean ± standard deviation. If
    interrupted, give the same command again.
    """
    from unfed.report.rules import named
    from unfed.studies import sweep as sweeping

    named(rule)
    axes = [sweeping.Axis.of(text) for text in over]
    found = sweeping.variants(axes)
    given = [*sets, *_own(methods, axes)]

    def read(changes: Sequence[str]) -> "Config":
        return read_config(config, [*given, *changes])

    where = out or Path("runs", f"{read(found[0].changes).name}-sweep")
    if dry_run:
        for one in found:
            read(one.changes)
        typer.echo(json.dumps({one.name: list(one.changes) for one in found}, indent=None if as_json else 2))
        return
    members = sweeping.make(read, found, where)
    runs = sweeping.runs_of(members)
    if not (as_json or quiet) and len(runs) < len(members):
        say(f"{len(members)} combinations share {counted(len(runs), 'run')}: they differ in their methods alone.")
    with resumable(), _workers(jobs, workers) as taken:
        failed = _sweep(runs, taken, allow_code, as_json or quiet, where)
    page = _compare(sweeping.grouped(members), where / "sweep.html", rule, as_json or quiet)
    if as_json:
        made = [
            {"run": str(one.run.folder.path), "changes": list(one.variant.changes), "methods": list(one.place.labels)}
            for one in members
        ]
        echo_json({"page": page and str(page), "runs": made, "failed": failed})
    if failed:
        first, sentence = next(iter(failed.items()))
        raise UnfedError(f"{len(failed)} of {len(runs)} runs did not end; the first, {first}: {sentence}")


def _own(methods: str | None, axes: Sequence["Axis"]) -> list[str]:
    """`--methods` as a change of the config, for all combinations alike."""
    if methods is None:
        return []
    if any(axis.key == "methods.run" for axis in axes):
        raise UnfedError("--methods and --over methods.run both say which methods run; give one of them.")
    return [chosen(methods)]


@contextmanager
def _workers(jobs: int | None, workers: str | None) -> Iterator["Taken | None"]:
    """What works on the cells of a grid: processes of this machine, or a Ray cluster."""
    from unfed.studies.grid import on_ray

    if workers not in (None, "ray"):
        raise UnfedError(f"--workers takes ray, not {workers!r}; leave it out for processes of this machine.")
    with ExitStack() as stack:
        if workers:
            stack.enter_context(redirect_stdout(sys.stderr))  # Ray says on stdout that a worker died
        yield stack.enter_context(on_ray(jobs)) if workers else jobs


def _sweep(runs: Sequence["Run"], jobs: "Taken | None", allow_code: bool, silent: bool, where: Path) -> dict[str, str]:
    """Do what is not done, and name each run that ends; what failed, by folder."""
    from unfed.cli.display import clock_text
    from unfed.studies import grid
    from unfed.studies import sweep as sweeping

    at_once, failed, done = sweeping.at_once(runs, jobs), {}, 0
    elsewhere: set[str] = set()
    if not silent:
        say(f"{counted(len(runs), 'run')} in {where}, {at_once if isinstance(at_once, int) else 'on Ray'} at once.")
    for one in grid.work(sweeping.cells(runs, allow_code), at_once, where):
        done += 1
        if one.error:
            failed[one.cell.name] = one.error
        if one.found:
            elsewhere.add(one.cell.name)
        elif not silent:
            mark = "[red]✗[/red]" if one.error else "[green]✓[/green]"
            stdout.print(f"{mark} {escape(Path(one.cell.name).name)} in {clock_text(one.seconds)}")
    if not silent and done < len(runs):
        say(f"{len(runs) - done} of them were finished already.")
    # The other command may have ended what it was at while this one was busy.
    if elsewhere and (left := [cell for cell in sweeping.cells(runs) if cell.name in elsewhere]):
        _left_to_another(f"{len(left)} of the runs", where)
    return failed


def _left_to_another(what: str, where: Path) -> None:
    said = f"Another process is at {what} in {escape(str(where))}; give the same command again when it is done."
    stderr.print(said, soft_wrap=True)


def _compare(groups: dict[str, list["Member"]], page: Path, rule: str, silent: bool) -> Path | None:
    """One page of all runs that have something to show, and the table on the terminal."""
    from unfed.api import write_comparison
    from unfed.cli.display import print_results
    from unfed.report.compare import Compared, compared_rows, render, shared_words
    from unfed.report.tables import star
    from unfed.studies import sweep as sweeping

    shown = [Compared(name, *sweeping.merged(members)) for name, members in groups.items()]
    shown = [one for one in shown if one.lines]
    if len(shown) < 2:
        return None
    data = render(shown, rule=rule).encode()
    shared = sweeping.runs_of([one for members in groups.values() for one in members])
    write_comparison([run.folder.path for run in shared], page, data)
    if not silent:
        found = compared_rows(shown, rule)
        print_results(stdout, found, f"All runs (rule: {rule}). {star(found)}.", "Run", shared_words(shown))
        stdout.print(f"Report: [bold]{escape(str(page))}[/bold]")
    return page


# --- population -------------------------------------------------------------------------------------------------------


def population(
    config: ConfigArgument,
    models: Annotated[int | None, how("Models of each kind; default 64, with --cases 4. An attack needs 32.")] = None,
    methods: MethodsOrAll = None,
    tune: Annotated[str | None, how("Tune these methods on the first half: `not,ft`, or `all` that are there.")] = None,
    trials: Annotated[int, how("With --tune: how many for every method.")] = 20,
    trial_models: Annotated[int, how("With --tune: models in each trial.")] = 4,
    cases: Annotated[str | None, how("Harder forget sets instead: `backdoor,camouflage`, or `all`.")] = None,
    bound: Annotated[float, how("With --cases: above this harm, in percent, a method fails.")] = 10.0,
    sets: Sets = [],
    device: Device = None,
    jobs: Jobs = None,
    workers: Workers = None,
    allow_code: AllowCode = False,
    out: Annotated[
        Path | None, out_option("Where it goes; default runs/NAME-population, with --cases NAME-stress.", file=False)
    ] = None,
    as_json: Json = False,
    silent: Quiet = False,
) -> None:
    """Train many models of one config, to see how much numbers vary.

    It trains N models before, N Retrains and N of every method, each with its own seed. Given again, the command adds
    what is missing. `unfed judge` evaluates them.
    """
    from unfed.measures.population import store
    from unfed.studies.population import missing, populate

    if cases is not None and tune is not None:
        raise UnfedError("--cases makes populations of other requests, and --tune needs this one; give one of them.")
    count = models if models is not None else 64 if cases is None else 4
    read = read_with_methods(config, with_device(sets, device), methods, serving=cases is None)
    folder = out or Path("runs", f"{read.name}-{'population' if cases is None else 'stress'}")
    with resumable(), _workers(jobs, workers) as taken:
        with _bar(silent or as_json) as said:
            if cases is not None:
                harm = _stress(read, count, folder, cases, bound, said, taken)
            else:
                found = populate(read, count, folder, said, taken)
        if cases is not None:
            _show_harm(harm, count, bound, folder, as_json, silent)
            return
        if left := missing(found, read, count):
            _left_to_another(f"{left} of the models", folder)
        tuned = None if tune is None else _tune(read, found, tune, trials, trial_models, taken, as_json or silent)
    found = store.load(folder)
    rows = store.accuracies(found)
    if as_json:
        whole = {"population": str(folder), "models": count, "accuracy": [row.to_json() for row in rows]}
        echo_json(whole | ({} if tuned is None else {"tuned": tuned}))
    elif not silent:
        _show_accuracies(found, rows)


@contextmanager
def _bar(silent: bool) -> Iterator["Said"]:
    """What is called with each kind of model and its round, and shows it."""
    from rich.progress import TextColumn

    from unfed.cli.display import Live

    with Live(silent, TextColumn("round {task.completed:.0f}/{task.total:.0f}")) as live:
        yield lambda kind, round, rounds: live.show(kind, round, rounds, f"{kind}: {rounds} rounds of every seed")


def _show_accuracies(found: "Population", rows: list["Accuracy"]) -> None:
    about = found.about
    title = f"{about.name}, request {about.request}: {about.models} models of each kind, mean ± std over training seeds"
    cells = [(row.kind, *(f"{row.mean[group]:.1f} ± {row.std[group]:.1f}" for group in about.groups)) for row in rows]
    print_table(("accuracy in %", *about.groups), cells, about.groups, title)
    stdout.print(f"Population: [bold]{escape(str(found.folder))}[/bold]", soft_wrap=True)


def judge(
    population: Annotated[Path, typer.Argument(metavar="POPULATION", help="A folder of `unfed population`.")],
    run: Annotated[Path | None, plain("A run of the same config, whose report shows it too.")] = None,
    quick: Annotated[bool, plain("A fifth of the random draws: quicker, less exact.", "--quick")] = False,
    jobs: Annotated[int | None, plain("Methods at once; default: one per core.")] = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how sure a population is that a method forgets.

    Attacks learn from half of the models and judge the other half, beside Retrain against Retrain.
    """
    from unfed import records, storage
    from unfed.api import write_report
    from unfed.folder.study_results import Judged
    from unfed.measures.population import store
    from unfed.report.html import population_page
    from unfed.runs.run import Run
    from unfed.studies.judging import QUICK, judged, put_into

    opened = None if run is None else Run.open(run)
    found = store.load(population)
    if not (as_json or quiet):
        stderr.print(f"Judging {found.about.models} models of each kind …", soft_wrap=True)
    with _workers(jobs, workers) as taken:
        whole = judged(found, QUICK if quick else None, taken)
    found_out, report = records.read(Judged, whole, str(population)), population / "report.html"
    storage.write_bytes(report, population_page(found_out).encode())
    if opened is not None:
        put_into(opened, found, whole)
        report = write_report(opened)
    if as_json:
        echo_json(whole)
    elif not quiet:
        _show_judged(found_out)
        say(f"Report: {report}")


def _show_judged(whole: "Judged") -> None:
    from unfed.report.sections import COLUMNS, about_tuning, answer_sentences, grid

    (*methods, own), notes = grid(whole)
    say(*answer_sentences(whole))
    for first in range(0, len(methods), BESIDE):
        some = [*methods[first : first + BESIDE], own]
        titles = [title for title, _ in some]
        rows = [(column.title, *(cells[i] for _, cells in some)) for i, column in enumerate(COLUMNS)]
        print_table(["", *titles], rows, titles)
    say(*notes, *about_tuning(whole))


# --- cases and tuning -------------------------------------------------------------------------------------------------


def _stress(
    config: "Config", models: int, folder: Path, cases: str, bound: float, said: "Said", jobs: "Taken | None"
) -> list["HarmLeft"]:
    """Train what is missing of these cases, and see what is left behind."""
    from unfed.studies.stress import CASES, stress

    names = list(CASES) if cases == "all" else [name.strip() for name in cases.split(",") if name.strip()]
    return stress(config, models, folder, names, bound, said, jobs)


def _show_harm(cells: list["HarmLeft"], models: int, bound: float, folder: Path, as_json: bool, silent: bool) -> None:
    """Write down which methods fail, and show it."""
    from unfed import storage
    from unfed.studies.stress import CASES

    found = {"models": models, "bound": bound, "cells": [cell.to_json() for cell in cells]}
    storage.write_json(folder / "stress.json", found)
    if as_json:
        echo_json(found)
    if as_json or silent:
        return
    cases = list(dict.fromkeys(cell.case for cell in cells))
    title = (
        f"Harm left, in %: mean ± std over {models} training seeds. ✗ fails: more than {bound:g}."
        " In parentheses: accuracy on test rows."
    )
    say(title)  # as a table's own title it would be as narrow as the table
    by_place = {(cell.kind, cell.case): cell for cell in cells}
    kinds = dict.fromkeys(cell.kind for cell in cells)
    print_table(["", *cases], [(kind, *(_cell(by_place.get((kind, case))) for case in cases)) for kind in kinds], cases)
    for case in cases:
        failing = [cell.kind for cell in cells if cell.case == case and cell.fails and cell.kind != "before"]
        verdict = f"fail: {', '.join(failing)}" if failing else "no method fails"
        before = by_place["before", case]
        if not (failing or before.fails):
            verdict = f"nothing is shown, because the models before have no harm above the bound ({before.mean:.1f} %)"
        say(f"{case} ({CASES[case].title}): {verdict}.")


def _cell(cell: "HarmLeft | None") -> str:
    """A number with its mark; a method that serves no such request has none."""
    if cell is None:
        return "-"
    return f"{cell.mean:.1f} ± {cell.std:.1f}{' ✗' if cell.fails else ''} ({cell.test:.0f})"


def _tune(
    config: "Config", found: "Population", methods: str, trials: int, models: int, jobs: "Taken | None", silent: bool
) -> list[dict[str, Any]]:
    """Choose hyperparameters, and say of every trial what it showed."""
    from unfed import records
    from unfed.folder.study_results import TunedBy
    from unfed.measures.population.store import BEFORE, RETRAIN
    from unfed.report.sections import tuned_words
    from unfed.studies.judging import title_of
    from unfed.studies.tuning import TuningBudget, tune, tuned_label

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if names == ["all"]:
        aside = (BEFORE, RETRAIN, *found.about.tuned)
        names = [kind for kind in found.about.kinds if kind not in aside]
    if not names:
        raise UnfedError(f"{found.folder} has no method's models to tune; name a method, for example not.")

    def said(seen: str, trial: int, trials: int) -> None:
        if not silent:
            label, _, what = seen.partition(": ")
            stderr.print(f"{escape(title_of(label))}, trial {trial} of {trials}: {escape(what)}", soft_wrap=True)

    tuned = tune(config, found, names, TuningBudget(trials, models), said, jobs)
    if not silent:
        for name, how in zip(names, tuned, strict=True):
            by = records.read(TunedBy, how, tuned_label(name))
            say(tuned_words(title_of(name), by), f"Kept as {tuned_label(name)}.")
    return tuned


# --- bench ------------------------------------------------------------------------------------------------------------


def bench(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD", help="Methods, FILE.py, or `all`; with --page, folders of results."),
    ],
    suite: Annotated[str, how("The protocol: `small` (digits, two cores), `cifar10` (one GPU), or a file.")] = "small",
    models: Annotated[int | None, how("Fewer models of each kind, for a look; a ranking refuses these.")] = None,
    device: Device = None,
    jobs: Jobs = None,
    workers: Workers = None,
    allow_code: AllowCode = False,
    out: Annotated[Path | None, out_option("Where results go; default results/bench/SUITE.", file=False)] = None,
    page: Annotated[Path | None, output("Rank these results on one HTML page.", "--page", callback=plain_file)] = None,
    as_json: Json = False,
    silent: Quiet = False,
) -> None:
    """Measure methods under a frozen protocol that papers can cite.

    Every method gets the same data, models, tuning and rounds. Retrain always runs too. Given again, the command
    continues, or adds methods. `unfed bench FOLDER --page ranking.html` ranks the results in a folder.
    """
    from unfed import storage
    from unfed.report import scorecards
    from unfed.studies import bench as benchmark

    if page is not None:
        results = scorecards.read_results([Path(name) for name in methods])
        storage.write_bytes(page, scorecards.page(results).encode())
        say(f"Ranking of {counted(len(results), 'method')}: {page}")
        return
    names = benchmark.all_methods() if methods == ["all"] else methods
    code = any(map(plugins.looks_like_code, names))
    if code and workers is not None:
        raise UnfedError("Code of your own runs in one process only; leave --workers out.")
    folder = out or Path("results", "bench", Path(suite).stem)
    noted = " ".join(["unfed bench", *methods, "--suite", suite, *(["--device", device] if device else [])])
    work = benchmark.Benchmark.of(suite, names, folder, models, device or "auto", noted)
    for name in names:
        _conforms(name)
    if not (as_json or silent):
        stderr.print(f"{work.protocol.bench} {work.protocol.suite}, protocol SHA-256 {work.sha256}", soft_wrap=True)
    with resumable(), _workers(jobs, workers) as taken, _bar(silent or as_json) as said:
        found = benchmark.bench(work, said, 1 if code else taken)
    if as_json:
        echo_json([one.to_json() for one in found])
    elif not silent:
        _show_scorecards(found)
        say(f"Results: {folder}")


def _conforms(name: str) -> None:
    """Refuse a method of the user's own that breaks the contract."""
    from unfed.methods import find
    from unfed.testing import conformance

    if not plugins.looks_like_code(name):
        return
    broken = [claim for claim in conformance.check(find(name, "METHOD")) if not claim.held]
    if broken:
        raise UnfedError(
            f"{name} breaks the contract of methods ({broken[0].name}: {broken[0].saw}); mend it until"
            f" `unfed methods check {name}` passes."
        )


def _show_scorecards(found: Sequence["BenchResult"]) -> None:
    from unfed.report.scorecards import COLUMNS, cells, missing, named, scenarios, served

    say(named(found))
    for scenario in scenarios(found):
        stdout.print(f"\n[bold]{escape(scenario)}[/bold]")
        shown = [(one, cells(one, card)) for one, card in served(found, scenario)]
        for first in range(0, len(shown), BESIDE):
            some = shown[first : first + BESIDE]
            titles = [one.title for one, _ in some]
            lines = [(column, *(row[i] for _, row in some)) for i, column in enumerate(COLUMNS)]
            print_table(["", *titles], lines, titles)
        for title, reason in missing(found, scenario).items():
            say(f"{title}: not measured. {reason}")
