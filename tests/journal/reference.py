"""A second journal, as plain as can be: what the real ones are compared with.

It has one writer at a time, no waiting and no store. Nothing of how the real journals plan, own, sweep, fold or read is
used here; only events, calls and their table of transitions are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from callstream.calls import BEFORE_EXECUTING, Call, CallEvent, CallState, advanced, next_state, opened
from callstream.errors import CallIdTaken, LeaseLost, RunIdTaken, RunOver, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallReturned,
    CallSigned,
    CallStarted,
    ReasoningAppended,
    Record,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import Entry, RunRow

_PIECES = (ArgsAppended, TextAppended, ReasoningAppended)


class _Run(msgspec.Struct, eq=False):
    row: RunRow
    writer: int
    given: list[RunEvent]
    """The events as they were handed in, to know a repetition by."""
    records: list[Record]
    was_taken: bool = False
    compacted: bool = False


class ReferenceJournal:
    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._calls: dict[str, Call] = {}
        self._writer = 1

    def append(self, run_id: str, events: Sequence[RunEvent | Entry], after: int | None) -> int:
        entries = [event if isinstance(event, Entry) else Entry(event) for event in events]
        run = self._runs.get(run_id)
        last_seq = run.row.last_seq if run else 0
        if after is not None and after != last_seq:
            return self._repeat(run, entries, after)
        if run is not None:
            self._check(run)
        if not entries:
            return last_seq
        if run is None:
            run = _Run(RunRow(run_id, run_id, None, None, None, 0.0, None, 0), self._writer, [], [])
        self._write(run, entries)
        return run.row.last_seq

    def compact(self, run_id: str) -> int:
        run = self._runs.get(run_id)
        if run is None or run.row.outcome is None:
            raise UsageError("there is no such run, or it goes on")
        groups: dict[object, list[Record]] = {}
        for record in run.records:
            event = record.event
            whose = (type(event), _whose(event)) if isinstance(event, _PIECES) else record.seq
            groups.setdefault(whose, []).append(record)
        folded = [records[0] if len(records) == 1 else _fold(records) for records in groups.values()]
        gone = len(run.records) - len(folded)
        run.records, run.compacted = sorted(folded, key=lambda record: record.seq), True
        return gone

    def forget(self, thread: str) -> int:
        gone = [run_id for run_id, run in self._runs.items() if run.row.thread_id == thread and run.row.outcome]
        for run_id in gone:
            del self._runs[run_id]
        self._calls = {call_id: call for call_id, call in self._calls.items() if call.run_id not in gone}
        return len(gone)

    def sweep(self) -> list[str]:
        """By a new process, after the one before has died."""
        self._writer += 1
        swept = [run for run in self._runs.values() if run.row.outcome is None]
        own = {run.row.run_id for run in swept}
        for run in swept:
            run.writer, run.was_taken = self._writer, True
            resumed = _unfinished(run.given)
            events: list[RunEvent] = []
            for call in self._calls.values():
                if call.run_id == run.row.run_id and call.state in BEFORE_EXECUTING:
                    events.append(CallDiscarded(call.call_id, "interrupted"))
                elif call.state is CallState.EXECUTING and call.run_id == run.row.run_id:
                    events.append(CallFailed(call.call_id, "interrupted"))
            for call_id in resumed:
                call = self._calls[call_id]
                if call.state is CallState.EXECUTING and call.run_id not in own:
                    events.append(CallFailed(call_id, "interrupted"))
            self._write(run, [Entry(event) for event in (*events, RunEnded("failed", "interrupted"))])
        return [run.row.run_id for run in swept]

    def runs(self) -> list[RunRow]:
        return [run.row for run in reversed(self._runs.values())]

    def calls(self) -> list[Call]:
        """All calls with their arguments."""
        return [self._with_args(call) for call in self._calls.values()]

    def records(self, run_id: str) -> list[Record]:
        return self._runs[run_id].records

    def _check(self, run: _Run) -> None:
        if run.writer != self._writer and (run.row.outcome is None or run.was_taken):
            raise LeaseLost("it belongs to another")
        if run.row.outcome is not None:
            raise RunOver("it has ended")

    def _repeat(self, run: _Run | None, entries: Sequence[Entry], after: int) -> int:
        last = after + len(entries)
        if run is not None and entries and run.row.last_seq >= last:
            same = [_stored(entry.event) for entry in entries] == [_stored(event) for event in run.given[after:last]]
            is_ours = run.writer == self._writer or not run.was_taken
            if (is_ours and run.compacted) or (same and not run.compacted):
                return last
            self._check(run)
        elif run is not None and run.writer != self._writer:
            self._check(run)
        raise UsageError("this is no repetition")

    def _write(self, run: _Run, entries: Sequence[Entry]) -> None:
        """All of it or nothing."""
        changed: dict[str, Call] = {}
        records: list[Record] = []
        row = run.row
        for seq, entry in enumerate(entries, row.last_seq + 1):
            event = entry.event
            if row.outcome is not None:
                raise RunOver("it has ended")
            if isinstance(event, RunStarted):
                if seq != 1:
                    error = RunIdTaken if run.row.last_seq else UsageError
                    raise error("it is the first record of a run")
                row = msgspec.structs.replace(row, thread_id=event.thread_id, principal=event.principal)
            elif isinstance(event, RunEnded):
                row = msgspec.structs.replace(row, outcome=event.outcome, reason=event.reason)
            elif isinstance(event, CallEvent):
                before = changed.get(event.call_id) or self._calls.get(event.call_id)
                changed[event.call_id] = _next(before, event, row)
                was_streamed = before is not None and before.state is not CallState.STARTED
                if isinstance(event, CallCompleted) and was_streamed:
                    event = CallCompleted(event.call_id)  # its text is in the pieces
            records.append(Record(row.run_id, seq, 0.0, event, entry.response_id, entry.author))
        run.records += records
        run.given += [entry.event for entry in entries]
        run.row = msgspec.structs.replace(row, last_seq=row.last_seq + len(entries))
        self._runs[run.row.run_id] = run
        self._calls.update(changed)

    def _with_args(self, call: Call) -> Call:
        events = [record.event for record in self._runs[call.run_id or ""].records]
        own = [event for event in events if getattr(event, "call_id", None) == call.call_id]
        pieces = "".join(event.text for event in own if isinstance(event, ArgsAppended))
        whole = next((event.args_json for event in own if isinstance(event, CallCompleted)), None)
        if not pieces and whole is not None:
            return msgspec.structs.replace(call, args_json=whole)
        return msgspec.structs.replace(call, args_json=json.dumps(pieces) if call.encoding == "text" else pieces)


def _next(call: Call | None, event: CallEvent, row: RunRow) -> Call:
    if isinstance(event, CallStarted):
        if call is not None:
            raise CallIdTaken(event.call_id)
        return opened(event, run_id=row.run_id, thread_id=row.thread_id, at=0.0)
    if call is None:
        raise TransitionError("it has not started")
    being_written = call.state in (CallState.STARTED, CallState.ARGS_STREAMING)
    if call.run_id != row.run_id and (being_written or isinstance(event, ArgsAppended | CallSigned | CallCompleted)):
        raise TransitionError("it is of another run")
    next_state(call, event)
    return advanced(call, event, at=0.0)


def _unfinished(events: Sequence[RunEvent]) -> list[str]:
    """The calls of which a run has said last that it executes them."""
    last: dict[str, RunEvent] = {}
    for event in events:
        if isinstance(event, CallExecuting | CallAwaiting | CallReturned | CallFailed | CallDiscarded):
            last.pop(event.call_id, None)
            last[event.call_id] = event
    return [call_id for call_id, event in last.items() if isinstance(event, CallExecuting)]


def _whose(event: RunEvent) -> str:
    return event.call_id if isinstance(event, ArgsAppended) else event.message_id  # type: ignore[union-attr]


def _fold(records: Sequence[Record]) -> Record:
    last = records[-1]
    text = "".join(record.event.text for record in records)  # type: ignore[union-attr]
    event = msgspec.structs.replace(last.event, text=text)
    return msgspec.structs.replace(last, event=event, first_seq=records[0].seq)


def _stored(event: RunEvent) -> RunEvent:
    """What can be compared: the arguments of a completion are kept only where there are no pieces."""
    return CallCompleted(event.call_id) if isinstance(event, CallCompleted) else event
