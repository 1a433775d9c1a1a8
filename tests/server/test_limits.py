"""Every limit: what is beyond it is refused with a clear answer, and what is within goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from ag_ui.core import RunAgentInput

from callstream import Callstream, Settings, current_run
from callstream.errors import LimitExceeded, RunOver
from callstream.events import ArgsAppended, CallStarted, MessageStarted, TextAppended
from callstream.server import ServerSettings
from tests.clock import skip, skipping

from .agents import Stepping
from .serving import Server, run_input, served


def told(answer: httpx.Response, status: int, code: str) -> str:
    """The sentence of a refusal."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert set(error) == {"code", "message"}
    assert error["message"]
    return str(error["message"])


async def still_serves(server: Server, agent: Stepping) -> None:
    agent.step(20)
    async with server.run(thread="afterwards") as stream:
        assert (await stream.all())[-1]["outcome"] == {"type": "success"}


def by_name(request: Any) -> str | None:
    name: str | None = request.headers.get("x-user")
    return name


# -- runs --


async def test_runs_of_the_process(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs, settings=ServerSettings(max_runs=2)) as server, AsyncExitStack() as stack:
        for number in range(2):
            stream = await stack.enter_async_context(server.run(thread=f"thread-{number}"))
            await stream.until("TOOL_CALL_START")
        refused = await server.post("/agui", json=run_input(thread="one too many"))
        assert "2 active runs" in told(refused, 503, "too_many_runs")
        assert int(refused.headers["retry-after"]) > 0
        agent.step(10)
        await stream.all()
        await server.finished(stream.run_id)
        await still_serves(server, agent)


async def test_runs_that_are_asked_for_at_once_do_not_pass_together(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs, settings=ServerSettings(max_runs=3)) as server:
        asked = [_status(server, f"thread-{number}") for number in range(10)]
        statuses = await asyncio.gather(*asked)
        assert sorted(statuses) == [200] * 3 + [503] * 7
        agent.step(100)


async def _status(server: Server, thread: str) -> int:
    async with server.run(thread=thread) as stream:
        return stream.status


async def test_runs_of_one_principal(cs: Callstream) -> None:
    agent = Stepping()
    settings = ServerSettings(max_runs_per_principal=1)
    async with served(agent, callstream=cs, settings=settings, auth=by_name) as server:
        server.headers = {"x-user": "ann"}
        async with server.run(thread="ann's") as stream:
            await stream.until("TOOL_CALL_START")
            assert "1 active runs" in told(await server.post("/agui", json=run_input(thread="b")), 429, "too_many_runs")
            server.headers = {"x-user": "bob"}
            async with server.run(thread="bob's") as other:
                await other.until("TOOL_CALL_START")
                agent.step(10)
                assert (await other.all())[-1]["outcome"] == {"type": "success"}
            await stream.all()
            await still_serves(server, agent)


@skipping
async def test_time_of_a_run(url: str) -> None:
    agent = Stepping()
    settings = ServerSettings(run_seconds=60)
    async with (
        Callstream(url) as cs,
        served(agent, callstream=cs, settings=settings) as server,
        server.run() as stream,
    ):
        await stream.until("TOOL_CALL_START")
        skip(61)
        assert (await stream.all())[-1]["type"] == "RUN_ERROR"
        row = await server.finished(stream.run_id)
        assert (row["outcome"], row["calls"][0]["state"]) == ("failed", "discarded")
        assert (agent.executed, agent.cancelled) == ([], 1)


@pytest.mark.parametrize(("limit", "told_of"), [("max_args_bytes", "of arguments"), ("max_run_bytes", "in this run")])
async def test_bytes_of_arguments_and_of_a_run(cs: Callstream, limit: str, told_of: str) -> None:
    agent = Stepping(['{"content":"', *["x" * 100] * 50, '"}'], free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(**{limit: 1000})) as server:
        async with server.run() as stream:
            events = await stream.all()
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "failed")
        row = await server.finished(stream.run_id)
        assert row["outcome"] == "failed"
        assert f"1000 bytes {told_of}" in row["reason"]
        assert limit in row["reason"]
        [call] = row["calls"]
        assert (call["state"], call["reason"]) == ("discarded", "interrupted")
        whole = (await server.get(f"/api/calls/{call['call_id']}")).json()
        assert 800 < len(whole["args_json"]) <= 1000
        assert agent.executed == []


async def test_an_agent_that_ignores_the_end_of_its_run_is_cancelled(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.runtime.driver._LEFTOVER_SECONDS", 0.1)
    cancelled = asyncio.Event()

    async def stubborn(given: RunAgentInput) -> AsyncIterator[Any]:
        run = current_run()
        assert run is not None
        try:
            while True:
                try:
                    await run.record([MessageStarted("m"), TextAppended("m", "for ever ")])
                except (LimitExceeded, RunOver):
                    await asyncio.sleep(0.01)
                yield None
        finally:
            cancelled.set()

    async with served(stubborn, callstream=cs, settings=ServerSettings(max_run_bytes=100)) as server:
        async with server.run() as stream:
            assert (await stream.all())[-1]["type"] == "RUN_ERROR"
        async with asyncio.timeout(10):
            await cancelled.wait()
            while len(server.app.state.driver):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_the_runtimes_own_limits_count_too(url: str) -> None:
    agent = Stepping(free=True)
    async with Callstream(url, settings=Settings(max_args_bytes=5)) as cs:
        async with served(agent, callstream=cs) as server, server.run() as stream:
            assert (await stream.all())[-1]["type"] == "RUN_ERROR"
            assert agent.executed == []


async def test_a_call_in_the_middle_is_discarded_when_text_passes_the_limit(cs: Callstream) -> None:
    async def talkative(given: RunAgentInput) -> None:
        run = current_run()
        assert run is not None
        await run.record([MessageStarted("m"), CallStarted("c", "write"), ArgsAppended("c", '{"a":')])
        await run.record([TextAppended("m", "x" * 200)])

    async with served(talkative, callstream=cs, settings=ServerSettings(max_run_bytes=100)) as server:
        async with server.run() as stream:
            await stream.all()
        assert (await server.get("/api/calls/c")).json()["state"] == "discarded"


# -- streams --


async def test_streams_of_the_process(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs, settings=ServerSettings(max_streams=2)) as server:
        async with server.run() as stream, server.connect() as joined:
            await stream.until("TOOL_CALL_START")
            await joined.until("TOOL_CALL_START")
            for method, path in (
                ("POST", "/agui"),
                ("POST", "/threads/thread/connect"),
                ("GET", f"/runs/{stream.run_id}/events"),
            ):
                body = {"json": run_input(thread="another")} if path == "/agui" else {}
                refused = await server.client.request(method, path, **body)
                assert "2 open streams" in told(refused, 503, "too_many_streams")
                assert int(refused.headers["retry-after"]) > 0
            agent.step(10)
            await stream.all()
            await joined.all()
        await still_serves(server, agent)
        assert len(agent.inputs) == 2  # none of those refused was begun


async def test_streams_of_one_principal(cs: Callstream) -> None:
    agent = Stepping()
    settings = ServerSettings(max_streams=5, max_streams_per_principal=2)
    async with served(agent, callstream=cs, settings=settings, auth=by_name) as server:
        server.headers = {"x-user": "ann"}
        async with server.run(thread="ann's") as stream, server.connect("ann's") as joined:
            await joined.until("TOOL_CALL_START")
            for method, path in (
                ("POST", "/agui"),
                ("POST", "/threads/ann's/connect"),
                ("GET", f"/runs/{stream.run_id}/events"),
            ):
                body = {"json": run_input(thread="ann's other")} if path == "/agui" else {}
                refused = await server.client.request(method, path, headers=server.headers, **body)
                assert "2 open streams" in told(refused, 429, "too_many_streams")
                assert int(refused.headers["retry-after"]) > 0
            agent.step(20)
            server.headers = {"x-user": "bob"}
            async with server.run(thread="bob's") as other:
                assert (await other.all())[-1]["outcome"] == {"type": "success"}
            await stream.all()
            await joined.all()
        server.headers = {"x-user": "ann"}
        await still_serves(server, agent)
    assert len(agent.inputs) == 3


async def test_streams_that_are_refused_or_broken_give_their_seat_back(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(max_streams=1)) as server:
        for _ in range(3):
            assert (await server.post("/threads/unknown/connect")).status_code == 404
            assert (await server.get("/runs/unknown/events")).status_code == 404
            assert (await server.post("/agui", json={})).status_code == 422
        await still_serves(server, agent)


async def test_streams_asked_for_at_once_do_not_pass_together(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs, settings=ServerSettings(max_streams=3)) as server:
        async with AsyncExitStack() as opened:  # a stream that is left gives its place to the next
            asked = [opened.enter_async_context(server.run(thread=f"thread-{number}")) for number in range(10)]
            statuses = [stream.status for stream in await asyncio.gather(*asked)]
            agent.step(100)
        assert sorted(statuses) == [200] * 3 + [503] * 7


# -- requests --


async def test_body(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(max_body_bytes=10_000)) as server:
        large = json.dumps(run_input("x" * 20_000)).encode()
        assert "10000 bytes" in told(await server.post("/agui", content=large), 413, "too_large")

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(large), 1000):
                yield large[start : start + 1000]

        assert "10000 bytes" in told(await server.post("/agui", content=pieces()), 413, "too_large")
        await still_serves(server, agent)


async def test_time_of_a_body(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(body_seconds=0.2)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /agui HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b" 408 " in head
        assert json.loads(body)["error"]["code"] == "too_slow"
        await still_serves(server, agent)


@pytest.mark.parametrize(("setting", "name"), [("max_messages", "messages"), ("max_tools", "tools")])
async def test_messages_and_tools(cs: Callstream, setting: str, name: str) -> None:
    agent = Stepping(free=True)
    made: dict[str, Any] = {
        "messages": {"id": "m", "role": "user", "content": "x"},
        "tools": {"name": "t", "description": "", "parameters": {}},
    }
    async with served(agent, callstream=cs, settings=ServerSettings(**{setting: 3})) as server:
        refused = await server.post("/agui", json=run_input(**{name: [made[name]] * 4}))
        assert f"at most 3 {name}, got 4" in told(refused, 413, "too_many")
        async with server.run(**{name: [made[name]] * 3}) as stream:
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}


async def test_lists_are_bounded(cs: Callstream) -> None:
    agent = Stepping(free=True)
    part = {"type": "text", "text": "x"}
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    lists: dict[str, Any] = {
        "messages.0.content": lambda count: {"messages": [{"id": "m", "role": "user", "content": [part] * count}]},
        "messages.0.toolCalls": lambda count: {
            "messages": [{"id": "m", "role": "assistant", "toolCalls": [call] * count}]
        },
        "context": lambda count: {"context": [{"description": "", "value": ""}] * count},
    }
    async with served(agent, callstream=cs, settings=ServerSettings(max_items=3)) as server:
        for name, made in lists.items():
            refused = await server.post("/agui", json=run_input(**made(4)))
            assert f"at most 3 entries in {name}, got 4" in told(refused, 413, "too_many")
            async with server.run(**made(3)) as stream:
                assert (await stream.all())[-1]["outcome"] == {"type": "success"}, name
        resume = [{"interruptId": "c", "status": "cancelled"}] * 4
        assert "in resume" in told(await server.post("/agui", json=run_input(resume=resume)), 413, "too_many")
        messages = [{"id": f"m{number}", "role": "user", "content": [part] * 3} for number in range(11)]
        refused = await server.post("/agui", json=run_input(messages=messages))
        assert "at most 30 parts and tool calls in all messages, got 33" in told(refused, 413, "too_many")


async def test_values(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(max_values=100)) as server:
        refused = await server.post("/agui", json=run_input(state={"a": [0] * 100}))
        assert "at most 100 JSON values" in told(refused, 413, "too_many")
        refused = await server.post("/agui", json=run_input(state={str(number): "" for number in range(300)}))
        assert "at most 100 JSON values" in told(refused, 413, "too_many")
        for text in ("a, [b], {c}" * 100, '\\", [' * 100, '\\\\"' * 100):
            async with server.run(text) as stream:
                assert (await stream.all())[-1]["outcome"] == {"type": "success"}
                assert agent.inputs[-1].messages[0].content == text
        await still_serves(server, agent)


@pytest.mark.parametrize("depth", [5, 6, 1000, 100_000])
async def test_nesting(cs: Callstream, depth: int) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, settings=ServerSettings(max_depth=5)) as server:
        body = json.dumps(run_input(forwardedProps=0)).replace(
            '"forwardedProps": 0', '"forwardedProps": ' + "[" * (depth - 1) + "]" * (depth - 1)
        )
        answer = await server.post("/agui", content=body)
        if depth <= 5:
            assert answer.status_code == 200
        else:
            assert "5 deep" in told(answer, 422, "wrong_input")
        await still_serves(server, agent)


async def test_streams_are_told_to_observers(cs: Callstream) -> None:
    from callstream.server.logs import LogObserver

    class Counting(LogObserver):
        streams = most = 0

        def streams_changed(self, change: int) -> None:
            self.streams += change
            self.most = max(self.most, self.streams)

    counting = Counting()
    cs.observe(counting)
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream, server.connect() as joined:
            await joined.until("TOOL_CALL_START")
            assert counting.streams == 2
            agent.step(10)
            await stream.all()
            await joined.all()
        async with asyncio.timeout(10):
            while counting.streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert counting.most == 2
