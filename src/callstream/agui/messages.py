"""The messages of a conversation as AG-UI 1.0 keeps them. As JSON: camelCase, no nulls, ``role`` names the type."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from callstream.calls import CANCELLED, Call, CallState
from callstream.errors import UsageError

AGAIN: Final = "~again-"
"""In the id of a user message that replaces an earlier one and all that followed: the earlier one's id, this, a name."""


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """``seq`` is the number of the record, in its run, that caused an event or last changed a message.

    ``client`` is a convention of the official client: the activity types for which a snapshot is authoritative.
    """

    seq: int
    client: dict[str, list[str]] | None = msgspec.field(default=None, name="@ag-ui/client")


def subagent_run_id(call_id: str) -> str:
    """AG-UI's id of the agent that the tool of a call runs."""
    return f"agent-{call_id}"


def agent_of(part: object) -> str | None:
    """The agent that a part of a run's view comes from, if a tool runs that agent."""
    within = getattr(part, "within", None)
    return None if within is None else subagent_run_id(within)


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
    """The kinds of a message's parts other than text, where the parts themselves are not known."""

    attachments: tuple[str, ...]


class UserMessage(_Message, frozen=True, tag="user"):
    content: str | list[Any]
    metadata: Attached | None = None


class SystemMessage(_Message, frozen=True, tag="system"):
    content: str


class DeveloperMessage(_Message, frozen=True, tag="developer"):
    content: str


class _Attributed(_Message, frozen=True, kw_only=True):
    """``subagent_run_id``: the agent whose message it is, if a tool runs that agent."""

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


# -- what clients send: their input, and what their answers mean -------------------------------------------------------
# The depth of a value is measured without recursion, before anything recurses into it.


_MAX_DEPTH: Final = 64
"""Models' clients, session stores and validators recurse into an answer, and each fails at some greater depth."""


class _AnyMessage(Protocol):
    @property
    def role(self) -> str: ...


_SPOKEN: Final = frozenset({"user", "assistant", "tool", "reasoning"})

MessageT = TypeVar("MessageT", bound=_AnyMessage)


def since_spoken(messages: Sequence[MessageT]) -> list[MessageT]:
    """The messages since the model's last one. Those before are in the thread's earlier runs."""
    spoken = [number for number, message in enumerate(messages, start=1) if message.role == "assistant"]
    return list(messages[spoken[-1] if spoken else 0 :])


class SentAnswer(msgspec.Struct, frozen=True):
    """A client's answer to a call, in a tool message or as the answer to an interrupt."""

    call_id: str
    said: Any = None
    error: str | None = None

    def has_lost(self, call: Call) -> bool:
        """Whether the call has its outcome, and this answer is another one."""
        if not call.is_final:
            return False
        if self.error is not None:
            return call.error != self.error
        return call.state is not CallState.COMPLETED or _said(call.result) != _said(self.said)


def answers_in(run_input: Any) -> list[SentAnswer]:
    """The answers in an AG-UI input that are new in it."""
    sent = [message for message in since_spoken(run_input.messages) if message.role == "tool"]
    return [SentAnswer(message.tool_call_id, _text_of(message.content), message.error) for message in sent] + [
        SentAnswer(entry.interrupt_id, error=CANCELLED)
        if entry.status == "cancelled"
        else SentAnswer(entry.interrupt_id, entry.payload)
        for entry in run_input.resume or ()
    ]


def lost_answers(run_input: Any, calls: Mapping[str, Call | None]) -> set[str]:
    """Those of these calls to which the client's answer came too late. ``calls``: as they are, by the client's ids."""
    found = ((answer, calls.get(answer.call_id)) for answer in answers_in(run_input))
    return {answer.call_id for answer, call in found if call is not None and answer.has_lost(call)}


def without_answers_to(calls: Collection[str], messages: Iterable[MessageT]) -> list[MessageT]:
    """A client's messages without its answers to these calls."""
    return [message for message in messages if getattr(message, "tool_call_id", None) not in calls]


def _text_of(content: Any) -> str:
    parts = [content] if isinstance(content, str) else [getattr(part, "text", None) or "" for part in content]
    return "".join(parts)


def _said(answer: Any) -> Any:
    """An answer's value; hosts keep it as such or as its text."""
    try:
        return result_value(answer) if isinstance(answer, str) else answer
    except UsageError:
        return answer


def called_in(messages: Iterable[Any]) -> dict[str, str]:
    """The names of the tools that were called according to a client's messages, by the calls' ids."""
    spoken = [message for message in messages if message.role == "assistant"]
    return {call.id: call.function.name for message in spoken for call in message.tool_calls or ()}


def as_history(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """AG-UI's messages of a conversation that began elsewhere, as they are in the first run's input, under ``history``."""
    kept = (message for message in messages if message.role in _SPOKEN)
    own = {"metadata": True, "tool_calls": {"__all__": {"metadata"}}}
    dumped = (message.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=own) for message in kept)
    return [
        {**message, "content": _text(message["content"])} if message["role"] == "tool" else message
        for message in dumped
    ]


def _text(content: Any) -> str:
    """The text of a tool's result; if that has parts, their texts."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content if part.get("type") == "text"]
    return "\n".join(texts) if texts else json.dumps(content)


def brought(run_input: Any) -> Iterator[Message]:
    """The messages of such a conversation. Those that AG-UI does not know are left out."""
    match run_input:
        case {"history": list(messages)}:
            for message in messages:
                with suppress(msgspec.ValidationError):
                    yield msgspec.convert(message, Message)


def digest_of(run_input: Any) -> str:
    """A digest of an AG-UI input, the same for equal inputs in every process. A run keeps it, to recognise a repetition."""
    text = json.dumps(run_input.model_dump(by_alias=True), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def result_value(text: str) -> Any:
    """The value of a client's answer if it is JSON (without NaN and infinite numbers), otherwise the text.

    Raises UsageError if it nests too deep: even as text, other code would parse it and fail.
    """
    too_deep = UsageError(f"expected an answer whose JSON nests at most {_MAX_DEPTH} deep")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    except RecursionError:
        raise too_deep from None
    if is_deeper(value, _MAX_DEPTH):
        raise too_deep
    return value


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays nest more than ``depth`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
    return bool(level)
