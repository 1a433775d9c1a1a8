"""What a database has to offer so that ``StoredJournal`` makes a journal of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from callstream.calls import Call
from callstream.errors import CallstreamError, JournalError
from callstream.events import Record
from callstream.journal.filters import CallFilter, RunFilter
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.owned import Append
from callstream.journal.protocol import RunRow

SCHEMA_VERSION = 1
"""The schema that this code writes. A store of schema n serves code n and code n - 1."""


class StoreAway(JournalError):
    """The store cannot be reached or is locked just now. Worth trying again for a while.

    It is not known whether what was being written is written: each append's ``base`` tells when it is tried again.
    """


class Committed(NamedTuple):
    """What became of each append of a batch, the runs that got records, and the records of those that are followed."""

    outcomes: Sequence[int | CallstreamError]
    changed: Sequence[str]
    fresh: Mapping[str, Sequence[Record]]


def check_version(version: int, oldest_code: int, where: str) -> None:
    """Raises JournalError if this code cannot use a store of that version."""
    if version > SCHEMA_VERSION and oldest_code > SCHEMA_VERSION:
        raise JournalError(
            f"{where} has schema {version}, which needs code of schema {oldest_code} or newer; this code has schema "
            f"{SCHEMA_VERSION}: upgrade callstream in this process"
        )


def must_migrate(version: int, where: str) -> JournalError:
    return JournalError(
        f"{where} has schema {version}, this code needs {SCHEMA_VERSION}: run `callstream migrate`, or open the "
        "journal with migrate=True"
    )


class Store(Protocol):
    """One database. The first group is awaited on the journal's thread only, the second in any event loop."""

    where: str

    async def open(self, writer: str, followers: Followers) -> None:
        """Connects, brings the schema up to date or refuses it, and takes the writer's lease."""

    async def migrate(self) -> int:
        """Brings the schema up to date, under a lock; returns its version."""
        ...

    async def close(self) -> None:
        """Gives the leases back and disconnects."""

    async def commit(self, batch: Sequence[Append]) -> Committed:
        """Writes the batch in one transaction. StoreAway if it should be tried again, JournalError if not."""
        ...

    async def renew(self) -> None:
        """Says that this process is alive."""

    async def check(self) -> None:
        """Commits one small row of this process's own."""

    async def hold(self, name: str, seconds: float) -> bool:
        """Takes or keeps a duty's lease; False while another process has it."""
        ...

    async def watch(self) -> None:
        """Wakes followers when another process has committed. Runs until it is cancelled."""

    async def sweep(self) -> list[str]: ...

    async def compact(self, run_id: str) -> int: ...

    async def due(self, age: float) -> list[str]:
        """Some runs that ended longer ago than that and are not compacted."""
        ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this writer that somebody wants stopped."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool: ...

    async def forget(self, wanted: RunFilter) -> list[str]:
        """Erases those runs and returns their ids. They have ended: the filter says so."""
        ...

    # -- in any event loop ---------------------------------------------------------------------------------------------

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        """See ``ReadPage``."""
        ...

    async def call(self, call_id: str) -> Call | None: ...

    async def calls(self, wanted: CallFilter, limit: int | None, *, newest: bool) -> list[Call]: ...

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]: ...

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        """Which of those ids are calls in the store."""
        ...

    async def stats(self) -> dict[str, Any]: ...
