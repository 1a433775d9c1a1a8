"""The tap and a store that hangs or refuses: what the program asked for happens, in its time, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from callstream import CallState, Callstream, JournalError, open_journal
from callstream.runtime import log
from callstream.runtime.log import MOMENT
from callstream.testing import Delay, ScriptedProvider, Text, ToolCall
from tests.submitting import replace_append
from tests.tap.clients import ASK, WIRES, sdk

WRITE = ToolCall("write", {"title": "Notes", "content": "one two three"}, call_id="c1")
FOREVER = Delay(600)


class SlowJournal:
    """A journal whose appends can be made to wait, as those of a store that hangs do."""

    def __init__(self, cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        append = cs.journal.append

        async def slow(*args: Any, **kwargs: Any) -> int:
            if not self.open.is_set():
                self.reached.set()
            await self.open.wait()
            return await append(*args, **kwargs)

        replace_append(monkeypatch, cs.journal, slow)

    def hang(self) -> None:
        self.reached.clear()
        self.open.clear()

    def go_on(self) -> None:
        self.open.set()


@pytest.fixture
def journal(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowJournal]:
    monkeypatch.setattr(log, "MOMENT", MOMENT / 10)  # which all of these tests wait out
    slow = SlowJournal(cs, monkeypatch)
    yield slow
    slow.go_on()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@asynccontextmanager
async def impatient(path: Path) -> AsyncIterator[Callstream]:
    async with Callstream(open_journal(f"sqlite:///{path}", retry_seconds=0.05, housekeeping=None)) as cs:
        await cs.journal.runs()
        yield cs


async def all_ended(cs: Callstream) -> list[Any]:
    async with asyncio.timeout(10):
        while not (runs := await cs.journal.runs()) or not all(run.outcome for run in runs):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return runs


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_that_cannot_begin_gives_the_connection_back(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "calls.db"
    async with impatient(path) as cs, ScriptedProvider("openai_chat", [WRITE]) as provider:
        limits = httpx.Limits(max_connections=2)
        async with cs.httpx_client(collapse="all", limits=limits, timeout=httpx.Timeout(5)) as client:
            url = f"{provider.base_url}/chat/completions"
            body = {"model": "m", "stream": stream, "messages": []}
            with locked(path):
                for _ in range(3):
                    with pytest.raises(JournalError):
                        await client.post(url, json=body)
            assert (await client.post(url, json=body)).status_code == 200
            async with cs.run("thread"):
                assert (await client.post(url, json=body)).status_code == 200


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels the task and waits for it. That takes no longer than a store that is well may take, a few times."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=MOMENT * 10)
    assert done, "the cancellation did not arrive"
    assert task.cancelled()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("in_run", [True, False])
async def test_cancel_is_cancel_while_the_run_is_begun(
    cs: Callstream, journal: SlowJournal, wire: str, in_run: bool
) -> None:
    async def program(client: Any) -> None:
        if in_run:
            async with cs.run("thread"):
                await ASK[wire](client)
        else:
            await ASK[wire](client)

    script = [Text("Hello."), WRITE]
    async with ScriptedProvider(wire, script) as provider, sdk(wire, provider, cs, max_retries=2) as client:
        journal.hang()
        asking = asyncio.create_task(program(client))
        await journal.reached.wait()
        await cancelled(asking)
        assert len(provider.requests) == (0 if in_run else 1)
        journal.go_on()
        (run,) = await all_ended(cs)
    assert run.outcome == "cancelled"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("in_run", [True, False])
async def test_cancel_is_cancel_in_the_middle_of_a_response(
    cs: Callstream, journal: SlowJournal, wire: str, in_run: bool
) -> None:
    heard = asyncio.Event()
    cs.on_args_delta("write", lambda delta, signal: heard.set())

    async def program(client: Any) -> None:
        if in_run:
            async with cs.run("thread"):
                await ASK[wire](client)
        else:
            await ASK[wire](client)

    script = [ToolCall("write", {"content": "one piece after another " * 50}, call_id="c1")]
    async with ScriptedProvider(wire, script, stream_args_unasked=True, deltas_per_second=50) as provider:
        async with sdk(wire, provider, cs, max_retries=2) as client:
            asking = asyncio.create_task(program(client))
            await asyncio.wait_for(heard.wait(), 5)
            journal.hang()
            await asyncio.wait_for(journal.reached.wait(), 5)
            await cancelled(asking)
            assert len(provider.requests) == 1
            journal.go_on()
            await all_ended(cs)
    for call in await cs.journal.calls():
        assert call.is_final


async def test_cancel_is_cancel_for_a_time_limit(cs: Callstream, journal: SlowJournal) -> None:
    async with ScriptedProvider("openai_chat", [WRITE]) as provider:
        async with sdk("openai_chat", provider, cs, max_retries=2) as client:
            journal.hang()

            async def expire(limit: asyncio.Timeout) -> None:
                await journal.reached.wait()
                limit.reschedule(asyncio.get_running_loop().time())

            with pytest.raises(TimeoutError):  # noqa: PT012
                async with asyncio.timeout(None) as limit:
                    expiring = asyncio.create_task(expire(limit))
                    await ASK["openai_chat"](client)
            await expiring
            assert len(provider.requests) == 1
            journal.go_on()
            await all_ended(cs)


async def test_cancel_is_cancel_for_a_whole_answer(cs: Callstream, journal: SlowJournal) -> None:
    async with ScriptedProvider("openai_chat", [WRITE]) as provider:
        async with sdk("openai_chat", provider, cs, max_retries=2) as client:
            journal.hang()
            asking = asyncio.create_task(client.chat.completions.create(model="m", messages=[]))
            await journal.reached.wait()
            await cancelled(asking)
            journal.go_on()
            (run,) = await all_ended(cs)
    assert (run.outcome, len(provider.requests)) == ("cancelled", 1)


async def test_cancel_is_cancel_for_a_tool(cs: Callstream, journal: SlowJournal) -> None:
    running = asyncio.Event()

    async def write(title: str, content: str) -> None:
        running.set()
        await asyncio.Event().wait()

    cs.add_tool(write)
    async with ScriptedProvider("openai_chat", [WRITE]) as provider:
        async with sdk("openai_chat", provider, cs) as client, cs.run("thread") as run:
            await ASK["openai_chat"](client)
            invoking = asyncio.create_task(run.invoke("c1"))
            await running.wait()
            journal.hang()
            await cancelled(invoking)
            journal.go_on()
    call = await cs.journal.call("c1")
    assert call is not None
    assert (call.state, call.error) == (CallState.FAILED, "CancelledError")


async def test_what_a_cancelled_request_said_is_recorded_once(cs: Callstream, journal: SlowJournal) -> None:
    async with ScriptedProvider("openai_chat", [Text("Done.")]) as provider:
        async with sdk("openai_chat", provider, cs) as client, cs.run("thread") as run:
            journal.hang()
            asking = asyncio.create_task(ASK["openai_chat"](client))
            await journal.reached.wait()
            await cancelled(asking)
            journal.go_on()
            await ASK["openai_chat"](client)
    events = [record.event async for record in cs.journal.read(run.run_id)]
    assert [event.text for event in events if type(event).__name__ == "MessageReceived"] == ["go"]


async def test_the_store_is_really_locked_and_cancel_is_cancel(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with Callstream(f"sqlite:///{path}") as cs, ScriptedProvider("openai_chat", [WRITE]) as provider:
        await cs.journal.runs()
        async with openai.AsyncOpenAI(
            base_url=provider.base_url, api_key="none", http_client=cs.httpx_client(collapse="all")
        ) as client:
            with locked(path):
                asking = asyncio.create_task(ASK["openai_chat"](client))
                async with asyncio.timeout(10):
                    while not (await cs.journal.stats())["pending_bytes"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                await cancelled(asking)
            (run,) = await all_ended(cs)
            assert (run.outcome, len(provider.requests)) == ("cancelled", 1)


async def test_a_response_that_nobody_can_read_any_more_is_released(cs: Callstream) -> None:
    async with ScriptedProvider("openai_chat", [Text("Hello."), WRITE, FOREVER]) as provider:
        async with cs.httpx_client(collapse="all") as client:
            body = {"model": "m", "stream": True, "messages": []}
            request = client.build_request("POST", f"{provider.base_url}/chat/completions", json=body)
            response: Any = await client.send(request, stream=True)
            assert [run.outcome for run in await cs.journal.runs()] == [None]
            del response, request
            gc.collect()
            await all_ended(cs)
            async with asyncio.timeout(10):
                while provider.requests[0].fate != "left":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_a_response_that_is_closed_at_once_is_released(cs: Callstream) -> None:
    """Before its reader has made its first step."""
    async with ScriptedProvider("openai_chat", [Text("Hello."), FOREVER]) as provider:
        async with cs.httpx_client(limits=httpx.Limits(max_connections=1), timeout=httpx.Timeout(5)) as client:
            body = {"model": "m", "stream": True, "messages": []}
            for _ in range(3):
                async with client.stream("POST", f"{provider.base_url}/chat/completions", json=body) as response:
                    assert response.status_code == 200
            await all_ended(cs)
