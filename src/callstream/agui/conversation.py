"""A thread as its clients see it: the messages and the state of a client that saw all of it, and how others join.

``Conversation`` is made of the views of the thread's runs (``callstream.view``). A client that comes later gets the
prelude: RUN_STARTED, a snapshot of the messages with the arguments of open calls as far as they are known, the state, START
again for what is open; after that, only what is new, which ``Onlooker`` tells. The order and the metadata of messages are
those that the official client gives them when it is told all events one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from typing import Any, Final, Self, TypeAlias

import msgspec

from callstream.agui.events import AguiEvent, MessagesSnapshot, StateSnapshot, ToolCallResult
from callstream.agui.messages import (
    ActivityMessage,
    AssistantMessage,
    Attached,
    DeveloperMessage,
    FunctionCall,
    Message,
    Metadata,
    ReasoningMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callstream.agui.shown import View, result_text
from callstream.agui.translator import TOOL_PROGRESS, Translator
from callstream.errors import UsageError
from callstream.events import CallFailed, CallReturned, MessageReceived, MessageStarted, Record, RunEvent, RunStarted
from callstream.view import AnswerView, CallView, InputView, MessageView, Passage, RunView

_INSTRUCTIONS: Final[dict[str, type[SystemMessage | DeveloperMessage]]] = {
    "system": SystemMessage,
    "developer": DeveloperMessage,
}
# The snapshot says all there is to say about progress; activities that an application shows by itself are its own.
_OWNED: Final = {"authoritativeActivityTypes": [TOOL_PROGRESS]}


_ANSWERS: Final = (CallReturned, CallFailed)


class Onlooker:
    """A run as a client is told it that did not ask for it: what the translator says, and what else a client sent.

    ``known``: the ids of messages that were sent before. No text is kept here.
    """

    def __init__(self, view: View | None = None, known: Iterable[str] = ()) -> None:
        self.view = view or View()
        self._translator = Translator(self.view)
        self._input = _Input()
        self._known = set(known)

    @classmethod
    def resume(cls, run: RunView, view: View, known: Iterable[str]) -> Self:
        """The onlooker that has been fed all records of which this is the view."""
        onlooker = cls(view, known)
        onlooker._translator = Translator.resume(run, view)
        onlooker._input = _Input(run.run_id, run.input)
        onlooker._input.messages(run)
        return onlooker

    def feed(self, record: Record) -> tuple[list[AguiEvent], Message | None]:
        """What a client is to be told of the record, or a message of somebody else's, for which there are no events.

        It is to be told of such a message with a snapshot of them all.
        """
        events = [*self._translator.feed(record), *self._answers(record.event)]
        match record.event:
            case RunStarted(input=run_input):
                self._input = _Input(record.run_id, run_input)
            case MessageStarted() | CallReturned() | CallFailed():
                self._input.is_over = True
            case MessageReceived() as received:
                message = self._input.message(received, record.seq)
                if message is not None and message.id not in self._known:
                    self._known.add(message.id)
                    return events, message
        return events, None

    def end(self) -> list[AguiEvent]:
        """For a stream that has to end before its run; see ``Translator.end``."""
        return self._translator.end()

    def _answers(self, event: RunEvent) -> list[AguiEvent]:
        """An answer that only the client has which sent it. Without metadata, for there it has none either."""
        match event:
            case CallReturned(message_id=str(message_id)) | CallFailed(message_id=str(message_id)):
                if self._translator.knows(event.call_id):
                    return []  # it was told to all
                content = result_text(event, self.view)
                return [ToolCallResult(message_id=message_id, tool_call_id=event.call_id, content=content)]
            case _:
                return []


class Conversation:
    """Records of a thread's runs in, one run after the other; ``messages``, ``state`` and a prelude out."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self._past = _Layout(self.view)  # of the runs before the last one
        self._run = RunView()
        self._onlooker: Onlooker | None = None

    @classmethod
    def of(cls, records: Iterable[Record], view: View | None = None) -> Conversation:
        """The conversation after these records. Those of compacted runs are welcome: they are put in order.

        Of messages in compacted runs the ``metadata.seq`` may be another than it was; all else is the same.
        """
        conversation = cls(view)
        for _, run in groupby(records, key=lambda record: record.run_id):
            conversation.take(sorted(run, key=lambda record: record.first_seq or record.seq))
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

    def take(self, records: Iterable[Record]) -> None:
        """Takes records in. Each costs the same, however many came before it."""
        self._onlooker = None
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        if isinstance(record.event, RunStarted):
            self._past.add(self._run)
            self._run = RunView(state=self._run.state)
        elif record.run_id != self._run.run_id:
            raise UsageError(f"expected a record of run {self.run_id!r} or a run's first, got {record!r:.200}")
        self._run.feed(record)

    def feed(self, record: Record) -> list[AguiEvent]:
        """Takes a record in, and gives what a client that got the prelude is to be told of it."""
        if isinstance(record.event, RunStarted):
            self._onlooker = Onlooker(self.view, self._layout().known)
        elif self._onlooker is None:
            self._onlooker = self.onlooker
        self._take(record)
        events, message = self._onlooker.feed(record)
        return events if message is None else [self.snapshot()]

    def snapshot(self) -> MessagesSnapshot:
        """All messages of the thread."""
        return self._snapshot(self.messages)

    def _snapshot(self, messages: tuple[Message, ...]) -> MessagesSnapshot:
        return MessagesSnapshot(messages=messages, metadata=Metadata(self.seq, _OWNED))

    def prelude(self) -> list[AguiEvent]:
        """What a client needs that knows nothing of the thread, or has lost its way; ``feed`` gives the rest.

        If the last run has ended, its end is the last event.
        """
        run = self._run
        if run.run_id is None:
            raise UsageError("expected the records of at least one run, to join it; got none")
        translator = Translator.resume(run, self.view)
        layout = self._layout()
        # A client that kept its messages puts those of a snapshot which it lacks at the end. That is their place, but
        # for results that came late: these are left out and told again, and it puts them behind their calls.
        is_late = {result.message_id for result in layout.late}
        snapshot = self._snapshot(tuple(message for message in layout.messages if message.id not in is_late))
        events: list[AguiEvent] = [translator.first_event(), snapshot, *layout.late]
        if run.state is not msgspec.UNSET:
            events.append(StateSnapshot(snapshot=run.state, metadata=Metadata(run.seq)))
        if run.outcome is None:
            return events + translator.reopening()
        return [*events, translator.last_event(run.outcome, run.reason)]

    def _layout(self) -> _Layout:
        layout = self._past.copy()
        layout.add(self._run)
        return layout


# -- messages out of views --

_Placed: TypeAlias = tuple[int, int, Message | ToolCallResult]
"""Where in its run it belongs: the record with which it began, and the call's own where one record brings several."""


class _Layout:
    """The messages of runs in the order of the official client, which puts a result behind the message of its call.

    So a group is a message and the results behind it. A message whose id is there already is continued in its place.
    ``late`` are the results that came when other messages stood behind their call's already, in the order they came.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._groups: list[list[Message]] = []
        self._places: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self.known: set[str] = set()
        self.late: list[ToolCallResult] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(chain.from_iterable(self._groups))

    def copy(self) -> _Layout:
        layout = _Layout(self._view)
        layout._groups = [group.copy() for group in self._groups]
        layout._places = self._places.copy()
        layout._owners = self._owners.copy()
        layout.known = self.known.copy()
        layout.late = self.late.copy()
        return layout

    def add(self, run: RunView) -> None:
        placed: list[_Placed] = []
        for seq, message in _Input(run.run_id, run.input).messages(run):
            if message.id not in self.known:
                self.known.add(message.id)
                placed.append((seq, 0, message))
        for spoken in run.messages.values():
            self._add_message(spoken, placed)
        for answer in run.answers.values():
            self._add_answer(answer, placed)
        placed.sort(key=lambda each: each[:2])
        for _, _, each in placed:
            if isinstance(each, ToolCallResult):
                self._put_result(each)
            else:
                self._put(each)

    def _add_message(self, message: MessageView, placed: list[_Placed]) -> None:
        reasoning = [part for part in message.parts if isinstance(part, Passage) and part.kind == "reasoning"]
        spoken = [part for part in message.parts if not isinstance(part, Passage) or part.kind == "text"]
        if reasoning and self._view.reasoning:
            placed.append((reasoning[0].first_seq, 0, _reasoning_message(message, reasoning)))
        if spoken:
            placed.append((spoken[0].first_seq, 0, _assistant_message(message, self._view)))
        for call in message.calls:
            if call.progress_seq:
                placed.append((call.progress_first_seq, call.first_seq, _activity(call, call.name)))
            if call.outcome is not None:
                sent_as = call.outcome.message_id if isinstance(call.outcome, _ANSWERS) else None
                placed.append(
                    (call.outcome_seq, call.first_seq, self._result(call, sent_as, Metadata(call.outcome_seq)))
                )

    def _add_answer(self, answer: AnswerView, placed: list[_Placed]) -> None:
        if answer.progress_seq:
            placed.append((answer.progress_first_seq, 0, _activity(answer, None)))
        if answer.outcome is not None:
            sent_as = answer.outcome.message_id if isinstance(answer.outcome, _ANSWERS) else None
            # The client that sent it has it without metadata.
            metadata = None if sent_as else Metadata(answer.outcome_seq)
            placed.append((answer.outcome_seq, 0, self._result(answer, sent_as, metadata)))

    def _result(self, call: CallView | AnswerView, sent_as: str | None, metadata: Metadata | None) -> ToolCallResult:
        assert call.outcome is not None
        return ToolCallResult(
            message_id=sent_as or f"result-{call.call_id}",
            tool_call_id=call.call_id,
            content=result_text(call.outcome, self._view),
            metadata=metadata,
        )

    def _put(self, message: Message) -> None:
        place = self._places.get(message.id)
        if place is None or isinstance(message, UserMessage | SystemMessage | DeveloperMessage):
            place = self._places[message.id] = len(self._groups)
            self._groups.append([message])
        else:
            self._groups[place][0] = _continued(self._groups[place][0], message)
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                self._owners[call.id] = place

    def _put_result(self, result: ToolCallResult) -> None:
        message = ToolMessage(
            id=result.message_id, tool_call_id=result.tool_call_id, content=result.content, metadata=result.metadata
        )
        last = len(self._groups) - 1
        place = self._owners.get(result.tool_call_id, last)
        if place != last:
            self.late.append(result)
        if place < 0:
            self._groups.append([message])
        else:
            self._groups[place].append(message)


def _continued(message: Message, more: Message) -> Message:
    """A message that another run has added to."""
    match message, more:
        case AssistantMessage(), AssistantMessage():
            texts = [each.content for each in (message, more) if each.content is not None]
            return AssistantMessage(
                id=message.id,
                content="".join(texts) if texts else None,
                tool_calls=(message.tool_calls or ()) + (more.tool_calls or ()) or None,
                metadata=more.metadata or message.metadata,
            )
        case ReasoningMessage(), ReasoningMessage():
            return msgspec.structs.replace(more, content=message.content + more.content)
        case _:
            return more  # the last progress is all that is shown


def _assistant_message(message: MessageView, view: View) -> AssistantMessage:
    texts = [part for part in message.parts if isinstance(part, Passage) and part.kind == "text"]
    return AssistantMessage(
        id=message.message_id,
        content="".join([part.text for part in texts]) if texts else None,
        tool_calls=tuple(map(_tool_call, message.calls)) or None,
        metadata=Metadata(_text_seq(message, texts[-1], view)) if texts else None,
    )


def _text_seq(message: MessageView, last: Passage, view: View) -> int:
    """The record of the last event of a message's text. Where reasoning is not shown, it does not end the text."""
    if view.reasoning or message.parts[-1] is last:
        return last.end_seq or last.seq
    after = message.parts[message.parts.index(last) + 1 :]
    shown = next((part for part in after if isinstance(part, CallView)), None)
    if shown is not None:
        return shown.first_seq
    final = after[-1]
    return (isinstance(final, Passage) and final.end_seq) or last.seq


def _reasoning_message(message: MessageView, reasoning: list[Any]) -> ReasoningMessage:
    last = reasoning[-1]
    return ReasoningMessage(
        id=f"reasoning-{message.message_id}", content=message.reasoning, metadata=Metadata(last.end_seq or last.seq)
    )


def _tool_call(call: CallView) -> ToolCall:
    return ToolCall(
        id=call.call_id,
        function=FunctionCall(name=call.name, arguments=call.args_json),
        encrypted_value=call.signature,
        metadata=Metadata(call.args_seq),
    )


def _activity(call: CallView | AnswerView, name: str | None) -> ActivityMessage:
    named = {} if name is None else {"toolCallName": name}
    return ActivityMessage(
        id=f"progress-{call.call_id}",
        activity_type=TOOL_PROGRESS,
        content={"toolCallId": call.call_id, **named, "progress": call.progress},
        metadata=Metadata(call.progress_seq),
    )


class _Input:
    """Which of a run's input is shown: all that has a ``message_id``, because a client sent it.

    Of the rest, which was read from a provider's request, user messages only, and only before the run has input with an
    id, an answer to an earlier call or a response (``is_over``), because frameworks write messages of their own into
    requests. The parts of a message that is more than text are taken from the run's input, where that is AG-UI's (an object
    with ``messages``); else their kinds are named in its metadata.
    """

    def __init__(self, run_id: str | None = None, run_input: Any = None) -> None:
        self.is_over = False
        self._run_id = run_id
        self._parts = _parts_in(run_input)

    def messages(self, run: RunView) -> list[tuple[int, Message]]:
        """All that is shown of the run's input, with the numbers of the records that brought it."""
        ends = [message.first_seq for message in run.messages.values()]
        ends += [answer.outcome_seq for answer in run.answers.values() if isinstance(answer.outcome, _ANSWERS)]
        end = min(ends, default=run.seq + 1)
        found = []
        for item in run.items:
            if isinstance(item, InputView):
                self.is_over |= item.seq > end
                message = self.message(item.received, item.seq)
                if message is not None:
                    found.append((item.seq, message))
        self.is_over |= end <= run.seq
        return found

    def message(self, received: MessageReceived, seq: int) -> Message | None:
        message_id = received.message_id
        if message_id is not None:
            self.is_over = True
            if received.role in _INSTRUCTIONS:
                return _INSTRUCTIONS[received.role](id=message_id, content=received.text)
        if received.role != "user" or (message_id is None and self.is_over):
            return None
        if message_id is not None and message_id in self._parts:
            return UserMessage(id=message_id, content=self._parts[message_id])
        return UserMessage(
            id=message_id or f"input-{self._run_id}-{seq}",
            content=received.text,
            metadata=Attached(received.attachments) if received.attachments else None,
        )


def _parts_in(run_input: Any) -> dict[str, list[Any]]:
    """The messages of an AG-UI input that have parts, by their ids."""
    match run_input:
        case {"messages": list(messages)}:
            return {
                message["id"]: message["content"]
                for message in messages
                if isinstance(message, dict) and "id" in message and isinstance(message.get("content"), list)
            }
        case _:
            return {}
