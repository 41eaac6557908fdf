"""Replies that do not fit into memory lie in a file, and their numbers are the same."""

from __future__ import annotations

import errno
import mmap
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from unfed.engines.base import Block
from unfed.errors import UnfedError
from unfed.federation import robust
from unfed.federation.robust import Robust
from unfed.flower.wire import packed as flower_arrays
from unfed.model.params import Params
from unfed.remote.codec import decode_reply, encode_answer
from unfed.remote.messages import Answer, Reply, unpacked
from unfed.remote.transport import Spool


def model(seed: int) -> Params:
    draw = torch.Generator().manual_seed(seed)
    own = {"w": torch.randn(7, 5, generator=draw), "b": torch.randn(3, generator=draw, dtype=torch.float64)}
    return own | {"n": torch.tensor(seed), "none": torch.zeros(0)}


def by_bytes(params: Params) -> Reply:
    found = decode_reply(encode_answer(Answer({}, {}, {"params": params})))
    assert isinstance(found, Reply)
    return found


def by_flower(params: Params) -> Reply:
    return Reply({}, {}, {"params": flower_arrays(ArrayRecord({n: t for n, t in params.items()}))})


@pytest.mark.parametrize("made", [by_bytes, by_flower])
@pytest.mark.parametrize("in_memory", [0, 400, 10**6])
def test_a_spooled_reply_holds_the_same_numbers(made: Callable[[Params], Reply], in_memory: int) -> None:
    spool = Spool(in_memory)
    kept = [spool.keep(made(model(seed))) for seed in range(4)]
    for seed, reply in enumerate(kept):
        found = unpacked(reply.arrays["params"])
        assert all(tensor.equal(found[name]) for name, tensor in model(seed).items())
        assert [found[name].dtype for name in found] == [t.dtype for t in model(seed).values()]


@pytest.mark.parametrize("made", [by_bytes, by_flower])
def test_reading_from_the_file_copies_nothing(made: Callable[[Params], Reply]) -> None:
    data = Spool(0).keep(made(model(1))).arrays["params"]["w"].data
    assert isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap)
    begin = np.frombuffer(data, np.uint8).ctypes.data
    read = unpacked(Spool(0).keep(made(model(1))).arrays["params"])["w"]
    assert not begin <= read.data_ptr() < begin + len(data)  # another reply, another place
    reply = Spool(0).keep(made(model(1))).arrays["params"]
    begin = np.frombuffer(reply["w"].data, np.uint8).ctypes.data
    assert begin <= unpacked(reply)["w"].data_ptr() < begin + len(reply["w"].data)


def test_a_reader_that_writes_changes_nothing_for_the_next() -> None:
    spool = Spool(0)
    first, second = (spool.keep(by_bytes(model(1))) for _ in range(2))
    unpacked(first.arrays["params"])["w"].zero_()
    assert unpacked(second.arrays["params"])["w"].equal(model(1)["w"])


def test_a_full_disk_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(UnfedError, match="No space left on device.*TMPDIR"):
        Spool(0).keep(by_bytes(model(1)))


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_a_rule_over_few_coordinates_at_a_time_finds_the_same(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(seed: int) -> Params:
        draw = torch.Generator().manual_seed(seed)
        return model(seed) | {"wide": torch.randn(3, 4096 + 17, generator=draw)}

    def block(seed: int) -> Block:
        return Block((str(seed),), {n: t.unsqueeze(0) for n, t in wide(seed).items()}, (1,), (1,), (0,))

    start, updates = wide(99), [block(seed) for seed in range(20)]
    whole = Robust(rule).average(start, updates)
    monkeypatch.setattr(robust, "_AT_ONCE", 1)
    parts = Robust(rule).average(start, updates)
    assert all(tensor.equal(parts[name]) for name, tensor in whole.items())
