"""What lasting forgetting costs: every method under the same recipes, its model attacked, its price counted.

    python benchmarks/prices.py --data cifar10 --device cuda --precision bf16 --trained 2000 --seed 0 --theta FOLDER
    python benchmarks/prices.py --data cifar10 … --recipes retrain@0.1x40,not@0.1x20e3 --attacks all --seed 1
    python benchmarks/prices.py --data cifar10 … --dirichlet 0.1 (or --participation 0.5, --scope class, --k 5, …)
    python benchmarks/prices.py --data cifar10 --model resnet18 --lr 0.05 --trained 40 --cycle …      with GroupNorm
    python benchmarks/prices.py --data digits (or reviews, which needs '.[beyond]') --seed 0 …    two cores, minutes

A recipe is METHOD@PEAKxROUNDS, with eE for E local epochs and c for a constant rate instead of a one-cycle. Methods:
retrain, ft, not, sealed, and a fresh model led by NoT's model (`led`, whose 20 rounds count), by θ* (`led-model`), or
by a model that never met the leaver (`led-clean`, a control that no operator has). Without --recipes the same recipes
are tried for each tuned method (`SCREEN`), and some beside them, constant ones as the paper would run them.

Ten clients, the first one poisoned (80 % of its rows stamped; reviews, which cannot be stamped, have their labels
swapped, so that Forget says what is left of them). One JSON line per recipe goes into the record as soon as
it is known; what stands there is not done again. `paid` is the first round whose accuracy on validation rows is within
2 points of θ*'s: that round is the price, and its model is attacked too, unless it is nearly the last.

The rule by which a default is chosen from these numbers, written before they were measured:

    lasts      for every attack, at the round paid for and at the end, the 95 % interval (seeds, Student's t) of the
               difference to Retrain under the same seed lies below +2 points; Retrain under another seed stands beside
    price      rounds to the paid round, then bytes; a recipe must reach the paid round under every seed
    default    the cheapest recipe that lasts in every regime tried; if none beats the cheapest Retrain, it is Retrain
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lasting import NAMES, RATES, RECIPES
from unfed import plugins, rng, storage
from unfed.config.config import Config
from unfed.data import Request, triggered
from unfed.errors import UnfedError
from unfed.federation.server import JobServer, Members
from unfed.federation.state import Schedule, State
from unfed.measures.undo import flip, refits, traces
from unfed.measures.undo.flip import Knowledge
from unfed.measures.undo.refits import Grid
from unfed.measures.undo.scene import Budget, Scene, View
from unfed.methods import METHODS, Led, Method
from unfed.model.networks import ResNet
from unfed.model.params import Params
from unfed.runs.simulated import simulated

WITHIN = 2.0
JUDGED = 2000
"""Rows of each kind that attacks are judged on."""
ATTACK_RATE = {"cifar10": 0.01, "digits": 0.01, "reviews": 0.01}
NETWORKS = {"resnet18": "prices:resnet18", "transformer": "transformer-small"}
RECIPES = RECIPES | {
    "reviews": {
        "training": {"rounds": 12, "batch": 32, "optimiser": "adam", "lr": 2e-3, "decay": 0.0},
        "data": {"name": "movie-reviews", "train_size": 4000},
    }
}
SCREEN: dict[str, tuple[str, tuple[float, ...], dict[int, tuple[int, ...]], str]] = {
    "cifar10": (
        "retrain not led ft",
        (0.03, 0.06, 0.12),
        {1: (30, 80), 3: (12, 30)},
        "led-model@0.03x30 led-clean@0.03x30 sealed@0.03x30 sealed@0.06x80 led-model@0.06x30 led-clean@0.06x30"
        " not@0.001x80c ft@0.001x80c retrain@0.001x480c",
    ),
    "digits": (
        "retrain ft not sealed led led-model",
        (0.02, 0.05, 0.1),
        {1: (6, 12, 20), 3: (3, 6)},
        "not@0.01x20c ft@0.01x20c sealed@0.01x20c retrain@0.01x60c",
    ),
    "reviews": (
        "retrain ft not sealed led led-model",
        (0.002, 0.005, 0.01),
        {1: (6, 12), 3: (2, 4)},
        "not@0.002x6c ft@0.002x6c retrain@0.002x12c",
    ),
}
"""The methods that are tuned, their peak rates, their rounds by local epochs; and recipes that stand beside them."""


@dataclass(frozen=True)
class Recipe:
    """One method under one learning rate, length and number of local epochs."""

    method: str
    peak: float
    rounds: int
    epochs: int = 1
    constant: bool = False

    @staticmethod
    def read(text: str) -> Recipe:
        found = re.fullmatch(r"([a-z-]+)@([0-9.]+)x(\d+)(?:e(\d+))?(c?)", text)
        if found is None:
            raise SystemExit(f"{text!r} is no recipe; write METHOD@PEAKxROUNDS, with eEPOCHS or c behind it.")
        method, peak, rounds, epochs, constant = found.groups()
        return Recipe(method, float(peak), int(rounds), int(epochs or 1), bool(constant))

    def __str__(self) -> str:
        epochs = f"e{self.epochs}" if self.epochs > 1 else ""
        return f"{self.method}@{self.peak:g}x{self.rounds}{epochs}{'c' if self.constant else ''}"


def screen(data: str) -> list[Recipe]:
    """The recipes that every tuned method gets, and those beside them."""
    methods, peaks, lengths, beside = SCREEN[data]
    cycles = [(peak, rounds, epochs) for epochs, all_ in lengths.items() for rounds in all_ for peak in peaks]
    found = [Recipe(method, *cycle) for cycle in cycles for method in methods.split()]
    return [*found, *map(Recipe.read, beside.split())]


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 for 32x32 images: a stem of 3x3 without a stride, GroupNorm in the place of BatchNorm."""
    found = ResNet(in_channels=shape[0], size=shape[1], classes=classes)
    found.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    for part in list(found.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(part, name, nn.GroupNorm(32, child.num_features))
    found.reset_parameters()
    return found


class Federation:
    """Ten clients with their θ*: one data set, one network, one seed, one way to deal the rows."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        recipe = RECIPES[options.data]
        training = dict(recipe["training"]) | {"participation": options.participation}
        training["lr"] = options.lr or RATES.get((options.data, options.model), training["lr"])
        training["rounds"] = options.trained or training["rounds"]
        dealt = {"scheme": "dirichlet", "beta": options.dirichlet} if options.dirichlet else {}
        reviews = options.data == "reviews"
        raw = {
            "name": "prices",
            "seed": options.seed,
            "data": recipe["data"] | ({"root": options.root} if options.root else {}),
            "partition": {"scheme": "natural"} if reviews else dealt,
            "model": {"name": NETWORKS.get(options.model) or NAMES.get((options.data, options.model), options.model)},
            "poison": {"client": "0"} | ({"kind": "confusion", "share": 1.0} if reviews else {"target_class": 0}),
            "training": training,
            "engine": {"precision": options.precision},
            "device": options.device,
        }
        self.world = simulated(Config.parse(raw), options.seed)
        self.world.settle()
        self._engines: dict[tuple[str, ...], Any] = {}
        self.rounds, self.seconds = int(training["rounds"]), 0.0

    @cached_property
    def theta(self) -> Params:
        """θ*, from its file if it was trained before."""
        file = (
            self.options.theta / f"{self.options.regime}-{self.options.seed}.safetensors"
            if self.options.theta
            else None
        )
        if file is not None and file.exists():
            return {n: t.to(self.world.device) for n, t in storage.load(file, "θ*")[0].items()}
        begun = time.monotonic()
        cycle = Recipe("ft", self.world.training_settings().phase.optimiser.lr, self.rounds)
        server = self.server([], self.world.template.like, cycle if self.options.cycle else None, self.rounds)
        state = State(server.init())
        while state.round < self.rounds:
            state = server.recover(state)
        self.seconds = time.monotonic() - begun
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            storage.save(file, state.params, {})
        return state.params

    def server(self, requests: Sequence[Request], params: Params, recipe: Recipe | None, rounds: int = 0) -> JobServer:
        """The server that a method meets on the last of these requests; without a recipe the training's."""
        world, key = self.world, tuple(request.id for request in requests)
        clients = world.scoped(requests, gone=requests[:-1])
        engine = self._engines.setdefault(key, world.engine(clients))
        settings = world.training_settings()
        if recipe is not None:
            phase = replace(settings.phase.with_optimiser(lr=recipe.peak), epochs=recipe.epochs)
            kind = "constant" if recipe.constant else "one-cycle"
            settings = replace(settings, rounds=rounds, phase=phase, schedule=Schedule(kind))
        seed = world.seeds.request(requests[-1].id) if requests else world.seeds.training
        return JobServer(world.setup(), Members(clients, engine), params, settings, rng.key(seed, self.options.other))


def asked(scope: str, k: int, leave: int) -> list[Request]:
    """Clients 0, 1, … leave, some at once; or classes 9, 8, …; or a tenth of all samples, another one each time."""
    if scope == "client":
        names = [tuple(str(c) for c in range(i * leave, (i + 1) * leave)) for i in range(k)]
        return [Request("clients-" + "-".join(some), clients=some) for some in names]
    if scope == "class":
        return [Request(f"class-{9 - i}", classes=(9 - i,)) for i in range(k)]
    return [Request(f"samples-{i}", fraction=0.1) for i in range(k)]


class Judge:
    """What is measured of a model under some requests."""

    def __init__(self, federation: Federation, requests: Sequence[Request]) -> None:
        world = federation.world
        self.federation, self.evaluator = federation, world.evaluator(requests)
        test = world.dataset.test
        assert test is not None
        gone = torch.tensor([c for request in requests for c in request.classes], dtype=torch.int64)
        rows = (~torch.isin(test.labels.cpu(), gone)).nonzero().flatten()
        clients = list(world.scoped(requests).values())
        views = {w: torch.cat([c.rows[c.view(w)] for c in clients]) for w in ("retain", "forget")}
        seed, own, planted = world.seeds.evaluation, clients[0].source, None
        if federation.options.data != "reviews":
            stamped, source = triggered(test, 0)
            stamped = stamped.cpu()[torch.isin(stamped.cpu(), rows)]
            planted = View(source, stamped).some(JUDGED, seed)
        some = {name: View(own, at).some(JUDGED, seed) for name, at in views.items()}
        self.scene = Scene(
            world.template, View(own, views["retain"]), some["forget"], View(test, rows).some(JUDGED, seed),
            planted, world.fresh, seed, stack=world.choice.name == "batched",
            classes=tuple(gone.tolist()),
        )  # fmt: skip
        self.before = self.numbers(federation.theta)

    def validation(self, params: Params) -> float:
        return float(self.evaluator.validation(params))

    def numbers(self, params: Params) -> dict[str, Any]:
        """What an evaluation says of a model, on all rows."""
        seen = self.evaluator(params).numbers
        names = ("retain", "forget", "test", "mia", "backdoor", "validation")
        return {n: seen[n] for n in names if n in seen}

    def attacked(self, params: Params, method: Method, all_: bool) -> dict[str, Any]:
        """Attacks that take seconds; with `all_` also those that fit for long."""
        scene, theta, rate = self.scene, self.federation.theta, ATTACK_RATE[self.federation.options.data]
        known = Knowledge(method.title, method.perturbed(scene.template.module))
        back, taught, lifted = (
            flip.flip(scene, params, known),
            refits.triggers(scene, params, rate),
            flip.lift(scene, params),
        )
        found: dict[str, Any] = {name: part for name, part in traces.inside(scene, params, theta).items()}
        found["flip"] = {name: back[name] for name in ("forget", "test", "backdoor") if name in back}
        found["triggers"] = {name: taught[name] for name in ("own", "known", "gained") if name in taught}
        found["lift"] = {name: lifted[name] for name in ("back_1", "back_5") if name in lifted}
        if all_:
            budget = Budget(stops=(100, 600), batch=128)
            again = refits.realign(scene, params, known, Grid((1000,), budget, (0.02,), singles=3, restarts=1))
            found["realign"] = {
                n: again.get(n) for n in ("usable", "tried", "forget", "backdoor", "forget_at", "backdoor_at")
            }
            slow = refits.relearn(scene, params, float(scene.forgotten(theta)), rate / 10, rounds=5)
            found["relearn"] = {name: slow[name] for name in ("areas", "area")}
        return found


def serving(recipe: Recipe, requests: Sequence[Request], federation: Federation) -> Method:
    """The method of a recipe, as it serves the last of these requests."""
    name, _, teacher = recipe.method.partition("-")
    if name != "led":
        return METHODS[name]().for_requests(requests)
    if teacher == "clean":
        teacher = str(clean_teacher(federation, requests))
    return Led(teacher=teacher or "not", teacher_rounds=max(20 // recipe.epochs, 1)).for_requests(requests)


def clean_teacher(federation: Federation, requests: Sequence[Request]) -> Path:
    """A file with a model that never met the leaver: Retrain of another seed, one cycle of 100 rounds at 0.1."""
    options = federation.options
    name = "-".join(["clean", options.regime, str(options.seed), *(request.id for request in requests)])
    file: Path = (options.theta or Path("/tmp")) / f"{name}.safetensors"
    if not file.exists():
        server = federation.server(requests, federation.theta, Recipe("retrain", 0.1, 100), 100)
        state = State(server.init("clean teacher"))
        while state.round < 100:
            state = server.recover(state)
        storage.save(file, state.params, {})
    return file


def rounds_of(method: Method, server: JobServer, total: int) -> Iterator[State]:
    """The states that a method leaves, from its beginning to its last round."""
    state = method.begin(server)
    yield state
    while state.round < total:
        state = method.round(server, state)
        yield state


def measured(
    federation: Federation, judge: Judge, recipe: Recipe, requests: Sequence[Request], params: Params
) -> dict[str, Any]:
    """What a recipe costs and leaves for the last of these requests."""
    method, options = serving(recipe, requests, federation), federation.options
    own, begun = method.rounds(0, 0) if isinstance(method, Led) else 0, time.monotonic()
    total = recipe.rounds + own
    server = federation.server(requests, params, recipe, total)
    curve, paid = list[tuple[int, float]](), None
    goal, every = judge.before["validation"] - WITHIN, 1 if recipe.rounds <= 40 else 2 if recipe.rounds <= 100 else 5
    for state in rounds_of(method, server, total):
        if state.round and state.model and ((state.round - own) % every == 0 or state.round == total):
            curve.append((state.round, round(judge.validation(state.params), 2)))
            if paid is None and curve[-1][1] >= goal:
                paid = state.round, state.params, server.ledger.to_json()
    end, trained = server.ledger.to_json(), time.monotonic() - begun
    line: dict[str, Any] = {"rounds": total, "curve": curve, "trained_s": round(trained, 2)}
    line |= {"after": judge.numbers(state.params), "cost": {n: end[n] for n in ("comm_bytes", "flops")}}
    if options.attacks != "none":
        line["attacks"] = judge.attacked(state.params, method, options.attacks == "all")
    if paid is not None:
        at, model, cost = paid
        line["paid"] = {"round": at, "cost": {n: cost[n] for n in ("comm_bytes", "flops")}}
        if at < total:
            line["paid"] |= {"after": judge.numbers(model)}
            if options.attacks != "none" and at < 0.9 * total:
                line["paid"] |= {"attacks": judge.attacked(model, method, options.attacks == "all")}
    return line | {"seconds": round(time.monotonic() - begun, 2)}


def left_by(federation: Federation, recipe: Recipe, requests: Sequence[Request]) -> Params:
    """The model that a recipe leaves after these requests, each served from the model of the one before."""
    params = federation.theta
    for k in range(
        1, len(requests) + 1 if recipe.method != "retrain" else 1
    ):  # Retrain owes nothing to the model before
        method = serving(recipe, requests[:k], federation)
        total = recipe.rounds + (method.rounds(0, 0) if isinstance(method, Led) else 0)
        *_, state = rounds_of(method, federation.server(requests[:k], params, recipe, total), total)
        params = state.params
    return params


def lines(federation: Federation, recipes: Sequence[Recipe], known: set[str]) -> Iterator[dict[str, Any]]:
    """One line for θ*, then one for every recipe."""
    options = federation.options
    requests = asked(options.scope, options.k, options.leave)
    judge = Judge(federation, requests)
    if "θ*" not in known:
        attacks = judge.attacked(federation.theta, METHODS["ft"](), options.attacks == "all")
        yield {"recipe": "θ*", "rounds": federation.rounds, "after": judge.before, "attacks": attacks} | {
            "seconds": round(federation.seconds, 1)
        }
    for recipe in recipes:
        if str(recipe) in known:
            continue
        try:
            before = left_by(federation, recipe, requests[:-1])
            yield {"recipe": str(recipe)} | measured(federation, judge, recipe, requests, before)
        except UnfedError as error:
            yield {"recipe": str(recipe), "failed": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(RECIPES), default="digits")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--scope", choices=("client", "class", "instance"), default="client")
    parser.add_argument("--k", type=int, default=1, help="requests one after another; the last is measured")
    parser.add_argument("--leave", type=int, default=1, help="clients that leave at once")
    parser.add_argument("--dirichlet", type=float, default=0.0, help="β; 0 deals rows IID")
    parser.add_argument("--participation", type=float, default=1.0)
    parser.add_argument("--trained", type=int, default=None, help="rounds of θ*; the recipe's if not given")
    parser.add_argument("--lr", type=float, default=None, help="of training")
    parser.add_argument("--cycle", action="store_true", help="train θ* by one cycle with this rate as its peak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other", type=int, default=0, help="another number draws the methods' rounds again")
    parser.add_argument("--recipes", default="", help="with commas; all of the screen if not given")
    parser.add_argument("--attacks", choices=("none", "light", "all"), default="light")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--theta", type=Path, default=None, help="a folder that keeps θ*")
    parser.add_argument("--root", default=None, help="where the data sets lie, if UNFED_DATA does not say so")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    dealt = f"dirichlet-{options.dirichlet:g}" if options.dirichlet else "iid"
    options.regime = f"{options.data}-{options.model}-{dealt}" + (
        f"-part-{options.participation:g}" if options.participation < 1 else ""
    )
    key = {
        "regime": options.regime,
        "scope": options.scope,
        "k": options.k,
        "leave": options.leave,
        "seed": options.seed,
        "other": options.other,
    }
    there = [json.loads(text) for text in options.record.read_text().splitlines()] if options.record.exists() else []
    known = {line["recipe"] for line in there if all(line[n] == key[n] for n in key)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    federation = Federation(options)
    wanted = options.recipes.split(",") if options.recipes else []
    recipes = [Recipe.read(one) for one in wanted] or screen(options.data)
    for line in lines(federation, recipes, known):
        line = key | line | {"hardware": where, "precision": options.precision, "commit": commit.strip()}
        with options.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        after, at = line.get("after", {}), line.get("paid", {}).get("round")
        numbers = {n: round(v, 1) for n, v in after.items() if isinstance(v, float)}
        print(line["recipe"], line.get("failed") or numbers, "paid", at, line.get("seconds"), flush=True)


if __name__ == "__main__":
    with plugins.allow_only((NETWORKS["resnet18"],)):
        main()
