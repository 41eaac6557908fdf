"""NVFlare: unfed's own server as a job, and forgetting in a job you already have.

    job(values).export_job(DIR)                unfed's own server and clients: train, unlearn, resume (transport.py)
    UnlearnFedAvg(exclude=…, ledger=…)         NVFlare's FedAvg without a site or a class (unlearn.py)
    staying_rows(received, labels), noted      what its client script may train on where a class leaves (unlearn.py)

Needs the extra `nvflare`, in an environment without Flower.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfed.nvflare.transport import Server, Site, job
    from unfed.nvflare.unlearn import UnlearnFedAvg, noted, staying_rows

_WHERE = {"transport": ("Server", "Site", "job"), "unlearn": ("UnlearnFedAvg", "noted", "staying_rows")}
__all__ = ["Server", "Site", "UnlearnFedAvg", "job", "noted", "staying_rows"]


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"unfed.nvflare.{module}"), name)
    raise AttributeError(f"module 'unfed.nvflare' has no attribute {name!r}")
