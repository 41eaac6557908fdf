"""Plain processes of this machine as a transport: frames over loopback sockets.

    with Workers() as workers:
        workers.start([{"partition-id": 0}, {"partition-id": 1}])      or by hand: unfed worker …
        run(workers, {"run-folder": "/tmp/run", "mode": "train", "min-nodes": 2})

Every line has a thread that reads what comes, so an answer that comes too late is thrown away and a worker that dies is
noticed at once. Who does not show the token is let go before anything of it is believed (`frames.py`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.remote import frames
from unfed.remote.frames import BEFORE_IT_IS_KNOWN, USUAL, Ended, Frame, Limits
from unfed.remote.messages import Ask, Reply
from unfed.remote.replies import Failure, Unreadable, attempt, said
from unfed.remote.transport import Connected, Replies
from unfed.remote.worker import TOKEN

_HOST = "127.0.0.1"
_TICK = 0.2
"""Seconds after which a wait looks whether it is still wanted."""
_GREETING = 10.0
_STRANGERS = 32
"""Who may be at the door at one time without having shown the token."""

Inbox = queue.SimpleQueue[tuple[int, Reply | Failure, int]]
"""(node, what it answered, the bytes of it)."""


class Workers:
    """A server's lines to worker processes: listens on this machine until it is closed."""

    def __init__(
        self,
        token: str | None = None,
        port: int = 0,
        token_file: str | Path | None = None,
        limits: Limits = USUAL,
    ) -> None:
        self.token, self._limits = token or secrets.token_hex(32), limits
        if token_file is not None:
            storage.write_bytes(Path(token_file), self.token.encode() + b"\n")  # for its owner alone
        self._lines: dict[int, _Line] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._asked, self._met, self._open = 0, 0, True
        self._lock, self._door = threading.Lock(), threading.Semaphore(_STRANGERS)
        try:
            self._listener = socket.create_server((_HOST, port))
        except OSError as error:
            raise UnfedError(f"Port {port} cannot be listened on ({error}); choose another, or 0 for any.") from error
        self._listener.settimeout(_TICK)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Where workers connect to."""
        return f"{_HOST}:{self.port}"

    # --- the transport ------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Connected]:
        with self._lock:
            lines = sorted(self._lines.items())
        return [Connected(node, alive=line.alive) for node, line in lines if line.open]

    def send(self, asks: Mapping[int, Ask], timeout: float) -> Replies:
        until, inbox, crossed = time.monotonic() + timeout, Inbox(), 0
        bodies: dict[tuple[int, ...], bytes] = {}
        asked: dict[int, tuple[_Line, int]] = {}
        found: dict[int, Reply | Failure] = {}
        for node, ask in asks.items():
            line = self._lines.get(node)
            if line is None:
                if node <= self._met:  # it went since it was listed
                    found[node] = _AWAY
                continue
            self._asked += 1
            question = frames.ask_frame(ask, self._asked, bodies)
            asked[node], crossed = (line, self._asked), crossed + len(question)
            # Each on its own: one that does not take its question keeps nobody else waiting.
            threading.Thread(target=line.ask, args=(self._asked, question, until, inbox), daemon=True).start()
        while not asked.keys() <= found.keys():
            try:
                node, reply, size = inbox.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            found[node], crossed = reply, crossed + size
        for line, number in asked.values():
            line.forget(number)
        return Replies(found, crossed)

    # --- workers ------------------------------------------------------------------------------------------------------

    def start(self, configs: Iterable[Mapping[str, Any]]) -> list[subprocess.Popen[bytes]]:
        """Start one worker process for each node config; they end with this server."""
        begun = []
        for config in configs:
            pairs = [word for key, value in config.items() for word in ("--node", f"{key}={value}")]
            # -P: nothing is imported because it lies in the current folder.
            command = [sys.executable, "-P", "-m", "unfed", "worker", "--connect", self.address, *pairs]
            begun.append(subprocess.Popen(command, env={**os.environ, TOKEN: self.token}))
        self._started += begun
        return begun

    def close(self, seconds: float = 10.0) -> None:
        """Let everybody go; workers that were started here and do not end by themselves are ended."""
        self._open = False
        self._listener.close()
        for line in list(self._lines.values()):
            line.close()
        until = time.monotonic() + seconds
        for process in self._started:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- at the door --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._open:
            try:
                stranger, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self._door.acquire(blocking=False):
                threading.Thread(target=self._meet, args=(stranger,), daemon=True).start()
            else:
                stranger.close()

    def _meet(self, stranger: socket.socket) -> None:
        """Have a token shown and show it; then listen for as long as the line holds."""
        line = _Line(stranger, self._limits)
        try:
            known = line.greeted(self.token)
        finally:
            self._door.release()
        if not known:
            line.close()
            return
        with self._lock:
            self._met += 1
            line.node = self._met
            self._lines[line.node] = line
        if not self._open:
            line.close()
        line.listen()
        with self._lock:
            del self._lines[line.node]


class _Line:
    """One connection: questions out, answers to whoever waits for them."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        connection.settimeout(_TICK)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._limits = connection, limits
        self._waiting: dict[int, Inbox] = {}
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self.node, self.alive, self.open = 0, 1.0, True
        self._until = time.monotonic() + _GREETING

    def greeted(self, token: str) -> bool:
        """Whether the other end knows the token."""
        try:
            drawn = [frames.nonce()]
            self._post(frames.frame({"nonce": drawn[0]}), self._until)
            words = frames.read(self._take, BEFORE_IT_IS_KNOWN).words
            drawn.append(str(words.get("nonce")))
            if not frames.proves(words.get("proof"), token, "worker", drawn):
                return False
            self._post(frames.frame({"proof": frames.proof(token, "server", drawn)}), self._until)
        except (Ended, Unreadable, OSError):
            return False
        self._until = float("inf")
        return True

    def ask(self, number: int, question: bytes, until: float, inbox: Inbox) -> None:
        """Send a question; its answer, or why there is none, goes to the inbox."""
        with self._lock:
            there = self.open
            if there:
                self._waiting[number] = inbox
        if not there:
            inbox.put((self.node, _AWAY, 0))
            return
        try:
            with self._writing:
                self._post(question, until)
        except OSError:
            self.close()  # half a question cannot be taken back

    def forget(self, number: int) -> None:
        """Nobody waits for that answer any more."""
        with self._lock:
            self._waiting.pop(number, None)

    def listen(self) -> None:
        """Hand out answers until the line ends."""
        why = _AWAY
        try:
            while True:
                came = frames.read(self._take, self._limits)
                self.alive += 1.0
                number = came.words.get("number")
                with self._lock:
                    inbox = self._waiting.pop(number, None) if isinstance(number, int) else None
                if inbox is not None:  # else it comes too late
                    inbox.put((self.node, attempt(partial(_read, came)), came.size))
        except Unreadable as error:
            why = Failure(said(error))
        except (Ended, OSError):
            pass
        self.close(why)

    def close(self, why: Failure | None = None) -> None:
        """End the line; who waits for an answer is told why there will be none."""
        with self._lock:
            self.open = False
            waiting, self._waiting = self._waiting, {}
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        for inbox in waiting.values():
            inbox.put((self.node, why or _AWAY, 0))

    def _take(self, size: int) -> bytes:
        while self.open and time.monotonic() < self._until:
            try:
                return self._connection.recv(size)
            except TimeoutError:
                continue
        return b""

    def _post(self, data: bytes, until: float) -> None:
        rest = memoryview(data)
        while rest:
            if time.monotonic() >= until:
                raise TimeoutError
            with contextlib.suppress(TimeoutError):
                rest = rest[self._connection.send(rest) :]


_AWAY = Failure("it went away before it answered")


def _read(came: Frame) -> Reply | Failure:
    if "failed" in came.words:
        return Failure(f"it failed ({said(came.words['failed'])})")
    return frames.reply_of(came)
