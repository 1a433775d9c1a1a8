"""Journal records of one run in, AG-UI 1.0 events out.

What the rules of the protocol are, the translator keeps: the first event is RUN_STARTED, nothing is continued that is
not open, nothing open is opened again, everything is closed before the run ends, nothing comes after its end. Ids are
derived, never made up, so that every process tells the same story of a run:

- a message, and the ``parentMessageId`` of its calls: the ``message_id`` of the records;
- its reasoning, the span and the message in it: ``reasoning-<message_id>``;
- a call's result: ``result-<call_id>``; its progress: ``progress-<call_id>``.

Text and reasoning open with their first character and close when something else of their message begins; where they go
on after that, the same id is opened again, which the protocol allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, Final, Self, assert_never

from callstream import codec
from callstream.agui.events import (
    PROTOCOL_VERSION,
    ActivitySnapshot,
    AguiEvent,
    AguiRunStarted,
    Cancelled,
    Custom,
    Interrupt,
    Interrupted,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    StateDelta,
    StateSnapshot,
    Success,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.messages import Metadata
from callstream.agui.shown import View, result_text
from callstream.calls import CallState
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    Question,
    ReasoningAppended,
    Record,
    ResponseEnded,
    RunEnded,
    RunOutcome,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.view import CallView, Passage, RunView, message_of

TOOL_PROGRESS: Final = "tool_progress"
"""The activity type of progress."""
RUNNING_EARLY: Final = "running_early"
"""The name of the custom event that says that a tool has begun while its call is being written."""


class _Stage(Enum):
    OPEN = auto()
    """Its arguments are being written: START was sent, END was not."""
    CLOSED = auto()
    AWAITING = auto()
    PAUSED = auto()
    """Another call asks about it, and that one is to be answered."""
    ANSWERED = auto()


class _Call:
    """A call of the run: how far the client knows it."""

    __slots__ = ("call_id", "is_text", "message_id", "name", "question", "stage", "wrote")

    def __init__(self, started: CallStarted | CallView, message_id: str) -> None:
        self.call_id = started.call_id
        self.name = started.name
        self.message_id = message_id
        self.is_text = started.encoding == "text"
        self.stage = _Stage.OPEN
        self.question = Question()
        self.wrote = False


class Translator:
    """The events of one run, for a client that sees it from its beginning; ``Conversation`` is for those who join.

    What the client itself has sent is not sent back: its messages, and answers to calls of earlier runs that it gave as
    tool messages (records with a ``message_id``). Answers that came another way are.
    """

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self.seq = 0
        """The number of the last record taken in."""
        self._run: AguiRunStarted | None = None
        self._is_over = False
        self._texts: dict[str, None] = {}  # open messages, in the order in which they were opened
        self._thoughts: dict[str, None] = {}
        self._calls: dict[str, _Call] = {}
        self._client_tools = self.view.client_tools

    @classmethod
    def resume(cls, run: RunView, view: View | None = None) -> Self:
        """The translator that has been fed all records of which this is the view."""
        translator = cls(view)
        translator._start(run.run_id or "", run.thread_id or "", run.input)
        translator.seq = run.seq
        translator._is_over = run.outcome is not None
        for passage in open_passages(run, translator.view):
            opened = translator._texts if passage.kind == "text" else translator._thoughts
            opened[passage.message_id] = None
        for call in run.calls.values():
            known = translator._calls[call.call_id] = _Call(call, call.message_id)
            known.stage = _stage_of(call)
            known.question = call.question or known.question
            known.wrote = call.has_pieces
        return translator

    def feed(self, record: Record) -> list[AguiEvent]:
        """What the client is to be told of the record; nothing, for many of them."""
        if self._is_over:
            raise UsageError(f"run {record.run_id!r} has ended; record {record.seq} cannot follow")
        if self._run is None and not isinstance(record.event, RunStarted):
            raise UsageError(f"expected the first record of run {record.run_id!r}, got record {record.seq}")
        self.seq = record.seq
        return list(self._events(record))

    def end(self) -> list[AguiEvent]:
        """For a stream that has to end before its run: the client is told so, which a mere end would not tell it."""
        if self._is_over:
            return []
        closing = [*self._closing_texts(), *(self._end_of(call) for call in self._open_calls())]
        self._is_over = True
        return [*closing, self._error("The stream ended before the run did.", "incomplete")]

    def knows(self, call_id: str) -> bool:
        """Whether the call is of this run."""
        return call_id in self._calls

    # -- record by record --

    def _events(self, record: Record) -> Iterator[AguiEvent]:
        match record.event:
            # A run is made of these two mostly, so they are asked for first.
            case ArgsAppended(call_id=call_id, text=text):
                yield from self._written(self._calls[call_id], text)
            case TextAppended(message_id=message_id, text=text):
                yield from self._text(message_id, text)
            case RunStarted(thread_id=thread_id, input=given):
                yield self._start(record.run_id, thread_id, given)
            case ReasoningAppended(message_id=message_id, text=text):
                yield from self._thought(message_id, text)
            case MessageEnded(message_id=message_id):
                yield from self._closing(message_id)
            case CallStarted() as started:
                yield from self._started(started, record.response_id)
            case CallSigned(call_id=call_id, signature=signature):
                yield self._signed(call_id, signature)
            case CallCompleted(call_id=call_id, args_json=whole):
                yield from self._completed(self._calls[call_id], whole)
            case CallAwaiting(call_id=call_id, question=question, is_paused=is_paused):
                if call_id in self._calls:
                    call = self._calls[call_id]
                    call.stage = _Stage.PAUSED if is_paused else _Stage.AWAITING
                    call.question = question or call.question
            case CallRunningEarly(call_id=call_id):
                about = {"toolCallId": call_id, "toolCallName": self._calls[call_id].name}
                yield Custom(name=RUNNING_EARLY, value=about, metadata=self._metadata)
            case CallProgressed(call_id=call_id, data=data):
                yield self._progress(call_id, data)
            case CallReturned() | CallFailed() | CallDiscarded() | CallReleased() as outcome:
                yield from self._outcome(outcome)
            case StateChanged(snapshot=snapshot, patch=patch):
                if patch is None:
                    yield StateSnapshot(snapshot=snapshot, metadata=self._metadata)
                else:
                    yield StateDelta(delta=patch, metadata=self._metadata)
            case RunEnded() as ended:
                yield from self._ended(ended)
            case MessageStarted() | MessageReceived() | ResponseEnded() | CallExecuting():
                pass
            case _:
                assert_never(record.event)

    @property
    def _metadata(self) -> Metadata:
        return Metadata(self.seq)

    def _start(self, run_id: str, thread_id: str, run_input: Any) -> AguiEvent:
        self._client_tools |= tools_in(run_input)
        self._run = AguiRunStarted(
            thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION, metadata=Metadata(1)
        )
        return self._run

    # -- text and reasoning --

    def _text(self, message_id: str, text: str) -> Iterator[AguiEvent]:
        if not text:
            return
        yield from self._closing_thought(message_id)
        if message_id not in self._texts:
            self._texts[message_id] = None
            yield TextMessageStart(message_id=message_id, role="assistant", metadata=self._metadata)
        yield TextMessageContent(message_id=message_id, delta=text, metadata=self._metadata)

    def _thought(self, message_id: str, text: str) -> Iterator[AguiEvent]:
        if not text or not self.view.reasoning:
            return
        yield from self._closing_text(message_id)
        if message_id not in self._thoughts:
            self._thoughts[message_id] = None
            yield from _thought_starts(message_id, self._metadata)
        yield ReasoningMessageContent(message_id=_thought_id(message_id), delta=text, metadata=self._metadata)

    def _closing(self, message_id: str) -> Iterator[AguiEvent]:
        yield from self._closing_thought(message_id)
        yield from self._closing_text(message_id)

    def _closing_text(self, message_id: str) -> Iterator[AguiEvent]:
        if message_id in self._texts:
            del self._texts[message_id]
            yield TextMessageEnd(message_id=message_id, metadata=self._metadata)

    def _closing_thought(self, message_id: str) -> Iterator[AguiEvent]:
        if message_id in self._thoughts:
            del self._thoughts[message_id]
            yield ReasoningMessageEnd(message_id=_thought_id(message_id), metadata=self._metadata)
            yield ReasoningEnd(message_id=_thought_id(message_id), metadata=self._metadata)

    def _closing_texts(self) -> Iterator[AguiEvent]:
        for message_id in [*self._thoughts, *self._texts]:
            yield from self._closing(message_id)

    # -- calls --

    def _open_calls(self) -> list[_Call]:
        return [call for call in self._calls.values() if call.stage is _Stage.OPEN]

    def _started(self, started: CallStarted, response_id: str | None) -> Iterator[AguiEvent]:
        message_id = message_of(started, response_id)
        yield from self._closing(message_id)
        call = self._calls[started.call_id] = _Call(started, message_id)
        yield _call_start(call, self._metadata)
        if started.signature is not None:
            yield self._signed(started.call_id, started.signature)

    def _signed(self, call_id: str, signature: str) -> AguiEvent:
        return ReasoningEncryptedValue(
            subtype="tool-call", entity_id=call_id, encrypted_value=signature, metadata=self._metadata
        )

    def _written(self, call: _Call, text: str) -> list[AguiEvent]:
        """Argument text. AG-UI's is JSON, so the input of a free-text tool goes out as the inside of a JSON string."""
        if call.is_text:
            text = codec.encode(text).decode()[1:-1]
            text = text if call.wrote else f'"{text}'
        if not text:
            return []
        call.wrote = True
        return [ToolCallArgs(tool_call_id=call.call_id, delta=text, metadata=Metadata(self.seq))]

    def _completed(self, call: _Call, whole: str | None) -> Iterator[AguiEvent]:
        rest = ""
        if not call.wrote:  # it came without pieces
            rest = whole or ('""' if call.is_text else "{}")
        elif call.is_text:
            rest = '"'
        if rest:
            yield ToolCallArgs(tool_call_id=call.call_id, delta=rest, metadata=self._metadata)
        yield self._end_of(call)

    def _end_of(self, call: _Call) -> AguiEvent:
        call.stage = _Stage.CLOSED
        return ToolCallEnd(tool_call_id=call.call_id, metadata=self._metadata)

    def _progress(self, call_id: str, data: Any) -> AguiEvent:
        call = self._calls.get(call_id)
        name = {} if call is None else {"toolCallName": call.name}
        return ActivitySnapshot(
            message_id=f"progress-{call_id}",
            activity_type=TOOL_PROGRESS,
            content={"toolCallId": call_id, **name, "progress": data},
            replace=True,
            metadata=self._metadata,
        )

    def _outcome(self, outcome: CallReturned | CallFailed | CallDiscarded | CallReleased) -> Iterator[AguiEvent]:
        call = self._calls.get(outcome.call_id)
        sent_as = outcome.message_id if isinstance(outcome, CallReturned | CallFailed) else None
        if call is None and sent_as is not None:
            return  # the client brought this answer, so it has it
        if call is not None:
            if call.stage is _Stage.OPEN:
                yield self._end_of(call)
            call.stage = _Stage.ANSWERED
        yield ToolCallResult(
            message_id=sent_as or f"result-{outcome.call_id}",
            tool_call_id=outcome.call_id,
            content=result_text(outcome, self.view),
            metadata=self._metadata,
        )

    # -- the end --

    def _ended(self, ended: RunEnded) -> Iterator[AguiEvent]:
        yield from self._closing_texts()
        for call in self._calls.values():
            # A journal closes every call before its run; should one be left, the client must not take it for pending.
            if call.stage in (_Stage.OPEN, _Stage.CLOSED):
                yield from self._outcome(CallDiscarded(call.call_id, "interrupted"))
        self._is_over = True
        yield self._last_event(ended.outcome, ended.reason)

    def _last_event(self, outcome: RunOutcome, reason: str | None) -> AguiEvent:
        match outcome:
            case "finished":
                return self._finished(self._waiting_for())
            case "cancelled":
                return self._finished(Cancelled())
            case "failed":
                told = f": {reason}" if self.view.errors and reason else ""
                code = "interrupted" if reason == "interrupted" else "failed"
                return self._error(f"The run failed{told or '.'}", code)
            case _:
                assert_never(outcome)

    def _waiting_for(self) -> Success | Interrupted:
        waiting = [call for call in self._calls.values() if call.stage is _Stage.AWAITING]
        asked = [call for call in waiting if call.name not in self._client_tools]
        if asked and self.view.emit_interrupt_outcome:
            return Interrupted(interrupts=tuple(map(self._interrupt, asked)))
        return Success(pending_tool_call_ids=tuple(call.call_id for call in waiting) or None)

    def _interrupt(self, call: _Call) -> Interrupt:
        asked = call.question
        return Interrupt(
            id=call.call_id,
            reason=asked.reason,
            message=asked.message or f"{call.name} awaits an answer.",
            tool_call_id=call.call_id,
            response_schema=asked.response_schema or self.view.response_schemas.get(call.name),
            metadata=asked.metadata,
        )

    def _finished(self, outcome: Success | Interrupted | Cancelled) -> AguiEvent:
        assert self._run is not None
        return RunFinished(
            thread_id=self._run.thread_id, run_id=self._run.run_id, outcome=outcome, metadata=self._metadata
        )

    def _error(self, message: str, code: str) -> AguiEvent:
        return RunError(message=message, code=code, metadata=self._metadata)


def open_passages(run: RunView, view: View) -> list[Passage]:
    """What is being said at the moment, in the order in which it began.

    Reasoning that is not shown ends no text.
    """
    found = []
    for message in run.messages.values():
        passage = message.open_passage
        if passage is not None and passage.kind == "reasoning" and not view.reasoning:
            before = message.parts[-2] if len(message.parts) > 1 else None
            passage = before if isinstance(before, Passage) else None
        if passage is not None:
            found.append(passage)
    return sorted(found, key=lambda passage: passage.first_seq)


def _stage_of(call: CallView) -> _Stage:
    if call.outcome is not None:
        return _Stage.ANSWERED
    if call.state is CallState.AWAITING:
        return _Stage.PAUSED if call.is_paused else _Stage.AWAITING
    return _Stage.OPEN if call.is_being_written else _Stage.CLOSED


def tools_in(run_input: Any) -> frozenset[str]:
    """The names of the tools that a client brought, where the run's input is AG-UI's."""
    match run_input:
        case {"tools": list(tools)}:
            return frozenset(tool["name"] for tool in tools if isinstance(tool, dict) and "name" in tool)
        case _:
            return frozenset()


def _thought_id(message_id: str) -> str:
    return f"reasoning-{message_id}"


def _thought_starts(message_id: str, metadata: Metadata) -> list[AguiEvent]:
    thought_id = _thought_id(message_id)
    return [
        ReasoningStart(message_id=thought_id, metadata=metadata),
        ReasoningMessageStart(message_id=thought_id, role="reasoning", metadata=metadata),
    ]


def _call_start(call: _Call, metadata: Metadata) -> AguiEvent:
    return ToolCallStart(
        tool_call_id=call.call_id,
        tool_call_name=call.name,
        parent_message_id=call.message_id,
        metadata=metadata,
    )
