"""Sessions whose database is away, or refuses what it is given: what the run, its reason and the log say of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy, which DatabaseSessionService needs, is not installed")

import asyncpg
from google.adk.sessions.base_session_service import BaseSessionService

from callstream import Callstream, JournalError
from callstream.adk.serving import open_sessions, prepare_sessions
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted
from tests.journal.proxy import Proxy
from tests.journal.server import postgres_server

from .agents import adk_agent, gemini
from .clients import Client

pytestmark = pytest.mark.postgres
SECRET = "my doctor says"


@pytest.fixture(scope="module")
def postgres_uri() -> Iterator[str]:
    with postgres_server() as server:
        yield server.get_uri()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[BaseSessionService]:
    service: Any = open_sessions(url, **options)
    try:
        await prepare_sessions(service, url)
        yield service
    finally:
        await service.close()


async def find(service: BaseSessionService, session_id: str = "none") -> Any:
    return await service.get_session(app_name="app", user_id="user", session_id=session_id)


async def test_what_was_said_is_in_no_reason_and_no_log(
    postgres_uri: str, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that refuses a row says so, and neither the row nor what else was to be written is repeated."""
    caplog.set_level(logging.DEBUG, "callstream")
    async with opened(postgres_uri) as sessions, scripted("gemini", [[Text("Yes."), Finish()]]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        connection = await asyncpg.connect(postgres_uri)
        try:
            await connection.execute(
                "ALTER TABLE callstream_sessions.events ADD CONSTRAINT none CHECK (id = '') NOT VALID"
            )
            await client.send(SECRET)
        finally:
            await connection.execute("ALTER TABLE callstream_sessions.events DROP CONSTRAINT none")
            await connection.close()
        await client.agent.close()
    (run,) = await cs.journal.runs()
    assert run.outcome == "failed"
    assert run.reason is not None
    assert "google-adk's sessions" in run.reason
    assert "CheckViolationError" in run.reason
    assert SECRET not in run.reason
    assert SECRET not in caplog.text


async def test_a_restart_of_the_database_fails_no_run_that_begins(
    postgres_uri: str, cs: Callstream, models: Models
) -> None:
    """Connections that were kept are dead, and new ones are refused for a while."""
    async with (
        Proxy(postgres_uri) as proxy,
        opened(proxy.url) as sessions,
        scripted("gemini", [[Text("Yes."), Finish()]] * 2) as provider,
    ):
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        await client.send("one")
        await proxy.stop()
        sending = asyncio.create_task(client.send("two"))
        await asyncio.sleep(0.2)
        assert not sending.done()
        await proxy.start()
        await sending
        assert client.text() == "Yes."
        await client.agent.close()
    assert [run.outcome for run in await cs.journal.runs()] == ["finished", "finished"]


async def test_a_read_whose_connection_is_cut_is_done_again(postgres_uri: str) -> None:
    async with Proxy(postgres_uri) as proxy, opened(proxy.url) as sessions:
        await sessions.create_session(app_name="app", user_id="user", session_id="cut")
        reads = [asyncio.create_task(find(sessions, "cut")) for _ in range(8)]
        for _ in range(3):
            await asyncio.sleep(0.01)
            proxy.cut()
        assert [found.id for found in await asyncio.gather(*reads)] == ["cut"] * 8


async def test_a_database_that_was_read_only_is_used_again(postgres_uri: str) -> None:
    """A connection that was made while it was stays read-only."""
    admin = await asyncpg.connect(postgres_uri)
    try:
        async with opened(postgres_uri) as sessions:
            await admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
            await admin.fetch(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            with pytest.raises(JournalError, match="are unavailable: ReadOnlySQLTransactionError"):
                await sessions.create_session(app_name="app", user_id="user", session_id="one")
            await admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
            await sessions.create_session(app_name="app", user_id="user", session_id="one")
    finally:
        await admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        await admin.close()


async def test_the_reason_names_the_sessions(postgres_uri: str, cs: Callstream, models: Models) -> None:
    """A server that refuses connections, and one that takes them and says nothing."""
    async with (
        Proxy(postgres_uri) as proxy,
        opened(proxy.url, retry_seconds=0.1) as sessions,
        scripted("gemini", [[Text("Yes."), Finish()]]) as provider,
    ):
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        await proxy.stop()
        await client.send("one")
        await proxy.start()
        proxy.is_silent = True
        await client.send("two")
        proxy.is_silent = False
        await client.agent.close()
    silent, refused = await cs.journal.runs()
    for run, error in ((refused, "ConnectionRefusedError"), (silent, "TimeoutError")):
        assert run.reason is not None
        assert "google-adk's sessions" in run.reason
        assert f"'callstream_sessions' at 127.0.0.1:{urlsplit(proxy.url).port}/postgres" in run.reason
        assert error in run.reason


async def test_a_long_outage_is_waited_for_once(postgres_uri: str) -> None:
    async with Proxy(postgres_uri) as proxy, opened(proxy.url, retry_seconds=0.3) as sessions:
        await proxy.stop()
        with pytest.raises(JournalError, match="sessions"):
            await find(sessions)
        async with asyncio.timeout(30):
            for _ in range(200):  # a minute, if each waited
                with pytest.raises(JournalError, match="sessions"):
                    await find(sessions)
        await proxy.start()
        assert await find(sessions) is None


async def test_the_connections_of_sessions_are_few(postgres_uri: str) -> None:
    async with opened(postgres_uri) as sessions:
        # Two connections: what is seen of the others does not change within a transaction.
        locking, looking = [await asyncpg.connect(postgres_uri) for _ in range(2)]
        count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        try:
            async with asyncio.timeout(30), locking.transaction():
                await locking.execute("LOCK TABLE callstream_sessions.sessions IN ACCESS EXCLUSIVE MODE")
                reads = [asyncio.create_task(find(sessions)) for _ in range(40)]
                while await looking.fetchval(count) < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert await looking.fetchval(count) == 5
            assert await asyncio.gather(*reads) == [None] * 40
        finally:
            await locking.close()
            await looking.close()


async def test_a_start_waits_for_a_database_that_is_away(postgres_uri: str) -> None:
    async with Proxy(postgres_uri) as proxy:
        await proxy.stop()
        with pytest.raises(JournalError, match=r"google-adk's sessions, .* are unavailable: ConnectionRefusedError"):
            async with opened(proxy.url, retry_seconds=0.1):
                pass
        starting = asyncio.create_task(opened(proxy.url).__aenter__())
        await asyncio.sleep(0.1)
        await proxy.start()
        sessions: Any = await starting
        assert await find(sessions) is None
        await sessions.close()
