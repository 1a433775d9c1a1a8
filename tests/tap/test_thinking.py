"""Reasoning on its way to the SDK, and out of later requests if it led to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from callstream import Callstream, tool
from callstream.testing import Delay, ScriptedProvider, Text, Thought, ToolCall

ARGS = {"title": "Tides"}
LIVE: Any = [Thought("Hm. So it is.", size=3), Delay(60), ToolCall("write", ARGS)]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


@tool
async def write(title: str) -> str:
    """Writes a document."""
    return "written"


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream(tools=[write]) as made:
        yield made


async def test_anthropics_thinking_is_live(cs: Callstream) -> None:
    async with (
        ScriptedProvider("anthropic", LIVE) as provider,
        anthropic.AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.httpx2_client()) as client,
        asyncio.timeout(10),
        await client.messages.create(
            model="m",
            max_tokens=2000,
            thinking=THINKING,
            messages=[{"role": "user", "content": "go"}],
            tools=[write.schema("anthropic")],
            stream=True,
        ) as stream,
    ):
        delta = await anext(event.delta async for event in stream if event.type == "content_block_delta")
    assert delta.type == "thinking_delta"


@pytest.mark.parametrize("store", [True, False])
async def test_openais_reasoning_is_live(cs: Callstream, store: bool) -> None:
    tools: Any = [write.schema("openai_responses")]
    async with (
        ScriptedProvider("openai_responses", LIVE) as provider,
        openai.AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client,
        asyncio.timeout(10),
        await client.responses.create(model="m", input="go", tools=tools, stream=True, store=store) as stream,
    ):
        delta = await anext(event.type async for event in stream if event.type.endswith(".delta"))
    assert delta.startswith("response.reasoning")


async def test_thinking_that_led_to_a_refused_call_is_not_sent_back(cs: Callstream) -> None:
    """Not even in another run, to which the program brings its history."""
    script: Any = [
        [Thought("Hm.", signature="s"), ToolCall("write", {"title": 3})],
        [Thought("Ah.", signature="t"), ToolCall("write", ARGS, call_id="good")],
        [Text("Done.")],
    ]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with (
        ScriptedProvider("anthropic", script) as provider,
        anthropic.AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.httpx2_client()) as client,
    ):
        for _ in range(2):
            async with (
                cs.run("thread"),
                client.messages.stream(
                    model="m",
                    max_tokens=2000,
                    thinking=THINKING,
                    messages=messages,
                    tools=[write.schema("anthropic")],
                ) as stream,
            ):
                answer = await stream.get_final_message()
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            messages.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "good", "content": "written"}]}
            )
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "thinking", "tool_use"]
    sent = provider.requests[-1].json["messages"][1]["content"]
    assert [block.get("thinking") for block in sent] == ["Ah.", None]
