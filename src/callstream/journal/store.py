"""What a database has to offer so that ``StoredJournal`` makes a journal of it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from callstream.calls import Call
from callstream.errors import CallstreamError, JournalError
from callstream.events import Record
from callstream.journal.filters import CallFilter, RunFilter
from callstream.journal.follow import Folded, Followers, Page
from callstream.journal.owned import Append
from callstream.journal.protocol import RunRow

_log = logging.getLogger("callstream.journal")
_PASSING_SECONDS = 1.0
_NAMED_RUNS = 10
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

SCHEMA_VERSION = 1
"""The schema that this code writes. A store of schema n serves code n and code n - 1."""


class StoreAway(JournalError):
    """The store cannot be reached or is locked just now. Worth trying again for a while.

    It is not known whether what was being written is written: each append's ``base`` tells when it is tried again.
    """


class Outage:
    """Says in the log once that the store cannot be written, and once that it can again.

    A lock or a restart that passes within a second is not worth a line, unless an append has failed by then. A store that
    was away is back as soon as anything was written to it. One that refused an append (a full disk) may well take a
    smaller row, so it has to take an append.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._since: float | None = None
        self._is_told = False
        self._refused = False

    def begin(self, error: JournalError, *, gave_up: bool = False) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._refused |= not isinstance(error, StoreAway)
        if not self._is_told and (gave_up or self._refused or now - self._since >= _PASSING_SECONDS):
            self._is_told = True
            _log.error("the journal cannot be written, trying again: %s", loggable(error))

    def end(self, *, by_append: bool) -> None:
        if self._since is None or (self._refused and not by_append):
            return
        if self._is_told:
            seconds = time.monotonic() - self._since
            _log.warning("the journal can be written again, after %.1f s: %s", seconds, loggable(self._where))
        self._since, self._is_told, self._refused = None, False, False


def loggable(text: object) -> str:
    """The text on one line: ids and errors may hold what a client, a model or a provider made up."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def log_swept(run_ids: Sequence[str]) -> None:
    """Says which runs of other processes this one has ended, and how many more than it names."""
    if run_ids:
        named = ", ".join(loggable(run_id) for run_id in run_ids[:_NAMED_RUNS])
        more = f" and {len(run_ids) - _NAMED_RUNS} more" if len(run_ids) > _NAMED_RUNS else ""
        _log.warning("ended as interrupted, because the process that ran them is gone: %s%s", named, more)


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

    async def sweep(self, limit: int) -> list[str]:
        """Closes up to so many runs of dead processes and returns their ids."""
        ...

    async def compact(self, run_id: str) -> int: ...

    async def due(self, age: float) -> list[str]:
        """Some runs that ended longer ago than that and are not compacted."""
        ...

    async def asked_to_stop(self) -> dict[str, str]:
        """The runs of this writer that somebody wants stopped."""
        ...

    async def ask_to_stop(self, run_id: str, reason: str) -> bool: ...

    async def forget(self, wanted: RunFilter, limit: int) -> list[str]:
        """Erases up to so many of those runs and returns their ids. They have ended: the filter says so."""
        ...

    # -- in any event loop ---------------------------------------------------------------------------------------------

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        """See ``ReadPage``."""
        ...

    async def read_whole(self, run_ids: Sequence[str]) -> list[Record]:
        """See ``Journal``."""
        ...

    async def call(self, call_id: str) -> Call | None: ...

    async def calls(self, wanted: CallFilter, limit: int | None, *, newest: bool) -> list[Call]: ...

    async def runs(self, wanted: RunFilter, limit: int | None) -> list[RunRow]: ...

    async def taken(self, call_ids: Sequence[str]) -> set[str]:
        """Which of those ids are calls in the store."""
        ...

    async def stats(self) -> dict[str, Any]: ...
