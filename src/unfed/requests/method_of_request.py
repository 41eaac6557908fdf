"""The method whose model is meant where somebody names a request and no method."""

from __future__ import annotations

from collections.abc import Iterable

from unfed.config.config import Config
from unfed.errors import UnfedError, listed
from unfed.requests.entry import Entry


def method_of_request(entries: Iterable[Entry], config: Config, seed: int, request: str) -> str:
    """The method that served the request, or the only one compared on it; of several none is guessed."""
    served = [entry.method for entry in entries if (entry.seed, entry.request.id) == (seed, request)]
    labels = served or list(config.methods.run)
    if len(labels) > 1 and request in config.request_ids():
        raise UnfedError(
            f"Methods were compared on request {request!r}, and none of their models was put in force; say which one"
            f" with --method, {listed(labels)}."
        )
    return labels[0] if labels else "not"
