"""The server app: `flwr run DIR` trains, unlearns and evaluates what can be (`unfed.remote.server`).

`flwr run` starts it by `serverapp = "unfed.flower.server:app"`. What went wrong is raised, so Flower calls the run
failed (`flwr ls`), and stands in `flower.json` in the run folder. Flower logs with its traceback whatever a server app
raises. Here the sentence of a refusal says what to do, so its traceback is left out; a mistake of ours keeps it.
"""

from __future__ import annotations

import logging
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
from unfed.flower.transport import SPEECH, GridTransport, log
from unfed.folder.layout import flower_runs
from unfed.remote import server
from unfed.remote.options import Options
from unfed.requests.entry import now
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
        if not isinstance(error, UnfedError):  # whose sentence Flower logs
            log.error("unfed: the run failed: %s", error)
        raise
    mark(folder, run_id, "finished")
    log.info("unfed: done; the results are in %s", folder)
    return found


def mark(folder: Path, run_id: int, state: str, error: str = "") -> None:
    """Note which Flower run worked in a folder and how it ended: running, finished or failed."""
    runs = [run.to_json() for run in flower_runs(folder) if run.run != str(run_id)]
    found = {"run": str(run_id), "state": state, "at": now()} | ({"error": error} if error else {})
    storage.write_json(folder / "flower.json", {"state": state, "runs": [*runs, found]})


# --- the log ----------------------------------------------------------------------------------------------------------


def speak_plainly() -> None:
    """Show refusals as sentences in Flower's log of this process, which runs unfed's own app."""
    log.addFilter(one_sentence)


def one_sentence(record: logging.LogRecord) -> bool:
    """A filter for Flower's log: a refusal of ours goes through without its traceback."""
    error = _refusal(record.exc_info[1] if isinstance(record.exc_info, tuple) else None)
    if error is not None:
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
        return True
    return record.levelno < logging.ERROR or not _only_traceback(record.getMessage())


def _refusal(error: BaseException | None) -> UnfedError | None:
    """The refusal that Flower logs, or that was the cause of what it logs."""
    while error is not None and not isinstance(error, UnfedError):
        error = error.__cause__
    return error


def _only_traceback(text: str) -> bool:
    """Whether this is the traceback, as text, of a refusal whose sentence stands in another line."""
    last = text.rstrip().rpartition("\n")[2]
    return text.startswith("Traceback") and last.startswith(f"{UnfedError.__module__}.")
