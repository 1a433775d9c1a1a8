"""What a journal in memory holds."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from callstream.calls import Call
from callstream.events import Record
from callstream.journal.pack import Place
from callstream.journal.packs import PackState
from callstream.journal.plan import RunFacts
from callstream.journal.rows import NOWHERE, RunRow, Source, Stored, event_of, moment
from callstream.journal.whole import WholeCall, WholeRun

seq_of = attrgetter("seq")


class KnownPack(msgspec.Struct, eq=False):
    """``changed_at`` is by the monotonic clock."""

    changed_at: float
    state: PackState = "writing"
    places: dict[int, Place] = msgspec.field(default_factory=dict)
    runs: int = 0
    size: int = 0


class MemoryCall(msgspec.Struct, eq=False):
    row: Call
    run_key: int
    number: int
    first_seq: int
    args_seq: int | None = None
    result: str | None = None
    """As JSON text, which tells nothing from a null."""

    def whole(self) -> WholeCall:
        row = self.row
        return WholeCall(
            self.number,
            row.call_id,
            row.name,
            row.state.value,
            row.provider_id,
            row.message_id,
            row.signature,
            row.encoding,
            row.reason,
            row.detail,
            self.result,
            row.error,
            row.ran_early,
            row.started_at or 0.0,
            row.updated_at or 0.0,
            self.first_seq,
            self.args_seq,
        )


class MemoryRun(msgspec.Struct, eq=False):
    key: int
    row: RunRow
    writer: str
    epoch: int
    exclusive: bool
    compacted: bool = False
    stop_reason: str | None = None
    pack: str | None = None
    log: list[Stored] = []
    sources: dict[int, Source] = msgspec.field(default_factory=lambda: {0: NOWHERE})
    calls: list[MemoryCall] = []

    def facts(self) -> RunFacts:
        last_ms = self.log[-1].at_ms if self.log else 0
        row = self.row
        ended = row.outcome is not None
        return RunFacts(row.run_id, self.key, self.writer, self.epoch, row.started_at, row.last_seq, last_ms, ended)

    def whole(self) -> WholeRun:
        row, goes_on = self.row, self.row.outcome is None
        return WholeRun(
            self.key,
            row.run_id,
            row.thread_id,
            row.principal,
            row.outcome,
            row.reason,
            row.started_at,
            row.ended_at,
            None if goes_on else row.last_seq,
            self.compacted,
            self.epoch,
            self.writer if goes_on else "",
            self.exclusive and goes_on,
            [(number, *msgspec.structs.astuple(source)) for number, source in self.sources.items() if number],
            [call.whole() for call in self.calls],
            [
                (seq, at_ms, source, call, kind, body, first_seq)
                for seq, at_ms, source, call, kind, body, _, first_seq in self.log
            ],
        )

    def lines(self, first: int, last: int) -> list[Stored]:
        """The records of those numbers. Where a log is beside this one, or after folding, some are missing."""
        return self.log[bisect_left(self.log, first, key=seq_of) : bisect_right(self.log, last, key=seq_of)]

    def records(self, lines: Iterable[Stored]) -> list[Record]:
        found = []
        run_id, started_at = self.row.run_id, self.row.started_at
        for line in lines:
            seq, at_ms, number, call, kind, body, message_id, first_seq = line
            source = self.sources[number]
            event = event_of(kind, body, None if call is None else self.calls[call - 1].row.call_id, message_id)
            at = moment(started_at, at_ms)
            found.append(Record(run_id, seq, at, event, source.response_id, source.author, first_seq))
        return found


class MemoryTables:
    """What the journals of one name share. ``writes`` counts the transactions; ``leases`` end at their times."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.lock = threading.RLock()
        self.runs: dict[str, MemoryRun] = {}
        self.keys: dict[int, MemoryRun] = {}
        self.calls: dict[str, MemoryCall] = {}
        self.leases: dict[str, float] = {}
        self.forgotten: set[str] = set()
        self.packs: dict[str, KnownPack] = {}
        self.writes = 0
        self.last_key = 0
        self.stores: weakref.WeakSet[Any] = weakref.WeakSet()
