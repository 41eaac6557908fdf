"""Keep the results of runs at the paper's scale, and write the map of them: docs/reproduction.md.

    python tools/reproduction.py blocks               the blocks of tools/blocks.toml, and what is left of each
    python tools/reproduction.py blocks NAME --out FOLDER --budget 25m      run one: methods, then analyses
    python tools/reproduction.py block PRESET --out RUN --methods retrain,not --budget 24m      run it, method by method
    python tools/reproduction.py add RUN ...          finished jobs of run folders into results/
    python tools/reproduction.py add FOLDER ...       what was kept on another machine (--results FOLDER), records too
    python tools/reproduction.py analyse RUN table-7 figure-3 …     what an analysis finds, into results/analyses/
    python tools/reproduction.py page                 docs/reproduction.{md,csv}, results/map.csv, results/tables/
    python tools/reproduction.py page --check         exits with 1 if these are not what results/ give
    python tools/reproduction.py figure RESULT.json   docs/reproduction.svg: how near each method is to Retrain

The map has a row for every item and block of `unfed paper --scale paper`: its status, rounds, seeds, and the price in
GPU minutes of what is left. Verdicts stand only where the rounds are the paper's.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import paper_analyses as analyses
import paper_record as record
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
from unfed.measures.metrics import COLUMNS, GAP_METRICS
from unfed.measures.trajectory import Line
from unfed.paper import verdict
from unfed.paper.items import Item, Spec, chosen, items, published
from unfed.paper.pictures import light_colour
from unfed.paper.views import VIEWS, results
from unfed.paper.views.base import Section
from unfed.paper.views.printed import ALSO, where
from unfed.report import rules
from unfed.report.drawing import DASHES
from unfed.report.tables import fitted_mark, name_of
from unfed.runs.description import plain_facts
from unfed.runs.run import Run
from unfed.values import Value, as_json, is_measured

# What stands beside the paper's methods wherever it was run with them.
OURS = {
    "sealed": "Sealed",
    "retrain-cycle": "Retrain, one cycle of 60 rounds",
    "led-cycle": "Led, 20 + 40 rounds",
    "not-cycle": "NoT, one cycle of 60 rounds",
    "ft-cycle": "FT, one cycle of 60 rounds",
}
SHIFT = 0.5  # points by which most rows of a table must differ from the paper's for that to be said
ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, FIGURE = ROOT / "results", ROOT / "docs" / "reproduction.md", ROOT / "docs" / "reproduction.svg"
TABLE = PAGE.with_suffix(".csv")
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
    text, files = page(options.results)
    wanted = {PAGE: text, TABLE: map_table(files["map.csv"])}
    wanted |= {options.results / name: found for name, found in files.items()}
    there = {PAGE, TABLE, options.results / "map.csv", *(options.results / "tables").glob("*.json")}
    if options.check:
        return 0 if {path: path.read_text("utf-8") for path in there if path.exists()} == wanted else 1
    for path in there - {*wanted}:
        path.unlink()
    (options.results / "tables").mkdir(exist_ok=True)
    for path, found in wanted.items():
        path.write_text(found, encoding="utf-8")
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


Map = dict[str, Any]
"""A row of the map: one block of one item. `results/map.csv` has them all."""


def page(folder: Path) -> tuple[str, dict[str, str]]:
    """The page, and the files of `results/` that it links to: the map, and every item's numbers."""
    kept, looked = (
        {path.name: record.read(path) for path in sorted(folder.glob("*.json"))},
        analyses.all_in(folder),
    )
    rows, files, judged = list[Map](), dict[str, str](), list[str]()
    for item in items().values():
        analysed = VIEWS[item.view].analysis is not None
        made, own = of_analyses(item, looked) if analysed else of_results(item, kept)
        rows += own
        if made is not None:
            files[f"tables/{item.id}.json"] = data_of(made)
            judged += verdicts(made, [row["block"] for row in own if row["rounds"] == row["paper_rounds"]])
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files["map.csv"] = buffer.getvalue()
    count = Counter(row["status"] for row in rows)
    told = ", ".join(f"{count[name]} {name}" for name in ("done", "partial", "outdated", "not run") if count[name])
    text = [HEAD.format(blocks=len(rows), told=told), FIGURE_TEXT, *judged, TAIL]
    return "\n".join(text).rstrip() + "\n", files


def data_of(made: Section) -> str:
    """An item's numbers, its tables as they were printed on the page before, and what is said of them, as JSON."""
    grids = [*made.grids, *([made.published] if made.published else [])]
    shown = {grid.title: [grid.header, *grid.body] for grid in grids}
    told = {"item": made.item.id, "title": made.item.title, "numbers": as_json(made.data)}
    return json.dumps({**told, "tables": shown, "said": made.said}, indent=1, ensure_ascii=False) + "\n"


def map_table(whole: str) -> str:
    """The map as people read it, of `results/map.csv`."""
    lines = [["item", "title", "block", "status", "rounds", "seeds", "minutes"]]
    for row in csv.DictReader(io.StringIO(whole)):
        item = row["item"].replace("-", " ").capitalize()
        rounds = row["rounds"] if row["rounds"] == row["paper_rounds"] else f"{row['rounds']}/{row['paper_rounds']}"
        seeds = f"{len(row['seeds'].split())}/{row['paper_seeds']}"
        lines.append([item, row["title"], row["block"], row["status"], rounds, seeds, f"{int(row['minutes']):,}"])
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def verdicts(made: Section, whole: Collection[str]) -> Iterator[str]:
    """What the paper prints beside ours, of blocks in the paper's number of rounds, and the shift that rows share."""
    every: Mapping[str, Mapping[str, Any]] = made.data.get("verdicts", {})
    ours = {(row.request, ALSO.get(name_of(row.method), name_of(row.method))): row for row in made.rows}
    for name in whole:
        rows = {key.rpartition(", ")[2]: cells for key, cells in every.items() if key.startswith(f"{name}, ")}
        if not rows:
            continue
        yield f"## {made.item.heading}, {name}\n"
        words = Counter(cell["verdict"] for cells in rows.values() for cell in cells.values())
        told = ", ".join(f"{words[word]} `{verdict.MARKS[word]}`" for word in ("within", "direction", "disagrees"))
        yield f"Of {words.total()} cells: {told}. A cell has the paper's value, then ours. {_shifts(rows.values())}\n"
        yield "| Method | Retain | Forget | Test | MIA | Avg. gap |\n|---|---|---|---|---|---|"
        gaps = {row["method"]: row["avg_gap"] for row in published(made.item.published) if where(row) == name}
        for method, cells in rows.items():
            row = ours[name, method]
            parts = [
                (_two(one["paper"]), _two(one["ours"]), verdict.MARKS.get(one["verdict"], "")) for one in cells.values()
            ]
            shown = [f"{there} · {here} {mark}".rstrip() for there, here, mark in parts]
            gap = "–" if row.is_reference else f"{gaps[method]} · {_two(row.average_gap.mean)}"
            yield f"| {method}{fitted_mark(row.method)} | {' | '.join(shown)} | {gap} |"
        for (there, _), row in ours.items():
            if there == name and row.method in OURS:
                shown = [_two(one.mean) for one in (*(row.metrics[metric] for metric in GAP_METRICS), row.average_gap)]
                seeds = "" if len(row.seeds) > 1 else ", one seed"
                yield f"| {OURS[row.method]} (ours{seeds}) | {' | '.join(shown)} |"
        yield ""


def _two(value: Value) -> str:
    return f"{value:.2f}" if is_measured(value) else "–"


def _shifts(rows: Collection[Mapping[str, Any]]) -> str:
    """`Retain is higher in 8 of 8 rows (median +2.5)`, for what most rows share."""
    told = []
    for metric in GAP_METRICS:
        apart = [one for cells in rows if (one := cells[metric]["difference"]) is not None]
        middle = statistics.median(apart or [0.0])
        alike = sum(one * middle > 0 for one in apart)
        if abs(middle) >= SHIFT:
            told.append(f"{COLUMNS[metric].title} {middle:+.1f} ({alike} of {len(apart)} rows)")
    return f"Shifts that most rows share (median): {', '.join(told)}." if told else ""


def row_of(item: Item, spec: Spec, config: Config, **found: Any) -> Map:
    """A row of the map; without anything found, of a block that was not run."""
    at = {"item": item.id, "title": item.title, "block": spec.name, "status": "not run", "rounds": "0"}
    at |= {"paper_rounds": rounds_of(config), "seeds": "", "paper_seeds": len(config.seed_list)}
    nothing = {"absent": "all", "outdated": "", "minutes": round(price(spec)), "result": "", "made": ""}
    return at | nothing | {"differs": "", "note": ""} | found


def rounds_of(config: Config) -> str:
    return f"{config.training.rounds}+{config.unlearning.rounds}"


def of_analyses(item: Item, looked: Sequence[analyses.KeptAnalysis]) -> tuple[Section | None, list[Map]]:
    """An item that takes models, from what was measured on them: on one seed."""
    there, rows = dict[str, analyses.KeptAnalysis](), list[Map]()
    current = [one for one in looked if not analyses.outdated(one)]
    for spec in item.runs["paper"]:
        config, found = spec.config(), Map(paper_seeds=1)
        near = analyses.fitting(current, item, spec)
        if pair := near or analyses.fitting(looked, item, spec):
            one, different = pair
            found |= {"rounds": rounds_of(Config.kept(one.config)), "result": f"{analyses.FOLDER}/{one.name}.json"}
            found |= {"seeds": str(one.made["seed"]), "made": made_by([one.made]), "differs": "; ".join(different)}
            found |= {"status": "outdated", "outdated": analyses.outdated(one)}
        if near:
            there[spec.name] = near[0]
            done = found["rounds"] == rounds_of(config)
            found |= {"absent": "", "status": "done", "minutes": 0} if done else {"absent": "", "status": "partial"}
        rows.append(row_of(item, spec, config, **found))
    return analyses.shown(item, there) if there else None, rows


def of_results(item: Item, kept: Mapping[str, record.KeptResults]) -> tuple[Section | None, list[Map]]:
    """An item that takes lines, from those that were kept, by the names of their files."""
    there, within, rows = dict[str, list[Line]](), dict[str, float](), list[Map]()
    every = [*kept.values()]
    fitting = {spec: record.fitting(every, spec.preset, spec.config().to_json()) for spec in item.runs["paper"]}
    run = {spec: [pair for pair in found if _begun(pair[0], spec)] for spec, found in fitting.items()}
    drawn = item.view not in ("results", "bars")
    if drawn:  # a curve is missed in a picture; a row or a bar that is not there is said
        run = {spec: [pair for pair in found if _complete(pair[0], spec)] for spec, found in run.items()}
    near = {spec: [pair for pair in found if _counts(pair[0], spec, drawn)] for spec, found in run.items()}
    if item.view == "ratios":
        near = _alike(near)
    for spec, found in near.items():
        config = spec.config()
        if not (pairs := found or run[spec]):
            rows.append(row_of(item, spec, config))
            continue
        one, different = pairs[0]
        now, own = record.current(one), Config.kept(one.config)
        if found:
            there[spec.name], within[spec.name] = _chosen(now, spec), own.evaluation.recovered_within
        have, before, cut = _pairs(now), _pairs(one), rounds_of(own) != rounds_of(config)
        left = {seed: [m for m in config.methods.run if (seed, m) not in have] for seed in config.seed_list}
        old = {seed: [m for m in (*config.methods.run, *OURS) if (seed, m) in before - have] for seed in one.seeds}
        needed = dict.fromkeys(config.seed_list, config.methods.run) if cut else left
        row = Map(rounds=rounds_of(own), seeds=" ".join(map(str, now.seeds)), absent=by_seed(left))
        row |= {"status": "outdated" if not found else "partial" if cut or any(left.values()) else "done"}
        row |= {"outdated": by_seed(old), "differs": "; ".join(different), "made": made_by(now.made)}
        row |= {"minutes": round(sum(priced(config, some) for some in needed.values() if some))}
        row |= {"result": next(name for name, other in kept.items() if other is one), "note": notes(one, kept)}
        rows.append(row_of(item, spec, config, **row))
    partial = {row["block"] for row in rows if row["rounds"] != row["paper_rounds"]}
    return _section(item, there, within, partial) if there else None, rows


def by_seed(labels: Mapping[int, Sequence[str]]) -> str:
    """`0: pgd; 1: ft not`, without the seeds that have nothing."""
    return "; ".join(f"{seed}: {' '.join(some)}" for seed, some in labels.items() if some)


def made_by(made: Sequence[Mapping[str, Any]]) -> str:
    """Hardware, days and commits."""
    where, when, what = (
        {one[name][:cut] for one in made} for name, cut in (("hardware", None), ("created", 10), ("commit", 7))
    )
    return f"{'; '.join(sorted(where))}; {', '.join(sorted(when))}; commit {', '.join(sorted(what))}"


def notes(found: record.KeptResults, kept: Mapping[str, record.KeptResults]) -> str:
    """Where θ* of a seed was trained more than once, here or for another file, and is not the same."""
    told = [
        f"θ* of seed {seed} was trained more than once{_apart(points)}"
        for seed, points in record.retrained_otherwise(found).items()
    ]
    for seed, other, points in record.trained_elsewhere(found, kept.values()):
        name = next(name for name, one in kept.items() if one is other)
        told.append(f"θ* of seed {seed} was trained again as for {name}{_apart(points)}")
    return "; ".join(told)


def _apart(points: float | None) -> str:
    return " and differs" if points is None else f" and differs by at most {points:.2f} points of accuracy"


def _section(
    item: Item, there: Mapping[str, list[Line]], within: Mapping[str, float], partial: Collection[str]
) -> Section:
    """An item's view of the lines of its runs; a partial run gets no verdict."""
    if item.view == "gaps":
        return results.gaps(item, there)
    under = {name: results.under_rules(lines, within[name]) for name, lines in there.items()}
    if item.view == "results":
        return results.table(item, under, frozenset(partial))
    made = results.bars if item.view == "bars" else results.ratios
    return made(item, {name: own["best-gap"] for name, own in under.items()})


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
    methods = spec.config().methods.run
    shown = {"before", *methods, *(OURS if "not" in methods else [])}
    return [line for line in kept.lines() if line["method"] in shown]


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


def _pairs(kept: record.KeptResults) -> set[tuple[int, str]]:
    return {(int(job.partition("/")[0]), job.rpartition("/")[2]) for job in kept.jobs}


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
            style: dict[str, Any] = {"linewidth": 2.6 if method in ("not", "sealed") else 1.3}
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


def _of(kept: record.KeptResults, method: str) -> list[str]:
    return [job for job in kept.jobs if job.rpartition("/")[2] == method]


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

How much of the paper was run here? Of {blocks} blocks of its tables and figures: {told}.
The CNN is *fitted*: the paper does not describe it fully, so we chose one by its accuracy.
[Where we differ](explanation/differences.md) says what explains the differences, and what stays open.

[All blocks as a table](reproduction.csv)

- **Status**: `done` has the paper's rounds, seeds and methods. `partial` lacks some: compare its rows with
  each other, not with the paper. `outdated` was run before its method changed.
- **Rounds**: training + unlearning, ours / the paper's; one value if equal (epochs in Table 6).
- **Minutes**: what is left to `done`, on one H200 in bf16 (CNN in float32: three times). Measured seconds of
  a round times rounds; calculated for CIFAR-100 and Table 6, guessed for EfficientNet. Items that share runs
  each count them.

`results/map.csv` adds missing methods, hardware, commits and settings that differ, `results/tables/` each
item's numbers, `results/*.json` every evaluated round.
"""
FIGURE_TEXT = """![Average gap to Retrain after each round, Table 1, CIFAR-10, CNN](reproduction.svg)

The table below takes each method's round nearest to Retrain (`best-gap`). Rows marked *ours* are Sealed, and cycles of
60 rounds at peak 0.06 with three local epochs, as in the [price list](explanation/price.md).
"""
TAIL = """`=`: our value and the paper's agree within two standard deviations. `~`: they do not, but the
method lies on the same side of Retrain in both. `≠`: neither ([exactly](how-to/paper.md#verdicts)). To run a
block, then write this page:

```sh
python tools/reproduction.py blocks
python tools/reproduction.py blocks vit-table-1 --out runs --budget 25m
python tools/reproduction.py page
```
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
