"""PostgreSQL goes away while clients stream: what they are told, what the log says, and what the journal has then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from callstream import Callstream
from callstream.journal import open_journal
from callstream.server import ServerSettings
from tests.journal.proxy import Proxy
from tests.journal.server import postgres_server

from .agents import Stepping
from .serving import served

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as server:
        yield server.get_uri()


async def test_ends_are_true_while_postgres_is_away(postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "callstream")
    agent = Stepping()
    settings = ServerSettings(journal_seconds=0.4)
    async with Proxy(postgres) as proxy, AsyncExitStack() as stack:
        cs = Callstream(open_journal(proxy.url, retry_seconds=0.3, housekeeping=None))
        server = await stack.enter_async_context(served(agent, callstream=cs, settings=settings))
        streams = [await stack.enter_async_context(server.run(thread=f"thread-{number}")) for number in range(3)]
        streams.append(await stack.enter_async_context(server.connect("thread-0")))
        streams.append(await stack.enter_async_context(server.stream("GET", f"/runs/{streams[0].run_id}/events")))
        for stream in streams[:4]:
            await stream.until("TOOL_CALL_START")
        await proxy.stop()
        agent.step(15)
        for stream in streams[:4]:
            assert not {"RUN_ERROR", "RUN_FINISHED"} & {event["type"] for event in await stream.until_broken()}
        await streams[4].until_broken()
        assert streams[4].event is None  # no "end"
        for answer in (await server.get("/api/runs"), await server.post("/threads/thread-0/connect")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_away")
        await proxy.start()
        for stream in streams[:3]:
            async with asyncio.timeout(20):
                while (await server.get(f"/api/runs/{stream.run_id}")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                row = await server.finished(stream.run_id)
            assert row["outcome"] == "failed"
            assert row["reason"].startswith(
                f"JournalError: the PostgreSQL schema 'callstream' at 127.0.0.1:{urlsplit(proxy.url).port}/postgres was unavailable"
            )
        async with asyncio.timeout(20):
            while (await server.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with server.connect("thread-1") as joined:
            last = (await joined.all())[-1]
            assert (last["type"], last["code"]) == ("RUN_ERROR", "failed")
    records = [record for record in caplog.records if record.name.startswith("callstream")]
    assert not [record for record in records if record.exc_info]
    journal = [record.getMessage() for record in records if record.name == "callstream.journal"]
    assert [("trying again" in text, "written again" in text) for text in journal] == [(True, False), (False, True)]
    errors = [record for record in records if record.levelno == logging.ERROR and record.name == "callstream.server"]
    run_ids = [stream.run_id for stream in streams[:3]]
    assert sorted(record.run_id for record in errors) == sorted(run_ids)  # type: ignore[attr-defined]
    assert all("was unavailable" in record.getMessage() for record in errors)
    for record in records:
        if "could not write the end" in record.getMessage():
            assert record.run_id in run_ids  # type: ignore[attr-defined]
            assert "after=" not in record.getMessage()


async def test_requests_hear_at_once_that_postgres_is_away(postgres: str) -> None:
    """Though the journal itself would wait a minute for it."""
    async with Proxy(postgres) as proxy, AsyncExitStack() as stack:
        cs = Callstream(open_journal(proxy.url, retry_seconds=60, housekeeping=None))
        agent = Stepping()
        server = await stack.enter_async_context(
            served(agent, callstream=cs, settings=ServerSettings(journal_seconds=0.2))
        )
        stream = await stack.enter_async_context(server.run())
        await stream.until("TOOL_CALL_START")
        await proxy.stop()
        await stream.until_broken()
        async with asyncio.timeout(20):
            for answer in (
                await server.get("/api/runs"),
                await server.get("/api/threads"),
                await server.get(f"/api/runs/{stream.run_id}/view"),
                await server.get("/api/calls/any"),
                await server.post(f"/runs/{stream.run_id}/stop"),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_away")
        await proxy.start()
        agent.step(15)
        async with asyncio.timeout(20):
            while (await server.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await server.finished(stream.run_id))["outcome"] == "finished"
