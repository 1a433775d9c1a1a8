"""One append, checked row by row: by the table of transitions, the ids that are taken, what a run may hold. Pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from callstream.calls import BEING_WRITTEN, TAKES_PIECES, TRANSITIONS, Call, CallEvent, CallState, next_state
from callstream.errors import CallIdTaken, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    Event,
    RunEnded,
    RunStarted,
)
from callstream.journal.owned import Held, Memory, Owned, ended_error
from callstream.journal.rows import RecordColumns, Row, Source, clean, json_text, moment, whole_completion

MAX_MS = 2**31 - 1
"""A run's clock stops after 24 days; its records are still numbered."""
_WRITING = BEING_WRITTEN | TAKES_PIECES
_OF_ARGUMENTS: frozenset[type[Event]] = frozenset({ArgsAppended, CallSigned, CallCompleted})


SourceColumns: TypeAlias = tuple[int, int, str | None, str | None, str | None]
"""run_key, number, response_id, author, message_id"""


class RunChange(msgspec.Struct, frozen=True):
    """What a batch does to the row of a run: makes it, ends it, or both. Its last number is in the run's memory."""

    key: int
    run_id: str
    writer: str
    epoch: int
    is_new: bool
    started_at: float
    thread_id: str | None = None
    principal: str | None = None
    exclusive: bool = False
    outcome: str | None = None
    reason: str | None = None
    ended_at: float | None = None

    def followed_by(self, end: RunChange) -> RunChange:
        """A run that is made by one append and ended by another of the same batch."""
        return msgspec.structs.replace(self, outcome=end.outcome, reason=end.reason, ended_at=end.ended_at)


class CallChange(msgspec.Struct):
    """What a batch does to one row of ``tool_call``. ``old_state`` None: the row is new. Fields that are None stay."""

    call_id: str
    run_key: int
    number: int
    old_state: CallState | None
    state: CallState
    updated_at: float
    args_seq: int | None = None
    signature: str | None = None
    reason: str | None = None
    detail: str | None = None
    result: str | None = None
    error: str | None = None
    ran_early: bool | None = None
    name: str | None = None
    provider_id: str | None = None
    message_id: str | None = None
    encoding: str | None = None
    first_seq: int | None = None
    started_at: float | None = None


def run_clock(run: Owned, now: float) -> int:
    """Milliseconds since the run started. They never go back, whatever the clock does."""
    ms = int((now - run.started_at) * 1000)
    return ms if run.last_ms <= ms <= MAX_MS else min(max(ms, run.last_ms), MAX_MS)


class Draft:
    """One append, planned row by row; nothing is changed until all of it is known to be allowed."""

    def __init__(self, run: Owned, memory: Memory, others: dict[str, Held], now: float) -> None:
        self._run = run
        self._memory = memory
        self._others = others
        self._started_at = run.started_at or round(now, 3)
        self._ms = run_clock(run, now) if run.started_at else 0
        self._at = moment(self._started_at, self._ms)
        self._seq = run.last_seq
        self.records: list[RecordColumns] = []
        self._sources: dict[Source, int] = {}
        self._source: tuple[Source | None, int] = (None, 0)
        self._states: dict[str, CallState] = {}
        self._new: dict[str, Held] = {}
        self._changes: list[tuple[Held, CallEvent, CallState, int]] = []
        self._start: RunStarted | None = None
        self._end: RunEnded | None = None

    def add(self, row: Row) -> None:
        if self._end is not None:
            raise ended_error(self._run.run_id)
        self._seq += 1
        event, kind, body = row.event, row.kind, row.body
        call = None
        if type(event) is ArgsAppended:
            call = self._piece(event)
        elif isinstance(event, RunStarted):
            if self._seq != 1:
                raise UsageError(f"RunStarted is the first record of a run; {self._run.run_id!r} has {self._seq - 1}")
            self._start = event
        elif isinstance(event, RunEnded):
            self._end = event
        elif isinstance(event, CallEvent):
            before = self._call(event)
            if before is CallState.STARTED and isinstance(event, CallCompleted) and event.args_json is not None:
                kind, body = whole_completion(event)
        self.records.append((self._run.key, self._seq, self._ms, self._number(row.source), call, kind, body))

    @property
    def exclusive_thread(self) -> str | None:
        """The thread that the append wants for its run alone."""
        return self._start.thread_id if self._start is not None and self._start.exclusive else None

    @property
    def ends(self) -> bool:
        return self._end is not None

    @property
    def new_sources(self) -> list[SourceColumns]:
        return [
            (self._run.key, number, source.response_id, source.author, source.message_id)
            for source, number in self._sources.items()
        ]

    def keep(self, calls: dict[str, CallChange], taker: str | None) -> RunChange | None:
        """Takes the draft into the changes of calls and into the memory; returns what it does to the run's row."""
        run = self._run
        change = None
        if run.is_new or self._end is not None:
            change = RunChange(
                key=run.key,
                run_id=run.run_id,
                writer=taker or run.writer,
                epoch=run.epoch + 1 if taker else run.epoch,
                is_new=run.is_new,
                started_at=self._started_at,
                thread_id=self._start.thread_id if self._start else run.run_id,
                principal=self._start.principal if self._start else None,
                exclusive=self._start.exclusive if self._start else False,
                outcome=self._end.outcome if self._end else None,
                reason=clean(self._end.reason) if self._end else None,
                ended_at=self._at if self._end else None,
            )
        run.started_at, run.last_seq, run.last_ms, run.is_new = self._started_at, self._seq, self._ms, False
        run.ended = self._end is not None
        run.sources.update(self._sources)
        for held in self._new.values():
            run.calls[held.call_id] = self._memory.calls[held.call_id] = self._others[held.call_id] = held
        for held, event, state, seq in self._changes:
            _change(calls, held, event, state, seq, self._at)
        return change

    def _piece(self, event: ArgsAppended) -> int:
        """The quick way: a piece after the first changes nothing but the log. Returns the number of the call."""
        held = self._held(event.call_id)
        state = self._states.get(event.call_id, held.state)
        if state not in TAKES_PIECES or held.run_key != self._run.key:
            self._advance(held, state, event)
        return held.number

    def _call(self, event: CallEvent) -> CallState:
        """Checks the event by the table; returns the state before it."""
        if isinstance(event, CallStarted):
            call_id = event.call_id
            if call_id in self._new or call_id in self._memory.calls or call_id in self._others:
                raise CallIdTaken(call_id)
            number = len(self._run.calls) + len(self._new) + 1
            held = self._new[call_id] = Held(call_id, self._run.key, number, CallState.STARTED)
            self._changes.append((held, event, CallState.STARTED, self._seq))
            return CallState.STARTED
        held = self._held(event.call_id)
        state = self._states.get(event.call_id, held.state)
        self._advance(held, state, event)
        return state

    def _advance(self, held: Held, state: CallState, event: CallEvent) -> None:
        if held.run_key != self._run.key and (state in _WRITING or type(event) in _OF_ARGUMENTS):
            raise TransitionError(
                f"call {held.call_id!r} is {state} and of another run, which alone may say {type(event).__name__}"
            )
        after = TRANSITIONS.get((state, type(event)))
        if after is None:
            after = next_state(Call(held.call_id, "", state), event)  # raises, in the words of the table's owner
        self._states[held.call_id] = after
        self._changes.append((held, event, after, self._seq))

    def _held(self, call_id: str) -> Held:
        held = self._new.get(call_id) or self._memory.calls.get(call_id) or self._others.get(call_id)
        if held is None:
            raise TransitionError(f"call {call_id!r} has not started: the first record of a call is CallStarted")
        return held

    def _number(self, source: Source) -> int:
        if source == self._source[0]:
            return self._source[1]
        number = self._run.sources.get(source, self._sources.get(source))
        if number is None:
            number = self._sources[source] = len(self._run.sources) + len(self._sources)
        self._source = (source, number)
        return number


def _change(calls: dict[str, CallChange], held: Held, event: CallEvent, state: CallState, seq: int, at: float) -> None:
    change = calls.get(held.call_id)
    if change is None:
        old_state = None if isinstance(event, CallStarted) else held.state
        change = calls[held.call_id] = CallChange(held.call_id, held.run_key, held.number, old_state, state, at)
    was_written = held.state in _WRITING and not held.has_args
    held.state = change.state = state
    change.updated_at = at
    match event:
        case CallStarted():
            change.name, change.provider_id, change.message_id = event.name, event.provider_id, event.message_id
            change.encoding, change.signature = event.encoding, clean(event.signature)
            change.first_seq, change.started_at = seq, at
        case CallSigned():
            change.signature = clean(event.signature)
        case CallCompleted():
            change.args_seq, held.has_args = seq, True
        case CallRunningEarly():
            change.ran_early = True
        case CallDiscarded():
            change.reason, change.detail = event.reason, clean(event.detail)
            if was_written:
                change.args_seq = seq
        case CallReturned():
            change.result = json_text(event.result)
        case CallFailed():
            change.error = clean(event.error)
        case _:
            pass
