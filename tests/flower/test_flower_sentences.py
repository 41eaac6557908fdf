"""What Flower's log shows of a refusal: one sentence, whether or not anything had started."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs unfed[flower]")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from flower_grid import InProcessGrid, echoing
from test_flower_app import Breaking, nodes, values
from unfed.flower import SubsetGrid, introduce, introduce_mod, node_with
from unfed.flower.server import app as server_app
from unfed.flower.server import speak_plainly
from unfed.flower.transport import asking


def told(caplog: pytest.LogCaptureFixture, run: Callable[[], Any]) -> str:
    """What `flwr run --stream` shows of a run that raises: Flower logs it so."""
    logging.getLogger("flwr").propagate = True
    caplog.clear()
    with caplog.at_level("INFO", "flwr"):
        try:
            run()
        except Exception as error:
            logging.getLogger("flwr").error("%s raised an exception", "ServerApp", exc_info=error)
    return caplog.text


def test_a_refusal_is_one_sentence_in_flowers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode, sentence in (("tarin", "mode = 'tarin': it should be"), ("unlearn", "There is no run in")):
        context = Context(1, 1, {}, RecordDict(), values(tmp_path / "run", mode=mode))
        shown = told(caplog, partial(server_app, nodes(), context))
        assert "ServerApp raised an exception: " in shown and "Traceback" not in shown
        assert shown.count(sentence) == 1


def test_importing_and_using_unfed_in_another_app_leaves_flowers_logger_as_it_was() -> None:
    code = """
import logging
from flwr.common import logger
log = logging.getLogger("flwr")
before = list(log.filters), list(log.handlers), log.level, log.propagate
import unfed.flower
for name in unfed.flower.__all__:
    getattr(unfed.flower, name)
assert (list(log.filters), list(log.handlers), log.level, log.propagate) == before, log.filters
try:
    unfed.flower.node_with(partition=0)
except Exception as error:
    log.error("ServerApp raised an exception", exc_info=error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "node_with takes client, client_name, partition_id, not partition" in shown and "Traceback" in shown


def test_a_refusal_that_flower_raises_on_as_its_own_error_is_one_too(caplog: pytest.LogCaptureFixture) -> None:
    def loads() -> None:
        try:
            node_with(partition=0)
        except Exception as error:
            logging.getLogger("flwr").error("An exception occurred: %s", error)
            logging.getLogger("flwr").error(traceback.format_exc())
            raise RuntimeError("Ending simulation.") from error

    speak_plainly()
    shown = told(caplog, loads)
    assert shown.count("node_with takes client") == 2 and "Traceback" not in shown and len(caplog.messages) == 2


def test_a_mistake_of_ours_keeps_its_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Breaking(nodes().nodes.values(), 1)
    context = Context(1, 1, {}, RecordDict(), values(tmp_path / "run", mode="train"))
    assert "Traceback" in told(caplog, partial(server_app, broken, context))


def simulated(caplog: pytest.LogCaptureFixture, app: ClientApp, kind: str) -> str:
    """What the server's log has of a message to a client app in Flower's simulator, where they share a process."""
    logging.getLogger("flwr").propagate = True
    caplog.clear()
    message = Message(RecordDict({"who": ConfigRecord({"asked": 1})}), 1, kind)
    with asking():
        try:
            app(message, Context(1, 1, {"partition-id": 0}, RecordDict(), {}))
        except Exception as error:
            logging.getLogger("flwr").error(error)
            logging.getLogger("flwr").error(traceback.format_exc())
    return caplog.text


def test_a_client_app_that_cannot_say_who_it_is_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def client(context: Context) -> Any:
        return NumPyClient().to_client()

    for app in (ClientApp(), ClientApp(client)):
        assert simulated(caplog, app, "query.unfed") == ""  # the server says it in a sentence of its own
        assert "Traceback" in simulated(caplog, app, "query.theirs")
    for app in (introduce(ClientApp()), ClientApp(client, mods=[introduce_mod])):
        assert simulated(caplog, app, "query.unfed") == ""


def test_the_log_of_an_app_is_filtered_only_while_its_nodes_are_asked_who_they_are() -> None:
    before, during = list(logging.getLogger("flwr").filters), []

    class Watching(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            during.append(list(logging.getLogger("flwr").filters))
            return super().send_and_receive(messages, timeout=timeout)

    grid = Watching([{"client": name} for name in ("north", "south")], echoing())
    assert list(SubsetGrid(grid, node_with(client="north")).get_node_ids()) == [1001]
    assert [len(now) - len(before) for now in during] == [1]
    assert logging.getLogger("flwr").filters == before
