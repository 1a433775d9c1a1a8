"""Whose request it is, and what is theirs. ``Guard``: what is refused before anything looks at it, the headers that every
answer has, and what a bug looks like from outside.

A server on loopback is reached by every page that its user's browser shows, so another site's page must neither
start runs here (it may send what needs no permission, without reading the answer) nor pretend to be this server's own by
a name that it makes point to loopback.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callstream.calls import Call
from callstream.journal import RunRow
from callstream.server.agent import AppHost, Host
from callstream.server.logs import describe_request
from callstream.server.requests import MAX_CALL_ID, Problem, is_id, not_found, problem_response
from callstream.server.streams import STREAMS


class Operator:
    """What ``auth`` may return in the place of a name: somebody who sees all, as everybody does without ``auth``."""


Auth: TypeAlias = Callable[[Request], str | Operator | None | Awaitable[str | Operator | None]]
"""Turns a request into a principal, the name of the user who sent it; None to refuse it. Sync or async.

If it raises, the request fails with 500, without its text, and nothing runs.
"""


class Access:
    """With ``auth``, each principal sees its own threads only; without it there is one user, who sees all.

    Of a thread, the runs of the ``host``'s app are shown.
    """

    def __init__(self, auth: Auth | None, host: Host) -> None:
        self._auth = auth
        self._host = host
        self._journal = host.callstream.journal

    async def principal(self, request: Request) -> str | None:
        """The principal of the request; None for an operator, and if the server has no ``auth``."""
        if self._auth is None:
            return None
        found = self._auth(request)
        principal = await found if inspect.isawaitable(found) else found
        if isinstance(principal, Operator):
            return None
        if principal is not None and not isinstance(principal, str):
            raise TypeError(f"expected auth to return a principal's name or None, got {type(principal).__name__}")
        if not principal or not is_id(principal):
            raise Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", "Authentication required.")
        return principal

    async def check_thread(self, thread_id: str, principal: str | None) -> None:
        """A thread belongs to the principal that began it; a new one is free."""
        if principal is None:
            return
        runs = await self._journal.runs(thread_id=thread_id)
        if runs and runs[-1].principal != principal:
            raise not_found("thread")

    async def runs_of(self, thread_id: str, principal: str | None) -> list[RunRow]:
        """The runs of a thread, the newest first."""
        runs = await self._journal.runs(thread_id=thread_id) if is_id(thread_id) else []
        if not runs or (principal is not None and runs[-1].principal != principal):
            raise not_found("thread")
        # A run of another principal is among them only if it was refused after it started; it is not shown.
        own = await self._own(runs if principal is None else [row for row in runs if row.principal == principal])
        if not own:
            raise not_found("thread")
        return own

    async def thread_run(self, run_id: str, principal: str | None) -> RunRow:
        """A run that is to be shown as part of its thread."""
        own = await self._own([await self.run(run_id, principal)])
        if not own:
            raise not_found("run")
        return own[0]

    async def _own(self, rows: list[RunRow]) -> list[RunRow]:
        return await self._host.own_runs(rows) if isinstance(self._host, AppHost) else rows

    async def run(self, run_id: str, principal: str | None) -> RunRow:
        found = await self._journal.runs(run_id=run_id, limit=1) if is_id(run_id) else []
        if not found or (principal is not None and found[0].principal != principal):
            raise not_found("run")
        return found[0]

    async def call(self, call_id: str, principal: str | None) -> Call:
        call = await self._journal.call(call_id) if is_id(call_id, MAX_CALL_ID) else None
        if call is None:
            raise not_found("call")
        if principal is not None:
            owners = await self._journal.runs(run_id=call.run_id, limit=1)
            if not owners or owners[0].principal != principal:
                raise not_found("call")
        return call


logger = logging.getLogger("callstream.server")

_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY: Final = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_BUG: Final = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "Internal server error.")
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9a-f:.%]+)\]|(?P<name>[^\[\]:@/\s]*))(?::[0-9]*)?", re.ASCII)
_ELSEWHERE: Final = ("cross-site", "same-site")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


class Guard:
    """``origins`` are those of ``cors_origins``; ``open_to_all``: there is no ``auth``."""

    def __init__(self, app: ASGIApp, *, origins: Iterable[str], hosts: Iterable[str], open_to_all: bool) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset(host.lower() for host in hosts)
        self._open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        problem = self._refusal(scope)
        app = self._app if problem is None else problem_response(problem)
        streams: list[Callable[[], Awaitable[None]]] = []
        scope[STREAMS] = streams
        try:
            await app(scope, receive, send_with_headers)
            while streams:  # one at most, which may last for hours and needs nothing of what the router holds
                await streams.pop()()
        except Exception as error:
            if started:
                raise  # the server drops the connection, which is all that can be said now
            logger.exception("%s failed", describe_request(scope), exc_info=error)
            await problem_response(_BUG)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _SAFE and _is_from_elsewhere(headers):
            origin = headers.get("origin")
            if origin not in self._origins and "*" not in self._origins:
                return Problem(
                    HTTPStatus.FORBIDDEN,
                    "cross_origin",
                    "Requests from pages of other origins are refused; the setting cors_origins lists the allowed ones.",
                )
        if self._open_to_all and _is_loopback((scope.get("server") or ("",))[0]):
            host = _name_of(headers.get("host", ""))
            if host not in self._hosts and "*" not in self._hosts and not _is_loopback(host):
                return Problem(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "wrong_host",
                    "Without auth, this server answers on loopback only to loopback names; "
                    "the setting allowed_hosts adds others.",
                )
        return None


def _is_from_elsewhere(headers: Headers) -> bool:
    """Whether a page of another origin asks.

    Browsers that do not say so (older ones, and all over plain HTTP to other names than loopback's) name their origin.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None or origin is None:
        return site in _ELSEWHERE
    return origin.partition("://")[2].lower() != headers.get("host", "").strip().lower()


def _name_of(host: str) -> str:
    """The Host header without its port. What is not a name and a port cannot be allowed."""
    found = _HOST.fullmatch(host.strip().lower())
    return host if found is None else found["address"] or found["name"] or ""


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
