"""Joining and stopping beside an endpoint that another framework serves."""

from __future__ import annotations

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
from callstream.server.settings import Settings

_BUSY: Final = Problem(
    HTTPStatus.CONFLICT, "thread_busy", "A run of this thread goes on; ask again when it has ended.", retry_after=5
)


class Beside:
    """``connect`` and ``stop`` of a host's runs, whoever runs them; ``run`` for runs that outlive their clients.

    ``whose`` says to whom the thread of a request to ``connect`` has to belong. A run is stopped by whoever knows its id.
    Problems are answered here, since the app around has handlers of its own.
    """

    def __init__(self, host: Host, settings: Settings, whose: Auth | None = None) -> None:
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

    async def run(self, given: RunAgentInput) -> Response:
        try:
            check_ids(given)
            return await self._running.begin(given, None)
        except Problem as problem:
            # The run that goes on may be somebody else's, whose thread has the same name: who knew its id could stop it.
            return problem_response(_BUSY if problem.code == _BUSY.code else problem)
