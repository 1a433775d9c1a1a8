"""The journal in PostgreSQL, for many processes on many machines."""

from __future__ import annotations

from callstream.journal.postgres.link import address
from callstream.journal.postgres.store import PostgresStore

__all__ = ["PostgresStore", "address"]
