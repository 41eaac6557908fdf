"""Listening: where, under which names, and what serves the requests that come in.

It listens on loopback only. A reverse proxy gives it a public name, TLS, time-outs and limits per address; then a token
is needed. With `--work`, `unfed resume` serves requests in a process of its own: the service answers meanwhile, and if
both are killed the work goes on from its last save.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unfed import storage
from unfed.errors import UnfedError
from unfed.trust.desk import Desk
from unfed.trust.guard import Rules, token_digest
from unfed.trust.service import service

import uvicorn  # isort: skip  (after `service`, which says what is missing)

SHORTEST = 32  # characters of a token
AGAIN = 30.0  # seconds after which somebody who did not succeed tries again


@dataclass(frozen=True)
class Address:
    """Where a service listens."""

    host: str = "127.0.0.1"
    port: int = 8640
    names: tuple[str, ...] = ()
    """Public names that a reverse proxy passes on."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        return self.host == "localhost"

    def rules(self, tokens: frozenset[bytes] = frozenset(), largest: int = 1 << 20) -> Rules:
        """Who is let in at this address; refused where it would be open to anyone."""
        if not self.loopback:
            raise UnfedError(
                f"{self.host} can be reached from other machines; listen on 127.0.0.1 behind a reverse proxy with TLS"
                " (docs/how-to/evidence.md has its configuration)."
            )
        if self.names and not tokens:
            raise UnfedError("A service with a public --name needs a token too; give one with --token FILE.")
        hosts = frozenset(name.lower() for name in ("localhost", "127.0.0.1", "[::1]", *self.names))
        return Rules(tokens, hosts, largest, secure=bool(self.names))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def tokens_in(path: Path) -> frozenset[bytes]:
    """The digests of the tokens in a file; where there is no file, a token is drawn."""
    if not path.exists():
        storage.write_bytes(path, secrets.token_urlsafe(32).encode() + b"\n")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UnfedError(f"Others than its owner may read the tokens in {path}; `chmod 600 {path}` first.")
    try:
        found = [line.strip() for line in storage.content(path).decode("ascii").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise UnfedError(
            f"The tokens in {path} cannot be read; write one of {SHORTEST} characters per line."
        ) from error
    if not found or any(len(token) < SHORTEST for token in found):
        raise UnfedError(f"Every token in {path} needs at least {SHORTEST} characters; delete it to have one drawn.")
    return frozenset(token_digest(token) for token in found)


class Listener:
    """A service that listens until it is stopped."""

    def __init__(
        self, desk: Desk, address: Address, rules: Rules, work: bool = False, allow_code: bool = False
    ) -> None:
        self._worker = Worker(desk, allow_code) if work else None
        self._socket = _bound(address)
        port = self._socket.getsockname()[1]
        self.url = f"http://{_bracketed(address.host)}:{port}/"
        config = uvicorn.Config(
            service(desk, rules, self._worker.wake if self._worker else lambda: None),
            log_level="warning",
            ws="none",
            access_log=False,  # who asked for what is private
            server_header=False,
            proxy_headers=False,
            limit_concurrency=200,
            timeout_keep_alive=5,
            h11_max_incomplete_event_size=1 << 16,
        )
        self._server = uvicorn.Server(config)

    def listen(self) -> None:
        """Answer until somebody says stop."""
        with self._worker.working() if self._worker else contextlib.nullcontext():
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Answer what is under way, and end."""
        self._server.should_exit = True


def _bound(address: Address) -> socket.socket:
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, address.port))
        found.listen(1024)  # whoever calls from now on waits until the first is answered
    except OSError as error:
        found.close()
        why = error.strerror or error
        raise UnfedError(
            f"{address.host}, port {address.port}, cannot be listened on ({why}); take another."
        ) from error
    return found


class Worker:
    """Lets `unfed resume` serve what comes in, one process at a time."""

    def __init__(self, desk: Desk, allow_code: bool = False) -> None:
        path = str(desk.run.folder.path)
        self._command = [sys.executable, "-m", "unfed", "resume", path, "--quiet", *(["--allow-code"] * allow_code)]
        self._desk, self._called, self._over = desk, threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def wake(self) -> None:
        """Something came in."""
        self._called.set()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work as long as this lasts; what is under way then is told to save and end."""
        thread = threading.Thread(target=self._loop, daemon=True)
        self._called.set()
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._called.set()
            if (process := self._process) is not None and process.poll() is None:
                process.terminate()
            thread.join(timeout=AGAIN)

    def _loop(self) -> None:
        while not self._over.is_set():
            self._called.wait(AGAIN)
            self._called.clear()
            if not self._over.is_set() and self._desk.run.queue.waits():
                self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
                self._process.wait()
