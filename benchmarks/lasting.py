"""Forgetting that holds, measured: requests one after another, undoing, and whether it is cheaper than starting over.

    python benchmarks/lasting.py --data digits --model cnn,resnet-tiny,vit-tiny,mlp --scope client,class,instance \
        --k 5 --at 1,5 --seeds 0,1,2 --undo all --variants retrain,sealed,not,reinit
    python benchmarks/lasting.py --data cifar10 --model cnn --device cuda --precision bf16 \
        --k 2 --seeds 0 --rounds 250 --every 5 --undo all --rows 1000,10000 --steps 100,800 --fit-batch 256 --passes 2
    python benchmarks/lasting_tables.py                       a CSV of the records

Ten clients, the first one poisoned. θ* is trained with everybody; then k requests come, and each variant serves them in
turn, every request from the model that the one before it left. Beside the variants stand two controls that start over
at every request, under the same learning rate and rounds: `retrain`, and `reinit`, all tensors drawn anew under another
seed. Rounds are counted until the test accuracy is within some points of θ*'s (`--within`): that round is the price.
The model of that round is measured and attacked (`paid`), and so is the model after all rounds (`after`, `undo`). One
line per cell goes into the record as soon as it is known, all variants of the first request before those of the second;
what stands there is not done again.

A variant is a method's name, or a perturbation of Sealed: `permute`, `fade:0.5` (λ), `reinit/late` (which layers).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unfed import plugins, rng
from unfed.client.scores import score
from unfed.config.config import Config
from unfed.data import Request, triggered
from unfed.federation.server import JobServer, Members, Setup
from unfed.federation.state import State
from unfed.measures.undo import flip, refits, traces
from unfed.measures.undo.flip import Knowledge
from unfed.measures.undo.measure import perturbed_before
from unfed.measures.undo.refits import Grid
from unfed.measures.undo.scene import Budget, Scene, View
from unfed.methods import METHODS, Method, Retrain, Sealed
from unfed.methods.sealed import drawn_from
from unfed.model.layers import choose
from unfed.model.params import Params
from unfed.model.sealing import DRAW_BYTES
from unfed.runs.simulated import simulated

RECORDS = Path(__file__).parent / "records"
CONTROLS = ("retrain", "reinit")
KEY = ("data", "model", "scope", "seed", "variant", "k")


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, classes),
    )  # fmt: skip


NAMES = {("digits", "cnn"): "cnn-small", ("digits", "mlp"): "lasting:mlp", ("cifar10", "mlp"): "lasting:mlp"}
"""What a network is called in a config, where it is not by its own name."""

RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"training": {"rounds": 60, "batch": 16, "lr": 0.01}, "data": {"name": "digits", "test_size": 360}},
    "cifar10": {
        "training": {"rounds": 300, "batch": 64, "lr": 1e-3, "momentum": 0.9, "decay": 5e-4},
        "data": {"name": "cifar10", "flip": 0.5},
    },
}
LENGTHS = {"digits": (20, 60, 1), "cifar10": (100, 100, 5)}
"""Rounds of recovery, rounds of the Retrain that gaps refer to, rounds between two looks at the test accuracy."""
RATES = {("digits", "vit-tiny"): 0.1, ("digits", "mlp"): 0.05, ("digits", "resnet-tiny"): 0.05}
"""Learning rates under which a network learns within these rounds, where the recipe's does not."""


@dataclass(frozen=True)
class Told:
    """What the command line says."""

    device: str
    precision: str
    k: int
    at: tuple[int, ...]
    rounds: int
    reference: int
    every: int
    within: float = 2.0
    """Points below θ*'s test accuracy, at the first round of which the price is counted."""
    undo: str = "realign"
    undo_at: tuple[int, ...] = ()
    unharmed: tuple[str, ...] = ()
    """Variants whose rounds are counted but which nobody tries to undo."""
    grid: Grid | None = None
    """Of realign; without it nothing is tried to undo."""
    passes: int = 10
    train_rounds: int | None = None
    lr: float | None = None
    batch: int | None = None
    momentum: float | None = None
    root: str | None = None
    size: int | None = None
    train_size: int | None = None
    test_size: int | None = None
    engine: str = "auto"

    def data(self) -> dict[str, Any]:
        """What is said about the data set, beside what its recipe says."""
        told = {"root": self.root, "resize": self.size, "train_size": self.train_size, "test_size": self.test_size}
        return {name: value for name, value in told.items() if value}


class Bench:
    """A federation with its θ*: one data set, one network, one seed."""

    def __init__(self, data: str, model: str, seed: int, told: Told) -> None:
        self.data, self.model, self.seed, self.told = data, model, seed, told
        recipe = RECIPES[data]
        training = dict(recipe["training"])
        training["lr"] = told.lr or RATES.get((data, model), training["lr"])
        training["batch"] = told.batch or training["batch"]
        training |= {"momentum": told.momentum} if told.momentum else {}
        self.trained = training["rounds"] = told.train_rounds or training["rounds"]
        raw = {
            "name": "lasting",
            "seed": seed,
            "data": recipe["data"] | told.data(),
            "model": {"name": NAMES.get((data, model), model)},
            "poison": {"client": "0", "target_class": 0},
            "training": training,
            "engine": {"precision": told.precision, "name": told.engine},
            "device": told.device,
        }
        self.world = simulated(Config.parse(raw), seed)
        server = self.server([], self.world.template.like, training["rounds"])
        self.theta = _after(server, server.init(), training["rounds"])

    def server(self, requests: Sequence[Request], params: Params, rounds: int) -> JobServer:
        """The server that a method meets on the last of these requests."""
        world = self.world
        clients = world.scoped(requests, gone=requests[:-1])
        settings = replace(world.training_settings(), rounds=rounds)
        seed = world.seeds.request(requests[-1].id) if requests else world.seeds.training
        setup = Setup(world.template, world.fresh, world.forward_flops)
        return JobServer(setup, Members(clients, world.engine(clients)), params, settings, seed)

    def key(self, scope: str, variant: str, k: int) -> dict[str, Any]:
        return dict(zip(KEY, (self.data, self.model, scope, self.seed, variant, k), strict=True))


def requests_of(scope: str, k: int) -> list[Request]:
    """Clients 0, 1, … leave; or classes 9, 8, …; or a tenth of all samples, another one each time."""
    if scope == "client":
        return [Request(f"client-{i}", clients=(str(i),)) for i in range(k)]
    if scope == "class":
        return [Request(f"class-{9 - i}", classes=(9 - i,)) for i in range(k)]
    return [Request(f"samples-{i}", fraction=0.1) for i in range(k)]


def _after(server: JobServer, params: Params, rounds: int) -> Params:
    state = State(params)
    while state.round < rounds:
        state = server.recover(state)
    return state.params


# --- variants ---------------------------------------------------------------------------------------------------------


def method_of(variant: str, module: nn.Module, requests: Sequence[Request]) -> Method:
    """What serves the last of the requests."""
    if variant in METHODS:
        return METHODS[variant]().for_requests(requests)
    if variant == "reinit":
        return Retrain()
    how, _, where = variant.partition("/")
    how, _, keep = how.partition(":")
    hidden = [choice.name for choice in choose(module, ["hidden"])]
    layers = {
        "": hidden,
        "late": hidden[len(hidden) // 2 :],
        "rest": hidden[1:],
        "whole": [choice.name for choice in choose(module, ["conv+dense"])],
    }[where]
    return Sealed(layers=tuple(layers), perturbation=how, keep=float(keep or 0.5)).for_requests(requests)


def begun(variant: str, method: Method, server: JobServer) -> Params:
    """The params with which a variant begins its rounds."""
    if variant == "reinit":
        return server.fresh(rng.key(server.seed, "reinit", "everything"))
    with drawn_from(lambda seed: rng.key(seed, "lasting", variant).to_bytes(DRAW_BYTES, "big")):
        return method.begin(server).params


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Sight:
    """What is looked at under some requests: test accuracy on the way, everything at the end, undoing."""

    bench: Bench
    requests: Sequence[Request]
    before: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        world = self.bench.world
        self.evaluator = world.evaluator(self.requests)
        self.held_out = world.dataset.test
        assert self.held_out is not None
        gone = [c for request in self.requests for c in request.classes]
        labels = self.held_out.labels.cpu()
        self.rows = (~torch.isin(labels, torch.tensor(gone, dtype=labels.dtype))).nonzero().flatten()
        self.before = self.everything(self.bench.theta)
        self.before |= {"undo": self.light(self.bench.theta)} if self.bench.told.grid else {}

    def test(self, params: Params) -> float:
        assert self.held_out is not None
        return score(self.bench.world.template, params, self.held_out, self.rows).accuracy

    def everything(self, params: Params) -> dict[str, Any]:
        seen = self.evaluator(params)
        names = ("retain", "forget", "test", "mia", "backdoor")
        return {n: seen.numbers[n] for n in names} | {"earlier": seen.earlier}

    def undone(self, params: Params, method: Method) -> dict[str, Any]:
        """The worst that a small grid of `realign` brings back among usable models; with `--undo all` the rest too.

        `light` leaves out what fits for long: flip, lift and triggers are left.
        """
        told, scene, grid = self.bench.told, self.scene(), self.bench.told.grid
        assert grid is not None
        known = Knowledge(method.title, method.perturbed(scene.template.module))
        found: dict[str, Any] = {}
        if told.undo != "light":
            best = refits.realign(scene, params, known, grid)
            names = ("usable", "tried", "forget", "backdoor", "forget_at", "backdoor_at")
            found = {name: best.get(name) for name in names} | {"rates": grid.rates, "batch": grid.budget.batch}
            found |= {"rows": grid.rows, "steps": grid.budget.stops, "tries": [_short(one) for one in best["tries"]]}
        if told.undo == "realign":
            return found
        theta, lr = self.bench.theta, self.bench.world.config.training.lr
        back, passes = flip.flip(scene, params, known), {"rounds": told.passes}
        found |= {"flip": {name: back.get(name) for name in ("forget", "test", "backdoor")}, **self.light(params)}
        if told.undo == "light":
            return found
        up = refits.resurface(scene, params, lr, **passes)
        again = refits.relearn(scene, params, float(scene.forgotten(theta)), lr / 10, **passes)
        way = traces.path(scene, params, theta)
        apart = traces.difference(scene, params, theta, perturbed_before(theta, known))
        return found | {
            "resurface": {name: up[name] for name in ("rounds", "forget_rise", "backdoor_rise")},
            "relearn": {name: again[name] for name in ("rounds", "areas", "area")},
            "path": {name: way[name] for name in ("relative_l2", "cosine", "peak")},
            "difference": {
                name: apart[name] for name in ("cosine", "variation", "variation_of_equal_shares") if name in apart
            },
        }

    def light(self, params: Params) -> dict[str, Any]:
        """The attacks that fit nothing or for twenty steps: a class's bias lifted, a backdoor taught again."""
        scene = self.scene()
        lifted = flip.lift(scene, params)
        taught = refits.triggers(scene, params, self.bench.world.config.training.lr)
        return {
            "lift": {name: lifted[name] for name in ("back_1", "back_5") if name in lifted},
            "triggers": {name: taught[name] for name in ("own", "known") if name in taught},
        }

    def scene(self) -> Scene:
        """What an attacker and a judge have, with the backdoor's trigger on test rows that are still counted."""
        world = self.bench.world
        clients = list(world.scoped(self.requests).values())
        views = {
            w: View(clients[0].source, torch.cat([c.rows[c.view(w)] for c in clients])) for w in ("retain", "forget")
        }
        assert self.held_out is not None
        stamped, source = triggered(self.held_out, 0)
        armed = View(source, stamped.cpu()[torch.isin(stamped.cpu(), self.rows)])
        return Scene(
            world.template,
            views["retain"],
            views["forget"],
            View(self.held_out, self.rows),
            armed,
            world.fresh,
            world.seeds.evaluation,
            stack=world.choice.name == "batched",
            classes=tuple(c for request in self.requests for c in request.classes),
        )


def _short(tried: dict[str, Any]) -> list[Any]:
    """One attacked model as the record keeps it: what was done, and Forget, Test and backdoor."""
    layers = "+".join(name.removesuffix(".weight") for name in tried["layers"])
    return [
        f"{tried['start']} {layers}",
        *(tried[name] for name in ("n", "steps", "rate", "forget", "test", "backdoor")),
    ]


@dataclass
class Recovery:
    """The params after some rounds over what stays, the test accuracy on the way, and the model that is paid for."""

    params: Params
    curve: list[tuple[int, float]]
    paid: tuple[int, Params] | None = None
    """The first round that was looked at and came near enough to θ*, with its model; None where none did."""


def recovered(server: JobServer, params: Params, sight: Sight, told: Told) -> Recovery:
    """Some rounds over what stays, looked at every so often."""
    state, found = State(params), Recovery(params, [(0, sight.test(params))])
    while state.round < told.rounds:
        state = server.recover(state)
        if state.round % told.every == 0 or state.round == told.rounds:
            found.curve.append((state.round, sight.test(state.params)))
            if found.paid is None and found.curve[-1][1] >= sight.before["test"] - told.within:
                found.paid = state.round, state.params
    found.params = state.params
    return found


# --- cells ------------------------------------------------------------------------------------------------------------


def cells(bench: Bench, scope: str, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The lines of one kind of request: all variants after the first one, then after the second, and so on."""
    told, requests = bench.told, requests_of(scope, bench.told.k)
    left = dict.fromkeys(variants, bench.theta)
    for k in range(1, told.k + 1):
        sight = Sight(bench, requests[:k]) if k in told.at else None
        for variant in variants:
            method = method_of(variant, bench.world.template.module, requests[:k])
            if variant in CONTROLS and sight is None:
                continue  # a control owes nothing to the request before
            started = time.monotonic()
            server = bench.server(requests[:k], left[variant], told.rounds)
            begin = begun(variant, method, server)
            if sight is None:
                left[variant] = _after(server, begin, told.rounds)
                continue
            recovery = recovered(server, begin, sight, told)
            left[variant] = params = recovery.params
            line = bench.key(scope, variant, k) | {"rounds": told.rounds, "lr": server.base.optimiser.lr}
            line |= {"before": sight.before, "after": sight.everything(params), "curve": recovery.curve}
            line["recovery_seconds"] = round(time.monotonic() - started, 1)
            attacked = told.grid and k in told.undo_at and variant not in told.unharmed
            if attacked:
                line["undo"] = sight.undone(params, method)
            line["paid"] = {"within": told.within, "round": None}
            if recovery.paid is not None:
                last = recovery.paid[0] == told.rounds  # one model, attacked once
                line["paid"] |= {"round": recovery.paid[0], "after": sight.everything(recovery.paid[1])}
                undone = line.get("undo") if last or not attacked else sight.undone(recovery.paid[1], method)
                line["paid"] |= {"undo": undone} if attacked else {}
            yield line | {"seconds": round(time.monotonic() - started, 1)}
            if variant == "retrain" and told.reference > told.rounds:
                # Retrain's rounds go on to as many as θ* had: what the gap is measured against.
                state = State(params, round=told.rounds)
                while state.round < told.reference:
                    state = server.recover(state)
                after = sight.everything(state.params)
                yield bench.key(scope, "reference", k) | {"rounds": state.round, "after": after}


def said(line: dict[str, Any]) -> str:
    """A line of the record in words."""
    after, curve = line["after"], line.get("curve", [])
    numbers = [f"{n} {after[n]:.1f}" for n in ("retain", "forget", "test", "backdoor") if isinstance(after[n], float)]
    reached = line["paid"]["round"] or f"over {line['rounds']}" if curve else "—"
    tried = {when: of.get("undo", {}) for when, of in (("then", line.get("paid", {})), ("at the end", line))}
    worst = "".join(
        f", undone {when} at worst {back['forget']:.1f} / {back['backdoor']:.1f}"
        for when, back in tried.items()
        if back.get("usable")
    )
    what = f"{line['data']} {line['model']} {line['scope']} seed {line['seed']} k {line['k']} {line['variant']}"
    return f"{what}: {' '.join(numbers)}; near θ* after {reached}{worst} ({line.get('seconds', 0)} s)"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def grid_of(options: argparse.Namespace) -> Grid | None:
    """The attacks of `realign` as the command line asks for them."""
    stops = tuple(steps for steps in numbers(options.steps) if steps)
    rates = tuple(float(rate) for rate in options.rates.split(","))
    budget = Budget(stops=stops, batch=options.fit_batch)
    return Grid(rows=numbers(options.rows), budget=budget, rates=rates, singles=3, restarts=1) if stops else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(RECIPES), default="digits")
    parser.add_argument("--model", default="cnn", help="one or several, with commas")
    parser.add_argument("--scope", default="client", help="client, class, instance, or several")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "float64", "bf16"), default="float32")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--k", type=int, default=1, help="requests, one after another")
    parser.add_argument("--at", default="", help="after which of them to measure; all if not given")
    parser.add_argument("--variants", default="retrain,reinit,not,sealed")
    parser.add_argument("--rounds", type=int, default=None, help="of recovery, for every variant and both controls")
    parser.add_argument("--reference", type=int, default=None, help="rounds of the Retrain that gaps refer to")
    parser.add_argument("--every", type=int, default=None, help="rounds between two looks at the test accuracy")
    parser.add_argument("--train-rounds", type=int, default=None)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--momentum", type=float, default=None, help="of training; the recipe's if not given")
    parser.add_argument("--batch", type=int, default=None, help="of training; the recipe's if not given")
    parser.add_argument(
        "--steps", default="200", help="when a fit that tries to undo is looked at; 0 leaves undoing out"
    )
    parser.add_argument(
        "--rows", default="143", help="retained rows that each of these fits has, one number or several"
    )
    parser.add_argument("--rates", default="0.02,0.002", help="of these fits")
    parser.add_argument("--fit-batch", type=int, default=64, help="rows of each of their steps")
    parser.add_argument("--undo", choices=("light", "realign", "all"), default="realign", help="which attempts to undo")
    parser.add_argument("--within", type=float, default=2.0, help="points below θ*'s test accuracy that are paid for")
    parser.add_argument("--unharmed", default="", help="variants that nobody tries to undo, with commas")
    parser.add_argument("--undo-at", default="", help="after which requests; as --at if not given")
    parser.add_argument("--passes", type=int, default=10, help="of resurface and relearn")
    parser.add_argument("--size", type=int, default=None, help="images are stretched to so many pixels")
    parser.add_argument("--train-size", type=int, default=None, help="training rows that are kept; all if not given")
    parser.add_argument("--test-size", type=int, default=None, help="rows that are held out anew")
    parser.add_argument("--engine", choices=("auto", "sequential", "batched"), default="auto")
    parser.add_argument("--root", default=None, help="where the data sets lie, if UNFED_DATA does not say so")
    parser.add_argument("--record", type=Path, default=None)
    options = parser.parse_args()
    sys.modules.setdefault("lasting", sys.modules[__name__])  # where a config finds the network of this file
    usual = LENGTHS[options.data]
    at = numbers(options.at) or tuple(range(1, options.k + 1))
    told = Told(
        options.device,
        options.precision,
        options.k,
        at,
        options.rounds or usual[0],
        options.reference or usual[1],
        options.every or usual[2],
        options.within,
        options.undo,
        numbers(options.undo_at) or at,
        tuple(options.unharmed.split(",")),
        grid_of(options),
        options.passes,
        options.train_rounds,
        options.lr,
        options.batch,
        options.momentum,
        options.root,
        options.size,
        options.train_size,
        options.test_size,
        options.engine,
    )
    record = options.record or RECORDS / f"{datetime.now(UTC):%Y-%m-%d}-lasting-{options.data}-{options.device}.jsonl"
    lines = [json.loads(text) for text in record.read_text().splitlines()] if record.exists() else []
    known = {tuple(line[n] for n in KEY) for line in lines}
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    for seed in map(int, options.seeds.split(",")):
        for model in options.model.split(","):
            bench: Bench | None = None
            for scope in options.scope.split(","):
                wanted = options.variants.split(",")
                missing = [
                    v for v in wanted if any((options.data, model, scope, seed, v, k) not in known for k in told.at)
                ]
                if not missing:
                    continue
                bench = bench or Bench(options.data, model, seed, told)
                for line in cells(bench, scope, missing):
                    if tuple(line[n] for n in KEY) in known:
                        continue
                    line |= {"hardware": where, "precision": told.precision, "trained": bench.trained}
                    sizes = {
                        "size": told.size,
                        "batch": told.batch,
                        "momentum": told.momentum,
                        "train_size": told.train_size,
                        "test_size": told.test_size,
                    }
                    line |= {name: value for name, value in sizes.items() if value}
                    with record.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(said(line), flush=True)


if __name__ == "__main__":
    with plugins.allow_code():  # the network without convolutions is this file's own
        main()
