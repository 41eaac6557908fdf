"""The desk on a network: FastAPI behind a guard, with a page that needs no script.

    POST /api/requests                        a signed request ─► its signed acknowledgement
    POST /api/revocations                     a signed revocation ─► where the request stands
    GET  /api/requests                        the queue            GET /api/requests/ID    one request
    GET  /api/requests/ID/acknowledgement     as it was signed     GET /api/requests/ID/bundle    signed now
    GET  /  and  /requests/ID                 the same for people

Needs the extra `serve`. Whoever lies on the network sees nothing that a signature would not stop: what is
handed in counts by its signature, not by who sent it.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from unfed.errors import UnfedError, extra
from unfed.report.words import date_text
from unfed.requests.entry import now
from unfed.trust.desk import Desk, Unknown
from unfed.trust.envelope import Envelope
from unfed.trust.guard import App, Guard, Rules
from unfed.trust.page import environment
from unfed.trust.request import NotBelieved

for _needed in ("fastapi", "uvicorn"):
    if importlib.util.find_spec(_needed) is None:
        raise UnfedError(
            f"`unfed serve` needs the package {_needed!r}, which is not installed; install it with {extra('serve')}."
        )

from fastapi import FastAPI, Request, Response  # noqa: E402  (after the sentence that says what is missing)
from fastapi.concurrency import run_in_threadpool  # noqa: E402
from fastapi.responses import HTMLResponse, JSONResponse  # noqa: E402

_log = logging.getLogger("unfed.serve")


def service(desk: Desk, rules: Rules, taken: Callable[[], None] = lambda: None) -> App:
    """The app of one desk; `taken` is called after each request that came in."""
    app = FastAPI(title="unfed", docs_url=None, redoc_url=None, openapi_url=None)
    _refusals(app)
    _interface(app, desk, taken)
    _pages(app, desk)
    return Guard(app, rules)


def _interface(app: FastAPI, desk: Desk, taken: Callable[[], None]) -> None:
    @app.post("/api/requests", status_code=201)
    async def submit(request: Request) -> Response:
        answer = await run_in_threadpool(desk.submit, await request.body())
        taken()
        return _signed(answer, 201)

    @app.post("/api/revocations")
    async def revoke(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(desk.revoke, await request.body())

    @app.get("/api/requests")
    def queue() -> dict[str, Any]:
        return {"in_force": desk.in_force(), "requests": desk.queue()}

    @app.get("/api/requests/{name}")
    def follow(name: str) -> dict[str, Any]:
        return desk.story(name)

    @app.get("/api/requests/{name}/acknowledgement")
    def acknowledgement(name: str) -> Response:
        return _signed(desk.acknowledgement(name))

    @app.get("/api/requests/{name}/bundle")
    def bundle(name: str) -> Response:
        return _signed(desk.bundle(name))


def _pages(app: FastAPI, desk: Desk) -> None:
    @app.get("/", response_class=HTMLResponse)
    def queue() -> str:
        rows = desk.queue()
        working = any(row["state"] == "in_progress" for row in rows)
        told = {"rows": rows, "in_force": desk.in_force(), "working": working, "name": desk.run.folder.path.name}
        return environment().get_template("queue.html.j2").render(**told, date=date_text, at=now())

    @app.get("/requests/{name}", response_class=HTMLResponse)
    def story(name: str) -> str:
        return environment().get_template("story.html.j2").render(r=desk.story(name), date=date_text)


def _signed(envelope: Envelope, status: int = 200) -> Response:
    return Response(envelope.to_bytes(), status, media_type="application/json")


def _refusals(app: FastAPI) -> None:
    """Whatever goes wrong is one sentence."""

    @app.exception_handler(UnfedError)
    async def refused(request: Request, error: UnfedError) -> Response:
        told: dict[str, Any] = {"error": str(error)}
        if isinstance(error, NotBelieved):
            return JSONResponse({**told, "reason": error.reason}, 403)
        return JSONResponse(told, 404 if isinstance(error, Unknown) else 400)

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
        return JSONResponse({"error": "Something went wrong here; ask the operator to look into it."}, 500)
