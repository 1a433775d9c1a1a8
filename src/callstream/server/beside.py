"""Joining and stopping beside an endpoint that another framework serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final

from ag_ui.core import RunAgentInput
from starlette.requests import Request
from starlette.responses import Response

from callstream.server.access import Access, Auth
from callstream.server.agent import Host
from callstream.server.problems import Problem, problem_response
from callstream.server.requests import check_ids
from callstream.server.routes import RunRoutes
from callstream.server.runs import Runs
from callstream.server.settings import ServerSettings

_BUSY: Final = Problem(
    HTTPStatus.CONFLICT, "thread_busy", "This thread has an active run; try again when it has ended.", retry_after=5
)


class Beside:
    """``connect`` and ``stop`` of a host's runs, whoever runs them; ``run`` for runs that outlive their clients.

    ``whose`` says to whom the thread of a request to ``connect`` has to belong. A run is stopped by whoever knows its id.
    Problems are answered here, since the app around has handlers of its own.
    """

    def __init__(self, host: Host, settings: ServerSettings, whose: Auth | None = None) -> None:
        runs, journal = Runs(host, settings), host.callstream.journal
        self._joining = RunRoutes(host, runs, Access(whose, journal), settings)
        self._running = RunRoutes(host, runs, Access(None, journal), settings)

    async def connect(self, request: Request) -> Response:
        try:
            return await self._joining.connect(request)
        except Problem as problem:
            return problem_response(problem)

    async def stop(self, request: Request) -> Response:
        try:
            return await self._running.stop(request)
        except Problem as problem:
            return problem_response(problem)

    async def run(self, given: RunAgentInput, owner: str, last_event_id: str | None = None) -> Response:
        """Runs the agent, or gives ``owner`` the run that this request has begun before."""
        try:
            check_ids(given)
            return await self._running.begin(given, None, owner=owner, last_event_id=last_event_id)
        except Problem as problem:
            # The run that goes on may be somebody else's, whose thread has the same name: who knew its id could stop it.
            return problem_response(_BUSY if problem.code == _BUSY.code else problem)

    async def earlier(self, given: RunAgentInput, owner: str) -> AsyncGenerator[bytes, None] | None:
        """The stream of the run that this input has begun before, from its beginning."""
        return await self._running.earlier(given, owner)
