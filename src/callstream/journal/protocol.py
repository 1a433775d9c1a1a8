"""What a journal promises, whatever it is made of.

A journal keeps one append-only log of records a run and one row a call, in one transaction. Records are numbered 1, 2,
3, … a run, without gaps, when they are written. The same contract tests run over every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from callstream.calls import Call, CallState
from callstream.events import Record, RunEvent, RunOutcome


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run as the journal lists it: ``outcome`` is None while it is running, ``last_seq`` numbers its last record."""

    run_id: str
    thread_id: str
    principal: str | None
    outcome: RunOutcome | None
    reason: str | None
    started_at: float
    ended_at: float | None
    last_seq: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event on its way into the journal, with what its record carries beside it."""

    event: RunEvent
    response_id: str | None = None
    author: str | None = None


class Journal(Protocol):
    """The durable log of runs and calls. May be used from any event loop, from several at once too."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __await__(self) -> Generator[Any, None, Self]: ...

    @property
    def is_persistent(self) -> bool:
        """Whether what it has is still there after the process has ended."""
        ...

    async def open(self) -> None:
        """Opens the store and brings its schema up to date. Called by the first use; calling it again does nothing."""

    async def aclose(self) -> None:
        """Writes what is waiting, gives the leases back, closes the store."""

    async def migrate(self) -> int:
        """Brings the store's schema up to date, under a lock, and returns its version."""
        ...

    async def append(self, run_id: str, events: Sequence[RunEvent | Entry], *, after: int | None = None) -> int:
        """Adds records to a run and returns the number of the last one. They are durable when it returns.

        The first append to a run opens it and takes it for this process: from then on only this process may write to it
        (LeaseLost for any other, and for this one after its lease was taken over). RunStarted is a run's first record;
        a run that begins with anything else is a thread of its own. With ``after``, the number of records the caller
        has seen acknowledged, a repeated append adds nothing and returns the same number: pass it whenever an
        acknowledgement may have been lost. An event that names a call of another run (an answer) updates that call's
        row in the same transaction; while a call's arguments are being written, only its own run may say anything of
        it. A transition that the table of ``calls`` forbids raises TransitionError, a ``call_id`` that is taken raises
        CallIdTaken, an exclusive RunStarted of a thread that has an exclusive run going on raises ThreadBusy, an append
        to an ended run raises UsageError; then nothing of the append is kept.

        Appends wait in a bounded queue: while it is full, and while the store is away, an append waits, and fails with
        JournalError when its time is over. One whose task is cancelled may be written all the same.
        """
        ...

    def submit(
        self,
        run_id: str,
        events: Sequence[RunEvent | Entry],
        then: Callable[[int | Exception], None],
        *,
        after: int | None = None,
    ) -> None:
        """``append`` without waiting: ``then`` is called in this event loop, later, with the number or the error.

        It must not raise.
        """

    def schedule(self, run_id: str, work: Callable[[], object]) -> None:
        """Calls ``work``, which will append to the run, in this event loop: at once, or a few milliseconds later.

        While several runs write, the journal lets what they bring gather; so what leads to an append is better done when
        that is about to be written. ``work`` must not raise.
        """

    def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        """The records after that number which are there now.

        UsageError if there is no such run, since one that is not there yet cannot be told from a slip of the pen.
        Compacted if the number lies inside a folded range.
        """
        ...

    async def read_whole(self, run_ids: Sequence[str], *, merged: bool = False) -> list[Record]:
        """All records of several short runs with one question to the store, run after run in that order.

        ``merged``: adjacent pieces of one call or message may be one record, as if folded, which is cheaper.
        Folded records stand where the first of their pieces stood. A run that is not there is left out. All of it is in
        memory at once: ``RunRow.last_seq`` says how many records a run has at most, and ``history`` reads long ones too.
        """
        ...

    def follow(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        """``read``, then what is appended later, by this process or another.

        Ends after the run's last record, and when the journal is closed.
        """
        ...

    def batches(
        self, run_id: str, after: int = 0, *, take: Callable[[Sequence[Record]], bool] | None = None
    ) -> AsyncGenerator[Sequence[Record], None]:
        """``follow``, all that is there at a time: a reader that is behind gets more at once, and none waits here.

        ``take`` may be offered what comes while the reader waits, which spares waking it. It is called in the reader's
        event loop, and what it takes (True) is not given again. A journal need not offer anything.
        """
        ...

    async def call(self, call_id: str) -> Call | None:
        """One call with its ``args_json`` put together from the log."""
        ...

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
        """Calls in the order in which they started, without their arguments; with ``limit``, the first of them.

        ``newest``: the last of them, in the same order.

        ``updated_at`` is the time of the last change of state, not of the last piece.
        """
        ...

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Runs, the newest first."""
        ...

    async def free_call_id(self, wanted: str) -> str:
        """The wanted id if no call in the journal has it, else the first free of ``wanted~2``, ``wanted~3``, …

        After the first hundred it is a free one, not always the first: some hosts give every call the same id.
        """
        ...

    async def compact(self, run_id: str) -> int:
        """Folds the pieces of each call and message of an ended run into one record each; returns how many are gone."""
        ...

    async def sweep(self) -> list[str]:
        """Closes what dead processes left open, and returns the ids of the runs it closed.

        A call before executing is discarded (interrupted), an executing one failed (interrupted), an awaiting one
        stays. One whose tool ran early counts as executing if its arguments were whole, else as before that. The run has
        failed (interrupted). Only runs whose owner's lease has run out, by the store's clock.
        """
        ...

    async def forget(
        self,
        *,
        before: float | None = None,
        thread: str | None = None,
        principal: str | None = None,
        for_good: bool = True,
    ) -> int:
        """Erases ended runs with their calls and records: those that match all that is given. Returns how many.

        ``for_good``: the journal remembers that it has forgotten their threads (see ``has_forgotten``), so that no host
        imports them again. It keeps a digest of thread and principal for that, and neither of the two.
        """
        ...

    async def has_forgotten(self, thread: str, principal: str | None) -> bool:
        """Whether runs of that principal's thread were erased for good. What a host still has of it is not imported."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        """Asks the process that owns a run to stop it. False if no such run is running.

        The first word counts. Nothing stops by itself: see ``asked_to_stop``.
        """
        ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this process that should stop, with the reasons."""
        ...

    async def check(self) -> None:
        """Writes one small row, so that a health check knows whether appends would be written now.

        JournalError if the store refuses it, or has just refused an append. It does not wait for a store that is away, but
        one that does not answer at all takes its time to fail: put a limit around it (``async with asyncio.timeout(2)``).
        """

    async def stats(self) -> dict[str, Any]:
        """Counts, stored bytes and the schema version, for ``doctor`` and health checks.

        ``live_writers`` counts the processes that have the journal open, this one included; ``orphaned_runs`` the runs
        that go on but whose process is gone, which the next ``sweep`` closes.
        """
        ...
