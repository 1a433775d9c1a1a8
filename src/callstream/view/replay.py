"""A view back into records: the fewest that fold to it.

Text, reasoning and arguments are one piece each, a call has its last progress report, the state is one snapshot. Each
record stands where its content began, and has the number of the last record that it replaces. So a translator that is fed
them emits the same as for all original records, in fewer events: that is how a client catches up. Void messages are not
among them, so it learns nothing about these.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeAlias

import msgspec

from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallExecuting,
    CallProgressed,
    CallRunningEarly,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    Record,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.view.items import AnswerView, CallView, InputView, MessageView, Passage
from callstream.view.run import RunView

_Placed: TypeAlias = tuple[int, int, RunEvent]
"""Where the content began, the number of its last record, and the event."""


def condensed(run: RunView) -> list[Record]:
    """The records, in the order in which they can be fed. Empty if the view was fed nothing."""
    if run.run_id is None:
        return []
    placed = sorted(_events(run), key=lambda each: each[0])  # stable: the events of one record keep their order
    started = RunStarted(run.thread_id or "", run.principal, run.input)
    records = [Record(run.run_id, 1, run.started_at or 0.0, started)]
    records += [
        Record(run.run_id, seq, 0.0, event, author=_author(run, event), first_seq=first if first < seq else None)
        for first, seq, event in placed
    ]
    if run.outcome is not None:
        records.append(Record(run.run_id, run.seq, run.ended_at or 0.0, RunEnded(run.outcome, run.reason)))
    return records


def _author(run: RunView, event: RunEvent) -> str | None:
    """The author of an event, if a model caused it."""
    match event:
        case TextAppended() | ReasoningAppended() | MessageStarted() | CallStarted():
            message = run.messages.get(event.message_id or "")
            return None if message is None else message.author
        case _:
            return None


def _events(run: RunView) -> Iterator[_Placed]:
    for message in run.messages.values():
        yield from _message(message)
    if run.resumed_seq:
        yield run.resumed_seq, run.resumed_seq, RunResumed(run.attempt, tuple(_void_ids(run)))
    if run.state_seq and run.state is not msgspec.UNSET:
        whole = {"op": "add", "path": "", "value": run.state}
        changed = StateChanged(run.state) if run.state_is_whole else StateChanged(patch=[whole])
        yield run.state_first_seq, run.state_seq, changed
    for item in run.items:
        match item:
            case InputView(received=received, seq=seq):
                yield seq, seq, received
            case AnswerView():
                yield from _course(item)
            case _:
                pass  # the others are parts of messages


def _void_ids(run: RunView) -> Iterator[str]:
    """The ids of void messages and calls: other records about them mean nothing to a reader that does not know them."""
    for message in run.void.values():
        yield message.message_id
        yield from (call.call_id for call in message.calls)


def _message(message: MessageView) -> Iterator[_Placed]:
    if message.is_announced:
        yield message.first_seq, message.first_seq, MessageStarted(message.message_id, within=message.within)
    for part, following in zip_longest(message.parts, message.parts[1:]):
        if isinstance(part, Passage):
            kind = TextAppended if part.kind == "text" else ReasoningAppended
            yield part.first_seq, part.seq, kind(part.message_id, part.text)
            # The next part ends a passage as well; if this one ended before that, its message has ended.
            if part.end_seq is not None and (following is None or part.end_seq < following.first_seq):
                yield part.end_seq, part.end_seq, MessageEnded(message.message_id)
        else:
            yield from _call(part)


def _call(call: CallView) -> Iterator[_Placed]:
    started = CallStarted(
        call.call_id, call.name, call.provider_id, call.signature, call.encoding, call.message_id, call.within
    )
    yield call.first_seq, call.first_seq, started
    if call.has_pieces:
        yield call.first_seq, call.pieces_seq or call.args_seq, ArgsAppended(call.call_id, call.args_text)
    if call.ran_early:
        yield call.first_seq, call.args_seq, CallRunningEarly(call.call_id)
    if call.has_all_args:
        yield call.args_seq, call.args_seq, CallCompleted(call.call_id, call.args_json)
    if call.state is CallState.EXECUTING:
        yield call.args_seq, call.args_seq, CallExecuting(call.call_id)
    if call.state is CallState.AWAITING or call.question is not None:
        yield call.args_seq, call.args_seq, CallAwaiting(call.call_id, call.question, call.is_paused)
    yield from _course(call)


def _course(call: CallView | AnswerView) -> Iterator[_Placed]:
    if call.progress_seq:
        yield call.progress_first_seq, call.progress_seq, CallProgressed(call.call_id, call.progress)
    if call.outcome is not None:
        yield call.outcome_seq, call.outcome_seq, call.outcome
