"""Journals of processes that hang: they are taken for dead, and do not know it."""

from __future__ import annotations

from typing import Any

from callstream.journal import Journal, open_journal


def zombie(url: str, **settings: Any) -> Journal:
    """A journal that never renews its lease. In SQLite and in memory it has none from the beginning."""
    journal = open_journal(url, **{"housekeeping": None, "lease_ttl": 0.1, **settings})

    async def never() -> None: ...

    journal._store.renew = never  # type: ignore[attr-defined]
    return journal
