"""What a model may write in a run, and what becomes of a run that writes more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from callstream import Call, CallState, Callstream, Settings, testing
from callstream.errors import LimitExceeded, RunOver
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallStarted,
    MessageStarted,
    ReasoningAppended,
    RunEnded,
    TextAppended,
)
from callstream.runtime import TextLimits


def limited(**limits: int) -> Callstream:
    return Callstream(settings=Settings(**limits))


async def ended(cs: Callstream, run_id: str) -> RunEnded:
    records = [record.event async for record in cs.journal.follow(run_id)]
    assert isinstance(records[-1], RunEnded)
    return records[-1]


async def test_arguments_beyond_the_limit_fail_the_run_and_discard_the_call() -> None:
    async with limited(max_args_bytes=10) as cs:
        run = await cs.start("thread")
        stopped: list[str] = []
        run.on_stop(stopped.append)
        await run.record([CallStarted("a", "write"), ArgsAppended("a", '{"x":"12')])
        await run.record([CallStarted("b", "write"), ArgsAppended("b", '{"y":"34')])
        with pytest.raises(LimitExceeded, match="more than 10 bytes of arguments for call 'a'") as raised:
            await run.record([ArgsAppended("a", "345")])
        assert raised.value.limit == "max_args_bytes"
        end = await ended(cs, run.run_id)
        assert end.outcome == "failed"
        assert "max_args_bytes" in (end.reason or "")
        for call_id in ("a", "b"):
            call = await cs.journal.call(call_id)
            assert call is not None
            assert (call.state, call.reason) == (CallState.DISCARDED, "interrupted")
            assert "10 bytes" in (call.detail or "")
        kept = await cs.journal.call("a")
        assert kept is not None
        assert kept.args_json == '{"x":"12'
        assert len(stopped) == 1
        await run.finish()
        assert run.outcome == "failed"
        with pytest.raises(RunOver):
            await run.execute("a")


async def test_exactly_the_limit_is_allowed() -> None:
    async with limited(max_args_bytes=10, max_run_bytes=10) as cs, cs.run("thread") as run:
        await run.record([CallStarted("a", "write"), ArgsAppended("a", "12345"), ArgsAppended("a", "67890")])
        assert run.args_bytes("a") == 10


async def test_run_bytes_count_text_reasoning_and_arguments() -> None:
    async with limited(max_run_bytes=10) as cs:
        run = await cs.start("thread")
        await run.record([MessageStarted("m"), TextAppended("m", "four"), ReasoningAppended("m", "four")])
        await run.record([CallStarted("a", "write"), ArgsAppended("a", "{}")])
        with pytest.raises(LimitExceeded, match="10 bytes in this run"):
            await run.record([TextAppended("m", "x")])
        assert (await ended(cs, run.run_id)).outcome == "failed"


@pytest.mark.parametrize("text", ["ü", "\U0001f600", "\ud800"])
async def test_bytes_are_those_of_utf_8(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    async with limited(max_args_bytes=size - 1) as cs:
        run = await cs.start("thread")
        with pytest.raises(LimitExceeded):
            await run.record([CallStarted("a", "write", encoding="text"), ArgsAppended("a", text)])
        await ended(cs, run.run_id)


async def test_a_run_may_be_told_less_and_never_more() -> None:
    async with limited(max_args_bytes=10) as cs:
        run = await cs.start("thread")
        run.tighten(TextLimits(max_args_bytes=100, max_run_bytes=5))
        with pytest.raises(LimitExceeded, match="5 bytes in this run"):
            await run.record([CallStarted("a", "write"), ArgsAppended("a", "123456")])
        other = await cs.start("thread")
        other.tighten(TextLimits(max_args_bytes=100))
        with pytest.raises(LimitExceeded, match="10 bytes of arguments"):
            await other.record([CallStarted("b", "write"), ArgsAppended("b", "12345678901")])
        await ended(cs, run.run_id)
        await ended(cs, other.run_id)


async def test_hooks_of_a_call_beyond_the_limit_hear_of_its_end() -> None:
    aborted: list[tuple[str, str]] = []

    async def undo(call: Call, reason: str) -> None:
        aborted.append((call.call_id, reason))

    async with limited(max_args_bytes=4) as cs:
        cs.on_args_abort("write", undo)
        run = await cs.start("thread")
        await run.record([CallStarted("a", "write"), ArgsAppended("a", "{")])
        with pytest.raises(LimitExceeded):
            await run.record([ArgsAppended("a", '"xxxxxx":1}'), CallCompleted("a", '{"xxxxxx":1}')])
        await run.finish()
        assert aborted == [("a", "interrupted")]
        assert run.outcome == "failed"
        assert run.reason is not None
        assert run.reason.startswith("LimitExceeded")


async def test_whoever_swallows_the_error_does_not_save_the_run() -> None:
    async with limited(max_run_bytes=4) as cs:
        async with cs.run("thread") as run:
            for _ in range(3):
                try:
                    await run.record([MessageStarted("m"), TextAppended("m", "hello")])
                except (LimitExceeded, RunOver):
                    await asyncio.sleep(0)
        assert run.outcome == "failed"


async def test_upstream_is_closed_and_the_tool_never_runs() -> None:
    """Over the tap: a model that writes without end is cut off."""
    executed: list[Any] = []

    def write(content: str) -> str:
        executed.append(content)
        return "written"

    cs = Callstream(tools=[write], settings=Settings(max_args_bytes=1000))
    script = [testing.ToolCall("write", {"content": "x" * 100_000}), testing.Finish()]
    async with cs, testing.ScriptedProvider("anthropic", script, deltas_per_second=2000) as provider:
        client = AsyncAnthropic(
            api_key="none", base_url=provider.base_url, http_client=cs.httpx2_client(), max_retries=0
        )
        with pytest.raises(LimitExceeded):
            await read(cs, client)
        [row] = await cs.journal.runs()
        assert row.outcome == "failed"
        [listed] = await cs.journal.calls()
        made = await cs.journal.call(listed.call_id)
        assert made is not None
        assert made.state is CallState.DISCARDED
        assert 0 < len(made.args_json or "") <= 1000
        assert executed == []
        async with asyncio.timeout(10):
            while provider.requests[0].fate == "open":  # noqa: ASYNC110  the provider has a thread of its own
                await asyncio.sleep(0.01)
        assert provider.requests[0].fate == "left"
        await client.close()


async def read(cs: Callstream, client: AsyncAnthropic) -> None:
    asked: Any = {"model": "m", "max_tokens": 100_000, "messages": [{"role": "user", "content": "Go"}]}
    async with cs.run("thread"), client.messages.stream(**asked) as stream:
        await stream.get_final_message()
