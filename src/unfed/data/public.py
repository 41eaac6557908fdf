"""Images at the server: the held-out rows of the clients that stay, without their labels.

A simulation has no public data set beside the clients' own, so this stands for one. The rows are never trained on by
anybody, never test rows and never the leaver's; their labels are zeros before anything can read them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unfed.data.scope import ClientData
from unfed.data.source import Source


class Unlabelled:
    """A source whose labels say nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.labels = torch.zeros_like(source.labels)
        self.resident, self.augments = source.resident, source.augments
        self.classes, self.shape, self.inputs = source.classes, source.shape, source.inputs

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, rows: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The images of `rows`, each with the label 0."""
        x, y = self._source.fetch(rows, draws)
        return x, torch.zeros_like(y)


def public(clients: Mapping[str, ClientData]) -> ClientData | None:
    """The server as one more client, or None where nobody who stays holds a validation row."""
    staying = [c for c in clients.values() if len(c.view("retain")) and len(c.view("val"))]
    if not staying:
        return None
    rows = torch.cat([c.rows[c.view("val")] for c in staying])
    places = torch.arange(len(rows), device=rows.device)
    return ClientData("server", Unlabelled(staying[0].source), rows, places, places[:0])
