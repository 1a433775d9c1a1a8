"""Checkpoints: what commits have put into SQLite's log comes into the file itself, most of it on a thread of its own.

By itself SQLite does that within a commit, every thousand pages, and waits for the disk: some milliseconds where the disk
is fast, and all that is written meanwhile waits with it. Here the writer goes on meanwhile, and then brings in the few pages
that came: SQLite starts its log anew only when all of it is in the file.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from callstream.errors import JournalError
from callstream.journal.sqlite.reader import open_connection

PAGES = 1000
"""After so many pages the log is brought in: 4 MB."""
MOST_PAGES = 4 * PAGES
"""After so many SQLite does it by itself."""
_PASSES = 2
"""The first takes milliseconds and the second what came in these, so that hardly anything is left."""
_BRING_IN = "PRAGMA wal_checkpoint(PASSIVE)"
_BUSY_SECONDS = 5.0
_CACHE_KIBIBYTES = 64


class Checkpoints:
    """Of one file. Used on the journal's thread only."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="callstream-checkpoint")
        self._pages = 0
        self._under_way: Future[None] | None = None

    def open(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        writer.execute(f"PRAGMA wal_autocheckpoint = {MOST_PAGES}")

    def close(self) -> None:
        self._thread.shutdown()

    def count(self, pages: int) -> None:
        """About so many were committed."""
        self._pages += pages
        if self._under_way is not None:
            if self._under_way.done():
                self._under_way = None
                self._pages = 0
                with suppress(sqlite3.Error):
                    self._writer.execute(_BRING_IN).fetchall()
        elif self._pages >= PAGES:
            with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
                self._under_way = self._thread.submit(self._bring_in)

    def _bring_in(self) -> None:
        """What cannot be brought in stays in the log, and nothing is lost."""
        with suppress(sqlite3.Error, JournalError):
            connection = open_connection(self._path, _BUSY_SECONDS, cache_kibibytes=_CACHE_KIBIBYTES)
            try:
                for _ in range(_PASSES):
                    connection.execute(_BRING_IN).fetchall()
            finally:
                connection.close()
