"""What federations side by side gain over the same federations one after another, in one warm process.

    python benchmarks/population.py                                    digits, 64 federations, 60 rounds, two CPU cores
    python benchmarks/population.py --preset cifar10-cnn --device cuda --precision bf16 --models 1,8,32,128 \
        --rounds 20 --alone 4 --root DATA                              one GPU; the ratio settles after a few rounds
    python benchmarks/population.py --processes 2                      the same, and both ways in two processes
    python benchmarks/population.py --ways "side by side" --set engine.chunk=40             stacks of at most 40 clients
    python benchmarks/population.py --models 2,3 --rounds 2 --pairs 1 --set model.name=cnn-tiny           a first look
    python benchmarks/population.py --commands --preset digits-cnn --rounds 300 --alone 4                whole processes

Each pair trains N federations as one cohort, and then A of them (`--alone`, at most N) by the readable loop; times are
per federation, so the ratio is fair where A < N. Both ways train the same θ* from the same seeds, nothing is saved or
evaluated in between, and the first rounds (compilation, caches) are made before the clock starts. `cpu_s` counts all
threads: on a machine that others use too, it says more than `wall_s`. Every line goes into the record as soon as it is
known, and what stands there is not measured again. The last lines have the ratios. Processes share the federations out
in cohorts as `unfed population` does on a CPU; the clock starts when all are warm, and stops with the last. `start_s`
is what came before that, for all federations together: processes, imports, data, two rounds.

`--commands` times `unfed population` (θ* and Retrain of N federations) and A times `unfed run` (the same of one) from
start to end, and both once more with two rounds: the difference is what they take without starting and compiling. One
of each before that fills the compiler's cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from unfed.config.config import Config
from unfed.runs.simulated import simulated
from unfed.runs.world import World
from unfed.studies.cohort import Cohort
from unfed.studies.population import TOGETHER
from workload import add_rows

RECORDS = Path(__file__).parent / "records"
KEY = ("preset", "hardware", "precision", "rounds", "models", "chunk", "pair", "way")


def config_sets(told: argparse.Namespace, rounds: int) -> list[str]:
    return [
        "seed=0",
        f"training.rounds={rounds}",
        f'device="{told.device}"',
        f'engine.precision="{told.precision}"',
        'engine.name="batched"',
        "checkpoint.rounds=1000000",
        "checkpoint.seconds=1000000",
        *([f'data.root="{told.root}"'] if told.root else []),
        *told.set,
    ]


def config_of(told: argparse.Namespace, rounds: int) -> Config:
    return Config.preset(told.preset, config_sets(told, rounds))


def trained(world: World, seeds: Sequence[int], together: bool) -> dict[str, float]:
    """Train the federations of these seeds, and say how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        cohort = Cohort(world, seeds, Path(folder), together)
        wall, cpu = time.perf_counter(), time.process_time()
        cohort.trained({}, lambda kind, round, rounds: None)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def in_processes(told: argparse.Namespace, models: int, together: bool) -> dict[str, float]:
    """The same in several processes."""
    begin = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    ready, spent = spawn.Barrier(told.processes + 1), spawn.SimpleQueue()
    each = TOGETHER["cpu"]
    cohorts = [range(i, min(i + each, models)) for i in range(0, models, each)]
    shares = [cohorts[i :: told.processes] for i in range(told.processes)]
    helpers = [
        spawn.Process(target=_share, args=(told, share, together, ready, spent), daemon=True) for share in shares
    ]
    for helper in helpers:
        helper.start()
    ready.wait()
    wall = time.perf_counter()
    cpu = sum(spent.get() for _ in helpers)
    took = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu, "start_s": wall - begin}
    for helper in helpers:
        helper.join()
    return took


def _share(told: argparse.Namespace, cohorts: Sequence[range], together: bool, ready: Any, spent: Any) -> None:
    world = simulated(config_of(told, told.rounds), 0)
    trained(replace(world, config=config_of(told, 2)), cohorts[0] if cohorts else range(1), together)
    ready.wait()
    spent.put(sum(trained(world, seeds, together)["cpu_s"] for seeds in cohorts))


def ways_of(told: argparse.Namespace) -> list[str]:
    """The ways to train, those of several processes only where there are several."""
    all_ways = ["side by side", "one by one"]
    all_ways += [f"{way} in {told.processes} processes" for way in all_ways] if told.processes > 1 else []
    wanted = told.ways.split(",") if told.ways else all_ways
    if odd := [way for way in wanted if way not in all_ways]:
        raise SystemExit(f"no way {odd[0]!r}; there are {', '.join(all_ways)}")
    return wanted


def commands(told: argparse.Namespace, models: int) -> dict[str, Any]:
    """What whole processes take, in seconds; and `unfed population` as a share of as many times `unfed run`."""

    def spent(words: Sequence[str], rounds: int) -> float:
        sets = [*config_sets(told, rounds), f"unlearning.rounds={rounds}", f"evaluation.every={rounds}"]
        sets += ["evaluation.attack=false", "evaluation.samples=false"]
        words = [*words, "--methods", "retrain", *(word for one in sets for word in ("--set", one))]
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "unfed", *words, "--out", f"{folder}/out", "-q"], check=True)
            seconds = time.perf_counter() - begin
            print(f"{words[0]}, {rounds} rounds: {seconds:.1f} s", flush=True)
            return seconds

    took: dict[str, Any] = {}
    single, many = ["run", told.preset], ["population", told.preset, "--models", str(models)]
    with ThreadPoolExecutor() as both:  # fills the compiler's cache for all that is timed
        list(both.map(lambda words: spent(words, 2), (single, many)))
    for rounds in (2, told.rounds):
        took[f"run_{rounds}_s"] = [round(spent(single, rounds), 1) for _ in range(told.alone)]
        took[f"population_{rounds}_s"] = round(spent(many, rounds), 1)
    start, whole = (models * fmean(took[f"run_{rounds}_s"]) for rounds in (2, told.rounds))
    began, all_ = took["population_2_s"], took[f"population_{told.rounds}_s"]
    shares = {"share": round(all_ / whole, 3), "share_without_start": round((all_ - began) / (whole - start), 3)}
    return {"preset": told.preset, "models": models, "rounds": told.rounds, **took, **shares}


def hardware(world: World) -> str:
    if world.device.type == "cuda":
        return torch.cuda.get_device_name(world.device)
    return f"{platform.machine()}, {torch.get_num_threads()} of {torch.multiprocessing.cpu_count()} cores"


def known(file: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {tuple(line.get(name) for name in KEY): line for line in lines if line.get("way")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bf16", "float64"), default="float32")
    parser.add_argument("--models", default="64", help="how many federations, with commas")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--alone", type=int, default=64, help="how many of them one after another, at most")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="and both ways in so many processes")
    parser.add_argument("--commands", action="store_true", help="whole processes instead")
    parser.add_argument("--ways", help="only these, with commas")
    parser.add_argument("--root", help="where the data set lies")
    parser.add_argument("--set", action="append", default=[], help="change a config key")
    parser.add_argument("--out", type=Path, help="a .jsonl that is gone on with")
    told = parser.parse_args()
    file = told.out or RECORDS / f"{datetime.now(UTC):%Y-%m-%d}-population-{told.device}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if told.commands:
        rows = [commands(told, int(n)) for n in told.models.split(",")]
        print(*rows, sep="\n")
        add_rows("population-commands", torch.device(told.device), rows)
        return
    world = simulated(config_of(told, told.rounds), 0)
    short = replace(world, config=config_of(told, 2))  # the same model: recorded steps are kept with it
    images = told.rounds * sum(len(client.view("retain")) for client in world.clients)
    about = {"preset": told.preset, "hardware": hardware(world), "precision": told.precision, "rounds": told.rounds}
    about["chunk"] = world.config.engine.chunk
    done, ways = known(file), ways_of(told)
    for models in (int(n) for n in told.models.split(",")):
        warm = set[str]()
        for pair in range(told.pairs):
            for way in ways if pair % 2 == 0 else reversed(ways):
                at = {**about, "models": models, "pair": pair, "way": way}
                if tuple(at[name] for name in KEY) in done:
                    continue
                together, several = way.startswith("side by side"), way.endswith("processes")
                count = models if together or several else min(models, told.alone)
                if several:
                    took = in_processes(told, models, together)
                else:
                    if way not in warm:
                        trained(short, range(count if together else 1), together)
                        warm.add(way)
                    took = trained(world, range(count), together)
                start = {"start_s": round(took.pop("start_s"), 1)} if several else {}
                each = {name: round(value / count, 4) for name, value in took.items()} | start
                line = {**at, "federations": count, **each, "images_per_s": round(images / each["wall_s"])}
                if world.device.type == "cuda":
                    line["peak_gib"] = round(torch.cuda.max_memory_allocated(world.device) / 2**30, 2)
                line |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": " ".join(sys.argv)}
                with open(file, "a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
    for line in ratios(file):
        print(json.dumps(line))


def ratios(file: Path) -> list[dict[str, Any]]:
    """One by one divided by another way, of the medians over pairs: above 1, that way gains."""
    groups: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for line in known(file).values():
        where = tuple(line.get(name) for name in KEY[:6])
        groups.setdefault(where, {}).setdefault(line["way"], []).append(line)
    found = []
    for where, ways in groups.items():
        middle = {
            way: {n: sorted(line[n] for line in lines)[len(lines) // 2] for n in ("wall_s", "cpu_s")}
            for way, lines in ways.items()
        }
        one = middle.pop("one by one", None)
        for way, many in middle.items() if one else ():
            ratio = {f"ratio_{n.removesuffix('_s')}": round(one[n] / many[n], 3) for n in ("wall_s", "cpu_s")}
            found.append({**dict(zip(KEY, where, strict=False)), "way": way, **ratio})
    return found


if __name__ == "__main__":
    main()
