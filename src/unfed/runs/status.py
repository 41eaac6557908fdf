"""Where a run stands.

It says which jobs have ended, which are at work, and what became of every deletion request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unfed.measures import trajectory
from unfed.requests.entry import Job
from unfed.runs import description
from unfed.runs.in_force import in_force
from unfed.runs.run import Run


def status(run: Run) -> dict[str, Any]:
    """Where a run stands, every job, and every deletion request.

    It is `running`, `finished`, `interrupted`, or, where all but requests that nobody took up is done, `waiting`.
    A request that was denied, withdrawn or has expired leaves nothing to resume.
    """
    last = trajectory.last_of_each(run.lines())
    busy, heard, jobs = run.folder.busy(), run.folder.heard() or {}, []
    entries = run.folder.book().entries
    over = {Job(e.seed, e.request.id, e.method): e.standing for e in entries if e.owed or not e.accepted}
    for job, rounds in run.jobs():
        line: Mapping[str, Any] = last.get(job.key, {})
        numbers = run.folder.numbers(job) or {}
        finished = numbers.get("finished")
        at = (heard.get("seed"), heard.get("request"), heard.get("method"))
        here = busy and at == job.key
        jobs.append(
            {
                "job": "/".join(job.path.parts),
                "round": heard["round"] if here else max(int(numbers.get("round", 0)), int(line.get("round", 0))),
                "rounds": numbers.get("rounds", rounds),
                "test": line.get("test"),
                "forget": trajectory.forget_of(line),
                "state": over.get(job)
                or finished
                or ("running" if here else "waiting" if not numbers else "not finished"),
            }
        )
    open_ones = {Job(e.seed, e.request.id, e.method) for e in entries if e.state == "open"}
    unfinished = {job for job, _ in run.ahead() if not run.folder.finished(job)}
    begun = any(e.state == "in_progress" for e in entries) or not unfinished <= open_ones
    complete = not unfinished and not open_ones
    state = "running" if busy else "interrupted" if begun else "finished" if complete else "waiting"
    requests = [
        {"id": e.request.id, "number": e.number, "subject": e.request.subject, **description.entry(e, run.way_out)}
        for e in entries
    ]
    return {
        "state": state,
        "jobs": jobs,
        "requests": requests,
        "in_force": [in_force(run, seed).to_json() for seed in run.config.seed_list if run.trained(seed)],
        "seconds_left": heard.get("seconds_left") if busy else None,
    }
