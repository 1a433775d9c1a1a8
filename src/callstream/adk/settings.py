"""The options of ``ADKAgent``: ``AgentOptions`` is the only list of them. A default other than None is next to its type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypedDict, cast, get_origin, get_type_hints

from ag_ui.core import RunAgentInput
from google.adk.agents.run_config import RunConfig
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService

from callstream.agui.presentation import PredictStateMapping
from callstream.callstream import Callstream
from callstream.errors import UsageError


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of ``ADKAgent`` and ``ADKAgent.from_app``: ``Annotated[type, default]``, or None by default."""

    callstream: Callstream | None
    """The ``Callstream`` whose journal and hooks the agent uses; without it, one in memory that the agent closes."""
    user_id: str | None
    """The owner of all sessions; without it and ``user_id_extractor``, ``thread_user_<thread id>``."""
    user_id_extractor: Callable[[RunAgentInput], str] | None
    app_name_extractor: Callable[[RunAgentInput], str] | None
    """Returns the app's name for a request; used if no ``app_name`` was given."""
    session_service: BaseSessionService | None
    """Where google-adk keeps sessions; in memory without one."""
    artifact_service: BaseArtifactService | None
    memory_service: BaseMemoryService | None
    """The long-term memory; see ``save_session_to_memory_on_cleanup``."""
    credential_service: BaseCredentialService | None
    use_in_memory_services: Annotated[bool, True]
    """Whether in-memory services are made for those that were not given."""
    run_config_factory: Callable[[RunAgentInput], RunConfig] | None
    """The RunConfig of a request; without it, one with streaming mode SSE."""
    plugin_close_timeout: Annotated[float, 5.0]
    """Seconds that each plugin may take to close; 5 by default."""
    execution_timeout_seconds: Annotated[float | None, 600]
    """Seconds that a run may take; 600 by default, None for no limit."""
    max_concurrent_executions: Annotated[int, 10]
    """Concurrent runs, including those that wait for their thread; 10 by default, 0 for none. Any more get RUN_ERROR."""
    predict_state: PredictStateMapping | Iterable[PredictStateMapping] | None
    """State that clients show while a tool's argument is written."""
    emit_messages_snapshot: Annotated[bool, False]
    """Whether a run ends with a MESSAGES_SNAPSHOT; off by default."""
    emit_state_snapshot: Annotated[bool, False]
    """Whether every run ends with a STATE_SNAPSHOT, if there is any state. Off by default: then only runs do whose deltas
    have not sent all of it."""
    answer_again: Annotated[bool, True]
    """Whether a run that brings only a user's message that was answered before asks for another answer; on by default. A
    message that was not answered, because its run failed or was stopped, is always sent to the model again."""
    emit_interrupt_outcome: Annotated[bool, False]
    """Whether calls of the server's tools that await an answer end the run as interrupts; off by default."""
    streaming_function_call_arguments: Annotated[bool, True]
    """Whether arguments are shown piece by piece; on by default."""
    stream_arguments: Annotated[bool, True]
    """Whether providers that stream arguments only on request are asked to; on by default."""
    continues: Annotated[bool, False]
    """Whether runs outside a server are also kept, so that ``callstream work`` can continue them; off by default."""
    trust_mcp_hints: Annotated[bool, False]
    """Whether tools of MCP servers that are declared read-only or idempotent run again if their process died while they
    ran; off by default, since only the server vouches for that."""
    join_text: bool | None
    """Whether google-adk gets the text of models in whole passages, while clients still get it live from the wire, which
    costs a fraction. By default, this is on wherever no callback, plugin, planner or agent of the application sees text
    while it is written."""
    use_thread_id_as_session_id: bool | None
    """Whether a new session has the thread's id; by default unless the session service refuses it."""
    allow_scoped_state_keys: Annotated[bool, False]
    """Whether clients may set ``app:`` and ``user:`` keys of the state; off by default."""
    seed_first_run_history: Annotated[bool, True]
    """Whether earlier messages in the first request of a thread are added to its session; on by default."""
    capabilities: dict[str, Any] | None
    """What ``GET {path}/capabilities`` answers."""
    show_errors: Annotated[bool, False]
    """Whether clients may read why a run or a tool failed, which may reveal internals; off by default."""
    show_structured_output: Annotated[bool, True]
    """Whether clients see the text of agents with an ``output_schema``, which is JSON; on by default."""
    show_nested_agents: Annotated[bool, True]
    """Whether clients see text and calls of agents that are tools (``AgentTool``), under the tool's call; on by default."""
    session_timeout_seconds: Annotated[float | None, 1200]
    """Seconds without a run after which a thread that is kept in memory is forgotten; 1200 by default, None for never.

    0: as soon as a run of another thread begins. This applies to a journal and sessions that the agent makes itself; those
    that it is given are not touched.
    """
    delete_session_on_cleanup: Annotated[bool, True]
    """Whether a thread that is forgotten loses its session too; on by default."""
    save_session_to_memory_on_cleanup: Annotated[bool, True]
    """Whether a given ``memory_service`` gets a thread's session after ``session_timeout_seconds``; on by default.

    This does not depend on which service keeps the session. It happens when the next run of any thread begins.
    """


_DEFAULTS: Final = {
    name: hint.__metadata__[0] if get_origin(hint) is Annotated else None
    for name, hint in get_type_hints(AgentOptions, include_extras=True).items()
}


def complete(options: AgentOptions) -> AgentOptions:
    """A constructor's keyword arguments, with the defaults of those left out. Raises UsageError for unknown ones."""
    unknown = sorted(set(options) - set(AgentOptions.__annotations__))
    if unknown:
        raise UsageError(f"ADKAgent has no parameter {', '.join(map(repr, unknown))}")
    settings = cast("AgentOptions", {**_DEFAULTS, **options})
    if settings["user_id"] and settings["user_id_extractor"]:
        raise UsageError("give ADKAgent user_id or user_id_extractor, not both")
    if settings["session_service"] is None and not settings["use_in_memory_services"]:
        raise UsageError("use_in_memory_services=False needs a session_service")
    timeout = settings["session_timeout_seconds"]
    if timeout is not None and timeout < 0:
        raise UsageError(f"session_timeout_seconds must not be negative (or None to keep threads), got {timeout}")
    if settings["max_concurrent_executions"] < 0:
        raise UsageError(f"max_concurrent_executions must not be negative, got {settings['max_concurrent_executions']}")
    return settings
