"""The deny list.

It says who and what was forgotten, so that no later training of the federation takes it in again.

    clients   by name                    classes   by number
    rows      HMAC-SHA256(key, pixels): who has the list without its key learns nothing of a row from it, and who has
              both can ask of a row in hand whether it is on the list, and no more

A row is known by its content alone: offered again by another client, under another label or at another position, it is
still refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unfed.data.scope import ClientData
from unfed.data.source import Source, TensorSource
from unfed.errors import UnfedError

KEY_BYTES = 32


@dataclass(frozen=True)
class DenyList:
    """Clients, classes and rows that no training may take in."""

    clients: frozenset[str] = frozenset()
    classes: frozenset[int] = frozenset()
    rows: frozenset[str] = frozenset()
    key: bytes | None = None
    """Without it rows cannot be recognised."""

    def refuses(self, client: ClientData) -> Tensor:
        """For each position of a client whether it is on the list."""
        if client.name in self.clients:
            return torch.ones_like(client.forget)
        refused = torch.isin(client.labels.cpu(), torch.tensor(sorted(self.classes), dtype=torch.int64))
        if self.rows:
            if self.key is None:
                raise UnfedError("The deny list has rows, but its key is not there; restore deny.key beside run.json.")
            if not recognisable(client.source, client.rows):
                raise UnfedError(
                    "The deny list has rows, and this data set gives other numbers every time it is asked for a row, so"
                    " none can be recognised; give it without random transforms, or deny clients by a file of names."
                )
            own = row_digests(self.key, client.source, client.rows)
            refused |= torch.tensor([digest in self.rows for digest in own], dtype=torch.bool)
        return refused.to(client.forget.device)


def keep_out(clients: Sequence[ClientData], denied: DenyList) -> tuple[ClientData, ...]:
    """The clients without what is on the list, in training rows and held-out ones."""
    if not (denied.clients or denied.classes or denied.rows):
        return tuple(clients)
    left = []
    for client in clients:
        stays = ~denied.refuses(client)
        left.append(replace(client, train=client.train[stays[client.train]], val=client.val[stays[client.val]]))
    if not any(len(client.train) for client in left):
        raise UnfedError("Every training row is on the deny list, so nothing is left to learn from; check deny.run.")
    return tuple(left)


def recognisable(source: Source, rows: Tensor) -> bool:
    """Whether a row has the same content whenever it is asked for: a user's own data set may draw."""
    if isinstance(source, TensorSource):
        return True
    few = rows[:32]
    return list(_contents(source, few)) == list(_contents(source, few))


def row_digests(key: bytes, source: Source, rows: Tensor) -> list[str]:
    """One keyed hash per row, of its pixels as they are stored."""
    return [hmac.new(key, content, hashlib.sha256).hexdigest() for content in _contents(source, rows)]


def _contents(source: Source, rows: Tensor) -> Iterable[bytes]:
    if isinstance(source, TensorSource):
        pixels = source.images.index_select(0, rows.to(source.images.device)).cpu()
        pixels = pixels if pixels.dtype == torch.uint8 else pixels.float()
        yield from (image.contiguous().numpy().tobytes() for image in pixels)
        return
    for row in rows.tolist():  # one at a time: such a source reads files
        yield source.fetch(torch.tensor([row]), None)[0][0].float().cpu().contiguous().numpy().tobytes()
