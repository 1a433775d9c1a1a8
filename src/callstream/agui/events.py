"""The events of AG-UI 1.0 that Callstream sends, and what they carry.

As JSON an event has camelCase names, no nulls, and ``metadata.seq``, the number of the journal record behind it. Calls
are sent as START, ARGS, END; chunk events are not used.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from callstream import codec
from callstream.agui.messages import Message, Metadata

PROTOCOL_VERSION: Final = "1.0"


def _tag(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class AguiEvent(msgspec.Struct, frozen=True, tag_field="type", tag=_tag, rename="camel", omit_defaults=True, gc=False):
    """The base of all events: each has its own ``type``."""


class _Event(AguiEvent, frozen=True, kw_only=True):
    metadata: Metadata


class _Attributed(_Event, frozen=True, kw_only=True):
    """``subagent_run_id``: the agent whose work it is, if a tool runs that agent."""

    subagent_run_id: str | None = None


# -- the run --


class AguiRunStarted(_Event, frozen=True, kw_only=True, tag="RUN_STARTED"):
    thread_id: str
    run_id: str
    protocol_version: str


class _Outcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True):
    pass


class Success(_Outcome, frozen=True, tag="success"):
    """``pending_tool_call_ids``: the run's calls that the application has to answer, in the order they were made."""

    pending_tool_call_ids: tuple[str, ...] | None = None


class Interrupt(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Interrupted(_Outcome, frozen=True, tag="interrupt"):
    interrupts: tuple[Interrupt, ...]


class Cancelled(_Outcome, frozen=True, tag="cancelled"):
    """The run was stopped: it neither failed nor waits for anything."""


class RunFinished(_Event, frozen=True, kw_only=True):
    thread_id: str
    run_id: str
    outcome: Success | Interrupted | Cancelled | None = None
    """None for clients that know no outcomes other than success and interrupts."""


class RunError(_Event, frozen=True, kw_only=True):
    message: str
    code: str


# -- text and reasoning --


class TextMessageStart(_Attributed, frozen=True, kw_only=True):
    """``name``: the agent that speaks, if known."""

    message_id: str
    role: str
    name: str | None = None


class TextMessageContent(_Attributed, frozen=True, kw_only=True):
    message_id: str
    delta: str


class TextMessageEnd(_Attributed, frozen=True, kw_only=True):
    message_id: str


class ReasoningStart(_Attributed, frozen=True, kw_only=True):
    message_id: str


class ReasoningMessageStart(_Attributed, frozen=True, kw_only=True):
    message_id: str
    role: str


class ReasoningMessageContent(_Attributed, frozen=True, kw_only=True):
    message_id: str
    delta: str


class ReasoningMessageEnd(_Attributed, frozen=True, kw_only=True):
    message_id: str


class ReasoningEnd(_Attributed, frozen=True, kw_only=True):
    message_id: str


class ReasoningEncryptedValue(_Attributed, frozen=True, kw_only=True):
    subtype: str
    entity_id: str
    encrypted_value: str


# -- calls --


class ToolCallStart(_Attributed, frozen=True, kw_only=True):
    tool_call_id: str
    tool_call_name: str
    parent_message_id: str


class ToolCallArgs(_Attributed, frozen=True, kw_only=True):
    tool_call_id: str
    delta: str


class ToolCallEnd(_Attributed, frozen=True, kw_only=True):
    tool_call_id: str


class ToolCallResult(AguiEvent, frozen=True, kw_only=True):
    """Without metadata if it is an answer that another client sent: clients fold metadata into the message."""

    message_id: str
    tool_call_id: str
    content: str
    metadata: Metadata | None = None
    subagent_run_id: str | None = None


class ActivitySnapshot(_Attributed, frozen=True, kw_only=True):
    message_id: str
    activity_type: str
    content: dict[str, Any]
    replace: bool


class Custom(_Attributed, frozen=True, kw_only=True):
    """For things that AG-UI has no event for. Clients that do not know the name ignore it."""

    name: str
    value: Any


# -- agents that tools run --


class SubagentStarted(_Event, frozen=True, kw_only=True):
    """``parent_tool_call_id`` is the call whose tool it is, and ``parent_message_id`` the message of that call."""

    subagent_run_id: str
    name: str
    parent_tool_call_id: str
    parent_message_id: str | None = None
    parent_subagent_run_id: str | None = None


class Suspended(_Outcome, frozen=True, tag="suspended"):
    """The agent's call awaits an answer."""


class SubagentFinished(_Event, frozen=True, kw_only=True):
    subagent_run_id: str
    outcome: Suspended | None = None


class SubagentError(_Event, frozen=True, kw_only=True):
    subagent_run_id: str
    message: str


# -- the whole --


class StateSnapshot(_Event, frozen=True, kw_only=True):
    snapshot: Any


class StateDelta(_Event, frozen=True, kw_only=True):
    delta: list[dict[str, Any]]


class MessagesSnapshot(_Event, frozen=True, kw_only=True):
    """A ``dict`` in it came from the client."""

    messages: tuple[Message | dict[str, Any], ...]


def encode(event: AguiEvent) -> bytes:
    """The event as JSON on one line."""
    return codec.encode(event)
