"""Journals of processes that hang: they are taken for dead, and do not know it."""

from __future__ import annotations

from typing import Any

from callstream.journal import Journal, open_journal


def zombie(url: str, **settings: Any) -> Journal:
    return hanging(open_journal(url, **{"housekeeping": None, "lease_ttl": 0.1, **settings}))


def hanging(journal: Journal) -> Journal:
    """The journal, which never renews its lease. In SQLite and in memory it has none from the beginning."""

    async def never() -> None: ...

    store: Any = journal._store
    for part in (store, getattr(store, "_index", store)):
        part.renew = never
    return journal
