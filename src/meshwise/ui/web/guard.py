"""Refuse a request of another user, or without a known Host, the token or a small body before a page sees it; add the security headers to
every reply.

A page of another site can make a browser send requests here, and a name that changes its address (DNS rebinding) can make them look like
our own. So the Host must be one that we answer to, and requests must come from our own pages, but for a link that somebody follows.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from meshwise.ui.web.peers import user_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 4 * 2**20  # bytes of a request's body, at most
MAX_QUERY_CHARS = 8192  # characters of a query string, at most
COOKIE = "meshwise"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
PLOT_STYLES = ("'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww='", "'sha256-rCZUQsEQJf1DmnfnMZmlj08XC7qbIZySA6bEtitbQ00='")
"""Hashes of the style elements that Observable Plot writes into its figures and legends; tests/ui/web fails where they change."""
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", f"style-src 'self' {' '.join(PLOT_STYLES)}", "img-src 'self' data:",
        "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


class TooLarge(Exception):
    """A body above MAX_BODY_BYTES."""


@dataclass(frozen=True)
class Guard:
    """Refuse what a page must not see, and add HEADERS to every reply."""

    app: App
    hosts: frozenset[str]  # values of the Host header that are answered, without the port
    token: str = ""  # the secret that every request must carry, in a cookie or as a bearer; '' for none

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send))
            return
        try:
            await self.app(scope, _limited(receive), _with_headers(send))
        except TooLarge:
            await _refuse(413, too_large())(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the reply to a request that no page should see; None where it may pass."""
        if host_of(headers.get("host", "")) not in self.hosts:
            return _refuse(421, "this address is not served here: open the address that 'meshwise ui' printed")
        if len(scope.get("query_string", b"")) > MAX_QUERY_CHARS:
            return _refuse(414, f"the question is too long: at most {MAX_QUERY_CHARS} characters")
        if scope["method"] not in ("GET", "HEAD") and foreign(headers):
            return _refuse(403, "uploads are taken from our own pages only")
        if foreign(headers) and headers.get("sec-fetch-dest", "") != "document":
            return _refuse(403, "questions are taken from our own pages only; a link from another site may open one")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BODY_BYTES:
            return _refuse(413, too_large())
        if self.token:
            return self._without_token(scope, headers)
        if another_user(scope):
            return _refuse(403, "this page belongs to another user of this machine, who can share it with --token")
        return None

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None where the request has the token; a redirect that moves it from the address into a cookie; or a refusal."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        if given and secrets.compare_digest(given.encode(), self.token.encode()) and scope["method"] in ("GET", "HEAD"):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            reply = RedirectResponse(local_path(scope["path"]) + (f"?{rest}" if rest else ""), status_code=303)
            reply.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return reply
        carried = (_cookie(headers), headers.get("authorization", "").removeprefix("Bearer "))
        if any(secrets.compare_digest(value.encode(), self.token.encode()) for value in carried):
            return None
        return _refuse(401, "a token is needed: open the address with ?token=... that 'meshwise ui' printed")


def another_user(scope: Scope) -> bool:
    """Return whether a request comes from another user of this machine, who may reach loopback too; root may see everything anyway."""
    client, server = scope.get("client"), scope.get("server")
    user = user_of((client[0], client[1]), (server[0], server[1])) if client and server and server[1] else None
    return user not in (None, 0, os.getuid())


def host_of(header: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    name, colon, port = header.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() and (not name.count(":") or name.endswith("]")) else header.strip().lower()


def local_path(path: str) -> str:
    """Return a path that a redirect may name: '//host' would lead to another site."""
    return "/" + path.lstrip("/\\")


def foreign(headers: Headers) -> bool:
    """Return whether a request comes from a page of another site."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def too_large() -> str:
    return f"the file is too large: at most {MAX_BODY_BYTES >> 20} MiB; audit a larger one with 'meshwise audit FILE'"


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _refuse(status: int, message: str) -> Response:
    return PlainTextResponse(message + "\n", status_code=status)


def _limited(receive: Receive) -> Receive:
    """Return `receive` that raises TooLarge once a body without a stated length exceeds the limit."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MAX_BODY_BYTES:
            raise TooLarge
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded
