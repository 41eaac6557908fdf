"""Flower on this machine, for benchmarks: a SuperLink that simulates, and apps as folders that `flwr run` takes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OWN = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def environment(where: Path, **more: str) -> dict[str, str]:
    """What Flower's commands run with: everything it keeps lies in `where`."""
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    return {**os.environ, **OWN, "PATH": path, "FLWR_HOME": str(where / "flwr"), **more}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def simulator(where: Path, **more: str) -> Iterator[dict[str, str]]:
    """A SuperLink whose nodes are tasks of ray; gives the environment in which `flwr` finds it as `local`."""
    home, port = where / "flwr", free_port()
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = environment(where, **more)
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--database", str(home / "state.db"), "--disable-runtime-dependency-installation"]
    with open(where / "superlink.log", "wb") as log:
        process = subprocess.Popen(command, env=env, cwd=where, stdout=log, stderr=subprocess.STDOUT)
        try:
            while subprocess.run(["flwr", "ls", "local"], env=env, capture_output=True).returncode:
                time.sleep(1.0)
            yield env
        finally:
            process.terminate()
            process.wait()


def flwr_run(app: Path, env: dict[str, str], config: str = "", nodes: int | None = None) -> str:
    """What `flwr run --stream` shows; a run that did not complete is an error."""
    command = ["flwr", "run", str(app), "local", "--stream"]
    command += ["--run-config", config] if config else []
    if nodes is not None:
        command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
    shown = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    listed: Any = json.loads(subprocess.run([*LIST], env=env, capture_output=True, text=True).stdout)
    if listed["runs"][0]["status"] != "finished:completed":
        raise SystemExit(f"{shown}\n{app.name} did not complete: {listed['runs'][0]['status-details']}")
    return shown


def told() -> dict[str, str]:
    """When, on what and with what a record was made."""
    there = {found.name.lower() for found in importlib.metadata.distributions()}
    found = {name: importlib.metadata.version(name) for name in ("flwr", "ray", "numpy", "torch") if name in there}
    hardware = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return {"date": time.strftime("%Y-%m-%d"), "hardware": hardware, "python": platform.python_version(), **found}


LIST = ("flwr", "ls", "local", "--format", "json")


def app_of(package: Path, where: Path, components: str, config: str) -> Path:
    """A package of this folder as a Flower app."""
    app = where / f"{package.name}-project"
    shutil.copytree(package, app / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    about = f'[project]\nname = "{package.name.replace("_", "-")}"\nversion = "1.0.0"\ndescription = "A benchmark"\n'
    about += 'license = "Apache-2.0"\ndependencies = []\n\n[tool.flwr.app]\npublisher = "unfed"\n'
    parts = f"\n[tool.flwr.app.components]\n{components}\n\n[tool.flwr.app.config]\n{config}\n"
    (app / "pyproject.toml").write_text(about + parts)
    return app
