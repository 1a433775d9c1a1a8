"""What ``ADKAgent`` can be told: ag_ui_adk's parameters with their defaults, and what becomes of those that have no use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import msgspec
from ag_ui.core import RunAgentInput
from google.adk.agents.run_config import RunConfig
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService

from callstream.adk.predictions import PredictStateMapping, mappings_in
from callstream.errors import UsageError
from callstream.runtime import Callstream

logger = logging.getLogger("callstream")

MIGRATION_PAGE = "the page 'Migrating from ag_ui_adk' of Callstream's documentation"

UNUSED = frozenset(
    {
        "cleanup_interval_seconds",
        "max_sessions_per_user",
        "save_session_to_memory_on_cleanup",
        "hitl_max_wait_seconds",
        "tool_timeout_seconds",
    }
)
"""Accepted, so that programs need no change, and without effect."""


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of ``ADKAgent`` and ``ADKAgent.from_app``."""

    callstream: Callstream | None
    """The ``Callstream`` whose journal and hooks the agent uses; without it, one in memory that the agent closes."""
    user_id: str | None
    """Whose sessions they are; without it and ``user_id_extractor``, ``thread_user_<thread id>``."""
    user_id_extractor: Callable[[RunAgentInput], str] | None
    app_name_extractor: Callable[[RunAgentInput], str] | None
    """The app's name for a request, where no ``app_name`` was given."""
    session_service: BaseSessionService | None
    """Where google-adk keeps sessions; in memory without one."""
    artifact_service: BaseArtifactService | None
    memory_service: BaseMemoryService | None
    credential_service: BaseCredentialService | None
    use_in_memory_services: bool
    """Whether services that were not given are made, in memory."""
    run_config_factory: Callable[[RunAgentInput], RunConfig] | None
    """The RunConfig of a request; without it, one with streaming mode SSE."""
    plugin_close_timeout: float
    """Seconds that each plugin may take to close; 5 by default."""
    execution_timeout_seconds: float | None
    """Seconds that a run may take; 600 by default, None for no limit."""
    max_concurrent_executions: int
    """Runs at once, those that wait for their thread included; 10 by default. One more is RUN_ERROR."""
    predict_state: PredictStateMapping | Iterable[PredictStateMapping] | None
    """State that clients show while a tool's argument is written."""
    emit_messages_snapshot: bool
    """Whether a run ends with a MESSAGES_SNAPSHOT; off by default."""
    emit_interrupt_outcome: bool
    """Whether calls of the server's tools that await an answer end the run as interrupts; off by default."""
    streaming_function_call_arguments: bool
    """Whether arguments are shown piece by piece; on by default."""
    use_thread_id_as_session_id: bool | None
    """Whether a new session has the thread's id; by default wherever the session service takes one."""
    allow_scoped_state_keys: bool
    """Whether clients may set ``app:`` and ``user:`` keys of the state; off by default."""
    seed_first_run_history: bool
    """Whether messages that the first request of a thread brings get into its session; on by default."""
    capabilities: dict[str, Any] | None
    """What ``GET {path}/capabilities`` answers."""
    show_errors: bool
    """Whether clients may read why a run or a tool failed, which may tell of internals; off by default."""
    session_timeout_seconds: float | None
    """Seconds without a run after which a thread that is kept in memory is forgotten; 1200 by default, None for never.

    It holds for the journal and the sessions that the agent makes itself. Those that it is given are not touched.
    """
    delete_session_on_cleanup: bool
    """Whether a thread that is forgotten loses its session too; on by default."""
    cleanup_interval_seconds: int
    """Without effect, like all that follow: see ``UNUSED``."""
    max_sessions_per_user: int | None
    save_session_to_memory_on_cleanup: bool
    hitl_max_wait_seconds: int | None
    tool_timeout_seconds: int


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options that have an effect. Seconds; ``execution_timeout_seconds=None`` lets a run take as long as it takes.

    ``use_thread_id_as_session_id``: None does so wherever the session service takes ids from outside. ``show_errors``:
    whether clients may read why a run or a tool failed, which may tell of internals.
    """

    callstream: Any = None
    user_id: str | None = None
    user_id_extractor: Any = None
    app_name_extractor: Any = None
    session_service: Any = None
    artifact_service: Any = None
    memory_service: Any = None
    credential_service: Any = None
    use_in_memory_services: bool = True
    run_config_factory: Any = None
    plugin_close_timeout: float = 5.0
    execution_timeout_seconds: float | None = 600
    max_concurrent_executions: int = 10
    predict_state: tuple[PredictStateMapping, ...] = ()
    emit_messages_snapshot: bool = False
    emit_interrupt_outcome: bool = False
    streaming_function_call_arguments: bool = True
    use_thread_id_as_session_id: bool | None = None
    allow_scoped_state_keys: bool = False
    seed_first_run_history: bool = True
    capabilities: dict[str, Any] | None = None
    show_errors: bool = False
    session_timeout_seconds: float | None = 1200
    delete_session_on_cleanup: bool = True


def settings_of(options: AgentOptions) -> AgentSettings:
    """The settings that a constructor's keyword arguments mean. Raises UsageError for what it does not know."""
    given: dict[str, Any] = dict(options)
    unknown = sorted(set(given) - set(AgentSettings.__struct_fields__) - UNUSED)
    if unknown:
        raise UsageError(
            f"ADKAgent has no parameter {', '.join(map(repr, unknown))}; {MIGRATION_PAGE} lists what happened to each "
            "parameter of ag_ui_adk"
        )
    unused = sorted(set(given) & UNUSED)
    if unused:
        logger.warning("ADKAgent ignores %s; see %s", ", ".join(unused), MIGRATION_PAGE)
    if given.get("user_id") and given.get("user_id_extractor"):
        raise UsageError("give ADKAgent user_id or user_id_extractor, not both")
    given["predict_state"] = mappings_in(given.get("predict_state"))
    settings = AgentSettings(**{name: value for name, value in given.items() if name not in UNUSED})
    if settings.session_service is None and not settings.use_in_memory_services:
        raise UsageError("use_in_memory_services=False needs a session_service")
    if settings.session_timeout_seconds is not None and settings.session_timeout_seconds <= 0:
        raise UsageError(
            f"session_timeout_seconds must be more than 0, or None to keep threads, got {settings.session_timeout_seconds}"
        )
    if settings.max_concurrent_executions < 1:
        raise UsageError(f"max_concurrent_executions must be at least 1, got {settings.max_concurrent_executions}")
    return settings
