"""Every layer under every perturbation: gap to Retrain, rounds to recover, what comes back of what was forgotten.

    python benchmarks/ablations.py --seeds 0,1,2                    cnn, mlp, resnet-tiny and vit-tiny, every cell
    python benchmarks/ablations.py --networks cnn --part federation the federation's own knobs, NoT beside FT
    python benchmarks/ablations.py --networks convnext --hows negate,zero
    python benchmarks/ablations.py --data cifar10 --networks cnn --part layers,undo,sets,little      on a GPU
    python benchmarks/ablations.py --hows "negate,reinit;zero,noise" --part layers,undo     every part of the first two,
                                                                     then of the others: for when time may run out
    python benchmarks/ablation_tables.py                            a CSV of the records, and the two figures of docs

Ten clients, the first one poisoned, who leaves. One line per cell goes into the record as soon as it is known; what
stands there is not done again. A cell that breaks is told and left out, and the command ends with 1. Parts:

    layers       every convolution, dense or embedding weight alone (the head too) × every perturbation, sealed ones too
    sets         one or several layers, a chain, weight with bias, convolution with its norm (which must equal FT)
    federation   local epochs, participation, number of clients, β of a Dirichlet partition, the share that is forgotten
    little       recovery with 1, 5, 20 % of what stays, with some clients only, with unlabelled images and a teacher
    undo         flip, realign, resurface, relearn of the first layer and of all hidden ones under each perturbation

Sealed draws come from the operating system in a run; here they are a function of the seed, so that cells repeat.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ablation_bench import LEAVER, SETTINGS, Bench, TrialSize, kept
from ablation_little import little
from ablation_undo import fits, undo
from unfed import plugins
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.model.layers import Choice, choose
from unfed.model.sealing import NAMES

RECORDS = {
    "digits": Path(__file__).parent / "records/2026-11-16-ablations-digits-cpu.jsonl",
    "cifar10": Path(__file__).parent / "records/2026-11-16-ablations-cifar10-cuda.jsonl",
}
RECORD = RECORDS["digits"]
TUNED = ("cnn", "mlp", "resnet-tiny", "vit-tiny")
OTHERS = ("convnext", "efficientnet-tiny", "mixer", "text")
OPEN = ("negate", "zero", "reinit", "noise", "orthogonal", "flip-both", "rotate-90")
SEALED = tuple(f"sealed {how}" for how in NAMES if how != "reinit")  # that one is `reinit`, by another draw

# --- the cells of each part -------------------------------------------------------------------------------------------

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]


def layers(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    yield {"layer": "-", "how": "none"}, partial(bench.cell, (), "none")
    for how in hows:
        for choice in bench.scene.weights:
            if fits(bench, (choice,), how):
                yield {"layer": choice.name, "how": how}, partial(bench.cell, (choice,), how)


def sets(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    module = bench.scene.world.template.module
    weights = [choice.name for choice in bench.scene.weights]
    groups: dict[str, tuple[Choice, ...]] = {
        "first": choose(module, ("first",)),
        "first, with its bias": choose(module, ("first",), include_bias=True),
        "a chain: the first two": choose(module, weights[:2]),
        "all hidden": choose(module, ("hidden",)),
        "all hidden, with biases": choose(module, ("hidden",), include_bias=True),
        "the head": choose(module, weights[-1:]),
    }
    if bench.network == "vit-tiny":
        block = "encoder.layers.encoder_layer_0.mlp"
        groups["a chain: a perceptron's two layers"] = choose(module, (f"{block}.0.weight", f"{block}.3.weight"))
        groups["both perceptrons' first layers"] = choose(module, [n for n in weights if n.endswith("mlp.0.weight")])
    if bench.network == "resnet-tiny":
        block = "layer2.0"
        groups["a chain: a block's two convolutions"] = choose(
            module, (f"{block}.conv1.weight", f"{block}.conv2.weight")
        )
        side = (f"{block}.conv2.weight", f"{block}.downsample.0.weight")
        groups["an antichain: a block and its shortcut"] = choose(module, side)
    yield {"layer": "-", "how": "none"}, partial(bench.cell, (), "none")
    if bench.network in CANCELLING:
        both = tuple(Choice(name, None, "cancels") for name in CANCELLING[bench.network])
        yield {"layer": "convolution and its norm", "how": "negate"}, partial(bench.cell, both, "negate")
    for label, chosen in groups.items():
        for how in hows:
            if not how.startswith(("flip", "rotate")):
                yield {"layer": label, "how": how}, partial(bench.cell, chosen, how)


CANCELLING = {
    "cnn": ("conv1.weight", "conv1.bias", "norm1.weight"),
    "resnet-tiny": ("conv1.weight", "bn1.weight", "bn1.running_mean"),
}
"""A convolution and its norm's scale, which cancel; the running mean belongs to the convolution's answers."""


TENTH = Request("a-tenth-of-all", fraction=0.1)
KNOBS: dict[str, tuple[tuple[str, ...], Request]] = {
    "one local epoch, ten clients (as elsewhere)": ((), LEAVER),
    "5 local epochs": (("training.epochs=5",), LEAVER),
    "half of the clients in a round": (("training.participation=0.5",), LEAVER),
    "5 clients": (("partition.clients=5",), LEAVER),
    "20 clients": (("partition.clients=20",), LEAVER),
    "Dirichlet, β = 0.1": (('partition.scheme="dirichlet"', "partition.beta=0.1"), LEAVER),
    "Dirichlet, β = 1": (('partition.scheme="dirichlet"', "partition.beta=1.0"), LEAVER),
    "3 of ten clients leave": ((), Request("three-leave", clients=("0", "1", "2"))),
    "5 of ten clients leave": ((), Request("five-leave", clients=("0", "1", "2", "3", "4"))),
    "a tenth of all samples leaves": ((), TENTH),
    "three tenths of all samples leave": ((), Request("three-tenths-of-all", fraction=0.3)),
}


def federation(bench: Bench, hows: tuple[str, ...]) -> Iterator[Cell]:
    for label, (changes, request) in KNOBS.items():
        own = Bench(bench.network, bench.seed, (*bench.changes, *changes), request, bench.setting)
        for how in ("none", "negate", "reinit", "sealed fade"):
            yield {"layer": label, "how": how}, partial(_first, own, how)


def _first(bench: Bench, how: str) -> dict[str, Any]:
    """The cell of the first layer, with the bench's own θ* and Retrain."""
    found = bench.cell(choose(bench.scene.world.template.module, ("first",)), how)
    return found | {"before": kept(bench.before), "retrain": kept(bench.reference)}


PARTS: dict[str, Callable[..., Iterator[Cell]]] = {
    "layers": layers,
    "sets": sets,
    "federation": federation,
    "little": little,
    "undo": undo,
}


# --- the record -------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    told = _told(arguments)
    record = told.record or RECORDS[told.data]
    done = {_key(line) for line in read(record)}
    setting, changes, broken = SETTINGS[told.data], tuple(told.set), 0
    if told.rounds:
        train, recover = map(int, told.rounds.split("+"))
        setting = replace(setting, effort=TrialSize(rounds=train, recovery=recover), every=max(1, recover // 6))
    with plugins.allow_code():
        for seed, network in product(map(int, told.seeds.split(",")), told.networks.split(",")):
            bench = Bench(network, seed, changes, setting=setting, folder=told.models)
            for line, work in _cells(bench, told):
                if _key(line) in done:
                    continue
                try:
                    _write(record, _measured(line, work, bench))
                    done.add(_key(line))
                except Exception:  # of whatever kind: hours of other cells must not be lost for it
                    print("broken:", *_key(line), traceback.format_exc(), file=sys.stderr, flush=True)
                    broken += 1
    return 1 if broken else 0


def _cells(bench: Bench, told: argparse.Namespace) -> Iterator[Cell]:
    """The cells of one network and seed: every part of the first group of perturbations, then of the next."""
    for group, part in product(told.hows.split(";"), told.part.split(",")):
        for about, work in PARTS[part](bench, tuple(group.split(","))):
            yield {"network": bench.network, "seed": bench.seed, "part": part, **about}, work


def _told(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", choices=tuple(SETTINGS))
    parser.add_argument("--networks", default=",".join(TUNED))
    parser.add_argument("--part", default="layers", help=f"one or several of {', '.join(PARTS)}")
    parser.add_argument("--hows", default=",".join((*OPEN, *SEALED)), help="groups by ';', the first one first")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", default="", help="TRAINING+RECOVERY in place of the setting's own")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a change of the config")
    parser.add_argument("--record", type=Path, default=None)
    parser.add_argument(
        "--models", type=Path, default=None, help="a folder that keeps θ* and Retrain for the next time"
    )
    told = parser.parse_args(arguments)
    known = {"network": (*TUNED, *OTHERS), "part": tuple(PARTS), "perturbation": (*OPEN, *SEALED)}
    for kind, given in (("network", told.networks), ("part", told.part), ("perturbation", told.hows)):
        for name in given.replace(";", ",").split(","):
            if name not in known[kind]:
                parser.error(f"there is no {kind} {name!r}; choose {', '.join(known[kind])}")
    return told


def _measured(line: dict[str, Any], work: Callable[[], dict[str, Any]], bench: Bench) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found = work()
    except UnfedError as error:  # a network that does not survive it is a result
        found = {"gap": None, "back": None, "failed": str(error)}
    line |= {"before": kept(bench.before), "retrain": kept(bench.reference)} | found
    return line | {"seconds": round(time.monotonic() - began, 1), "torch": torch.__version__}


def _write(record: Path, line: Mapping[str, Any]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    words = ("network", "seed", "part", "layer", "how", "gap", "back", "seconds")
    print(*(line[name] for name in words), flush=True)


def read(record: Path) -> list[dict[str, Any]]:
    """The whole lines of a record; half a line of a killed writer counts as none."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("network", "seed", "part", "layer", "how"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main(sys.argv[1:]))
