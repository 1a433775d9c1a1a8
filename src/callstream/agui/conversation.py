"""A thread as its clients see it: the messages and the state of a client that saw all of it, and how others join.

``Conversation`` is made of the views of the thread's runs (``callstream.view``). A client that comes later gets the
prelude: RUN_STARTED, a snapshot of the messages up to the first that is being written, the state, and from that message on
everything again, each text and each call's arguments in one piece; after that, only new events, from ``Onlooker``. The
order and the metadata of messages are those that the official client gives them when it gets all events one by one.

The snapshot has no half-written messages: clients that build a message from its parts do not continue one whose beginning
they did not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, Self, TypeAlias

import msgspec

from callstream.agui.events import (
    AguiEvent,
    Custom,
    MessagesSnapshot,
    ReasoningStart,
    StateSnapshot,
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    TextMessageStart,
    ToolCallResult,
)
from callstream.agui.messages import (
    ActivityMessage,
    AssistantMessage,
    Attached,
    CalledFunction,
    DeveloperMessage,
    Message,
    MessageToolCall,
    Metadata,
    ReasoningMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
    agent_of,
    brought,
)
from callstream.agui.translator import (
    TOOL_PROGRESS,
    Translator,
    View,
    progress_of,
    result_of,
    sent_as,
    thought_id,
)
from callstream.errors import UsageError, warn_of_name
from callstream.events import (
    PIECES,
    CallFailed,
    CallReturned,
    MessageReceived,
    MessageStarted,
    Record,
    RunStarted,
    in_order,
)
from callstream.view import AnswerView, CallView, InputView, MessageView, Part, RunView, condensed

_INSTRUCTIONS: Final[dict[str, type[SystemMessage | DeveloperMessage]]] = {
    "system": SystemMessage,
    "developer": DeveloperMessage,
}
_ANSWERS: Final = (CallReturned, CallFailed)
_INPUT: Final = (UserMessage, SystemMessage, DeveloperMessage)

_Placed: TypeAlias = tuple[int, int, Message | ToolCallResult]
"""With its place in the run: the record with which it began, and the call's own record where one record brings several."""

# The snapshot is authoritative about progress; activities that an application shows by itself are its own.
_OWNED: Final = {"authoritativeActivityTypes": [TOOL_PROGRESS]}
# A client that joins gets all agents that are at work, so that it can attribute messages to them.
_LIVES: Final = (SubagentStarted, SubagentFinished, SubagentError)


class Onlooker(Translator):
    """A run for a client that did not start it: the translator's events, plus the input that another client sent.

    ``known``: the ids of messages that were sent before. Another client's message has no event of its own: the client gets
    it in a snapshot of all messages, see ``snapshot_at``. No text is kept here.
    """

    def __init__(self, view: View | None = None, known: Iterable[str] = ()) -> None:
        super().__init__(view)
        self._input = RunInput()
        self._known = set(known)

    @classmethod
    def resume(cls, run: RunView, view: View | None = None, known: Iterable[str] = ()) -> Self:
        """The onlooker as if it had been fed all records of this view."""
        onlooker = super().resume(run, view)
        onlooker._known.update(known)
        onlooker._input = RunInput(run.run_id, run.input)
        onlooker._input.messages(run)
        return onlooker

    def may_want_snapshot(self, record: Record) -> bool:
        return isinstance(record.event, MessageReceived) or super().may_want_snapshot(record)

    def feed(self, record: Record) -> list[AguiEvent]:
        events = super().feed(record)
        if type(record.event) in PIECES:
            return events  # most are
        match record.event:
            case RunStarted(input=run_input):
                self._input = RunInput(record.run_id, run_input)
            case MessageStarted():
                self._input.is_over = True
            case CallReturned() | CallFailed() as outcome:
                self._input.is_over = True
                if sent_as(outcome) is not None and outcome.call_id not in self._run.calls:
                    # Only the client that sent it has it. Without metadata, because it has none there either.
                    events.append(result_of(self._run.answers[outcome.call_id], outcome, self.view))
            case MessageReceived() as received:
                message = self._input.message(received, record.seq)
                if message is not None and message.id not in self._known:
                    self._known.add(message.id)
                    self.snapshot_at = 0
        return events


class Conversation:
    """Records of a thread's runs in, one run after the other; ``messages``, ``state`` and a prelude out."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self._past = _Layout(self.view)  # of the runs before the last one
        self._left_out: set[str] = set()  # the ids of their messages and calls that are not shown
        self._run = self.view.fold()
        self._onlooker: Onlooker | None = None

    @classmethod
    def of(cls, records: Iterable[Record], view: View | None = None) -> Conversation:
        """The conversation after these records. They may be those of compacted runs: they are put in order.

        The ``metadata.seq`` of messages in compacted runs may differ from before; everything else is the same.
        """
        conversation = cls(view)
        for _, run in groupby(records, key=lambda record: record.run_id):
            conversation.apply(in_order(list(run)))
        return conversation

    @property
    def run_id(self) -> str | None:
        """The id of the last run."""
        return self._run.run_id

    @property
    def seq(self) -> int:
        """The number of the last record that was added, in its run."""
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
        """The shared state; None if nothing has set it."""
        return None if self._run.state is msgspec.UNSET else self._run.state

    @property
    def onlooker(self) -> Onlooker:
        """Gives a client that got the prelude the rest of the last run."""
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
        events = self._onlooker.feed(record)
        if self._onlooker.snapshot_at is not None:
            self._onlooker.place(self.snapshot(), events)
        return events

    def snapshot(self, own: Iterable[dict[str, Any]] = ()) -> MessagesSnapshot:
        """All messages of the thread, and those of ``own``, which a client has sent, that no run knows.

        Where runs end with a snapshot, the one at the end has none of ``own``: it is the thread as it is then.
        """
        messages = self.messages
        if self.has_ended and self.view.emit_messages_snapshot:
            own = ()
        if self._run.seq == self._run.resumed_seq:
            messages += _emptied(messages, self._run)
        return self._snapshot(_with_own(messages, own, self._left_out | self._run.unshown))

    def _snapshot(self, messages: tuple[Message | dict[str, Any], ...]) -> MessagesSnapshot:
        return MessagesSnapshot(messages=messages, metadata=Metadata(self.seq, _OWNED))

    def prelude(self) -> list[AguiEvent]:
        """The events for a client that knows nothing about the thread, or has lost track; ``feed`` gives the rest.

        If the last run has ended, its end is the last event.
        """
        run = self._run
        if run.run_id is None:
            raise UsageError("expected the records of at least one run, to join it; got none")
        translator = Translator(self.view)
        replayed = [event for record in condensed(run) for event in translator.feed(record)]
        layout = self._layout(before=_first_open(run, [run.calls[call_id] for call_id in translator.open_calls]))
        # A client that kept its messages appends those of a snapshot that it lacks. That is the right place, except for
        # results that came late: these are left out and sent again, and the client puts them behind their calls.
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

    def _layout(self, *, before: int | None = None) -> _Layout:
        layout = self._past.copy()
        layout.add(self._run, before=before)
        return layout


def _first_open(run: RunView, calls: Sequence[CallView]) -> int | None:
    """The first record of the first message, or reasoning, that is being written; None if none is.

    ``calls``: those that are whole, but that clients still believe are being written.
    """
    starts = [_begin_of(part, run.messages[part.message_id]) for part in (*run.open_parts, *calls)]
    return min(starts, default=None)


def _begin_of(part: Part, message: MessageView) -> int:
    """Where a client's message begins: for it, a model's message is two, one of reasoning, one of text and calls."""
    return (message.passages("reasoning") if part.kind == "reasoning" else message.spoken)[0].first_seq


def _placeholder(messages: tuple[Message, ...], again: list[AguiEvent]) -> tuple[Message, ...]:
    """Reasoning without text, and messages that began before it, for a snapshot without reasoning if some is sent again.

    The official client takes such a snapshot for one that leaves out reasoning, keeps its own half-written one, and would
    add the whole to that. Messages that parallel agents began before that reasoning are included without text, too, so that
    the order stays.
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
    """Void reasoning without its text, for a snapshot without reasoning: on such a snapshot clients keep what they have."""
    if any(isinstance(message, ReasoningMessage) for message in messages):
        return ()
    void = [message for message in run.void.values() if message.passages("reasoning")]
    return tuple(msgspec.structs.replace(_reasoning_message(message), content="") for message in void[:1])


def _with_own(
    messages: tuple[Message, ...], own: Iterable[dict[str, Any]], void: set[str]
) -> tuple[Message | dict[str, Any], ...]:
    """Inserts a client's own messages where the client has them: behind the message before them."""
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
    if isinstance(event, Custom):
        return str(event.value["toolCallId"])
    named = (getattr(event, name, None) for name in ("tool_call_id", "entity_id", "message_id"))
    return next((name for name in named if name is not None), None)


# -- a thread's messages from the views of its runs, as an official client has them that got every event ------------------


class _Layout:
    """The messages of runs in the order of the official client, which puts a result behind the message of its call.

    So a group is a message and the results behind it. A message whose id exists already is continued in its place. ``late``
    are the results that came when there were already other messages behind their call's, in the order in which they came.
    ``left_out`` has the ids of the messages that were not put in, and of their calls.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._groups: list[list[Message]] = []
        self._places: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self.known: set[str] = set()
        self.late: list[ToolCallResult] = []
        self.left_out: set[str] = set()
        self._brought: set[str] = set()  # calls in a history that a client brought

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
        layout._brought = self._brought.copy()
        return layout

    def add(self, run: RunView, *, before: int | None = None) -> None:
        """Adds a run's messages. ``before``: those that began with that record or later are left out, with their results."""
        for message in brought(run.input):
            if message.id not in self._places:
                self.known.add(message.id)
                self._put(message)
                self._brought |= {call.id for call in _calls_of(message)}
        placed: list[_Placed] = []
        for seq, message in RunInput(run.run_id, run.input).messages(run):
            if message.id not in self.known:
                self.known.add(message.id)
                placed.append((seq, 0, message))
        for spoken in run.messages.values():
            self._add_message(spoken, placed)
        for answer in run.answers.values():
            self._add_course(answer, 0, placed)
        placed.sort(key=itemgetter(0, 1))
        for seq, _, each in placed:
            if isinstance(each, ToolCallResult):
                if each.tool_call_id not in self.left_out:
                    self._put_result(each)
            elif before is None or seq < before or isinstance(each, _INPUT):
                self._put_new(each)
            else:
                self.left_out |= {each.id, *(call.id for call in _calls_of(each))}

    def _add_message(self, message: MessageView, placed: list[_Placed]) -> None:
        if reasoning := message.passages("reasoning"):
            placed.append((reasoning[0].first_seq, 0, _reasoning_message(message)))
        if spoken := message.spoken:
            placed.append((spoken[0].first_seq, 0, _assistant_message(message)))
        for call in message.calls:
            self._add_course(call, call.first_seq, placed)

    def _add_course(self, call: CallView | AnswerView, call_seq: int, placed: list[_Placed]) -> None:
        if call.progress_seq:
            placed.append((call.progress_first_seq, call_seq, _activity(call)))
        if call.outcome is not None:
            is_sent = isinstance(call, AnswerView) and sent_as(call.outcome) is not None
            metadata = None if is_sent else Metadata(call.outcome_seq)  # the client that sent it has no metadata for it
            placed.append(
                (call.outcome_seq, call_seq, result_of(call, call.outcome, self._view, metadata, agent_of(call)))
            )

    def _put_new(self, message: Message) -> None:
        """Adds a message, unless it has only calls that the client brought: the run took these in to answer them."""
        calls = _calls_of(message)
        is_said = not isinstance(message, AssistantMessage) or bool(message.content)
        if is_said or not calls or any(call.id not in self._brought for call in calls):
            self._put(message)

    def _put(self, message: Message) -> None:
        place = self._places.get(message.id)
        if place is None or isinstance(message, _INPUT):
            place = self._places[message.id] = len(self._groups)
            self._groups.append([message])
        else:
            self._groups[place][0] = _continued(self._groups[place][0], message)
        for call in _calls_of(message):
            self._owners[call.id] = place

    def _put_result(self, result: ToolCallResult) -> None:
        message = ToolMessage(
            id=result.message_id,
            tool_call_id=result.tool_call_id,
            content=result.content,
            metadata=result.metadata,
            subagent_run_id=result.subagent_run_id,
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
                subagent_run_id=message.subagent_run_id,
                name=message.name,
                content="".join(texts) if texts else None,
                tool_calls=(message.tool_calls or ()) + (more.tool_calls or ()) or None,
                metadata=more.metadata or message.metadata,
            )
        case ReasoningMessage(), ReasoningMessage():
            return msgspec.structs.replace(more, content=message.content + more.content)
        case _:
            return more  # the last progress is all that is shown


def _assistant_message(message: MessageView) -> AssistantMessage:
    texts = message.passages("text")
    # A named message has a text, if only an empty one before its first call.
    named = message.author is not None
    text_seq = (texts[-1].end_seq or texts[-1].seq) if texts else message.spoken[0].first_seq
    return AssistantMessage(
        id=message.message_id,
        subagent_run_id=agent_of(message),
        name=message.author,
        content="".join([part.text for part in texts]) if texts or named else None,
        tool_calls=tuple(map(_tool_call, message.calls)) or None,
        metadata=Metadata(text_seq) if texts or named else None,
    )


def _reasoning_message(message: MessageView) -> ReasoningMessage:
    """The reasoning of a message, which must have some."""
    last = message.passages("reasoning")[-1]
    return ReasoningMessage(
        id=thought_id(message.message_id),
        subagent_run_id=agent_of(message),
        content=message.reasoning,
        metadata=Metadata(last.end_seq or last.seq),
    )


def _tool_call(call: CallView) -> MessageToolCall:
    return MessageToolCall(
        id=call.call_id,
        function=CalledFunction(name=call.name, arguments=call.args_json),
        encrypted_value=call.signature,
        metadata=Metadata(call.args_seq),
    )


def _activity(call: CallView | AnswerView) -> ActivityMessage:
    return ActivityMessage(
        id=f"progress-{call.call_id}",
        subagent_run_id=agent_of(call),
        activity_type=TOOL_PROGRESS,
        content=progress_of(call, call.progress),
        metadata=Metadata(call.progress_seq),
    )


def _calls_of(message: Message) -> tuple[MessageToolCall, ...]:
    return (message.tool_calls or ()) if isinstance(message, AssistantMessage) else ()


class RunInput:
    """Which parts of a run's input are shown: all that have a ``message_id``, because a client sent them.

    The rest was read from a provider's request. Of that only user messages are shown, and only until the run has input with
    an id, an answer to an earlier call or a response (``is_over``), because frameworks write their own messages into
    requests. The parts of a message that is more than text are taken from the run's input if that is AG-UI's (an object
    with ``messages``); otherwise their kinds are named in its metadata.
    """

    def __init__(self, run_id: str | None = None, run_input: Any = None) -> None:
        self.is_over = False
        self._run_id = run_id
        self._parts = _parts_in(run_input)

    def messages(self, run: RunView) -> list[tuple[int, Message]]:
        """All that is shown of the run's input, with the numbers of the records that brought it."""
        ends = [message.first_seq for message in (*run.messages.values(), *run.void.values())]
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
