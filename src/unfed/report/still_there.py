"""What still carries a request, as the officer reads it.

    info["influence"]    the files in the run folder that still carry what was taken out, and how

A request makes a new model and unmakes no file: here stand the files, and how they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def files(run: Mapping[str, Any], request: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """(file, what it is) of everything in the run folder that still carries what was taken out.

    It is None where that is not known.
    """
    if run.get("influence") is None:
        return None
    own = [item for item in run["influence"] if str(item.get("request")) == str(request["id"])]
    return list(dict.fromkeys((str(item["file"]), _named(item)) for item in own))


def deleting(run: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """How the files go that still carry it: purging takes a model in force that is without it."""
    if run.get("call"):
        return "delete those that must go"
    if request.get("left_by"):
        return "`unfed purge` of the requests by which it had left deletes them"
    if request.get("state") == "fulfilled":
        return "`unfed purge` deletes them"
    if request.get("state"):
        return "`unfed purge` deletes them once the request is fulfilled"
    return "methods were only compared: once a request for it is fulfilled, `unfed purge` deletes them"


def _named(item: Mapping[str, Any]) -> str:
    file, what = str(item["file"]), str(item["what"])
    if file.startswith("models/") and file.endswith("/train.safetensors"):
        return "θ*, the model before unlearning"
    if file.startswith("state/") and file.endswith("/train.safetensors") and "history" not in what:
        return "the last checkpoint of the training"
    return what
