"""What a batch of appends writes, decided from what the writer remembers. Pure: no store, no clock.

A process writes many runs at once, and everything that waits is written in one transaction. Whose fault an append is
stays with that append: it is refused as a whole, and its neighbours are written.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec

from callstream.calls import TAKES_PIECES
from callstream.errors import CallstreamError, ThreadBusy, UsageError
from callstream.events import (
    ArgsAppended,
    Record,
)
from callstream.journal.draft import CallChange, Draft, RunChange, SourceColumns, run_clock
from callstream.journal.owned import Append, Held, Memory, Owned, ended_error
from callstream.journal.rows import ESCAPED, Kind, RecordColumns, Row, event_of, moment

MAX_KEPT = 64 * 1024
"""Records with more text than that are not handed to followers in memory: they read them."""


class Repeat(msgspec.Struct, frozen=True):
    """An append that seems to be there already: true if rows ``first`` to ``last`` of the run are its rows."""

    run: Owned
    first: int
    last: int


class Plan:
    """Everything that one transaction writes, and the outcome of each append of the batch.

    ``repeats`` are the appends, by their place, whose outcome the log has to tell.
    Planning brings the memory to where it will be when the plan is committed. If that does not happen the memory is
    wrong and must be cleared. ``changed`` are the runs that get records; ``runs`` those of them of which more changes
    than their last number; ``records`` what the ``rows`` of the batch become in the log.
    """

    def __init__(self, batch: Sequence[Append], memory: Memory, now: float) -> None:
        self._batch = batch
        self._memory = memory
        self._now = now
        self.outcomes: list[int | CallstreamError] = [0] * len(batch)
        self.repeats: dict[int, Repeat] = {}
        self.changed: dict[Owned, None] = {}
        self.runs: dict[Owned, RunChange] = {}
        self.rows: list[Row] = []
        self.records: list[RecordColumns] = []
        self.sources: list[SourceColumns] = []
        self.calls: dict[str, CallChange] = {}
        self._busy: dict[str, str] = {}

    def changed_runs(self, followed: Container[str]) -> dict[str, list[Record]]:
        """The runs that get records, and of those that are followed these records, as a reader of the store reads them.

        Of a run that gets a long text there are none: memory is not for that, and its followers read.
        """
        found: dict[str, list[Record]] = {run.run_id: [] for run in self.changed}
        runs = {run.key: run for run in self.changed if run.run_id in followed}
        if not runs:
            return found
        for row, (key, seq, ms, _, _, kind, body) in zip(self.rows, self.records, strict=True):
            run = runs.get(key)
            if run is None:
                continue
            if len(body) > MAX_KEPT:
                found[run.run_id] = []
                del runs[key]
                continue
            # Pieces are text and cannot change; anything else is read from what is stored, as others read it.
            event = row.event if kind & ~ESCAPED != Kind.EVENT else event_of(kind, body, None, None)
            at, source = moment(run.started_at, ms), row.source
            found[run.run_id].append(Record(run.run_id, seq, at, event, source.response_id, source.author))
        return found

    def add_pieces(self) -> Sequence[int]:
        """Plans the appends that bring nothing but pieces, which are nearly all; returns the places of the others.

        An append that comes after one of the others of its run waits with it.
        """
        others: list[int] = []
        waiting: set[str] = set()
        runs = self._memory.runs
        for place, append in enumerate(self._batch):
            run = runs.get(append.run_id)
            if run is None or append.run_id in waiting or not self._add_pieces(append, run):
                waiting.add(append.run_id)
                others.append(place)
            else:
                self.outcomes[place] = run.last_seq
        return others

    def add_others(
        self,
        places: Sequence[int],
        named: Mapping[str, Held],
        *,
        busy: Mapping[str, str] | None = None,
        taker: str | None = None,
    ) -> None:
        """Plans those appends. The memory has all their runs now.

        ``named``: the calls of other runs that they name and the store has. ``busy``: the exclusive runs that go on, by
        thread. ``taker``: the writer that takes the runs over on the way (a sweep).
        """
        calls = dict(named)
        self._busy = dict(busy or {})
        for place in places:
            append = self._batch[place]
            outcome = self._add(append, self._memory.runs[append.run_id], calls, taker)
            if isinstance(outcome, Repeat):
                self.repeats[place] = outcome
            else:
                self.outcomes[place] = outcome
        for place in places:
            run_id = self._batch[place].run_id
            run = self._memory.runs.get(run_id)
            if run is not None and (run.is_new or run.ended or run.refusal is not None):
                self._memory.drop(run_id)  # nothing was written to it, or nothing more will be

    def _add_pieces(self, append: Append, run: Owned) -> bool:
        """False if there is anything else about the append; then nothing was done."""
        seq = run.last_seq
        believed = append.base if append.after is None else append.after
        if run.is_new or run.ended or (believed is not None and believed != seq) or not append.rows:
            return False
        ms = run_clock(run, self._now)
        key, sources, calls = run.key, run.sources, run.calls
        records: list[RecordColumns] = []
        for row in append.rows:
            source = sources.get(row.source)
            if source is None:
                return False
            event = row.event
            call = None
            if type(event) is ArgsAppended:
                held = calls.get(event.call_id)
                if held is None or held.state not in TAKES_PIECES:
                    return False
                call = held.number
            elif not row.kind & Kind.TEXT:  # reasoning has this bit too
                return False
            seq += 1
            records.append((key, seq, ms, source, call, row.kind, row.body))
        append.base = run.last_seq
        self.changed[run] = None
        self.rows += append.rows
        self.records += records
        run.last_seq, run.last_ms = seq, ms
        return True

    def _add(
        self, append: Append, run: Owned, calls: dict[str, Held], taker: str | None
    ) -> int | CallstreamError | Repeat:
        count = len(append.rows)
        believed = append.base if append.after is None else append.after
        if believed is not None and run.last_seq != believed:
            if count and run.last_seq >= believed + count:
                return Repeat(run, believed + 1, believed + count)
            if run.refusal is not None:
                return run.refusal  # the process that took the run over has written to it
            if append.after is not None:
                return UsageError(
                    f"run {run.run_id!r} has {run.last_seq} records, the append of {count} says it has {append.after}: "
                    "either it skips records, or two tasks write to the run"
                )
        if run.refusal is not None:
            return run.refusal
        if count == 0:
            return run.last_seq
        if run.ended:
            return ended_error(run.run_id)
        append.base = run.last_seq
        try:
            draft = Draft(run, self._memory, calls, self._now)
            for row in append.rows:
                draft.add(row)
            self._take_thread(draft, run.run_id)
        except CallstreamError as error:
            append.base = None
            return error
        self.changed[run] = None
        change = draft.keep(self.calls, taker)
        if change is not None:
            earlier = self.runs.get(run)
            self.runs[run] = change if earlier is None else earlier.followed_by(change)
        self.rows += append.rows
        self.records += draft.records
        self.sources += draft.new_sources
        return run.last_seq

    def _take_thread(self, draft: Draft, run_id: str) -> None:
        thread_id = draft.exclusive_thread
        if thread_id is not None:
            if (other := self._busy.get(thread_id, run_id)) != run_id:
                raise ThreadBusy(thread_id, other)
            self._busy[thread_id] = run_id
        if draft.ends:
            self._busy = {thread: other for thread, other in self._busy.items() if other != run_id}
