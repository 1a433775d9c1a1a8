"""The routes under which a FastAPI app serves an ``ADKAgent``.

A program may give its agent its own ``run``, in a subclass or a wrapper, to change what clients see. Then every run goes
through that method, and such runs cannot be joined: the journal also has the events that it leaves out.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack, cast
from weakref import WeakSet

from ag_ui.core import RunAgentInput, RunErrorEvent
from ag_ui.encoder import EventEncoder
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from callstream.adk import ADKAgent, PredictStateMapping
from callstream.adk.settings import AgentOptions
from callstream.adk.threads import accept_state
from callstream.errors import UsageError
from callstream.server import ServerSettings
from callstream.server.health import JournalHealth
from callstream.server.requests import Access, Problem, check_ids, parse_input, problem_response, remote_parent
from callstream.server.routes import RunRoutes, driver_for
from callstream.server.streams import EventStream, Frame, Pulse

logger = logging.getLogger("callstream")

if TYPE_CHECKING:
    from google.adk.apps import App
    from google.adk.workflow import BaseNode

# ``ADKAgent`` and ``PredictStateMapping`` with ag_ui_adk's parameters, including those that have no effect.

MIGRATION_PAGE: Final = "the page 'Migrating from ag_ui_adk' of Callstream's documentation"


AgentResolver: TypeAlias = "Callable[[Request, RunAgentInput], Awaitable[ADKAgent | None] | ADKAgent | None]"
"""Chooses the agent for a request; None for the endpoint's own."""


class _IgnoredOptions(TypedDict, total=False):
    """Accepted so that programs need no change, but without effect."""

    cleanup_interval_seconds: int
    max_sessions_per_user: int | None
    hitl_max_wait_seconds: int | None
    tool_timeout_seconds: int


class CompatibleOptions(AgentOptions, _IgnoredOptions, total=False):
    """The keyword arguments of ``ADKAgent`` and ``ADKAgent.from_app``."""


class CompatibleAgent(ADKAgent):
    """``callstream.adk.ADKAgent`` as programs for ag_ui_adk construct it; ``CompatibleOptions`` lists the parameters."""

    def __init__(
        self, adk_agent: BaseNode | None = None, app_name: str | None = None, **options: Unpack[CompatibleOptions]
    ) -> None:
        super().__init__(adk_agent, app_name, **_effective(options))

    @classmethod
    def from_app(cls, app: App, **options: Unpack[CompatibleOptions]) -> Self:
        return super().from_app(app, **_effective(options))


@dataclass
class CompatibleMapping(PredictStateMapping):
    """``stream_tool_call`` has no effect: here every call streams."""

    stream_tool_call: bool = False


_DEFAULTS: Final = {
    "answer_again": False,
    "emit_state_snapshot": True,
    "show_structured_output": False,
    "show_nested_agents": False,
}
"""Defaults in which ag_ui_adk differs from ``callstream.adk.ADKAgent``."""


def _effective(options: CompatibleOptions) -> AgentOptions:
    unknown = sorted(set(options) - set(CompatibleOptions.__annotations__))
    if unknown:
        raise UsageError(
            f"ADKAgent has no parameter {', '.join(map(repr, unknown))}; {MIGRATION_PAGE} lists what happened to each "
            "parameter of ag_ui_adk"
        )
    ignored = sorted(set(options) & set(_IgnoredOptions.__annotations__))
    if ignored:
        logger.warning("ADKAgent ignores %s; see %s", ", ".join(ignored), MIGRATION_PAGE)
    chosen = {name: value for name, value in options.items() if name not in ignored}
    return cast("AgentOptions", {**_DEFAULTS, **chosen})


# -- state from a request's headers ------------------------------------------------------------------------------------


StateExtractor: TypeAlias = "Callable[[Request, RunAgentInput], Awaitable[dict[str, Any] | None]]"
"""Returns state that the server decides, from the request and its input."""


def make_extract_headers(headers_to_extract: Sequence[str]) -> StateExtractor:
    """An ``extract_state_from_request`` that puts these headers into ``state["headers"]``.

    Each one that the request has is stored under its name in lower case, with underscores and without ``x-``. Values that
    the client has in ``state["headers"]`` take precedence.
    """

    async def extract_headers(request: Request, run_input: RunAgentInput) -> dict[str, Any]:
        found = {
            name.lower().removeprefix("x-").replace("-", "_"): value
            for name in headers_to_extract
            if (value := request.headers.get(name)) is not None
        }
        if not found:
            return {}
        sent = run_input.state.get("headers") if isinstance(run_input.state, dict) else None
        return {"headers": {**found, **(sent if isinstance(sent, dict) else {})}}

    return extract_headers


__all__ = ["Endpoint", "make_extract_headers"]


_SMALL_BODY = 16 * 1024
"""Up to this size in bytes, FastAPI may validate an input by itself, whatever it contains."""
_OF_EVERY_ROUTE = ("dependencies", "tags", "include_in_schema")
"""Options of the route that runs the agent which also apply to the other routes."""
_BUSY: Final = Problem(
    HTTPStatus.CONFLICT, "thread_busy", "This thread has an active run; try again when it has ended.", retry_after=5
)
_NOT_JOINABLE: Final = Problem(HTTPStatus.CONFLICT, "not_joinable", "This agent's runs cannot be joined.")


class Endpoint:
    """One agent, or those that ``resolver`` chooses, under the paths that ``add_to`` adds."""

    def __init__(
        self,
        agent: ADKAgent,
        *,
        extractor: StateExtractor | None,
        resolver: AgentResolver | None,
        on_disconnect: Literal["stop", "continue"],
        heartbeat_seconds: float,
    ) -> None:
        if on_disconnect not in ("stop", "continue"):
            raise UsageError(f"expected on_disconnect to be 'stop' or 'continue', got {on_disconnect!r}")
        self._agent = agent
        self._extractor = extractor
        self._resolver = resolver
        self._outlives_client = on_disconnect == "continue"
        if self._outlives_client:
            _check_joinable(agent)
        self._settings = ServerSettings(
            on_disconnect="continue",
            older_clients=True,
            max_streams_per_principal=None,
            heartbeat_seconds=heartbeat_seconds,
        )
        self._pulse = Pulse(self._settings)
        self._agents = WeakSet([agent])
        self._servers: dict[ADKAgent, _AgentServer] = {}

    def add_to(self, app: FastAPI | APIRouter, path: str, options: dict[str, Any]) -> None:
        below = path.rstrip("/")
        guarded = {name: value for name, value in options.items() if name in _OF_EVERY_ROUTE}
        dependencies = [Depends(_bound_lists), *(options.get("dependencies") or ())]
        app.post(path, response_model=None, **{**options, "dependencies": dependencies})(self.run)
        app.get(f"{below}/capabilities", response_model=None)(self.capabilities)
        app.post("/agents/state", response_model=None, **guarded)(self.thread_state)
        app.post(f"{below}/threads/{{thread_id:path}}/connect", response_model=None, **guarded)(self.connect)
        app.post(f"{below}/runs/{{run_id:path}}/stop", response_model=None, **guarded)(self.stop)
        self._end_with(app.router if isinstance(app, FastAPI) else app)

    def _end_with(self, router: APIRouter) -> None:
        """When the app shuts down, ends the agents' runs and closes their toolsets and plugins."""
        lifespan = router.lifespan_context

        @asynccontextmanager
        async def with_agent(app: Any) -> AsyncIterator[Any]:
            async with lifespan(app) as state:
                try:
                    yield state
                finally:
                    for agent in list(self._agents):
                        if isinstance(agent, ADKAgent):  # not a program's wrapper
                            await agent.rest()

        router.lifespan_context = with_agent

    # -- the routes: FastAPI reads their signatures, and names the operations after them --

    async def run(self, request: Request, run_input: Annotated[RunAgentInput, Body()]) -> Response:
        agent, run_input = await self._prepare(request, run_input)
        if self._outlives_client:
            _check_joinable(agent)
        last_event_id = request.headers.get("last-event-id")
        if self._outlives_client or (last_event_id and not _runs_itself(agent)):
            with remote_parent(request.headers):
                return await self._server(agent).run(run_input, agent.user_of(run_input), last_event_id)
        frames = _frames(agent, run_input, request.headers)
        return EventStream(
            frames,
            self._pulse,
            run_id=run_input.run_id,
            watching=nullcontext(),
            held=nullcontext(),
            headers={"cache-control": "no-cache"},
        )

    async def connect(self, request: Request) -> Response:
        agent, run_input = await self._prepare(request, await _joining_input(request))
        if _runs_itself(agent):
            return problem_response(_NOT_JOINABLE)
        request.state.joining_user = agent.user_of(run_input)
        return await self._server(agent).connect(request)

    async def stop(self, request: Request) -> Response:
        agent, _ = await self._prepare(request, _bare_input("", request.path_params["run_id"]))
        return await self._server(agent).stop(request)

    async def capabilities(self, request: Request) -> Response:
        agent, _ = await self._prepare(request, _bare_input("capabilities"))
        return JSONResponse(agent.get_capabilities() or {})

    async def thread_state(self, request: Request, asked: Annotated[dict[str, Any], Body()]) -> Response:
        thread_id = asked.get("threadId")
        if not isinstance(thread_id, str):
            return JSONResponse({"detail": "expected threadId, a string"}, status_code=422)
        agent, run_input = await self._prepare(request, _bare_input(thread_id))
        decided = run_input.state if isinstance(run_input.state, dict) else {}  # by the server: the input has no state
        named = {
            "app_name": decided.get("app_name") or asked.get("appName"),
            "user_id": decided.get("user_id") or asked.get("userId"),
        }
        answer: dict[str, Any] = {"threadId": thread_id, "threadExists": False, "state": {}, "messages": []}
        try:
            found = await agent.thread_state(thread_id, **named, run_input=run_input)
        except Exception:
            logger.exception("thread %s could not be read", thread_id)
            return JSONResponse({**answer, "error": "The thread could not be read."}, status_code=500)
        return JSONResponse({**answer, **({"threadExists": True, **found} if found is not None else {})})

    # -- choosing the agent --

    async def _prepare(self, request: Request, run_input: RunAgentInput) -> tuple[ADKAgent, RunAgentInput]:
        """The agent that answers a request, and the input with the state that the server decides.

        That state may identify the user, so it is added on every route, before the input is used for any decision.
        """
        # Only the server may set scopes other than the thread's, never the client.
        state = (
            accept_state(run_input.state, allow_scopes=False) if isinstance(run_input.state, dict) else run_input.state
        )
        if self._extractor is not None:
            extracted = await self._extractor(request, run_input.model_copy(update={"state": state}))
            state = {**(state if isinstance(state, dict) else {}), **(extracted or {})}
        run_input = run_input.model_copy(update={"state": state})
        chosen = self._resolver(request, run_input) if self._resolver is not None else None
        if inspect.isawaitable(chosen):
            chosen = await chosen
        if chosen is not None:
            self._agents.add(chosen)
        return chosen or self._agent, run_input

    def _server(self, agent: ADKAgent) -> _AgentServer:
        if agent not in self._servers:
            self._servers[agent] = _AgentServer(agent, self._settings)
        return self._servers[agent]


class _AgentServer:
    """Joins and stops an agent's runs, also those of other processes, and works on those that outlive their clients.

    To ``connect``, the thread has to belong to ``_joining_user``; to stop a run, its id is enough. Problems are answered
    here, since the surrounding app has its own error handlers.
    """

    def __init__(self, agent: ADKAgent, settings: ServerSettings) -> None:
        journal = agent.callstream.journal
        driver = driver_for(agent, settings, logs_failures=True)
        self._health = JournalHealth(journal, settings.journal_seconds)
        self._joining = RunRoutes(agent, driver, self._health, Access(_joining_user, agent), settings)
        self._running = RunRoutes(agent, driver, self._health, Access(None, agent), settings)

    async def connect(self, request: Request) -> Response:
        return await self._answer(self._joining.connect(request))

    async def stop(self, request: Request) -> Response:
        return await self._answer(self._running.stop(request))

    async def run(self, run_input: RunAgentInput, owner: str, last_event_id: str | None = None) -> Response:
        """Runs the agent, or gives ``owner`` the run that the same request began before."""
        return await self._answer(self._begin(run_input, owner, last_event_id))

    async def _begin(self, run_input: RunAgentInput, owner: str, last_event_id: str | None) -> Response:
        check_ids(run_input)
        return await self._running.begin(run_input, None, owner=owner, last_event_id=last_event_id)

    async def _answer(self, answering: Coroutine[Any, Any, Response]) -> Response:
        try:
            return await self._health.guard(answering)
        except Problem as problem:
            # The active run may be that of another user whose thread has the same name. Its id, which the problem names,
            # would be enough to stop it.
            return problem_response(_BUSY if problem.code == _BUSY.code else problem)


def _runs_itself(agent: ADKAgent) -> bool:
    """Whether a program has given the agent its own ``run``."""
    return getattr(agent.run, "__func__", None) is not ADKAgent.run


def _check_joinable(agent: ADKAgent) -> None:
    if _runs_itself(agent):
        raise UsageError(
            f"{type(agent).__name__} has a run() of its own, whose runs end with their clients: on_disconnect='continue' "
            "needs ADKAgent's. Override presentation() to change what clients see"
        )


async def _frames(agent: ADKAgent, run_input: RunAgentInput, headers: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
    """The stream of a run that ends with its client. A request that is sent again is shown the run that it began before."""
    with remote_parent(headers):
        async with aclosing(
            _own_frames(agent, run_input) if _runs_itself(agent) else agent.run_sse(run_input, once=True)
        ) as frames:
            async for frame in frames:
                yield frame


async def _own_frames(agent: ADKAgent, run_input: RunAgentInput) -> AsyncGenerator[bytes, None]:
    """The events of a program's own ``run``. An exception is logged and ends the stream with RUN_ERROR."""
    encoder = EventEncoder()
    try:
        events = agent.run(run_input)
        async with aclosing(events) if hasattr(events, "aclose") else nullcontext():
            async for event in events:
                yield encoder.encode(event).encode()
    except Exception:
        logger.exception("run() of %s failed in thread %s", type(agent).__name__, run_input.thread_id)
        yield encoder.encode(RunErrorEvent(message="The run failed.", code="failed")).encode()


def _joining_user(request: Request) -> str:
    """The user who joins, as determined by the endpoint."""
    return str(request.state.joining_user)


def _bare_input(thread_id: str, run_id: str = "") -> RunAgentInput:
    """The input for a request that has none."""
    return RunAgentInput(
        thread_id=thread_id, run_id=run_id, state={}, messages=[], tools=[], context=[], forwarded_props={}
    )


async def _bound_lists(request: Request) -> None:
    """Refuses an input whose errors FastAPI could not describe in reasonable space. It runs before FastAPI's validation."""
    body = await request.body()
    if len(body) > _SMALL_BODY:
        try:
            parse_input(body, ServerSettings(max_body_bytes=None))
        except Problem as problem:
            if problem.code == "too_many":
                raise HTTPException(problem.status, problem.message) from None
            wrong = {"type": "value_error", "loc": ("body",), "msg": problem.message}
            raise RequestValidationError([wrong]) from None


async def _joining_input(request: Request) -> RunAgentInput:
    """The body of a client that joins: an input, or nothing. The thread is that of the path."""
    thread_id = request.path_params["thread_id"]
    try:
        run_input = parse_input(await request.body(), ServerSettings(max_body_bytes=None))
    except Problem:
        return _bare_input(thread_id)
    return run_input.model_copy(update={"thread_id": thread_id})
