"""Sync clients in several threads, and inside running event loops."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callstream import CallState, Callstream, current_run, tool
from callstream.errors import UsageError
from callstream.runtime import ownloop
from callstream.testing import Parallel, Text, ToolCall
from tests.tap.clients import ask as ask_async
from tests.tap.sync_clients import WIRES, ask, ask_client, sdk
from tests.tap.test_sync import ARGS, WRITE, journaled, serving


@pytest.fixture
def cs() -> Iterator[Callstream]:
    with Callstream() as callstream:
        yield callstream


def test_several_threads_at_once_each_in_its_run(cs: Callstream) -> None:
    @tool
    def write(title: str, content: str) -> str:
        return f"{title} in {threading.current_thread().name}"

    cs.add_tool(write)

    def script(request: Any) -> list[Any]:
        return [ToolCall("write", {"title": request.json["model"], "content": "x" * 50})]

    def turn(number: int) -> tuple[str, list[str], str]:
        with cs.run(f"thread-{number}") as run:
            client.chat.completions.create(model=f"m{number}", messages=[]) if number % 2 else list(
                client.chat.completions.create(model=f"m{number}", messages=[], stream=True)
            )
            (result,) = run.run_tools()
        return result.text, [call.args["title"] for call in run.calls], threading.current_thread().name

    with serving("openai_chat", script) as provider, sdk("openai_chat", provider, cs) as client:
        with ThreadPoolExecutor(8) as pool:
            turns = list(pool.map(turn, range(24)))
    for number, (text, titles, thread) in enumerate(turns):
        assert titles == [f"m{number}"]
        assert text == f"m{number} in {thread}"
    assert {call.thread_id for call in journaled(cs)} == {f"thread-{number}" for number in range(24)}


def test_several_threads_at_once_in_one_run(cs: Callstream) -> None:
    @tool
    def write(title: str, content: str) -> str:
        return content

    cs.add_tool(write)

    def step(number: int) -> list[str]:
        list(client.chat.completions.create(model="m", messages=[], stream=True))
        return [result.call_id for result in run.run_tools()]

    with serving("openai_chat", [WRITE]) as provider, sdk("openai_chat", provider, cs) as client:
        with cs.run("thread") as run, ThreadPoolExecutor(8) as pool:
            steps = [pool.submit(contextvars.copy_context().run, step, number) for number in range(8)]
            results = [call_id for each in steps for call_id in each.result()]
    assert sorted(results) == sorted(call.call_id for call in run.calls)
    assert [call.state for call in run.calls] == [CallState.COMPLETED] * 8


def test_a_response_may_be_read_in_another_thread_than_the_one_that_asked(cs: Callstream) -> None:
    with (
        serving("openai_chat", [Text("Hello.", size=2), WRITE]) as provider,
        sdk("openai_chat", provider, cs) as client,
    ):
        with cs.run("t") as run, ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
            stream: Any = iter(client.chat.completions.create(model="gpt", messages=[], stream=True))
            text = ""
            for pool in [first, second] * 100:
                chunk = pool.submit(next, stream, None).result()
                if chunk is None:
                    break
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert text == "Hello."
    assert [call.call_id for call in run.calls] == ["c1"]


def test_the_current_run_is_that_of_the_calling_thread(cs: Callstream) -> None:
    with serving("openai_chat", [Text("Hello."), ToolCall("write", ARGS)]) as provider:
        with cs.run("t") as run, ThreadPoolExecutor(1) as pool:
            current = current_run()
            assert current is not None
            assert current.run_id == run.run_id
            pool.submit(ask, "openai_chat", provider, cs).result()
            assert run.calls == []
            pool.submit(contextvars.copy_context().run, ask, "openai_chat", provider, cs).result()
            assert len(run.calls) == 1
    assert current_run() is None


@pytest.mark.parametrize("wire", WIRES)
async def test_inside_a_running_loop_that_it_blocks(wire: str) -> None:
    log: list[str] = []
    with Callstream() as cs, serving(wire, [WRITE]) as provider:

        async def ready(call: Any, signal: Any) -> None:
            await asyncio.sleep(0)
            log.append("ready")

        cs.on_args_complete("write", ready)
        with cs.run("t") as run:
            answer = ask(wire, provider, cs)
        assert [args for _, _, args in answer.calls] == [ARGS]
        assert [call.state for call in run.calls] == [CallState.RELEASED]
    assert log == ["ready"]


async def test_a_sync_client_that_blocks_the_loop_of_its_run_gets_a_run_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Callstream() as cs, serving("openai_chat", [WRITE]) as provider:
        async with cs.run("t", principal="ann") as run:
            with caplog.at_level(logging.WARNING, "callstream"):
                answer = ask("openai_chat", provider, cs)
        assert [args for _, _, args in answer.calls] == [ARGS]
        assert run.calls == []
        assert "asyncio.to_thread" in caplog.text
        (call,) = await cs.journal.calls(thread_id="t", principal="ann")
        assert call.run_id != run.run_id


async def test_a_loop_that_waits_for_the_thread_of_a_sync_client_is_blocked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownloop, "_ANSWER_SECONDS", 0.05)
    async with Callstream() as cs, serving("openai_chat", [WRITE]) as provider:
        async with cs.run("t") as run:
            with ThreadPoolExecutor(1) as pool:
                asking = pool.submit(contextvars.copy_context().run, ask, "openai_chat", provider, cs)
                assert [args for _, _, args in asking.result().calls] == [ARGS]
        assert run.calls == []
        assert len(await cs.journal.calls(thread_id="t")) == 1


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat"])
def test_a_sync_client_in_an_async_tool_is_refused_once(cs: Callstream, wire: str) -> None:
    """It would block the Callstream's own loop. Its SDK does not retry that, and passes on why."""

    @tool
    async def write(title: str, content: str) -> None:
        ask(wire, provider, cs, max_retries=2)

    cs.add_tool(write)
    with serving(wire, [WRITE]) as provider, cs.run("t") as run:
        ask(wire, provider, cs)
        with pytest.raises(UsageError, match="plain function"):
            run.invoke("c1")
        assert len(provider.requests) == 1


def test_a_sync_client_of_a_closed_callstream(cs: Callstream) -> None:
    with serving("anthropic", [WRITE]) as provider, sdk("anthropic", provider, cs, max_retries=2) as client:
        cs.close()
        with pytest.raises(UsageError, match="the Callstream is closed"):
            ask_client("anthropic", client)


async def test_a_sync_client_in_a_thread_belongs_to_the_run_of_the_loop() -> None:
    loops: list[Any] = []
    async with Callstream() as cs, serving("openai_chat", [WRITE]) as provider:

        async def ready(call: Any, signal: Any) -> None:
            loops.append(asyncio.get_running_loop())

        cs.on_args_complete("write", ready)
        async with cs.run("t") as run:
            await asyncio.to_thread(ask, "openai_chat", provider, cs)
            assert [call.state for call in run.calls] == [CallState.ARGS_COMPLETE]
    assert loops == [asyncio.get_running_loop()]


async def test_one_callstream_serves_both_kinds_of_client() -> None:
    async with Callstream() as cs, serving("openai_chat", [ToolCall("write", ARGS)]) as provider:
        await ask_async("openai_chat", provider, cs)
        await asyncio.to_thread(ask, "openai_chat", provider, cs)
        ask("openai_chat", provider, cs)
        await ask_async("openai_chat", provider, cs)
        assert len(await cs.journal.calls()) == 4
    assert "callstream-loop" not in [thread.name for thread in threading.enumerate()]


def test_parallel_calls_of_a_program_without_runs_are_answered_by_its_next_request(cs: Callstream) -> None:
    calls = [ToolCall("write", {"title": title}, call_id=title) for title in ("a", "b")]
    with (
        serving("anthropic", [[Parallel(calls)], [Text("Thanks.")]]) as provider,
        sdk("anthropic", provider, cs) as client,
    ):
        asked: list[Any] = [{"role": "user", "content": "go"}]
        message = client.messages.create(model="m", max_tokens=9, messages=asked)
        results: Any = [{"type": "tool_result", "tool_use_id": title, "content": "ok"} for title in ("a", "b")]
        asked += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        client.messages.create(model="m", max_tokens=9, messages=asked)
    assert [call.state for call in journaled(cs)] == [CallState.COMPLETED, CallState.COMPLETED]
