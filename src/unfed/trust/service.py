"""The intake on a network: FastAPI on 127.0.0.1, with a page that needs no script.

    POST /api/requests                        a signed request ─► its signed acknowledgement
    POST /api/revocations                     a signed revocation ─► where the request stands
    GET  /api/requests                        the queue            GET /api/requests/ID    one request
    GET  /api/requests/ID/acknowledgement     as it was signed     GET /api/requests/ID/bundle    signed now
    GET  /  and  /requests/ID                 the same for people

Needs the extra `serve`. A reverse proxy gives it a public name, TLS, passwords, time-outs and limits per address
(docs/how-to/evidence.md). With `--work`, `unfed resume` serves requests in a process of its own; if both are killed,
the work goes on from its last save. What is handed in counts by its signature, not by who sent it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from unfed.errors import UnfedError, extra
from unfed.report.wording import date_text
from unfed.requests.entry import now
from unfed.trust.intake import Intake, IntakeRow, Unknown
from unfed.trust.request import NotBelieved
from unfed.trust.signing import Envelope
from unfed.trust.verdict import environment

for _needed in ("fastapi", "uvicorn"):
    if importlib.util.find_spec(_needed) is None:
        raise UnfedError(f"`unfed serve` needs the package {_needed!r}; install it with {extra('serve')}.")

import uvicorn  # noqa: E402  (after the sentence that says what is missing)
from fastapi import FastAPI, Request, Response  # noqa: E402
from fastapi.concurrency import run_in_threadpool  # noqa: E402
from fastapi.middleware.trustedhost import TrustedHostMiddleware  # noqa: E402
from fastapi.responses import HTMLResponse, JSONResponse  # noqa: E402

_log = logging.getLogger("unfed.serve")
LARGEST = 1 << 20  # bytes of a body
HOSTS = ("localhost", "127.0.0.1")  # the names it may be called by, so that no strange name leads a browser here
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


class TooLarge(UnfedError):
    """A body has more bytes than are taken."""


async def _body(request: Request) -> bytes:
    """The whole body; refused where it is too large, whatever its header says."""
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > LARGEST:
            raise TooLarge(f"A body has at most {LARGEST:,} bytes; send less.")
    return found


# --- the app ----------------------------------------------------------------------------------------------------------


def service(intake: Intake, taken: Callable[[], None] = lambda: None) -> FastAPI:
    """The app of one run; `taken` is called after each request that came in."""
    app = FastAPI(title="unfed", docs_url=None, redoc_url=None, openapi_url=None)
    _refusals(app)
    _interface(app, intake, taken)
    _pages(app, intake)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*HOSTS], www_redirect=False)

    @app.middleware("http")
    async def with_headers(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = await go_on(request)
        answer.headers.update(HEADERS)
        return answer

    return app


def _interface(app: FastAPI, intake: Intake, taken: Callable[[], None]) -> None:
    @app.post("/api/requests", status_code=201)
    async def submit(request: Request) -> Response:
        answer = await run_in_threadpool(intake.submit, await _body(request))
        taken()
        return _signed(answer, 201)

    @app.post("/api/revocations")
    async def revoke(request: Request) -> IntakeRow:
        return await run_in_threadpool(intake.revoke, await _body(request))

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


class Listener:
    """A service that listens until it is stopped."""

    def __init__(self, intake: Intake, port: int = 8640, work: bool = False, allow_code: bool = False) -> None:
        self._worker = ResumeWorker(intake, allow_code) if work else None
        self._socket = _bound(port)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(
            service(intake, self._worker.wake if self._worker else lambda: None),
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


def _bound(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(1024)  # callers from now on wait until the first is answered
    except OSError as error:
        found.close()
        raise UnfedError(f"Port {port} cannot be listened on ({error.strerror or error}); take another.") from error
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
