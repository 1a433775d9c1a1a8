"""Journal records of one run in, AG-UI 1.0 events out: a table over the changes of the run's view.

The view keeps the rules that the protocol has too: only open things are continued, nothing open is opened again, everything
is closed before the run ends. Ids are derived, never made up, so that every process produces the same events for a run:

- a message, and the ``parentMessageId`` of its calls: the ``message_id`` of the records;
- its reasoning, the span and the message in it: ``reasoning-<message_id>``;
- a call's result: ``result-<call_id>``; its progress: ``progress-<call_id>``;
- the agent that its tool runs, or the model that it asks: ``agent-<call_id>``.

Text and reasoning open with their first character and close when something else in their message begins; if they go on
after that, the same id is opened again, which the protocol allows. A message of a known agent that begins with a call gets
an empty text before the call, because that is where the protocol has the agent's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Self, TypeAlias, assert_never

import msgspec

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
    MessagesSnapshot,
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
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    Success,
    Suspended,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.messages import Metadata, agent_of, subagent_run_id
from callstream.calls import DECLINED, CallState, fate
from callstream.errors import UsageError
from callstream.events import (
    PIECES,
    CallDiscarded,
    CallFailed,
    CallReleased,
    CallReturned,
    DiscardReason,
    Question,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
)
from callstream.view import (
    AnswerView,
    Asked,
    Began,
    CallView,
    Closed,
    Ended,
    Grew,
    InputCame,
    MessageBegan,
    MessageView,
    Opened,
    Outcome,
    Part,
    Progressed,
    RanEarly,
    Resumed,
    RunView,
    Settled,
    Signed,
    StateMoved,
    ViewChange,
    condensed,
)

# -- what a client is shown of a run, and the texts of results ---------------------------------------------------------


_DISCARDED: Final[Mapping[DiscardReason, str]] = {
    "truncated": "the call was cut off before its arguments were complete",
    "malformed": "the arguments of the call are not valid",
    "invalid": "the arguments of the call do not fit the tool",
    "rejected": "the call was rejected",
    "aborted": "the run was stopped",
    "interrupted": "the call was interrupted",
}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is shown, and how.

    ``errors``: whether it may read the text of errors (why a run or a tool failed), which may reveal internals; without
    this it only learns that they failed. The reason that a hook gives with ``Reject`` is meant to be read and always shown.
    ``emit_interrupt_outcome``: calls that await an answer end the run as interrupts, except those of ``client_tools``
    (the names of the tools that the client brought; those in the run's journaled input are added), which it answers
    with tool messages in any case; without this, all of them are ``pendingToolCallIds``. ``response_schemas``: the JSON
    Schema of the answer, by tool name. ``silent``: the names of agents whose text is not shown, because it is meant for
    other agents. ``nested``: whether text and calls of models that tools ask, such as the agent of an AgentTool, are shown,
    as the work of a sub-agent. ``emit_messages_snapshot``: whether a run ends with all messages of its thread.
    """

    reasoning: bool = True
    errors: bool = False
    emit_interrupt_outcome: bool = False
    client_tools: frozenset[str] = frozenset()
    response_schemas: Mapping[str, dict[str, Any]] = {}
    silent: frozenset[str] = frozenset()
    nested: bool = True
    emit_messages_snapshot: bool = False

    def why_failed(self, reason: str | None) -> str:
        return f"The run failed: {reason}" if self.errors and reason else "The run failed."

    def fold(self, *, state: Any = msgspec.UNSET, is_outline: bool = False) -> RunView:
        """An empty view of a run, which will hold the parts that are shown."""
        return RunView(
            state=state, reasoning=self.reasoning, silent=self.silent, nested=self.nested, is_outline=is_outline
        )


def result_of(
    call: CallView | AnswerView,
    outcome: Outcome,
    view: View,
    metadata: Metadata | None = None,
    agent: str | None = None,
) -> ToolCallResult:
    """A call's outcome as its result, with the id of the message that brought it if a client sent one."""
    return ToolCallResult(
        message_id=sent_as(outcome) or f"result-{outcome.call_id}",
        tool_call_id=outcome.call_id,
        content=result_text(call, outcome, view),
        metadata=metadata,
        subagent_run_id=agent,
    )


def sent_as(outcome: Outcome | None) -> str | None:
    """The id of the client's message that brought the outcome; None if it came another way."""
    return outcome.message_id if isinstance(outcome, CallReturned | CallFailed) else None


def progress_of(call: CallView | AnswerView, data: Any) -> dict[str, Any]:
    """The content of an activity that shows progress. For an earlier run's call the name is not known."""
    named = {"toolCallName": call.name} if isinstance(call, CallView) else {}
    return {"toolCallId": call.call_id, **named, "progress": data}


def result_text(call: CallView | AnswerView, outcome: Outcome, view: View) -> str:
    """The text of a result: the text that a tool returned, anything else as JSON, an error as ``{"error": …}``."""
    said: Any
    match outcome:
        case CallReturned(result=str(text)):
            return text
        case CallReturned(result=result):
            said = result
        case CallFailed(error=error):
            said = {"error": error if view.errors or error in DECLINED else "the tool failed"}
        case CallDiscarded(reason=reason, detail=detail):
            error = f"{_DISCARDED[reason]}; {fate('the tool', ran_early=call.ran_early)}"
            said = {"error": error, "reason": reason}
            if detail and (view.errors or reason in ("rejected", "invalid")):
                said["detail"] = detail
        case CallReleased():
            said = {"status": "released", "detail": "the tool's outcome was not seen"}
        case _:
            assert_never(outcome)
    return codec.encode(said).decode()


TOOL_PROGRESS: Final = "tool_progress"
"""The activity type for progress."""
RUNNING_EARLY: Final = "running_early"
"""The name of the custom event for a tool that has begun while its call is being written."""


class Translator:
    """The events of one run, for a client that sees it from its beginning; ``Conversation`` is for clients that join.

    Things that the client itself has sent are not sent back: its messages, and answers to calls of earlier runs that it
    gave as tool messages (records with a ``message_id``). Answers that came another way are sent.

    If another process continues the run, text and calls of responses that were cut have to be removed. AG-UI has no event
    for that except a snapshot of all the thread's messages, which has to come before those messages are closed, because the
    end of a call makes clients run its tool. A translator knows no other run, so it only says where the snapshot belongs:
    ``snapshot_at``.

    A client also gets a snapshot before the end of a run that did not take one of its ``answers``, if another answer to that
    call was accepted: it still shows its own. Whether that is so, only the journal knows (``doubted``).

    For the same reason a call of a tool that the client runs is ended when an answer is awaited, not when its arguments are
    whole: until then its response may still be cut.
    """

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self._run = self.view.fold(is_outline=True)
        self._at_work: dict[str, bool] = {}
        """The calls whose tools have asked a model, and whether they may still do so."""
        self._client_tools = self.view.client_tools
        self._held: dict[str, list[AguiEvent]] = {}
        """The end events of the client's whole calls, until an answer is awaited."""
        self._has_ended = False
        self._owes_snapshot = False
        """Whether a client has void reasoning: only a snapshot that has other reasoning removes it."""
        self.snapshot_at: int | None = None
        """Where among the events of the last record a MESSAGES_SNAPSHOT belongs; None if it needs none."""
        self.answers: Collection[str] = ()
        """The calls that the client answers in the run's input."""
        self.doubted: Collection[str] = ()
        """If there are any, the snapshot is only needed if one of these calls has another answer than the client's."""

    @classmethod
    def resume(cls, run: RunView, view: View | None = None) -> Self:
        """The translator as if it had been fed all records of this view."""
        translator = cls(view)
        translator._run.unshown = run.unshown.copy()
        for record in condensed(run):
            translator.feed(record)
        translator._owes_snapshot = _has_reasoning(run.void.values()) and not _has_reasoning(run.messages.values())
        return translator

    def may_want_snapshot(self, record: Record) -> bool:
        """Whether ``feed`` may set ``snapshot_at`` for this record."""
        return (
            type(record.event) is RunResumed
            or (self._owes_snapshot and self._may_pay(record))
            or (type(record.event) is RunEnded and (self.view.emit_messages_snapshot or bool(self.answers)))
        )

    @property
    def seq(self) -> int:
        """The number of the last record that was fed."""
        return self._run.seq

    @property
    def open_calls(self) -> list[str]:
        """The calls that are whole, but that a client still believes are being written."""
        return [*self._held]

    def feed(self, record: Record) -> list[AguiEvent]:
        """The events of the record; many records have none."""
        if self._has_ended:
            raise UsageError(f"run {record.run_id!r} has ended; record {record.seq} cannot follow")
        if self._run.run_id is None and not isinstance(record.event, RunStarted):
            raise UsageError(f"expected the first record of run {record.run_id!r}, got record {record.seq}")
        metadata = Metadata(record.seq)
        events: list[AguiEvent] = []
        self.snapshot_at = None
        for change in self._run.feed(record):
            made = _TABLE[type(change)](self, change, metadata)
            events += _attributed(made, change) if self._at_work else made
        if self._owes_snapshot and self._may_pay(record):
            self._pay_snapshot(len(events) - isinstance(record.event, RunEnded))
        if type(record.event) is RunEnded:
            self._end_with_snapshot(len(events) - 1)
        return events

    def place(self, snapshot: MessagesSnapshot | None, events: list[AguiEvent]) -> None:
        """Puts the snapshot, if there is one, among the events of the last record. An empty one is not put at the end of a
        run; before the end it takes back void messages.
        """
        if snapshot is None or self.snapshot_at is None:
            return
        if snapshot.messages or self._run.outcome is None:
            events.insert(self.snapshot_at, snapshot)

    def _end_with_snapshot(self, place: int) -> None:
        if self.view.emit_messages_snapshot:
            self.snapshot_at = place
        elif self.snapshot_at is None:
            self.doubted = [call_id for call_id in self.answers if not self._has_outcome(call_id)]
            self.snapshot_at = place if self.doubted else None

    def _has_outcome(self, call_id: str) -> bool:
        """Whether this run recorded the call's outcome."""
        course = self._run.calls.get(call_id) or self._run.answers.get(call_id)
        return course is not None and course.outcome_seq > 0

    def _may_pay(self, record: Record) -> bool:
        """Whether a snapshot that is owed may be due. Parts that are being written end with records other than pieces."""
        return type(record.event) not in PIECES and not isinstance(record.event, RunResumed)

    def _pay_snapshot(self, place: int) -> None:
        """Clients do not continue half-written parts of a snapshot, so it waits until nothing is being written."""
        if not self._run.open_parts and _has_reasoning(self._run.messages.values()):
            self._owes_snapshot = False
            self.snapshot_at = place

    def end(self) -> list[AguiEvent]:
        """For a stream that has to end before its run: tells the client so, which a mere end would not."""
        if self._has_ended:
            return []
        self._has_ended = True
        metadata = Metadata(self.seq)
        closing = [event for part in self._run.open_parts for event in _attributed(_ends(part, metadata), Closed(part))]
        return [
            *closing,
            *self._release([*self._held]),
            RunError(message="The stream ended before the run did.", code="incomplete", metadata=metadata),
        ]

    # -- change by change --

    def _began(self, change: Began, metadata: Metadata) -> list[AguiEvent]:
        self._client_tools |= tools_in(change.input)
        thread_id, run_id = self._run.thread_id or "", self._run.run_id or ""
        version = PROTOCOL_VERSION
        return [AguiRunStarted(thread_id=thread_id, run_id=run_id, protocol_version=version, metadata=metadata)]

    def _opened(self, change: Opened, metadata: Metadata) -> list[AguiEvent]:
        part = change.part
        if part.within is not None and part.within not in self._at_work:
            return [self._agent_started(part.within, part, metadata), *self._opened(change, metadata)]
        if isinstance(part, CallView):
            parent_id = part.message_id
            start = ToolCallStart(
                tool_call_id=part.call_id, tool_call_name=part.name, parent_message_id=parent_id, metadata=metadata
            )
            signed = [] if part.signature is None else [_signature(part, metadata)]
            return [*self._named(part, metadata), start, *signed]
        if part.kind == "text":
            who = part.author
            return [TextMessageStart(message_id=part.message_id, role="assistant", name=who, metadata=metadata)]
        thought = thought_id(part.message_id)
        return [
            ReasoningStart(message_id=thought, metadata=metadata),
            ReasoningMessageStart(message_id=thought, role="reasoning", metadata=metadata),
        ]

    def _named(self, call: CallView, metadata: Metadata) -> list[AguiEvent]:
        """An empty text that names the author of a message which begins with this call: only a text's start has a name."""
        message = self._run.messages[call.message_id]
        if message.author is None or message.spoken[0] is not call:
            return []
        return [
            TextMessageStart(message_id=call.message_id, role="assistant", name=message.author, metadata=metadata),
            TextMessageEnd(message_id=call.message_id, metadata=metadata),
        ]

    def _grew(self, change: Grew, metadata: Metadata) -> list[AguiEvent]:
        part = change.part
        if isinstance(part, CallView):
            return [ToolCallArgs(tool_call_id=part.call_id, delta=change.json, metadata=metadata)]
        if part.kind == "text":
            return [TextMessageContent(message_id=part.message_id, delta=change.text, metadata=metadata)]
        thought = thought_id(part.message_id)
        return [ReasoningMessageContent(message_id=thought, delta=change.text, metadata=metadata)]

    def _closed(self, change: Closed, metadata: Metadata) -> list[AguiEvent]:
        part = change.part
        ends = _ends(part, metadata)
        if isinstance(part, CallView) and part.name in self._client_tools:
            self._held[part.call_id] = _attributed(ends, change)
            return []
        return ends

    def _asked(self, change: Asked, metadata: Metadata) -> list[AguiEvent]:
        """Awaited calls are listed at the end of the run."""
        return self._held.pop(change.call.call_id, [])

    def _release(self, call_ids: Iterable[str]) -> list[AguiEvent]:
        return [event for call_id in call_ids for event in self._held.pop(call_id, ())]

    def _signed(self, change: Signed, metadata: Metadata) -> list[AguiEvent]:
        return [_signature(change.call, metadata)]

    def _ran_early(self, change: RanEarly, metadata: Metadata) -> list[AguiEvent]:
        about = {"toolCallId": change.call.call_id, "toolCallName": change.call.name}
        return [Custom(name=RUNNING_EARLY, value=about, metadata=metadata)]

    def _progressed(self, change: Progressed, metadata: Metadata) -> list[AguiEvent]:
        return [
            ActivitySnapshot(
                message_id=f"progress-{change.call.call_id}",
                activity_type=TOOL_PROGRESS,
                content=progress_of(change.call, change.data),
                replace=True,
                metadata=metadata,
            )
        ]

    def _settled(self, change: Settled, metadata: Metadata) -> list[AguiEvent]:
        call, outcome = change.call, change.outcome
        if isinstance(call, AnswerView) and sent_as(outcome) is not None:
            return []  # the client sent this answer itself
        ended = self._agent_ended(call, outcome, metadata)
        closed = self._release([call.call_id])
        if change.cut_off:
            closed = [ToolCallEnd(tool_call_id=call.call_id, metadata=metadata)]
        return [*ended, *closed, result_of(call, outcome, self.view, metadata)]

    def _agent_started(self, call_id: str, part: Part, metadata: Metadata) -> AguiEvent:
        self._at_work[call_id] = True
        call = self._run.calls.get(call_id)  # a call of an earlier run is not known
        return SubagentStarted(
            subagent_run_id=subagent_run_id(call_id),
            name=part.author or "agent" if call is None else call.name,
            parent_tool_call_id=call_id,
            parent_message_id=None if call is None else call.message_id,
            parent_subagent_run_id=agent_of(call),
            metadata=metadata,
        )

    def _agent_ended(self, call: CallView | AnswerView, outcome: Outcome, metadata: Metadata) -> list[AguiEvent]:
        if not self._at_work.get(call.call_id):
            return []
        self._at_work[call.call_id] = False
        named = subagent_run_id(call.call_id)
        if isinstance(outcome, CallReturned):
            return [SubagentFinished(subagent_run_id=named, metadata=metadata)]
        return [SubagentError(subagent_run_id=named, message=result_text(call, outcome, self.view), metadata=metadata)]

    def _state_moved(self, change: StateMoved, metadata: Metadata) -> list[AguiEvent]:
        if change.patch is None:
            return [StateSnapshot(snapshot=change.state, metadata=metadata)]
        return [StateDelta(delta=change.patch, metadata=metadata)]

    def _resumed(self, change: Resumed, metadata: Metadata) -> list[AguiEvent]:
        """Results are not mentioned: with the snapshot, the calls are gone."""
        if not any(message.parts for message in change.void):
            return []
        self.snapshot_at = 0
        if _has_reasoning(change.void):
            self._owes_snapshot = not _has_reasoning(self._run.messages.values())
        called = [call.call_id for message in change.void for call in message.calls]
        closing = [event for part in change.cut_off for event in _attributed(_ends(part, metadata), Closed(part))]
        return [*closing, *self._release(called)] + [
            SubagentFinished(subagent_run_id=subagent_run_id(call_id), metadata=metadata)
            for call_id in reversed(called)
            if self._at_work.pop(call_id, False)
        ]

    def _ended(self, change: Ended, metadata: Metadata) -> list[AguiEvent]:
        self._has_ended = True
        outcome, reason = self._run.outcome, self._run.reason
        assert outcome is not None
        waiting: list[AguiEvent] = [
            SubagentFinished(subagent_run_id=subagent_run_id(call_id), outcome=Suspended(), metadata=metadata)
            for call_id, is_at_work in self._at_work.items()
            if is_at_work
        ]
        waiting += self._release([*self._held])
        match outcome:
            case "finished":
                return [*waiting, self._finished(self._waiting_for(), metadata)]
            case "cancelled":
                return [*waiting, self._finished(Cancelled(), metadata)]
            case "failed":
                code = "interrupted" if reason == "interrupted" else "failed"
                return [RunError(message=self.view.why_failed(reason), code=code, metadata=metadata)]
            case _:
                assert_never(outcome)

    def _waiting_for(self) -> Success | Interrupted:
        waiting = [call for call in self._run.calls.values() if call.state is CallState.AWAITING and not call.is_paused]
        asked = [call for call in waiting if call.name not in self._client_tools]
        if asked and self.view.emit_interrupt_outcome:
            return Interrupted(interrupts=tuple(map(self._interrupt, asked)))
        return Success(pending_tool_call_ids=tuple(call.call_id for call in waiting) or None)

    def _interrupt(self, call: CallView) -> Interrupt:
        asked = call.question or Question()
        return Interrupt(
            id=call.call_id,
            reason=asked.reason,
            message=asked.message or f"{call.name} awaits an answer.",
            tool_call_id=call.call_id,
            response_schema=asked.response_schema or self.view.response_schemas.get(call.name),
            metadata=asked.metadata,
        )

    def _finished(self, outcome: Success | Interrupted | Cancelled, metadata: Metadata) -> AguiEvent:
        thread_id, run_id = self._run.thread_id or "", self._run.run_id or ""
        return RunFinished(thread_id=thread_id, run_id=run_id, outcome=outcome, metadata=metadata)

    def _nothing(self, change: InputCame | MessageBegan, metadata: Metadata) -> list[AguiEvent]:
        return []


_Row: TypeAlias = Callable[[Translator, Any, Metadata], list[AguiEvent]]

_TABLE: Final[dict[type[Any], _Row]] = {
    Began: Translator._began,
    Opened: Translator._opened,
    Grew: Translator._grew,
    Closed: Translator._closed,
    Signed: Translator._signed,
    RanEarly: Translator._ran_early,
    Progressed: Translator._progressed,
    Settled: Translator._settled,
    StateMoved: Translator._state_moved,
    Resumed: Translator._resumed,
    Asked: Translator._asked,
    Ended: Translator._ended,
    # A client has its own messages.
    InputCame: Translator._nothing,
    MessageBegan: Translator._nothing,
}


def _attributed(events: list[AguiEvent], change: ViewChange) -> list[AguiEvent]:
    """The events of a change, attributed to the agent whose work it is, if a tool runs that agent."""
    named = agent_of(getattr(change, "part", None) or getattr(change, "call", None))
    if named is None:
        return events
    return [
        event
        if isinstance(event, SubagentStarted | SubagentFinished | SubagentError)
        else msgspec.structs.replace(event, subagent_run_id=named)
        for event in events
    ]


def _ends(part: Part, metadata: Metadata) -> list[AguiEvent]:
    if isinstance(part, CallView):
        return [ToolCallEnd(tool_call_id=part.call_id, metadata=metadata)]
    if part.kind == "text":
        return [TextMessageEnd(message_id=part.message_id, metadata=metadata)]
    thought = thought_id(part.message_id)
    return [
        ReasoningMessageEnd(message_id=thought, metadata=metadata),
        ReasoningEnd(message_id=thought, metadata=metadata),
    ]


def _signature(call: CallView, metadata: Metadata) -> AguiEvent:
    return ReasoningEncryptedValue(
        subtype="tool-call", entity_id=call.call_id, encrypted_value=call.signature or "", metadata=metadata
    )


def _has_reasoning(messages: Iterable[MessageView]) -> bool:
    return any(each.passages("reasoning") for each in messages)


def thought_id(message_id: str) -> str:
    return f"reasoning-{message_id}"


def tools_in(run_input: Any) -> frozenset[str]:
    """The names of the tools that a client brought, if the run's input is AG-UI's."""
    match run_input:
        case {"tools": list(tools)}:
            return frozenset(tool["name"] for tool in tools if isinstance(tool, dict) and "name" in tool)
        case _:
            return frozenset()
