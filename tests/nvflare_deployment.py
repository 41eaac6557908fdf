"""A real NVFlare deployment on 127.0.0.1: one server and three sites as processes, ended by their ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.flare_api.flare_api import new_secure_session

from flower_deployment import end, free_ports

ALLOWED = json.dumps({"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, "unfed.nvflare"]})
ADMIN = "admin@nvidia.com"


class Deployment:
    """What `nvflare provision` makes of one server, three sites and an administrator."""

    def __init__(self, where: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
        self.where, self.sites = where, sites
        (where / "home").mkdir(parents=True)
        # NVFlare keeps notes in the home folder, and binds to 127.0.0.1 alone where the server's name is localhost.
        self.env = {**os.environ, "HOME": str(where / "home"), "OMP_NUM_THREADS": "1"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        people: list[dict[str, Any]] = [
            {"name": "localhost", "type": "server", "org": "nvidia", "fed_learn_port": free_ports(1)},
            {"name": ADMIN, "type": "admin", "org": "nvidia", "role": "project_admin"},
            *({"name": name, "type": "client", "org": "nvidia"} for name in sites),
        ]
        names = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")
        builders: list[dict[str, Any]] = [{"path": f"nvflare.lighter.impl.{name}", "args": {}} for name in names]
        builders[0]["args"] = {"template_file": ["master_template.yml"]}
        builders[1]["args"] = {"config_folder": "config", "scheme": "http"}
        builders.append({"path": "nvflare.lighter.impl.signature.SignatureBuilder", "args": {}})
        project = {"api_version": 3, "name": "p", "participants": people, "builders": builders}
        (where / "project.yml").write_text(json.dumps(project))
        made = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "ws"]
        done = subprocess.run(made, cwd=where, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        self.kits = where / "ws" / "p" / "prod_00"

    def up(self) -> None:
        for name, settings in self.sites.items():
            (self.kits / name / "local" / "unfed.json").write_text(json.dumps(settings))
        for name in ("localhost", *self.sites):
            self._allow(self.kits / name / "local")
        self.start("localhost")
        self.wait(lambda: "Server started" in self.log(), "the server", 240)

        def complete() -> bool:
            for name in self.sites:  # a site that could not reach the server in time ends; NVFlare's start.sh does this
                if name not in self.processes or self.processes[name].poll() is not None:
                    self.start(name)
            return len(self.connected()) == len(self.sites)

        self.wait(complete, "all sites", 400)

    def _allow(self, local: Path) -> None:
        """What the one who runs a site does once: allow unfed's components, in its own resources."""
        resources = json.loads((local / "resources.json.default").read_text())
        resources["class_allow_list"] = json.loads(ALLOWED)["class_allow_list"]
        (local / "resources.json").write_text(json.dumps(resources))

    def start(self, name: str) -> None:
        kind, own = ("server", []) if name == "localhost" else ("client", [f"uid={name}"])
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", "."]
        command += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *own, "org=nvidia", "config_folder=config"]
        with open(self.where / f"{name}.log", "ab") as out:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.kits / name, env=self.env, stdout=out, stderr=subprocess.STDOUT
            )

    def kill(self, name: str) -> None:
        """A site and what it started, at once."""
        end(self.processes.pop(name).pid)

    def down(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def session(self) -> Any:
        return new_secure_session(ADMIN, str(self.kits / ADMIN), timeout=60)

    def connected(self) -> list[str]:
        try:
            session = self.session()
        except Exception:  # it has not started yet
            return []
        try:
            return [one.name for one in session.get_system_info().client_info]
        finally:
            session.close()

    def submit(self, folder: Path) -> str:
        session = self.session()
        try:
            return str(session.submit_job(str(folder)))
        finally:
            session.close()

    def abort(self, job: str) -> None:
        session = self.session()
        try:
            session.abort_job(job)
        finally:
            session.close()

    def ended(self, job: str, seconds: float = 300) -> str:
        """How a job ended."""
        status = ""

        def over() -> bool:
            nonlocal status
            session = self.session()
            try:
                status = str(session.get_job_meta(job).get("status"))
            finally:
                session.close()
            return status.startswith("FINISHED") or "FAILED" in status or "ABANDONED" in status

        self.wait(over, f"the end of {job}", seconds)
        return status

    def log(self, name: str = "localhost") -> str:
        return (self.where / f"{name}.log").read_text(errors="replace")

    def wait(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, f"{what} did not come in {seconds} s:\n{self.log()[-3000:]}"
            time.sleep(1.0)
