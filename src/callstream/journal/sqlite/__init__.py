"""The journal in one SQLite file: the default, for one machine."""

from __future__ import annotations

from callstream.journal.sqlite.reader import sqlite_path
from callstream.journal.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "sqlite_path"]
