"""The routes that CopilotKit's browser core asks of its runtime: what agents there are, run, connect, stop.

With these, its React components need no runtime of their own: ``runtimeUrl`` is this server's ``/copilotkit``.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.journal import RunRow
from callstream.runtime import remote_parent
from callstream.server.access import Access
from callstream.server.requests import Problem, check_id, json_body, json_response, not_found, read_input
from callstream.server.routes import RunRoutes
from callstream.server.settings import ServerSettings

_DEFAULT: Final = "default"
"""The agent that its components use unless another name is set."""
_THREADS: Final = {"list": False, "inspect": False, "mutations": False, "realtimeMetadata": False}


class CopilotKitRoutes:
    """There is one agent, under its own name and as ``default``.

    The core is built on an AG-UI client before 1.0. It does not say so in a request, so no declared version means one.
    """

    def __init__(self, runs: RunRoutes, access: Access, settings: ServerSettings, name: str) -> None:
        self._runs = runs
        self._access = access
        self._settings = settings
        self._names = (_DEFAULT, name)

    def routes(self) -> list[Route]:
        agent = "/copilotkit/agent/{agent_id}"
        return [
            Route("/copilotkit/info", self.info, methods=["GET"]),
            Route(f"{agent}/run", self.run, methods=["POST"]),
            Route(f"{agent}/connect", self.connect, methods=["POST"]),
            Route(f"{agent}/stop/{{thread_id:path}}", self.stop, methods=["POST"]),
        ]

    async def info(self, request: Request) -> Response:
        """The agents, and which of the runtime's other services there are: none."""
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
        """Joins a thread. One that there is not has nothing to show: a chat connects before its first message.

        Of the body, which is that of a run, only the thread and the protocol version count.
        """
        principal = await self._principal(request)
        body = await json_body(request, self._settings)
        fields = body if isinstance(body, dict) else {}
        named = fields.get("threadId")
        thread_id = check_id(named if isinstance(named, str) else "", "threadId")
        try:
            return await self._runs.join(thread_id, principal, is_older=fields.get("protocolVersion") is None)
        except Problem as problem:
            if problem.status != HTTPStatus.NOT_FOUND:
                raise
            return Response(media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def stop(self, request: Request) -> Response:
        """Stops the thread's active run; if the body has a ``runId``, only that one."""
        principal = await self._principal(request)
        body = await json_body(request, self._settings, optional=True)
        run_id = body.get("runId") if isinstance(body, dict) else None
        row = await self._runs.active_run(request.path_params["thread_id"], principal)
        if row is None or not (run_id is None or _is_named(row, run_id)):
            return json_response({"stopped": False})
        await self._runs.stop_run(row, "stopped by the client")
        return json_response({"stopped": True})

    async def _principal(self, request: Request) -> str | None:
        principal = await self._access.principal(request)
        if request.path_params["agent_id"] not in self._names:
            raise not_found("agent")
        return principal


def _is_named(row: RunRow, run_id: Any) -> bool:
    """Whether a client calls the run so; one whose id was taken has a number behind it."""
    return isinstance(run_id, str) and (row.run_id == run_id or row.run_id.rpartition("~")[0] == run_id)
