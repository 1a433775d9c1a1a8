"""The durable log of runs and calls: in memory, in a SQLite file, or in PostgreSQL."""

from __future__ import annotations

from typing import Any

from callstream.errors import MissingExtra, UsageError
from callstream.journal.housekeeping import Housekeeping, JournalSettings
from callstream.journal.journal import Journal, history
from callstream.journal.rows import Entry, RunRow
from callstream.journal.worker import Inline

__all__ = ["Entry", "Housekeeping", "Journal", "JournalSettings", "RunRow", "history", "open_journal"]


def open_journal(url: str, **settings: Any) -> Journal:
    """The journal that the URL names; it opens itself at the first use.

    ``memory:``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://user@host/database``. Settings
    are those of ``JournalSettings`` (``redact``, ``housekeeping``, ``lease_ttl``, …); SQLite also takes
    ``durability="power"``, which the URL can say too (``?durability=power``); PostgreSQL takes ``schema``, ``listen``
    and ``statement_cache_size`` in the URL's query.
    """
    if not isinstance(url, str):
        raise UsageError(f"expected a journal's URL such as sqlite:///file.db, got {url!r}")
    scheme, colon, rest = url.partition(":")
    durability = settings.pop("durability", None)
    try:
        common = JournalSettings(**settings)
    except TypeError as error:
        raise UsageError(f"unknown setting for open_journal: {error}") from error
    if not colon:
        raise UsageError(f"expected memory:, sqlite:///file.db or postgresql://…, got {url!r}")
    if durability is not None and scheme != "sqlite":
        raise UsageError(f"durability= is a setting of SQLite's journal, not of {scheme}")
    match scheme:
        case "memory":
            from callstream.journal.memory import MemoryStore, tables_named

            return Journal(MemoryStore(tables_named(rest)), common, Inline)
        case "sqlite":
            from callstream.journal.sqlite import SqliteStore, sqlite_path

            path, options = sqlite_path(url)
            store = SqliteStore(
                path,
                durability=durability or options.get("durability", "process"),  # type: ignore[arg-type]  # checked
                busy_seconds=min(0.25, common.retry_seconds),  # the journal tries again
                lease_ttl=common.lease_ttl,
                migrate=common.migrate,
            )
            return Journal(store, common)
        case "postgresql" | "postgres":
            try:
                from callstream.journal.postgres import PostgresStore, address
            except ModuleNotFoundError as error:
                raise MissingExtra("a PostgreSQL journal needs asyncpg", "postgres", error) from error
            return Journal(
                PostgresStore(
                    address(url), patience=common.retry_seconds, lease_ttl=common.lease_ttl, migrate=common.migrate
                ),
                common,
            )
        case _:  # the rest of the URL may hold a password
            raise UsageError(
                f"expected memory:, sqlite:///file.db or postgresql://…, got a URL that begins with {scheme + ':'!r}"
            )
