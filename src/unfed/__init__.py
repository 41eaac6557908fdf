"""Take a client, a class or samples out of a federated model, and measure whether they are out.

unfed.negate(model)                                  one line: Eq. 3 on your own module
run = unfed.Run.create(unfed.Config.preset("demo"), "runs/demo"); run.execute()
run.forget(unfed.Request("bye", clients=("3",)))     a deletion request, served
unfed.unlearn(model, retain=…, forget=…, test=…)     one model, one data set, no federation
unfed.write_report(run)                              evidence a person can read
unfed.plot(run, "forget")                            a picture for a notebook, or .save("forget.pdf")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfed.api import negate, plot, results, write_report
    from unfed.central import Result, unlearn
    from unfed.config.config import Config
    from unfed.data import Request
    from unfed.data.fetch.tables import read
    from unfed.errors import Refused, UnfedError, UnfedWarning
    from unfed.plugins import allow_code
    from unfed.runs.run import Run

__version__ = "0.1.0"

# Names are loaded when they are used: the engines work without the packages that configs and reports need.
_HOMES = {
    "Config": "unfed.config.config",
    "Refused": "unfed.errors",
    "Request": "unfed.data",
    "Result": "unfed.central",
    "Run": "unfed.runs.run",
    "UnfedError": "unfed.errors",
    "UnfedWarning": "unfed.errors",
    "allow_code": "unfed.plugins",
    "negate": "unfed.api",
    "plot": "unfed.api",
    "read": "unfed.data.fetch.tables",
    "results": "unfed.api",
    "unlearn": "unfed.central",
    "write_report": "unfed.api",
}

__all__ = [
    "Config",
    "Refused",
    "Request",
    "Result",
    "Run",
    "UnfedError",
    "UnfedWarning",
    "allow_code",
    "negate",
    "plot",
    "read",
    "results",
    "unlearn",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unfed' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
