"""The routes of runs: run, join, follow, stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.agui import View
from callstream.server.access import Access
from callstream.server.agent import Host, Importer, OlderClient
from callstream.server.eventstream import EventStream
from callstream.server.problems import Problem, json_response
from callstream.server.requests import checked_id, json_body, number, run_input
from callstream.server.runs import Runs
from callstream.server.settings import Settings
from callstream.server.streams import joined, live, raw

_MAX_REASON = 500


class RunRoutes:
    """``runs`` are those of this process; everything else is in the journal."""

    def __init__(self, host: Host, runs: Runs, access: Access, settings: Settings, view: View | None = None) -> None:
        self._host = host
        self._journal = host.callstream.journal
        self._runs = runs
        self._access = access
        self._settings = settings
        self._view = view or host.view
        self._streams = 0

    def routes(self) -> list[Route]:
        return [
            Route("/agui", self.run, methods=["POST"]),
            Route("/threads/{thread_id}/connect", self.connect, methods=["POST"]),
            Route("/runs/{run_id}/events", self.events, methods=["GET"]),
            Route("/runs/{run_id}/stop", self.stop, methods=["POST"]),
        ]

    async def run(self, request: Request) -> Response:
        """Runs the agent. The stream may be left; the run goes on, and can be joined."""
        principal = await self._access.principal(request)
        self._check_room()
        given = await run_input(request, self._settings)
        await self._access.check_thread(given.thread_id, principal)
        run = await self._runs.begin(given, principal)
        presentation = self._host.presentation(given)
        if given.protocol_version is None:
            presentation = OlderClient(presentation)
        frames = live(self._journal, run.run_id, self._view, presentation)
        return self._stream(frames, run.run_id)

    async def connect(self, request: Request) -> Response:
        """Joins a thread: what has been, then its last run live. Of the body, the client's protocol version counts."""
        principal = await self._access.principal(request)
        self._check_room()
        thread_id = checked_id(request.path_params["thread_id"], "thread_id")
        if isinstance(self._host, Importer):
            await self._host.import_thread(thread_id, principal)
        rows = await self._access.runs_of(thread_id, principal)
        presentation = self._host.presentation(None)
        given = await json_body(request, self._settings, optional=True)
        if isinstance(given, dict) and "threadId" in given and given.get("protocolVersion") is None:
            presentation = OlderClient(presentation)
        frames = joined(self._journal, reversed(rows), self._view, presentation)
        return self._stream(frames, rows[0].run_id)

    async def events(self, request: Request) -> Response:
        """The raw records of a run."""
        principal = await self._access.principal(request)
        self._check_room()
        row = await self._access.run(request.path_params["run_id"], principal)
        after = number(request.query_params, "after", 0)
        after = number(request.headers, "last-event-id", after)
        if after > row.last_seq and row.outcome is not None:
            after = row.last_seq
        return self._stream(raw(self._journal, row.run_id, after), row.run_id)

    async def stop(self, request: Request) -> Response:
        """Asks a run to stop. It may be another process that has to."""
        principal = await self._access.principal(request)
        row = await self._access.run(request.path_params["run_id"], principal)
        given = await json_body(request, self._settings, optional=True)
        reason = given.get("reason") if isinstance(given, dict) else None
        if row.outcome is None:
            await self._runs.stop(row.run_id, str(reason or "stopped by the client")[:_MAX_REASON])
            row = await self._access.run(row.run_id, principal)
        status = HTTPStatus.ACCEPTED if row.outcome is None else HTTPStatus.OK
        return json_response({"run_id": row.run_id, "outcome": row.outcome}, status)

    def _check_room(self) -> None:
        most = self._settings.max_streams
        if most is not None and self._streams >= most:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_streams",
                f"There are {most} streams already; ask again later.",
                retry_after=5,
            )

    def _stream(self, frames: AsyncGenerator[bytes, None], run_id: str) -> EventStream:
        return EventStream(
            self._counted(frames),
            self._settings,
            headers={"x-run-id": run_id},
            watching=self._runs.watched(run_id),
        )

    async def _counted(self, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        with self._one_more():
            async for frame in frames:
                yield frame

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
