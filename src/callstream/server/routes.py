"""The routes of runs: run, join, follow, stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import Any

from ag_ui.core import RunAgentInput
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.agui import Position, View
from callstream.agui.events import PROTOCOL_VERSION
from callstream.errors import Compacted
from callstream.journal import RunRow
from callstream.runtime import remote_parent
from callstream.server.access import Access
from callstream.server.agent import Host, Importer, OlderClient, Presenter
from callstream.server.eventstream import EventStream, Frame
from callstream.server.health import watched
from callstream.server.idroute import IdRoute
from callstream.server.problems import Problem, json_response, not_found
from callstream.server.repeats import earlier_run
from callstream.server.requests import is_id, json_body, number, run_input
from callstream.server.runs import Runs
from callstream.server.seats import Seats
from callstream.server.settings import ServerSettings
from callstream.server.streams import Joins, live, raw, resumed

_MAX_REASON = 500


class RunRoutes:
    """``runs`` are those of this process; everything else is in the journal."""

    def __init__(
        self, host: Host, runs: Runs, access: Access, settings: ServerSettings, view: View | None = None
    ) -> None:
        self._host = host
        self._health = runs.health
        self._journal = watched(host.callstream.journal, runs.health)
        self._runs = runs
        self._access = access
        self._settings = settings
        self._view = view or host.view
        self._joins = Joins(self._journal, self._view)
        self._seats = Seats(settings, host.callstream.observers.streams_changed)

    def routes(self) -> list[Route]:
        events = IdRoute("/runs/{run_id}/events", self.events, methods=["GET"])
        events.methods = {"GET"}  # a stream has no HEAD: whoever asks for one would wait for the run's end
        return [
            Route("/agui", self.run, methods=["POST"]),
            IdRoute("/threads/{thread_id}/connect", self.connect, methods=["POST"]),
            events,
            IdRoute("/runs/{run_id}/stop", self.stop, methods=["POST"]),
        ]

    async def run(self, request: Request) -> Response:
        """Runs the agent. The stream may be left; the run goes on, and can be joined."""
        principal = await self._access.principal(request)
        given = await run_input(request, self._settings)
        with remote_parent(request.headers):
            return await self.begin(given, principal, last_event_id=request.headers.get("last-event-id"))

    async def begin(
        self, given: RunAgentInput, principal: str | None, *, owner: str | None = None, last_event_id: str | None = None
    ) -> Response:
        """A run of the input. A request that is sent again gets the run that it has begun, never another one.

        ``owner``: whose that run has to be, where the host and not the server knows it. ``last_event_id``: how far the
        client has read it, who gets the rest.
        """
        guard, check = self._health.guard, partial(self._access.check_thread, given.thread_id, principal)
        with self._seat(principal) as seat:
            await guard(check())
            presentation = self._presentation(given, declares=given.protocol_version)
            if last_event_id:
                row = await guard(earlier_run(self._journal, given, owner or principal, of_any_input=True))
                if row is None:
                    raise not_found("run")
                position = _position(last_event_id, row)
                frames = self._rest(row, position, presentation)
                return self._stream(frames, row.run_id, seat)
            run_id = await self._begin(self._runs.begin(given, principal, check, owner=owner))
            return self._stream(live(self._journal, run_id, self._view, presentation), run_id, seat)

    async def _begin(self, beginning: Coroutine[Any, Any, str]) -> str:
        """A write that is under way cannot be called back. If the journal is away, nobody waits for it."""
        task = asyncio.create_task(beginning)
        try:
            return await self._health.guard(asyncio.shield(task))
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def earlier(self, given: RunAgentInput, owner: str) -> AsyncGenerator[bytes, None] | None:
        """The stream of the run that this input has begun before; None if it has begun none."""
        row = await earlier_run(self._journal, given, owner)
        if row is None:
            return None
        presentation = self._presentation(given, declares=given.protocol_version)
        return live(self._journal, row.run_id, self._view, presentation)

    async def _rest(self, row: RunRow, position: Position, presentation: Presenter) -> AsyncGenerator[Frame, None]:
        """What a client has not read of a run; if that cannot be told any more, the whole thread up to its end."""
        try:
            async for frame in resumed(self._journal, row.run_id, position, self._view, presentation):
                yield frame
        except Compacted:
            rows = await self._access.runs_of(row.thread_id, row.principal)
            place = [each.run_id for each in rows].index(row.run_id)
            async for part in self._joins.join(rows[place:][::-1], presentation):
                yield part

    async def connect(self, request: Request) -> Response:
        """Joins a thread: what has been, then its last run live. Of the body, the client's protocol version counts."""
        principal = await self._access.principal(request)
        thread_id = request.path_params["thread_id"]
        body = await json_body(request, self._settings, optional=True)
        declares = body.get("protocolVersion") if isinstance(body, dict) and "threadId" in body else PROTOCOL_VERSION
        with self._seat(principal) as seat:
            if isinstance(self._host, Importer) and is_id(thread_id):
                await self._health.guard(self._host.import_thread(thread_id, principal))
            rows = await self._health.guard(self._access.runs_of(thread_id, principal))
            frames = self._joins.join(rows[::-1], self._presentation(None, declares=declares))
            return self._stream(frames, rows[0].run_id, seat)

    def _presentation(self, given: RunAgentInput | None, *, declares: str | None) -> Presenter:
        made = self._host.presentation(given)
        return OlderClient(made) if self._settings.older_clients and declares is None else made

    async def events(self, request: Request) -> Response:
        """The raw records of a run."""
        principal = await self._access.principal(request)
        with self._seat(principal) as seat:
            row = await self._health.guard(self._access.run(request.path_params["run_id"], principal))
            after = number(request.query_params, "after", 0)
            after = number(request.headers, "last-event-id", after)
            if after > row.last_seq and row.outcome is not None:
                after = row.last_seq
            return self._stream(raw(self._journal, row.run_id, after), row.run_id, seat)

    async def stop(self, request: Request) -> Response:
        """Asks a run to stop. It may be another process that has to."""
        principal = await self._access.principal(request)
        guard = self._health.guard
        row = await guard(self._access.run(request.path_params["run_id"], principal))
        given = await json_body(request, self._settings, optional=True)
        reason = given.get("reason") if isinstance(given, dict) else None
        if row.outcome is None:
            await self._runs.stop(row.run_id, str(reason or "stopped by the client")[:_MAX_REASON])
            row = await guard(self._access.run(row.run_id, principal))
        status = HTTPStatus.ACCEPTED if row.outcome is None else HTTPStatus.OK
        return json_response({"run_id": row.run_id, "outcome": row.outcome}, status)

    def _seat(self, principal: str | None) -> ExitStack:
        """A seat that is given back unless ``_stream`` takes it over."""
        seat = ExitStack()
        seat.enter_context(self._seats.one(principal))
        seat.enter_context(self._health.use())
        return seat

    def _stream(self, frames: AsyncGenerator[Frame, None], run_id: str, seat: ExitStack) -> EventStream:
        return EventStream(
            frames, self._settings, run_id=run_id, watching=self._runs.watched(run_id), held=seat.pop_all()
        )


def _position(text: str, row: RunRow) -> Position:
    position = Position.parse(text)
    if position is None or position.seq > row.last_seq:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "wrong_position", f"expected Last-Event-ID to be an id of run {row.run_id!r}"
        )
    return position
