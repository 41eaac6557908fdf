"""The models that the paper's analyses compare, of a run's first repetition.

A run keeps where its jobs begin and end, not the way between. Every draw has an address, so `retraced` repeats rounds
of FT and NoT as they were.
"""

from __future__ import annotations

import torch
from torch import nn

from unfed import rng
from unfed.analysis.bound import Sets
from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.methods.not_ import NoT
from unfed.model.layers import Choice, choose
from unfed.model.networks import head_of
from unfed.model.params import Params
from unfed.model.perturb import negate
from unfed.paper.views.base import first_seed
from unfed.report.tables import name_of
from unfed.runs.run import Run
from unfed.runs.world import World

ORIGINAL, START, NEGATED = "original", "Retrain, round 0", "NoT, round 0"
LONG = "retrain-long"
"""The label under which a run trains Retrain for twice as long, if it does."""


def last_round(label: str) -> str:
    """How a method's result is called: `NoT, last round`."""
    return f"{name_of(label)}, last round"


def negated_layers(run: Run) -> tuple[Choice, ...]:
    """L_neg of the run's own NoT."""
    ours = run.config.method("not")
    assert isinstance(ours, NoT)  # `View.check` has seen to it
    return tuple(choose(run.world(first_seed(run)).template.module, ours.layers))


def start_of_retrain(run: Run) -> tuple[Params, str]:
    """Where this run's Retrain really began, and what had to be changed in it to analyse it, if anything.

    A fresh ViT's head is zero by its own rule: its logits are constant and nothing before the head has a gradient, so
    that neither a CKA of the head nor a spectrum exists. There the head is drawn by `nn.Linear`'s rule, which is said.
    """
    world, request = run.world(first_seed(run)), run.config.requests()[0].id
    own = rng.key(world.seeds.request(request), "init")
    params, drawn = fresh_with_head(world, own)
    said = f"A fresh {run.config.model.name} has a zero head; for Retrain's start it is drawn by nn.Linear's rule."
    return params, said if drawn else ""


def fresh_with_head(world: World, seed: int) -> tuple[Params, bool]:
    """A fresh model; a head that is zero by its own rule is drawn by `nn.Linear`'s, and whether it was."""
    params, head = world.fresh(seed), head_of(world.template.module) + "."
    weights = [n for n, t in params.items() if n.startswith(head) and t.dim() == 2]
    if not weights or any(bool(params[name].any()) for name in weights):
        return params, False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % rng.WORD)
        for name in weights:
            drawn = nn.Linear(params[name].shape[1], params[name].shape[0]).weight.detach()
            params = params | {name: drawn.to(params[name])}
    return params, True


def models_of(run: Run, labels: tuple[str, ...]) -> dict[str, Params]:
    """The original, where NoT and Retrain started, and what each of these methods ended with."""
    seed, request = first_seed(run), run.config.requests()[0].id
    old = run.model(seed=seed, method="train")
    ends = {last_round(m): run.model(seed=seed, request=request, method=m) for m in labels}
    starts = {ORIGINAL: old, NEGATED: negate(old, negated_layers(run)), START: start_of_retrain(run)[0]}
    return starts | ends


def sets_of(run: Run, most: int | None = None) -> Sets:
    """D_r and D_u of the run's request, at most so many rows of each."""
    holders = list(run.world(first_seed(run)).scoped(run.config.requests()).values())
    rows = {view: torch.cat([c.rows[c.view(view)] for c in holders])[:most] for view in ("retain", "forget")}
    return Sets(holders[0].source, rows["retain"], rows["forget"], run.config.evaluation.batch)


PLACES = (1, 3, 10, 30, 100)
"""Rounds after which a model is looked at: a slope changes most where recovery begins."""


def retraced(run: Run, label: str, start: Params, places: tuple[int, ...] = PLACES) -> dict[int, Params]:
    """The models of a method after some of its rounds, as far as it has them.

    Its rounds are plain FedAvg, as FT's and NoT's are.
    """
    world, requests = run.world(first_seed(run)), run.config.requests()
    settings = world.unlearning_settings(retrain=False, label=label)
    wanted = [place for place in places if place < settings.rounds]
    clients = world.scoped(requests, gone=requests[:-1])
    members, seed = Members(clients, world.engine(clients)), world.seeds.request(requests[-1].id)
    server = JobServer(world.setup(), members, start, settings, seed)
    state, found = State(start), dict[int, Params]()
    for round in range(1, max(wanted, default=0) + 1):
        state = server.recover(state)
        if round in wanted:
            found[round] = state.params
    return found
