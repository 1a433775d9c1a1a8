"""The names that ag_ui_adk's users know: changing the import is the migration (docs/howto/migrating.md).

::

    from callstream.ag_ui_adk import ADKAgent, add_adk_fastapi_endpoint
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from callstream.adk import ADKAgent, AGUIToolset, PredictStateMapping  # first, for it says which extra is missing

# isort: split
from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolMessage
from pydantic import ValidationError

from callstream.adk.sharedstate import taken
from callstream.adk.threads import CONTEXT_KEY
from callstream.errors import UsageError
from callstream.server import Settings
from callstream.server.beside import Beside

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI, Request

    StateExtractor = Callable[[Request, RunAgentInput], Awaitable[dict[str, Any]]]

__all__ = [
    "CONTEXT_STATE_KEY",
    "ADKAgent",
    "AGUIToolset",
    "AgentResolver",
    "PredictStateMapping",
    "add_adk_fastapi_endpoint",
    "create_adk_app",
    "resolve_agent_from_message_history",
]

AgentResolver: TypeAlias = "Callable[[Request, RunAgentInput], Awaitable[ADKAgent | None] | ADKAgent | None]"
"""Chooses the agent for a request; None for the endpoint's own."""

CONTEXT_STATE_KEY = CONTEXT_KEY
"""Where instructions and tools find the client's context in the session's state."""

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def add_adk_fastapi_endpoint(
    app: FastAPI | APIRouter,
    agent: ADKAgent,
    path: str = "/",
    extract_headers: Sequence[str] | None = None,
    extract_state_from_request: StateExtractor | None = None,
    agent_resolver: AgentResolver | None = None,
    *,
    on_disconnect: Literal["stop", "continue"] = "stop",
    **kwargs: Any,
) -> None:
    """Has an app or a router serve an agent at ``path``, as AG-UI over server-sent events.

    Beside it: ``POST {path}/threads/{thread_id}/connect`` joins a thread, in the middle of a run too; ``POST
    {path}/runs/{run_id}/stop`` stops a run; ``GET {path}/capabilities``, and ``POST /agents/state`` for front ends that
    load a thread. A client that disconnects stops its run; with ``on_disconnect="continue"`` the run goes on and can be
    joined. ``extract_headers`` puts headers into ``state["headers"]``, under their names in lower
    case with underscores and without ``x-``; what the client has there comes first. ``extract_state_from_request``
    gives state that the server decides. ``agent_resolver`` may choose another agent for a request, by that state too. All
    of these hold for every route. ``kwargs`` go to ``app.post``; their ``dependencies`` hold for joining, stopping and
    ``/agents/state`` too. That path is one for the app: of several agents in it, the one that was added first answers
    there. Give each a router of its own with a prefix, or let an ``agent_resolver`` choose.
    """
    try:
        from fastapi import Body, Request
        from fastapi.responses import JSONResponse, Response, StreamingResponse
    except ImportError:
        raise UsageError("add_adk_fastapi_endpoint needs fastapi: pip install fastapi") from None
    if extract_headers is not None and extract_state_from_request is not None:
        raise UsageError("give extract_headers or extract_state_from_request, not both")

    if on_disconnect not in ("stop", "continue"):
        raise UsageError(f"expected on_disconnect to be 'stop' or 'continue', got {on_disconnect!r}")
    neighbours = _Neighbours()

    async def prepared(request: Request, given: RunAgentInput) -> tuple[ADKAgent, RunAgentInput]:
        """Who answers a request, and its input with the state that the server decides.

        That state may say who asks, so it holds for every route, and before anything is decided by the input.
        """
        # Scopes other than the thread's are the server's to set, never the client's.
        state = taken(given.state, allow_scopes=False) if isinstance(given.state, dict) else given.state
        if extract_headers is not None:
            state = _with_headers(state, request, extract_headers)
        elif extract_state_from_request is not None:
            extracted = await extract_state_from_request(request, given.model_copy(update={"state": state}))
            state = {**(state if isinstance(state, dict) else {}), **(extracted or {})}
        given = given.model_copy(update={"state": state})
        chosen = await _awaited(agent_resolver(request, given)) if agent_resolver is not None else None
        return chosen or agent, given

    async def run(request: Request, given: RunAgentInput = Body()) -> Response:  # noqa: B008
        chosen, given = await prepared(request, given)
        if on_disconnect == "continue":
            return await neighbours.of(chosen).run(given)
        return StreamingResponse(_served(chosen, given), media_type="text/event-stream", headers=_HEADERS)

    async def connect(request: Request) -> Response:
        chosen, given = await prepared(request, await _joining_input(request))
        request.state.joining_user = chosen.user_of(given)
        return await neighbours.of(chosen).connect(request)

    async def stop(request: Request) -> Response:
        chosen, _ = await prepared(request, _bare_input("", request.path_params["run_id"]))
        return await neighbours.of(chosen).stop(request)

    async def capabilities(request: Request) -> JSONResponse:
        chosen, _ = await prepared(request, _bare_input("capabilities"))
        return JSONResponse(chosen.get_capabilities() or {})

    async def thread_state(request: Request, asked: dict[str, Any] = Body()) -> JSONResponse:  # noqa: B008
        thread_id = asked.get("threadId")
        if not isinstance(thread_id, str):
            return JSONResponse({"detail": "expected threadId, a string"}, status_code=422)
        chosen, given = await prepared(request, _bare_input(thread_id))
        named = {"app_name": asked.get("appName"), "user_id": asked.get("userId")}
        found = await chosen.thread_state(thread_id, **named, given=given)
        known = found or {"state": {}, "messages": []}
        return JSONResponse(
            {
                "threadId": thread_id,
                "threadExists": found is not None,
                "state": json.dumps(known["state"]),
                "messages": json.dumps(known["messages"]),
            }
        )

    # FastAPI reads these, and the annotations of this module are text that it could not look up.
    run.__annotations__ = {"request": Request, "given": RunAgentInput}
    thread_state.__annotations__ = {"request": Request, "asked": dict[str, Any]}
    connect.__annotations__ = stop.__annotations__ = capabilities.__annotations__ = {"request": Request}
    app.post(path, response_model=None, **kwargs)(run)
    app.get(f"{path.rstrip('/')}/capabilities", response_model=None)(capabilities)
    guarded = {name: value for name, value in kwargs.items() if name in ("dependencies", "tags", "include_in_schema")}
    app.post("/agents/state", response_model=None, **guarded)(thread_state)
    app.post(f"{path.rstrip('/')}/threads/{{thread_id:path}}/connect", response_model=None, **guarded)(connect)
    app.post(f"{path.rstrip('/')}/runs/{{run_id:path}}/stop", response_model=None, **guarded)(stop)


def create_adk_app(agent: ADKAgent, path: str = "/", **options: Any) -> FastAPI:
    """A FastAPI app that serves one agent; ``options`` as for ``add_adk_fastapi_endpoint``."""
    try:
        from fastapi import FastAPI
    except ImportError:
        raise UsageError("create_adk_app needs fastapi: pip install fastapi") from None
    app = FastAPI(title="AG-UI")
    add_adk_fastapi_endpoint(app, agent, path, **options)
    return app


def resolve_agent_from_message_history(
    messages: Sequence[Message], agent_registry: Mapping[str, ADKAgent]
) -> ADKAgent | None:
    """The agent that made the call which the last message answers, where its message has a name in the registry.

    For an ``agent_resolver``: an answer then goes to the agent that asked. None if the last message is no answer, or
    nobody can tell.
    """
    if not messages or not isinstance(messages[-1], ToolMessage):
        return None
    named = messages[-1].tool_call_id
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and any(call.id == named for call in message.tool_calls or ()):
            return agent_registry.get(message.name or "")
    return None


class _Neighbours:
    """What joins and stops the runs of each agent."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[ADKAgent, Beside]] = {}

    def of(self, agent: ADKAgent) -> Beside:
        if id(agent) not in self._made:
            self._made[id(agent)] = (
                agent,
                Beside(agent, Settings(on_disconnect="continue", older_clients=True), _joining_user),
            )
        return self._made[id(agent)][1]


def _joining_user(request: Any) -> str:
    """Who joins: whoever the endpoint has found him to be."""
    return str(request.state.joining_user)


def _bare_input(thread_id: str, run_id: str = "") -> RunAgentInput:
    """The input of a request that brings none."""
    return RunAgentInput(
        thread_id=thread_id, run_id=run_id, state={}, messages=[], tools=[], context=[], forwarded_props={}
    )


async def _joining_input(request: Any) -> RunAgentInput:
    """What a client sends that joins: an input, or nothing. The thread is that of the path."""
    thread_id = request.path_params["thread_id"]
    try:
        given = RunAgentInput.model_validate_json(await request.body())
    except ValidationError:
        return _bare_input(thread_id)
    return given.model_copy(update={"thread_id": thread_id})


async def _served(agent: ADKAgent, given: RunAgentInput) -> AsyncGenerator[bytes, None]:
    async with aclosing(agent.run_sse(given)) as frames:
        async for frame in frames:
            yield frame


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _with_headers(state: Any, request: Request, names: Sequence[str]) -> dict[str, Any]:
    found = {
        name.lower().removeprefix("x-").replace("-", "_"): value
        for name in names
        if (value := request.headers.get(name)) is not None
    }
    known = state if isinstance(state, dict) else {}
    sent = known.get("headers")
    return {**known, "headers": {**found, **(sent if isinstance(sent, dict) else {})}}
