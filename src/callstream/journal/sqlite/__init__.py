"""The journal in one SQLite file: the default, for one machine."""

from __future__ import annotations

from callstream.journal.sqlite.store import SqliteStore, sqlite_path

__all__ = ["SqliteStore", "sqlite_path"]
