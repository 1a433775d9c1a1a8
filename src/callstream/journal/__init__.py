"""The durable log of runs and calls: in memory, in a SQLite file, or in PostgreSQL, with or without NATS beside it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from callstream.errors import MissingExtra, UsageError
from callstream.journal.housekeeping import Housekeeping, JournalSettings
from callstream.journal.journal import Journal, history
from callstream.journal.rows import Entry, RunRow
from callstream.journal.store import Store
from callstream.journal.worker import Inline

__all__ = ["Entry", "Housekeeping", "Journal", "JournalSettings", "RunRow", "history", "open_journal"]


_LOG_PATIENCE = 15.0
"""Seconds: a log's servers may take ten to agree on a new leader when theirs is gone."""


def open_journal(url: str, **settings: Any) -> Journal:
    """The journal that the URL names; it opens itself on first use.

    ``memory:``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://user@host/database``. Settings
    are those of ``JournalSettings`` (``redact``, ``housekeeping``, ``lease_ttl``, ``archive``, …). SQLite also takes
    ``durability="power"``, which can be in the URL instead (``?durability=power``). PostgreSQL takes ``schema``, ``listen``
    and ``statement_cache_size`` in the URL's query, and ``log=nats://host,host,host`` to keep the pieces of live runs in
    NATS JetStream, with ``log_stream``, ``log_durability``, ``log_monitor`` and ``log_creds``.
    """
    if not isinstance(url, str):
        raise UsageError(f"expected a journal's URL such as sqlite:///file.db, got {url!r}")
    scheme, colon, rest = url.partition(":")
    log_options = _log_options(url)
    if log_options:
        settings.setdefault("retry_seconds", _LOG_PATIENCE)
    durability = settings.pop("durability", None)
    try:
        common = JournalSettings(**settings)
    except TypeError as error:
        raise UsageError(f"unknown setting for open_journal: {error}") from error
    if not colon:
        raise UsageError(f"expected memory:, sqlite:///file.db or postgresql://…, got {url!r}")
    if durability is not None and scheme != "sqlite":
        raise UsageError(f"durability= is a setting of SQLite's journal, not of {scheme}")
    if log_options and scheme not in ("postgresql", "postgres"):
        raise UsageError(f"log= goes with a journal in PostgreSQL, not with {scheme}:")
    match scheme:
        case "memory":
            from callstream.journal.memory import MemoryStore, tables_named

            return Journal(MemoryStore(tables_named(rest)), common, Inline)
        case "sqlite":
            from callstream.journal.sqlite import SqliteStore, sqlite_path

            path, options = sqlite_path(url)
            durability = durability or options.get("durability", "process")
            file = SqliteStore(path, durability, common)  # type: ignore[arg-type]  # checked
            return Journal(file, common)
        case "postgresql" | "postgres":
            try:
                from callstream.journal.postgres import PostgresStore, address
            except ModuleNotFoundError as error:
                raise MissingExtra("a PostgreSQL journal needs asyncpg", "postgres", error) from error
            store = PostgresStore(address(url), common)
            return Journal(_with_log(store, log_options, common) if log_options else store, common)
        case _:  # the rest of the URL may hold a password
            raise UsageError(
                f"expected memory:, sqlite:///file.db or postgresql://…, got a URL that begins with {scheme + ':'!r}"
            )


def _log_options(url: str) -> dict[str, str]:
    """The URL's options for a log."""
    options = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    log = {name: value for name, value in options if name == "log" or name.startswith("log_")}
    if log and "log" not in log:
        raise UsageError(f"{', '.join(log)} is an option of a log, but log= names none")
    return log


def _with_log(index: Store, options: dict[str, str], common: JournalSettings) -> Store:
    try:
        from callstream.journal.nats import NatsLog, nats_address
    except ModuleNotFoundError as error:
        raise MissingExtra("a log in NATS needs nats-py", "nats", error) from error
    from callstream.journal.paired import PairedStore

    return PairedStore(index, NatsLog(nats_address(options), patience=common.retry_seconds))
