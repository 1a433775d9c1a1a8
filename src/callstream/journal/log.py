"""The seam between a journal's index and its log, for engines that keep ordered messages and nothing else.

A store is an index: runs, calls, threads, leases, ended runs, and every record that changes one of these. It keeps the
pieces too, nearly all of what is written, unless a ``Log`` beside it does: then a batch of nothing but pieces never
touches the index. Any record of a live run may lie in either, an append as a whole, and the run is both, ordered by
number.

A writer has a part of the log for itself. When a run changes hands its pieces are copied into the index, so the rest is in
the part of its owner and nowhere else; and what has lain in the log for long is copied there, too.

Pieces are in the log before the index gets a later record of their run, so nothing has to be committed in two places at
once: a number that is missing in what was read of both is one that was written meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from callstream.journal.rows import RecordColumns

Added: TypeAlias = tuple[int, Callable[[], Sequence[RecordColumns]]]
"""The key of a run, and what gives the records that another writer has appended to it."""
Heard: TypeAlias = Callable[[Iterable[Added] | None], object]
"""Called with what came; with None when some of that may have been missed."""
Settle: TypeAlias = Callable[[Sequence[RecordColumns]], Awaitable[None]]


class Log(Protocol):
    """The pieces of live runs in an engine. Awaited on the journal's thread only.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    where: str
    is_persistent: bool

    @property
    def room(self) -> int:
        """How much text an append may bring at most, in characters."""
        ...

    async def open(self, writer: str, heard: Heard) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raises JournalError if nothing could be appended now."""

    async def take_turn(self) -> None:
        """Takes this writer's turn anew: what it had under way is in the log now, or is refused when it comes."""

    async def append(self, records: Sequence[RecordColumns]) -> None:
        """Adds all of them or none, durably. Raises Stale, with nothing added, if somebody has taken the turn since.

        Those of a run stand together, and none is missing between them.
        """

    async def fence(self, writers: Collection[str]) -> None:
        """Takes the turn from writers that are dead. What they append from now on is refused."""

    async def last(self, owners: Mapping[int, str]) -> Mapping[int, tuple[int, int]]:
        """Number and time of the last record of those of the runs that have any here, by run and the writer that owns it."""
        ...

    async def read(self, run_key: int, writer: str, after: int, limit: int | None) -> Sequence[RecordColumns]:
        """The first so many records of a run after that number, in order, as its owner has written them.

        What was appended before this is asked is among them.
        """
        ...

    async def listen(self, writer: str) -> None:
        """Has ``heard`` called for what that writer appends from now on, until ``trim`` is told otherwise."""

    async def erase(self, run_keys: Collection[int]) -> None:
        """Of runs that have ended, once their records lie in the index or have been forgotten there."""

    async def trim(self, settle: Settle, followed: Mapping[str, Collection[int]]) -> None:
        """Called every few seconds: gives back the room of what was erased.

        What this writer has kept here for long is given to ``settle``, which puts it into the index, and is erased then.
        ``followed``: the runs that are followed here, by the writers that own them.
        """

    async def trim_dead(self, kept: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Erases all of writers that are not kept. Which those are is asked after it is known what there is."""

    async def stored_bytes(self) -> int:
        """How much room it takes."""
        ...

    def figures(self) -> dict[str, float]:
        """Of this process since it has opened the log: ``batches`` and ``records`` that it has appended, how many batches
        were ``refused`` because somebody had taken its turn, and ``lag_seconds``, the age of the oldest piece that it still
        has here. May be asked in any thread.
        """
        ...
