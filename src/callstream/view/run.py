"""The fold itself."""

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
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    Record,
    ResponseEnded,
    RunEnded,
    RunOutcome,
    RunStarted,
    StateChanged,
    TextAppended,
    in_order,
)
from callstream.jsontext.patch import apply_patch
from callstream.view.items import AnswerView, CallView, InputView, Item, MessageView, Outcome, Passage, message_of

_FIELDS: Final = ("run_id", "thread_id", "principal", "started_at", "ended_at", "outcome", "reason", "seq")


class RunView:
    """Records of one run in, from its first on; what there is to see of it out.

    ``items`` are its input, the passages and calls of its messages, and its answers, in the order in which they began;
    ``messages`` are the same passages and calls by message, ``calls`` and ``answers`` are by ``call_id``, all in order.
    ``state`` is the shared state, ``msgspec.UNSET`` until something sets it; a run that continues a thread is given the
    state that the run before it left.
    """

    def __init__(self, *, state: Any = msgspec.UNSET) -> None:
        self.run_id: str | None = None
        self.thread_id: str | None = None
        self.principal: str | None = None
        self.input: Any = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: RunOutcome | None = None
        self.reason: str | None = None
        self.seq = 0
        """The number of the last record that was fed."""
        self.items: list[Item] = []
        self.messages: dict[str, MessageView] = {}
        self.calls: dict[str, CallView] = {}
        self.answers: dict[str, AnswerView] = {}
        self.state: Any = state
        self.state_first_seq = self.state_seq = 0
        """The first and the last record that changed it; 0 if this run has not."""
        self.state_is_whole = state is not msgspec.UNSET
        """Whether nothing of it depends on runs that this view does not know: patches alone change another's state."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        """The view after these records, which may be those of a compacted run."""
        view = cls()
        for record in in_order(list(records)):
            view.feed(record)
        return view

    def feed(self, record: Record) -> None:
        self.seq = record.seq
        event = record.event
        match event:
            # A run is made of these mostly, so they are asked for first.
            case ArgsAppended(call_id=call_id, text=text):
                self._call(call_id, record).append(text, record)
            case TextAppended(message_id=message_id, text=text):
                self._say("text", message_id, text, record)
            case ReasoningAppended(message_id=message_id, text=text):
                self._say("reasoning", message_id, text, record)
            case MessageStarted(message_id=message_id):
                self._message(message_id, record).is_announced = True
            case MessageEnded(message_id=message_id):
                self._end_passage(message_id, record)
            case CallStarted() as started:
                self._start(started, record)
            case CallCompleted(call_id=call_id, args_json=whole):
                self._call(call_id, record).complete(whole, record)
            case CallReturned() | CallFailed() | CallDiscarded() | CallReleased() as outcome:
                self._end(outcome, record)
            case MessageReceived() as received:
                self.items.append(InputView(received, record))
            case RunStarted(thread_id=thread_id, principal=principal, input=run_input):
                self.run_id, self.started_at = record.run_id, record.at
                self.thread_id, self.principal, self.input = thread_id, principal, run_input
            case RunEnded() as ended:
                self._end_run(ended, record)
            case CallSigned() | CallExecuting() | CallRunningEarly() | CallAwaiting() | CallProgressed():
                self._change(event, record)
            case StateChanged(snapshot=snapshot, patch=patch):
                self.state_first_seq = self.state_first_seq or record.seq
                self.state_seq = record.seq
                self._change_state(snapshot, patch)
            case ResponseEnded():
                pass
            case _:
                assert_never(event)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values, which no later record changes."""
        run = {name: getattr(self, name) for name in _FIELDS}
        state = {} if self.state is msgspec.UNSET else {"state": self.state}
        return {**run, "items": [item.as_json() for item in self.items], **state}

    # -- messages --

    def _message(self, message_id: str, record: Record) -> MessageView:
        message = self.messages.get(message_id)
        if message is None:
            message = self.messages[message_id] = MessageView(message_id, record)
        return message

    def _say(self, kind: Literal["text", "reasoning"], message_id: str, text: str, record: Record) -> None:
        if not text:
            return
        message = self._message(message_id, record)
        passage = message.open_passage
        if passage is None or passage.kind != kind:
            self._end_passage(message_id, record)
            passage = Passage(kind, message_id, record)
            message.parts.append(passage)
            self.items.append(passage)
        passage.append(text, record.seq)

    def _end_passage(self, message_id: str, record: Record) -> None:
        message = self.messages.get(message_id)
        passage = None if message is None else message.open_passage
        if passage is not None:
            passage.end_seq = record.first_seq or record.seq

    # -- calls --

    def _call(self, call_id: str, record: Record) -> CallView:
        if call_id not in self.calls:
            raise UsageError(
                f"expected the records of run {record.run_id!r} from its first on; call {call_id!r} is unknown"
            )
        return self.calls[call_id]

    def _start(self, started: CallStarted, record: Record) -> None:
        message_id = message_of(started, record.response_id)
        message = self._message(message_id, record)
        self._end_passage(message_id, record)
        call = self.calls[started.call_id] = CallView(started, message_id, record)
        message.parts.append(call)
        self.items.append(call)

    def _change(
        self, event: CallSigned | CallExecuting | CallRunningEarly | CallAwaiting | CallProgressed, record: Record
    ) -> None:
        call = self.calls.get(event.call_id)
        if call is None:
            if isinstance(event, CallProgressed):
                answer = self._answer(event.call_id, record)
                answer.progress = event.data
                answer.progress_first_seq = answer.progress_first_seq or record.seq
                answer.progress_seq = record.seq
            return
        call.changed_at = record.at
        match event:
            case CallSigned(signature=signature):
                call.signature = signature
            case CallExecuting():
                call.state = CallState.EXECUTING
            case CallRunningEarly():
                call.state, call.ran_early = CallState.RUNNING_EARLY, True
            case CallAwaiting(question=question, is_paused=is_paused):
                call.state = CallState.AWAITING
                call.question, call.is_paused = question or call.question, is_paused
            case CallProgressed(data=data):
                call.report(data, record)
            case _:
                assert_never(event)

    def _end(self, outcome: Outcome, record: Record) -> None:
        call = self.calls.get(outcome.call_id)
        if call is not None:
            call.end(outcome, record)
        else:
            answer = self._answer(outcome.call_id, record)
            answer.outcome, answer.outcome_seq = outcome, record.seq

    def _answer(self, call_id: str, record: Record) -> AnswerView:
        answer = self.answers.get(call_id)
        if answer is None:
            answer = self.answers[call_id] = AnswerView(call_id, record)
            self.items.append(answer)
        return answer

    # -- the rest --

    def _end_run(self, ended: RunEnded, record: Record) -> None:
        self.outcome, self.reason, self.ended_at = ended.outcome, ended.reason, record.at
        for message_id in self.messages:
            self._end_passage(message_id, record)
        for call in self.calls.values():
            # A journal closes every call before its run; should one be left, nobody must take it for pending.
            if call.state not in AT_REST:
                call.end(CallDiscarded(call.call_id, "interrupted"), record)

    def _change_state(self, snapshot: Any, patch: list[dict[str, Any]] | None) -> None:
        if patch is None:
            self.state, self.state_is_whole = snapshot, True
            return
        try:
            self.state = apply_patch({} if self.state is msgspec.UNSET else self.state, patch)
        except UsageError:
            pass  # Clients keep their state when a patch does not apply, so what they have is still this one.
