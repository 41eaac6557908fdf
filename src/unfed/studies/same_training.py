"""θ* of one run, taken over by another that would train the very same.

    data, partition, poison, model, training, engine, evaluation, seeds      alike, on the same machine: the same bits
    methods, request, unlearning, checkpoints                                may differ: training never looks at them

What is taken is what training would have left: its lines, its last state with the histories that are needed here, its
model. Nothing is taken that is there already, and nothing of a run that has served requests: who left it while it
trained is not in its θ*.
"""

from __future__ import annotations

import json
import shutil

from unfed import storage
from unfed.measures.trajectory import job_of
from unfed.requests.entry import Job
from unfed.runs.record import RunRecord

ASIDE = ("name", "seed", "methods", "request", "unlearning", "checkpoint", "gate")
"""Tables and keys of a config that no training depends on; seeds are compared one by one."""
MADE_BY = ("initial", "versions", "hardware", "device", "engine", "chunk", "clients", "topped_up_clients", "parameters")
"""What a run's description says of the machine and the world that trains."""
TRAINERS = ("engine", "evaluator")
"""Whose revisions change θ* or what is written of it, and stand in every run."""


def training_key(run: RunRecord) -> str:
    """Equal for two runs that train the same θ* from the same seed."""
    config = {name: value for name, value in run.config.to_json().items() if name not in ASIDE}
    about = run.description.to_json()
    made = {name: about.get(name) for name in MADE_BY}
    revised = {name: run.description.revisions.get(name) for name in TRAINERS}
    return json.dumps([config, made, revised], sort_keys=True)


def records_enough(source: RunRecord, run: RunRecord) -> bool:
    """Whether the source's training kept the histories that this run's methods need.

    They must be as this run would have kept them.
    """
    there = source.config.recorded()
    return all(there.get(label) == method for label, method in run.config.recorded().items())


def take_training(run: RunRecord, source: RunRecord) -> list[int]:
    """Take θ* over for every seed that this run still has to train and the source has trained.

    Gives those seeds.
    """
    if training_key(run) != training_key(source) or not records_enough(source, run) or source.folder.book().entries:
        return []
    with run.folder.lock() as free:
        if not free:
            return []
        run.folder.cut_back()
        wanted = [seed for seed in run.config.seed_list if run.folder.saved(run.training_job(seed)) is None]
        have = [seed for seed in wanted if seed in source.config.seed_list]
        return [seed for seed in have if take_job(run, source, run.training_job(seed), tuple(run.config.recorded()))]


def take_job(run: RunRecord, source: RunRecord, job: Job, histories: tuple[str, ...] = ()) -> bool:
    """Take one job over, with these histories.

    Its lines come first, then its state, which vouches for them, then its model: killed in between, it is trained.
    """
    file = source.folder.model_file(job)
    if not (source.folder.finished(job) and file.exists()):
        return False
    saved = source.folder.load_state(job)
    assert saved is not None
    state, said = saved
    for line in source.folder.lines():
        if job_of(line) == job.key:
            run.folder.append(line)
    if (scores := source.folder.path / "samples" / job.path).exists():
        shutil.copytree(scores, run.folder.path / "samples" / job.path, dirs_exist_ok=True)
    there, offset = source.folder.load_histories(job), run.folder.length()
    notes = said.to_json(include={"finished", "rounds"}) | {"diary": {**said.diary.to_json(), "offset": offset}}
    run.folder.save_state(job, state, {"offset": offset, **notes}, {label: there[label] for label in histories})
    run.folder.save_model(job, source.folder.load_model(job), storage.numbers_of(file))
    return True
