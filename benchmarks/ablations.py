"""Every layer under every perturbation on digits: gap to Retrain, rounds to recover, what a flipped sign brings back.

    python benchmarks/ablations.py                                  cnn, mlp, resnet-tiny and vit-tiny, every cell
    python benchmarks/ablations.py --networks cnn --part federation the federation's own knobs, NoT beside FT
    python benchmarks/ablations.py --networks convnext --hows negate,zero
    python benchmarks/ablations_page.py                             figures and tables of the record, into docs

Ten clients, the first one poisoned, who leaves. One line per cell goes into the record as soon as it is known; what
stands there is not done again. Parts:

    layers       every convolution, dense or embedding weight alone (the head too) × every perturbation, sealed ones too
    sets         one or several layers, a chain, weight with bias, convolution with its norm (which must equal FT)
    federation   local epochs, participation, number of clients, β of a Dirichlet partition, the share that is forgotten
    little       recovery with 1, 5, 20 % of what stays, with some clients only, with unlabelled images and a teacher

Sealed draws come from the operating system in a run; here they are a function of the seed, so that cells repeat.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unfed import plugins
from unfed.claims.scene import LEAVER, Effort, Scene, gap
from unfed.client.plan import Phase, term
from unfed.data import ClientData
from unfed.errors import UnfedError
from unfed.federation.server import JobServer, Members
from unfed.federation.state import State
from unfed.model.layers import Choice, choose
from unfed.model.params import Params
from unfed.model.perturb import perturb
from unfed.model.sealing import NAMES, seal
from unfed.model.tensor_table import CONV

RECORD = Path(__file__).parent / "records/2026-11-15-ablations-digits-cpu.jsonl"
TUNED = ("cnn", "mlp", "resnet-tiny", "vit-tiny")
OTHERS = ("convnext", "efficientnet-tiny", "mixer", "text")
NAMED = {"cnn": "cnn-small", **{n: f"small_networks:{n}" for n in ("mlp", "convnext", "mixer", "text")}}
SLOW = {"mlp": 0.05, "convnext": 0.05, "efficientnet-tiny": 0.05, "mixer": 0.05, "text": 0.05}
"""Rates at which a network learns within these rounds, where the preset's is too small."""
OPEN = ("negate", "zero", "reinit", "noise", "orthogonal", "flip-both", "rotate-90")
SEALED = tuple(f"sealed {how}" for how in NAMES if how != "reinit")  # that one is `reinit`, by another draw
KERNELS = ("flip-both", "rotate-90")
EVERY = 2
"""Rounds between two looks at the test accuracy."""
WITHIN = 2.0
"""Points of θ*'s test accuracy at which a model counts as recovered."""
BASE = ('poison={client="0",target_class=0}', "data.test_size=797")
EFFORT = Effort(rounds=40, recovery=12)


@dataclass(frozen=True, eq=False)
class Bench:
    """One network and one seed, with θ* and Retrain."""

    network: str
    seed: int
    changes: tuple[str, ...] = ()

    @cached_property
    def scene(self) -> Scene:
        rate = SLOW.get(self.network)
        changes = (*BASE, *((f"training.lr={rate}",) if rate else ()), *self.changes)
        return Scene(None, self.seed, EFFORT, NAMED.get(self.network, self.network), changes=changes)

    @cached_property
    def reference(self) -> dict[str, float]:
        return self.scene.numbers(self.scene.retrained)

    @cached_property
    def before(self) -> dict[str, float]:
        return self.scene.numbers(self.scene.trained)

    def perturbed(self, choices: tuple[Choice, ...], how: str) -> Params:
        theta, world = self.scene.trained, self.scene.world
        if how == "none":
            return theta
        if how.startswith("sealed "):
            draw = hashlib.sha256(f"ablation {self.seed}".encode()).digest()
            return seal(theta, choices, how.removeprefix("sealed "), draw, world.fresh, keep=0.3)
        return perturb(theta, choices, how, seed=self.seed, fresh=world.fresh)

    def cell(self, choices: tuple[Choice, ...], how: str, server: JobServer | None = None) -> dict[str, Any]:
        """What becomes of θ* under a perturbation, and how fast."""
        scene, goal = self.scene, self.before["test"] - WITHIN
        server = server or scene.server([LEAVER], EFFORT.recovery)
        state, curve = State(self.perturbed(choices, how)), []
        start = scene.accuracy(state.params)
        while state.round < EFFORT.recovery:
            state = server.recover(state)
            if state.round % EVERY == 0:
                curve.append((state.round, round(scene.accuracy(state.params), 2)))
        found = scene.numbers(state.params)
        cell: dict[str, Any] = {
            "gap": gap(found, self.reference),
            "back": next((r for r, test in curve if test >= goal), None),
            "start": start,
            "curve": curve,
            "numbers": _kept(found),
        }
        if how in ("negate", "flip-both"):  # both are their own inverse, and public
            turned = perturb(state.params, choices, how, seed=0)
            cell["flipped"] = _kept(scene.numbers(turned))
        return cell


def _kept(numbers: Mapping[str, float]) -> dict[str, float]:
    return {n: round(numbers[n], 3) for n in ("retain", "forget", "test", "mia", "backdoor") if n in numbers}


# --- the cells of each part -------------------------------------------------------------------------------------------

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def layers(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    table = {t.name: t for t in bench.scene.weights}
    kinds = _kinds(bench)
    yield {"layer": "-", "how": "none"}, lambda: bench.cell((), "none")
    for name, choice in table.items():
        for how in hows:
            if how in KERNELS and kinds[name] != CONV:
                continue
            params = bench.scene.world.template.like[name]
            if how in KERNELS and params.shape[-1] < 2:
                continue
            yield {"layer": name, "how": how}, lambda c=choice, h=how: bench.cell((c,), h)  # type: ignore[misc]


def _kinds(bench: Bench) -> dict[str, str]:
    from unfed.model.tensor_table import table_of

    return {name: t.kind for name, t in table_of(bench.scene.world.template.module).tensors.items()}


def sets(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    module = bench.scene.world.template.module
    weights = [choice.name for choice in bench.scene.weights]
    groups: dict[str, tuple[Choice, ...]] = {
        "first": choose(module, ("first",)),
        "first, with its bias": choose(module, ("first",), include_bias=True),
        "a chain: the first two": choose(module, weights[:2]),
        "all hidden": choose(module, ("hidden",)),
        "the head": choose(module, weights[-1:]),
    }
    if bench.network == "cnn":
        groups["convolution and its norm"] = choose(module, ("conv1.weight", "conv1.bias", "norm1.weight"))
    if bench.network == "vit-tiny":
        side = [n for n in weights if n.endswith("mlp.0.weight")]
        groups["both perceptrons' first layers"] = choose(module, side)
    if bench.network == "resnet-tiny":
        side = ["layer2.0.conv2.weight", "layer2.0.downsample.0.weight"]
        groups["an antichain: a block and its shortcut"] = choose(module, side)
    yield {"layer": "-", "how": "none"}, lambda: bench.cell((), "none")
    for label, chosen in groups.items():
        for how in hows:
            if how not in KERNELS:
                yield {"layer": label, "how": how}, lambda c=chosen, h=how: bench.cell(c, h)  # type: ignore[misc]


KNOBS: dict[str, tuple[str, ...]] = {
    "one local epoch, ten clients (as elsewhere)": (),
    "5 local epochs": ("training.epochs=5",),
    "half of the clients in a round": ("training.participation=0.5",),
    "5 clients": ("partition.clients=5",),
    "20 clients": ("partition.clients=20",),
    "Dirichlet, β = 0.1": ('partition.scheme="dirichlet"', "partition.beta=0.1"),
    "Dirichlet, β = 1": ('partition.scheme="dirichlet"', "partition.beta=1.0"),
}


def federation(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    for label, changes in KNOBS.items():
        own = Bench(bench.network, bench.seed, (*bench.changes, *changes))
        for how in ("none", "negate"):
            yield (
                {"layer": label, "how": how},
                lambda b=own, h=how: b.cell(choose(b.scene.world.template.module, ("first",)), h),  # type: ignore[misc]
            )


def _some(client: ClientData, share: float) -> ClientData:
    """A client with only some of its retained rows."""
    retained = client.train[~client.forget[client.train]]
    count = max(1, round(share * len(retained)))
    return replace(client, train=torch.cat([retained[:count], client.train[client.forget[client.train]]]))


def little(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    """Less and less to recover with: fewer rows at everybody, fewer clients, only images without labels."""
    scene = bench.scene
    module = scene.world.template.module
    starts = {
        "ft": ((), "none"),
        "not": (choose(module, ("first",)), "negate"),
        "sealed": (choose(module, ("hidden",)), "sealed fade"),
    }

    def server_over(members: Callable[[], dict[str, ClientData]]) -> JobServer:
        clients = members()
        server = scene.server([LEAVER], EFFORT.recovery)
        server.look_at(Members(clients, scene.world.engine(clients)))
        # As many steps in a round as with all rows, or less data would also mean less training.
        most = max(math.ceil(len(c.view("retain")) / server.base.batch) for c in clients.values())
        whole = max(math.ceil(len(c.view("retain")) / server.base.batch) for c in everybody(1.0).values())
        epochs = server.base.epochs * max(1, round(whole / most))
        server.settings = replace(server.settings, phase=replace(server.base, epochs=epochs))
        return server

    def everybody(share: float) -> dict[str, ClientData]:
        return {name: _some(c, share) for name, c in scene.world.scoped([LEAVER]).items()}

    def few(count: int) -> dict[str, ClientData]:
        own = scene.world.scoped([LEAVER])
        stay = [name for name, c in own.items() if c.holds("retain")][:count]
        return {name: own[name] for name in stay}

    ways: dict[str, Callable[[], JobServer]] = {
        **{
            f"{share:.0%} of the rows": lambda s=share: server_over(lambda: everybody(s))
            for share in (0.01, 0.05, 0.2, 1.0)
        },  # type: ignore[misc]
        **{f"{n} of nine clients": lambda n=n: server_over(lambda: few(n)) for n in (1, 3)},  # type: ignore[misc]
    }
    for way, server in ways.items():
        for method, (chosen, how) in starts.items():
            yield (
                {"layer": way, "how": method},
                lambda c=chosen, h=how, s=server: bench.cell(c, h, s()),  # type: ignore[misc]
            )
    for method, (chosen, how) in starts.items():
        yield {"layer": "unlabelled images, θ* as teacher", "how": method}, lambda c=chosen, h=how: _taught(bench, c, h)  # type: ignore[misc]


def _taught(bench: Bench, chosen: tuple[Choice, ...], how: str) -> dict[str, Any]:
    """Recovery by distillation from θ* on a fifth of the test images, without labels; scored on the others alone."""
    scene = bench.scene
    rows = torch.arange(len(scene.test) // 5)
    nobody = torch.zeros(len(rows), dtype=torch.bool)
    public = ClientData("public", scene.test, rows, torch.arange(len(rows)), rows[:0], nobody)
    server = scene.server([LEAVER], EFFORT.recovery)
    server.look_at(Members({"public": public}, scene.world.engine({"public": public})))
    state, curve, theta = State(bench.perturbed(chosen, how)), [], scene.trained
    base = server.base
    phase: Phase = replace(base, objective=term("distil", temperature=3.0), epochs=4 * base.epochs)
    unseen = torch.arange(len(rows), len(scene.test))
    from unfed.client.scores import score

    def test(params: Params) -> float:
        return score(scene.world.template, params, scene.test, unseen).accuracy

    goal = test(theta) - WITHIN
    while state.round < EFFORT.recovery:
        state = server.advance(state, ["public"], phase, context={"teacher": theta})
        if state.round % EVERY == 0:
            curve.append((state.round, round(test(state.params), 2)))
    found = scene.numbers(state.params) | {"test": test(state.params)}
    return {
        "gap": gap(found, bench.reference),
        "back": next((r for r, t in curve if t >= goal), None),
        "start": test(bench.perturbed(chosen, how)),
        "curve": curve,
        "numbers": _kept(found),
    }


PARTS = {"layers": layers, "sets": sets, "federation": federation, "little": little}


# --- the record -------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(TUNED))
    parser.add_argument("--part", default="layers", choices=PARTS)
    parser.add_argument("--hows", default=",".join((*OPEN, *SEALED)))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--record", type=Path, default=RECORD)
    told = parser.parse_args(arguments)
    for name in told.networks.split(","):
        if name not in (*TUNED, *OTHERS):
            parser.error(f"there is no network {name!r}; choose {', '.join((*TUNED, *OTHERS))}")
    for how in told.hows.split(","):
        if how not in (*OPEN, *SEALED):
            parser.error(f"there is no perturbation {how!r}; choose {', '.join((*OPEN, *SEALED))}")
    done = {_key(line) for line in read(told.record)}
    with plugins.allow_code():
        for seed in map(int, told.seeds.split(",")):
            for network in told.networks.split(","):
                bench = Bench(network, seed)
                for about, work in PARTS[told.part](bench, tuple(told.hows.split(","))):
                    line = {"network": network, "seed": seed, "part": told.part, **about}
                    if _key(line) in done:
                        continue
                    began = time.process_time()
                    try:
                        found = work()
                    except UnfedError as error:  # a network that does not survive it is a result
                        found = {"gap": None, "back": None, "failed": str(error)}
                    line |= found | {"before": _kept(bench.before), "retrain": _kept(bench.reference)}
                    line["seconds"] = round(time.process_time() - began, 1)
                    with told.record.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    print(network, about["layer"], about["how"], "gap", line["gap"], "back", line["back"], flush=True)
    return 0


def read(record: Path) -> list[dict[str, Any]]:
    """The whole lines of a record; half a line of a killed writer counts as none."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("network", "seed", "part", "layer", "how"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(sys.argv[1:]))
