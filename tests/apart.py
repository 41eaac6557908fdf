"""Tests marked `own_process` run in processes of their own, and leave nothing behind in the one that runs the others.

On a CPU without bf16 (many of aarch64), one matrix product of halves makes PyTorch take another library for its float32
products too, until the process ends: their last bits change, and a run made before equals none made after. So halves
are multiplied in children only. Three guards hold this: autocast refuses to begin in the common process, every test
must leave the products of that process as they were, and `test_apart.py` looks for names of halves in the sources.

The children's parent is a copy of the common process from before its first test, which runs none itself. A child of the
common process would not do: once PyTorch has begun threads for gradients there (its CUDA builds do so when a kernel is
interpreted), no child of it can compute any.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol

REMEDY = "A test that multiplies halves (bf16, fp16) on the CPU needs @pytest.mark.own_process."
_common = os.getpid()


def apart() -> bool:
    """Whether this is the process of one test alone."""
    return os.getpid() != _common


# --- a child for one test ---------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    marked = any(item.get_closest_marker("own_process") for item in session.items)
    if marked and hasattr(os, "fork") and not session.config.option.collectonly:
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # a child that came first would empty it
        session.stash[_nursery] = Nursery(session.items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if nursery := session.stash.get(_nursery, None):
        nursery.close()
        del session.stash[_nursery]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("own_process") is None:
        return None
    if not hasattr(os, "fork"):
        item.add_marker(pytest.mark.skip(reason="needs a forked process, which this system does not have"))
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)  # what earlier tests set up and the next one does not share
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Nursery:
    """A process that begins a child for every test it is asked for, and does nothing else."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        here, there = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                here.close()
                _begin_children(there.makefile("rwb", 0), items)
            finally:
                os._exit(0)
        there.close()
        self._line = here.makefile("rwb", 0)
        here.close()  # the file above keeps it open
        self._places = {item.nodeid: place for place, item in enumerate(items)}

    def reports(self, item: pytest.Item) -> tuple[list[dict[str, Any]], int]:
        """What a child said of setting up, calling and tearing down a test, and the status it ended with."""
        with tempfile.NamedTemporaryFile() as answer:
            self._line.write(f"{self._places[item.nodeid]} {answer.name}\n".encode())
            status = self._line.readline()
            return json.loads(answer.read() or b"[]"), int(status or os.EX_SOFTWARE << 8)

    def close(self) -> None:
        """It ends when nobody can ask it any more."""
        self._line.close()
        os.waitpid(self.pid, 0)


_nursery = pytest.StashKey[Nursery]()


def _begin_children(line: socket.SocketIO, items: Sequence[pytest.Item]) -> None:
    while asked := line.readline():
        place, answer = asked.decode().split(maxsplit=1)
        child = os.fork()
        if child == 0:
            try:
                _run(items[int(place)], Path(answer.rstrip("\n")))
            finally:
                os._exit(0)
        line.write(f"{os.waitpid(child, 0)[1]}\n".encode())


def _run(item: pytest.Item, answer: Path) -> None:
    """Set up, call and tear down one test, with all fixtures that it needs, and write down how it went."""
    config, hook = item.config, item.config.hook
    torch.set_num_threads(1)  # a child's pool is replaced when it is first touched: by one thread alone
    reports = runtestprotocol(item, log=False, nextitem=None)
    told = [hook.pytest_report_to_serializable(config=config, report=report) for report in reports]
    answer.write_bytes(json.dumps(told).encode())


def _reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    config, hook = item.config, item.config.hook
    told, status = item.session.stash[_nursery].reports(item)
    for report in told:
        yield hook.pytest_report_from_serializable(config=config, data=report)
    if not told:
        ended = f"its process ended without an answer (exit code {os.waitstatus_to_exitcode(status)})"
        yield hook.pytest_runtest_makereport(
            item=item, call=pytest.CallInfo.from_call(lambda: pytest.fail(ended, pytrace=False), "call")
        )


# --- guards for the common process ------------------------------------------------------------------------------------


def products() -> list[bytes]:
    """Some float32 products to their last bits, as this process computes them now."""
    a, b = (torch.linspace(-1, 1, 96 * 96).roll(k).view(96, 96) * (k + 1 / 3) for k in (0, 7))
    image, kernel = a.view(1, 16, 24, 24), b[:16].reshape(16, 16, 6, 1)
    found = a @ b, torch.addmm(a[0], a, b), torch.bmm(a[None], b[None]), torch.conv2d(image, kernel)
    return [x.numpy().tobytes() for x in found]


torch.set_num_threads(1)
_at_first = products()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> object:
    """The next test finds the process as this one did; a world sets the threads that its config asks for."""
    try:
        return (yield)
    finally:
        torch.set_num_threads(1)
        assert torch.get_default_dtype() is torch.float32, "the test left another default dtype behind"
        assert apart() or products() == _at_first, f"float32 products are not what they were before the test. {REMEDY}"


_autocast: Callable[..., object] = torch.autocast.__enter__


def _guarded(cast: torch.autocast) -> object:
    assert apart() or cast.device != "cpu" or cast.fast_dtype not in (torch.bfloat16, torch.float16), REMEDY
    return _autocast(cast)


torch.autocast.__enter__ = _guarded  # type: ignore[method-assign]  # every autocast of the process
