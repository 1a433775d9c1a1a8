"""A thread as its clients see it: the messages and the state of a client that saw all of it, and how others join.

``Conversation`` is made of the views of the thread's runs (``callstream.view``). A client that comes later gets the
prelude: RUN_STARTED, a snapshot of the messages up to the first that is being written, the state, and from that message on
everything again, each text and each call's arguments in one piece; after that, only what is new, which ``Onlooker`` tells.
The order and the metadata of messages are those that the official client gives them when it gets all events one by one.

No half of anything is in the snapshot: clients that build a message from its parts do not continue one that they did not
see begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Self

import msgspec

from callstream.agui.events import (
    ActivitySnapshot,
    AguiEvent,
    Custom,
    MessagesSnapshot,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    StateSnapshot,
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.layout import Layout, RunInput, reasoning_message
from callstream.agui.messages import AssistantMessage, Message, Metadata, ReasoningMessage
from callstream.agui.translator import TOOL_PROGRESS, Translator, View, result_text
from callstream.errors import UsageError, warn_of_name
from callstream.events import (
    CallFailed,
    CallReturned,
    MessageReceived,
    MessageStarted,
    Record,
    RunEvent,
    RunStarted,
    in_order,
)
from callstream.view import CallView, MessageView, Part, Passage, RunView, condensed

# The snapshot says all there is to say about progress; activities that an application shows by itself are its own.
_OWNED: Final = {"authoritativeActivityTypes": [TOOL_PROGRESS]}
# A client that joins gets all agents that are at work, so that it knows what is whose.
_LIVES: Final = (SubagentStarted, SubagentFinished, SubagentError)


class Onlooker:
    """A run for a client that did not ask for it: what the translator says, and what else a client sent.

    ``known``: the ids of messages that were sent before. No text is kept here.
    """

    def __init__(self, view: View | None = None, known: Iterable[str] = ()) -> None:
        self.view = view or View()
        self._translator = Translator(self.view)
        self._input = RunInput()
        self._known = set(known)
        self._has_message = False

    @property
    def snapshot_at(self) -> int | None:
        """Where among the events of the last record a snapshot of all messages belongs; None if that has to have none."""
        return 0 if self._has_message else self._translator.snapshot_at

    def may_want_snapshot(self, record: Record) -> bool:
        """Whether ``feed`` may set ``snapshot_at`` for this record."""
        return isinstance(record.event, MessageReceived) or self._translator.may_want_snapshot(record)

    @classmethod
    def resume(cls, run: RunView, view: View, known: Iterable[str]) -> Self:
        """The onlooker that has been fed all records of which this is the view."""
        onlooker = cls(view, known)
        onlooker._translator = Translator.resume(run, view)
        onlooker._input = RunInput(run.run_id, run.input)
        onlooker._input.messages(run)
        return onlooker

    def feed(self, record: Record) -> tuple[list[AguiEvent], Message | None]:
        """The record's events for a client, or a message of another client, for which there are no events.

        The client gets such a message with a snapshot of them all, see ``snapshot_at``.
        """
        self._has_message = False
        events = [*self._translator.feed(record), *self._answers(record.event)]
        match record.event:
            case RunStarted(input=run_input):
                self._input = RunInput(record.run_id, run_input)
            case MessageStarted() | CallReturned() | CallFailed():
                self._input.is_over = True
            case MessageReceived() as received:
                message = self._input.message(received, record.seq)
                if message is not None and message.id not in self._known:
                    self._known.add(message.id)
                    self._has_message = True
                    return events, message
        return events, None

    def _answers(self, event: RunEvent) -> list[AguiEvent]:
        """An answer that only the client has which sent it. Without metadata, for there it has none either."""
        match event:
            case CallReturned(message_id=str(message_id)) | CallFailed(message_id=str(message_id)):
                if self._translator.knows(event.call_id):
                    return []  # all clients have it
                content = result_text(event, self.view)
                return [ToolCallResult(message_id=message_id, tool_call_id=event.call_id, content=content)]
            case _:
                return []


class Conversation:
    """Records of a thread's runs in, one run after the other; ``messages``, ``state`` and a prelude out."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self._past = Layout(self.view)  # of the runs before the last one
        self._left_out: set[str] = set()  # what they have said that is not shown
        self._run = self.view.fold()
        self._onlooker: Onlooker | None = None

    @classmethod
    def of(cls, records: Iterable[Record], view: View | None = None) -> Conversation:
        """The conversation after these records. Those of compacted runs are welcome: they are put in order.

        Of messages in compacted runs the ``metadata.seq`` may be another than it was; all else is the same.
        """
        conversation = cls(view)
        for _, run in groupby(records, key=lambda record: record.run_id):
            conversation.apply(in_order(list(run)))
        return conversation

    @property
    def run_id(self) -> str | None:
        """The last run."""
        return self._run.run_id

    @property
    def seq(self) -> int:
        """The number of the last record taken in, in its run."""
        return self._run.seq

    @property
    def has_ended(self) -> bool:
        """Whether the last run is over."""
        return self._run.outcome is not None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._layout().messages

    @property
    def state(self) -> Any:
        """The shared state; None where nothing has set it."""
        return None if self._run.state is msgspec.UNSET else self._run.state

    @property
    def onlooker(self) -> Onlooker:
        """Tells a client that got the prelude the rest of the last run."""
        return Onlooker.resume(self._run, self.view, self._layout().known)

    def apply(self, records: Iterable[Record]) -> None:
        """Adds records. Each costs the same, however many came before it."""
        self._onlooker = None
        for record in records:
            self._apply(record)

    def take(self, records: Iterable[Record]) -> None:
        """The former name of ``apply``."""
        warn_of_name("Conversation.take", "apply")
        self.apply(records)

    def _apply(self, record: Record) -> None:
        if isinstance(record.event, RunStarted):
            self._past.add(self._run)
            self._left_out |= self._run.unshown
            self._run = self.view.fold(state=self._run.state)
        elif record.run_id != self._run.run_id:
            raise UsageError(f"expected a record of run {self.run_id!r} or a run's first, got {record!r:.200}")
        self._run.feed(record)

    def feed(self, record: Record) -> list[AguiEvent]:
        """Adds a record, and returns its events for a client that got the prelude."""
        if isinstance(record.event, RunStarted):
            self._onlooker = Onlooker(self.view, self._layout().known)
        elif self._onlooker is None:
            self._onlooker = self.onlooker
        self._apply(record)
        events, _ = self._onlooker.feed(record)
        if self._onlooker.snapshot_at is not None:
            events.insert(self._onlooker.snapshot_at, self.snapshot())
        return events

    def snapshot(self, own: Iterable[dict[str, Any]] = ()) -> MessagesSnapshot:
        """All messages of the thread, and those of ``own``, which a client has sent, that no run knows."""
        messages = self.messages
        if self._run.seq == self._run.resumed_seq:
            messages += _emptied(messages, self._run)
        return self._snapshot(_with_own(messages, own, self._left_out | self._run.unshown))

    def _snapshot(self, messages: tuple[Message | dict[str, Any], ...]) -> MessagesSnapshot:
        return MessagesSnapshot(messages=messages, metadata=Metadata(self.seq, _OWNED))

    def prelude(self) -> list[AguiEvent]:
        """What a client needs that knows nothing of the thread, or has lost its way; ``feed`` gives the rest.

        If the last run has ended, its end is the last event.
        """
        run = self._run
        if run.run_id is None:
            raise UsageError("expected the records of at least one run, to join it; got none")
        translator = Translator(self.view)
        replayed = [event for record in condensed(run) for event in translator.feed(record)]
        layout = self._layout(before=_first_open(run, [run.calls[call_id] for call_id in translator.open_calls]))
        # A client that kept its messages puts those of a snapshot which it lacks at the end. That is their place, but
        # for results that came late: these are left out and sent again, and it puts them behind their calls.
        is_late = {result.message_id for result in layout.late}
        messages = tuple(message for message in layout.messages if message.id not in is_late)
        again = [event for event in replayed if isinstance(event, _LIVES) or _subject(event) in layout.left_out]
        messages += _placeholder(messages, again)
        events: list[AguiEvent] = [replayed[0], self._snapshot(messages), *layout.late]
        if run.state is not msgspec.UNSET:
            events.append(StateSnapshot(snapshot=run.state, metadata=Metadata(run.seq)))
        if run.outcome is not None:
            return [*events, replayed[-1]]
        return events + again

    def _layout(self, *, before: int | None = None) -> Layout:
        layout = self._past.copy()
        layout.add(self._run, before=before)
        return layout


def _first_open(run: RunView, calls: Sequence[CallView]) -> int | None:
    """The record with which the first message began that is being written, or the first reasoning; None if none is.

    ``calls``: those that are whole, and that clients still take to be written.
    """
    starts = [
        _begin_of(run.messages[part.message_id], ("reasoning",) if _kind(part) == "reasoning" else ("text", "call"))
        for part in (*run.open_parts, *calls)
    ]
    return min(starts, default=None)


def _begin_of(message: MessageView, kinds: tuple[str, ...]) -> int:
    """Where a client's message begins: a model's message is one of reasoning, and one of text and calls."""
    return next(part.first_seq for part in message.parts if _kind(part) in kinds)


def _kind(part: Part) -> str:
    return part.kind if isinstance(part, Passage) else "call"


def _placeholder(messages: tuple[Message, ...], again: list[AguiEvent]) -> tuple[Message, ...]:
    """Reasoning without text, for a snapshot that would have none though some is sent again, and what began before it.

    The official client takes such a snapshot for one that does not speak of reasoning, keeps its own half, and would add
    the whole to it. What parallel agents began to say before that reasoning is there without text, too, so that the order
    stays.
    """
    if any(isinstance(message, ReasoningMessage) for message in messages):
        return ()
    begun: list[Message] = []
    for event in again:
        if isinstance(event, TextMessageStart):
            agent, name = event.subagent_run_id, event.name
            begun.append(AssistantMessage(id=event.message_id, subagent_run_id=agent, name=name, content=""))
        elif isinstance(event, ReasoningStart):
            agent = event.subagent_run_id
            return (*begun, ReasoningMessage(id=event.message_id, subagent_run_id=agent, content=""))
    return ()


def _emptied(messages: tuple[Message, ...], run: RunView) -> tuple[Message, ...]:
    """Reasoning that is void, without its text, for a snapshot that would have none: clients then keep what they have."""
    if any(isinstance(message, ReasoningMessage) for message in messages):
        return ()
    void = [message for message in run.void.values() if message.reasoning]
    return tuple(msgspec.structs.replace(reasoning_message(message), content="") for message in void[:1])


def _with_own(
    messages: tuple[Message, ...], own: Iterable[dict[str, Any]], void: set[str]
) -> tuple[Message | dict[str, Any], ...]:
    """A client's own messages stand where it has them: behind the one before them."""
    known = {message.id for message in messages}
    behind: dict[str | None, list[dict[str, Any]]] = {}
    last: str | None = None
    for message in own:
        if message["id"] in known:
            last = message["id"]
        elif message["id"] not in void:
            behind.setdefault(last, []).append(message)
    if not behind:
        return messages
    placed = [each for message in messages for each in (message, *behind.get(message.id, ()))]
    return (*behind.get(None, ()), *placed)


def _subject(event: AguiEvent) -> str | None:
    """The message or the call that an event is about."""
    match event:
        case ToolCallStart() | ToolCallArgs() | ToolCallEnd() | ToolCallResult():
            return event.tool_call_id
        case ReasoningEncryptedValue():
            return event.entity_id
        case Custom(value=value):
            return str(value["toolCallId"])
        case (
            TextMessageStart()
            | TextMessageContent()
            | TextMessageEnd()
            | ReasoningStart()
            | ReasoningMessageStart()
            | ReasoningMessageContent()
            | ReasoningMessageEnd()
            | ReasoningEnd()
            | ActivitySnapshot()
        ):
            return event.message_id
        case _:
            return None
