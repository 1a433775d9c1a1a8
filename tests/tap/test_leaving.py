"""Programs that leave a stream before its end, and then end themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream import Callstream
from callstream.testing import Call, ScriptedProvider, Text
from callstream.wire import WIRES
from tests.tap.clients import sdk

SCRIPT = [Text("one two three " * 20, size=4), Call("write", {"text": "x" * 500}, call_id="c1")]
MESSAGES: Any = [{"role": "user", "content": "go"}]


async def first_event(wire: str, client: Any) -> None:
    match wire:
        case "anthropic":
            stream = await client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
        case "openai_chat":
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        case "openai_responses":
            stream = await client.responses.create(model="m", input="go", stream=True)
        case _:
            stream = await client.aio.models.generate_content_stream(model="gemini-3", contents="go")
    async for _ in stream:
        break


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_leaving_a_stream_early_logs_nothing_at_shutdown(
    wire: str, in_run: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        cs = Callstream()
        async with ScriptedProvider(wire, SCRIPT) as provider:
            async with sdk(wire, provider, cs, client=cs.http_client) as client:
                if in_run:
                    async with cs.run("thread"):
                        await first_event(wire, client)
                else:
                    await first_event(wire, client)
        await cs.aclose()

    asyncio.run(program())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
