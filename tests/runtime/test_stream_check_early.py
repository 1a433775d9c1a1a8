"""``check="stream"`` with a ``Streamed`` parameter: a tool that has begun learns that its call was discarded."""

from __future__ import annotations

import asyncio

import pytest

from callstream import CallRejected, CallState, Callstream, Streamed, tool
from callstream.errors import ArgumentsAborted
from callstream.testing import Finish, ToolCall, encode


async def test_a_fault_ends_a_tool_that_has_begun() -> None:
    began, ended = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    @tool(check="stream")
    async def write(title: str, content: Streamed[str], copies: int = 1) -> str:
        try:
            async for piece in content:
                heard.append(piece)
                began.set()
        except ArgumentsAborted as aborted:
            heard.append(aborted.reason)
            raise
        finally:
            ended.set()
        return "written"

    text = '{"title": "Tides", "content": "The moon pulls.", "copies": "two", "more": "much more"}'
    chunks = list(encode("anthropic", [ToolCall("write", text=text, call_id="c1"), Finish()]))
    middle = len(chunks) // 2
    async with Callstream(tools=[write]) as cs, cs.run("t") as run:
        async with run.response("anthropic") as response:
            for chunk in chunks[:middle]:
                await response.feed(chunk)
            await asyncio.wait_for(began.wait(), 10)
            for chunk in chunks[middle:]:
                await response.feed(chunk)
        await asyncio.wait_for(ended.wait(), 10)
        call = await run.settled("c1")
        assert (call.state, call.reason) == (CallState.DISCARDED, "invalid")
        assert "the argument 'copies' should be an integer, got a string" in (call.detail or "")
        with pytest.raises(CallRejected, match="copies"):
            await run.invoke("c1")
    assert heard[-1] == "invalid"
    assert "".join(heard[:-1]).startswith("The")
