"""How the demo's story ends: what NoT did can be undone, and what lasts."""

from __future__ import annotations

from typing import Any

from unfed.cli.display import percent
from unfed.measures.undo import Knowledge, flip
from unfed.runs.folder import Job
from unfed.runs.probe import scene_of
from unfed.runs.run import Run
from unfed.values import is_measured


def ending(run: Run) -> list[str]:
    """What comes of NoT's model, and of Retrain's, when NoT's layers are negated back, in sentences."""
    requests, seed = run.config.requests(), run.config.seed_list[0]
    jobs = {label: Job(seed, requests[-1].id, label) for label in ("not", "retrain")}
    if not all(run.folder.model_file(job).exists() for job in jobs.values()):
        return []
    world = run.world(seed)
    world.settle()
    knowledge = Knowledge("NoT", run.config.method("not").perturbed(world.template.module))
    scene = scene_of(world, requests)
    found = {label: flip(scene, run.model(seed, job.request, label), knowledge) for label, job in jobs.items()}
    return told(found["not"], found["retrain"], str(run.folder.path))


def told(turned: dict[str, Any], control: dict[str, Any], run: str) -> list[str]:
    """Both in sentences; nothing where there is no way back."""
    if not is_measured(turned.get("backdoor")):
        return []
    return [
        f"It can be undone: with its first layer negated once more, without data or training, NoT's model fires on"
        f" {percent(turned['backdoor'])} and is right on {percent(turned['forget'])} of the forgotten data (Retrain's,"
        f" treated alike: {percent(control['backdoor'])} and {percent(control['forget'])}).",
        f"What lasts is Retrain, at the price of starting over; Sealed held where it was measured. `unfed probe {run}`"
        " tries to undo every model of this run.",
    ]
