"""A client as a plain process: it connects to a server on this machine and answers questions.

    unfed worker --connect 127.0.0.1:9092 --token-file TOKEN --node partition-id=0

It ends when the server does. What it accepts is said by its own node config, as on a Flower node.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError
from unfed.remote import frames
from unfed.remote.client import answered
from unfed.remote.frames import BEFORE_IT_IS_KNOWN, USUAL, Ended, Frame, Limits
from unfed.remote.node_data import Node
from unfed.remote.replies import Unreadable

log = logging.getLogger("unfed.remote")

TOKEN = "UNFED_TOKEN"
"""The environment variable that holds the token where no file does."""
_HERE = ("127.0.0.1", "localhost")
_SECONDS = 10.0


def work(address: str, token: str, node: Node, limits: Limits = USUAL, wait: float = 30.0) -> int:
    """Answer what the server at an address asks until it closes the line; how many questions there were."""
    count = 0
    with joined(address, token, wait) as line:
        while True:
            try:
                line.sendall(_answer(frames.read(line.recv, limits), node))
            except (Ended, ConnectionError):
                return count
            count += 1


def joined(address: str, token: str, wait: float = 30.0) -> socket.socket:
    """A line to the server at an address, once both ends have shown that they know the token."""
    line = _connected(*parse_address(address), wait)
    try:
        _greet(line, address, token)
    except BaseException:
        line.close()
        raise
    line.settimeout(None)
    return line


def parse_address(address: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`; the host is this machine, for frames are not encrypted."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UnfedError(f"{address!r} is no address; write it as 127.0.0.1:PORT.")
    if host not in _HERE:
        raise UnfedError(
            f"{host!r} is not this machine, and these frames are not encrypted; use 127.0.0.1, or Flower with TLS"
            " between machines."
        )
    return host, int(port)


def token_of(file: str | Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The token: what a file that is its owner's alone holds, or the environment."""
    if file is None:
        if not environment.get(TOKEN):
            raise UnfedError(f"Say the server's token: --token-file FILE, or {TOKEN} in the environment.")
        return environment[TOKEN]
    try:
        mode, text = Path(file).stat().st_mode, storage.content(Path(file)).decode().strip()
    except (OSError, ValueError) as error:
        raise UnfedError(f"The token file {file} cannot be read ({error}); check the path.") from error
    if os.name == "posix" and mode & 0o077:
        raise UnfedError(f"Others may read the token file {file}; make it yours alone with `chmod 600 {file}`.")
    if not text:
        raise UnfedError(f"The token file {file} is empty; the server writes it when it starts.")
    return text


def _connected(host: str, port: int, wait: float) -> socket.socket:
    until = time.monotonic() + wait
    while True:
        try:
            line = socket.create_connection((host, port), timeout=_SECONDS)
        except OSError as error:
            if time.monotonic() >= until:
                raise UnfedError(
                    f"Nobody listens at {host}:{port} after {wait:g} s; start the server, or check the port."
                ) from error
            time.sleep(min(0.1, wait))
            continue
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line


def _greet(line: socket.socket, address: str, token: str) -> None:
    """Show the token and have it shown, without saying it."""
    stranger = f"Who listens at {address} is no server of unfed's, or has another token; check the port and the token."
    try:
        drawn = [str(_heard(line).get("nonce")), frames.nonce()]
        line.sendall(frames.frame({"nonce": drawn[1], "proof": frames.proof(token, "worker", drawn)}))
        said = _heard(line).get("proof")
    except (Ended, Unreadable, OSError) as error:
        raise UnfedError(stranger) from error
    if not frames.proves(said, token, "server", drawn):
        raise UnfedError(stranger)


def _heard(line: socket.socket) -> Mapping[str, Any]:
    return frames.read(line.recv, BEFORE_IT_IS_KNOWN).words


def _answer(came: Frame, node: Node) -> bytes:
    """The frame that answers a question; a mistake of ours is told in one line, and logged here in full."""
    number: Any = came.words.get("number")
    try:
        return frames.answer_frame(answered(lambda: frames.ask_of(came), node, log), number)
    except Exception as error:
        log.exception("unfed: a question could not be answered")
        return frames.frame({"number": number, "failed": f"{type(error).__name__}: {error}"})


def node_config(pairs: Sequence[str]) -> dict[str, str]:
    """The node config that `KEY=VALUE` pairs make."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UnfedError(f"--node takes KEY=VALUE pairs such as partition-id=0, not {pair!r}.")
        found[key] = value
    return found
