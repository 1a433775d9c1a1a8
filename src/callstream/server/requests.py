"""Requests: bodies within their limits, checked before anything is done with them; who sent a request, and what they own.

``Problem`` is the answer to a request that cannot be granted: a status, a code and one sentence. ``Guard`` refuses requests
before anything looks at them, adds the headers that every answer has, and decides what a bug looks like from outside.

Every page that a user's browser shows can reach a server on loopback. So another site's page must not be able to start
runs here (it may send requests that need no permission, without reading the answers), nor to pass for this server's own
page under a host name that it points at loopback.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, TypeAlias

import msgspec
from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolMessage
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from callstream import codec
from callstream.agui.messages import is_deeper
from callstream.calls import Call
from callstream.journal import RunRow
from callstream.server.agent import AppHost, Host, Importer
from callstream.server.logs import describe_request
from callstream.server.settings import ServerSettings

logger = logging.getLogger("callstream.server")


class Problem(Exception):
    """Raised anywhere in a request, and answered as ``{"error": {"code": …, "message": …}}``.

    ``closes``: the rest of the request is not wanted, so the connection cannot be used for another.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, closes: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.closes = closes


def remote_parent(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """A context in which runs belong to the trace that a request names (``traceparent``), if there is none already."""
    try:
        from callstream.runtime.telemetry import continue_trace
    except ImportError:  # OpenTelemetry is not installed
        return nullcontext()
    return continue_trace(headers)


def not_found(what: str) -> Problem:
    """The same answer whether the thing does not exist or belongs to another principal."""
    return Problem(HTTPStatus.NOT_FOUND, "not_found", f"No such {what}.")


def shutting_down() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "shutting_down",
        "The server is shutting down; try again in a moment.",
        retry_after=5,
    )


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        codec.encode(value), status, {"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )


def problem_response(problem: Problem) -> Response:
    headers = {} if problem.retry_after is None else {"retry-after": str(problem.retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if problem.closes:
        headers["connection"] = "close"
    return json_response({"error": {"code": problem.code, "message": problem.message}}, problem.status, headers)


MAX_ID: Final = 256
MAX_NUMBER: Final = 2**31 - 1
"""The largest record number: every store can count that far."""
MAX_CALL_ID: Final = 16 * 1024
"""Call ids come from the provider or the host, and some put whole signatures into them."""
_SHOWN_ERRORS: Final = 5
_DISCARDED: Final = 4 * 1024 * 1024
"""A body that exceeds its limit by at most this is read to its end: a client that is still writing may not read answers."""
_MESSAGES_IN_FULL: Final = 10
"""All messages together may have this many times the parts and calls that one may have."""
_MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Message)


async def read_input(request: Request, settings: ServerSettings) -> RunAgentInput:
    """The body as AG-UI's RunAgentInput."""
    run_input = parse_input(await _read(request, settings), settings)
    check_ids(run_input)
    return run_input


def parse_input(body: bytes, settings: ServerSettings) -> RunAgentInput:
    """AG-UI's RunAgentInput. Its lists are counted before anything is built from them.

    Messages are validated one by one, up to the first that is invalid: pydantic describes every error that it finds, and a
    list of half a million invalid items costs it a gigabyte.
    """
    fields = _json(body, settings)
    if not isinstance(fields, dict):
        raise _wrong(f"expected an object (AG-UI's RunAgentInput), got {_kind(fields)}")
    _check_lists(fields, settings)
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return _validate(fields)
    parsed = _validate({**fields, "messages": []})
    for number, message in enumerate(messages):
        try:
            parsed.messages.append(_MESSAGE.validate_python(message))
        except ValidationError as error:
            raise _wrong(_describe(error, f"messages.{number}")) from None
    return parsed


def _validate(fields: dict[str, Any]) -> RunAgentInput:
    try:
        return RunAgentInput.model_validate(fields)
    except ValidationError as error:
        raise _wrong(_describe(error)) from None


def _check_lists(fields: dict[str, Any], settings: ServerSettings) -> None:
    most = settings.max_items
    _check_list(fields.get("messages"), "messages", settings.max_messages)
    _check_list(fields.get("tools"), "tools", settings.max_tools)
    for name in ("context", "resume"):
        _check_list(fields.get(name), f"entries in {name}", most)
    messages = fields.get("messages")
    total = 0
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        for name, value in message.items() if isinstance(message, dict) else ():
            if isinstance(value, list):
                _check_list(value, f"entries in messages.{number}.{name:.100}", most)
                total += len(value)
    if most is not None and total > most * _MESSAGES_IN_FULL:
        raise _too_many("parts and tool calls in all messages", most * _MESSAGES_IN_FULL, total)


def _check_list(value: Any, name: str, most: int | None) -> None:
    if most is not None and isinstance(value, list) and len(value) > most:
        raise _too_many(name, most, len(value))


async def json_body(request: Request, settings: ServerSettings, *, optional: bool = False) -> Any:
    """The body's JSON; with ``optional``, an empty body is None."""
    body = await _read(request, settings)
    return None if not body and optional else _json(body, settings)


def _json(body: bytes, settings: ServerSettings) -> Any:
    if settings.max_values is not None and (count := _count_values(body, settings.max_values)) > settings.max_values:
        raise _too_many("JSON values in the body", settings.max_values, count)
    try:
        value = _decode(body)
    except RecursionError:
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "not_json", f"expected a JSON body: {error}") from None
    if is_deeper(value, settings.max_depth):
        raise _wrong(f"expected JSON that nests at most {settings.max_depth} deep")
    return value


def _count_values(body: bytes, most: int) -> int:
    """How many values a JSON text has, without parsing it: all but the first of a container follow a comma.

    Commas inside strings do not count, but are only sorted out if the count is too high with them. For that, escapes are
    removed: then every quote begins or ends a string. Each string is a value or a key.
    """
    count = _count(body, b",[{")
    if count <= most:
        return count
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = _count(plain, b'"')
    return quotes // 4 if quotes > most * 4 else _count(b"".join(plain.split(b'"')[::2]), b",[{")


def _count(text: bytes, characters: bytes) -> int:
    return len(text) - len(text.translate(None, characters))


def _decode(body: bytes) -> Any:
    """The body's JSON, with U+FFFD for lone surrogates: clients send back whatever a model has sent them."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        whole = codec.replace_surrogates(body)
        if whole == body:
            raise
        return msgspec.json.decode(whole)


def is_id(text: str, most: int = MAX_ID) -> bool:
    """Whether it is short enough, and has nothing in it that a log or a database would choke on."""
    return 0 < len(text) <= most and text.isprintable()


def check_id(text: str, name: str, most: int = MAX_ID) -> str:
    """An id that a client chose."""
    if not is_id(text, most):
        raise _wrong(f"expected {name}, 1 to {most} printable characters")
    return text


def query_id(asked: Mapping[str, str], name: str) -> str | None:
    """An id from the query; None if it has none."""
    text = asked.get(name)
    return check_id(text, name) if text else None


def choice(asked: Mapping[str, str], name: str, choices: Iterable[str]) -> str | None:
    """One of the choices from the query; None if it has none."""
    text = asked.get(name)
    if text and text not in choices:
        raise _wrong(f"expected {name} to be one of {', '.join(choices)}")
    return text or None


def number(asked: Mapping[str, str], name: str, default: int, *, most: int = MAX_NUMBER) -> int:
    """A whole number from the query or the headers."""
    text = asked.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
        raise Problem(HTTPStatus.BAD_REQUEST, "wrong_number", f"expected {name} to be a whole number up to {most}")
    return int(text)


def check_ids(run_input: RunAgentInput) -> None:
    """Refuses an input with ids that a log, a header or a database would choke on."""
    check_id(run_input.thread_id, "threadId")
    check_id(run_input.run_id, "runId")
    for number, message in enumerate(run_input.messages):
        if message.id:
            check_id(message.id, f"messages.{number}.id", MAX_CALL_ID)
        if isinstance(message, ToolMessage):
            check_id(message.tool_call_id, f"messages.{number}.toolCallId", MAX_CALL_ID)
        elif isinstance(message, AssistantMessage):
            for place, call in enumerate(message.tool_calls or ()):
                if call.id:
                    check_id(call.id, f"messages.{number}.toolCalls.{place}.id", MAX_CALL_ID)
    for number, entry in enumerate(run_input.resume or ()):
        check_id(entry.interrupt_id, f"resume.{number}.interruptId", MAX_CALL_ID)
    for number, tool in enumerate(run_input.tools or ()):
        check_id(tool.name, f"tools.{number}.name")


async def _read(request: Request, settings: ServerSettings) -> bytes:
    most = settings.max_body_bytes
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if most is None or size <= most:
                    chunks.append(chunk)
                elif size > most + _DISCARDED:
                    raise _too_large(most, closes=True)
                else:
                    chunks.clear()
        if most is not None and size > most:
            raise _too_large(most)
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "incomplete", "The body ended too early.") from None
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"expected the body within {settings.body_seconds} s", closes=True
        ) from None
    return b"".join(chunks)


def _too_many(name: str, most: int, count: int) -> Problem:
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_many", f"expected at most {most} {name}, got {count}")


def _too_large(most: int, *, closes: bool = False) -> Problem:
    message = f"expected a body of at most {most} bytes"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message, closes=closes)


def _describe(error: ValidationError, within: str = "") -> str:
    """Where the errors are and what was expected, but not the input itself: it may be long, or a secret."""
    found = [
        f"{'.'.join(map(str, filter(None, (within, *each['loc'])))) or 'body'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
    return "expected AG-UI's RunAgentInput; " + "; ".join(found[:_SHOWN_ERRORS])[:1000] + more


def _wrong(message: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "wrong_input", message)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


# -- who sent a request, and what they own -------------------------------------------------------------------------------


class Operator:
    """What ``auth`` may return instead of a name: a user who sees everything, as every user does without ``auth``."""


Auth: TypeAlias = Callable[[Request], str | Operator | None | Awaitable[str | Operator | None]]
"""Turns a request into a principal, the name of the user who sent it; None to refuse it. Sync or async.

If it raises, the request fails with 500, the answer does not contain the error's text, and nothing runs.
"""


class Access:
    """With ``auth``, each principal sees only its own threads; without it there is one user, who sees everything.

    Only those runs of a thread are shown that belong to the ``host``'s app.
    """

    def __init__(self, auth: Auth | None, host: Host) -> None:
        self._auth = auth
        self._host = host
        self._journal = host.callstream.journal

    async def principal(self, request: Request) -> str | None:
        """The principal of the request; None for an operator, or if the server has no ``auth``."""
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
        """Refuses a thread that another principal began; a new one is open to all."""
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
        # Another principal's run can only be among them if it was refused after it started; it is not shown.
        own = await self._own(runs if principal is None else [row for row in runs if row.principal == principal])
        if not own:
            raise not_found("thread")
        return own

    async def known_runs(self, thread_id: str, principal: str | None) -> list[RunRow]:
        """The same, but empty if there is no such thread. One that is older than the journal is imported into it first."""
        if isinstance(self._host, Importer) and is_id(thread_id):
            await self._host.import_thread(thread_id, principal)
        try:
            return await self.runs_of(thread_id, principal)
        except Problem:
            return []

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


STREAMS: Final = "callstream.streams"
"""The key in a request's scope of a list for the stream that answers it. It is sent after the router has returned."""
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

        async def send_with_headers(message: AsgiMessage) -> None:
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
            while streams:  # one at most; it may last for hours and needs nothing that the router keeps alive
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
    """Whether the request comes from a page of another origin.

    Browsers that do not send Sec-Fetch-Site (older ones, and all of them over plain HTTP to names other than loopback's)
    send Origin instead.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None or origin is None:
        return site in _ELSEWHERE
    return origin.partition("://")[2].lower() != headers.get("host", "").strip().lower()


def _name_of(host: str) -> str:
    """The Host header without its port. Anything but a name with an optional port never matches an allowed host."""
    found = _HOST.fullmatch(host.strip().lower())
    return host if found is None else found["address"] or found["name"] or ""


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
