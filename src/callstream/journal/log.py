"""The seam between a journal's index and its log, for engines that keep ordered messages and nothing else.

A store is an index: runs, calls, threads, leases, ended runs, and every record that changes one of these. It keeps the
pieces too, nearly all of what is written, unless a ``Log`` beside it does: then a batch of nothing but pieces never
touches the index. Any record of a live run may lie in either, an append as a whole in one of them, and the run is both,
ordered by number. Pieces are in the log before the index gets a later record of their run, so nothing has to be committed
in two places at once: a number that is missing in what was read of both is one that was written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from callstream.journal.rows import RecordColumns

Heard: TypeAlias = Callable[[Iterable[int] | None], object]
"""Called with the keys of runs to which another writer has appended; with None when some of that may have been missed."""


class Log(Protocol):
    """The pieces of live runs in an engine. Awaited on the journal's thread only.

    Anything may raise StoreAway if it should be tried again, JournalError if not.
    """

    where: str
    is_persistent: bool

    async def open(self, writer: str, heard: Heard) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raises JournalError if nothing could be appended now."""

    async def take_turn(self) -> None:
        """Takes this writer's turn anew: what it had under way is in the log now, or is refused when it comes."""

    async def append(self, records: Sequence[RecordColumns]) -> None:
        """Adds all of them or none, durably. Raises Stale, with nothing added, if somebody has taken the turn since."""

    async def fence(self, writers: Collection[str]) -> None:
        """Takes the turn from writers that are dead. What they append from now on is refused."""

    async def last(self, run_keys: Collection[int]) -> Mapping[int, tuple[int, int]]:
        """Number and time of the last record of those of the runs that have any here."""
        ...

    async def read(self, run_key: int, after: int, limit: int | None) -> Sequence[RecordColumns]:
        """The first so many records of a run after that number, in order."""
        ...

    async def erase(self, run_keys: Collection[int]) -> None:
        """Of runs that have ended: their records lie in the index now, or have been forgotten."""

    async def stored_bytes(self) -> int:
        """How much room it takes."""
        ...
