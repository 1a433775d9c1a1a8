"""A store that is away, locked or full: what a health check, an append and the log say, and when."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from callstream.errors import JournalError, UsageError
from callstream.journal import open_journal

from .conftest import Place, drop_schema, schema_url, sqlite_url
from .proxy import Proxy

pytestmark = pytest.mark.asyncio


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield schema_url(postgres_url, schema)
    asyncio.run(drop_schema(postgres_url, schema))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is writing to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# -- the health check --------------------------------------------------------------------------------------------------


async def test_check_writes_and_leaves_nothing_to_read(place: Place) -> None:
    async with place.journal() as journal:
        before = await journal.stats()
        for _ in range(3):
            await journal.check()
        after = await journal.stats()
        assert {**before, "stored_bytes": 0} == {**after, "stored_bytes": 0}
    with pytest.raises(UsageError, match="closed"):
        await journal.check()


async def test_check_refuses_a_file_that_is_locked(tmp_path: Path) -> None:
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None, retry_seconds=0.1) as journal:
        with locked(tmp_path / "j.db"), pytest.raises(JournalError, match="locked"):
            await journal.check()
        await journal.check()


async def test_check_refuses_a_file_that_cannot_grow(tmp_path: Path) -> None:
    async with open_journal(sqlite_url(tmp_path / "j.db"), housekeeping=None) as journal:
        connection = journal._store._file.connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="could not be used"):
            await journal.check()
        connection.execute("PRAGMA query_only = OFF")
        await journal.check()


@pytest.mark.postgres
async def test_check_refuses_a_server_that_is_away_at_once(url: str) -> None:
    """It does not wait for the server to come back, as everything else does."""
    async with Proxy(url) as proxy, open_journal(proxy.url, housekeeping=None, retry_seconds=1000) as journal:
        await journal.check()
        await proxy.stop()
        with pytest.raises(JournalError, match="away"):
            await asyncio.wait_for(journal.check(), 30)
        await proxy.start()
        await journal.check()


@pytest.mark.postgres
async def test_check_can_be_given_a_limit_where_the_server_does_not_answer(url: str) -> None:
    async with Proxy(url) as proxy, open_journal(proxy.url, housekeeping=None) as journal:
        await journal.check()
        proxy.is_silent = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await journal.check()
        proxy.is_silent = False
        proxy.cut()
        await journal.check()
