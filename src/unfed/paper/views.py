"""What an item shows of its runs.

    results     the methods' rows, with gaps to Retrain and costs                                   tables 1 to 6, 8
    bound       t ≥ …, and what that time would cost                                                table 7
    bars        the same rows as a picture                                                          figure 1
    gaps        the average gap to Retrain after each round                                         figures 4, 5
    ratios      gap and cost by the share of clients that leave                                     figure 6
    cka         each layer's CKA with the original model, before and after recovery                 figures 3, 7
    spectrum    Ψ(α): which share of the gradients' variance lies in which share of directions      figure 8

Analyses are made of the run's first repetition; a value that could not be had says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unfed.analysis import bound, cka, spectrum
from unfed.api import results as reported
from unfed.errors import UnfedError, listed
from unfed.measures.metrics import GAP_METRICS, mean_std, reading
from unfed.methods.not_ import NoT
from unfed.model.layers import choose
from unfed.model.params import Params
from unfed.model.perturb import graft, negate
from unfed.paper import pictures, units
from unfed.paper.catalogue import Item, Spec, published
from unfed.paper.pictures import Line, Picture
from unfed.paper.units import Costs
from unfed.report import tables
from unfed.report.rules import Row, trajectories
from unfed.runs.config import Config
from unfed.runs.run import Run
from unfed.values import Value, is_measured

BY = "Data and model"
MOST = 2_000
"""Test images on which models are compared."""
SHOWN = 100
"""Points of a spectrum's curve."""


@dataclass(frozen=True)
class Grid:
    """A table of plain cells."""

    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """What an item became."""

    item: Item
    rows: tuple[Row, ...] = ()
    grid: Grid | None = None
    pictures: tuple[Picture, ...] = ()
    published: Grid | None = None
    said: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers of the pictures, for whoever wants to draw them again."""


Runs = Mapping[Spec, Run]


@dataclass(frozen=True)
class View:
    """How an item is made of its runs, and which methods it needs in each of them."""

    make: Callable[[Item, Runs], Section]
    needs: tuple[str, ...] = ("retrain",)

    def check(self, item: Item, name: str, config: Config) -> None:
        """What would only be missed after hours."""
        missing = [method for method in self.needs if method not in config.methods.run]
        if missing:
            raise UnfedError(f"{item.heading} needs {listed(missing)} in {name}; add them to methods.run.")
        ours = config.method("not") if "not" in self.needs else NoT()
        if not isinstance(ours, NoT) or ours.perturbation != "negate" or ours.include_bias:
            raise UnfedError(f"{item.heading} compares plain negation; leave methods.not as it is, but for its layers.")
        if len(config.requests()) != 1:
            raise UnfedError(f"{item.heading} shows one request, and {name} has {len(config.requests())}; give it one.")


def results(item: Item, runs: Runs) -> Section:
    found = {spec.name: [replace(row, request=spec.name) for row in reported(run)] for spec, run in runs.items()}
    data = {name: {tables.name_of(row.method): _numbers(row) for row in own} for name, own in found.items()}
    every = tuple(row for own in found.values() for row in own)
    ours = {
        (row.request, tables.name_of(row.method)): Costs(*(row.costs[c].mean for c in Costs._fields)) for row in every
    }
    said = (units.note(item.published),) if item.published else ()
    return Section(item, every, published=_published(item, ours), said=said, data=data)


def bars(item: Item, runs: Runs) -> Section:
    drawn, data = [], {}
    for spec, run in runs.items():
        found = [row for row in reported(run) if not row.is_before]
        drawn.append(pictures.bars(found, spec.name, item=item.id))
        data[spec.name] = {tables.name_of(row.method): _numbers(row) for row in found}
    return Section(item, pictures=tuple(drawn), data=data)


def gaps(item: Item, runs: Runs) -> Section:
    drawn, data = [], {}
    for spec, run in runs.items():
        lines = [Line(tables.name_of(label), points) for label, points in gaps_by_round(run).items()]
        drawn.append(pictures.curves(lines, spec.name, "round", "average gap to Retrain", item=item.id, rooted=True))
        data[spec.name] = {line.name: line.points for line in lines}
    said = ("Here a gap is taken within each repetition, then averaged; the tables take it between averages.",)
    return Section(item, pictures=tuple(drawn), said=said, data=data)


def ratios(item: Item, runs: Runs) -> Section:
    """Runs are called by the share that leaves."""
    found = {spec.name: {row.method: row for row in reported(run)} for spec, run in runs.items()}
    methods = [m for m in next(iter(found.values())) if m not in ("before", "retrain")]
    drawn = []
    for what, key in (("average gap to Retrain", "average_gap"), ("FLOPs", "flops")):
        series = {tables.name_of(m): [(name, _value(by[m], key)) for name, by in found.items()] for m in methods}
        drawn.append(pictures.groups(series, what, "forgotten share", item=item.id))
    data = {
        name: {tables.name_of(m): _numbers(row) for m, row in by.items() if m != "before"} for name, by in found.items()
    }
    return Section(item, pictures=tuple(drawn), data=data)


def compare_layers(item: Item, runs: Runs) -> Section:
    drawn, data = [], {}
    for spec, run in runs.items():
        world, models = run.world(_seed(run)), _models(run)
        old = models.pop("original")
        if world.held_out is None:
            raise UnfedError(f"{spec.name} has no test images, on which models could be compared.")
        rows_ = torch.arange(min(len(world.held_out), MOST))
        found = cka.compare(world.template, old, models, world.held_out, rows_, batch=min(256, len(rows_)))
        fresh = found["Retrain, round 0"]
        scaled = {
            model: cka.normalised(layers, fresh) for model, layers in found.items() if model != "Retrain, round 0"
        }
        for what, by_model, bottom in (("CKA", found, 0.0), ("normalised CKA", scaled, None)):
            lines = [Line(model, _drawn(layers)) for model, layers in by_model.items()]
            up = f"{what} with the original"
            drawn.append(pictures.curves(lines, f"{spec.name}: {what}", "layer", up, item=item.id, bottom=bottom))
        data[spec.name] = {"CKA": found, "normalised": scaled}
    said = ("Normalised: 0 is what a fresh model has in common with the original, 1 is the original itself.",)
    return Section(item, pictures=tuple(drawn), said=said, data=data)


def _drawn(layers: Mapping[str, Value]) -> list[tuple[str, float]]:
    """Points of a curve; it has a hole where nothing was measured."""
    return [(layer, value if is_measured(value) else math.nan) for layer, value in layers.items()]


def times(item: Item, runs: Runs) -> Section:
    body, data, ours = [], {}, {}
    for spec, run in runs.items():
        world, models, config = run.world(_seed(run)), _models(run), run.config
        sets = _sets(run)
        for method, start in (("ft", models["original"]), ("not", models["NoT, round 0"])):
            end = models[f"{tables.name_of(method)}, last round"]
            retrain = models["Retrain, last round"]
            found = bound.bound(world.template, sets, start, retrain, retrain, [start, end])
            lr = world.unlearning_settings(False, method).phase.optimiser.lr
            clients = sum(len(c.view("retain")) > 0 for c in world.scoped(run.config.requests()).values())
            flops = found.flops(lr, clients, config.training.batch, world.forward_flops)
            said_flops = flops if isinstance(flops, str) else tables.flops_text(flops)
            body.append((spec.name, tables.name_of(method), f"{found.time:.2g}", said_flops))
            data[f"{spec.name}, {tables.name_of(method)}"] = {"time": _finite(found.time), "flops": _finite(flops)}
            ours[spec.name, tables.name_of(method)] = Costs(tables.DASH, _finite(flops))
    grid = Grid((BY, "Method", "t at least (learning rate × steps)", "FLOPs for that time"), tuple(body))
    said = (
        "The model that was trained for long is Retrain's own; the paper trains one for twice as many rounds.",
        units.note(item.published),
    )
    return Section(item, grid=grid, published=_published(item, ours), said=said, data=data)


def directions(item: Item, runs: Runs) -> Section:
    drawn, body, data, said = [], [], {}, list[str]()
    for spec, run in runs.items():
        world, models, sets = run.world(_seed(run)), _models(run), _sets(run)
        starts = {"FT": models["original"], "NoT": models["NoT, round 0"], "Retrain": world.fresh(1)}
        lines, numbers = [], dict(spec.numbers)
        for label, start in starts.items():
            sample = spectrum.gradients(world.template, start, sets.source, sets.retain, seed=0, **numbers)
            found = spectrum.content(sample)
            steps = max(1, len(found.psi) // SHOWN)
            lines.append(Line(label, [((i + 1) / len(found.psi), float(p)) for i, p in enumerate(found.psi)][::steps]))
            body.append((spec.name, label, f"{found.alpha(0.95):.2f}"))
        up = "Ψ(α), share of variance"
        drawn.append(pictures.curves(lines, spec.name, "α, share of directions", up, item=item.id, bottom=0.0))
        data[spec.name] = {line.name: line.points for line in lines} | {"numbers": numbers}
        told = ", ".join(f"{key} {value}" for key, value in numbers.items())
        said.append(f"{spec.name}: {told}; batches and coordinates are the same for every model.")
    said.append("Compare models, do not read single values: α scatters where coordinates outnumber batches.")
    grid = Grid((BY, "Start of", "α that holds 95 %"), tuple(body))
    return Section(item, grid=grid, pictures=tuple(drawn), said=tuple(said), data=data)


ANALYSED = ("retrain", "ft", "not")
VIEWS: dict[str, View] = {
    "results": View(results),
    "bars": View(bars),
    "gaps": View(gaps),
    "ratios": View(ratios),
    "cka": View(compare_layers, ANALYSED),
    "bound": View(times, ANALYSED),
    "spectrum": View(directions, ANALYSED),
}


# --- reading runs -----------------------------------------------------------------------------------------------------


def gaps_by_round(run: Run) -> dict[str, list[tuple[float, float]]]:
    """label → (round, mean over seeds of the average gap to that seed's Retrain)."""
    (methods,) = trajectories(run.lines()).values()
    if "retrain" not in methods:
        raise UnfedError("A gap is taken to Retrain, which this run does not have; add it to methods.run.")
    goal = {seed: lines[-1] for seed, lines in methods["retrain"].items()}
    found: dict[str, list[tuple[float, float]]] = {}
    for label, by_seed in methods.items():
        if label in ("retrain", "before"):
            continue
        by_round: dict[int, list[float]] = {}
        for seed, lines in by_seed.items():
            for line in lines:
                apart = [_apart(line, goal[seed], metric) for metric in GAP_METRICS]
                if all(math.isfinite(gap) for gap in apart):
                    by_round.setdefault(int(line["round"]), []).append(sum(apart) / len(apart))
        found[label] = [(t, sum(values) / len(values)) for t, values in sorted(by_round.items())]
    return found


def _apart(line: Mapping[str, Any], goal: Mapping[str, Any], metric: str) -> float:
    one, other = (mean_std([reading(entry, metric)]).mean for entry in (line, goal))
    return abs(one - other) if is_measured(one) and is_measured(other) else math.nan


def _models(run: Run) -> dict[str, Params]:
    """The models that the paper's analyses compare; round 0 is where fine-tuning starts."""
    seed, request = _seed(run), run.config.requests()[0].id
    world, old = run.world(seed), run.model(seed=seed, method="train")
    ours = run.config.method("not")
    assert isinstance(ours, NoT)  # `View.check` has seen to it
    negated = choose(world.template.module, ours.layers)
    ends = {m: run.model(seed=seed, request=request, method=m) for m in ANALYSED}
    fresh = world.fresh(1)
    return {
        "original": old,
        "FT, last round": ends["ft"],
        "NoT, round 0": negate(old, negated),
        "NoT, last round": ends["not"],
        "Retrain, round 0": fresh,
        "Retrain, last round": ends["retrain"],
        "negated, rest random": negate(graft(fresh, negated, donor=old), negated),
    }


def _sets(run: Run) -> bound.Sets:
    holders = list(run.world(_seed(run)).scoped(run.config.requests()).values())
    rows_ = {view: torch.cat([c.rows[c.view(view)] for c in holders]) for view in ("retain", "forget")}
    return bound.Sets(holders[0].source, rows_["retain"], rows_["forget"])


def _seed(run: Run) -> int:
    return run.config.seed_list[0]


def _finite(value: Value) -> Value:
    return (
        value
        if isinstance(value, str) or math.isfinite(value)
        else "not measured: nothing drives this fine-tuning, the bound is infinite"
    )


def _value(row: Row, key: str) -> float:
    """As a picture needs it: nothing is drawn where nothing was measured."""
    value = _numbers(row)[key]
    return float(value) if is_measured(value) else math.nan


def _numbers(row: Row) -> dict[str, Any]:
    costs = {cost: row.costs[cost].mean for cost in ("comm_bytes", "flops")}
    return {metric: row.metrics[metric].mean for metric in GAP_METRICS} | costs | {"average_gap": row.average_gap.mean}


def _published(item: Item, ours: Mapping[tuple[str, str], Costs]) -> Grid | None:
    """The paper's own rows; where we ran the same data, model and method, our costs beside its, in its units."""
    found = published(item.published) if item.published else ()
    if not found:
        return None
    if item.view == "bound":
        columns = {"t_unlearn": "t at least", "est_flops": "FLOPs"}
    else:
        columns = {"retain": "Retain", "forget": "Forget", "test": "Test", "mia": "MIA", "avg_gap": "Avg. gap"}
        columns |= {"comm_bytes": "Bytes", "flops": "FLOPs"}
    header = [BY, "Method", *columns.values()]
    body = [[_where(r), r["method"], *(r[c] or tables.DASH for c in columns)] for r in found]
    comparable = item.published != units.CENTRAL and any((_where(r), r["method"]) in ours for r in found)
    if comparable:
        header += ["Ours, its FLOPs"] if item.view == "bound" else ["Ours, its bytes", "Ours, its FLOPs"]
        for cells, row in zip(body, found, strict=True):
            cells += _in_its_units(item, row, ours.get((_where(row), row["method"])))
    return Grid(tuple(header), tuple(tuple(cells) for cells in body))


def _where(row: Mapping[str, str]) -> str:
    return f"{row['dataset']}, {row['model']}"


def _in_its_units(item: Item, row: Mapping[str, str], own: Costs | None) -> list[str]:
    bound_ = item.view == "bound"
    if own is None:
        return [tables.DASH] if bound_ else [tables.DASH] * 2
    there = units.paper_units(*own, vit=row["model"] == "ViT", again=1 if bound_ else units.CLIENTS)
    return [units.text(there.flops)] if bound_ else [units.text(value) for value in there]
