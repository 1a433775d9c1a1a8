"""What a database has to offer so that ``Journal`` makes a journal of it, and what it is asked for."""

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

# -- which runs and calls are meant: of a list, and of what is to be forgotten -----------------------------------------


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
    """Calls of such runs."""

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
    """What is left of a thread that was erased for good. It does not say which thread that was, or whose."""
    return hashlib.sha256(msgspec.json.encode((thread_id, principal))).hexdigest()


# -- when a store cannot be written ------------------------------------------------------------------------------------


class StoreAway(JournalError):
    """The store cannot be reached or is locked just now. Worth trying again for a while.

    It is not known whether what was being written is written: each append's ``base`` tells when it is tried again.
    """


class Unstorable(JournalError):
    """The store cannot hold such a value. It takes others."""


SCHEMA_VERSION = 3
"""The schema that this code writes."""
OLDEST_CODE = 1
"""The schema of the oldest code that such a store serves: what has come since, that leaves alone."""


def check_archive(writer: Writer, where: str, *, has_packs: bool) -> None:
    """Raises JournalError if runs lie in an archive that this process does not know: it could not read or erase them."""
    if has_packs and not writer.has_archive:
        raise archive_unnamed(where)


def archive_unnamed(where: str) -> JournalError:
    return JournalError(
        f"{where} has runs in an archive: name it where you open the journal, with archive=, --archive or CALLSTREAM_ARCHIVE"
    )


def check_log(writer: Writer, where: str, noted: str | None) -> None:
    """Raises UsageError if this process has another log than the one that is noted, or none: it would take runs for whole
    that lack the pieces which lie there, and compact them, and then these pieces are never read again.
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
    """When a log is noted: those have opened the store without it."""
    if writers:
        _log.warning(
            "%s has a log from now on, and processes use it that may have been started without: end them, or start them "
            "again with the log: %s",
            where,
            ", ".join(sorted(writers)),
        )


class Head(msgspec.Struct, frozen=True):
    """A run's number, and what numbers in its records mean. These never change; more may come while the run goes on.

    ``writer``: the process that owns it, whose part of the log has its pieces; empty when the run is compacted.
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
    """The whole log of a run, for compaction. Without rows if the run is still running or is compacted."""

    run_key: int
    ended: bool
    compacted: bool
    rows: Sequence[Stored] = ()


class StoreReader(Protocol):
    """The questions that nothing is written for."""

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
        """Whether runs of the thread with that ``forgotten_mark`` were erased for good."""
        ...

    async def heads(self, run_ids: Sequence[str]) -> Sequence[Head]:
        """Those of the runs that are there."""
        ...

    async def log(self, run_id: str) -> RunRows | None: ...

    async def writers(self) -> set[str]:
        """Those that are alive, and those that have runs which are not compacted."""
        ...

    async def run_sizes(self, after: int, last: int | None, limit: int | None) -> Sequence[RunSize]:
        """The first so many runs with keys after that one, up to the last one, in the order of their keys."""
        ...

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        """Those of the runs that are there, in the order of their keys."""
        ...

    async def forgotten(self, after: str, limit: int) -> Sequence[str]:
        """The first so many ``forgotten_mark``s after that one, in order."""
        ...

    async def left_open(self) -> Sequence[str]:
        """The runs that go on but whose process is gone, the oldest first."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class Store(Protocol):
    """One database. It is awaited on the journal's thread only; so is its reader, unless that ``is_local``.

    It is the whole journal, or the index beside a ``Log``: then some pieces of live runs are not here.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    where: str
    is_persistent: bool
    journal_id: str
    """Which journal it is, whatever its address. It is known when the store is open."""
    is_local: bool
    """Whether no server is asked: then ``commit`` keeps its thread until it is done, and the reader may be awaited in any
    event loop.
    """

    @property
    def packs(self) -> Packs: ...

    @property
    def reader(self) -> StoreReader: ...

    async def open(self, writer: Writer, followers: Followers) -> None:
        """Connects, brings the schema up to date or refuses it, and takes the writer's lease.

        Raises UsageError if another log is noted than the writer's, or if it has none; see ``note_log``.
        """

    async def note_log(self) -> None:
        """Notes for good that the writer's log lies beside this store, before anything is put there.

        From then on the store is not opened without it. Processes that have done so before, and may still use the store,
        are named in a warning.
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
        """Says that this process is alive."""

    async def check(self, size: int) -> None:
        """Commits one small row of this process's own; with a size, one that has so many bytes more, and then without."""

    async def hold(self, name: str, seconds: float) -> bool:
        """Takes or keeps a duty's lease; False while another process has it."""
        ...

    async def watch(self) -> None:
        """Wakes followers when another process has committed. Runs until it is cancelled."""

    async def sweep(self, limit: int, patience: float) -> list[str]:
        """Closes up to so many runs of dead processes and returns their ids; see ``Writer.sweep``."""
        ...

    async def adopt(self, apps: Container[str], limit: int, run_id: str | None = None) -> list[str]:
        """Takes over runs of dead processes; see ``Writer.adopt``."""
        ...

    async def release_gone(self) -> None:
        """Gives the leases of writers back of which it is known that their processes are gone."""

    async def put_folded(self, run_id: str, run_key: int, rows: Iterable[Stored]) -> bool:
        """Puts the folded log in the place of the log. False if another process has compacted or erased the run."""
        ...

    async def due(self, age: float) -> list[str]:
        """Some runs that ended longer ago than that and are not compacted."""
        ...

    async def own_due(self, age: float) -> list[str]:
        """Those that this process has ended and had better compact itself. One process does so for all others."""
        ...

    async def settle(self, records: Sequence[RecordColumns]) -> None:
        """See ``Tables``."""

    async def forget(self, wanted: RunFilter, limit: int, for_good: bool) -> list[str]:
        """Erases up to so many of those runs and returns their ids. They have ended: the filter says so.

        ``for_good``: and keeps the ``forgotten_mark`` of their threads.
        """
        ...

    async def restore(self, runs: Sequence[WholeRun], gone: Collection[int]) -> None:
        """Puts those runs in the place of what is here under their keys, and erases others, in one transaction."""

    async def keep_forgotten(self, marks: Sequence[str]) -> None: ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this writer that should stop."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool: ...
