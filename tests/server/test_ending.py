"""How runs end and servers drain, and what is heard meanwhile; in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream import Callstream, Run
from callstream.errors import JournalError, UsageError
from callstream.server import ServerSettings, create_app

from .agents import Stepping
from .locking import write_lock
from .serving import Server, run_input, served


async def test_a_run_that_waits_for_its_thread_is_told_when_the_server_drains(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs, settings=ServerSettings(busy_wait=600, shutdown_seconds=600)) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            waiting = asyncio.create_task(server.post("/agui", json=run_input()))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            draining = asyncio.create_task(server.app.state.driver.drain())
            refused = await waiting
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert not draining.done()
            agent.step(10)
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}
            await draining


async def test_a_run_that_is_being_started_is_waited_for(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Stepping(free=True)
    entered, go_on = asyncio.Event(), asyncio.Event()
    start = Run.start

    async def slow(*args: Any, **given: Any) -> Any:
        entered.set()
        await go_on.wait()
        return await start(*args, **given)

    async with served(agent, callstream=cs) as server:
        monkeypatch.setattr(Run, "start", slow)
        asked = asyncio.create_task(server.post("/agui", json=run_input()))
        await entered.wait()
        draining = asyncio.create_task(server.app.state.driver.drain())
        await asyncio.sleep(0.2)
        assert not draining.done()
        go_on.set()
        answer = await asked
        assert answer.status_code == 200
        await draining
        assert [row.outcome for row in await cs.journal.runs()] == ["finished"]


async def test_whoever_watches_a_run_reads_its_end_before_the_journal_is_closed(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = cs.journal.batches

    async def slow(run_id: str, after: int = 0, **given: Any) -> AsyncGenerator[Any, None]:
        async for records in batches(run_id, after):
            yield records
            await asyncio.sleep(0.3)  # it is behind: the run has ended before it looks again

    monkeypatch.setattr(cs.journal, "batches", slow)
    agent = Stepping()
    async with (
        served(agent, callstream=cs, settings=ServerSettings(shutdown_seconds=0)) as server,
        server.run() as stream,
    ):
        async with server.stream("GET", f"/runs/{stream.run_id}/events") as raw:
            await stream.until("TOOL_CALL_START")
            ended = asyncio.create_task(server.app.state.close())
            assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}
            await raw.all()
            assert raw.event == "end"
            await ended


async def test_requests_after_the_journal_was_closed_are_told_why(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        await asyncio.gather(server.app.state.close(), server.app.state.close())
        for method, path in (("GET", "/api/runs"), ("POST", "/threads/t/connect"), ("GET", "/api/calls/x")):
            answer = await server.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert (await server.get("/readyz")).status_code == 503
        assert (await server.get("/healthz")).status_code == 200


async def test_a_journal_that_is_away_is_told_and_nothing_of_it(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(**given: Any) -> Any:
        raise JournalError("the database at 10.0.0.1 refused the password")

    async with served(Stepping(free=True), callstream=cs) as server:
        with monkeypatch.context() as patch:
            patch.setattr(cs.journal, "runs", away)
            patch.setattr(cs.journal, "check", away)
            for path in ("/api/runs", "/readyz", "/runs/x/events"):
                answer = await server.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_away")
                assert int(answer.headers["retry-after"]) > 0
                assert "10.0.0.1" not in answer.text
            assert (await server.get("/healthz")).status_code == 200
        assert (await server.get("/readyz")).status_code == 200
    assert "10.0.0.1" in caplog.text


async def test_ends_are_true_while_the_store_takes_no_writes(
    cs: Callstream, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callstream")
    agent = Stepping()
    settings = ServerSettings(journal_seconds=0.3)
    async with served(agent, callstream=cs, settings=settings) as server, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(server.run(thread=f"thread-{number}")) for number in range(3)]
        streams.append(await stack.enter_async_context(server.connect("thread-0")))
        raw = await stack.enter_async_context(server.stream("GET", f"/runs/{streams[0].run_id}/events"))
        for stream in streams:
            await stream.until("TOOL_CALL_START")
        with write_lock(url):
            agent.step(15)
            for stream in streams:
                assert not {"RUN_ERROR", "RUN_FINISHED"} & {event["type"] for event in await stream.until_broken()}
            await raw.until_broken()
            assert raw.event is None  # no "end"
            for answer in (
                await server.get("/readyz"),
                await server.post("/agui", json=run_input(thread="another")),
                await server.post("/threads/thread-0/connect"),
                await server.get(f"/runs/{streams[0].run_id}/events"),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_away")
            assert (await server.get("/healthz")).status_code == 200
        async with asyncio.timeout(20):
            while (await server.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        # Nothing was lost: the runs end as they would have, and can be joined.
        for stream in streams[:3]:
            assert (await server.finished(stream.run_id))["outcome"] == "finished"
        async with server.connect("thread-1") as joined:
            assert (await joined.all())[-1]["outcome"] == {"type": "success"}
        assert len(await cs.journal.runs()) == 3
    assert len(agent.inputs) == 3
    ours = [each for each in caplog.records if each.name.startswith("callstream") and each.levelno >= logging.WARNING]
    said = [record.getMessage() for record in ours]
    assert [("trying again" in text, "can be written again" in text) for text in said] == [(True, False), (False, True)]
    assert not [record for record in ours if record.exc_info]


async def test_ends_are_true_if_a_run_begins_while_the_store_takes_no_writes(cs: Callstream, url: str) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(journal_seconds=0.2)) as server:
        given = run_input()
        with write_lock(url):
            answer = await server.post("/agui", json=given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_away")
        async with asyncio.timeout(20):
            while (await server.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with server.stream("POST", "/agui", json={**given, "runId": "again"}) as stream:
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}
    assert len(agent.inputs) == 1


async def test_stops_are_heard_after_the_journal_could_not_be_asked(
    cs: Callstream, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, failures = Stepping(), [JournalError("away"), JournalError("still away")]
    asked = cs.journal.asked_to_stop

    async def sometimes() -> dict[str, str]:
        if failures:
            raise failures.pop()
        return await asked()

    async with served(agent, callstream=cs) as server, Callstream(url) as other, server.run() as stream:
        monkeypatch.setattr(cs.journal, "asked_to_stop", sometimes)
        await stream.until("TOOL_CALL_START")
        assert await other.journal.ask_to_stop(stream.run_id, "from elsewhere")
        assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}
        assert failures == []


async def test_an_agent_that_ignores_its_cancellation_does_not_hold_up_whoever_stops_it(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callstream.runtime.driver._CANCEL_SECONDS", 0.1)
    release = asyncio.Event()

    async def deaf(given: RunAgentInput) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    async with served(deaf, callstream=cs) as server, server.run() as stream:
        answer = await server.post(f"/runs/{stream.run_id}/stop")
        assert (answer.status_code, answer.json()["outcome"]) == (200, "cancelled")
        assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}
        assert "is still running after its cancellation" in caplog.text
        release.set()


async def test_one_run_id_in_two_processes_at_once_makes_two_runs(cs: Callstream, url: str) -> None:
    agents = Stepping(free=True), Stepping(free=True)
    async with served(agents[0], callstream=cs) as one, served(agents[1], callstream=Callstream(url)) as two:
        for number in range(5):

            async def begin(server: Server, thread: str) -> str:
                async with server.run(thread=thread, runId=f"run-{number}") as stream:  # noqa: B023
                    assert stream.status == 200, stream.response.text
                    assert (await stream.all())[-1]["outcome"] == {"type": "success"}
                    return stream.run_id

            found = await asyncio.gather(*(begin(server, f"{number}-{server.port}") for server in (one, two)))
            assert len(set(found)) == 2
    assert [len(agent.executed) for agent in agents] == [5, 5]


async def test_a_connection_that_never_asks_is_dropped(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callstream.server.serving.HEAD_SECONDS", 0.2)
    async with served(Stepping(free=True), callstream=cs) as server:
        for head in (b"", b"GET / HTTP/1.1\r\nHost:"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head)
            try:
                assert await asyncio.wait_for(reader.read(), 10) == b""
            except ConnectionError:
                pass  # dropped is dropped
            writer.close()
        assert (await server.get("/healthz")).status_code == 200


@pytest.mark.parametrize("way", ["sync", "async", "raising"])
async def test_an_agent_is_closed_in_its_own_way_and_the_journal_after_it(cs: Callstream, way: str) -> None:
    agent = _Closing(way)
    app = create_app(agent, callstream=cs)
    if way == "raising":
        with pytest.raises(OSError, match="will not"):
            await app.state.close()
    else:
        await app.state.close()
    assert agent.closed == 1
    with pytest.raises(UsageError, match="closed"):
        await cs.journal.runs()


class _Closing(Stepping):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.closed = 0

    def close(self) -> Any:
        self.closed += 1
        if self.way == "raising":
            raise OSError("will not")
        return asyncio.sleep(0) if self.way == "async" else None
