"""Sites in this process: NVFlare's own task board, and threads that fetch tasks from it and run the real executor.

What travels is packed and unpacked as NVFlare does it; only its network and its processes are left out.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

flare_decomposers.register()
common_decomposers.register()


class Board:
    """A controller with its communicator, and sites that answer it; each site has a folder of its own."""

    def __init__(self, where: Path, controller: Controller, sites: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.where, self.controller, self.panics = where, controller, list[str]()
        self.clients: dict[str, Client] = {}
        self.executor: Executor | None = None
        self.received: list[tuple[str, str]] = []
        """Site and task of everything that was fetched."""
        self.abort, self._over = Signal(), threading.Event()
        self.components: dict[str, Any] = {}
        self._manager = FLContextManager(
            self, "server", "job", private_stickers={FLContextKey.JOB_META: {"min_clients": 1, "deploy_map": {}}}
        )
        for name, settings in sites.items():
            self.join(name, settings)
        communicator = WFCommServer()
        controller.set_communicator(communicator)
        communicator.fire_event = controller.fire_event = self._fired
        with self.new_context() as fl_ctx:
            communicator.initialize_run(fl_ctx)
            controller.initialize(fl_ctx)

    # --- as an engine -----------------------------------------------------------------------------------------------

    def new_context(self) -> FLContext:
        return self._manager.new_context()

    def get_clients(self) -> Sequence[Client]:
        return list(self.clients.values())

    def get_component(self, name: str) -> Any:
        return self.components.get(name)

    def fire_event(self, *_: object) -> None: ...

    def get_cell(self) -> None: ...

    def _fired(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(str(fl_ctx.get_prop(FLContextKey.EVENT_DATA)))
            self.abort.trigger(True)

    # --- sites ------------------------------------------------------------------------------------------------------

    def join(self, name: str, settings: Mapping[str, Any] | None) -> None:
        local = self.where / name / "local"
        local.mkdir(parents=True, exist_ok=True)
        if settings is not None:
            (local / "unfed.json").write_text(json.dumps(settings), encoding="utf-8")
        self.clients[name] = Client(name, f"{name}-{time.monotonic()}")
        threading.Thread(target=self._works, args=(self.clients[name],), daemon=True).start()

    def leave(self, name: str) -> None:
        del self.clients[name]

    def site_context(self, name: str) -> FLContext:
        folder = str(self.where / name / "local")
        workspace = SimpleNamespace(get_site_config_dir=lambda: folder)
        manager = FLContextManager(None, name, "job", private_stickers={FLContextKey.WORKSPACE_OBJECT: workspace})
        return manager.new_context()

    def _there(self, client: Client) -> bool:
        return self.clients.get(client.name) is client

    def _works(self, client: Client) -> None:
        while not self._over.is_set() and self._there(client):
            time.sleep(0.01)
            if self.executor is None or self.controller.communicator is None:
                continue
            communicator = self.controller.communicator
            with self.new_context() as fl_ctx:
                communicator.client_is_active(client.name, "getTask", fl_ctx)
                name, task, data = communicator.process_task_request(client, fl_ctx)
            if not name:
                continue
            self.received.append((client.name, name))
            try:
                asked = fobs.loads(fobs.dumps(data))
                reply: Shareable = self.executor.execute(name, asked, self.site_context(client.name), Signal())
                sent = fobs.loads(fobs.dumps(reply))
            except Exception as error:  # a mistake of the test's own: the job must not wait for this site
                self.panics.append(repr(error))
                self.abort.trigger(True)
                return
            if self._there(client):
                with self.new_context() as fl_ctx:
                    communicator.process_submission(client, name, task, sent, fl_ctx)

    def close(self) -> None:
        self._over.set()
        with self.new_context() as fl_ctx:
            self.controller.communicator.finalize_run(fl_ctx)
