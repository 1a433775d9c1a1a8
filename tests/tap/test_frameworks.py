"""Frameworks that stream their structured output through a tool of their own: the tap leaves that tool alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from callstream import CallState, Callstream
from callstream.testing import ScriptedProvider, ToolCall

pydantic_ai = pytest.importorskip("pydantic_ai")
pydantic = pytest.importorskip("pydantic")

REPORT = {"title": "Tides", "content": "The moon pulls, and the sea follows. " * 6}


class Report(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    title: str
    content: str


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream() as callstream:
        callstream.on_args_delta("write_document", lambda delta, signal: None)
        yield callstream


async def partials(cs: Callstream | None) -> list[Any]:
    """What Pydantic AI shows of its structured output while the model writes it."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with ScriptedProvider("anthropic", [ToolCall("final_result", REPORT, call_id="c1")]) as provider:
        http_client = None if cs is None else cs.httpx2_client()
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http_client) as client:
            model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))
            agent = pydantic_ai.Agent(model, output_type=pydantic_ai.ToolOutput(Report))
            async with agent.run_stream("go") as answer:
                return [shown async for shown in answer.stream_output(debounce_by=None)]


async def test_output_schema_still_streams_under_pydantic_ai(cs: Callstream) -> None:
    tapped = await partials(cs)
    plain = await partials(None)
    assert tapped[-1] == plain[-1] == Report(**REPORT)
    assert len(tapped) == len(plain) > 10
    (call,) = await cs.journal.calls()
    kept = await cs.journal.call(call.call_id)
    assert kept is not None
    assert (kept.name, kept.args) == ("final_result", REPORT)
    assert kept.state is CallState.ARGS_COMPLETE
