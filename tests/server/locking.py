"""A store that takes no writes for a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager


@contextmanager
def write_lock(url: str) -> Iterator[None]:
    """Somebody else's transaction, in which the journal's file takes no writes."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
