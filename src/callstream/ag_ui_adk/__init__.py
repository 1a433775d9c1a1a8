"""The names that ag_ui_adk's users know: to migrate, change the import (docs/howto/migrating.md).

::

    from callstream.ag_ui_adk import ADKAgent, add_adk_fastapi_endpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from callstream.adk import AGUIToolset  # first, because it says which extra is missing

# isort: split
from ag_ui.core import AssistantMessage, Message, ToolMessage

from callstream.adk import ADKAgent as AnyADKAgent
from callstream.adk import repair_thought_signatures
from callstream.adk.threads import CONTEXT_KEY
from callstream.ag_ui_adk.endpoint import MIGRATION_PAGE, AgentResolver, StateExtractor, make_extract_headers
from callstream.ag_ui_adk.endpoint import CompatibleAgent as ADKAgent
from callstream.ag_ui_adk.endpoint import CompatibleMapping as PredictStateMapping
from callstream.errors import UsageError

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

__all__ = [
    "CONTEXT_STATE_KEY",
    "ADKAgent",
    "AGUIToolset",
    "AgentResolver",
    "PredictStateMapping",
    "add_adk_fastapi_endpoint",
    "create_adk_app",
    "make_extract_headers",
    "repair_thought_signatures",
    "resolve_agent_from_message_history",
]

CONTEXT_STATE_KEY = CONTEXT_KEY
"""Where instructions and tools find the client's context in the session's state."""


def add_adk_fastapi_endpoint(
    app: FastAPI | APIRouter,
    agent: AnyADKAgent,
    path: str = "/",
    extract_headers: Sequence[str] | None = None,
    extract_state_from_request: StateExtractor | None = None,
    agent_resolver: AgentResolver | None = None,
    *,
    on_disconnect: Literal["stop", "continue"] = "stop",
    heartbeat_seconds: float = 15.0,
    **kwargs: Any,
) -> None:
    """Makes an app or a router serve an agent at ``path``, as AG-UI over server-sent events.

    Further routes: ``POST {path}/threads/{thread_id}/connect`` joins a thread, even in the middle of a run; ``POST
    {path}/runs/{run_id}/stop`` stops a run; ``GET {path}/capabilities``; and ``POST /agents/state`` is for front ends that
    load a thread. A client that disconnects stops its run; with ``on_disconnect="continue"`` the run continues and can be
    joined. After ``heartbeat_seconds`` without an event a stream gets a comment, so that no proxy closes it. If the agent's
    ``run`` is overridden, that is what is called, and its runs can neither continue without a client nor be joined.
    ``extract_state_from_request`` returns state that the server decides; ``extract_headers`` is short for
    ``extract_state_from_request=make_extract_headers(...)``. ``agent_resolver`` may choose another agent for a request, also
    by that state. All of these apply to every route. ``kwargs`` go to ``app.post``; their ``dependencies`` also apply to
    joining, stopping and ``/agents/state``. An app has only one ``/agents/state``: if it has several agents, the one that
    was added first answers there. Give each its own router with a prefix, or let an ``agent_resolver`` choose.
    """
    _need_fastapi("add_adk_fastapi_endpoint")
    from callstream.ag_ui_adk.endpoint import Endpoint

    if extract_headers is not None:
        if extract_state_from_request is not None:
            raise UsageError("give extract_headers or extract_state_from_request, not both")
        extract_state_from_request = make_extract_headers(extract_headers)
    endpoint = Endpoint(
        agent,
        extractor=extract_state_from_request,
        resolver=agent_resolver,
        on_disconnect=on_disconnect,
        heartbeat_seconds=heartbeat_seconds,
    )
    endpoint.add_to(app, path, kwargs)


def create_adk_app(agent: AnyADKAgent, path: str = "/", **options: Any) -> FastAPI:
    """A FastAPI app that serves one agent; ``options`` as for ``add_adk_fastapi_endpoint``."""
    _need_fastapi("create_adk_app")
    from fastapi import FastAPI

    app = FastAPI(title="ADK Middleware for AG-UI Protocol")
    add_adk_fastapi_endpoint(app, agent, path, **options)
    return app


def resolve_agent_from_message_history(
    messages: Sequence[Message], agent_registry: Mapping[str, AnyADKAgent]
) -> AnyADKAgent | None:
    """The agent that made the call which the last message answers, if the call's message has a name in the registry.

    For an ``agent_resolver``: an answer then goes to the agent that asked. None if the last message is not an answer, or
    if the agent is unknown.
    """
    if not messages or not isinstance(messages[-1], ToolMessage):
        return None
    named = messages[-1].tool_call_id
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and any(call.id == named for call in message.tool_calls or ()):
            return agent_registry.get(message.name or "")
    return None


def _need_fastapi(function: str) -> None:
    try:
        import fastapi  # noqa: F401
    except ImportError:
        raise UsageError(f"{function} needs fastapi: pip install fastapi") from None


_GONE = frozenset(
    {
        "A2UISubAgentTool",
        "EventTranslator",
        "INVOCATION_ID_STATE_KEY",
        "SessionManager",
        "adk_events_to_messages",
        "get_a2ui_tool",
        "is_auto_injected_a2ui_tool",
        "normalize_predict_state",
        "plan_a2ui_injection",
    }
)
"""Names of ag_ui_adk that have no counterpart here."""


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise ImportError(f"callstream.ag_ui_adk has no {name}; {MIGRATION_PAGE} says what to use instead", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
