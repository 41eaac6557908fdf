"""Who gets in: sizes, hosts and tokens, before anything is read.

    too large ─► 413      another host's name ─► 421      no token where one is asked ─► 401

Written over bare ASGI, so that the app never sees a refused request. A token comes in the header `Authorization:
Bearer …`, or once in the form of the page, which then keeps a session; never in an address, which ends up in logs. Only
digests of tokens are held. TLS, time-outs and limits per address are the reverse proxy's (docs/how-to/evidence.md).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "unfed_session"
SESSION_SECONDS = 12 * 3600.0
MOST_KNOWN = 10_000  # sessions
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'",
    ),
)


@dataclass(frozen=True)
class Rules:
    """What is let in."""

    tokens: frozenset[bytes] = frozenset()
    """SHA-256 of every token; with none, everyone on this machine gets in."""
    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "[::1]"})
    """The names under which it may be called, so that no strange name leads a browser here."""
    largest: int = 1 << 20
    """Bytes of a body."""
    secure: bool = False
    """Whether a proxy with TLS stands before it: then browsers send the session over TLS only."""


class Guard:
    """Stands before an app."""

    def __init__(self, app: App, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._rules, self._clock = app, rules, clock
        self._sessions: OrderedDict[bytes, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal, headers = self._refusal(scope), _headers(scope)
        if refusal is not None:
            await _answer(send, *refusal, page=_wants_page(scope, headers) and refusal[0] == 401)
            return
        body = await _body(receive, self._rules.largest)
        if body is None:
            await _answer(send, 413, f"A body has at most {self._rules.largest:,} bytes; send less.")
        elif scope["path"] == "/login" and scope["method"] == "POST" and self._rules.tokens:
            await self._login(body, send)
        else:
            await self._app(scope, _once(body), _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the sentence, where somebody is not let in."""
        headers = _headers(scope)
        host = headers.get("host", "")
        host = host if host.endswith("]") else host.rsplit(":", 1)[0]  # [::1] has colons and no port
        if host.lower() not in self._rules.hosts:
            return 421, "This service is not called by that name; use the name or address that it was started with."
        declared = headers.get("content-length", "0")
        if not (declared.isascii() and declared.isdigit()) or int(declared[:15]) > self._rules.largest:
            return 413, f"A body has at most {self._rules.largest:,} bytes; send less."
        if self._rules.tokens and scope["path"] != "/login" and not self._known(headers):
            return 401, "This service asks for a token; send it as `Authorization: Bearer TOKEN`."
        return None

    def _known(self, headers: dict[str, str]) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._right(token.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        until = None if cookie is None else self._sessions.get(_digest(cookie.value))
        return until is not None and until > self._clock()

    def _right(self, token: str) -> bool:
        found = _digest(token)
        return any([hmac.compare_digest(found, own) for own in self._rules.tokens])

    async def _login(self, body: bytes, send: Send) -> None:
        try:
            given = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4).get("token", [""])[0]
        except ValueError:  # more fields than the form has
            given = ""
        if not self._right(given.strip()):
            await _answer(send, 401, "That is not a token of this service; try again.", page=True)
            return
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = self._clock() + SESSION_SECONDS
        while len(self._sessions) > MOST_KNOWN:
            self._sessions.popitem(last=False)
        secure = "; Secure" if self._rules.secure else ""
        cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(SESSION_SECONDS)}{secure}"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), *HEADERS]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def token_digest(token: str) -> bytes:
    """What is held of a token."""
    return _digest(token)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _wants_page(scope: Scope, headers: dict[str, str]) -> bool:
    return not scope["path"].startswith("/api/") and "text/html" in headers.get("accept", "")


async def _body(receive: Receive, largest: int) -> bytes | None:
    """The whole body; None where it is too large, whatever its header said."""
    found = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return found
        found += bytes(message.get("body", b""))
        if len(found) > largest:
            return None
        if not message.get("more_body"):
            return found


def _once(body: bytes) -> Receive:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, sentence: str, page: bool = False) -> None:
    if page:
        body, kind = _LOGIN.replace("SENTENCE", sentence).encode(), b"text/html; charset=utf-8"
    else:
        body, kind = json.dumps({"error": sentence}).encode(), b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_LOGIN = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>unfed: token</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body { font: 16px/1.5 system-ui, sans-serif; max-width: 30rem; margin: 4rem auto; padding: 0 1rem; }</style>
</head><body><h1>Deletion requests</h1><p>SENTENCE</p><form method="post" action="/login"><p><label>Token
<input type="password" name="token" autocomplete="off" required></label> <button>Go in</button></p></form>
</body></html>"""
