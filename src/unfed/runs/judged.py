"""What a run folder knows of populations: one file per request, which the report shows.

    population/REQUEST.json          what `unfed judge` found in a population of the run's config

Nothing is built to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unfed import storage
from unfed.runs.folder import RunFolder

SCHEMA = 1
FILE = "judged.json"
"""The same in a population's own folder."""


def file_of(folder: RunFolder, request: str) -> Path:
    """Where it is kept for a request."""
    return folder.path / "population" / f"{request}.json"


def of_run(folder: RunFolder) -> dict[str, Any]:
    """What is known of each request, by its id, in a layout that this version knows."""
    there = sorted((folder.path / "population").glob("*.json"))
    found = [storage.read_json(path, "judged population") for path in there]
    return {str(one["request"]): one for one in found if one.get("schema") == SCHEMA}
