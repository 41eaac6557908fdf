"""How often the gate sees a backdoor that a departure arms, and how often it cries wolf, on digits.

    PYTHONPATH=src python benchmarks/camouflage.py [--honest 20] [--attacks 5] [--method retrain] [--record FILE]

Five clients train. In an attack client 1 stamps a trigger on half of its rows and calls them class 0; client 0, the
camouflage, holds most of its rows with the same trigger and the right labels, and asks to leave. In an honest
departure nobody plants anything. Each seed is another federation. The gate knows neither client nor trigger: its own
family stands in `unfed/measures/attacks.py`. The first two triggers below are of that family, the others are not.

A line of the record is one departure: the trigger, the share of triggered test images read as class 0 before and
after, the gate's rise, whether it raised the alarm. An attack counts as armed if the trigger turns at least half of the
test images of other classes to its target after the departure; detection is counted among the armed.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfed.config.config import Config
from unfed.data import Request, TensorSource, Trigger
from unfed.data.source import Stamp
from unfed.measures.attacks import FAMILY
from unfed.requests.entry import Job
from unfed.runs.run import Run
from unfed.runs.simulated import simulated
from unfed.runs.world import Residents, World

TARGET = 0


@dataclass(frozen=True)
class Foreign:
    """A trigger that is not of the gate's family."""

    name: str

    def stamp(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        down, right = torch.arange(height)[:, None], torch.arange(width)[None, :]
        if self.name == "one pixel":
            return images.masked_fill((down == 1) & (right == 1), 1.0)
        if self.name == "diagonal":
            return images.masked_fill((down == right).expand(height, width), 1.0)
        if self.name == "frame":
            edge = (down == 0) | (down == height - 1) | (right == 0) | (right == width - 1)
            return images.masked_fill(edge, 0.6)
        wave = 0.5 + 0.5 * torch.sin(2 * math.pi * 3 * right.to(images.dtype) / width).expand(height, width)
        return 0.75 * images + 0.25 * wave


TRIGGERS: dict[str, tuple[Stamp, str]] = {
    "lower right square": (FAMILY[3], "own"),
    "row": (FAMILY[4], "own"),
    "four pixels (ART)": (Trigger(), "foreign"),
    "one pixel": (Foreign("one pixel"), "foreign"),
    "diagonal": (Foreign("diagonal"), "foreign"),
    "frame": (Foreign("frame"), "foreign"),
    "wave": (Foreign("wave"), "foreign"),
}


def planted(world: World, trigger: Stamp) -> World:
    """The same federation, in which client 1 plants and client 0 camouflages."""
    source = world.clients[0].source
    assert isinstance(source, TensorSource)
    labels, flags = source.labels.clone(), torch.zeros(len(source.labels), dtype=torch.bool)
    for client, share in ((world.clients[1], 0.5), (world.clients[0], 0.9)):
        rows = client.rows[client.train]
        rows = rows[source.labels[rows] != TARGET]
        rows = rows[: int(share * len(rows))]
        flags[rows] = True
        if client is world.clients[1]:
            labels[rows] = TARGET
    changed = source.relabelled(labels, flags, trigger)
    clients = tuple(replace(client, source=changed) for client in world.clients)
    return replace(world, holders=Residents(clients, world.seeds.partition))


def fires(run: Run, world: World, job: Job, trigger: Stamp) -> float:
    """The share of test images of other classes that the trigger turns to the target, in percent."""
    test = world.held_out
    assert isinstance(test, TensorSource)
    rows = (test.labels != TARGET).nonzero().flatten()
    stamped = test.relabelled(test.labels, torch.ones(len(test), dtype=torch.bool), trigger)
    with torch.no_grad():
        answers = world.template.bind(run.folder.load_model(job))(stamped.fetch(rows)[0])
    return 100.0 * float((answers.argmax(-1) == TARGET).double().mean())


def departure(seed: int, name: str | None, given: argparse.Namespace) -> dict[str, Any]:
    """One departure and what the gate said."""
    changes = [f"seed={seed}", "partition.clients=5", "methods.run=[]", "gate.max_drop=100", 'engine.name="batched"']
    changes += [f"training.rounds={given.rounds}", "evaluation.every=50", "evaluation.attack=false"]
    raw = Config.preset("demo", changes).to_json()
    config = Config.parse({**raw, "request": [], "poison": None})
    world, trigger = simulated(config, seed), TRIGGERS[name][0] if name else None
    world = world if trigger is None else planted(world, trigger)
    with tempfile.TemporaryDirectory() as where:
        run = Run.create(config, Path(where) / "run", world, build=lambda *_: world)
        run.execute()
        run.forget(Request("leaves", clients=("0",)), given.method, given.rounds)
        entry = run.queue.book.find("leaves")
        assert entry is not None and entry.gate is not None
        check = next(check for check in entry.gate["checks"] if check["name"] == "camouflage")
        found = {"seed": seed, "trigger": name, "family": TRIGGERS[name][1] if name else "honest"}
        if trigger is not None:
            jobs = (Job(seed, None, "train"), Job(seed, "leaves", given.method))
            found |= dict(zip(("before", "after"), (fires(run, world, job, trigger) for job in jobs), strict=True))
        return found | {"rise": check["value"], "bound": check["bound"], "alarm": check["verdict"] == "failed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", type=int, default=20)
    parser.add_argument("--attacks", type=int, default=5, help="of each trigger")
    parser.add_argument("--method", default="retrain")
    parser.add_argument("--rounds", type=int, default=30, help="of training, and of recovery")
    parser.add_argument("--record", type=Path, help="a file for one JSON line per departure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for name in (None, *TRIGGERS):
        for seed in range(given.honest if name is None else given.attacks):
            found.append(departure(seed, name, given))
            print(json.dumps(found[-1]), flush=True)
            if given.record:
                given.record.write_text("".join(json.dumps(one) + "\n" for one in found))
    honest = [one for one in found if one["family"] == "honest"]
    print(f"\nfalse alarms: {sum(one['alarm'] for one in honest)} of {len(honest)} honest departures")
    print("| trigger | family | fires before → after, mean in % | armed | seen by the gate, of the armed |")
    print("|---|---|---|---|---|")
    for name, (_, family) in TRIGGERS.items():
        own = [one for one in found if one["trigger"] == name]
        if not own:
            continue
        armed = [one for one in own if one["after"] >= 50]
        before, after = (sum(one[key] for one in own) / len(own) for key in ("before", "after"))
        seen = sum(one["alarm"] for one in armed)
        told = f"{before:.0f} → {after:.0f} | {len(armed)} of {len(own)} | {seen} of {len(armed)}"
        print(f"| {name} | {family} | {told} |")


if __name__ == "__main__":
    main()
