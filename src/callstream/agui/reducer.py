"""Messages and state out of AG-UI events, by the rules of the official client's reducer.

Only events that Callstream sends are taken, so each rule is the short form of the official one. Text is kept in pieces
and joined when somebody asks, and every message has a list of the results behind it, so that an event costs the same
however much came before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import Any, assert_never

import msgspec

from callstream.agui.events import (
    ActivitySnapshot,
    AguiEvent,
    MessagesSnapshot,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.jsonpatch import patched
from callstream.agui.messages import (
    ActivityMessage,
    AssistantMessage,
    FunctionCall,
    Message,
    Metadata,
    ReasoningMessage,
    ToolCall,
    ToolMessage,
)
from callstream.errors import UsageError


class _CallDraft:
    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.metadata: Metadata | None = None

    def call(self) -> ToolCall:
        return ToolCall(
            id=self.call_id,
            function=FunctionCall(name=self.name, arguments="".join(self.pieces)),
            encrypted_value=self.signature,
            metadata=self.metadata,
        )


class _Draft(ABC):
    """A message, and the results that stand behind it."""

    def __init__(self) -> None:
        self.results: list[Message] = []

    @abstractmethod
    def message(self) -> Message: ...


class _AssistantDraft(_Draft):
    def __init__(self, message_id: str) -> None:
        super().__init__()
        self.message_id = message_id
        self.pieces: list[str] = []
        self.calls: list[_CallDraft] = []
        self.metadata: Metadata | None = None

    def message(self) -> Message:
        return AssistantMessage(
            id=self.message_id,
            content="".join(self.pieces) if self.pieces else None,
            tool_calls=tuple(draft.call() for draft in self.calls) or None,
            metadata=self.metadata,
        )


class _ReasoningDraft(_Draft):
    def __init__(self, message_id: str) -> None:
        super().__init__()
        self.message_id = message_id
        self.pieces: list[str] = []
        self.metadata: Metadata | None = None

    def message(self) -> Message:
        return ReasoningMessage(id=self.message_id, content="".join(self.pieces), metadata=self.metadata)


class _ActivityDraft(_Draft):
    def __init__(self, latest: ActivitySnapshot) -> None:
        super().__init__()
        self.latest = latest

    def message(self) -> Message:
        return ActivityMessage(
            id=self.latest.message_id,
            activity_type=self.latest.activity_type,
            content=self.latest.content,
            metadata=self.latest.metadata,
        )


class _Finished(_Draft):
    """A message that does not change any more."""

    def __init__(self, whole: Message) -> None:
        super().__init__()
        self.whole = whole

    def message(self) -> Message:
        return self.whole


class Reducer:
    """What a client holds. ``state`` is ``msgspec.UNSET`` until something sets it."""

    def __init__(self) -> None:
        self.state: Any = msgspec.UNSET
        self._messages: list[_Draft] = []
        self._assistants: dict[str, _AssistantDraft] = {}
        self._reasonings: dict[str, _ReasoningDraft] = {}
        self._activities: dict[str, _ActivityDraft] = {}
        self._calls: dict[str, tuple[_AssistantDraft, _CallDraft]] = {}
        self.late_results: list[ToolCallResult] = []
        """Results that came when other messages stood behind their call's already, in the order they came."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(chain.from_iterable((draft.message(), *draft.results) for draft in self._messages))

    def add(self, message: Message) -> None:
        """Puts a message that a client sent at the end."""
        self._messages.append(_Finished(message))

    def apply(self, event: AguiEvent) -> None:
        match event:
            case TextMessageStart() | TextMessageEnd():
                self._assistant(event.message_id).metadata = event.metadata
            case TextMessageContent():
                assistant = self._assistant(event.message_id)
                assistant.pieces.append(event.delta)
                assistant.metadata = event.metadata
            case ReasoningMessageStart() | ReasoningMessageEnd():
                self._reasoning(event.message_id).metadata = event.metadata
            case ReasoningMessageContent():
                reasoning = self._reasoning(event.message_id)
                reasoning.pieces.append(event.delta)
                reasoning.metadata = event.metadata
            case ToolCallStart():
                self._start(event)
            case ToolCallArgs():
                _, call = self._calls[event.tool_call_id]
                call.pieces.append(event.delta)
                call.metadata = event.metadata
            case ToolCallEnd():
                self._calls[event.tool_call_id][1].metadata = event.metadata
            case ToolCallResult():
                self._answer(event)
            case ReasoningEncryptedValue():
                if event.entity_id in self._calls:
                    self._calls[event.entity_id][1].signature = event.encrypted_value
            case ActivitySnapshot():
                self._activity(event)
            case StateSnapshot():
                self.state = event.snapshot
            case StateDelta():
                self._patch(event)
            case RunStarted() | RunFinished() | RunError() | ReasoningStart() | ReasoningEnd() | MessagesSnapshot():
                pass
            case _:
                assert_never(event)

    def _assistant(self, message_id: str) -> _AssistantDraft:
        if message_id not in self._assistants:
            draft = self._assistants[message_id] = _AssistantDraft(message_id)
            self._messages.append(draft)
        return self._assistants[message_id]

    def _reasoning(self, message_id: str) -> _ReasoningDraft:
        if message_id not in self._reasonings:
            draft = self._reasonings[message_id] = _ReasoningDraft(message_id)
            self._messages.append(draft)
        return self._reasonings[message_id]

    def _start(self, event: ToolCallStart) -> None:
        owner = self._assistant(event.parent_message_id)
        call = _CallDraft(event.tool_call_id, event.tool_call_name)
        call.metadata = event.metadata
        owner.calls.append(call)
        self._calls[event.tool_call_id] = (owner, call)

    def _answer(self, event: ToolCallResult) -> None:
        """Puts a result behind the message that made the call, and behind the results that stand there."""
        result = ToolMessage(
            id=event.message_id, tool_call_id=event.tool_call_id, content=event.content, metadata=event.metadata
        )
        if event.tool_call_id in self._calls:
            owner: _Draft = self._calls[event.tool_call_id][0]
            if owner is not self._messages[-1]:
                self.late_results.append(event)
            owner.results.append(result)
        elif self._messages:
            self._messages[-1].results.append(result)
        else:
            self._messages.append(_Finished(result))

    def _activity(self, event: ActivitySnapshot) -> None:
        if event.message_id in self._activities:
            self._activities[event.message_id].latest = event
        else:
            draft = self._activities[event.message_id] = _ActivityDraft(event)
            self._messages.append(draft)

    def _patch(self, event: StateDelta) -> None:
        try:
            self.state = patched({} if self.state is msgspec.UNSET else self.state, event.delta)
        except UsageError:
            pass  # The client keeps its state when a patch does not apply, so what it has is still this one.
