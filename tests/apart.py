"""Tests marked `own_process` run in a child of the process that runs the others, and leave nothing behind in it.

On a CPU without bf16 (many of aarch64), one matrix product of halves makes PyTorch take another library for its float32
products too, until the process ends: their last bits change, and a run made before equals none made after. So halves
are multiplied in children only. Three guards hold this: autocast refuses to begin in the common process, every test
must leave the products of that process as they were, and `test_apart.py` looks for names of halves in the sources.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

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


def _reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """The reports of setting up, calling and tearing down `item`, all done by a child that ends with them."""
    config, hook = item.config, item.config.hook
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            try:
                # Fixtures of a module or of the session are the common process's: only the test's own are torn down.
                shared = SimpleNamespace(listchain=lambda: item.listchain()[:-1])
                reports = runtestprotocol(item, log=False, nextitem=cast(pytest.Item, shared))
                told = [hook.pytest_report_to_serializable(config=config, report=report) for report in reports]
                answer.write(json.dumps(told).encode())
                answer.flush()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        answer.seek(0)
        told = json.loads(answer.read() or b"[]")
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
