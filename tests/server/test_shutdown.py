"""Ending well: SIGTERM to a real process while runs go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callstream import CallState, Callstream

from .process import Process, process
from .serving import Stream, run_input

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


async def draining(server: Process) -> None:
    """Waits until the signal has been heard."""
    async with asyncio.timeout(60):
        while (await server.get("/readyz")).status_code != 503:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def begun(server: Process, stack: Any, *, thread: str = "thread", **props: Any) -> Stream:
    stream: Stream = await stack.enter_async_context(server.run(thread=thread, forwardedProps=props))
    await stream.until("TOOL_CALL_ARGS")
    return stream


@pytest.fixture
async def stack() -> AsyncIterator[Any]:
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as made:
        yield made


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_runs_that_end_in_time_end_as_if_nothing_had_been(url: str, stack: Any, sig: signal.Signals) -> None:
    server = await stack.enter_async_context(process(url, shutdown_seconds=20))
    stream = await begun(server, stack, pieces=40)
    server.process.send_signal(sig)
    await draining(server)
    # While it drains the port is open: new runs are told, what goes on can be watched and stopped.
    refused = await server.post("/agui", json=run_input(thread="another"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) > 0
    assert (await server.get("/readyz")).json()["error"]["code"] == "shutting_down"
    assert (await server.get("/healthz")).status_code == 200
    assert (await server.get(f"/api/runs/{stream.run_id}")).json()["outcome"] is None
    async with server.connect() as joined:
        assert (await joined.all())[-1]["type"] == "RUN_FINISHED"
    events = await stream.all()
    assert events[-1]["type"] == "RUN_FINISHED"
    assert events[-1]["outcome"] == {"type": "success"}
    code, log = await server.ended()
    assert code == (130 if sig == signal.SIGINT else 0), log  # Ctrl-C is handed back when all is done
    async with Callstream(url) as cs:
        [row] = await cs.journal.runs()
        assert row.outcome == "finished"


async def test_runs_that_do_not_are_stopped_with_a_reason_and_their_streams_told(url: str, stack: Any) -> None:
    server = await stack.enter_async_context(process(url, shutdown_seconds=0.5))
    streams = [await begun(server, stack, thread=f"thread-{number}", pieces=10_000) for number in range(3)]
    raw = await stack.enter_async_context(server.stream("GET", f"/runs/{streams[0].run_id}/events"))
    server.process.terminate()
    for stream in streams:
        events = await stream.all()
        assert events[-1]["outcome"] == {"type": "cancelled"}
        assert [event["type"] for event in events].count("TOOL_CALL_END") == 1
    records = await raw.all()
    assert (raw.event, records[-2]["event"]["type"]) == ("end", "run_ended")
    code, log = await server.ended()
    assert code == 0, log
    async with Callstream(url) as cs:
        rows = await cs.journal.runs()
        assert {(row.outcome, row.reason) for row in rows} == {("cancelled", "the server shut down")}
        assert {call.state for call in await cs.journal.calls()} == {CallState.DISCARDED}
        assert await cs.journal.sweep() == []


async def test_second_signal_ends_the_waiting(url: str, stack: Any) -> None:
    server = await stack.enter_async_context(process(url, shutdown_seconds=600))
    stream = await begun(server, stack, pieces=10_000)
    server.process.terminate()
    await draining(server)
    assert server.process.returncode is None
    server.process.terminate()
    assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}
    code, log = await server.ended()
    assert code == 0, log
    async with Callstream(url) as cs:
        assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_a_journal_that_is_away_costs_one_line_and_no_traceback(tmp_path: Path, stack: Any) -> None:
    file, elsewhere = tmp_path / "calls.db", tmp_path / "elsewhere.db"
    server = await stack.enter_async_context(process(f"sqlite:///{file}", shutdown_seconds=0.1))
    await begun(server, stack, pieces=10_000)
    file.rename(elsewhere)
    server.process.send_signal(signal.SIGTERM)
    code, log = await server.ended()
    assert code == 0, log
    assert log.count("ends of runs could not be written, they are left to the next sweep") == 1, log
    assert "Application shutdown failed" not in log
    assert "Traceback" not in log


async def test_an_agent_that_does_not_listen_does_not_hold_the_process(url: str, stack: Any) -> None:
    """Two signals, and the third ends the process as it is."""
    server = await stack.enter_async_context(process(url, shutdown_seconds=600))
    await begun(server, stack, pieces=10_000, stubborn=True)
    server.process.terminate()
    await draining(server)
    server.process.terminate()
    await asyncio.sleep(0.2)
    server.process.terminate()
    code, _ = await server.ended()
    assert code in (128 + signal.SIGTERM, -signal.SIGTERM)


async def test_a_server_without_runs_ends_at_once(url: str, stack: Any) -> None:
    server = await stack.enter_async_context(process(url, shutdown_seconds=600))
    assert (await server.get("/readyz")).json() == {"status": "ready"}
    server.process.terminate()
    code, log = await server.ended()
    assert code == 0, log


async def test_a_stream_of_another_processs_run_breaks(url: str, stack: Any) -> None:
    """The run goes on where it is; whoever watched it here can come back there."""
    server = await stack.enter_async_context(process(url))
    other = await stack.enter_async_context(process(url, shutdown_seconds=600))
    stream = await begun(server, stack, pieces=100)
    joined = await stack.enter_async_context(other.connect())
    raw = await stack.enter_async_context(other.stream("GET", f"/runs/{stream.run_id}/events"))
    await joined.until("TOOL_CALL_START")
    other.process.terminate()
    assert not {"RUN_ERROR", "RUN_FINISHED"} & {event["type"] for event in await joined.until_broken()}
    await raw.until_broken()
    assert raw.event is None  # no "end": it has not ended
    code, log = await other.ended()
    assert code == 0, log
    assert (await stream.all())[-1]["outcome"] == {"type": "success"}


async def test_a_reader_that_takes_nothing_does_not_hold_the_process(url: str, stack: Any) -> None:
    server = await stack.enter_async_context(process(url, shutdown_seconds=0.2))
    stream = await begun(server, stack, pieces=10_000)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    writer.write(f"GET /runs/{stream.run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await asyncio.sleep(0.2)
    server.process.terminate()
    code, log = await server.ended()
    assert code == 0, log
    writer.close()
