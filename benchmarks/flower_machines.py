"""Flower on this machine, for benchmarks: a SuperLink that simulates or has real nodes, and apps for `flwr run`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = """
import sys
if sys.orig_argv[1:2] and sys.orig_argv[1].endswith(("flower-superlink", "flower-supernode")):
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate
    from flwr.supernode import fleet_http_connection
    for module in (in_memory_corestate, sql_corestate, fleet_http_connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = {seconds}
"""
"""Read by every Python process before anything else: how long Flower waits for a sign of life."""
SCRIPTS = Path(__file__).parent.parent / "examples" / "flower" / "deploy"
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


@contextlib.contextmanager
def deployment(
    where: Path, nodes: int, database: str = ":flwr-in-memory:", patience: int | None = None, **more: str
) -> Iterator[dict[str, str]]:
    """A SuperLink and SuperNodes as processes with TLS and keys, by the tutorial's own scripts.

    A node whose app gives no sign of life 30 seconds after it was started starts it again, and a SuperLink gives a run
    up whose server app gives none for a minute: many apps that start at once on few cores never get that far. Flower
    has no option for it; `patience` sets its 30 seconds to another number.
    """
    if patience is not None:
        (where / "patience").mkdir()
        (where / "patience" / "sitecustomize.py").write_text(PATIENCE.format(seconds=patience))
        more["PYTHONPATH"] = os.pathsep.join([str(where / "patience"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"NODES": str(nodes), "PORT": str(free_port()), "ALLOW": "", "DATABASE": database, "WHERE": str(where)}
    env = environment(where, **own, **more)

    def script(name: str, **also: str) -> None:
        with open(where / f"{name}.log", "wb") as log:
            command = ["bash", "-eu", str(SCRIPTS / f"{name}.sh")]
            done = subprocess.run(command, env=env | also, cwd=where, stdout=log, stderr=log)
        if done.returncode:
            raise SystemExit((where / f"{name}.log").read_text())

    try:
        script("1-certificates")
        script("2-superlink")
        script("3-supernodes", FLWR_SUPEREXEC_TASK_POLL_INTERVAL="2" if patience else "0.3")
        yield env
    except BaseException:
        print(_told_by_superlink(where / "logs" / "superlink.log"), flush=True)
        raise
    finally:
        started = _started(int(file.read_text()) for file in (where / "pids").glob("*"))
        script("7-stop")
        for pid in started:  # a server app outlives its SuperLink
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _started(pids: Iterable[int]) -> list[int]:
    """These processes and all that they started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [(int(pid), int(parent)) for pid, parent in map(str.split, listed.splitlines())]
    found = list(pids)
    for one in found:
        found += [pid for pid, parent in parents if parent == one]
    return found


def _told_by_superlink(log: Path) -> str:
    """The last lines of its log that are no mere notes."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if "INFO" not in line][-60:])


def flwr_run(app: Path, env: dict[str, str], config: str = "", nodes: int | None = None) -> str:
    """What `flwr run --stream` shows; a run that did not complete is an error."""
    command = ["flwr", "run", str(app), "local", "--stream"]
    command += ["--run-config", config] if config else []
    if nodes is not None:
        command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (last := _last_run(env))["status"].startswith("finished"):
        time.sleep(2.0)  # the stream may break off on a busy machine, while the run goes on
    if last["status"] != "finished:completed":
        raise SystemExit(f"{done.stdout}\n{app.name} did not complete: {last['status-details']}")
    return done.stdout


def _last_run(env: dict[str, str]) -> dict[str, Any]:
    """What `flwr ls` says of the newest run; a busy SuperLink is asked again."""
    for _ in range(10):
        listed = subprocess.run([*LIST], env=env, capture_output=True, text=True)
        if listed.stdout.startswith("{") and (runs := json.loads(listed.stdout).get("runs")):
            found: dict[str, Any] = runs[0]
            return found
        time.sleep(2.0)
    raise SystemExit(f"The SuperLink does not answer: {listed.stdout}{listed.stderr}")


def told() -> dict[str, str]:
    """When, on what and with what a record was made."""
    there = {one.name.lower() for one in importlib.metadata.distributions()}
    names: list[str] = [name for name in ("flwr", "ray", "numpy", "torch") if name in there]
    found = {name: importlib.metadata.version(name) for name in names}
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
