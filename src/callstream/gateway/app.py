"""The gateway's app: requests of clients in, the same requests to their upstream, its answers back."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from callstream import Callstream
from callstream.errors import CallstreamError, JournalError, UsageError, WireError
from callstream.events import RequestEvent
from callstream.gateway.answers import Answer, AnswerBroken, Answers
from callstream.gateway.approvals import Approvals
from callstream.gateway.conversation import comes_back, conversation_of, principal_of, request_key
from callstream.gateway.durable import read_durable
from callstream.gateway.settings import GatewaySettings
from callstream.gateway.turns import Turn, Turns
from callstream.gateway.upstreams import Upstream, Upstreams
from callstream.gateway.whole import whole_answer
from callstream.server import ServerSettings, create_app
from callstream.tap import TapSettings
from callstream.tap.reading import Collapse
from callstream.wire import provider_at, results_in
from callstream.wire.provider import Provider
from callstream.wire.requests import Request as WireRequest

logger = logging.getLogger("callstream.gateway")

KEY_HEADER: Final = "callstream-key"
_LINGER: Final = 60.0
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "content-length", "accept-encoding", "forwarded", "expect"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {"date", "server", "content-length"}
_OWN: Final = "callstream-"


def create_gateway(
    callstream: Callstream,
    *,
    upstreams: Mapping[str, str] | None = None,
    key: str | None = None,
    settings: GatewaySettings | None = None,
    server: ServerSettings | None = None,
) -> Starlette:
    """Serves ``/anthropic``, ``/openai``, ``/gemini`` and the ``upstreams`` by name; the inspector is at ``/``.

    ``key``: what clients have to send as ``Callstream-Key``; ``Authorization`` is the provider's. Without one, anyone
    who can reach the gateway may use it and read every run, so let it listen on loopback only. The app closes the Callstream
    when it ends.
    """
    gateway = Gateway(callstream, Upstreams(upstreams), key, settings or GatewaySettings())
    app = create_app(_no_agent, callstream=callstream, auth=gateway.auth, settings=server, name="gateway")
    responses = Route("/responses/{response_id}", gateway.response, methods=["GET", "HEAD", "DELETE"])
    app.router.routes[:0] = [responses, _Door(gateway)]
    inner = app.state.close

    async def close() -> None:
        await gateway.aclose()
        await inner()

    app.state.close = close
    app.state.gateway = gateway
    return app


async def _no_agent(run_input: Any) -> None:
    """A person's answer to a question of a guard is recorded by itself; there is nothing else to do here."""
    if not any(message.role == "tool" for message in run_input.messages[-1:]) and not run_input.resume:
        raise UsageError("this is a gateway for model calls; it has no agent of its own to run")


class _Door(BaseRoute):
    """Matches what belongs to an upstream, whatever the method; everything else is the inspector's and the API's."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_served = scope["type"] in ("http", "websocket") and self._gateway.serves(
            scope["path"], scope.get("method", "GET")
        )
        return (Match.FULL, {"endpoint": self._gateway.answer}) if is_served else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(_upgrade_refused(scope["path"]))
            return
        response = await self._gateway.answer(Request(scope, receive))
        await response(scope, receive, send)


class Gateway:
    """Passes requests on and answers back, and keeps what is needed for clients that come back."""

    def __init__(
        self, callstream: Callstream, upstreams: Upstreams, key: str | None, settings: GatewaySettings
    ) -> None:
        self._callstream = callstream
        self._upstreams = upstreams
        self._key = key
        self._settings = settings
        self._turns = Turns(callstream)
        self._answers = Answers(window=settings.window, max_kept_bytes=settings.max_kept_bytes)
        guards = callstream.engine.guards
        guards.approve = Approvals(callstream).ask
        guards.patience = settings.approval_seconds
        # Calls that no guard watches pass byte for byte; all others whole, when they were judged.
        collapse: Collapse = "known" if guards else "none"
        tap = TapSettings(collapse=collapse, stream_arguments=False, repair_gemini_signatures=False)
        self._client = callstream.http_client(settings=tap, timeout=settings.answer_seconds, follow_redirects=False)

    @property
    def auth(self) -> Any:
        """Who may use the API and the inspector; None where no key is asked for."""
        if self._key is None:
            return None
        return lambda request: "operator" if self._has_key(request) else None

    def serves(self, path: str, method: str) -> bool:
        return self._upstreams.find(path, method) is not None

    async def aclose(self) -> None:
        await self._answers.aclose()
        await self._turns.aclose()
        await self._client.aclose()

    # -- a request --

    async def answer(self, request: Request) -> Response:
        found = self._upstreams.find(request.url.path, request.method)
        assert found is not None
        upstream, path = found
        provider = provider_at(f"/{path}", request.method) or provider_at(f"/v1/{path}", request.method)
        wire = upstream.name if provider is None else provider.wire
        if not self._has_key(request):
            return _refusal(wire, 401, "authentication_error", f"Send the gateway's key in the header {KEY_HEADER}.")
        if request.headers.get("upgrade"):
            return _upgrade_refused(wire)
        if len(self._answers) >= self._settings.max_answers:
            return _refusal(
                wire, 503, "overloaded_error", "Too many answers are under way; try again later.", retry=True
            )
        try:
            body = await self._read(request)
        except UsageError as error:
            return _refusal(wire, 413, "request_too_large", str(error))
        try:
            return await self._deliver(_Asked(request, upstream, path, provider, body), wire)
        except AnswerBroken as broken:
            cause = broken.__cause__ or broken
            return _refusal(wire, 502, "api_error", f"The upstream did not answer ({type(cause).__name__}).")
        except JournalError as error:
            logger.error("a model call could not be journaled: %s", error)
            return _refusal(wire, 503, "overloaded_error", "The journal is unavailable; try again later.", retry=True)

    async def response(self, request: Request) -> Response:
        """One answer, for the credential that asked for it: to read as a Durable Stream, or to stop."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = self._answers.find(request.path_params["response_id"], principal_of(headers, request.query_params))
        if answer is None or not self._has_key(request):
            return _refusal("", 404, "not_found_error", "There is no such answer any more.")
        if request.method != "DELETE":
            return await read_durable(request, answer)
        answer.stop()
        return Response(None, 204)

    async def _deliver(self, asked: _Asked, wire: str) -> Response:
        attached = asked.headers.get("callstream-attach")
        if attached is not None:
            answer = self._answers.find(attached, asked.principal)
            if answer is None:
                return _refusal(
                    wire, 404, "not_found_error", "There is no such answer any more.", own={"x-should-retry": "false"}
                )
            return await self._reading(answer, asked, _offset(asked.headers.get("callstream-offset")))
        answer = self._answers.claim(asked.key)
        if answer is not None and answer.is_streamed and not asked.is_streamed:
            return await self._reading_whole(answer, asked)
        if answer is None or answer.is_streamed != asked.is_streamed:
            answer = self._ask(asked)
        return await self._reading(answer, asked)

    def _ask(self, asked: _Asked) -> Answer:
        settings = self._settings
        linger = settings.linger
        if linger is None:
            returns = asked.is_ours or comes_back(asked.headers) or asked.upstream.bills_to_the_end
            linger = settings.answer_seconds if asked.is_ours else _LINGER if returns else 0.0
        response_id = self._callstream.new_id("response")
        answer = Answer(response_id, asked.key, asked.principal, is_streamed=asked.is_streamed, linger=linger)
        self._answers.add(answer)
        answer.task = asyncio.create_task(self._relay(answer, asked), name=f"callstream answer {response_id}")
        return answer

    async def _reading(self, answer: Answer, asked: _Asked, offset: int = 0) -> Response:
        answer.enter()
        try:
            await answer.head()
        except BaseException:
            answer.leave()
            raise
        return _Delivery(answer, offset)

    async def _reading_whole(self, answer: Answer, asked: _Asked) -> Response:
        """A stream that its client did not get to the end, for one that asks for the same without a stream."""
        answer.enter()
        try:
            async with aclosing(answer.read()) as chunks:
                async for _ in chunks:
                    pass
            body = None if asked.provider is None else whole_answer(asked.provider.wire, answer.content)
            if body is not None:
                answer.was_delivered = True
                kept = [
                    (name, value)
                    for name, value in answer.headers
                    if name.lower() not in ("content-type", "cache-control")
                ]
                return Response(body, answer.status, dict(kept), "application/json")
        except AnswerBroken:
            pass  # then it gets an answer of its own
        finally:
            answer.leave()
        return await self._reading(self._ask(asked), asked)

    # -- the upstream --

    async def _relay(self, answer: Answer, asked: _Asked) -> None:
        """Reads one answer from its upstream, in the run that it belongs to, to its end."""
        turn: Turn | None = None
        error: BaseException | None = None
        try:
            if asked.provider is not None:
                turn = await self._turns.begin(
                    conversation_of(asked.headers, asked.json), asked.principal, asked.said()
                )
                turn.run.make_current()
            await self._pass_on(answer, asked, turn)
        except BaseException as broken:
            error = broken
            if not isinstance(broken, Exception):
                raise
            if not isinstance(broken, CallstreamError):
                logger.warning("the answer of %s broke off: %s", asked.upstream.name, type(broken).__name__)
        finally:
            answer.end(error)
            if turn is not None:
                await self._turns.answered(turn, error)

    async def _pass_on(self, answer: Answer, asked: _Asked, turn: Turn | None) -> None:
        request = self._client.build_request(
            asked.method, asked.upstream.target(asked.path, asked.query), headers=asked.forwarded, content=asked.body
        )
        response = await self._client.send(request, stream=True)
        try:
            chunks = response.aiter_raw()
            data = await anext(chunks, None)
            # Not before the first byte: what fails before it is asked again by the client's own SDK.
            length = response.headers.get("content-length")
            own = _own_headers(answer, turn)
            kept = [
                (name, value) for name, value in response.headers.multi_items() if name.lower() not in _NOT_RETURNED
            ]
            answer.begin(response.status_code, [*kept, *own, *([] if length is None else [("content-length", length)])])
            while data is not None:
                answer.append(data)
                if answer.size > self._settings.max_answer_bytes:
                    raise WireError(f"expected an answer of at most {self._settings.max_answer_bytes} bytes, got more")
                data = await anext(chunks, None)
        finally:
            await response.aclose()

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for data in request.stream():
            body += data
            if len(body) > self._settings.max_body_bytes:
                raise UsageError(f"The request is longer than {self._settings.max_body_bytes} bytes.")
        return bytes(body)

    def _has_key(self, request: Request) -> bool:
        return self._key is None or hmac.compare_digest(
            request.headers.get(KEY_HEADER, "").encode(), self._key.encode()
        )


class _Asked:
    """A client's request."""

    def __init__(self, request: Request, upstream: Upstream, path: str, provider: Provider | None, body: bytes) -> None:
        self.method = request.method
        self.upstream = upstream
        self.path = path
        self.query = request.url.query
        self.provider = provider
        self.body = body
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.json = _json(body) if provider is not None else None
        self.principal = principal_of(self.headers, QueryParams(self.query))
        self.is_ours = any(name.startswith(_OWN) and name != KEY_HEADER for name in self.headers)
        self.key = request_key(self.principal, upstream.name, path, self.json)
        self.is_streamed = provider is not None and provider.is_streamed(WireRequest(f"/{path}", body))

    @property
    def forwarded(self) -> Sequence[tuple[str, str]]:
        named = {each.strip().lower() for each in self.headers.get("connection", "").split(",")}
        return [
            (name, value)
            for name, value in self.headers.items()
            if name not in _NOT_FORWARDED and name not in named and not name.startswith((_OWN, "x-forwarded-"))
        ]

    def said(self) -> list[RequestEvent]:
        if self.provider is None or not self.body:
            return []
        try:
            return results_in(self.provider.wire, self.body)
        except WireError:
            return []  # the provider's to refuse


class _Delivery(Response):
    """An answer on its way to one client, from a byte on. What has no end breaks the connection, and is not ended."""

    def __init__(self, answer: Answer, offset: int) -> None:
        super().__init__(status_code=answer.status)
        self._answer = answer
        self._offset = offset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # raises what broke the answer off; the server then closes the connection
                answer.was_delivered = True
        finally:
            sending.cancel()
            leaving.cancel()
            answer.leave()

    async def _send(self, send: Send) -> None:
        answer = self._answer
        skipped = {"content-length"} if self._offset else set()
        raw = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers if name not in skipped
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        async with aclosing(answer.read(self._offset)) as chunks:
            async for data in chunks:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _own_headers(answer: Answer, turn: Turn | None) -> list[tuple[str, str]]:
    own = [("callstream-response", answer.response_id), ("callstream-stream", f"/responses/{answer.response_id}")]
    if turn is not None:
        own += [("callstream-run", turn.run.run_id), ("callstream-thread", turn.run.thread_id)]
    return [(name, value) for name, value in own if value.isascii()]


def _offset(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _upgrade_refused(wire: str) -> Response:
    """Clients that try a WebSocket first fall back to HTTP for this status, and for no other."""
    return _refusal(wire, 426, "upgrade_required", "This gateway speaks HTTP without WebSockets.")


def _refusal(
    wire: str, status: int, kind: str, message: str, *, retry: bool = False, own: Mapping[str, str] | None = None
) -> Response:
    """An error of the gateway's own, in the form in which the wire's SDKs expect theirs."""
    if wire.startswith("anthropic"):
        error: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    elif wire.startswith("gemini"):
        error = {"error": {"code": status, "message": message, "status": kind.upper()}}
    else:
        error = {"error": {"message": message, "type": kind, "code": kind}}
    headers = {**({"retry-after": "5"} if retry else {}), **(own or {})}
    return Response(json.dumps(error), status, headers, "application/json")
