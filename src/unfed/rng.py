"""Randomness is a function, not a state.

Every draw is a hash of an address: (seed, purpose, round, client) on the host, then (view, epoch, step, position)
on the device. Nothing is consumed, so a resumed run draws what the uninterrupted one drew, one client alone draws
what it would draw in a stack of ten thousand, and any round can be replayed.

    key("seed", 3, "train", 17, "client-4")  ->  a 63-bit key                      (blake2b, host)
    fold(key, data)                          ->  a child key                       (integers only, any device)
    words(key, positions)                    ->  one 32-bit word per position      (integers only, any device)

The mixer is a 32-bit bijection (xor-shift, multiply, twice) carried in int64: both multipliers are below 2**31, so
no product overflows and CPU, CUDA, `vmap` and `torch.compile` agree bit for bit. For one key it maps distinct
positions to distinct words, so sorting the words is a permutation without ties.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

WORD = 1 << 32
_MASK = WORD - 1
_GOLDEN = 0x9E3779B9
_JSON = json.JSONEncoder(separators=(",", ":"))

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]

Key = int | Tensor
"""A key alone is best a plain number, 30 times cheaper to fold than a tensor of one; a stack of keys is a tensor."""

# What a visit's key is folded with, so that orders, flips, masks and labels never share a word.
ORDER, AUGMENT, DROPOUT, LABEL = 1, 2, 3, 4


def key(*address: str | int) -> int:
    """The 63-bit key at an address. Any change of any part gives an unrelated key."""
    digest = hashlib.blake2b(_JSON.encode(address).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@overload
def mix(word: int) -> int: ...
@overload
def mix(word: Tensor) -> Tensor: ...
@overload
def mix(word: Key) -> Key: ...
def mix(word: Key) -> Key:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    word = word ^ (word >> 16)
    word = (word * 0x21F0AAAD) & _MASK
    word = word ^ (word >> 15)
    word = (word * 0x735A2D97) & _MASK
    return word ^ (word >> 15)


def as_key(value: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """A key as the int64 tensor that the functions below take."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.int64, device=device)


@overload
def fold(parent: int, data: int) -> int: ...
@overload
def fold(parent: Tensor, data: int | Tensor) -> Tensor: ...
@overload
def fold(parent: int, data: Tensor) -> Tensor: ...
def fold(parent: Key, data: int | Tensor) -> Key:
    """The child of a key for one more part of the address; broadcasts over tensors of keys or data."""
    low, high = parent & _MASK, parent >> 32
    part: Key = mix((data + _GOLDEN) & _MASK)
    new_low = mix((low + part) & _MASK)
    new_high = mix(((high ^ part) + new_low) & _MASK) >> 1
    return (new_high << 32) | new_low


@overload
def words(parent: Key, positions: Tensor) -> Tensor: ...
@overload
def words(parent: int, positions: Integers) -> Integers: ...
def words(parent: Key, positions: Any) -> Any:
    """One word in [0, 2**32) per position; distinct positions below 2**32 get distinct words."""
    low, high = parent & _MASK, parent >> 32
    return mix(mix((positions + high) & _MASK) ^ low)


def below(word: Tensor, high: int | Tensor) -> Tensor:
    """Words scaled to integers in [0, high); `high` must be below 2**31."""
    return stored((word * high) >> 32)


def chance(word: Tensor, probability: float) -> Tensor:
    """True where the word falls under the probability; 0 is never, 1 is always."""
    return stored(word < round(probability * WORD))


def stored(drawn: Tensor) -> Tensor:
    """The same tensor, as a view.

    PyTorch's compiler then stores it, where it would compute it again at every use.
    """
    return drawn.as_strided(drawn.shape, drawn.stride())


def order(parent: Key, n: int) -> Tensor:
    """A permutation of range(n). Words are distinct, so any way of sorting them gives the same one."""
    if isinstance(parent, Tensor):
        return torch.argsort(words(parent, torch.arange(n, device=parent.device)), stable=True)
    return torch.from_numpy(np.argsort(words(parent, np.arange(n))))


def first(parent: int, n: int, count: int) -> Tensor:
    """The first `count` entries of `order(parent, n)`, in rising order.

    They are a sample of range(n), drawn without sorting it all.
    """
    if count >= n:
        return torch.arange(n)
    return torch.from_numpy(np.sort(np.argpartition(words(parent, np.arange(n)), count)[:count]))


def generator(seed: int) -> torch.Generator:
    """A CPU generator for the few floating-point draws (noise, orthogonal matrices)."""
    return torch.Generator().manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run code that draws from the global generator (module initialisers) as a function of `seed`."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
