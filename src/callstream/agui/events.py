"""The events of AG-UI 1.0 that Callstream sends: what they carry, how they are written, how they are merged.

As JSON an event has camelCase names, no nulls, and ``metadata.seq``, the number of the journal record behind it. Calls
are sent as START, ARGS, END; chunk events are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from callstream import codec
from callstream.agui.messages import Message, Metadata

PROTOCOL_VERSION: Final = "1.0"


def _tag(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class AguiEvent(msgspec.Struct, frozen=True, tag_field="type", tag=_tag, rename="camel", omit_defaults=True, gc=False):
    """What all events have in common: each is a ``type`` of its own."""


class _Event(AguiEvent, frozen=True, kw_only=True):
    metadata: Metadata


class _Attributed(_Event, frozen=True, kw_only=True):
    """``subagent_run_id``: the agent whose work it is, where that is one which a tool runs."""

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
    """None for clients that know no other outcome than success and interrupts."""


class RunError(_Event, frozen=True, kw_only=True):
    message: str
    code: str


# -- text and reasoning --


class TextMessageStart(_Attributed, frozen=True, kw_only=True):
    """``name``: the agent that speaks, where that is known."""

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
    """Without metadata where it is an answer that another client sent: clients fold metadata into the message."""

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
    """What AG-UI has no word for. Clients that do not know the name leave it alone."""

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
    """What is a ``dict`` in it came from the client."""

    messages: tuple[Message | dict[str, Any], ...]


def encode(event: AguiEvent) -> bytes:
    """The event as JSON on one line."""
    return codec.encode(event)


def encode_sse(
    events: Sequence[AguiEvent], seq: int | None = None, *, first: int | None = None, skip: int = 0
) -> bytes:
    """The events of one record, or of those from ``first`` to ``seq`` that are sent as one, as server-sent events; LF only.

    Every event has an ``id``, the ``Position`` of a client that has read it. Without ``seq`` they have none: they are not
    of the run's records, so a client that comes back has to be sent them again, or something else. ``skip`` events at the
    beginning are left out, because the client has them.
    """
    if seq is None:
        return b"".join([b"data: %b\n\n" % encode(event) for event in events])
    last = len(events)
    place = "" if first is None or first == seq else f".{first}"
    frames = []
    for number, event in enumerate(events, start=1):
        position = f"{seq}.{number}{place}" if number < last else f"{seq}"
        frames.append(b"id: %b\ndata: %b\n\n" % (position.encode(), codec.encode(event)))
    return b"".join(frames[skip:])


class Position(msgspec.Struct, frozen=True):
    """How far a client has read a run: what an SSE ``id`` says.

    ``7`` is all up to record 7. ``7.2`` is all up to record 6 and the first two events of record 7. ``7.2.4`` is all up
    to record 3 and the first two of the events that records 4 to 7 became when they were merged.
    """

    seq: int
    events: int | None = None
    """Events of the last group that were read; None if all of them were."""
    first: int | None = None

    @property
    def whole(self) -> int:
        """The last record of which everything was read."""
        return self.seq if self.events is None else (self.first or self.seq) - 1

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """The position that an id stands for; None if it is no id of ours."""
        if _POSITION.fullmatch(text) is None:
            return None
        seq, events, first = [*map(int, text.split(".")), None, None][:3]
        assert seq is not None
        return cls(seq, events, first) if first is None or 0 < first <= seq else None


_POSITION: Final = re.compile(r"\d{1,18}(\.[1-9]\d{0,8}(\.\d{1,18})?)?", re.ASCII)


def is_delta(event: AguiEvent) -> bool:
    """Whether ``merge`` may join the event with others."""
    return _merge_key(event) is not None


def merge(events: Iterable[AguiEvent]) -> list[AguiEvent]:
    """The same events with fewer deltas, for a reader that is behind: what they fold to is the same.

    Deltas of one call or message are joined where nothing but other deltas lies between them, and stand where the last
    of them stood, with its ``seq``; of progress reports of one call in such a stretch the last is kept. Nothing else
    is moved, and no two calls' first progress reports change places.
    """
    merged: list[AguiEvent] = []
    waiting: dict[tuple[type, str], list[_Mergeable]] = {}
    for event in events:
        key = _merge_key(event)
        is_second_activity = isinstance(event, ActivitySnapshot) and any(
            kind is ActivitySnapshot and key != (kind, name) for kind, name in waiting
        )
        if key is None or is_second_activity:
            merged += map(_join, waiting.values())
            waiting.clear()
        if key is None:
            merged.append(event)
        else:
            group = waiting.pop(key, [])
            group.append(event)  # type: ignore[arg-type]  # it has a key
            waiting[key] = group
    merged += map(_join, waiting.values())
    return merged


_Mergeable: TypeAlias = TextMessageContent | ReasoningMessageContent | ToolCallArgs | ActivitySnapshot


def _merge_key(event: AguiEvent) -> tuple[type, str] | None:
    match event:
        case TextMessageContent() | ReasoningMessageContent() | ActivitySnapshot():
            return type(event), event.message_id
        case ToolCallArgs():
            return type(event), event.tool_call_id
        case _:
            return None


def _join(group: list[_Mergeable]) -> AguiEvent:
    last = group[-1]
    if len(group) == 1 or isinstance(last, ActivitySnapshot):
        return last
    return msgspec.structs.replace(last, delta="".join([event.delta for event in group]))  # type: ignore[union-attr]


# -- clients before 1.0 --
#
# They declare no protocol version, and refuse what they do not know: events of agents that tools run, and most of a run's
# outcome. CopilotKit's runtime is one of them. What the outcome no longer says it finds itself: a call of a tool that it
# brought, without a result, waits for it.


def for_older_client(events: Iterable[Any]) -> list[Any]:
    """The events as such a client takes them, without what agents do that are tools."""
    known = (event for event in events if getattr(event, "subagent_run_id", None) is None)
    return [_without_news(event) for event in known]


def _without_news(event: Any) -> Any:
    match event:
        case RunFinished(outcome=Success()):
            return msgspec.structs.replace(event, outcome=Success())
        case RunFinished(outcome=Cancelled()):
            return msgspec.structs.replace(event, outcome=None)
        case MessagesSnapshot(messages=messages):
            kept = tuple(message for message in messages if getattr(message, "subagent_run_id", None) is None)
            return msgspec.structs.replace(event, messages=kept)
        case _:
            return event
