"""What a database has to offer for ``Journal`` to make a journal of it, and what is passed between the two."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import JournalError, UsageError
from callstream.events import Record
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.plan import Append
from callstream.journal.rows import NOWHERE, RecordColumns, RunRow, Source, Stored, record_of
from callstream.journal.whole import Packs, RunSize, WholeRecord, WholeRun
from callstream.journal.writer import Committed, Writer

_log = logging.getLogger("callstream.journal")

# -- filters: which runs and calls to list, and which runs to forget ---------------------------------------------------


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    active: bool | None = None
    ended_before: float | None = None

    def fits(self, run: RunRow) -> bool:
        return (
            (self.run_id is None or run.run_id == self.run_id)
            and (self.thread_id is None or run.thread_id == self.thread_id)
            and (self.principal is None or run.principal == self.principal)
            and (self.active is None or (run.outcome is None) == self.active)
            and (self.ended_before is None or (run.ended_at is not None and run.ended_at < self.ended_before))
        )


class CallFilter(RunFilter, frozen=True, kw_only=True):
    """Which calls: those of the runs that fit, with these further conditions."""

    states: Sequence[CallState] | None = None
    provider_id: str | None = None

    def fits_call(self, call: Call) -> bool:
        return (self.states is None or call.state in self.states) and (
            self.provider_id is None or call.provider_id == self.provider_id
        )


def forget_filter(before: float | None, thread: str | None, principal: str | None) -> RunFilter:
    """The ended runs that match all that is given."""
    if before is None and thread is None and principal is None:
        raise UsageError("forget needs before=, thread= or principal=: without them it would erase everything")
    if before is not None and math.isnan(before):
        raise UsageError("forget needs before= as seconds since 1970, got nan")
    return RunFilter(thread_id=thread, principal=principal, active=False, ended_before=before)


def forgotten_mark(thread_id: str, principal: str | None) -> str:
    """What remains of a permanently erased thread: a digest, which does not reveal the thread or its principal."""
    return hashlib.sha256(msgspec.json.encode((thread_id, principal))).hexdigest()


# -- when a store cannot be written ------------------------------------------------------------------------------------


class StoreUnavailable(JournalError):
    """The store cannot be reached or is locked at the moment. It is worth trying again for a while.

    Whether the batch under way was written is unknown. When it is tried again, each append's ``base`` shows whether it was.
    """


class Unstorable(JournalError):
    """The store cannot hold this value, but takes others."""


SCHEMA_VERSION = 3
"""The schema that this code writes."""
OLDEST_CODE = 1
"""The schema of the oldest code that can use such a store: that code leaves alone what was added since."""


def check_archive(writer: Writer, where: str, *, has_packs: bool) -> None:
    """Raises JournalError if runs are in an archive that this process was not given: it could not read or erase them."""
    if has_packs and not writer.has_archive:
        raise archive_unnamed(where)


def archive_unnamed(where: str) -> JournalError:
    return JournalError(
        f"{where} has runs in an archive: name it where you open the journal, with archive=, --archive or CALLSTREAM_ARCHIVE"
    )


def check_log(writer: Writer, where: str, noted: str | None) -> None:
    """Raises UsageError if this process does not use the log that is noted: it would mistake runs whose pieces are in that
    log for complete ones and compact them, and those pieces would never be read again.
    """
    named = writer.log.name if writer.log is not None else None
    if noted is not None and named != noted:
        how = "without it" if named is None else f"with another one ({named})"
        raise UsageError(
            f"{where} has a log beside it, which has pieces of its runs, and was opened {how}: add log= with the log's "
            f"servers and {noted} to the journal's URL, or copy it to another database with `callstream move` to do "
            "without this log"
        )


def warn_of_others(where: str, writers: Collection[str]) -> None:
    """Called when a log is noted: warns of the processes that have opened the store without it."""
    if writers:
        _log.warning(
            "%s has a log from now on, and is in use by processes that may have been started without it: end them, or "
            "start them again with the log: %s",
            where,
            ", ".join(sorted(writers)),
        )


class Head(msgspec.Struct, frozen=True):
    """A run's key, and what the numbers in its records stand for. Those never change; a live run may get more of them.

    ``writer``: the process that owns the run and has its pieces in its part of the log; empty once the run is compacted.
    """

    run_id: str
    key: int
    started_at: float
    compacted: bool
    writer: str
    sources: dict[int, Source]
    call_ids: dict[int, str]

    def record(self, columns: WholeRecord) -> Record:
        seq, at_ms, number, call, kind, body, first_seq = columns
        source = self.sources.get(number, NOWHERE)
        call_id = None if call is None else self.call_ids.get(call)
        row = (seq, at_ms, kind, body, source.response_id, source.author, source.message_id, call_id, first_seq)
        return record_of(self.run_id, self.started_at, row)


class CallLog(NamedTuple):
    """A call without its text, and (seq, kind, body) of its pieces and of the record that ended them."""

    call: Call
    number: int
    first_seq: int
    rows: Sequence[tuple[int, int, str]]


class RunRows(NamedTuple):
    """The whole log of a run, for compaction. It has no rows if the run is still running or is compacted already."""

    run_key: int
    ended: bool
    compacted: bool
    rows: Sequence[Stored] = ()


class StoreReader(Protocol):
    """The queries that write nothing."""

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None: ...

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        """See ``Journal``."""
        ...

    async def call_log(self, call_id: str) -> CallLog | None: ...

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]: ...

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]: ...

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        """Which of those ids are calls in the store."""
        ...

    async def has_forgotten(self, mark: str) -> bool:
        """Whether runs of the thread with that ``forgotten_mark`` were permanently erased."""
        ...

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        """The heads of those of the runs that exist."""
        ...

    async def log(self, run_id: str) -> RunRows | None: ...

    async def writers(self) -> set[str]:
        """The writers that are alive, and those that own runs which are not compacted."""
        ...

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        """The first ``limit`` runs with keys greater than ``after``, up to ``last``, ordered by key."""
        ...

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        """Those of the runs that exist, ordered by key."""
        ...

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        """The first ``limit`` of the ``forgotten_mark``s after that one, in order."""
        ...

    async def left_open(self) -> Sequence[str]:
        """The runs that have not ended but whose process is gone, oldest first."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class Store(Protocol):
    """One database. It is awaited on the journal's thread only, and so is its reader, unless the store ``is_local``.

    It is the whole journal, or the index beside a ``Log``, which then has some pieces of live runs.

    Anything may raise StoreUnavailable if it should be tried again, JournalError if not.
    """

    where: str
    is_persistent: bool
    journal_id: str
    """Which journal it is, whatever its address. It is known when the store is open."""
    is_local: bool
    """Whether there is no server. Then ``commit`` blocks its thread until it is done, and the reader may be awaited in any
    event loop.
    """

    @property
    def packs(self) -> Packs: ...

    @property
    def reader(self) -> StoreReader: ...

    async def open(self, writer: Writer, followers: Followers) -> None:
        """Connects, brings the schema up to date or refuses it, and takes the writer's lease.

        Raises UsageError if a log is noted that the writer does not have; see ``note_log``.
        """

    async def note_log(self) -> None:
        """Notes permanently that the writer's log belongs to this store, before anything is written to that log.

        From then on the store cannot be opened without it. A warning names the processes that have opened it without the
        log before, and may still use it.
        """

    async def migrate(self) -> int:
        """Brings the schema up to date, under a lock; returns its version."""
        ...

    async def close(self) -> None:
        """Gives the leases back and disconnects."""

    async def commit(self, batch: Sequence[Append]) -> Committed:
        """Writes the batch in one transaction."""
        ...

    async def renew(self) -> None:
        """Renews this process's lease, which shows that it is alive."""

    async def check(self, size: int) -> None:
        """Commits one small row of this process's own. With a size, first with that many bytes more, then without them."""

    async def hold(self, name: str, seconds: float) -> bool:
        """Takes or keeps a duty's lease; False while another process has it."""
        ...

    async def watch(self) -> None:
        """Wakes followers when another process has committed. Runs until it is cancelled."""

    async def sweep(self, limit: int, patience: float) -> list[str]:
        """Ends up to ``limit`` runs of dead processes and returns their ids; see ``Writer.sweep``."""
        ...

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        """Takes over runs of dead processes; see ``Writer.adopt``."""
        ...

    async def release_gone(self) -> None:
        """Gives back the leases of writers whose processes are known to be gone."""

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        """Replaces a run's log with the folded one. False if another process has compacted or erased the run."""
        ...

    async def due(self, age: float) -> list[str]:
        """Some of the runs that ended longer ago than that and are not compacted."""
        ...

    async def own_due(self, age: float) -> list[str]:
        """Of these, runs that this process has ended and should compact itself. All others are left to one process."""
        ...

    async def copy_pieces(self, records: Sequence[RecordColumns]) -> None:
        """See ``Tables``."""

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        """Erases up to ``limit`` of those runs and returns their ids. The filter must match ended runs only.

        ``for_good``: also keeps the ``forgotten_mark`` of their threads.
        """
        ...

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        """Puts those runs in place of what is stored under their keys, and erases the keys ``gone``, in one transaction."""

    async def keep_forgotten(self, marks: Sequence[str]) -> None: ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this writer that should stop."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool: ...
