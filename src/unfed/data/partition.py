"""Who holds which rows: D = ⊎_k D^k, an exact cover drawn from the partition seed.

    iid        a permutation of all rows, cut into equal pieces
    dirichlet  for each class c:  q_c ~ Dir(β, …, β) over clients;  client k gets the share q_{c,k} of class c
    shards     rows sorted by label, cut into clients · per_client shards;  each client is dealt per_client of them
    natural    by who they came from: the largest groups, one client each, or cut into several where clients are more

A Dirichlet draw may leave a client with next to nothing. It is drawn again a few times; then a client that still has
fewer than `min_samples` takes rows from the largest clients, and the partition records who was topped up. Everything is
vectorised over rows and clients: a million clients over four million rows take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfed import rng
from unfed.errors import UnfedError

Ints = npt.NDArray[np.int64]

# Dirichlet draws before the smallest clients are topped up.
ATTEMPTS = 10


class Deal(Sequence[Tensor]):
    """All rows in one tensor, client after client.

    It is a tuple of tensors that costs nothing until one is asked for.
    """

    def __init__(self, order: Tensor, sizes: Ints) -> None:
        self.order = order
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, client: int) -> Tensor: ...

    @overload
    def __getitem__(self, client: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, client: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(client, slice):
            return tuple(self[k] for k in range(*client.indices(len(self))))
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        client %= len(self)
        return self.order[self._bounds[client] : self._bounds[client + 1]]

    @property
    def sizes(self) -> Ints:
        """How many rows each client holds."""
        return np.diff(self._bounds)


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each client, in the client's own order, and the clients that had to be topped up."""

    rows: Deal
    repaired: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def iid(labels: Tensor, clients: int, seed: int) -> Partition:
    """Equal random pieces; sizes differ by at most one row, the first clients hold the longer ones."""
    _check(labels, clients)
    order = rng.order(_key(seed, "iid"), len(labels))
    return Partition(Deal(order, _even(len(labels), clients)))


def dirichlet(labels: Tensor, clients: int, beta: float, seed: int, min_samples: int = 2) -> Partition:
    """Label skew: each class is dealt by its own Dirichlet(β) draw.

    The smaller β, the fewer clients share a class.
    """
    _check(labels, clients)
    if not 0.0 < beta < math.inf:
        raise UnfedError(f"The Dirichlet β must be a positive number, not {beta}; 0.1 is much skew, 100 nearly IID.")
    if min_samples < 1:
        raise UnfedError(f"min_samples must be at least 1, not {min_samples}; a client without rows cannot train.")
    if clients * min_samples > len(labels):
        raise UnfedError(
            f"{clients} clients with at least {min_samples} rows each need {clients * min_samples} rows,"
            f" and there are {len(labels)}; take fewer clients or a smaller min_samples."
        )
    counts = _draw_counts(labels, clients, beta, seed, min_samples)
    # Rows grouped by class, in random order inside a class, meet the counts laid out in the same way.
    shuffled = rng.order(_key(seed, "dirichlet", "rows"), len(labels))
    grouped = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)].numpy()
    owner = np.empty(len(labels), dtype=np.int64)
    owner[grouped] = np.repeat(np.tile(np.arange(clients), len(counts)), counts.reshape(-1))
    deal = _arrange(owner, clients, seed)
    needy = np.flatnonzero(deal.sizes < min_samples)
    if len(needy):
        deal = _arrange(_topped_up(deal, min_samples), clients, seed)
    return Partition(deal, tuple(needy.tolist()))


def shards(labels: Tensor, clients: int, per_client: int, seed: int) -> Partition:
    """Each client holds `per_client` runs of rows sorted by label, so it sees few classes."""
    _check(labels, clients)
    if per_client < 1:
        raise UnfedError(f"per_client is a number of shards, at least 1, not {per_client}.")
    if clients * per_client > len(labels):
        raise UnfedError(
            f"{clients} clients with {per_client} shards each need {clients * per_client} rows,"
            f" and there are {len(labels)}; take fewer clients or fewer shards."
        )
    shuffled = rng.order(_key(seed, "shards", "rows"), len(labels))
    by_label = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)].numpy()
    holder = rng.order(_key(seed, "shards", "deal"), clients * per_client).numpy() // per_client
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_label] = np.repeat(holder, _even(len(labels), clients * per_client))
    return Partition(_arrange(owner, clients, seed))


def natural(owners: Tensor, clients: int, seed: int) -> Partition:
    """Each client holds rows of one group, the largest groups first.

    Of more groups than clients the smallest are left out; of fewer, those with most rows per client are cut again.
    """
    _check(owners, clients)
    sizes = np.bincount(owners.cpu().numpy())
    ranked = np.argsort(-sizes, kind="stable")[: min(clients, int((sizes > 0).sum()))]
    pieces = np.ones(len(ranked), dtype=np.int64)
    for _ in range(clients - len(ranked)):
        pieces[np.argmax(sizes[ranked] / pieces)] += 1
    owner = np.full(len(owners), clients, dtype=np.int64)  # beyond the last: left out
    for group, first, count in zip(ranked, np.cumsum(pieces) - pieces, pieces, strict=True):
        rows = np.flatnonzero(owners.cpu().numpy() == group)
        mixed = rows[rng.order(_key(seed, "natural", int(group)), len(rows)).numpy()]
        owner[mixed] = np.repeat(first + np.arange(count), _even(len(rows), int(count)))
    deal = _arrange(owner, clients + 1, seed)
    return Partition(Deal(deal.order[: int(deal.sizes[:clients].sum())], deal.sizes[:clients]))


def split(n: int, key: int, fraction: float = 0.2) -> tuple[Tensor, Tensor]:
    """(train, validation) positions of a client with n rows, each sorted.

    Validation is ⌊fraction · n⌋ random ones.
    """
    if n < 1:
        raise UnfedError("A client without rows cannot be split into training and validation; leave it out.")
    if not 0.0 <= fraction < 1.0:
        raise UnfedError(f"The validation fraction must be at least 0 and below 1, not {fraction}.")
    held_out = min(portion(fraction, n), n - 1)
    order = rng.order(key, n)
    return order[held_out:].sort().values, order[:held_out].sort().values


def portion(fraction: float, n: int) -> int:
    """⌊fraction · n⌋ as it is meant: 0.29 of 100 is 29, although 0.29 * 100 is 28.999999999999996."""
    return math.floor(fraction * n + 1e-9)


def _check(labels: Tensor, clients: int) -> None:
    if clients < 1:
        raise UnfedError(f"There must be at least one client, not {clients}.")
    if clients > len(labels):
        raise UnfedError(f"{clients} clients cannot share {len(labels)} rows; take at most {len(labels)} clients.")


def _key(seed: int, *purpose: str | int) -> Tensor:
    return rng.as_key(rng.key(seed, "partition", *purpose))


def _even(n: int, pieces: int) -> Ints:
    """n cut into pieces whose sizes differ by at most one."""
    return n // pieces + (np.arange(pieces) < n % pieces).astype(np.int64)


def _arrange(owner: Ints, clients: int, seed: int) -> Deal:
    """Rows gathered by owner, in a seeded random order inside each client."""
    order = rng.order(_key(seed, "own order"), len(owner)).numpy()
    by_owner = order[np.argsort(owner[order], kind="stable")]
    return Deal(torch.from_numpy(by_owner), np.bincount(owner, minlength=clients).astype(np.int64))


def _draw_counts(labels: Tensor, clients: int, beta: float, seed: int, min_samples: int) -> Ints:
    """Rows of each class for each client, [classes, clients].

    It is the first draw in which every client gets enough rows, or else the last.
    """
    per_class = torch.unique(labels.cpu(), return_counts=True)[1].numpy()
    counts: Ints = np.empty((len(per_class), clients), dtype=np.int64)
    for attempt in range(ATTEMPTS):
        draws = np.random.Generator(np.random.Philox(key=rng.key(seed, "partition", "dirichlet", attempt)))
        for c, n in enumerate(per_class):
            # Cutting at the running sum gives every row of the class away exactly once.
            cuts = np.floor(np.cumsum(draws.dirichlet(np.full(clients, beta))) * n).astype(np.int64).clip(0, n)
            cuts[-1] = n
            counts[c] = np.diff(cuts, prepend=0)
        if counts.sum(0).min() >= min_samples:
            break
    return counts


def _topped_up(deal: Deal, min_samples: int) -> Ints:
    """The owner of each row after every client was given at least `min_samples`.

    Who is below takes one row at a time from the largest client.

    Taking from the largest, again and again, lowers the largest ones to a common level; the level is found directly.
    """
    sizes = deal.sizes
    lacks = np.maximum(min_samples - sizes, 0)
    low, high = min_samples, int(sizes.max())  # at `low` there is always enough, at `high` there is nothing
    while high - low > 1:
        level = (low + high) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= lacks.sum() else (low, level)
    gives = np.maximum(sizes - low, 0)
    surplus = int(gives.sum() - lacks.sum())
    gives[np.flatnonzero(gives)[:surplus]] -= 1
    owner_in_deal: Any = np.repeat(np.arange(len(deal)), sizes)
    place = np.arange(len(owner_in_deal)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner_in_deal[place >= (sizes - gives)[owner_in_deal]] = np.repeat(np.arange(len(deal)), lacks)
    owner = np.empty(len(owner_in_deal), dtype=np.int64)
    owner[deal.order.numpy()] = owner_in_deal
    return owner
