"""The gateway's app: requests of clients in, the same requests to their upstream, its answers back."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from callstream import Callstream, codec
from callstream.calls import Call
from callstream.errors import CallRejected, CallstreamError, JournalError, UsageError, WireError
from callstream.events import Question
from callstream.gateway.answers import (
    Answer,
    AnswerBroken,
    KeptAnswers,
    LiveAnswers,
    UpstreamFailed,
    UpstreamRefused,
    WrongOffset,
    answer_of,
    read_durable,
)
from callstream.gateway.conversation import Turn, Turns, comes_back, conversation_of, principal_of, request_key
from callstream.gateway.settings import GatewaySettings, Upstream, Upstreams, leaves_its_place
from callstream.gateway.whole import answer_id, whole_answer
from callstream.guards import Verdict
from callstream.journal import RunRow
from callstream.runtime import Run
from callstream.runtime.questions import Decision, QuestionRef, Questions
from callstream.server import ServerSettings, create_app
from callstream.server.requests import Operator
from callstream.server.streams import ClientConnection, break_off, connection_of, until_left
from callstream.tap import TapSettings
from callstream.tap.body import Delivering, Limits
from callstream.tap.clients import installed_library
from callstream.tap.exchange import Collapse
from callstream.wire import provider_at
from callstream.wire.provider import Provider
from callstream.wire.requests import Request as WireRequest
from callstream.wire.requests import RequestTurn as Said

logger = logging.getLogger("callstream.gateway")

KEY_HEADER: Final = "callstream-key"
_LINGER: Final = 60.0
_OK: Final = 200
_ERRORS: Final = 400
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
_FIRST: Final = asyncio.FIRST_COMPLETED
_MAX_IDLE: Final = 100
"""Idle connections to upstreams that are kept for the next request."""
_PIECE: Final = 64 * 1024
"""How many bytes are sent at once, of those that had arrived before."""


def create_gateway(
    callstream: Callstream,
    *,
    upstreams: Mapping[str, str] | None = None,
    key: str | None = None,
    settings: GatewaySettings | None = None,
    server: ServerSettings | None = None,
) -> Starlette:
    """Serves ``/anthropic``, ``/openai``, ``/gemini`` and the ``upstreams`` by name; the inspector is at ``/``.

    ``key``: clients have to send it as ``Callstream-Key``; ``Authorization`` is for the provider. Without a key, anyone who
    can reach the gateway may use it and read every run, so let it listen on loopback only. The app closes the Callstream
    when it ends.
    """
    gateway = _Gateway(callstream, Upstreams(upstreams), key, settings or GatewaySettings())
    app = create_app(_no_agent, callstream=callstream, auth=gateway.auth, settings=server, name="gateway")
    responses = Route("/responses/{response_id}", gateway.response, methods=["GET", "HEAD", "DELETE"])
    own = {route.path.split("/")[1] for route in [responses, *app.routes] if isinstance(route, Route | Mount)}
    for name in upstreams or ():
        if name in own:
            raise UsageError(f"expected an upstream's name that is not one of the gateway's own paths, got {name!r}")
    app.router.routes[:0] = [responses, _Door(gateway)]
    app.state.ends.push_async_callback(gateway.aclose)
    app.state.gateway = gateway
    return app


async def _no_agent(run_input: Any) -> None:
    """Does nothing: a person's answer to a guard's question is recorded by the server, and nothing else can be asked."""
    if not any(message.role == "tool" for message in run_input.messages[-1:]) and not run_input.resume:
        raise UsageError("this is a gateway for model calls; it has no agent of its own to run")


class _Door(BaseRoute):
    """Matches model calls, and any path of an upstream; everything else goes to the inspector and the API."""

    def __init__(self, gateway: _Gateway) -> None:
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
        connection = connection_of(scope)
        answering = asyncio.ensure_future(self._gateway.answer(Request(scope, receive)))
        leaving = asyncio.get_running_loop().create_future() if connection is None else connection.leaving()
        try:
            await asyncio.wait({answering, leaving}, return_when=_FIRST)
            if answering.done():
                await answering.result()(scope, receive, send)
        finally:
            answering.cancel()  # the client left before there was a response


class _Gateway:
    """Forwards requests and returns answers, and keeps what is needed for clients that come back."""

    def __init__(
        self, callstream: Callstream, upstreams: Upstreams, key: str | None, settings: GatewaySettings
    ) -> None:
        self._callstream = callstream
        self._observers = callstream.observers
        self._upstreams = upstreams
        self._key = key
        self._settings = settings
        self._turns = Turns(callstream)
        self._answers = LiveAnswers(window=settings.window, max_kept_bytes=settings.max_kept_bytes)
        self._kept = KeptAnswers(callstream, settings.window)
        self._stopping: set[asyncio.Task[None]] = set()
        self._is_closing = False
        guards = callstream.engine.guards
        guards.approve = self._approve
        self._questions = Questions(callstream.journal, partial(Run.start, callstream.engine, as_current=False))
        guards.patience = settings.approval_seconds
        # Calls that no guard watches are passed on byte for byte; all others whole, after they have been judged.
        collapse: Collapse = "known" if guards else "none"
        tap = TapSettings(
            collapse=collapse,
            stream_arguments=False,
            repair_gemini_signatures=False,
            limits=Limits(keep_alive_every=settings.keep_alive_seconds),
        )
        # A bare transport, not a client: a client would send one customer's cookies for the next, and follow redirects.
        self._library = installed_library()
        limits = self._library.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE)
        self._transport = callstream.transport(settings=tap, limits=limits)
        self._patience = self._library.Timeout(settings.answer_seconds).as_dict()

    @property
    def auth(self) -> Any:
        """The ``auth`` of the API and the inspector, whose clients send the key as a bearer token; None without a key."""
        if self._key is None:
            return None
        return lambda request: Operator() if self._has_key(request, request.headers.get("authorization", "")) else None

    def serves(self, path: str, method: str) -> bool:
        return self._upstreams.find(path, method) is not None or provider_at(path, method) is not None

    async def aclose(self) -> None:
        self._is_closing = True
        await self._answers.aclose(self._settings.shutdown_seconds)
        await self._kept.aclose()
        await self._turns.aclose()
        await self._transport.aclose()

    # -- a request --

    async def answer(self, request: Request) -> Response:
        # The path as it was sent: an escaped ? or # is part of it.
        sent = (request.scope.get("raw_path") or request.url.path.encode()).decode("latin-1")
        found = self._upstreams.find(sent, request.method)
        upstream, path = found or (None, sent.lstrip("/"))
        is_read = request.method == "POST" or request.query_params.get("stream") == "true"  # else it only looks one up
        provider = provider_at(f"/{path}", request.method) or provider_at(f"/v1/{path}", request.method)
        provider = provider if is_read else None
        wire = provider.wire if provider is not None else upstream.name if upstream is not None else ""
        if leaves_its_place(path):
            return _refusal(wire, 400, "invalid_request_error", "A path may not contain . or .. as a part.")
        if not self._has_key(request):
            return _refusal(wire, 401, "authentication_error", f"Send the gateway's key in the header {KEY_HEADER}.")
        if upstream is None:
            return _refusal(wire, 404, "not_found_error", self._upstreams.refusal(sent))
        if request.headers.get("upgrade"):
            return _upgrade_refused(wire)
        if self._is_closing:
            return _refusal(wire, 503, "overloaded_error", "The gateway is shutting down; try again.", retry=True)
        if len(self._answers) >= self._settings.max_answers:
            return _refusal(
                wire, 503, "overloaded_error", "Too many answers are under way; try again later.", retry=True
            )
        try:
            body = await self._read(request)
        except UsageError as error:
            return _refusal(wire, 413, "request_too_large", str(error))
        except TimeoutError:
            return _refusal(wire, 408, "timeout_error", "The request did not arrive completely.")
        try:
            return await self._deliver(_Asked(request, upstream, path, provider, body), wire)
        except WrongOffset as error:
            return _refusal(wire, 400, "invalid_request_error", str(error))
        except AnswerBroken as broken:
            cause = broken.__cause__ or broken
            return _refusal(
                wire, 502, "api_error", f"The upstream {upstream.name} did not answer ({type(cause).__name__})."
            )
        except CallRejected as rejected:
            return _refusal(wire, 403, "permission_error", f"{rejected.name} was refused: {rejected}")
        except WireError as error:
            return _refusal(
                wire, 502, "api_error", f"The answer of the upstream {upstream.name} does not pass: {error}"
            )
        except JournalError as error:
            logger.error("a model call could not be journaled: %s", error)
            return _refusal(wire, 503, "overloaded_error", "The journal is unavailable; try again later.", retry=True)

    async def response(self, request: Request) -> Response:
        """One answer, for the credential that asked for it: to read as a Durable Stream, or to stop."""
        principal = principal_of(dict(request.headers.items()), request.query_params)
        answer = await self._find(request.path_params["response_id"], principal)
        if answer is None or not self._has_key(request):
            return _refusal("", 404, "not_found_error", "There is no such answer, or it is no longer kept.")
        if request.method != "DELETE":
            return await read_durable(request, answer)
        answer.stop()
        return Response(None, 204)

    async def _deliver(self, asked: _Asked, wire: str) -> Response:
        attached = asked.headers.get("callstream-attach")
        if attached is not None:
            answer = await self._find(attached, asked.principal)
            if answer is None:
                return _refusal(
                    wire,
                    404,
                    "not_found_error",
                    "There is no such answer, or it is no longer kept.",
                    own={"x-should-retry": "false"},
                )
            self._observers.answer_attached(asked.upstream.name)
            answer.enter()
            return await self._reading(answer, asked.headers.get("callstream-offset", "0"))
        answer = await self._claim(asked)
        if answer is not None:
            self._observers.answer_attached(asked.upstream.name)
            try:
                if asked.is_streamed:
                    return await self._reading(answer)
                if (response := await self._reading_whole(answer, asked)) is not None:
                    return response
            except AnswerBroken:
                pass  # then it gets a new answer
        answer = self._ask(asked)
        answer.enter()
        return await self._reading(answer)

    async def _claim(self, asked: _Asked) -> Answer | None:
        """An answer to the same request that no client has received completely, already entered; None if there is none."""
        while (answer := self._answers.claim(asked.key)) is not None:
            if asked.is_streamed and not answer.is_streamed:
                return None
            answer.enter()
            kept_as, answer.kept_as = answer.kept_as, None
            if kept_as is None or await self._kept.claim(kept_as, asked.key or "", asked.principal):
                return answer
            answer.is_given = True  # another process has it
            answer.leave()
        row = await self._kept.find(asked.key, asked.principal)
        if row is None or not await self._kept.claim(row.run_id, asked.key or "", asked.principal):
            return None
        answer = self._fetch(row, asked.key)
        answer.enter()
        return answer

    async def _find(self, response_id: str, principal: str | None) -> Answer | None:
        """An answer by its id, for the credential that asked for it."""
        answer = self._answers.find(response_id, principal)
        if answer is None and (row := await self._kept.find_named(response_id, principal)) is not None:
            answer = self._fetch(row, None)
        return answer

    def _fetch(self, row: RunRow, key: str | None) -> Answer:
        """An answer that another process is reading, or has read."""
        answer = answer_of(row, key, self._settings.answer_seconds)
        return self._begin(answer, self._kept.read(answer, row.run_id))

    def _ask(self, asked: _Asked) -> Answer:
        settings = self._settings
        linger = settings.linger
        if linger is None:
            returns = asked.is_ours or comes_back(asked.headers) or asked.upstream.bills_to_the_end
            linger = settings.answer_seconds if asked.is_ours else _LINGER if returns else 0.0
        response_id = self._callstream.new_id("response")
        answer = Answer(response_id, asked.key, asked.principal, is_streamed=asked.is_streamed, linger=linger)
        return self._begin(answer, self._relay(answer, asked))

    def _begin(self, answer: Answer, work: Coroutine[Any, Any, None]) -> Answer:
        answer.on_left = self._kept.keep
        answer.give_up = self._give_up
        self._answers.add(answer)
        answer.task = asyncio.create_task(work, name=f"callstream answer {answer.response_id}")
        return answer

    def _give_up(self, answer: Answer) -> None:
        """Stops an answer that was read for long enough without a reader, unless another process has claimed it."""

        async def stop() -> None:
            try:
                is_claimed = await self._kept.is_claimed(answer)
            except JournalError:
                is_claimed = False
            if not is_claimed and not answer.readers:
                answer.stop()

        self._stopping.add(task := asyncio.create_task(stop()))
        task.add_done_callback(self._stopping.discard)

    async def _reading(self, answer: Answer, offset: str = "0") -> Response:
        """The answer from an offset on, for a reader that has entered."""
        try:
            await answer.head()
            return _Delivery(answer, answer.offset(offset), self._settings.stall_seconds)
        except BaseException:
            answer.leave()
            raise

    async def _reading_whole(self, answer: Answer, asked: _Asked) -> Response | None:
        """A streamed answer that its client did not receive completely, for a client that asks again without streaming."""
        if not answer.is_streamed:
            return await self._reading(answer)
        try:
            await answer.over()
            body = None
            if asked.provider is not None and not answer.has_failed:
                body = whole_answer(asked.provider.wire, answer.content)
            if body is None:
                return None
            answer.is_given = True
            left_out = ("content-type", "content-length", "cache-control")
            kept = {name: value for name, value in answer.headers if name.lower() not in left_out}
            return Response(body, answer.status, kept, "application/json")
        finally:
            answer.leave()

    # -- the upstream --

    async def _relay(self, answer: Answer, asked: _Asked) -> None:
        """Reads one answer from its upstream to the end, in the run that it belongs to."""
        turn: Turn | None = None
        error: BaseException | None = None
        failure: UpstreamRefused | UpstreamFailed | None = None
        said = asked.said()
        try:
            if asked.provider is not None:
                ids = conversation_of(asked.headers, asked.json)
                turn = await self._turns.begin(ids, asked.principal, said, asked.rest_of())
                turn.run.make_current()
            await self._pass_on(answer, asked, turn)
            if turn is not None and asked.provider is not None and answer.status == _OK:
                self._turns.remember(turn, said, answer_id(asked.provider.wire, answer.content))
            elif answer.status >= _ERRORS:
                failure = UpstreamRefused(f"{asked.upstream.name} answered {answer.status}")
        except BaseException as broken:
            error = broken
            if not isinstance(broken, Exception):
                raise
            if not isinstance(broken, CallstreamError):
                logger.warning("the answer of %s broke off: %s", asked.upstream.name, type(broken).__name__)
            if isinstance(broken, self._library.HTTPError):
                failure = UpstreamFailed(f"{asked.upstream.name}: {type(broken).__name__}: {broken}")
        finally:
            answer.end(error)
            if turn is not None:
                await self._turns.answered(turn, failure or error)

    async def _pass_on(self, answer: Answer, asked: _Asked, turn: Turn | None) -> None:
        began = perf_counter()
        url = asked.upstream.target(asked.path, asked.query)
        request = self._library.Request(
            asked.method, url, headers=asked.forwarded, content=asked.body, extensions={"timeout": self._patience}
        )
        response = await self._transport.handle_async_request(request)
        stream = response.stream
        try:
            if isinstance(stream, Delivering):
                stream.deliver_to(partial(self._take, answer))
            chunks = aiter(stream)
            data = await anext(chunks, None)
            # Not before the first byte: if the request fails before that, the client's own SDK retries it.
            length = response.headers.get("content-length")
            own = _own_headers(answer, turn)
            raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
            kept = [(name, value) for name, value in raw if name.lower() not in _NOT_RETURNED]
            answer.begin(response.status_code, [*kept, *own, *([] if length is None else [("content-length", length)])])
            self._observers.answer_began(asked.upstream.name, response.status_code, perf_counter() - began)
            while data is not None:
                answer.append(data)
                if answer.size > self._settings.max_answer_bytes:
                    raise WireError(f"expected an answer of at most {self._settings.max_answer_bytes} bytes, got more")
                data = await anext(chunks, None)
        finally:
            await stream.aclose()

    def _take(self, answer: Answer, data: bytes) -> bool:
        """Appends bytes straight away, if the answer has begun and stays within its limit; returns whether it did."""
        if not answer.status or answer.size + len(data) > self._settings.max_answer_bytes:
            return False
        answer.append(data)
        return True

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        idle = self._settings.stall_seconds
        async with asyncio.timeout(idle) as limit:
            async for data in request.stream():
                body += data
                if len(body) > self._settings.max_body_bytes:
                    raise UsageError(f"The request is longer than {self._settings.max_body_bytes} bytes.")
                limit.reschedule(asyncio.get_running_loop().time() + idle)
        return bytes(body)

    async def _approve(self, call: Call, verdict: Verdict) -> str | None:
        """Asks a person to approve a call. Returns None if the tool may run, else why not."""
        engine = self._callstream.engine
        run = engine.active_run(call.run_id or "")
        beside, principal = (call.call_id, None) if run is None else (run.thread_id, run.principal)
        asked = QuestionRef(engine.new_id("call"), beside, principal)
        about = {"tool": call.name, "arguments": call.args, "why": verdict.reason}
        message = f"May {call.name} run? {verdict.reason}"
        await self._questions.ask(asked, about, Question("confirmation", message, about=call.call_id))
        try:
            decision = Decision.of(await self._questions.answer(asked))
        except asyncio.CancelledError:
            await self._questions.withdraw(asked)
            raise
        if decision.is_yes:
            return None
        return f"a person refused it ({decision.said.get('comment') or decision.error or verdict.reason})"

    def _has_key(self, request: Request, token: str = "") -> bool:
        key = request.headers.get(KEY_HEADER) or token.removeprefix("Bearer ")
        return self._key is None or hmac.compare_digest(key.encode(), self._key.encode())


class _Asked:
    """A client's request."""

    def __init__(self, request: Request, upstream: Upstream, path: str, provider: Provider | None, body: bytes) -> None:
        self.method = request.method
        self.upstream = upstream
        self.path = path
        self.query = request.url.query
        self.provider = provider
        self.body = body
        self.headers = dict(request.headers.items())
        self._raw = request.headers.raw
        self.json = _json(body) if provider is not None else None
        self.principal = principal_of(self.headers, QueryParams(self.query))
        self.is_ours = any(name.startswith(_OWN) and name != KEY_HEADER for name in self.headers)
        self.key = request_key(self.principal, upstream.name, path, self.json)
        self._request = WireRequest(f"/{path}", body)
        self.is_streamed = provider is not None and provider.is_streamed(self._request)

    @property
    def forwarded(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers as they came, without those of this connection and those meant for the gateway."""
        named = {each.strip().lower() for each in self.headers.get("connection", "").split(",")}
        kept = [(raw, value, raw.decode("latin-1").lower()) for raw, value in self._raw]
        return [
            *(
                (raw, value)
                for raw, value, name in kept
                if name not in _NOT_FORWARDED and name not in named and not name.startswith((_OWN, "x-forwarded-"))
            ),
            (b"accept-encoding", b"identity"),
        ]

    def rest_of(self) -> str | None:
        """The name of the answer whose rest this request asks for; None if it asks for a new one."""
        return None if self.provider is None else self.provider.continued(self._request)

    def said(self) -> list[Said]:
        """The conversation in the request."""
        if self.provider is None or not self.body:
            return []
        try:
            return list(self.provider.turns(self.body))
        except WireError:
            return []  # refusing it is up to the provider


class _Delivery(Response):
    """An answer on its way to one client, from an offset on. If it broke off, the connection is broken instead of ended.

    ``patience``: after the client has read nothing for this many seconds, or at most twice as many, it is cut off.
    """

    def __init__(self, answer: Answer, offset: int, patience: float) -> None:
        super().__init__(status_code=answer.status)
        self._answer = answer
        self._offset = offset
        self._patience = patience
        self._is_sending = self._is_stuck = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        connection = connection_of(scope)
        leaving = asyncio.ensure_future(until_left(receive) if connection is None else connection.leaving())
        sending = asyncio.ensure_future(self._send(send, connection, leaving))
        try:
            while not (await asyncio.wait({sending, leaving}, timeout=self._patience, return_when=_FIRST))[0]:
                if self._is_stuck and connection is not None:
                    connection.cut()
                self._is_stuck = self._is_sending
            if sending.done():
                sending.result()
        except AnswerBroken:
            await break_off(connection, leaving)
        finally:
            sending.cancel()
            leaving.cancel()
            answer.leave()

    async def _send(self, send: Send, connection: ClientConnection | None, leaving: asyncio.Future[None]) -> None:
        answer = self._answer
        sent = self._offset
        kept = [(name, value) for name, value in answer.headers if not self._offset or name.lower() != "content-length"]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})

        def push(data: bytes) -> bool:
            nonlocal sent
            if connection is None or leaving.done() or not connection.is_free:
                return False
            connection.write(data)
            sent += len(data)
            answer.arrived = max(answer.arrived, sent)
            return True

        has_length = any(name.lower() == "content-length" for name, _ in kept)
        async with aclosing(answer.read(self._offset, None if has_length else push)) as chunks:
            async for data in chunks:
                for start in range(0, len(data), _PIECE):
                    self._is_sending = True
                    piece = data[start : start + _PIECE]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    self._is_sending = self._is_stuck = False
                    if not leaving.done():  # servers accept data for a connection that is lost, and drop it
                        sent += len(piece)
                        answer.arrived = max(answer.arrived, sent)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _own_headers(answer: Answer, turn: Turn | None) -> list[tuple[str, str]]:
    own = [("callstream-response", answer.response_id), ("callstream-stream", f"/responses/{answer.response_id}")]
    if turn is not None:
        own += [("callstream-run", turn.run.run_id), ("callstream-thread", turn.run.thread_id)]
    return [(name, value) for name, value in own if value.isascii()]


def _json(body: bytes) -> Any:
    try:
        return codec.decode(body)
    except (ValueError, RecursionError):
        return None


def _upgrade_refused(wire: str) -> Response:
    """Clients that try a WebSocket first fall back to HTTP only for this status."""
    return _refusal(wire, 426, "upgrade_required", "This gateway speaks HTTP without WebSockets.")


def _refusal(
    wire: str, status: int, kind: str, message: str, *, retry: bool = False, own: Mapping[str, str] | None = None
) -> Response:
    """An error from the gateway itself, in the form that the wire's SDKs expect."""
    if wire.startswith("anthropic"):
        error: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    elif wire.startswith("gemini"):
        error = {"error": {"code": status, "message": message, "status": kind.upper()}}
    elif wire.startswith(("bedrock", "cohere")):
        error = {"message": message}
    elif wire.startswith("ollama"):
        error = {"error": message}
    else:
        error = {"error": {"message": message, "type": kind, "code": kind}}
    headers = {**({"retry-after": "5"} if retry else {}), **(own or {})}
    return Response(json.dumps(error), status, headers, "application/json")
