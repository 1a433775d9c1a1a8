"""The journal in memory: the reference for the others, and for tests and programs that need no disk.

``memory:`` is a store of its own. ``memory:name`` is shared by all journals of the process that name it, and lives as
long as one of them; each stands for a process of its own, with its own lease. There is no thread: every method does its
work at once, under a lock, so any event loop may call it. What a journal does by itself it does when it is next used.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec

from callstream.calls import BEFORE_EXECUTING, Call, CallEvent, CallState, advanced, next_state, numbered, opened
from callstream.errors import CallIdTaken, LeaseLost, ThreadBusy, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallSigned,
    CallStarted,
    Record,
    RunEnded,
    RunEvent,
    RunStarted,
)
from callstream.journal import follow as following
from callstream.journal.filters import CallFilter, RunFilter, forgettable
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.owned import Append, ended_error
from callstream.journal.plan import left_executing, same_rows
from callstream.journal.protocol import Entry, Openable, RunRow
from callstream.journal.rows import (
    Kind,
    Row,
    checked_limit,
    checked_run_id,
    event_of,
    folded_range,
    piece_text,
    prepared,
    redacted,
    whole_completion,
    with_args,
)
from callstream.journal.settings import Settings
from callstream.journal.store import log_swept


class _Line(msgspec.Struct, frozen=True, gc=False):
    """A record; the event is kept as text, so that nobody can change it later."""

    seq: int
    at: float
    row: Row
    call_id: str | None
    first_seq: int | None = None


class _Run(msgspec.Struct, eq=False):
    row: RunRow
    writer: str
    epoch: int = 1
    lines: list[_Line] = []
    compacted: bool = False
    exclusive: bool = False
    stop_reason: str | None = None


class MemoryStore:
    """What the journals of one name share. ``leases`` says until when each writer counts as alive."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[str, _Run] = {}
        self.calls: dict[str, Call] = {}
        self.leases: dict[str, float] = {}
        self.journals: weakref.WeakSet[MemoryJournal] = weakref.WeakSet()

    def wake(self, run_ids: Iterable[str]) -> None:
        for journal in list(self.journals):
            journal.followers.wake(run_ids)


_named: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


def shared_store(name: str) -> MemoryStore:
    return _named.setdefault(name, MemoryStore()) if name else MemoryStore()


class MemoryJournal(Openable):
    """See ``Journal``."""

    def __init__(self, store: MemoryStore, settings: Settings) -> None:
        self.followers = Followers()
        self._store = store
        self._settings = settings
        self._writer = f"{settings.writer_id or 'memory'}/{uuid.uuid4().hex[:12]}"
        self._is_open = False
        self._is_closed = False
        self._duties_at = 0.0

    async def open(self) -> None:
        self._enter()

    async def migrate(self) -> int:
        return 1

    async def aclose(self) -> None:
        with self._store.lock:
            self._is_closed = True
            self._store.leases.pop(self._writer, None)
            self._store.journals.discard(self)
        self.followers.close()

    async def append(self, run_id: str, events: Sequence[RunEvent | Entry], *, after: int | None = None) -> int:
        checked_run_id(run_id)
        redact = self._settings.redact
        rows = [prepared(redacted(event, redact) if redact else event) for event in events]
        with self._store.lock:
            self._enter()
            last_seq = self._append(run_id, rows, after)
        self._store.wake([run_id])
        return last_seq

    def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.read(self._page, run_id, after)

    async def read_whole(self, run_ids: Sequence[str]) -> list[Record]:
        with self._store.lock:
            self._enter()
            runs = [(run_id, list(self._store.runs[run_id].lines)) for run_id in run_ids if run_id in self._store.runs]
        return [
            _record(run_id, line)
            for run_id, lines in runs
            for line in sorted(lines, key=lambda line: line.first_seq or line.seq)
        ]

    def follow(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.follow(self._page, self.followers, run_id, after)

    def batches(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        return following.batches(self._page, self.followers, run_id, after)

    async def call(self, call_id: str) -> Call | None:
        with self._store.lock:
            self._enter()
            call = self._store.calls.get(call_id)
            if call is None or call.run_id is None:
                return None
            lines = [line for line in self._store.runs[call.run_id].lines if line.call_id == call_id]
        pieces = "".join([piece_text(line.row.kind, line.row.body) for line in lines if line.row.kind & Kind.ARGS])
        whole = next((line.row.event.args_json for line in lines if isinstance(line.row.event, CallCompleted)), None)
        return with_args(call, pieces, whole)

    async def calls(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        states: Sequence[CallState] | None = None,
        provider_id: str | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[Call]:
        limit = checked_limit(limit)
        wanted = CallFilter(
            run_id=run_id, thread_id=thread_id, principal=principal, states=states, provider_id=provider_id
        )
        with self._store.lock:
            self._enter()
            runs, calls = self._store.runs, self._store.calls.values()
            found = [call for call in calls if wanted.fits(call, runs[call.run_id or ""].row)]
        return found[max(0, len(found) - limit) :] if newest and limit is not None else found[:limit]

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        limit = checked_limit(limit)
        wanted = RunFilter(run_id=run_id, thread_id=thread_id, principal=principal, active=active)
        with self._store.lock:
            self._enter()
            found = [run.row for run in reversed(self._store.runs.values()) if wanted.fits(run.row)]
        return found[:limit]

    async def free_call_id(self, wanted: str) -> str:
        checked_run_id(wanted)
        with self._store.lock:
            self._enter()
            return numbered(wanted, self._store.calls)

    async def compact(self, run_id: str) -> int:
        with self._store.lock:
            self._enter()
            run = self._store.runs.get(run_id)
            if run is None:
                raise UsageError(f"the journal has no run {run_id!r}")
            if run.row.outcome is None:
                raise UsageError(f"run {run_id!r} goes on; only an ended run can be compacted")
            return _compact(run)

    async def sweep(self) -> list[str]:
        with self._store.lock:
            self._enter()
            swept = self._sweep()
        self._store.wake(swept)
        return swept

    async def forget(
        self, *, before: float | None = None, thread: str | None = None, principal: str | None = None
    ) -> int:
        wanted = forgettable(before, thread, principal)
        with self._store.lock:
            self._enter()
            gone = {run.row.run_id for run in self._store.runs.values() if wanted.fits(run.row)}
            self._forget(gone)
        self._store.wake(gone)
        return len(gone)

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        with self._store.lock:
            self._enter()
            run = self._store.runs.get(run_id)
            if run is None or run.row.outcome is not None:
                return False
            run.stop_reason = run.stop_reason or reason
            return True

    async def asked_to_stop(self) -> dict[str, str]:
        with self._store.lock:
            self._enter()
            return {
                run.row.run_id: run.stop_reason
                for run in self._store.runs.values()
                if run.stop_reason is not None and run.row.outcome is None and run.writer == self._writer
            }

    async def check(self) -> None:
        self._enter()

    async def stats(self) -> dict[str, Any]:
        with self._store.lock:
            self._enter()
            runs = self._store.runs.values()
            alive = {writer for writer, until in self._store.leases.items() if until > time.time()}
            return {
                "schema_version": 1,
                "runs": len(runs),
                "active_runs": sum(run.row.outcome is None for run in runs),
                "live_writers": len(alive),
                "orphaned_runs": sum(run.row.outcome is None and run.writer not in alive for run in runs),
                "calls": len(self._store.calls),
                "records": sum(len(run.lines) for run in runs),
                "stored_bytes": sum(len(line.row.body) for run in runs for line in run.lines),
                "pending_bytes": 0,
            }

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        with self._store.lock:
            if self._is_closed:
                raise UsageError("the journal is closed")
            if not self._is_open:
                self._is_open = True
                self._store.journals.add(self)
                self._store.leases[self._writer] = time.time() + self._settings.lease_ttl
            if self._settings.renew:
                # Nothing but the end of the process stops the renewing here, and then the store is gone too.
                self._store.leases[self._writer] = float("inf")
            self._do_duties()

    def _do_duties(self) -> None:
        duties, now = self._settings.housekeeping, time.time()
        if duties is None or now < self._duties_at:
            return
        self._duties_at = now + 1.0
        if duties.sweep_every is not None:
            swept = self._sweep()
            log_swept(swept)
            self._store.wake(swept)
        ended = [(run, run.row.ended_at) for run in self._store.runs.values() if run.row.ended_at is not None]
        for run, ended_at in ended:
            if duties.compact_after is not None and ended_at < now - duties.compact_after:
                _compact(run)
        if duties.retain is not None:
            self._forget({run.row.run_id for run, ended_at in ended if ended_at < now - duties.retain})

    def _append(self, run_id: str, rows: Sequence[Row], after: int | None) -> int:
        run = self._store.runs.get(run_id)
        last_seq = run.row.last_seq if run else 0
        if after is not None and after != last_seq:
            return self._repeated(run_id, run, rows, after)
        if run is not None:
            self._check_owner(run)
        if not rows:
            return last_seq
        if run is None:
            now = round(time.time(), 3)
            run = _Run(RunRow(run_id, run_id, None, None, None, now, None, 0), self._writer)
        self._write(run, rows)
        return run.row.last_seq

    def _check_owner(self, run: _Run) -> None:
        if run.writer != self._writer:
            if run.row.outcome is None or run.epoch > 1:
                raise LeaseLost(f"run {run.row.run_id!r} belongs to writer {run.writer!r}; this is {self._writer!r}")
            raise ended_error(run.row.run_id)
        if run.row.outcome is not None:
            raise ended_error(run.row.run_id)

    def _repeated(self, run_id: str, run: _Run | None, rows: Sequence[Row], after: int) -> int:
        last_seq = run.row.last_seq if run else 0
        last = after + len(rows)
        if run is not None and rows and last_seq >= last:
            there = [(line.row.kind, line.row.body) for line in run.lines if after < line.seq <= last]
            if same_rows(Append(run_id, rows), there) or (run.compacted and run.epoch == 1):
                return last
            self._check_owner(run)
        if run is not None and run.writer != self._writer:
            self._check_owner(run)  # whoever took the run over has written to it
        raise UsageError(
            f"run {run_id!r} has {last_seq} records; what follows record {after} is not this append of {len(rows)}: "
            "either it skips records, or two tasks write to the run"
        )

    def _write(self, run: _Run, rows: Sequence[Row]) -> None:
        """All of the rows or none: the store is changed only after the last one was allowed."""
        run_id = run.row.run_id
        changed: dict[str, Call] = {}
        lines: list[_Line] = []
        row, seq = run.row, run.row.last_seq
        at = max(round(time.time(), 3), run.lines[-1].at if run.lines else 0.0)
        for line in rows:
            if row.outcome is not None:
                raise ended_error(run_id)
            seq += 1
            call_id = None
            match line.event:
                case RunStarted(thread_id=thread_id, principal=principal):
                    if seq != 1:
                        raise UsageError(f"RunStarted is the first record of a run; {run_id!r} has {seq - 1}")
                    if line.event.exclusive:
                        self._take_thread(thread_id, run_id)
                    row = msgspec.structs.replace(row, thread_id=thread_id, principal=principal)
                    run.exclusive = line.event.exclusive
                case RunEnded(outcome=outcome, reason=reason):
                    row = msgspec.structs.replace(row, outcome=outcome, reason=reason, ended_at=at)
                case event if isinstance(event, CallEvent):
                    before = changed.get(event.call_id) or self._store.calls.get(event.call_id)
                    changed[event.call_id] = _next(before, event, row, at)
                    if isinstance(event, ArgsAppended):
                        call_id = event.call_id
                    elif isinstance(event, CallCompleted) and before is not None and before.state is CallState.STARTED:
                        call_id, line = event.call_id, Row(event, *whole_completion(event), line.source)
                    elif isinstance(event, CallCompleted):
                        line = msgspec.structs.replace(line, event=CallCompleted(event.call_id))
            lines.append(_Line(seq, at, line, call_id))
        run.lines += lines
        run.row = msgspec.structs.replace(row, last_seq=seq)
        self._store.runs[run_id] = run
        self._store.calls.update(changed)

    def _take_thread(self, thread_id: str, run_id: str) -> None:
        for other in self._store.runs.values():
            row = other.row
            if other.exclusive and row.thread_id == thread_id and row.outcome is None and row.run_id != run_id:
                raise ThreadBusy(thread_id, row.run_id)

    def _sweep(self) -> list[str]:
        now = time.time()
        swept = []
        for run in list(self._store.runs.values()):
            alive = self._store.leases.get(run.writer, 0.0) > now
            if run.row.outcome is not None or alive or run.writer == self._writer:
                continue
            run.writer, run.epoch = self._writer, run.epoch + 1
            events: list[RunEvent] = []
            resumed = left_executing(line.row.event for line in run.lines)
            for call in self._store.calls.values():
                own = call.run_id == run.row.run_id
                if own and call.state in BEFORE_EXECUTING:
                    events.append(CallDiscarded(call.call_id, "interrupted"))
                elif call.state is CallState.EXECUTING and (own or call.call_id in resumed):
                    events.append(CallFailed(call.call_id, "interrupted"))
            self._write(run, [prepared(event) for event in [*events, RunEnded("failed", "interrupted")]])
            swept.append(run.row.run_id)
        return swept

    def _forget(self, gone: set[str]) -> None:
        for run_id in gone:
            del self._store.runs[run_id]
        for call_id in [call.call_id for call in self._store.calls.values() if call.run_id in gone]:
            del self._store.calls[call_id]

    async def _page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        with self._store.lock:
            self._enter()
            run = self._store.runs.get(run_id)
            if run is None:
                return None
            if run.compacted:
                ranges = [(line.first_seq, line.seq) for line in run.lines if line.first_seq is not None]
                if is_first and (inside := folded_range(ranges, after)):
                    return Folded(*inside)
                lines = [line for line in run.lines if line.seq > after][:limit]
            else:
                lines = run.lines[after : after + limit]  # numbered 1, 2, 3, … without gaps
            ended = run.row.outcome is not None and (not lines or lines[-1].seq == run.row.last_seq)
        return Page([_record(run_id, line) for line in lines], ended)


def _next(call: Call | None, event: CallEvent, row: RunRow, at: float) -> Call:
    if isinstance(event, CallStarted):
        if call is not None:
            raise CallIdTaken(event.call_id)
        return opened(event, run_id=row.run_id, thread_id=row.thread_id, at=at)
    if call is None:
        raise TransitionError(f"call {event.call_id!r} has not started: the first record of a call is CallStarted")
    being_written = call.state in (CallState.STARTED, CallState.ARGS_STREAMING)
    if call.run_id != row.run_id and (being_written or isinstance(event, ArgsAppended | CallSigned | CallCompleted)):
        raise TransitionError(
            f"call {call.call_id!r} is {call.state} and of another run, which alone may say {type(event).__name__}"
        )
    if isinstance(event, ArgsAppended) and next_state(call, event) is call.state:
        return call  # the row is not touched for every piece: its time is that of the last change of state
    return advanced(call, event, at=at)


def _record(run_id: str, line: _Line) -> Record:
    event = event_of(line.row.kind, line.row.body, line.call_id, line.row.source.message_id)
    source = line.row.source
    return Record(run_id, line.seq, line.at, event, source.response_id, source.author, line.first_seq)


def _compact(run: _Run) -> int:
    if run.compacted:
        return 0
    groups: dict[object, list[_Line]] = {}
    for line in run.lines:
        kind = line.row.kind & 7
        whose = line.call_id if kind == Kind.ARGS else line.row.source.message_id
        groups.setdefault(line.seq if kind == Kind.EVENT else (kind, whose), []).append(line)
    lines = [lines[0] if len(lines) == 1 else _folded(lines) for lines in groups.values()]
    gone = len(run.lines) - len(lines)
    run.lines, run.compacted = sorted(lines, key=lambda line: line.seq), True
    return gone


def _folded(lines: Sequence[_Line]) -> _Line:
    last = lines[-1]
    text = "".join([piece_text(line.row.kind, line.row.body) for line in lines])
    event = msgspec.structs.replace(last.row.event, text=text)
    source = last.row.source
    row = prepared(Entry(event, source.response_id, source.author))
    return msgspec.structs.replace(last, row=row, first_seq=lines[0].seq)
