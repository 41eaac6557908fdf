"""A real deployment on this machine, started by the scripts of the tutorial and ended by process ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent.parent / "examples" / "flower" / "deploy"


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports of 127.0.0.1 that nobody uses."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")


def descendants(pid: int) -> list[int]:
    """A process and all it started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def end(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    """End a process and all it started, one by one."""
    for one in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, how)


class Deployment:
    """A SuperLink and some SuperNodes, with TLS and node authentication."""

    def __init__(self, where: Path, nodes: int = 4) -> None:
        self.where, self.nodes = where, nodes
        bin_folder = str(Path(sys.executable).parent)
        self.env = {
            **os.environ,
            "PATH": bin_folder + os.pathsep + os.environ["PATH"],
            "WHERE": str(where),
            "PORT": str(free_ports(nodes + 3)),
            "NODES": str(nodes),
            "ALLOW": "",  # nobody gives leave to be asked after it has left
            "FLWR_HOME": str(where / "flwr"),
            "OMP_NUM_THREADS": "1",  # five federations' worth of processes share two cores
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }
        self.federation: list[str] = []
        self._more: list[subprocess.Popen[bytes]] = []

    def script(self, name: str, *arguments: str, timeout: float = 200) -> str:
        """Run one of the tutorial's scripts to its end; what it leaves behind runs on."""
        log = self.where / "logs" / f"{name}.out"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as out:
            command = ["bash", "-eu", str(SCRIPTS / f"{name}.sh"), *arguments]
            subprocess.run(command, env=self.env, check=True, timeout=timeout, stdout=out, stderr=subprocess.STDOUT)
        return log.read_text()

    def script_behind(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of the tutorial's scripts and do not wait for it."""
        return self.start(["bash", "-eu", str(SCRIPTS / f"{name}.sh"), *arguments], f"{name}.behind.log")

    def start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start something in the background."""
        with open(self.where / "logs" / log, "ab") as out:
            self._more.append(subprocess.Popen(command, env=self.env, stdout=out, stderr=subprocess.STDOUT))
        return self._more[-1]

    def up(self) -> None:
        for name in ("1-certificates", "2-superlink", "3-supernodes"):
            self.script(name)
        self.wait(lambda: self.online() == self.nodes, "all SuperNodes online", 60)

    def supernode(self, key: str, place: int, config: str) -> subprocess.Popen[bytes]:
        """Start a SuperNode as the tutorial's script does, for any key."""
        where, port = self.where, int(self.env["PORT"])
        if not (where / key).exists():
            made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(where / key)]
            subprocess.run(made, check=True)
        command = ["flower-supernode", "--ssl-ca-certfile", f"{where}/ca.crt", "--ssl-certfile", f"{where}/server.crt"]
        command += ["--ssl-keyfile", f"{where}/server.key", "--root-certificates", f"{where}/ca.crt"]
        command += ["--superlink", f"127.0.0.1:{port}", "--auth-supernode-private-key", f"{where}/{key}"]
        command += ["--host", "127.0.0.1", "--port", str(port + 1 + place), "--node-config", config]
        return self.start(command, f"{key}.log")

    def run(self, app: Path, **said: str | float) -> str:
        """What `flwr run --stream` shows of an app; `said` is its run config."""
        config = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in said.items())
        command = ["flwr", "run", str(app), "local", "--stream", "--run-config", config, *self.federation]
        done = subprocess.run(command, env=self.env, check=True, timeout=1500, capture_output=True)
        return done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")

    def flwr(self, *arguments: str) -> Any:
        done = subprocess.run(["flwr", *arguments, "--format", "json"], env=self.env, capture_output=True, timeout=60)
        return json.loads(done.stdout)

    def online(self) -> int:
        return sum(node["status"] == "online" for node in self.flwr("supernode", "ls", "local")["nodes"])

    def pid(self, name: str) -> int:
        return int((self.where / "pids" / name).read_text())

    def log(self, name: str) -> str:
        path = self.where / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def asked(self, node: int, kind: str) -> int:
        """How often a node wrote down that it was asked for something."""
        return self.log(f"node{node}").count(f"unfed: asked for {kind} ")

    def received(self, node: int, kind: str) -> int:
        """How often a node got a message, whether or not it came to work on it."""
        return self.log(f"node{node}").count(f"Receiving: {kind} message")

    def wait(self, there: Callable[[], bool], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not there():
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {seconds} s\n" + self.log("superlink")[-3000:])
            time.sleep(0.3)

    def down(self) -> None:
        """The tutorial's way to stop, then whatever is still there."""
        listed = [int(file.read_text()) for file in (self.where / "pids").glob("*")]
        started = [one for pid in [*listed, *(process.pid for process in self._more)] for one in descendants(pid)]
        if listed:
            self.script("7-stop")
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._more:
            process.wait()


class Simulator(Deployment):
    """A SuperLink whose nodes are tasks of ray, as `simulation.sh` starts it."""

    def __init__(self, where: Path, nodes: int = 4) -> None:
        super().__init__(where, nodes)
        self.env["RAY_USAGE_STATS_ENABLED"] = "0"
        self.federation = ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]

    def up(self) -> None:
        for folder in ("flwr", "logs", "pids"):
            (self.where / folder).mkdir(parents=True, exist_ok=True)
        home, port = self.where / "flwr", self.env["PORT"]
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", port]
        command += ["--database", str(home / "state.db"), "--disable-runtime-dependency-installation"]
        self.start(command, "superlink.log")
        self.wait(self._listens, "the SuperLink", 60)

    def _listens(self) -> bool:
        asked = ["flwr", "ls", "local"]
        return subprocess.run(asked, env=self.env, capture_output=True, timeout=60).returncode == 0


QUICKSTARTS = Path(__file__).parent / "quickstarts"


def quickstart(where: Path, name: str) -> Path:
    """One of the apps in `quickstarts` as a folder that `flwr run` takes."""
    app = where / f"{name}-app"
    shutil.copytree(QUICKSTARTS, app / "quickstarts", ignore=shutil.ignore_patterns("__pycache__"))
    components = f'serverapp = "quickstarts.{name}_app:server"\nclientapp = "quickstarts.{name}_app:client"'
    (app / "pyproject.toml").write_text(
        f"""[project]
name = "quickstart-{name}"
version = "1.0.0"
description = "In the shape of a quickstart"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
{components}

[tool.flwr.app.config]
rounds = 1
forget = -1
classes = ""
model = ""
asked = ""
ledger = ""
until = ""
probes = false
"""
    )
    return app


def asked(file: Path) -> dict[str, Counter[str]]:
    """How often each partition was asked to train and to evaluate, as the clients noted it; the note is taken away."""
    found: dict[str, Counter[str]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        partition, kind = line.split()
        found.setdefault(partition, Counter())[kind] += 1
    file.unlink(missing_ok=True)
    return found


def forgets_in_a_second_run(deployment: Deployment, name: str, where: Path) -> Counter[str]:
    """Two separate `flwr run`s of an app: everybody trains, then partition 0 is forgotten; what that one was asked."""
    from flower_grid import ReadLedger  # it imports Flower, which not all who import this have

    app, file, ledger = quickstart(where, name), where / "asked", where / "ledger"
    said = {"model": str(where / "model.npz"), "asked": str(file)}
    out = deployment.run(app, **said)
    assert asked(file) == {str(k): {"train": 1, "evaluate": 1} for k in range(4)}, out
    out = deployment.run(app, forget=0, ledger=str(ledger), **said)
    found = asked(file)
    leaver = found.pop("0", Counter())
    # Those who stay evaluate once more: the model before.
    assert found == {str(k): {"train": 1, "evaluate": 2} for k in (1, 2, 3)}, out
    assert (where / "model.unlearned.npz").exists()
    assert ReadLedger(ledger).finished == "all rounds"
    return leaver
