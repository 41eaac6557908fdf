"""Which methods differ from the paper, and how: read from the evaluated rounds of kept results, without a GPU.

    PYTHONPATH=src python benchmarks/differences_kept.py results/cifar10-cnn-….json [--write]

Five tables, each of means over seeds, gaps taken between the means as the paper takes them:

    at the paper's price    the gap at the round that the paper's bytes pay for, and the round where ours is the paper's
    another Retrain         how far a method is from *our Retrain after the same number of rounds*, along the way
    whose row is it         how far a method's row is from Retrain's and from FT's, in the paper and here
    half                    FedEraser's row after half of its rounds, beside the paper's
    parts                   what each gap is made of, metric by metric, with its sign

The paper's number of rounds is its bytes over Retrain's, times ours: an inference, because it prints no rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import paper_record as record

from unfed.measures.metrics import GAP_METRICS
from unfed.measures.trajectory import Line
from unfed.paper.items import published
from unfed.report import rows
from unfed.report.rules import trajectories
from unfed.report.tables import name_of, row_name

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "differences.md"
BEGIN, END = "<!-- made by benchmarks/differences_kept.py: parts -->", "<!-- until here -->"
BLOCK = ("CIFAR-10", "CNN")
ALONG = (200, 500, 1000, 1500, 2000)
Metrics = Mapping[str, float]
BySeed = Mapping[int, Sequence[Line]]


def still_true(path: Path, needed: Sequence[str] = ("retrain",)) -> record.KeptResults:
    """Kept results without the rows that a revision of their method has outdated; refused where needed ones are."""
    found = record.current(whole := record.read(path))
    there = {job.rpartition("/")[2] for job in found.jobs}
    if missing := [name_of(method) for method in needed if method not in there]:
        said = " ".join(record.outdated(whole))
        raise SystemExit(f"{path.name} has no row of {', '.join(missing)} that still counts. {said}".strip())
    return found


class Kept:
    """A block of table 1: the paper's rows, and the evaluated rounds of ours by method."""

    def __init__(self, path: Path) -> None:
        found = still_true(path, ("retrain", "ft", "federaser"))
        (self.methods,) = (by for request, by in trajectories(found.lines()).items() if request)
        self.best = {row.method: row for row in rows(found.lines(), "best-gap")}
        self.paper = {row["method"]: row for row in published("T1") if (row["dataset"], row["model"]) == BLOCK}
        self.rounds = max(line["round"] for line in next(iter(self.methods["retrain"].values())))
        self.validation = float(found.config["partition"]["validation"])
        self.both = [m for m in self.methods if name_of(m) in self.paper and m != "retrain"]
        self.own = [m for m in self.methods if m == "sealed"]

    def reference(self, method: str, round: int | None = None) -> Metrics:
        """Retrain's mean over the seeds that a method has, at its end or at a round."""
        seeds = self.methods[method]
        own = {seed: lines for seed, lines in self.methods["retrain"].items() if seed in seeds}
        return at(own, self.rounds if round is None else round)

    def gap(self, method: str, round: int) -> float:
        """Of the means over seeds, at the evaluated round that is nearest."""
        return apart(at(self.methods[method], round), self.reference(method))

    def share(self, method: str) -> float:
        """The method's bytes over Retrain's, as the paper prints them."""
        return float(self.paper[name_of(method)]["comm_bytes"]) / float(self.paper["Retrain"]["comm_bytes"])

    def equals(self, method: str, gap: float) -> int | None:
        """The first evaluated round at which our gap is no larger, as if a method that is not done had ended there."""
        rounds = [line["round"] for line in next(iter(self.methods[method].values())) if line["round"] >= 1]
        return next((round for round in rounds if self.gap(method, round) <= gap), None)


def at(by_seed: BySeed, round: int, metrics: Sequence[str] = GAP_METRICS) -> Metrics:
    """The mean over seeds at the evaluated round that is nearest."""
    lines = [min(lines, key=lambda line: abs(line["round"] - round)) for lines in by_seed.values()]
    return {metric: fmean(float(str(line.get(metric))) for line in lines) for metric in metrics}


def apart(one: Metrics, other: Metrics) -> float:
    """The mean of the four differences: the paper's average gap, between any two models."""
    return fmean(abs(one[metric] - other[metric]) for metric in GAP_METRICS)


def printed(row: Mapping[str, str]) -> Metrics:
    return {metric: float(row[metric]) for metric in GAP_METRICS}


def price_table(kept: Kept) -> str:
    """Our gap where the paper's would have ended, and the round where ours is as large as the paper's."""
    heads = (
        "Method",
        "Paper's gap",
        "Its bytes / Retrain's",
        "Ours at that round",
        "Ours at best",
        "Ours ≤ paper's from",
    )
    lines = [_line(heads), "|---|" + "---:|" * (len(heads) - 1)]
    for method in kept.both:
        row, share = kept.paper[name_of(method)], kept.share(method)
        paper, round = apart(printed(row), printed(kept.paper["Retrain"])), share * kept.rounds
        equal, best = kept.equals(method, paper), kept.best[method].average_gap.mean
        there = f"{kept.gap(method, int(round)):.2f} (round {min(kept.rounds, int(round)):,})"
        when = "never" if equal is None else f"round {equal:,}"
        lines.append(_line([row_name(method), f"{paper:.2f}", f"{share:.2f}", there, f"{best:.2f}", when]))
    return "\n".join(lines) + "\n"


def disguise_table(kept: Kept) -> str:
    """How far each method is from our own Retrain after as many rounds."""
    rounds = [r for r in ALONG if r <= kept.rounds]
    heads = ("Method", *(f"round {r:,}" for r in rounds))
    lines = [_line(heads), "|---|" + "---:|" * len(rounds)]
    for method in [*kept.both, *kept.own]:
        found = [apart(at(kept.methods[method], r), kept.reference(method, r)) for r in rounds]
        lines.append(_line([row_name(method), *(f"{value:.2f}" for value in found)]))
    ends = [at({seed: lines}, kept.rounds) for seed, lines in kept.methods["retrain"].items()]
    pairs = [apart(a, b) for i, a in enumerate(ends) for b in ends[i + 1 :]]
    if pairs:
        lines.append(_line(["Retrain of another seed, at the end", *["–"] * (len(rounds) - 1), f"{fmean(pairs):.2f}"]))
    return "\n".join(lines) + "\n"


def likeness_table(kept: Kept) -> str:
    """How far each row of table 1 is from Retrain's and from FT's row, as printed and as ours."""
    heads = ("Method", "Paper: to Retrain", "Paper: to FT", "Ours: to Retrain", "Ours: to FT")
    lines = [_line(heads), "|---|" + "---:|" * (len(heads) - 1)]
    for method in kept.both:
        if method == "ft":
            continue
        row = printed(kept.paper[name_of(method)])
        paper = [apart(row, printed(kept.paper[other])) for other in ("Retrain", "FT")]
        own = at(kept.methods[method], kept.rounds)
        seeds = {seed: lines for seed, lines in kept.methods["ft"].items() if seed in kept.methods[method]}
        ours = [apart(own, kept.reference(method)), apart(own, at(seeds, kept.rounds))]
        lines.append(_line([row_name(method), *(f"{value:.2f}" for value in (*paper, *ours))]))
    return "\n".join(lines) + "\n"


def half_table(kept: Kept) -> str:
    """FedEraser's row at half of its rounds and at its end, Retain over training rows and over all rows."""
    heads = ("FedEraser", "Retain, training rows", "Retain, all rows", "Forget", "Test", "MIA")
    lines = [_line(heads), "|---|" + "---:|" * (len(heads) - 1)]
    own = kept.methods["federaser"]
    for name, round in (("ours after half of its rounds", kept.rounds // 2), ("ours at its end", kept.rounds)):
        there = at(own, round)
        held_out = at(own, round, ("validation",))["validation"]
        every = (1 - kept.validation) * there["retain"] + kept.validation * held_out
        values = (there["retain"], every, *(there[metric] for metric in GAP_METRICS[1:]))
        lines.append(_line([name, *(f"{value:.2f}" for value in values)]))
    row = kept.paper[name_of("federaser")]
    lines.append(_line(["the paper's (which rows, it does not say)", "–", *(row[metric] for metric in GAP_METRICS)]))
    return "\n".join(lines) + "\n"


def parts_table(kept: Kept) -> str:
    """What the average gap is made of: method − Retrain per metric, as printed and as ours at best."""
    heads = ("Method", *(f"{m.upper() if m == 'mia' else m.capitalize()}: paper / ours" for m in GAP_METRICS))
    lines = [_line(heads), "|---|" + "---:|" * len(GAP_METRICS)]
    for method in kept.both:
        row, best = kept.paper[name_of(method)], kept.best[method].metrics
        reference = kept.reference(method)
        cells = []
        for metric in GAP_METRICS:
            theirs = float(row[metric]) - float(kept.paper["Retrain"][metric])
            cells.append(f"{theirs:+.2f} / {float(str(best[metric].mean)) - reference[metric]:+.2f}")
        lines.append(_line([row_name(method), *cells]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


TABLES = {
    "price": price_table,
    "disguise": disguise_table,
    "likeness": likeness_table,
    "half": half_table,
    "parts": parts_table,
}


def filled(page: str, kept: Kept) -> str:
    """The page with its table of parts made again; the other tables are printed only."""
    before, found, rest = page.partition(BEGIN)
    if not found:
        raise SystemExit(f"{PAGE.name} has no place for a table; put {BEGIN} and {END} where it is to stand.")
    return f"{before}{BEGIN}\n\n{parts_table(kept)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("results", type=Path)
    told.add_argument("--write", action="store_true", help="put the parts into docs/explanation/differences.md")
    given = told.parse_args()
    kept = Kept(given.results)
    if given.write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
        return
    for name, made in TABLES.items():
        print(f"{name}\n\n{made(kept)}")


if __name__ == "__main__":
    main()
