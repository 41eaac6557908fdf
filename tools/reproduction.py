"""Keep the results of runs at the paper's scale, and write docs/reproduction.md from what was kept.

    python tools/reproduction.py blocks               the blocks of tools/blocks.toml, and what is left of each
    python tools/reproduction.py blocks NAME --out FOLDER --budget 25m      run one: methods, then analyses
    python tools/reproduction.py block PRESET --out RUN --methods retrain,not --budget 24m      run it, method by method
    python tools/reproduction.py add RUN ...          finished jobs of run folders into results/
    python tools/reproduction.py add FOLDER ...       what was kept on another machine (--results FOLDER), records too
    python tools/reproduction.py analyse RUN table-7 figure-3 …     what an analysis finds, into results/analyses/
    python tools/reproduction.py page                 docs/reproduction.md from results/, never edited by hand
    python tools/reproduction.py page --check         exits with 1 if the page is not what results/ give
    python tools/reproduction.py figure RESULT.json   docs/reproduction.svg: how near each method is to Retrain

Every item of `unfed paper --scale paper` has its place on the page: with a verdict per cell where it was run, and with
its price in GPU minutes where it was not.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from paper_block import block, kept_so_far, opened
from paper_blocks import RECORDS, Place, table, work
from paper_together import together

from unfed import storage
from unfed.cli.options import chosen as chosen_methods
from unfed.cli.options import moment_of
from unfed.config.config import Config
from unfed.errors import UnfedError
from unfed.measures.metrics import GAP_METRICS
from unfed.measures.trajectory import Line
from unfed.paper import analyses, record
from unfed.paper.build import markdown
from unfed.paper.items import Item, Spec, chosen, items
from unfed.paper.pictures import light_colour
from unfed.paper.views import VIEWS, results
from unfed.paper.views.base import Section
from unfed.report import rules
from unfed.report.drawing import DASHES
from unfed.report.tables import name_of
from unfed.runs.description import plain_facts
from unfed.runs.run import Run

OURS = "sealed"  # stands beside the paper's methods wherever it was run with them
OUTDATED = "outdated, to be run again"
ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, FIGURE = ROOT / "results", ROOT / "docs" / "reproduction.md", ROOT / "docs" / "reproduction.svg"
DRAWN = ROOT / "docs" / "reproduction"
# Points of average gap above which the figure shows nothing: first rounds would flatten the rest.
CUT = 10
# Seconds of a round (of an epoch, where there is one place) on one H200 in bf16, with evaluation, compiling and saving.
# CIFAR-10's CNN and ResNet-18, and ViT's on Caltech-101, are what a seed's block took; the others 40,000 images a round
# (in one place all, evaluated every epoch) by the rates in docs/performance.md, `cnn-wide` by its 3.7 times as many
# FLOPs as `cnn`; the last is a guess.
ROUND = {
    ("cifar10", "cnn"): 0.05,
    ("cifar100", "cnn-wide"): 0.18,
    ("cifar10", "resnet18"): 5.0,
    ("cifar100", "resnet18"): 5.0,
    ("caltech101", "vit-b-16"): 2.4,
    ("cifar100", "vit-b-16"): 12.0,
    ("cifar10", "efficientnet-b0"): 10.0,
}
EPOCH = {("cifar10", "resnet18"): 10.0}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    blocking = parts.add_parser("block")
    blocking.add_argument("preset")
    blocking.add_argument("--out", type=Path, required=True, help="the run folder; one of the same config goes on")
    blocking.add_argument("--methods", required=True, help="with commas, in the order in which they are run")
    blocking.add_argument("--set", action="append", default=[], dest="sets")
    blocking.add_argument("--trained-in", type=Path, default=None, help="a run folder with the same θ*, if it is there")
    blocking.add_argument("--together", action="store_true", help="the methods' rounds as one stack, a folder for each")
    blocking.add_argument("--alone", default="", help="with --together: methods that come afterwards, one by one")
    blocking.add_argument("--budget", default=None, help="24m: when this time is up, end the round, save, stop")
    blocking.add_argument("--results", type=Path, default=RESULTS)
    blocking.add_argument("--commit", default=None)
    cutting = parts.add_parser("blocks")
    cutting.add_argument("names", nargs="*", help="of tools/blocks.toml, in the order in which they are run")
    cutting.add_argument("--out", type=Path, default=None, help="the folder for run folders; what was begun goes on")
    cutting.add_argument("--set", action="append", default=[], dest="sets")
    cutting.add_argument("--budget", default=None, help="25m: when this time is up, end the round, save, stop")
    cutting.add_argument("--results", type=Path, default=RESULTS, help="what is there already is not run again")
    cutting.add_argument("--commit", default=None)
    adding = parts.add_parser("add")
    adding.add_argument("runs", nargs="+", type=Path)
    adding.add_argument("--results", type=Path, default=RESULTS)
    adding.add_argument("--commit", default=None, help="the commit the runs were made by; default: the checkout's")
    analysing = parts.add_parser("analyse")
    analysing.add_argument("run", type=Path)
    analysing.add_argument("items", nargs="+")
    analysing.add_argument("--results", type=Path, default=RESULTS)
    analysing.add_argument("--commit", default=None)
    analysing.add_argument("--number", action="append", default=[], help="sets=20: another number for the view")
    writing = parts.add_parser("page")
    writing.add_argument("--results", type=Path, default=RESULTS)
    writing.add_argument("--check", action="store_true")
    drawing = parts.add_parser("figure")
    drawing.add_argument("result", type=Path)
    options = parser.parse_args(arguments)
    if options.part == "block":
        config = Config.preset(options.preset, [*options.sets, chosen_methods(options.methods)])
        commit, moment = options.commit or _commit(), moment_of(options.budget)
        if options.together:
            own = {m: Config.preset(options.preset, [*options.sets, chosen_methods(m)]) for m in config.methods.run}
            keep = partial(kept_so_far, results=options.results, commit=commit)
            return together(config, own, options.alone.split(","), options.out, keep, moment)
        return block(opened(config, options.out, options.trained_in), options.results, commit, moment)
    if options.part == "blocks":
        records = records_of(options.results)
        if not options.names:
            print("\n".join(table(options.results, records)))
            return 0
        if options.out is None:
            raise UnfedError("Running a block takes a folder for its runs; give one with --out.")
        moment = moment_of(options.budget)
        place = Place(options.out, options.results, records, options.commit or _commit(), moment)
        return work(options.names, place, options.sets)
    if options.part == "add":
        for run in options.runs:
            for path in added(run, options.results, options.commit):
                print(path)
        return 0
    if options.part == "analyse":
        found = Run.open(options.run)
        told = dict(map(number_of, options.number))
        for item in chosen(options.items):
            kept = analyses.measured(item, found, options.commit or _commit(), told)
            print(analyses.write(kept, options.results), flush=True)
        return 0
    if options.part == "figure":
        FIGURE.write_text(figure(record.current(record.read(options.result))), encoding="utf-8")
        return 0
    if not (record.all_in(options.results) or analyses.all_in(options.results)):
        raise UnfedError(f"Nothing was kept in {options.results}; the page stays as it is. Give the folder of results.")
    text, drawn = page(options.results)
    if options.check:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        return (
            0 if same and {path.name: path.read_text(encoding="utf-8") for path in DRAWN.glob("*.svg")} == drawn else 1
        )
    PAGE.write_text(text, encoding="utf-8")
    DRAWN.mkdir(exist_ok=True)
    for path in DRAWN.glob("*.svg"):
        path.unlink()
    for name, svg in drawn.items():
        (DRAWN / name).write_text(svg, encoding="utf-8")
    return 0


def number_of(text: str) -> tuple[str, int]:
    """`sets=20` as a name and a number."""
    name, _, value = text.partition("=")
    if not value.isdecimal():
        raise UnfedError(f"--number takes a name and a whole number, such as sets=20, not {text!r}.")
    return name, int(value)


def added(place: Path, results: Path, commit: str | None) -> Iterator[Path]:
    """A run's finished jobs, or everything that was kept in a folder on another machine."""
    if (place / "run.json").exists():
        yield record.write(record.kept(Run.open(place), commit or _commit()), results)
        return
    found, looked = record.all_in(place), analyses.all_in(place)
    told = sorted(path for path in records_of(place).glob("*") if path.suffix in (".jsonl", ".md"))
    if not found and not looked and not told:
        raise UnfedError(f"{place} is no run folder, and nothing was kept in it; give one that `unfed run` made.")
    yield from (record.write(one, results) for one in found)
    yield from (analyses.write(one, results) for one in looked)
    yield from (record_added(path, records_of(results)) for path in told)


def records_of(results: Path) -> Path:
    """Where the records of scripts lie beside results: with the others for those of the repository."""
    return RECORDS if results.resolve() == RESULTS else results / "records"


def record_added(path: Path, folder: Path) -> Path:
    """A record in its new place; of one that is written line by line, the lines that are not there yet."""
    here = folder / path.name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl" and here.exists():
        there = here.read_text(encoding="utf-8")
        text = there + "".join(line for line in text.splitlines(keepends=True) if line not in there)
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(here, text.encode())
    return here


def page(folder: Path) -> tuple[str, dict[str, str]]:
    """The whole page, and the pictures that it shows, by the names of their files."""
    kept, looked = record.all_in(folder), analyses.all_in(folder)
    stale = [sentence for one in kept for sentence in record.outdated(one)]
    stale += [sentence for one in looked if (sentence := analyses.outdated(one))]
    parts, drawn = [HEAD, *(f"- {sentence}" for sentence in stale)], dict[str, str]()
    for item in items().values():
        analysed = VIEWS[item.view].analysis is not None
        parts += section(item, of_analyses(item, looked) if analysed else of_results(item, kept), drawn)
    return "\n".join(parts).rstrip() + "\n", drawn


class Found(NamedTuple):
    """What an item became, where its numbers come from, which of its runs are not there, and which were cut short.

    Of runs that are there and no longer count, it has a sentence.
    """

    made: Section | None
    said: Sequence[str]
    absent: Sequence[Spec]
    cut: Sequence[str]
    old: Sequence[str]


def section(item: Item, found: Found, drawn: dict[str, str]) -> Iterator[str]:
    """One item: what was run of it, and what was not; its pictures are put into `drawn`."""
    made, said, absent, cut, old = found
    yield f"## {item.heading}: {item.title}\n"
    if made is not None:
        yield from (f"{sentence}\n" for sentence in cut)  # before the first number that it is about
        # The page is the comparison: the paper's rows stand in it already.
        if text := markdown(made).partition("\n\n")[2]:
            yield text
        for number, picture in enumerate((p for p in made.pictures if p.svg is not None), 1):
            name = f"{item.id}-{number}.svg"
            drawn[name] = "\n".join(line.rstrip() for line in picture.file().splitlines()) + "\n"
            yield f"![{item.heading}, {picture.title}]({DRAWN.name}/{name})\n"
        yield "\n".join(f"- {sentence}" for sentence in said) + "\n"
    if old:
        yield "\n".join(f"- {sentence}" for sentence in old) + "\n"
    if absent:
        yield missing(item, absent) + "\n"


def of_analyses(item: Item, looked: Sequence[analyses.KeptAnalysis]) -> Found:
    """An item that takes models, from what was measured on them."""
    there, said, absent, apart = dict[str, analyses.KeptAnalysis](), list[str](), list[Spec](), dict[str, list[str]]()
    current, old = [one for one in looked if not analyses.outdated(one)], list[str]()
    for spec in item.runs["paper"]:
        near = analyses.fitting(current, item, spec)
        if near is None:
            if earlier := analyses.fitting(looked, item, spec):
                own = as_long(spec, earlier[0].config)
                old.append(f"{spec.name}: {OUTDATED} (about {priced(own, own.methods.run):,.0f} GPU minutes).")
            else:
                absent.append(spec)
            continue
        there[spec.name], different = near
        made = there[spec.name].made
        when = f"{made['created'][:10]}, commit {made['commit'][:7]}"
        told = f"{spec.name}: seed {made['seed']}; {made['hardware']}, {when}."
        said.append(told + (f" Differs from the item: {'; '.join(different)}." if different else ""))
        apart[spec.name] = different
    return Found(analyses.shown(item, there) if there else None, said, absent, [*cut_short(apart)], old)


def of_results(item: Item, kept: Sequence[record.KeptResults]) -> Found:
    """An item that takes lines, from those that were kept."""
    there, within = dict[str, list[Line]](), dict[str, float]()
    said, absent, apart, old = list[str](), list[Spec](), dict[str, list[str]](), list[str]()
    fitting = {spec: record.fitting(kept, spec.preset, spec.config().to_json()) for spec in item.runs["paper"]}
    run = {spec: [pair for pair in found if _begun(pair[0], spec)] for spec, found in fitting.items()}
    drawn = item.view not in ("results", "bars")
    if drawn:  # a curve is missed in a picture; a row or a bar that is not there is said
        run = {spec: [pair for pair in found if _complete(pair[0], spec)] for spec, found in run.items()}
    near = {spec: [pair for pair in found if _counts(pair[0], spec, drawn)] for spec, found in run.items()}
    if item.view == "ratios":
        near = _alike(near)
    for spec, found in near.items():
        if not found:
            outdated = [one for one, _ in run[spec] if not _counts(one, spec, drawn)]
            old += [f"{spec.name}: not shown.{left_out(spec, one)}" for one in outdated[:1]]
            absent += [] if outdated else [spec]
            continue
        one, different = found[0]
        there[spec.name] = _chosen(record.current(one), spec)
        within[spec.name] = Config.kept(one.config).evaluation.recovered_within
        said.append(about(spec, one, different, there[spec.name]) + _trained_elsewhere(one, kept))
        apart[spec.name] = different
    partial = {name for name, own in apart.items() if fewer_rounds(own)}
    return Found(_section(item, there, within, partial) if there else None, said, absent, [*cut_short(apart)], old)


def _section(
    item: Item, there: Mapping[str, list[Line]], within: Mapping[str, float], partial: Collection[str]
) -> Section:
    """An item's view of the lines of its runs; a partial run gets no verdict."""
    if item.view == "gaps":
        return results.gaps_of(item, there)
    under = {name: results.under_rules(lines, within[name]) for name, lines in there.items()}
    if item.view == "results":
        return results.of_lines(item, under, frozenset(partial))
    made = results.bars_of if item.view == "bars" else results.ratios_of
    return made(item, {name: own["best-gap"] for name, own in under.items()})


def fewer_rounds(different: Sequence[str]) -> list[str]:
    """Of what differs from the item, its rounds."""
    return [one for one in different if one.startswith(("training.rounds ", "unlearning.rounds "))]


def cut_short(different: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Where rounds are not the item's, a sentence that must be read before its numbers are; `different` by run."""
    alike: dict[str, list[str]] = {}
    for name, own in different.items():
        if told := fewer_rounds(own):
            alike.setdefault("; ".join(told), []).append(name)
    for told_of, names in alike.items():
        was, its = ("was", "its") if len(names) == 1 else ("were", "their")
        yield (
            f"**Partial: {'; '.join(names)} {was} cut short ({told_of}). {its.capitalize()} rows can be read beside"
            f" each other, {its} levels not beside the paper's.** What a method costs ends where its rounds do."
        )


def _alike(
    near: Mapping[Spec, list[tuple[record.KeptResults, list[str]]]],
) -> dict[Spec, list[tuple[record.KeptResults, list[str]]]]:
    """Of each preset the results that differ from the item in the same way, if most runs have such: shares of clients
    are compared after the same number of rounds or not at all."""
    kinds: dict[str, Counter[tuple[str, ...]]] = {}
    for spec, found in near.items():
        kinds.setdefault(spec.preset, Counter()).update(tuple(different) for _, different in found)
    common = {preset: count.most_common(1)[0][0] for preset, count in kinds.items() if count}
    return {spec: [pair for pair in found if tuple(pair[1]) == common.get(spec.preset)] for spec, found in near.items()}


def _begun(kept: record.KeptResults, spec: Spec) -> bool:
    """Whether a method of the item's own is there: Retrain alone is a yardstick without anything to measure."""
    return bool({*spec.config().methods.run} & {job.rpartition("/")[2] for job in kept.jobs} - {"retrain"})


def _counts(kept: record.KeptResults, spec: Spec, drawn: bool) -> bool:
    """Whether what was not revised since can be shown; what is drawn are gaps to Retrain, or shares of its costs."""
    now = record.current(kept)
    return _begun(now, spec) and (not drawn or bool(_of(now, "retrain")))


def _complete(kept: record.KeptResults, spec: Spec) -> bool:
    """Whether every method that the item shows is there."""
    return {*spec.config().methods.run} <= {job.rpartition("/")[2] for job in kept.jobs}


def _chosen(kept: record.KeptResults, spec: Spec) -> list[Line]:
    """The lines of the methods that the item shows, under its own labels."""
    shown = {"before", OURS, *spec.config().methods.run}
    return [line for line in kept.lines() if line["method"] in shown]


def about(spec: Spec, kept: record.KeptResults, different: Sequence[str], lines: Sequence[Line]) -> str:
    """Where a block's numbers come from, in one sentence."""
    methods, now = {line["method"] for line in lines}, record.current(kept)
    made = [one for one in now.made if any(job.rpartition("/")[2] in methods for job in one["jobs"])]
    where = " or ".join(sorted({one["hardware"] for one in made}))
    when = ", ".join(sorted({one["created"][:10] for one in made}))
    commits = ", ".join(sorted({one["commit"][:7] for one in made}))
    told = f"{spec.name}: {_named(now.seeds)}{fewer(now, sorted(methods))}; {where}, {when}, commit {commits}."
    told += f" Differs from the item: {'; '.join(different)}." if different else ""
    told += _trained_again(now)
    return f"{told} {took(now, methods)}{left_out(spec, kept)}"


def _trained_again(kept: record.KeptResults) -> str:
    """Where methods of one seed began at different θ*, who did, and how far these are apart."""
    told = ""
    for seed, points in record.retrained_otherwise(kept).items():
        parts: dict[str, set[str]] = {}
        for number, one in enumerate(kept.made):  # methods that were kept one by one may have begun at the same
            labels = {job.rpartition("/")[2] for job in one["jobs"] if job.startswith(f"{seed}/")}
            parts.setdefault(one.get("trained", {}).get(seed, f"run {number}"), set()).update(labels)
        began = [sorted(part - {"train", "before", "retrain"}) for part in parts.values()]
        who = " and ".join(", ".join(part) for part in began if part)
        apart = "" if points is None else f", at most {points:.2f} points of accuracy apart at the evaluated rounds"
        told += (
            f" θ* of seed {seed} was trained more than once and is not the same ({who} began at different ones{apart})."
        )
    return told


def _trained_elsewhere(found: record.KeptResults, kept: Sequence[record.KeptResults]) -> str:
    """Where θ* is that of an earlier result trained again, and not the same: a large one is not carried from there."""
    return "".join(
        f" θ* of seed {seed} was trained again as for `results/{other.preset}-{other.key}.json` and is not the same, at"
        f" most {points:.2f} points of accuracy apart at the evaluated rounds."
        for seed, other, points in record.trained_elsewhere(found, kept)
    )


def took(kept: record.KeptResults, methods: Collection[str]) -> str:
    """How long the rounds of the shown jobs took, by seed: what was measured, not what a price says."""
    beside = stacks_of(kept)
    by_seed: dict[str, dict[str, float]] = {}
    for name, columns in kept.jobs.items():
        if name.rpartition("/")[2] in {*methods, "train"} and columns["seconds"][-1]:
            by_seed.setdefault(name.partition("/")[0], {})[name] = columns["seconds"][-1]
    told = []
    for seed, own in sorted(by_seed.items()):
        seconds, labels = spent(own, beside)
        said = f", of which {', '.join(labels)} in one stack" if labels else ""
        told.append(f"seed {seed} {seconds / 60:.1f} minutes ({len(own)} jobs{said})")
    return f"Rounds alone, beside whatever else the machine did: {', '.join(told)}." if told else ""


def stacks_of(kept: record.KeptResults) -> dict[str, tuple[str, ...]]:
    """The jobs that ran in a stack, each with the methods of that."""
    return {job: tuple(one["beside"]) for one in kept.made for job in one["jobs"] if "beside" in one}


def spent(jobs: Mapping[str, float], beside: Mapping[str, tuple[str, ...]]) -> tuple[float, list[str]]:
    """The seconds of some jobs of a seed, and which of them ran side by side: these waited for each other."""
    stacks: dict[tuple[str, ...], list[str]] = {}
    for name in jobs:
        if name.rpartition("/")[2] in beside.get(name, ()):  # θ* was trained before
            stacks.setdefault(beside[name], []).append(name)
    together = [max(jobs[name] for name in names) for names in stacks.values()]
    stacked = [name for names in stacks.values() for name in names]
    alone = [seconds for name, seconds in jobs.items() if name not in stacked]
    return sum([*together, *alone]), [name.rpartition("/")[2] for name in stacked]


def left_out(spec: Spec, kept: record.KeptResults) -> str:
    """What the item asks for and these results do not have, method by method and seed by seed, with its price.

    What they have and no longer counts comes after what they never had.
    """
    config, own = spec.config(), as_long(spec, kept.config)
    run, current = _pairs(kept), _pairs(record.current(kept))
    gone = {seed: [m for m in config.methods.run if (seed, m) not in run] for seed in kept.seeds}
    old = {seed: [m for m in (*config.methods.run, OURS) if (seed, m) in run - current] for seed in kept.seeds}
    absent = [seed for seed in config.seed_list if seed not in gone]
    told = [*_priced_alike(own, gone)]
    if absent:
        told.append(
            f"everything of {_named(absent)} (about {len(absent) * priced(own, own.methods.run):,.0f} GPU minutes)"
        )
    parts = {"Not run": told, OUTDATED.capitalize(): [*_priced_alike(own, old)]}
    whole = "" if own == config else f" All of it in the item's own rounds: about {price(spec):,.0f} GPU minutes."
    return "".join(f" {word}: {'; '.join(one)}; θ* included." for word, one in parts.items() if one) + whole


def as_long(spec: Spec, config: Mapping[str, Any]) -> Config:
    """What an item asks for, in the rounds of a kept config."""
    said = Config.kept(config)
    return spec.config([f"training.rounds={said.training.rounds}", f"unlearning.rounds={said.unlearning.rounds}"])


def _pairs(kept: record.KeptResults) -> set[tuple[int, str]]:
    return {(int(job.partition("/")[0]), job.rpartition("/")[2]) for job in kept.jobs}


def _priced_alike(own: Config, labels: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Methods by seed, those of seeds that have the same ones together, each with its price."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for seed, some in labels.items():
        alike.setdefault(tuple(some), []).append(seed)
    for some, seeds in alike.items():
        if some:
            minutes = len(seeds) * priced(own, some)
            yield f"{', '.join(some)} ({_named(seeds)}, about {minutes:,.0f} GPU minutes)"


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def figure(kept: record.KeptResults) -> str:
    """Average gap to Retrain after each evaluated round, the mean over a method's seeds, as SVG."""
    if not _of(kept, "retrain"):
        raise UnfedError("These results have no Retrain that counts, to which gaps could be taken; run it again.")
    by_method = next(iter(rules.trajectories(kept.lines()).values()))
    ends = {seed: rules.reference_line(lines) for seed, lines in by_method["retrain"].items()}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "reproduction", "font.size": 10}):
        drawn = Figure((8, 4.6), layout="constrained")
        up = f"average gap to Retrain, points (cut at {CUT})"
        axes = drawn.add_subplot(xlabel="rounds", ylabel=up, ylim=(0, CUT))
        methods = sorted(set(by_method) - {"retrain", "before", "train"}, key=lambda name: (name != "not", name))
        for number, method in enumerate(methods):
            gaps: dict[int, list[float]] = {}
            own = {seed: lines for seed, lines in by_method[method].items() if seed in ends}
            for seed, lines in own.items():
                for line in rules.results(lines):
                    known = [(line[m], ends[seed][m]) for m in GAP_METRICS]
                    gaps.setdefault(line["round"], []).append(sum(abs(a - b) for a, b in known) / len(known))
            rounds = sorted(r for r, found in gaps.items() if len(found) == len(own))
            means = [sum(gaps[r]) / len(gaps[r]) for r in rounds]
            style: dict[str, Any] = {"linewidth": 2.6 if method in ("not", OURS) else 1.3}
            dash = DASHES[number % len(DASHES)]  # colour is never the only difference
            style |= {"color": light_colour(number), "linestyle": "-" if dash is None else (0, dash)}
            style |= {"marker": "o", "clip_on": False} if len(rounds) == 1 else {}  # evaluated at its end only
            axes.plot(rounds, means, label=name_of(method), **style)
        drawn.legend(loc="outside lower center", ncols=len(methods), frameon=False, columnspacing=1.2, handlelength=2.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        buffer = io.StringIO()
        FigureCanvasSVG(drawn).print_svg(buffer, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def fewer(kept: record.KeptResults, methods: Sequence[str]) -> str:
    """` (fukd: 0)`: the methods that were not run for every seed."""
    seeds = {m: [s for s in kept.seeds if any(job.startswith(f"{s}/") for job in _of(kept, m))] for m in methods}
    few = [f"{method}: {', '.join(map(str, own))}" for method, own in seeds.items() if len(own) < len(kept.seeds)]
    return f" ({'; '.join(few)})" if few else ""


def _of(kept: record.KeptResults, method: str) -> list[str]:
    return [job for job in kept.jobs if job.rpartition("/")[2] == method]


def missing(item: Item, specs: Sequence[Spec]) -> str:
    """What was not run, with its price."""
    told = [f"{spec.name} (about {price(spec):,.0f} GPU minutes)" for spec in specs]
    return f"Not run: {'; '.join(told)}. `unfed paper {item.id} --scale paper --set engine.precision=bf16` does it."


def price(spec: Spec) -> float:
    """GPU minutes by the seconds of a round: θ*, Retrain and every method, for every seed."""
    config = spec.config()
    return priced(config, config.methods.run) * len(config.seed_list)


def priced(config: Config, labels: Collection[str]) -> float:
    """GPU minutes of θ* and these methods, for one seed."""
    rounds = config.training.rounds + sum(plain_facts(config, label).rounds for label in labels)
    seconds = EPOCH if config.setting == "central" else ROUND
    return rounds * seconds[config.data.name, config.model.name] / 60


def _commit() -> str:
    """The checkout's, or $COMMIT where the copy that runs has no history of its own."""
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnfedError("This copy has no history that names its commit; give --commit.") from error
    return done.stdout.strip()


HEAD = """# The paper on real data

Made by `python tools/reproduction.py page` from the files in `results/`; edit neither by hand. A cell holds the paper's
value, ours, the difference and a verdict: `=` within the seeds' spread, `~` on the same side of Retrain in both, or
beside it in both, but further away (however far), `≠` neither ([what that means exactly](how-to/paper.md)). A run with
fewer rounds than the paper's is *partial* and gets no verdict. The CNN is *fitted* to the paper's rows. With one
seed of ours the paper's spread stands for it, and a verdict says less. Bold is the smallest average gap with all that
lie within two standard deviations of it, unless that is more than half of the methods; with one seed there is no
spread, and bold ranks nobody. What was tried where
we differ stands in [differences](explanation/differences.md).

Prices in GPU minutes are rounds times the seconds of a round on one H200 in bf16, the items' seeds together. Of these
the CNN's on CIFAR-10 (0.05 s), ResNet-18's on CIFAR-10 (5, compiling included) and ViT-B/16's on Caltech-101 (2.4, with
another process beside half of it; 1.7 where there was none) were seen in whole runs; CNN on CIFAR-100 (0.18), ResNet-18
on CIFAR-100 (5, as on CIFAR-10; an epoch of table 6 10) and ViT-B/16 on CIFAR-100 (12) are calculated from the engine's
rates ([speed](performance.md)), EfficientNet-B0 (10) is a guess. Items that share runs each count them; what an
analysis takes beyond its runs is not counted. Without `--set engine.precision=bf16` it is float32, the items' own: a
round of the CNN takes three times as long.
"""


def told(arguments: Sequence[str]) -> int:
    """`main`, whose refusals are one sentence and exit code 2, as in `unfed` itself."""
    try:
        return main(arguments)
    except UnfedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(told(sys.argv[1:]))
