"""unfed's own server as an NVFlare job, over NVFlare's task board in this process (processes: test_nvflare_jobs.py).

What every transport must do is held in tests/remote/test_transports.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare.apis", reason="needs unfed[nvflare]; `make test-nvflare` runs these")

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from nvflare_sites import Board
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.nvflare.transport import TASK, Server, Site, job
from unfed.remote.codec import decode_ask
from unfed.remote.messages import TRAIN
from unfed.requests.entry import Job
from unfed.runs.run import Run
from worlds import experiment, run_config

pytestmark = pytest.mark.nvflare

NODES = {f"site-{k + 1}": {"partition-id": k, "device": "cpu", "allow": "forget"} for k in range(3)}
Boards = Callable[..., Board]


def values(folder: Path, **own: Any) -> dict[str, Any]:
    base = {"run_folder": str(folder), "forget_clients": "site-1", "min_nodes": 2, "wait_seconds": 30.0}
    return run_config(experiment(3), **{**base, "round_timeout": 60.0, **own})


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[Boards]:
    made: list[Board] = []

    def make(run: Mapping[str, Any], executor: Executor | None = None, **sites: Mapping[str, Any] | None) -> Board:
        own = {name.replace("_", "-"): node for name, node in sites.items()} or NODES
        made.append(Board(tmp_path / f"sites-{len(made)}", Server(dict(run)), own))
        made[-1].executor = executor or Site()
        return made[-1]

    yield make
    for board in made:
        board.close()


def flow(board: Board) -> None:
    with board.new_context() as fl_ctx:
        board.controller.control_flow(board.abort, fl_ctx)


def test_a_job_trains_forgets_and_never_asks_the_leaver_to_train_again(boards: Boards, tmp_path: Path) -> None:
    board = boards(values(tmp_path / "run"))
    flow(board)
    assert board.panics == []
    lines = Run.open(tmp_path / "run").lines()
    asked = [names for line in lines if line["method"] == "not" for names in line["asked"].values()]
    assert asked == [["site-2", "site-3"]] * 2
    assert Run.open(tmp_path / "run").folder.description().engine == "nvflare"


def test_an_unknown_site_ends_the_job_in_a_sentence_that_names_those_there_are(boards: Boards, tmp_path: Path) -> None:
    board = boards(values(tmp_path / "run", forget_clients="site-9"))
    flow(board)
    (said,) = board.panics
    assert "Client 'site-9'" in said and "as site-1, site-2 and site-3 did; check the name" in said
    assert not (tmp_path / "run").exists()


def test_what_a_job_sets_for_a_site_is_refused_in_a_sentence(boards: Boards, tmp_path: Path) -> None:
    board = boards(values(tmp_path / "run"), Site(allow="forget,samples", loader="theirs:load"))
    flow(board)
    (said,) = board.panics
    assert "The job sets 'allow' and 'loader' for this site, which only its own local/unfed.json may" in said
    assert not (tmp_path / "run").exists()


def test_a_site_without_settings_takes_no_part_and_the_log_says_why(
    boards: Boards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board = boards(values(tmp_path / "run"), site_1=NODES["site-1"], site_2=NODES["site-2"], site_3=None)
    flow(board)
    assert board.panics == []
    assert "client site-3 takes no part: Site 'site-3' has no local/unfed.json" in caplog.text
    assert {name for line in Run.open(tmp_path / "run").lines() for name in _asked(line)} == {"site-1", "site-2"}


def test_a_site_decides_itself_what_is_measured_of_what_it_forgets(boards: Boards, tmp_path: Path) -> None:
    silent = {"partition-id": 0, "device": "cpu"}
    board = boards(values(tmp_path / "run"), site_1=silent, site_2=NODES["site-2"], site_3=NODES["site-3"])
    flow(board)
    assert Run.open(tmp_path / "run").lines()[-1]["forget"] == "not measured: client site-1 does not allow it"


class Faulty(Site):
    """Something happens when site-3 trains for the second time."""

    def __init__(self, then: Callable[[], Shareable]) -> None:
        super().__init__()
        self.then, self.trainings = then, 0

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if fl_ctx.get_identity_name() == "site-3" and decode_ask(shareable[TASK]).kind == TRAIN:
            self.trainings += 1
            if self.trainings == 2:
                return self.then()
        return super().execute(task_name, shareable, fl_ctx, abort_signal)


def test_an_aborted_job_ends_quietly_and_another_goes_on_to_the_same_end(
    boards: Boards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = boards(values(tmp_path / "whole"))
    flow(whole)
    held: list[Board] = []

    def abort() -> Shareable:
        held[0].abort.trigger(True)
        return make_reply(ReturnCode.TASK_ABORTED)

    held.append(boards(values(tmp_path / "run"), Faulty(abort)))
    flow(held[0])
    assert held[0].panics == []
    assert f"the job was aborted; go on with resume-from='{tmp_path / 'run'}'" in caplog.text
    with pytest.raises(UnfedError, match="are NVFlare sites; go on with an NVFlare job and the run config resume-f"):
        Run.open(tmp_path / "run").execute()
    flow(boards({"resume-from": str(tmp_path / "run"), "min-nodes": 3, "wait-seconds": 30.0}))
    last = Job(0, "client-site-1", "not")
    one, other = (RunFolder(tmp_path / name).load_model(last) for name in ("whole", "run"))
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    lines = Run.open(tmp_path / "run").lines()
    assert [line["round"] for line in lines if line["method"] == "not"] == [0, 1, 2]  # negated once


def test_a_site_that_fails_or_is_lost_is_named_and_the_round_goes_on(boards: Boards, tmp_path: Path) -> None:
    board = boards(values(tmp_path / "fails"), Faulty(lambda: make_reply(ReturnCode.EXECUTION_EXCEPTION)))
    flow(board)
    refused = [one for line in Run.open(tmp_path / "fails").lines() for one in line.get("refused", ())]
    reasons = {(one["client"], one["reason"]) for one in refused}
    assert ("site-3", "its executor ended with EXECUTION_EXCEPTION; see the site's own log") in reasons


def test_a_site_that_nvflare_deems_disconnected_is_not_waited_for(boards: Boards, tmp_path: Path) -> None:
    gone = threading.Event()

    def lose() -> Shareable:
        with board.new_context() as fl_ctx:
            board.controller.communicator._dead_client_grace = 0.0
            board.controller.communicator.process_dead_client_report("site-3", fl_ctx)
        board.controller.communicator.client_is_active = lambda *_: None
        gone.wait(600)
        return Shareable()

    board = boards(values(tmp_path / "run", round_timeout=900.0), Faulty(lose))
    began = time.monotonic()
    flow(board)
    gone.set()
    assert time.monotonic() - began < 600  # less than one time-out
    refused = [one for line in Run.open(tmp_path / "run").lines() for one in line.get("refused", ())]
    assert {one["client"] for one in refused} == {"site-3"}
    assert "it is not connected" in {one["reason"] for one in refused}


def test_an_exported_job_holds_the_run_config_and_none_of_unfed_s_code(tmp_path: Path) -> None:
    asked = values(tmp_path / "run")
    job(asked, name="forget").export_job(str(tmp_path / "jobs"))
    folder = tmp_path / "jobs" / "forget" / "app"
    server = json.loads((folder / "config" / "config_fed_server.json").read_text())
    client = json.loads((folder / "config" / "config_fed_client.json").read_text())
    assert server["workflows"][0]["path"] == "unfed.nvflare.transport.Server"
    assert Server(**server["workflows"][0]["args"]).values == asked
    assert client["executors"][0]["executor"] == {"path": "unfed.nvflare.transport.Site", "args": {}}
    assert not (folder / "custom").exists()


def test_a_run_config_is_checked_when_the_job_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnfedError, match="run config has no key 'forget-client'"):
        job({"run-folder": str(tmp_path), "forget-client": "site-1"})


def _asked(line: Mapping[str, Any]) -> set[str]:
    return {name for names in (line.get("asked") or {}).values() for name in names}
