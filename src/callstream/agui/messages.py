"""The messages of a conversation as AG-UI 1.0 keeps them. As JSON: camelCase, no nulls, ``role`` tells which one."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """``seq`` is the number of the record in its run, by which an event was caused or a message last changed.

    ``client`` is a convention of the official client: the activity types for which a snapshot is the whole truth.
    """

    seq: int
    client: dict[str, list[str]] | None = msgspec.field(default=None, name="@ag-ui/client")


def subagent_run_id(call_id: str) -> str:
    """The agent that the tool of a call runs, as AG-UI names it."""
    return f"agent-{call_id}"


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class CalledFunction(_Shape, frozen=True):
    name: str
    arguments: str


class MessageToolCall(_Shape, frozen=True, tag_field="type", tag="function"):
    """``arguments`` is the text so far. ``encrypted_value`` is the call's thought signature."""

    id: str
    function: CalledFunction
    encrypted_value: str | None = None
    metadata: Metadata | None = None


class _Message(_Shape, frozen=True, tag_field="role"):
    id: str


class Attached(msgspec.Struct, frozen=True):
    """The kinds of a message's parts that are not text, where the parts themselves are not known."""

    attachments: tuple[str, ...]


class UserMessage(_Message, frozen=True, tag="user"):
    content: str | list[Any]
    metadata: Attached | None = None


class SystemMessage(_Message, frozen=True, tag="system"):
    content: str


class DeveloperMessage(_Message, frozen=True, tag="developer"):
    content: str


class _Attributed(_Message, frozen=True, kw_only=True):
    """``subagent_run_id``: the agent whose message it is, where that is one which a tool runs."""

    subagent_run_id: str | None = None


class AssistantMessage(_Attributed, frozen=True, tag="assistant"):
    """``name``: the agent that said it."""

    name: str | None = None
    content: str | None = None
    tool_calls: tuple[MessageToolCall, ...] | None = None
    metadata: Metadata | None = None


class ReasoningMessage(_Attributed, frozen=True, tag="reasoning"):
    content: str
    metadata: Metadata | None = None


class ToolMessage(_Attributed, frozen=True, tag="tool"):
    tool_call_id: str
    content: str
    metadata: Metadata | None = None


class ActivityMessage(_Attributed, frozen=True, tag="activity"):
    activity_type: str
    content: dict[str, Any]
    metadata: Metadata | None = None


Message: TypeAlias = (
    UserMessage | SystemMessage | DeveloperMessage | AssistantMessage | ReasoningMessage | ToolMessage | ActivityMessage
)
