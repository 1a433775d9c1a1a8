"""A journal over a store: what every kind of store has in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from callstream.calls import Call, CallState, number_id
from callstream.errors import UsageError
from callstream.events import Record, RunEvent
from callstream.journal import follow as following
from callstream.journal.follow import Folded, Followers, Page, Take
from callstream.journal.housekeeping import Housekeeper
from callstream.journal.protocol import Entry, RunRow
from callstream.journal.queue import Then
from callstream.journal.rows import Row, check_id, check_limit, clean, is_storable, prepare, redact_entry
from callstream.journal.settings import JournalSettings
from callstream.journal.store import CallFilter, RunFilter, Store, forget_filter, forgotten_mark
from callstream.journal.worker import JournalThread, Worker

_T = TypeVar("_T")


class StoredJournal:
    """See ``Journal``. Without a worker of its own the store gets a thread."""

    def __init__(
        self,
        store: Store,
        settings: JournalSettings,
        worker: Callable[[Store, Followers, JournalSettings, Housekeeper], Worker] = JournalThread,
    ) -> None:
        self._store = store
        self._redact = settings.redact
        self._followers = Followers()
        self._housekeeper = Housekeeper(store, self._followers, settings)
        self._worker = worker(store, self._followers, settings, self._housekeeper)
        self.schedule = self._worker.schedule

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
        return self._store.is_persistent

    async def open(self) -> None:
        await self._worker.open()

    async def aclose(self) -> None:
        await self._worker.close()

    async def migrate(self) -> int:
        return await self._do(self._store.migrate)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def append(self, run_id: str, events: Sequence[RunEvent | Entry], *, after: int | None = None) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._worker.submit(run_id, self._prepare(run_id, events), after, partial(_resolve, done))
        return await done

    def submit(self, run_id: str, events: Sequence[RunEvent | Entry], then: Then, *, after: int | None = None) -> None:
        try:
            rows = self._prepare(run_id, events)
        except Exception as error:  # noqa: BLE001  # of ``redact``, too
            asyncio.get_running_loop().call_soon(then, error)
        else:
            self._worker.submit(run_id, rows, after, then)

    def _prepare(self, run_id: str, events: Sequence[RunEvent | Entry]) -> list[Row]:
        if self._redact is not None:
            events = [redact_entry(event, self._redact) for event in events]
        rows = [prepare(event) for event in events]
        if type(run_id) is not str or not run_id.isascii() or "\0" in run_id:
            check_id(run_id)
        return rows

    async def compact(self, run_id: str) -> int:
        if not is_storable(run_id):
            raise UsageError(f"the journal has no run {run_id!r}")
        return await self._worker.do(self._housekeeper.compact, run_id)

    async def sweep(self) -> list[str]:
        return await self._worker.do(self._housekeeper.sweep)

    async def forget(
        self,
        *,
        before: float | None = None,
        thread: str | None = None,
        principal: str | None = None,
        for_good: bool = True,
    ) -> int:
        wanted = forget_filter(before, thread, principal)
        if not is_storable(thread, principal):
            return 0
        return await self._worker.do(self._housekeeper.forget, wanted, for_good)

    async def ask_to_stop(self, run_id: str, reason: str) -> bool:
        return is_storable(run_id) and await self._do(self._store.ask_to_stop, run_id, clean(reason) or "")

    async def asked_to_stop(self) -> dict[str, str]:
        return await self._worker.do(self._store.asked_to_stop)

    async def check(self) -> None:
        await self._worker.check()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.read(self._page, run_id, after)

    async def read_whole(self, run_ids: Sequence[str], *, merged: bool = False) -> list[Record]:
        wanted = [run_id for run_id in run_ids if is_storable(run_id)]
        return await self._read(self._store.reader.read_whole, wanted, merged)

    def follow(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        return following.follow(self._page, self._followers, run_id, after)

    def batches(
        self, run_id: str, after: int = 0, *, take: Take | None = None
    ) -> AsyncGenerator[Sequence[Record], None]:
        return following.batches(self._page, self._followers, run_id, after, take)

    async def call(self, call_id: str) -> Call | None:
        return await self._read(self._store.reader.call, call_id) if is_storable(call_id) else None

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
        limit = check_limit(limit)
        if not is_storable(run_id, thread_id, principal, provider_id):
            return []
        wanted = CallFilter(
            run_id=run_id, thread_id=thread_id, principal=principal, states=states, provider_id=provider_id
        )
        return await self._read(self._store.reader.calls, wanted, limit, newest)

    async def runs(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        principal: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        limit = check_limit(limit)
        if not is_storable(run_id, thread_id, principal):
            return []
        wanted = RunFilter(run_id=run_id, thread_id=thread_id, principal=principal, active=active)
        return await self._read(self._store.reader.runs, wanted, limit)

    async def free_call_id(self, wanted: str) -> str:
        check_id(wanted)
        return await _free_call_id(partial(self._read, self._store.reader.taken), wanted)

    async def has_forgotten(self, thread: str, principal: str | None) -> bool:
        if not is_storable(thread, principal):
            return False
        return await self._read(self._store.reader.has_forgotten, forgotten_mark(thread, principal))

    async def stats(self) -> dict[str, Any]:
        return {**await self._read(self._store.reader.stats), "pending_bytes": self._worker.pending_bytes}

    async def _page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        return (
            await self._read(self._store.reader.page, run_id, after, limit, is_first) if is_storable(run_id) else None
        )

    async def _read(self, work: Callable[..., Coroutine[Any, Any, _T]], *args: Any) -> _T:
        if not self._store.reads_anywhere:
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
