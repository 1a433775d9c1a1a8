"""The routes of runs: run, join, follow, stop; AG-UI's, and the same as CopilotKit's browser core asks for them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote

from ag_ui.core import RunAgentInput
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, compile_path

from callstream.agui import Position, View
from callstream.agui.events import PROTOCOL_VERSION, MessagesSnapshot
from callstream.agui.messages import answers_in, digest_of, lost_answers, without_answers_to
from callstream.agui.presentation import OlderClient, Presenter
from callstream.errors import AnswerRefused, Compacted, ShuttingDown, ThreadBusy, TooMany
from callstream.guards import APPROVAL
from callstream.journal import RunRow
from callstream.runtime import Driver, DriverSettings, Limit, Permit, RunRequest, TextLimits
from callstream.runtime.answers import Directory
from callstream.runtime.questions import may_have_questions
from callstream.server.agent import AnswersHost, AppHost, Host, answered_in
from callstream.server.health import JournalHealth
from callstream.server.requests import (
    Access,
    Problem,
    check_id,
    json_body,
    json_response,
    not_found,
    number,
    query_id,
    read_input,
    remote_parent,
    shutting_down,
)
from callstream.server.settings import ServerSettings
from callstream.server.streams import Client, EventStream, Frame, Joins, Pulse, live, raw, resume

_MAX_REASON: Final = 500
_RETRY_SECONDS: Final = 5
_BEGINNING: Final = "-1"
"""The offset before a run's first event."""


class IdRoute(Route):
    """A route whose ids are chosen by a client or provider: a slash in one arrives decoded, and is part of the id."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.path_regex, self.path_format, self.param_convertors = compile_path(re.sub(r"{(\w+)}", r"{\1:path}", path))


def driver_for(host: Host, settings: ServerSettings, *, logs_failures: bool) -> Driver:
    """The driver that works on the runs of a host, configured by the server's settings."""
    return Driver(
        host.callstream.engine,
        DriverSettings(
            busy_wait=settings.busy_wait if settings.when_busy == "wait" else 0.0,
            run_seconds=settings.run_seconds,
            limits=TextLimits(max_args_bytes=settings.max_args_bytes, max_run_bytes=settings.max_run_bytes),
            leave_seconds=settings.disconnect_grace if settings.on_disconnect == "stop" else None,
            shutdown_seconds=settings.shutdown_seconds,
            logs_failures=logs_failures,
        ),
        Limit(settings.max_runs, settings.max_runs_per_principal),
    )


class StreamRoute(IdRoute):
    """A route without HEAD: its answer would wait for the end of the run."""

    def __init__(self, path: str, endpoint: Callable[..., Any], methods: Sequence[str] = ("GET",)) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = set(methods)


class RunRoutes:
    """``driver`` holds the runs of this process; everything else is in the journal.

    The routes of other protocols show the same runs (``journal``, ``view``) to the same clients (``access``, ``settings``).
    """

    def __init__(
        self,
        host: Host,
        driver: Driver,
        health: JournalHealth,
        access: Access,
        settings: ServerSettings,
        view: View | None = None,
    ) -> None:
        self._host = host
        self._answering = AnswersHost(host.callstream)
        self._driver = driver
        self._health = health
        self.guarded = health.guarded
        self.journal = host.callstream.journal
        self.access = access
        self.settings = settings
        self.view = view or host.view
        self._joins = Joins(self.journal, self.view)
        self._pulse = Pulse(settings)
        self._observers = host.callstream.observers
        self._stream_limit = Limit(settings.max_streams, settings.max_streams_per_principal, self._count_streams)

    def routes(self) -> list[Route]:
        guarded = self.guarded
        return [
            StreamRoute("/agui", guarded(self.agui), ["GET", "POST"]),  # one route, so that a 405 names both methods
            IdRoute("/threads/{thread_id}/connect", guarded(self.connect), methods=["POST"]),
            StreamRoute("/runs/{run_id}/events", guarded(self.events)),
            IdRoute("/runs/{run_id}/stop", guarded(self.stop), methods=["POST"]),
        ]

    async def agui(self, request: Request) -> Response:
        return await (self.run if request.method == "POST" else self.rejoin)(request)

    async def run(self, request: Request) -> Response:
        """Runs the agent. A client may leave the stream; the run continues and can be joined."""
        principal = await self.access.principal(request)
        run_input = await read_input(request, self.settings)
        with remote_parent(request.headers):
            return await self.begin(run_input, principal, last_event_id=request.headers.get("last-event-id"))

    async def begin(
        self,
        run_input: RunAgentInput,
        principal: str | None,
        *,
        owner: str | None = None,
        last_event_id: str | None = None,
        is_older: bool | None = None,
    ) -> Response:
        """Runs the input. A request that is sent again gets the run that it began the first time, never a new one.

        ``owner``: who must own that run, if the host and not the server knows its users. ``last_event_id``: how far the
        client has read the run; it gets the rest. ``is_older``: whether the client is older than AG-UI 1.0; by default the
        settings decide that for clients that declare no version.
        """
        with self.permit(principal) as permit:
            presentation = self._presentation(run_input, is_older=self._is_older(run_input.protocol_version, is_older))
            if last_event_id:
                await self.access.check_thread(run_input.thread_id, principal)
                asked = self._asked(run_input, owner or principal)
                row = await asked.earlier_run(self.journal, of_any_input=True)
                if row is None:
                    raise not_found("run")
                client = self._client(presentation, row.run_id, run_input)
                rest = self._rest(row, _position(last_event_id, row), client)
                return self.stream(rest, row.run_id, permit, client=client)
            run_id = await self.start(run_input, principal, owner=owner)
            client = self._client(presentation, run_id, run_input)
            frames = live(self.journal, run_id, self.view, client)
            return self.stream(frames, run_id, permit, client=client)

    async def start(self, run_input: RunAgentInput, principal: str | None, *, owner: str | None = None) -> str:
        """Starts a run of the input, or finds the one that the same request began before. Returns its id."""
        check = partial(self.access.check_thread, run_input.thread_id, principal)
        await check()
        asked = self._asked(run_input, owner or principal)
        host = self._answering if await self._answers_questions(run_input) else self._host
        begin = partial(host.begin, run_input, principal, exclusive=True)
        return await self._begin(self._driver.begin(begin, request=asked, principal=principal, check=check))

    async def _answers_questions(self, run_input: RunAgentInput) -> bool:
        """Whether it only answers questions that were asked beside a run: then the agent itself has nothing to do."""
        named = answered_in(run_input) if may_have_questions(run_input.thread_id) else []
        calls = [await self.journal.call(call_id) for call_id in named]
        return bool(named) and all(call is not None and call.name == APPROVAL for call in calls)

    def _asked(self, run_input: RunAgentInput, owner: str | None) -> RunRequest:
        app = self._host.app_of(run_input) if isinstance(self._host, AppHost) else None
        return RunRequest(run_input.thread_id, run_input.run_id, digest_of(run_input), owner, app)

    async def _begin(self, beginning: Coroutine[Any, Any, str]) -> str:
        """A write that is under way cannot be undone; if the journal is unavailable, the request no longer waits for it."""
        task = asyncio.create_task(beginning)
        try:
            with _explain("active runs", "too_many_runs"):
                return await asyncio.shield(task)
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _rest(self, row: RunRow, position: Position, client: Client) -> AsyncGenerator[Frame, None]:
        """The part of a run that a client has not read; if that is no longer known, the whole thread up to the run's end."""
        try:
            async for frame in resume(self.journal, row.run_id, position, self.view, client):
                yield frame
        except Compacted:
            async for part in self._joins.join(await self._runs_up_to(row.run_id), client):
                yield part

    def _client(self, presentation: Presenter | None, run_id: str, run_input: RunAgentInput | None = None) -> Client:
        """A client that follows a run. ``run_input``: its own, with messages that may include some that no run knows."""
        if run_input is None:
            return Client(presentation, lambda seq, _: self._snapshot(run_id, seq))

        async def snapshot(seq: int, doubted: Collection[str]) -> MessagesSnapshot | None:
            row = await self.access.run(run_id, None)
            directory = Directory(self.journal, row.thread_id, row.principal)
            lost = lost_answers(run_input, {call_id: await directory.find(call_id) for call_id in doubted})
            if doubted and not lost:
                return None
            return await self._snapshot(run_id, seq, without_answers_to(lost, run_input.messages))

        return Client(presentation, snapshot, [answer.call_id for answer in answers_in(run_input)])

    async def _snapshot(self, run_id: str, seq: int, own: Iterable[Any] = ()) -> MessagesSnapshot:
        return await self._joins.snapshot(await self._runs_up_to(run_id), seq, own)

    async def _runs_up_to(self, run_id: str) -> list[RunRow]:
        """The runs of a run's thread, up to that run, the oldest first."""
        row = await self.access.run(run_id, None)
        rows = await self.access.runs_of(row.thread_id, row.principal)
        return rows[[each.run_id for each in rows].index(run_id) :][::-1]

    async def connect(self, request: Request) -> Response:
        """Joins a thread: its past, then its last run live. The body may declare the client's protocol version.

        ``known`` in the body is the last run that the client has seen to its end, or null. If it is given and there is
        nothing else to see, the answer is 204. A 404 would appear in the browser's log, and without ``known`` a page that
        looks for new runs would be sent the whole thread again.
        """
        principal = await self.access.principal(request)
        thread_id = request.path_params["thread_id"]
        body = await json_body(request, self.settings, optional=True)
        declares = body.get("protocolVersion") if isinstance(body, dict) and "threadId" in body else PROTOCOL_VERSION
        is_older = self._is_older(declares)
        looks_again = isinstance(body, dict) and "known" in body
        joined = await self.join(thread_id, principal, is_older=is_older, known=body["known"] if looks_again else None)
        if joined is None and not looks_again:
            raise not_found("thread")
        return joined or Response(status_code=HTTPStatus.NO_CONTENT)

    async def join(
        self, thread_id: str, principal: str | None, *, is_older: bool, known: str | None = None
    ) -> Response | None:
        """One of the principal's threads: its past, then its last run live. None if there is no such thread, or if there is
        nothing to see because its last run is ``known`` and over.
        """
        with self.permit(principal) as permit:
            rows = await self.access.known_runs(thread_id, principal)
            if not rows or (rows[0].run_id == known and rows[0].outcome is not None):
                return None
            client = self._client(self._presentation(None, is_older=is_older), rows[0].run_id)
            return self.stream(self._joins.join(rows[::-1], client), rows[0].run_id, permit, client=client)

    async def rejoin(self, request: Request) -> Response:
        """TanStack AI's requests when a page is loaded: which run to join (``threadId``), then that run (``runId``).

        The run is sent as to any client that joins, after the thread's past, so there are no messages to load beforehand.
        """
        principal = await self.access.principal(request)
        asked = request.query_params
        run_id, thread_id = query_id(asked, "runId"), query_id(asked, "threadId")
        if run_id is None:
            rows = [] if thread_id is None else await self.access.known_runs(thread_id, principal)
            active = {"runId": rows[0].run_id} if rows else None
            return json_response({"messages": [], "activeRun": active, "interrupts": None})
        with self.permit(principal) as permit:
            row = await self.access.thread_run(run_id, principal)
            client = self._client(self._presentation(None, is_older=False), run_id)
            place = request.headers.get("last-event-id") or asked.get("offset") or _BEGINNING
            if place != _BEGINNING:
                frames = self._rest(row, _position(place, row), client)
            else:
                frames = self._joins.join(await self._runs_up_to(run_id), client)
            return self.stream(frames, run_id, permit, client=client)

    def _presentation(self, run_input: RunAgentInput | None, *, is_older: bool) -> Presenter | None:
        made = self._host.presentation(run_input)
        return OlderClient(made) if is_older else made

    def _is_older(self, declares: str | None, known: bool | None = None) -> bool:
        """Whether a client that declares this version, or none, is older than AG-UI 1.0."""
        return self.settings.older_clients and declares is None if known is None else known

    async def events(self, request: Request) -> Response:
        """The raw records of a run."""
        principal = await self.access.principal(request)
        with self.permit(principal) as permit:
            row = await self.access.run(request.path_params["run_id"], principal)
            after = number(request.query_params, "after", 0)
            after = number(request.headers, "last-event-id", after)
            if after > row.last_seq and row.outcome is not None:
                after = row.last_seq
            return self.stream(raw(self.journal, row.run_id, after), row.run_id, permit)

    async def stop(self, request: Request) -> Response:
        """Asks a run to stop. If another process works on it, that one has to stop it."""
        principal = await self.access.principal(request)
        row = await self.access.run(request.path_params["run_id"], principal)
        body = await json_body(request, self.settings, optional=True)
        reason = body.get("reason") if isinstance(body, dict) else None
        outcome = row.outcome or await self.stop_run(row, str(reason or "stopped by the client")[:_MAX_REASON])
        status = HTTPStatus.ACCEPTED if outcome is None else HTTPStatus.OK
        return json_response({"run_id": row.run_id, "outcome": outcome}, status)

    async def stop_run(self, row: RunRow, reason: str) -> str | None:
        """Stops a run. Returns how it ended; None if another process has yet to end it."""
        await asyncio.shield(self._driver.stop(row.run_id, reason))  # even if the client no longer waits
        return (await self.access.run(row.run_id, row.principal)).outcome

    def permit(self, principal: str | None) -> Permit:
        """A permit for one more open stream; released unless ``stream`` keeps it."""
        with _explain("open streams", "too_many_streams"):
            return self._stream_limit.acquire(principal)

    def _count_streams(self, change: int) -> None:
        self._health.count_users(change)  # their clients wait for records that the journal has yet to accept
        self._observers.streams_changed(change)

    def stream(
        self,
        frames: AsyncGenerator[Frame, None],
        run_id: str,
        permit: Permit,
        headers: Mapping[str, str] | None = None,
        client: Client | None = None,
    ) -> EventStream:
        stream = EventStream(
            frames,
            self._pulse,
            run_id=run_id,
            watching=self._driver.watch(run_id),
            held=permit.move(),
            headers={"x-run-id": _header_text(run_id), **(headers or {})},
            health=self._health,
        )
        if client is not None:
            client.stream = stream
        return stream


# -- the requests of CopilotKit's browser core to its runtime: info about agents, run, connect, stop -----------------------
# With these, its React components need no separate runtime: ``runtimeUrl`` is this server's ``/copilotkit``.


_DEFAULT: Final = "default"
"""The agent that its components use unless another name is set."""
_THREADS: Final = {"list": False, "inspect": False, "mutations": False, "realtimeMetadata": False}


class CopilotKitRoutes:
    """There is one agent, under its own name and as ``default``.

    The core is built on an AG-UI client older than 1.0, which declares no version. So no version means an older client.
    """

    def __init__(self, runs: RunRoutes, name: str) -> None:
        self._runs = runs
        self._access = runs.access
        self._settings = runs.settings
        self._names = (_DEFAULT, name)

    def routes(self) -> list[Route]:
        agent, guarded = "/copilotkit/agent/{agent_id}", self._runs.guarded
        return [
            Route("/copilotkit/info", self.info, methods=["GET"]),
            Route(f"{agent}/run", guarded(self.run), methods=["POST"]),
            Route(f"{agent}/connect", guarded(self.connect), methods=["POST"]),
            Route(f"{agent}/stop/{{thread_id:path}}", guarded(self.stop), methods=["POST"]),
        ]

    async def info(self, request: Request) -> Response:
        """The agents, and which of the runtime's other services are available: none."""
        await self._access.principal(request)
        agents = {name: {"name": name, "description": "", "className": "Callstream"} for name in self._names}
        return json_response(
            {
                "version": version("callstream"),
                "agents": agents,
                "mode": "sse",
                "threadEndpoints": _THREADS,
                "audioFileTranscriptionEnabled": False,
                "suggestions": False,
                "a2uiEnabled": False,
                "openGenerativeUIEnabled": False,
                "telemetryDisabled": True,
            }
        )

    async def run(self, request: Request) -> Response:
        principal = await self._principal(request)
        run_input = await read_input(request, self._settings)
        with remote_parent(request.headers):
            return await self._runs.begin(run_input, principal, is_older=run_input.protocol_version is None)

    async def connect(self, request: Request) -> Response:
        """Joins a thread. For one that does not exist the stream is empty: a chat connects before its first message.

        The body is that of a run, but only its thread and protocol version are used.
        """
        principal = await self._principal(request)
        body = await json_body(request, self._settings)
        fields = body if isinstance(body, dict) else {}
        named = fields.get("threadId")
        thread_id = check_id(named if isinstance(named, str) else "", "threadId")
        joined = await self._runs.join(thread_id, principal, is_older=fields.get("protocolVersion") is None)
        return joined or Response(media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def stop(self, request: Request) -> Response:
        """Stops the thread's active run; if the body has a ``runId``, only that one."""
        principal = await self._principal(request)
        body = await json_body(request, self._settings, optional=True)
        run_id = body.get("runId") if isinstance(body, dict) else None
        rows = await self._access.known_runs(request.path_params["thread_id"], principal)
        if not rows or rows[0].outcome is not None or not (run_id is None or _is_named(rows[0], run_id)):
            return json_response({"stopped": False})
        await self._runs.stop_run(rows[0], "stopped by the client")
        return json_response({"stopped": True})

    async def _principal(self, request: Request) -> str | None:
        principal = await self._access.principal(request)
        if request.path_params["agent_id"] not in self._names:
            raise not_found("agent")
        return principal


def _is_named(row: RunRow, run_id: Any) -> bool:
    """Whether the client means this run by the id; if the client's id was taken, the run's has a number appended."""
    return isinstance(run_id, str) and (row.run_id == run_id or row.run_id.rpartition("~")[0] == run_id)


@contextmanager
def _explain(what: str, code: str) -> Iterator[None]:
    """Turns errors that prevent a run or a stream into problems, in words for clients."""
    status, retry = HTTPStatus.SERVICE_UNAVAILABLE, _RETRY_SECONDS
    try:
        yield
    except TooMany as error:
        if error.of_one:
            status = HTTPStatus.TOO_MANY_REQUESTS
            message = f"You already have {error.most} {what}; try again when one has ended."
        else:
            message = f"The server already has {error.most} {what}; try again later."
        raise Problem(status, code, message, retry_after=retry) from None
    except ShuttingDown:
        raise shutting_down() from None
    except ThreadBusy as busy:
        message = f"Run {busy.run_id} of this thread is active; stop it, or try again when it has ended."
        raise Problem(HTTPStatus.CONFLICT, "thread_busy", message, retry_after=retry) from None
    except AnswerRefused as refused:
        raise Problem(HTTPStatus.CONFLICT, "answer_refused", str(refused)) from None


def _header_text(run_id: str) -> str:
    """The id, percent-encoded if a header cannot carry it as it is; the run's first event has the id in any case."""
    fits = run_id.isascii() and run_id.isprintable() and run_id == run_id.strip()
    return run_id if fits else quote(run_id, safe="")


def _position(text: str, row: RunRow) -> Position:
    position = Position.parse(text)
    if position is None or position.seq > row.last_seq:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "wrong_position", f"expected Last-Event-ID to be an id of run {row.run_id!r}"
        )
    return position
