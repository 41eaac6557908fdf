"""The paper's claims tried on the models of a run, without training anything.

    the folder's models ─► Case (θ*, Retrain, NoT, FT, rows to look at) ─► a finding per claim ─► theory/…json, report

`unfed theory RUN` does it. A claim that needs a model which the run does not have says which one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unfed.analysis import cka
from unfed.analysis.activations import activations, called_layers
from unfed.analysis.bound import Sets, unlearning_time
from unfed.analysis.gradient_noise import Descent
from unfed.analysis.theory.compensation import relation_of
from unfed.analysis.theory.distance import lead
from unfed.analysis.theory.jacobian import asymmetry, symmetry_test
from unfed.claims.base import FAILS, UNDER, Claim, Finding, holds_if
from unfed.claims.distances import OTHERS, SLACK
from unfed.claims.gradients import SMALL
from unfed.client.batch import bounds
from unfed.client.scores import score
from unfed.data import Request, Source
from unfed.errors import UnfedError, listed, nearest
from unfed.folder import findings as studies
from unfed.folder.clients import out_of_sight
from unfed.folder.undo_results import Target, targets
from unfed.measures import trajectory
from unfed.model.layers import Choice, choose
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.model.perturb import Perturbed, graft, negate, perturb
from unfed.runs.probe import Probed
from unfed.runs.world import World
from unfed.values import is_measured

WATCHED, READ, FITTED = 360, 2000, 2000
"""Rows that layers are watched on, that accuracies are read on, and that losses and slopes are taken on."""
ENOUGH = 60
"""Held-out rows below which nothing is said about a distribution or an accuracy."""
MOST = 12
"""Layers that are tested one by one; of a deeper network so many, evenly spread."""


class Lacking(Exception):
    """A claim that cannot be tried here, and why."""


@dataclass(frozen=True, eq=False)
class Case:
    """The models of one request, and rows to look at them on."""

    world: World
    requests: Sequence[Request]
    before: Params
    left: Mapping[str, Params]
    """What each method left, by its label."""
    rounds: Mapping[str, int]
    """How many rounds each took."""
    perturbed: Perturbed | None = None
    """What this run's NoT did to which layers."""

    def of(self, label: str) -> Params:
        """The model of a method."""
        if label not in self.left:
            raise Lacking(f"this run has no model of {label} for the request")
        return self.left[label]

    @cached_property
    def first(self) -> tuple[Choice, ...]:
        return choose(self.world.template.module, ("first",))

    @cached_property
    def test(self) -> Source:
        if self.world.held_out is None:
            raise Lacking("the run has no held-out data")
        return self.world.held_out

    @property
    def many(self) -> Source:
        """The same, if there are enough rows to tell something of all that could have been drawn."""
        if len(self.test) < ENOUGH:
            raise Lacking(f"the run holds out {len(self.test)} rows, too few to tell; it takes {ENOUGH}")
        return self.test

    @cached_property
    def images(self) -> Tensor:
        return torch.arange(min(WATCHED, len(self.test)))

    @cached_property
    def sets(self) -> Sets:
        """D_r and D_u, of many rows a part; what was purged is in neither."""
        holders = list(self.world.scoped(self.requests).values())
        rows = {view: torch.cat([c.rows[c.view(view)] for c in holders]) for view in ("retain", "forget")}
        if purged := [request for request in self.requests if request.purged]:
            away = torch.cat([c.rows[c.view("forget")] for c in self.world.scoped(purged).values()])
            rows["forget"] = rows["forget"][~torch.isin(rows["forget"], away)]
        return Sets(holders[0].source, rows["retain"][:FITTED], rows["forget"][:FITTED])

    def accuracy(self, params: Params) -> float:
        rows = torch.arange(min(READ, len(self.many)))
        return score(self.world.template, params, self.test, rows).accuracy

    def answers(self, params: Params, layer: str) -> Tensor:
        parts = activations(self.world.template, params, self.test, self.images, (layer,))
        return torch.cat([part[layer] for part in parts])


# --- the claims -------------------------------------------------------------------------------------------------------


def time(case: Case) -> Finding:
    """The bound for the way that NoT went, beside the time that it took."""
    end = case.of("not")
    if case.perturbed is None or case.perturbed.how != "negate":
        raise Lacking("this run's NoT does not negate")
    theta = negate(case.before, case.perturbed.choices)
    template, sets = case.world.template, case.sets
    if not len(sets.forget):
        raise Lacking("the forgotten rows are gone, and the loss gap is taken on them")
    taken = _taken(case, "not")
    steepest = max(sets.steepness(template, params) for params in (theta, end))
    bound = unlearning_time(
        sets.delta(template, end),
        sets.delta(template, theta),
        sets.losses(template, theta)[0],
        sets.losses(template, end)[0],
        steepest,
    ).time
    return Finding(
        holds_if(bound <= taken),
        f"NoT moved the loss gap in time {taken:.3g} (η / (1 − μ) a step), where the bound asks for at least"
        f" {bound:.2g}: {bound / taken:.2g} of it. The slope is the larger one of start and end.",
        data={"bound": bound, "taken": taken, "slope": steepest},
    )


def _taken(case: Case, label: str) -> float:
    """How long a method's rounds were: η / (1 − μ) for every step, at the rate that its round had."""
    settings = case.world.unlearning_settings(False, label)
    phase, step = settings.phase, settings.phase.optimiser
    if step.rule != "sgd":
        raise Lacking(f"the rounds were run by {step.rule}, and the theorem counts the time of plain descent")
    members = [len(c.view("retain")) for c in case.world.scoped(case.requests).values() if c.holds("retain")]
    steps = len(bounds(max(members), phase.batch)) * (phase.epochs or 1)
    rates = [settings.schedule.rate(step.lr, r, settings.rounds) for r in range(1, case.rounds[label] + 1)]
    return sum(Descent(rate, phase.batch, step.momentum, len(members)).time(steps) for rate in rates if rate > 0)


def distance(case: Case) -> Finding:
    """Every perturbation of the first layer, where its answers go into a ReLU."""
    layer = into_relu(case.world.template.module, case.first[0].name)
    if layer is None:
        raise Lacking(f"no module behind {case.first[0].name} is a ReLU, and the theorem is about one")
    before, shares, broken = case.answers(case.before, layer), dict[str, float](), 0
    for how in OTHERS:
        try:
            after = perturb(case.before, case.first, how, seed=0, fresh=case.world.fresh)
        except UnfedError:  # a kernel that cannot be turned
            continue
        found = lead(before, case.answers(after, layer))
        shares[how], broken = found.share, broken + (found.slack < -SLACK)
    farthest = max(shares, key=shares.__getitem__)
    return Finding(
        holds_if(broken == 0),
        f"{broken} of {len(shares)} perturbations violate it at {layer}. As a share of negation's way {farthest} goes"
        f" {shares[farthest]:.2f}, a layer drawn anew {shares['reinit']:.2f}, zero {shares['zero']:.2f}.",
        data={"shares": shares, "violations": broken},
    )


def into_relu(module: nn.Module, weight: str) -> str | None:
    """The submodule whose answers a ReLU takes, behind a weight.

    That is the weight's owner, or the norm that follows it.
    """
    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    names = [name for name, _ in leaves]
    owner = weight.rpartition(".")[0]
    if owner not in names:
        return None
    layer = owner
    for name, part in leaves[names.index(owner) + 1 :]:
        if isinstance(part, nn.ReLU):
            return layer
        if "Norm" not in type(part).__name__:
            return None
        layer = name
    return None


def symmetry(case: Case) -> Finding:
    """Per layer of θ*: can Y be told from −Y?"""
    layers = called_layers(case.world.template, case.before, case.many)
    if len(layers) > MOST:
        layers = tuple(layers[round(i * (len(layers) - 1) / (MOST - 1))] for i in range(MOST))
    least, refused = dict[str, float](), set[str]()
    for layer in layers:
        y = case.answers(case.before, layer)
        least[layer] = asymmetry(y).at_least
        if symmetry_test(y, draws=199) <= 0.05:
            refused.add(layer)
    near = [layer for layer, value in least.items() if value <= SMALL and layer not in refused]
    return Finding(
        FAILS if not near else UNDER if len(near) < len(least) else holds_if(True),
        f"TV(Y, −Y) is at least {min(least.values()):.2f} to {max(least.values()):.2f} at {len(least)} layers (95 %"
        f" confidence); symmetry is refused at {len(refused)} of them (p ≤ 0.05).",
        f"these layers, where it may be below {SMALL} and symmetry is not refused: {', '.join(near)}",
        data={"at_least": least, "refused": len(refused)},
    )


KNOWN: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu,
    nn.GELU: nn.functional.gelu,
    nn.SiLU: nn.functional.silu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: torch.sigmoid,
}


def compensation(case: Case) -> Finding:
    """Which activations the network has, and whether each has the relation."""
    found = {type(part) for part in case.world.template.module.modules() if type(part) in KNOWN}
    if not found:
        raise Lacking("no activation of this network is a module of its own, so none can be looked up")
    with_it = sorted(kind.__name__ for kind in found if relation_of(KNOWN[kind]) is not None)
    without = sorted(kind.__name__ for kind in found if kind.__name__ not in with_it)
    told = [f"{', '.join(with_it)} does"] if with_it else []
    told += [f"{', '.join(without)} does not, so no next layer undoes a negation there"] if without else []
    return Finding(
        FAILS if not with_it else UNDER,
        f"Which activation of this network fulfils aψ(x) + bψ(−x) = c: {'; '.join(told)}.",
        f"{', '.join(with_it)}, with the bias negated too",
        data={"with": with_it, "without": without},
    )


def coadaptation(case: Case) -> Finding:
    """θ* with the first layer of Retrain, negated, drawn anew."""
    fresh = case.world.fresh(0)
    made = {
        "whole": case.before,
        "of Retrain": graft(case.before, case.first, donor=case.of("retrain")),
        "negated": negate(case.before, case.first),
        "drawn anew": graft(case.before, case.first, donor=fresh),
    }
    test = {name: case.accuracy(params) for name, params in made.items()}
    lost = {name: test["whole"] - own for name, own in test.items()}
    return Finding(
        holds_if(lost["negated"] >= lost["of Retrain"] / 2 and lost["negated"] >= lost["whole"] + 5),
        f"The model reads {test['whole']:.1f} % of test rows; with {case.first[0].name} of Retrain"
        f" {test['of Retrain']:.1f} %, negated {test['negated']:.1f} %, drawn anew {test['drawn anew']:.1f} %.",
        data={"test": test},
    )


def resemblance(case: Case) -> Finding:
    """CKA with Retrain at the head, of NoT and of FT."""
    head = head_of(case.world.template.module)
    models = {"NoT": case.of("not"), "FT": case.of("ft")}
    found = cka.compare(
        case.world.template, case.of("retrain"), models, case.many, case.images, (head,), batch=len(case.images)
    )
    at = {name: own[head] for name, own in found.items()}
    unmeasured = [value for value in at.values() if not is_measured(value)]
    if unmeasured:
        raise Lacking(str(unmeasured[0]).removeprefix("not measured: "))
    ours, theirs = float(at["NoT"]), float(at["FT"])
    return Finding(
        holds_if(ours > theirs),
        f"CKA with Retrain at the head: NoT {ours:.3f}, FT {theirs:.3f}.",
        data=dict(at),
    )


CLAIMS: tuple[Claim[Case], ...] = (
    Claim("time-flow", "Theorem 1", "moving the loss gap takes at least so long", time),
    Claim("distance", "Theorem 2", "no perturbation moves a ReLU layer's answers much farther than negation", distance),
    Claim("symmetry", "Theorem 3, its premise", "a layer's answers are nearly symmetric around 0", symmetry),
    Claim("compensation", "Theorem 4", "the next layer can undo a negation", compensation),
    Claim("grafting", "Definitions 3 and 4", "negation breaks co-adaptation as a stranger's layer does", coadaptation),
    Claim("cka-retrain", "Figures 3 and 7", "after recovery NoT resembles Retrain more than FT does", resemblance),
)


# --- on a run ---------------------------------------------------------------------------------------------------------


def chosen(names: Sequence[str]) -> list[Claim[Case]]:
    """The claims of these names that can be tried on a run; without a name, all."""
    known = {claim.id: claim for claim in CLAIMS}
    for name in names:
        if name not in known:
            raise UnfedError(
                f"The claim {name!r} is not tried on a run's models; choose {listed(known)}, or leave RUN out."
                f"{nearest(name, known)}"
            )
    return [claim for claim in CLAIMS if not names or claim.id in names]


def try_on(
    run: Probed,
    claims: Sequence[Claim[Case]],
    seed: int | None = None,
    said: Callable[[str], object] = lambda what: None,
) -> list[dict[str, Any]]:
    """Try claims on the models of every request of a repetition.

    The verdicts are kept in the folder and handed back.
    """
    run.permit()
    ways = (
        "try a simulation of the same config (`unfed run`)",
        "`unfed theory` without a run trains its own models",
    )
    if why := out_of_sight(run.description, "tried", *ways):
        raise UnfedError(why)
    one = run.one_seed(seed)
    own = [t for t in targets(run.folder, run.config) if t.job.seed == one]
    there = [t for t in own if run.folder.model_file(t.job).exists() and run.folder.model_file(t.previous).exists()]
    if not there:
        raise UnfedError(_why_none(run, own))
    return [
        _tried(run, [t for t in there if t.job.request == request], claims, said)
        for request in dict.fromkeys(t.job.request for t in there)
    ]


def _why_none(run: Probed, own: Sequence[Target]) -> str:
    """Why claims cannot be tried on a run (not made yet, or purged), and what can be done."""
    graves = [grave for target in own for job in (target.job, target.previous) if (grave := run.folder.buried(job))]
    if graves:
        return (
            f"The model {graves[0].sentence(run.folder.path)}, and a claim is tried on a model and the one"
            f" before it; the next request that is served (`{run.command('forget')}`) leaves such a pair, and `unfed"
            " theory` without a run trains its own."
        )
    for job in (job for target in own for job in (target.previous, target.job)):
        if not run.folder.model_file(job).exists():
            return run.no_model(job)
    return (
        "No model that a method left on a request lies in this folder beside the model before it, so there is nothing"
        f" to try the claims on; `{run.command('forget')}` makes one."
    )


def _tried(
    run: Probed, own: Sequence[Target], claims: Sequence[Claim[Case]], said: Callable[[str], object]
) -> dict[str, Any]:
    leading = next((t for t in own if t.job.label == "not"), own[0])
    job, previous = leading.job, leading.previous
    world = run.world(job.seed)
    world.settle()
    # From the second request of a comparison on, every method goes on from its own model; Retrain from none.
    same = {t.job.label: t.job for t in own if t.previous == previous or t.job.label == "retrain"}
    ends = trajectory.last_of_each(run.folder.lines())
    case = Case(
        world,
        leading.requests,
        run.model(*previous.key),
        {label: run.model(*one.key) for label, one in same.items()},
        {label: int(ends[one.key]["round"]) for label, one in same.items()},
        run.config.method("not").perturbed(world.template.module) if "not" in same else None,
    )
    found = []
    for claim in claims:
        said(f"{job.request}: {claim.place}, {claim.says}")
        told = {"id": claim.id, "place": claim.place, "says": claim.says}
        try:
            finding = claim.attempt(case)
            found.append({**told, "verdict": finding.told, "seen": finding.seen, "data": finding.to_json()["data"]})
        except Lacking as why:
            found.append({**told, "verdict": "not tried", "seen": f"{str(why)[0].upper()}{str(why)[1:]}.", "data": {}})
    models = studies.models_of(run.folder, {"before": previous, **same})
    whole = {"seed": job.seed, "request": job.request, "models": models, "claims": found}
    assert job.request is not None
    studies.keep(studies.theory_file(run.folder, job.seed, job.request), whole)
    return whole
