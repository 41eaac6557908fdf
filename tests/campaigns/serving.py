"""`unfed serve`, killed while many submit: nothing that was acknowledged may be lost."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import signed

from unfed.runs.run import Run
from unfed.trust.folder import TrustFolder

PATIENCE = 60.0
"""Seconds after which a service that does not answer is taken to hang."""


@dataclass
class Submitters:
    """Who hands in requests at the same moment, and what each was answered."""

    home: Path
    names: Sequence[str]
    answers: dict[str, bytes] = field(default_factory=dict)
    """The acknowledgements that came, by request."""
    refusals: dict[str, str] = field(default_factory=dict)
    """What was said to the others, where anything was."""

    def submit(self, port: int) -> None:
        """All at once; whoever is not answered has nothing in hand."""
        together = threading.Barrier(len(self.names))
        threads = [threading.Thread(target=self._one, args=(name, port, together)) for name in self.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, name: str, port: int, together: threading.Barrier) -> None:
        opening = json.loads((self.home / f"{name}.opening").read_bytes())
        body = json.dumps({"request": json.loads((self.home / f"{name}.json").read_bytes()), "opening": opening})
        together.wait()
        try:
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            line.request("POST", "/api/requests", body, {"Content-Type": "application/json"})
            answer = line.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):  # the service died
            return
        if answer.status == 201:
            self.answers[name] = said
        else:
            self.refusals[name] = said.decode(errors="replace")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def words(port: int) -> tuple[str, ...]:
    """The command that serves."""
    return "serve", "run", "--port", str(port), "--method", "ft"


def listening(port: int) -> bool:
    """Wait until somebody listens there; False if nobody does."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as line:
            line.settimeout(1.0)
            if line.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.02)
    return False


def trial(
    home: Path, count: int, kill_after: int, start: Callable[[Sequence[str], Path], tuple[int, Path]]
) -> tuple[int, list[str]]:
    """Submitters at once, the service killed once so many were answered, then all again; how many were, and faults.

    `start` gives a command in a folder, in a child.
    """
    who, faults = Submitters(home, signed.requests(home, count)), list[str]()
    port = free_port()
    child = start(words(port), home)[0]
    if not listening(port):
        faults.append("it did not listen")
    threading.Thread(target=_killer, args=(child, who.answers, kill_after), daemon=True).start()
    who.submit(port)
    _end(child)
    answered = dict(who.answers)
    trust, run = TrustFolder(home / "run"), Run.open(home / "run")
    filed = {entry.request.id for entry in run.folder.book().entries}
    for name, answer in answered.items():
        kept = trust.kept("acknowledgement", name)
        if name not in filed or kept is None or kept.to_bytes() != answer:
            faults.append("an acknowledged request is lost")
    again = Submitters(home, who.names)
    port = free_port()
    child = start(words(port), home)[0]
    if not listening(port):
        faults.append("it did not listen again")
    again.submit(port)
    _end(child)
    for name in who.names:  # whoever was answered is told so; everybody else is answered now
        if name in answered and name in again.answers:
            faults.append("an acknowledged request was taken twice")
        if name not in answered and name not in again.answers and signed.ANSWERED not in again.refusals.get(name, ""):
            faults.append(f"a request is not taken again: {again.refusals.get(name, 'no answer')[:120]}")
    wrong = signed.lost(home, list(who.names))
    return len(answered), faults + ([wrong] if wrong else [])


def _killer(child: int, answers: dict[str, bytes], after: int) -> None:
    while len(answers) < after:
        time.sleep(0.001)
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return
