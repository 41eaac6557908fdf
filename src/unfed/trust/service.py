"""The intake on a network: FastAPI on loopback, with a page that needs no script.

    POST /api/requests                        a signed request ─► its signed acknowledgement
    POST /api/revocations                     a signed revocation ─► where the request stands
    GET  /api/requests                        the queue            GET /api/requests/ID    one request
    GET  /api/requests/ID/acknowledgement     as it was signed     GET /api/requests/ID/bundle    signed now
    GET  /  and  /requests/ID                 the same for people

Needs the extra `serve`. It listens on loopback only; a reverse proxy gives it a public name, TLS, time-outs and limits
per address (docs/how-to/evidence.md), and then a token is needed: `Authorization: Bearer TOKEN`, or the password that a
browser asks for. With `--work`, `unfed resume` serves requests in a process of its own: the service answers meanwhile,
and if both are killed the work goes on from its last save. An attacker on the network sees nothing that a signature
would not stop: what is handed in counts by its signature, not by who sent it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import importlib.util
import ipaddress
import logging
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.errors import UnfedError, extra
from unfed.report.wording import date_text
from unfed.requests.entry import now
from unfed.trust.intake import Intake, IntakeRow, Unknown
from unfed.trust.request import NotBelieved
from unfed.trust.signing import Envelope
from unfed.trust.verdict import environment

for _needed in ("fastapi", "uvicorn"):
    if importlib.util.find_spec(_needed) is None:
        raise UnfedError(
            f"`unfed serve` needs the package {_needed!r}, which is not installed; install it with {extra('serve')}."
        )

import uvicorn  # noqa: E402  (after the sentence that says what is missing)
from fastapi import FastAPI, Request, Response  # noqa: E402
from fastapi.concurrency import run_in_threadpool  # noqa: E402
from fastapi.responses import HTMLResponse, JSONResponse  # noqa: E402

_log = logging.getLogger("unfed.serve")
SHORTEST = 32  # characters of a token
AGAIN = 30.0  # seconds until a failed caller tries again
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'"
    ),
}


# --- who gets in ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """Who and what is let in."""

    tokens: frozenset[bytes] = frozenset()
    """SHA-256 of every token; with none, everyone on this machine gets in."""
    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "[::1]"})
    """The names under which it may be called, so that no strange name leads a browser here."""
    largest: int = 1 << 20
    """Bytes of a body."""

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and the sentence for a caller that is not let in."""
        host = request.headers.get("host", "")
        host = host if host.endswith("]") else host.rsplit(":", 1)[0]  # [::1] has colons and no port
        if host.lower() not in self.hosts:
            return 421, "This service is not called by that name; use the name or address that it was started with."
        declared = request.headers.get("content-length", "0")
        if not (declared.isascii() and declared.isdigit()) or int(declared[:15]) > self.largest:
            return 413, self.too_large
        if self.tokens and not self._known(request.headers.get("authorization", "")):
            return 401, "This service asks for a token; send it as `Authorization: Bearer TOKEN`."
        return None

    @property
    def too_large(self) -> str:
        return f"A body has at most {self.largest:,} bytes; send less."

    def _known(self, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "basic":  # as a browser sends it, with any name
            try:
                token = base64.b64decode(token, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        found = token_digest(token.strip())
        return any([hmac.compare_digest(found, own) for own in self.tokens])

    async def body(self, request: Request) -> bytes:
        """The whole body; refused where it is too large, whatever its header said."""
        found = b""
        async for part in request.stream():
            found += part
            if len(found) > self.largest:
                raise TooLarge(self.too_large)
        return found


class TooLarge(UnfedError):
    """A body has more bytes than are taken."""


def token_digest(token: str) -> bytes:
    """What is held of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _guarded(app: FastAPI, rules: Rules) -> None:
    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if (refusal := rules.refusal(request)) is None:
            answer = await go_on(request)
        else:
            answer = JSONResponse({"error": refusal[1]}, refusal[0])
            if refusal[0] == 401 and not request.url.path.startswith("/api/"):
                answer.headers["WWW-Authenticate"] = 'Basic realm="unfed: a token as the password"'
        answer.headers.update(HEADERS)
        return answer


# --- the app ----------------------------------------------------------------------------------------------------------


def service(intake: Intake, rules: Rules, taken: Callable[[], None] = lambda: None) -> FastAPI:
    """The app of one run; `taken` is called after each request that came in."""
    app = FastAPI(title="unfed", docs_url=None, redoc_url=None, openapi_url=None)
    _refusals(app)
    _interface(app, intake, rules, taken)
    _pages(app, intake)
    _guarded(app, rules)
    return app


def _interface(app: FastAPI, intake: Intake, rules: Rules, taken: Callable[[], None]) -> None:
    @app.post("/api/requests", status_code=201)
    async def submit(request: Request) -> Response:
        answer = await run_in_threadpool(intake.submit, await rules.body(request))
        taken()
        return _signed(answer, 201)

    @app.post("/api/revocations")
    async def revoke(request: Request) -> IntakeRow:
        return await run_in_threadpool(intake.revoke, await rules.body(request))

    @app.get("/api/requests")
    def queue() -> dict[str, Any]:
        return {"in_force": intake.in_force(), "requests": intake.queue()}

    @app.get("/api/requests/{name}")
    def follow(name: str) -> dict[str, Any]:
        return intake.story(name)

    @app.get("/api/requests/{name}/acknowledgement")
    def acknowledgement(name: str) -> Response:
        return _signed(intake.acknowledgement(name))

    @app.get("/api/requests/{name}/bundle")
    def bundle(name: str) -> Response:
        return _signed(intake.bundle(name))


def _pages(app: FastAPI, intake: Intake) -> None:
    @app.get("/", response_class=HTMLResponse)
    def queue() -> str:
        rows = intake.queue()
        working = any(row.state == "in_progress" for row in rows)
        said = {"rows": rows, "in_force": intake.in_force(), "working": working, "name": intake.run.folder.path.name}
        return environment().get_template("queue.html.j2").render(**said, date=date_text, at=now())

    @app.get("/requests/{name}", response_class=HTMLResponse)
    def story(name: str) -> str:
        return environment().get_template("story.html.j2").render(r=intake.story(name), date=date_text)


def _signed(envelope: Envelope, status: int = 200) -> Response:
    return Response(envelope.to_bytes(), status, media_type="application/json")


def _refusals(app: FastAPI) -> None:
    """Whatever goes wrong is one sentence."""

    @app.exception_handler(UnfedError)
    async def refused(request: Request, error: UnfedError) -> Response:
        said: dict[str, Any] = {"error": str(error)}
        if isinstance(error, NotBelieved):
            return JSONResponse({**said, "reason": error.reason}, 403)
        return JSONResponse(said, 404 if isinstance(error, Unknown) else 413 if isinstance(error, TooLarge) else 400)

    @app.exception_handler(404)
    async def nowhere(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "There is nothing here; the page is at /."}, 404)

    @app.exception_handler(405)
    async def otherwise(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"This cannot be called by {request.method}; use GET, or POST to hand in."}, 405)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The kind of the error and its place are enough to mend it; what was sent is not written down.
        _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
        return JSONResponse({"error": "Something went wrong here; ask the operator to look into it."}, 500, HEADERS)


# --- listening --------------------------------------------------------------------------------------------------------


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
        return Rules(tokens, hosts, largest)


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
        self, intake: Intake, address: Address, rules: Rules, work: bool = False, allow_code: bool = False
    ) -> None:
        self._worker = ResumeWorker(intake, allow_code) if work else None
        self._socket = _bound(address)
        port = self._socket.getsockname()[1]
        self.url = f"http://{_bracketed(address.host)}:{port}/"
        config = uvicorn.Config(
            service(intake, rules, self._worker.wake if self._worker else lambda: None),
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
        """Answer until stopped."""
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
        found.listen(1024)  # callers from now on wait until the first is answered
    except OSError as error:
        found.close()
        why = error.strerror or error
        raise UnfedError(
            f"{address.host}, port {address.port}, cannot be listened on ({why}); take another."
        ) from error
    return found


class ResumeWorker:
    """Lets `unfed resume` serve what comes in, one process at a time."""

    def __init__(self, intake: Intake, allow_code: bool = False) -> None:
        path = str(intake.run.folder.path)
        self._command = [sys.executable, "-m", "unfed", "resume", path, "--quiet", *(["--allow-code"] * allow_code)]
        self._intake, self._called, self._over = intake, threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def wake(self) -> None:
        """Something came in."""
        self._called.set()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work as long as this lasts; what is under way then is asked to save and end."""
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
            if not self._over.is_set() and self._intake.run.queue.waits():
                self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
                self._process.wait()
