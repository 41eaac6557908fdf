"""Small worlds for tests: digits, a tiny network, few clients, few rounds."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: threads cost more than they give
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU; Triton reads this when it is imported

import numpy
import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

import unfed
import worded
from apart import (  # noqa: F401 (hooks: pytest finds them here)
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_runtestloop,
    pytest_sessionfinish,
)
from unfed import plugins, rng
from unfed.config.config import Config
from unfed.data import ClientData, TensorSource, datasets
from unfed.methods import sealed
from unfed.studies import grid
from worlds import Small, Toy

torch.set_num_threads(1)
# What a test starts as a process runs the code that the test runs, from whatever folder.
PATHS = [str(Path(unfed.__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, PATHS))
# No test cuts the power, so none waits for the disk; a descriptor that is not open still fails.
os.fsync = cast(Any, os.fstat)
# Every core has a test at work: a study begins no more processes than a test asks for.
cast(Any, grid).cores = lambda: 1
# The processes that tests begin are copies of one that has imported what they need, and draws no figures either.
grid.READY += ["unfed.cli.main", "unfed.studies.sweep", "unfed.studies.population", "worded.processes"]
# PyTorch describes what it traces to a log of its own while that has readers, and pytest would read every log it finds.
logging.root.manager.loggerDict.pop("torch.__trace", None)
# A process reads the digits and the commands once, tests a thousand times: what was read is kept.
typer.main.get_command = functools.cache(typer.main.get_command)
read_digits = functools.cache(datasets.DATASETS["digits"])


def digits(root: Path | None) -> datasets.Raw:
    """The data set in tensors of a test's own."""
    return copy.deepcopy(read_digits(root))


datasets.DATASETS["digits"] = digits
ORDER = os.environ.get("UNFED_TEST_ORDER")
# Machines differ in speed, claims do not; in CI the examples are fixed, so that a red run can be repeated.
settings.register_profile(
    "unfed",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("unfed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files in an order drawn from `UNFED_TEST_ORDER`, where it is set: no file may need another before it."""
    if ORDER:
        files = sorted({item.path for item in items})
        random.Random(ORDER).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_collection_finish() -> None:
    """What was imported stays, a million objects of it: the collector need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that draws without a seed draws the same numbers wherever it stands in the order."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def repeatable_draws() -> Iterator[None]:
    """Sealed draws are functions of a job's seed in tests: runs are compared bit for bit."""
    with sealed.drawn_from(lambda seed: rng.key(seed, "sealed").to_bytes(32, "big")):
        yield


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote and imported is gone after it: the next one may write another of the same name."""
    known, written = len(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in [*sys.modules][known:]:  # those that came last
        if str(getattr(sys.modules[name], "__dict__", {}).get("__file__")).startswith(written):
            del sys.modules[name]


SMALL = {
    "name": "small",
    "data": {"train_size": 300, "test_size": 100},  # of 1,797: a sixth of the rows
    "partition": {"clients": 4},
    "model": {"name": "cnn-tiny"},
    "training": {"rounds": 3, "batch": 64, "lr": 0.02},
    "unlearning": {"rounds": 3},
    "request": {"id": "r1", "clients": ["0"]},
    "methods": {"run": ["not"]},
    "gate": {"max_drop": 100.0},  # three rounds make no model that could lose much; test_gate.py is about the gate
}


@pytest.fixture(autouse=True)
def figures_as_words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's figures are drawn, and the files behind their links made, only where a test is about those.

    They take as long as the run of which the page tells. Elsewhere a figure is its words, with its title, its
    description and its values: what a page says, and whom it must not name, stands in these.
    """
    if not request.node.get_closest_marker("figures"):
        for (owner, name), value in worded.INSTEAD.items():
            monkeypatch.setattr(owner, name, value)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write no report: half of the time of a command is the page, which the test is not about."""
    monkeypatch.setattr("unfed.api.write_report", lambda run, *args: run.folder.path / "report.html")


@pytest.fixture
def small() -> Small:
    """Makes a small config with `key.path=value` changes."""

    def make(*sets: str) -> Config:
        other = any(change.startswith("data.name=") for change in sets)  # another data set has its own sizes
        return Config.parse({**SMALL, "data": {}} if other else SMALL, sets)

    return make


@pytest.fixture
def allow_code() -> Iterator[None]:
    """The test may name code of its own."""
    with plugins.allow_code():
        yield


@pytest.fixture
def toy() -> Toy:
    """Makes clients that hold a few random 1×8×8 images in float64."""

    def make(*sizes: int, classes: int = 3, forget: dict[int, list[int]] | None = None) -> dict[str, ClientData]:
        generator = torch.Generator().manual_seed(1)
        total = sum(sizes)
        images = torch.randint(0, 256, (total, 1, 8, 8), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, classes, (total,), generator=generator)
        source = TensorSource(images, labels, classes=classes, dtype=torch.float64)
        clients, begin = {}, 0
        for k, size in enumerate(sizes):
            marks = torch.zeros(size, dtype=torch.bool)
            marks[(forget or {}).get(k, [])] = True
            rows, everything = torch.arange(begin, begin + size), torch.arange(size)
            clients[str(k)] = ClientData(str(k), source, rows, everything, everything[:0], marks)
            begin += size
        return clients

    return make
