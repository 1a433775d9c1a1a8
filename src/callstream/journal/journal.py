"""What a journal guarantees, whatever its store.

A journal keeps one append-only log per run and one row per call, both written in one transaction. The records of a run are
numbered 1, 2, 3, … without gaps, when they are written. The same contract tests run over every store.

``history`` is the past of a thread: the records of many runs, in the order in which they are folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from callstream.calls import Call, CallState, number_id
from callstream.errors import UsageError
from callstream.events import Record, RunEvent, in_order
from callstream.journal import follow as following
from callstream.journal.archive import Archive, ArchivedReader, open_objects
from callstream.journal.follow import Folded, Followers, Page, Push
from callstream.journal.housekeeping import Housekeeper, JournalSettings, Moved, Progress, Side, move
from callstream.journal.paired import PairedStore
from callstream.journal.queue import OnOutcome
from callstream.journal.rows import (
    KEPT_THREAD,
    Entry,
    RunRow,
    check_id,
    check_limit,
    clean,
    is_storable,
    prepare,
    redacting,
)
from callstream.journal.store import CallFilter, RunFilter, Store, forget_filter, forgotten_mark
from callstream.journal.worker import Inline, JournalThread

_T = TypeVar("_T")


class Journal:
    """The durable log of runs and calls. It may be used from any event loop, even from several at once.

    Made by ``open_journal``. The store gets a thread, unless another ``worker`` is given.
    """

    def __init__(
        self,
        store: Store,
        settings: JournalSettings,
        worker: type[JournalThread | Inline] = JournalThread,
    ) -> None:
        self._store = store
        self._prepare = prepare if settings.redact is None else redacting(settings.redact)
        self.redacts = settings.redact is not None
        """Whether events are redacted before they are stored."""
        self.lease_ttl = settings.lease_ttl
        """Seconds after which a process that has not renewed its lease counts as dead."""
        self._followers = Followers()
        archive = Archive(open_objects(settings.archive), store.where, store.packs, store.reader)
        self._reader = ArchivedReader(store.reader, archive)
        self._housekeeper = Housekeeper(store, self._followers, settings, archive)
        self._worker = worker(store, self._followers, settings, self._housekeeper)
        self.schedule: Callable[[str, Callable[[], object]], None] = self._worker.schedule
        """``schedule(run_id, work)`` calls ``work``, which will append to the run, in this event loop: at once, or a few
        milliseconds later.

        While several runs write, the journal lets their appends gather for a moment. It is cheaper to do the work that
        leads to an append just before that batch is written. ``work`` must not raise.
        """

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    @property
    def is_persistent(self) -> bool:
        """Whether the journal outlives the process."""
        return self._store.is_persistent

    async def open(self) -> None:
        """Opens the store and brings its schema up to date. The first use does this; calling it again does nothing."""
        await self._worker.open()

    async def aclose(self) -> None:
        """Writes the appends that are waiting, gives the leases back, and closes the store."""
        await self._worker.close()

    async def migrate(self) -> int:
        """Brings the store's schema up to date, under a lock, and returns its version."""
        return await self._do(self._store.migrate)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[RunEvent | Entry], *, after: int | None = None) -> int:
        """Adds records to a run and returns the number of the last one. They are durable when it returns.

        The first append to a run opens it and takes it for this process: from then on only this process may write to it
        (LeaseLost for any other, and for this one after its lease was taken over). RunStarted is a run's first record;
        a run that begins with anything else is a thread of its own. With ``after``, the number of records the caller
        has seen acknowledged, a repeated append adds nothing and returns the same number: pass it whenever an
        acknowledgement may have been lost. An event that names a call of another run (an answer) updates that call's
        row in the same transaction; while a call's arguments are being written, only its own run may add events about
        it. A transition that the table of ``calls`` forbids raises TransitionError, a ``call_id`` that is taken raises
        CallIdTaken, an exclusive RunStarted in a thread with an exclusive run in progress raises ThreadBusy, and an
        append to an ended run raises UsageError; in all these cases nothing of the append is kept.

        Appends wait in a bounded queue: while it is full or the store is unavailable, an append waits, and fails with
        JournalError when its time is over. An append may still be written after its task was cancelled.
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.submit(run_id, events, partial(_resolve, done), after=after)
        return await done

    def submit(
        self,
        run_id: str,
        events: Sequence[RunEvent | Entry],
        then: OnOutcome,
        *,
        after: int | None = None,
        response_id: str | None = None,
        author: str | None = None,
    ) -> None:
        """``append`` without waiting: ``then`` is called in this event loop, later, with the number or the error.

        It must not raise. ``response_id`` and ``author`` apply to all the records, except that an Entry has its own.
        """
        try:
            prepare, rows = self._prepare, []
            for event in events:  # in Python 3.11 a comprehension that uses names from around it costs as much as a row
                rows.append(prepare(event, response_id, author))
            check_id(run_id)
        except Exception as error:  # noqa: BLE001  # of ``redact``, too
            asyncio.get_running_loop().call_soon(then, error)
        else:
            self._worker.submit(run_id, rows, after, then)

    async def compact(self, run_id: str) -> int:
        """Folds the pieces of each call and message of an ended run into one record each; returns how many it has saved."""
        if not is_storable(run_id):
            raise UsageError(f"the journal has no run {run_id!r}")
        return await self._worker.do(self._housekeeper.compact, run_id)

    async def sweep(self, *, also_waiting: bool = False) -> list[str]:
        """Closes what dead processes left open, and returns the ids of the runs it closed.

        A call that was not yet executing is discarded (interrupted), an executing one fails (interrupted), an awaiting one
        stays. A call whose tool ran early counts as executing if its arguments were whole, and otherwise as not yet
        executing. The run fails (interrupted). Only runs whose owner's lease has run out, by the store's clock, are closed.
        A run that can go on in another process (``InputKept``) is left open for a while, for one to take it over
        (``Housekeeping.go_on_within``), unless ``also_waiting``.
        """
        return await self._worker.do(self._housekeeper.sweep, also_waiting)

    async def waiting(self) -> list[str]:
        """The runs of dead processes that ``sweep`` leaves for another process to go on with. Nothing is written."""
        return await self._worker.do(self._housekeeper.waiting)

    async def adopt(self, apps: Container[str], run_id: str | None = None) -> list[str]:
        """Takes over runs of dead processes that can go on with one of these apps (``InputKept``), and returns their ids.

        ``run_id``: only that run.

        From now on they belong to this process, which has to go on with them or end them. If several processes ask, only one
        gets a run. A process on this machine counts as dead as soon as it is gone, any other when its lease has run out.
        """
        await self._worker.open()
        return await self._worker.do(self._housekeeper.adopt, apps, run_id) if self._worker.may_judge else []

    async def forget(
        self,
        *,
        before: float | None = None,
        thread: str | None = None,
        principal: str | None = None,
        for_good: bool = True,
    ) -> int:
        """Erases ended runs with their calls and records: those that match all conditions given. Returns how many.

        ``for_good``: the journal remembers that it has forgotten their threads (see ``has_forgotten``), so that no host
        imports them again. For that it keeps only a digest of thread and principal.
        """
        wanted = forget_filter(before, thread, principal)
        if not is_storable(thread, principal):
            return 0
        return await self._worker.do(self._housekeeper.forget, wanted, for_good)

    async def archive(self, older_than: float = 0.0) -> int:
        """Moves runs that ended more than that many seconds ago into the archive, and returns how many.

        They stay in lists, and can be read as before. A run with a call that awaits an answer is not moved.
        """
        return await self._worker.do(self._housekeeper.archive, older_than)

    async def check_archive(self) -> None:
        """Reads a byte of the newest pack in the archive. JournalError if it is missing or the archive is unavailable."""
        await self._worker.do(self._housekeeper.check_archive)

    async def copy_to(self, target: Journal, progress: Progress = lambda done, total: None) -> Moved:
        """Copies all runs into another journal, which is empty or has the beginning of such a copy, and compares them.

        This journal is only read. Runs that are in the target already and are the same are not copied again, so an
        interrupted copy can be continued, and a second one copies only what is new. Runs in progress in a live process are
        left out: ``active`` of the result counts them. ``progress`` is called with how many runs are done, and how many
        there are.
        """
        return await move(
            Side(self._store, self._reader, self._do), Side(target._store, target._reader, target._do), progress
        )

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        """Asks the process that owns a run to stop it. False if no such run is running.

        The first reason counts. The journal itself stops nothing: see ``asked_to_stop``.
        """
        return is_storable(run_id) and await self._do(self._store.ask_to_stop, run_id, clean(reason) or "")

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this process that should stop, with the reasons."""
        return await self._worker.do(self._store.asked_to_stop)

    async def check(self) -> None:
        """Writes one small row, so that a health check knows whether appends would be written now.

        If the store has refused something (a full disk), the check writes as many bytes, up to 1 MB, so its success means
        that appends have room again. JournalError if the store refuses it. The check does not wait for an unavailable store
        to come back, but one that does not answer at all takes time to fail: put a limit around it
        (``async with asyncio.timeout(2)``).
        """
        await self._worker.check()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        """The records after that number which exist now.

        UsageError if there is no such run, since a run that does not exist yet cannot be distinguished from a typo.
        Compacted if the number lies inside a folded range.
        """
        return following.each(following.pages(self._page, run_id, after))

    async def read_whole(self, run_ids: Sequence[str], *, merged: bool = False) -> list[Record]:
        """All records of several short runs with one query to the store, run after run in that order.

        ``merged``: adjacent pieces of one call or message may be one record, as if folded, which is cheaper.
        Folded records stand where the first of their pieces stood. A run that does not exist is left out. All records are in
        memory at once: ``RunRow.last_seq`` says how many a run has at most, and ``history`` reads long runs, too.
        """
        wanted = [run_id for run_id in run_ids if is_storable(run_id)]
        return await self._read(self._reader.read_whole, wanted, merged)

    def follow(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        """``read``, then what is appended later, by this process or another.

        Ends after the run's last record, and when the journal is closed.
        """
        return following.follow(self._page, self._followers, run_id, after)

    def batches(
        self, run_id: str, after: int = 0, *, push: Push | None = None
    ) -> AsyncGenerator[Sequence[Record], None]:
        """``follow``, all available records at a time: a reader that is behind gets more at once, and little waits here.

        Records that this process commits while the reader waits are given to ``push`` first, except for the run's end: that
        saves waking a task. It is called in the reader's event loop, and records that it accepts (True) are not yielded.
        """
        return following.batches(self._page, self._followers, run_id, after, push)

    async def call(self, call_id: str) -> Call | None:
        """One call, with its ``args_json`` assembled from the log."""
        return await self._read(self._reader.call, call_id) if is_storable(call_id) else None

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
        """Calls in the order in which they started, without their arguments; with ``limit``, the first of them only.

        ``newest``: the last of them, in the same order.

        ``updated_at`` is the time of the last change of state, not of the last piece.
        """
        limit = check_limit(limit)
        if not is_storable(run_id, thread_id, principal, provider_id):
            return []
        wanted = CallFilter(
            run_id=run_id, thread_id=thread_id, principal=principal, states=states, provider_id=provider_id
        )
        return await self._read(self._reader.calls, wanted, limit, newest)

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Runs, newest first."""
        limit = check_limit(limit)
        if not is_storable(run_id, thread_id, principal):
            return []
        wanted = RunFilter(run_id=run_id, thread_id=thread_id, principal=principal, active=active)
        rows = await self._read(self._reader.runs, wanted, limit)
        is_named = run_id is not None or thread_id is not None
        return rows if is_named else [row for row in rows if not row.thread_id.startswith(KEPT_THREAD)]

    async def free_call_id(self, wanted: str) -> str:
        """The wanted id if no call in the journal has it, else the first free one of ``wanted~2``, ``wanted~3``, …

        Beyond the first hundred it is a free id, but not always the first: some hosts give every call the same id.
        """
        check_id(wanted)
        return await _free_call_id(partial(self._read, self._reader.taken), wanted)

    async def has_forgotten(self, thread: str, principal: str | None) -> bool:
        """Whether runs of that principal's thread were permanently erased: if so, a host's own copy is not imported."""
        if not is_storable(thread, principal):
            return False
        return await self._read(self._reader.has_forgotten, forgotten_mark(thread, principal))

    async def stats(self) -> dict[str, Any]:
        """Counts, stored bytes and the schema version, for ``doctor`` and health checks.

        ``live_writers`` counts the processes that have the journal open, this one included; ``orphaned_runs`` the runs
        that have not ended but whose process is gone: the next ``sweep`` closes those that are not ``waiting`` for another
        process. ``log``: the figures of a log beside the store. ``archive``: packs, runs and bytes in the archive.
        """
        return {**await self._read(self._reader.stats), "pending_bytes": self._worker.pending_bytes}

    def log_figures(self) -> dict[str, float] | None:
        """The same as ``stats()["log"]``, immediately and in any thread; None if there is no log beside the store."""
        return self._store.figures() if isinstance(self._store, PairedStore) else None

    async def _page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return await self._read(self._reader.page, run_id, after, limit, is_first) if is_storable(run_id) else None

    async def _read(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        if not self._store.is_local:
            return await self._do(work, *args)
        await self._worker.open()
        return await work(*args)

    async def _do(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        return await self._worker.do(self._housekeeper.patiently, work, *args)


def _resolve(done: asyncio.Future[int], outcome: int | Exception) -> None:
    if done.done():
        return  # the task that waited was cancelled
    if isinstance(outcome, int):
        done.set_result(outcome)
    else:
        done.set_exception(outcome)


async def _free_call_id(taken_of: Callable[[Sequence[str]], Awaitable[set[str]]], wanted: str) -> str:
    """Exactly the first free number among the first hundred; after that a free one, found by halving.

    Some hosts give every call of every turn the same id, so counting one by one would cost more with every turn.
    """
    names = [number_id(wanted, number) for number in range(1, 101)]
    taken = await taken_of(names[:8])
    if free := next((name for name in names[:8] if name not in taken), None):
        return free
    taken |= await taken_of(names[8:])
    if free := next((name for name in names if name not in taken), None):
        return free
    low, high = 100, 200
    while await taken_of([number_id(wanted, high)]):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await taken_of([number_id(wanted, middle)]):
            low = middle
        else:
            high = middle
    return number_id(wanted, high)


_SHORT: Final = 500
"""A run with up to this many records is read together with others."""
_AT_ONCE: Final = 3000


async def history(journal: Journal, runs: Iterable[RunRow]) -> AsyncGenerator[Sequence[Record], None]:
    """The records that the runs have in the journal now, run after run, a few thousand at a time.

    Many short runs are read at once, so a thread of thousands of them costs no more than its records. Folded records
    stand where the first of their pieces stood, and adjacent pieces of a call or a message may be one record.
    """
    short: list[str] = []
    size = 0
    for row in runs:
        is_short = row.outcome is not None and row.last_seq <= _SHORT
        if is_short:
            short.append(row.run_id)
            size += row.last_seq
        if short and (size >= _AT_ONCE or not is_short):
            yield await journal.read_whole(short, merged=True)
            short, size = [], 0
        if not is_short:
            async for records in _long(journal, row):
                yield records
    if short:
        yield await journal.read_whole(short, merged=True)


async def _long(journal: Journal, row: RunRow) -> AsyncGenerator[Sequence[Record], None]:
    """The records of a run as they are stored. From the first gap in their numbers on, where pieces were folded into a
    later record, the rest is put in order first.
    """
    after = 0
    rest: list[Record] = []
    pages = following.pages(journal._page, row.run_id) if row.outcome is None else journal.batches(row.run_id)
    async with aclosing(pages):
        async for records in pages:
            if rest or records[-1].seq != after + len(records):
                rest += records
            else:
                yield records
            after = records[-1].seq
    ordered = in_order(rest)
    for start in range(0, len(ordered), _AT_ONCE):
        yield ordered[start : start + _AT_ONCE]
