"""``ADKAgent`` and ``PredictStateMapping`` with ag_ui_adk's parameters, those without an effect included."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypedDict, Unpack, cast

from ag_ui.core import RunAgentInput

from callstream.adk import ADKAgent, PredictStateMapping
from callstream.adk.settings import AgentOptions
from callstream.errors import UsageError

if TYPE_CHECKING:
    from fastapi import Request
    from google.adk.apps import App
    from google.adk.workflow import BaseNode

logger = logging.getLogger("callstream")

MIGRATION_PAGE: Final = "the page 'Migrating from ag_ui_adk' of Callstream's documentation"


AgentResolver: TypeAlias = "Callable[[Request, RunAgentInput], Awaitable[ADKAgent | None] | ADKAgent | None]"
"""Chooses the agent for a request; None for the endpoint's own."""


class IgnoredOptions(TypedDict, total=False):
    """Accepted, so that programs need no change, and without effect."""

    cleanup_interval_seconds: int
    max_sessions_per_user: int | None
    hitl_max_wait_seconds: int | None
    tool_timeout_seconds: int


class CompatibleOptions(AgentOptions, IgnoredOptions, total=False):
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
"""Where ag_ui_adk does something else than ``callstream.adk.ADKAgent`` by default."""


def _effective(options: CompatibleOptions) -> AgentOptions:
    unknown = sorted(set(options) - set(CompatibleOptions.__annotations__))
    if unknown:
        raise UsageError(
            f"ADKAgent has no parameter {', '.join(map(repr, unknown))}; {MIGRATION_PAGE} lists what happened to each "
            "parameter of ag_ui_adk"
        )
    ignored = sorted(set(options) & set(IgnoredOptions.__annotations__))
    if ignored:
        logger.warning("ADKAgent ignores %s; see %s", ", ".join(ignored), MIGRATION_PAGE)
    given = {name: value for name, value in options.items() if name not in ignored}
    return cast("AgentOptions", {**_DEFAULTS, **given})
