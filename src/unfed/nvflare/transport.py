"""NVFlare's tasks as a transport: one task per question and site, as frames of the codec.

    server   Server (a Controller)  ─► SiteTransport.send ─► broadcast(task, targets=[site]) ═╗
    site     Site (an Executor)     ◄═══════════════════════════════════════════════════════╝   its own local/unfed.json

A site's name is the one that it was provisioned with, so NVFlare vouches for it. What a site holds and allows stands in
its own `local/unfed.json`; a job that sets any of it is refused.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.job_config.api import FedJob

from unfed import storage
from unfed.errors import UnfedError, listed
from unfed.remote import server
from unfed.remote.client import answered
from unfed.remote.codec import decode_ask, decode_reply, encode_answer, encode_ask
from unfed.remote.messages import Ask, Failure, Reply
from unfed.remote.options import Options
from unfed.remote.transport import Connected, Replies, Speech, Spool

log = logging.getLogger("unfed.nvflare")

SPEECH = Speech(
    engine="nvflare",
    nodes="sites",
    naming="a site name of its own when it is provisioned",
    expel="disable the site in NVFlare's admin console",
    log=log,
)
TASK = "unfed"
"""The task that carries every question; also the key of the frame in it."""
SETTINGS = "unfed.json"
"""In a site's `local` folder: its node config. In the simulator, whose sites share that folder: `unfed.SITE.json`."""
_PAUSE = 0.1
_AT_WORK = threading.Lock()
"""Sites that share a process answer one after the other: what one reads of model and data is kept for the next."""


class Aborted(Exception):
    """The job was aborted; what is done so far is in the run folder."""


class SiteTransport:
    """Questions as tasks of a controller."""

    def __init__(self, controller: Server, fl_ctx: FLContext, abort: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort

    def nodes(self) -> Sequence[Connected]:
        self._check()
        gone = self._controller.communicator.get_client_disconnect_time
        clients: list[Client] = [one for one in self._fl_ctx.get_engine().get_clients() if not gone(one.name)]
        alive = self._controller.alive
        return [Connected(number(one.name), one.name, alive.get(one.name, 0.0), str(one.token)) for one in clients]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        until, spool, crossed = time.monotonic() + timeout, Spool(), list[int]()
        found, trouble = dict[int, Reply | Failure](), list[BaseException]()

        def pack(node: int, client_task: ClientTask, fl_ctx: FLContext) -> None:
            frame = encode_ask(asks[node])  # when a site fetches it: a server holds one frame per site at work
            crossed.append(len(frame))
            client_task.task.data = Shareable({TASK: frame})

        def take(node: int, client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result, client_task.task.data = client_task.result, None, Shareable()
            try:
                reply = _read(result, crossed)
                found[node] = reply if isinstance(reply, Failure) else spool.keep(reply)
            except BaseException as error:  # NVFlare would log it and go on
                trouble.append(error)

        names = {number(one.name): one.name for one in self._fl_ctx.get_engine().get_clients()}
        tasks = {node: self._task(node, names[node], pack, take) for node in asks if node in names}
        try:
            while any(self._waits(tasks[node], names[node]) for node in tasks.keys() - found.keys()):
                self._check()
                if trouble:
                    raise trouble[0]
                if time.monotonic() >= until:
                    break
                time.sleep(_PAUSE)
        finally:
            for task in tasks.values():
                self._controller.cancel_task(task)
        if trouble:
            raise trouble[0]
        return Replies(dict(found), sum(crossed))

    def _task(self, node: int, name: str, pack: Any, take: Any) -> Task:
        calls = {"before_task_sent_cb": partial(_named, pack, node), "result_received_cb": partial(_named, take, node)}
        task = Task(TASK, Shareable(), **calls)
        self._controller.broadcast(task, self._fl_ctx, targets=[name], min_responses=1)
        return task

    def _waits(self, task: Task, name: str) -> bool:
        """Whether an answer may still come: neither is the task over nor its site gone."""
        return task.completion_status is None and not self._controller.communicator.get_client_disconnect_time(name)

    def _check(self) -> None:
        if self._abort.triggered:
            raise Aborted


def _named(call: Any, node: int, client_task: ClientTask, fl_ctx: FLContext) -> None:
    """NVFlare calls back with keywords."""
    call(node, client_task, fl_ctx)


def _read(result: Shareable, crossed: list[int]) -> Reply | Failure:
    code = result.get_return_code(ReturnCode.OK)
    if code != ReturnCode.OK:
        return Failure(f"its executor ended with {code}; see the site's own log")
    frame = result.get(TASK)
    if not isinstance(frame, bytes):
        return Failure("its answer was not made by unfed; let the job deploy unfed.nvflare's Site there")
    crossed.append(len(frame))
    return decode_reply(frame)


def number(site: str) -> int:
    """A site's node id, by its name alone: the same in every job."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:6], "big")


class Server(Controller):
    """unfed's own server in an NVFlare job: it trains, unlearns, evaluates and resumes."""

    def __init__(self, values: dict[str, Any], task_check_period: float = 0.2) -> None:
        """Take the run config.

        Args:
            values: The run config of docs/nvflare.md: `mode`, `run-folder`, `forget-clients`, `experiment.KEY`, …
            task_check_period: Seconds between two looks at standing tasks.
        """
        super().__init__(task_check_period)
        Options.of(values)
        self.values = values
        self.alive: dict[str, float] = {}
        """When each site last gave a sign of life."""

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """Note every sign of life of a site: a dead one then costs one time-out in all."""
        super().set_communicator(communicator)
        heard = communicator.client_is_active

        def noted(client_name: str, reason: str, fl_ctx: FLContext) -> None:
            self.alive[client_name] = time.time()
            heard(client_name, reason, fl_ctx)

        communicator.client_is_active = noted

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        log.info("unfed: the answer of %s came too late", client.name)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """What NVFlare calls; a refusal ends the job with its sentence."""
        folder = Options.of(self.values).folder
        try:
            server.run(SiteTransport(self, fl_ctx, abort_signal), self.values, SPEECH)
        except Aborted:
            go_on = f"; go on with resume-from={str(folder)!r}" if (folder / "run.json").exists() else ""
            log.warning("unfed: the job was aborted%s", go_on)
        except UnfedError as error:
            self.system_panic(f"unfed: {error}", fl_ctx)
        else:
            log.info("unfed: done; the results are in %s", folder)


class Site(Executor):
    """Answers unfed's questions at a site, as the site's own `local/unfed.json` says."""

    def __init__(self, **kwargs: Any) -> None:
        """Take nothing: a job that sets anything here is refused, and the server learns why."""
        super().__init__()
        self._set_by_job = sorted(kwargs)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        node: dict[str, Any] = {}

        def read() -> Ask:
            node.update(settings(fl_ctx, self._set_by_job))
            frame = shareable.get(TASK)
            if not isinstance(frame, bytes):
                raise UnfedError("This task holds no question of unfed's; let the job deploy unfed.nvflare's Server.")
            return decode_ask(frame)

        with _AT_WORK:
            answer = encode_answer(answered(read, node, log))
        if abort_signal.triggered:
            return make_reply(ReturnCode.TASK_ABORTED)
        return Shareable({TASK: answer})


def settings(fl_ctx: FLContext, set_by_job: Sequence[str] = ()) -> dict[str, Any]:
    """A site's node config, from its own `local` folder and from nowhere else."""
    if set_by_job:
        raise UnfedError(
            f"The job sets {listed([repr(key) for key in set_by_job], 'and')} for this site, which only its own"
            f" local/{SETTINGS} may; take that out of the job."
        )
    workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    local, site = Path(workspace.get_site_config_dir()), str(fl_ctx.get_identity_name())
    file = next((own for own in (local / SETTINGS, local / f"unfed.{site}.json") if own.exists()), None)
    if file is None:
        raise UnfedError(f"Site {site!r} has no local/{SETTINGS}, so it offers no data; write one there.")
    found = storage.read_json(file, "site settings")
    if not isinstance(found, dict):
        raise UnfedError(f"Site {site!r} has no table of settings in local/{file.name}; write one, as in {{}}.")
    return found


def job(values: dict[str, Any], name: str = "unfed", min_clients: int = 1) -> FedJob:
    """A job that runs unfed's own server and clients, to export or to simulate.

    Args:
        values: The run config, see `Server`.
        name: The job's name.
        min_clients: NVFlare aborts the job with fewer sites.
    """
    made = FedJob(name=name, min_clients=min_clients)
    made.set_app_packages(["unfed"])  # or unfed's own files would travel in the job, over those that sites installed
    made.to_server(Server(values))
    made.to_server({"server": {"task_request_interval": 0.5}})  # seconds, of NVFlare's 2: a round has several questions
    made.to_clients(Site(), tasks=[TASK])
    return made
