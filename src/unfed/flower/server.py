"""The server app: `flwr run DIR` trains, unlearns and evaluates what can be (`unfed.remote.server`).

`flwr run` starts it by `serverapp = "unfed.flower.server:app"`. What went wrong is raised, so Flower calls the run
failed (`flwr ls`), and stands in `flower.json` in the run folder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unfed import storage
from unfed.errors import UnfedError
from unfed.flower.sentences import speak_plainly
from unfed.flower.speech import SPEECH, log
from unfed.flower.transport import GridTransport
from unfed.folder.clients import flower_runs
from unfed.remote import server
from unfed.remote.options import Options
from unfed.runs.description import now
from unfed.runs.run import Run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What Flower calls."""
    speak_plainly()
    _end_with_superlink(Options.of(context.run_config).folder, context.run_id)
    run(grid, context.run_config, context.run_id)


def _end_with_superlink(folder: Path, run_id: int) -> None:
    """End this process when the one that started it is gone.

    Flower's client library goes on trying to reach a dead SuperLink for ever, and would keep the run folder locked: the
    run could not be resumed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        if (folder / "run.json").exists():
            mark(folder, run_id, "failed", "the SuperLink is gone; start it again and resume with resume-from")
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run(grid: Grid, values: Mapping[str, Any], run_id: int = 0) -> Run:
    """Do what a run config asks for, and leave a word on how it ended."""
    folder = Options.of(values).folder
    try:
        found = server.run(GridTransport(grid), values, SPEECH, lambda: mark(folder, run_id, "running"))
    except (SystemExit, KeyboardInterrupt):  # `flwr stop`
        if (folder / "run.json").exists():
            mark(folder, run_id, "stopped", f"it was stopped; go on with resume-from={str(folder)!r}")
        log.warning("unfed: the run was stopped; go on with resume-from=%r", str(folder))
        raise
    except BaseException as error:
        if (folder / "run.json").exists():
            mark(folder, run_id, "failed", str(error) or type(error).__name__)
        if not isinstance(error, UnfedError):  # whose sentence Flower logs, see sentences.py
            log.error("unfed: the run failed: %s", error)
        raise
    mark(folder, run_id, "finished")
    log.info("unfed: done; the results are in %s", folder)
    return found


def mark(folder: Path, run_id: int, state: str, error: str = "") -> None:
    """Note which Flower run worked in a folder and how it ended: running, finished or failed."""
    runs = [run for run in flower_runs(folder) if run["run"] != str(run_id)]
    found = {"run": str(run_id), "state": state, "at": now()} | ({"error": error} if error else {})
    storage.write_json(folder / "flower.json", {"state": state, "runs": [*runs, found]})
