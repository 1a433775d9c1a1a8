"""The fold itself, and the changes that a record makes to it. Interfaces are tables over these changes.

A change refers to its object in the view, which has changed already. Arguments grow as JSON text for every call: the input
of a free-text tool is the inside of one JSON string, whose quotes come with the first piece and at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, Self, assert_never

import msgspec

from callstream.calls import AT_REST, CallState
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
    InputKept,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    OutputKept,
    ReasoningAppended,
    Record,
    RequestKept,
    ResponseEnded,
    ResponseKept,
    RunEnded,
    RunEvent,
    RunOutcome,
    RunResumed,
    RunStarted,
    SessionKept,
    StateChanged,
    TextAppended,
    in_order,
)
from callstream.jsontext.patch import apply_patch
from callstream.view.items import AnswerView, CallView, InputView, Item, MessageView, Outcome, Part, Passage, message_of


class ViewChange(msgspec.Struct, frozen=True, gc=False):
    """A change that a record made to a view: one of the classes that follow."""


class Began(ViewChange, frozen=True, gc=False):
    """The first change of every run. ``input``: the input it was started with."""

    input: Any


class InputCame(ViewChange, frozen=True, gc=False):
    item: InputView


class MessageBegan(ViewChange, frozen=True, gc=False):
    """A model began a message, which may still be empty."""

    message: MessageView


class Opened(ViewChange, frozen=True, gc=False):
    """A passage or a call began. Text follows, or its end."""

    part: Part


class Grew(ViewChange, frozen=True, gc=False):
    """``text``: the added text, as it was written. ``json``: for a call's arguments, the same as JSON text."""

    part: Part
    text: str
    json: str = ""


class Closed(ViewChange, frozen=True, gc=False):
    """A passage ended, or the provider ended the arguments of a call."""

    part: Part


class Signed(ViewChange, frozen=True, gc=False):
    """A thought signature came after the call had begun; ``call.signature`` has it."""

    call: CallView


class RanEarly(ViewChange, frozen=True, gc=False):
    """The tool began while its call was being written."""

    call: CallView


class Asked(ViewChange, frozen=True, gc=False):
    """The call awaits an answer, or the answer to another call that asks about it (``call.is_paused``)."""

    call: CallView


class Progressed(ViewChange, frozen=True, gc=False):
    """A running tool reported ``data`` to its interface."""

    call: CallView | AnswerView
    data: Any


class Settled(ViewChange, frozen=True, gc=False):
    """A call ended. ``cut_off``: its arguments were being written, and will not be finished."""

    call: CallView | AnswerView
    outcome: Outcome
    cut_off: bool = False


class StateMoved(ViewChange, frozen=True, gc=False):
    """The shared state has changed. ``patch``: how it was made from the one before; None if all of it was replaced."""

    state: Any
    patch: list[dict[str, Any]] | None = None


class Resumed(ViewChange, frozen=True, gc=False):
    """Another process continues the run; the view's ``attempt`` is its number.

    ``void``: the messages of responses that were cut, for which the model is asked again. They were moved to the view's
    ``void``. ``cut_off``: the parts of them that were being written.
    """

    void: tuple[MessageView, ...]
    cut_off: tuple[Part, ...]


class Ended(ViewChange, frozen=True, gc=False):
    """The last change of every run; everything is closed and settled, or awaits an answer."""


_FIELDS: Final = ("run_id", "thread_id", "principal", "started_at", "ended_at", "outcome", "reason", "attempt", "seq")


class RunView:
    """Takes the records of one run, from the first on; returns what each changed, and shows the run as it is.

    ``items`` are its input, the passages and calls of its messages, and its answers, in the order in which they began;
    ``messages`` are the same passages and calls by message, ``calls`` and ``answers`` are by ``call_id``, all in order.
    ``void`` are messages that no longer count, because the process that read them died: the rest of the view has nothing of
    them. ``state`` is the shared state, ``msgspec.UNSET`` until something sets it; a run that continues a thread is given
    the state that the run before it left. ``reasoning=False``: as if no model had shown any. ``silent``: agents whose text
    is ignored. ``nested=False``: as if no tool had asked a model. ``is_outline``: for code that only passes the changes on:
    text, input and results are in the changes, but are not kept in the view.
    """

    def __init__(
        self,
        *,
        state: Any = msgspec.UNSET,
        reasoning: bool = True,
        silent: frozenset[str] = frozenset(),
        nested: bool = True,
        is_outline: bool = False,
    ) -> None:
        self.run_id: str | None = None
        self.thread_id: str | None = None
        self.principal: str | None = None
        self.input: Any = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: RunOutcome | None = None
        self.reason: str | None = None
        self.attempt = 1
        """How many processes have worked on the run."""
        self.resumed_seq = 0
        """The record with which the last of them began; 0 for the first."""
        self.seq = 0
        """The number of the last record that was fed."""
        self.items: list[Item] = []
        self.messages: dict[str, MessageView] = {}
        self.calls: dict[str, CallView] = {}
        self.answers: dict[str, AnswerView] = {}
        self.void: dict[str, MessageView] = {}
        self.state: Any = state
        self.state_first_seq = self.state_seq = 0
        """The first and the last record that changed it; 0 if this run has not."""
        self.state_is_whole = state is not msgspec.UNSET
        """Whether it depends on no run that this view does not know: with patches alone, it continues another's state."""
        self._shows_reasoning = reasoning
        self._silent = silent
        self._shows_nested = nested
        self.unshown: set[str] = set()
        """The ids of messages and calls that are left out because tools asked for them, or because they are void."""
        self._is_outline = is_outline

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """The view after these records, which may be those of a compacted run."""
        view = cls()
        for record in in_order(list(records)):
            view.feed(record)
        return view

    def feed(self, record: Record) -> list[ViewChange]:
        self.seq = record.seq
        event = record.event
        if self.leaves_out(event):
            self._end_void(event, record)
            return []
        match event:
            # A run consists mostly of these, so they are tested first.
            case ArgsAppended(call_id=call_id, text=text):
                call = self._call(call_id, record)
                added = call.append(text, record)
                return [Grew(call, text, added)] if added else []
            case TextAppended(message_id=message_id, text=text):
                return [] if record.author in self._silent else self._say("text", message_id, text, record)
            case ReasoningAppended(message_id=message_id, text=text):
                return self._say("reasoning", message_id, text, record) if self._shows_reasoning else []
            case MessageStarted(message_id=message_id, within=within):
                message = self._message(message_id, record, within)
                message.is_announced = True
                return [MessageBegan(message)]
            case MessageEnded(message_id=message_id):
                return self._end_passage(message_id, record)
            case CallStarted() as started:
                return self._start(started, record)
            case CallCompleted(call_id=call_id, args_json=whole):
                call = self._call(call_id, record)
                text, rest = call.complete(whole, record)
                return [Grew(call, text, rest), Closed(call)] if rest else [Closed(call)]
            case CallReturned() | CallFailed() | CallDiscarded() | CallReleased() as outcome:
                return [self._end(outcome, record)]
            case MessageReceived() as received:
                item = InputView(received, record.author, record.at, record.seq)
                if not self._is_outline:
                    self.items.append(item)
                return [InputCame(item)]
            case RunStarted(thread_id=thread_id, principal=principal, input=run_input):
                self.run_id, self.started_at = record.run_id, record.at
                self.thread_id, self.principal = thread_id, principal
                self.input = None if self._is_outline else run_input
                return [Began(run_input)]
            case RunEnded() as ended:
                return self._end_run(ended, record)
            case CallSigned() | CallExecuting() | CallRunningEarly() | CallAwaiting():
                return self._change(event, record)
            case CallProgressed(call_id=call_id, data=data):
                course = self._course(call_id, record)
                course.report(None if self._is_outline else data, record)
                return [Progressed(course, data)]
            case StateChanged(snapshot=snapshot, patch=patch):
                self.state_first_seq = self.state_first_seq or record.seq
                self.state_seq = record.seq
                return self._change_state(snapshot, patch)
            case RunResumed(attempt=attempt, void=void):
                self.attempt, self.resumed_seq = attempt, record.seq
                return self._resume(void, record)
            case ResponseEnded() | InputKept() | SessionKept() | RequestKept() | ResponseKept() | OutputKept():
                return []
            case _:
                assert_never(event)

    def leaves_out(self, event: RunEvent) -> bool:
        """Whether the event belongs to a void message, or to one of a tool's model while those are not shown.

        To be asked in the order of the records.
        """
        if self._shows_nested and not self.unshown:
            return False
        message_id, call_id = getattr(event, "message_id", None), getattr(event, "call_id", None)
        within = getattr(event, "within", None)
        is_nested = within is not None and (not self._shows_nested or within in self.unshown)
        if not is_nested and message_id not in self.unshown:
            return call_id in self.unshown
        self.unshown.update(name for name in (message_id, call_id) if name is not None)
        return True

    @property
    def open_parts(self) -> list[Part]:
        """The parts that are being written at the moment, in the order in which they began."""
        passages = [message.open_passage for message in self.messages.values()]
        calls = [call for call in self.calls.values() if call.is_being_written]
        found: list[Part] = [*(passage for passage in passages if passage is not None), *calls]
        return sorted(found, key=lambda part: part.first_seq)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values, which no later record changes."""
        run = {name: getattr(self, name) for name in _FIELDS}
        state = {} if self.state is msgspec.UNSET else {"state": self.state}
        void = {"void": [message.as_json() for message in self.void.values()]} if self.void else {}
        return {**run, "items": [item.as_json() for item in self.items], **void, **state}

    def depth_of(self, item: Item) -> int:
        """How deeply nested in calls an item is."""
        depth, within = 0, getattr(item, "within", None)
        while within is not None:
            call = self.calls.get(within)
            depth, within = depth + 1, None if call is None else call.within
        return depth

    # -- messages --

    def _message(self, message_id: str, record: Record, within: str | None = None) -> MessageView:
        message = self.messages.get(message_id)
        if message is None:
            first_seq = record.first_seq or record.seq
            message = MessageView(message_id, within, self.attempt, record.author, record.at, first_seq)
            self.messages[message_id] = message
        return message

    def _say(self, kind: Literal["text", "reasoning"], message_id: str, text: str, record: Record) -> list[ViewChange]:
        if not text:
            return []
        message = self.messages.get(message_id) or self._message(message_id, record)
        passage = message.open_passage
        changes: list[ViewChange] = []
        if passage is None or passage.kind != kind:
            changes = self._end_passage(message_id, record)
            passage = Passage(kind, message, record, is_outline=self._is_outline)
            message.parts.append(passage)
            self.items.append(passage)
            changes.append(Opened(passage))
        passage.append(text, record.seq)
        changes.append(Grew(passage, text))
        return changes

    def _end_passage(self, message_id: str, record: Record) -> list[ViewChange]:
        message = self.messages.get(message_id)
        passage = None if message is None else message.open_passage
        if passage is None:
            return []
        passage.end_seq = record.first_seq or record.seq
        return [Closed(passage)]

    # -- calls --

    def _call(self, call_id: str, record: Record) -> CallView:
        if call_id not in self.calls:
            raise UsageError(
                f"expected the records of run {record.run_id!r} from its first on; call {call_id!r} is unknown"
            )
        return self.calls[call_id]

    def _start(self, started: CallStarted, record: Record) -> list[ViewChange]:
        message_id = message_of(started, record.response_id)
        message = self._message(message_id, record, started.within)
        closed = self._end_passage(message_id, record)
        call = CallView(started, message, record, is_outline=self._is_outline)
        self.calls[started.call_id] = call
        message.parts.append(call)
        self.items.append(call)
        return [*closed, Opened(call)]

    def _change(
        self, event: CallSigned | CallExecuting | CallRunningEarly | CallAwaiting, record: Record
    ) -> list[ViewChange]:
        call = self.calls.get(event.call_id)
        if call is None:
            return []
        call.changed_at = record.at
        match event:
            case CallSigned(signature=signature):
                call.signature = signature
                return [Signed(call)]
            case CallExecuting():
                call.state = CallState.EXECUTING
                return []
            case CallRunningEarly():
                call.state, call.ran_early = CallState.RUNNING_EARLY, True
                return [RanEarly(call)]
            case CallAwaiting(question=question, is_paused=is_paused):
                call.state = CallState.AWAITING
                call.question, call.is_paused = question or call.question, is_paused
                return [Asked(call)]
            case _:
                assert_never(event)

    def _end(self, outcome: Outcome, record: Record) -> Settled:
        call = self._course(outcome.call_id, record)
        is_cut_off = call.end(outcome, record)
        if self._is_outline:
            call.outcome = None
        return Settled(call, outcome, is_cut_off)

    def _course(self, call_id: str, record: Record) -> CallView | AnswerView:
        """A call of the run, or the answer to an earlier run's call."""
        course = self.calls.get(call_id) or self.answers.get(call_id)
        if course is None:
            course = self.answers[call_id] = AnswerView(call_id, record)
            self.items.append(course)
        return course

    # -- void messages --

    def _resume(self, ids: Iterable[str], record: Record) -> list[ViewChange]:
        """Removes messages from the view, together with those that their calls' tools asked models for."""
        void = [self.messages[message_id] for message_id in ids if message_id in self.messages]
        for message in void:  # which grows
            called = {call.call_id for call in message.calls}
            void += [each for each in self.messages.values() if each.within in called and each not in void]
        gone = {part for message in void for part in message.parts}
        cut_off = tuple(part for part in self.open_parts if part in gone)
        self.items = [item for item in self.items if item not in gone]
        self.unshown.update(ids)
        for message in void:
            self._end_passage(message.message_id, record)
            self.void[message.message_id] = self.messages.pop(message.message_id)
            self.unshown.update((message.message_id, *(self.calls.pop(call.call_id).call_id for call in message.calls)))
        return [Resumed(tuple(void), cut_off)]

    def _end_void(self, event: RunEvent, record: Record) -> None:
        """Records how a void call ended, for readers that look at ``void``."""
        if isinstance(event, CallReturned | CallFailed | CallDiscarded | CallReleased):
            for message in self.void.values():
                for call in message.calls:
                    if call.call_id == event.call_id:
                        call.end(event, record)

    # -- the rest --

    def _end_run(self, ended: RunEnded, record: Record) -> list[ViewChange]:
        self.outcome, self.reason, self.ended_at = ended.outcome, ended.reason, record.at
        closed = [change for message_id in self.messages for change in self._end_passage(message_id, record)]
        # A journal closes every call before its run; should one be left, it must not look pending.
        left = [call for call in self.calls.values() if call.state not in AT_REST]
        settled = [self._end(CallDiscarded(call.call_id, "interrupted"), record) for call in left]
        return [*closed, *settled, Ended()]

    def _change_state(self, snapshot: Any, patch: list[dict[str, Any]] | None) -> list[ViewChange]:
        if patch is None:
            self.state, self.state_is_whole = snapshot, True
        else:
            try:
                self.state = apply_patch({} if self.state is msgspec.UNSET else self.state, patch)
            except UsageError:
                pass  # Clients keep their state when a patch does not apply, so they still have this one.
        return [StateMoved(self.state, patch)]
