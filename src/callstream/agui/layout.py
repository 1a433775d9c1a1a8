"""The messages of a thread out of the views of its runs, as the official client has them that was told every event."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from callstream.agui.events import ToolCallResult
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
    brought,
    subagent_run_id,
)
from callstream.agui.translator import TOOL_PROGRESS, View, result_text
from callstream.events import CallFailed, CallReturned, MessageReceived
from callstream.view import AnswerView, CallView, InputView, MessageView, Passage, RunView

_INSTRUCTIONS: Final[dict[str, type[SystemMessage | DeveloperMessage]]] = {
    "system": SystemMessage,
    "developer": DeveloperMessage,
}
_ANSWERS: Final = (CallReturned, CallFailed)
_INPUT: Final = (UserMessage, SystemMessage, DeveloperMessage)

_Placed: TypeAlias = tuple[int, int, Message | ToolCallResult]
"""Where in its run it belongs: the record with which it began, and the call's own where one record brings several."""


class Layout:
    """The messages of runs in the order of the official client, which puts a result behind the message of its call.

    So a group is a message and the results behind it. A message whose id is there already is continued in its place.
    ``late`` are the results that came when other messages stood behind their call's already, in the order they came.
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

    def copy(self) -> Layout:
        layout = Layout(self._view)
        layout._groups = [group.copy() for group in self._groups]
        layout._places = self._places.copy()
        layout._owners = self._owners.copy()
        layout.known = self.known.copy()
        layout.late = self.late.copy()
        layout._brought = self._brought.copy()
        return layout

    def add(self, run: RunView, *, before: int | None = None) -> None:
        """Puts in what a run has said. ``before``: what began with that record or later is left out, with its results."""
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
            self._add_answer(answer, placed)
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
        reasoning = [part for part in message.parts if isinstance(part, Passage) and part.kind == "reasoning"]
        spoken = message.spoken
        if reasoning:
            placed.append((reasoning[0].first_seq, 0, reasoning_message(message)))
        if spoken:
            placed.append((spoken[0].first_seq, 0, _assistant_message(message)))
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
            subagent_run_id=_agent_of(call),
        )

    def _put_new(self, message: Message) -> None:
        """Unless it has nothing but calls that the client has brought: the run has taken them in, to answer them."""
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
    spoken = message.spoken
    texts = [part for part in spoken if isinstance(part, Passage)]
    # A named message has a text, if only an empty one before its first call.
    named = message.author is not None
    text_seq = (texts[-1].end_seq or texts[-1].seq) if texts else spoken[0].first_seq
    return AssistantMessage(
        id=message.message_id,
        subagent_run_id=message.within and subagent_run_id(message.within),
        name=message.author,
        content="".join([part.text for part in texts]) if texts or named else None,
        tool_calls=tuple(map(_tool_call, message.calls)) or None,
        metadata=Metadata(text_seq) if texts or named else None,
    )


def reasoning_message(message: MessageView) -> ReasoningMessage:
    """What a message has of reasoning, which has to have some."""
    last = [part for part in message.parts if isinstance(part, Passage) and part.kind == "reasoning"][-1]
    return ReasoningMessage(
        id=f"reasoning-{message.message_id}",
        subagent_run_id=message.within and subagent_run_id(message.within),
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


def _activity(call: CallView | AnswerView, name: str | None) -> ActivityMessage:
    named = {} if name is None else {"toolCallName": name}
    return ActivityMessage(
        id=f"progress-{call.call_id}",
        subagent_run_id=_agent_of(call),
        activity_type=TOOL_PROGRESS,
        content={"toolCallId": call.call_id, **named, "progress": call.progress},
        metadata=Metadata(call.progress_seq),
    )


def _agent_of(call: CallView | AnswerView) -> str | None:
    return subagent_run_id(call.within) if isinstance(call, CallView) and call.within is not None else None


def _calls_of(message: Message) -> tuple[MessageToolCall, ...]:
    return (message.tool_calls or ()) if isinstance(message, AssistantMessage) else ()


class RunInput:
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
