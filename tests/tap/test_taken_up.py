"""Background responses of OpenAI: a stream that broke off is taken up with ``responses.retrieve(stream=True)``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from callstream import Callstream
from callstream.calls import CallState
from callstream.events import TextAppended
from callstream.runtime.engine import OnRejected
from callstream.testing import ScriptedProvider, Text, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import encode
from tests.sdks import SDKS

WIRE = "openai_responses"
ARGS = {"title": "Notes", "content": "one two three"}
SCRIPT = [ToolCall("write", ARGS, call_id="c1"), Text("Done.")]
FRAMES = list(encode(WIRE, SCRIPT))
LIVE = next(number for number, frame in enumerate(FRAMES) if b"arguments.delta" in frame) + 2
"""In the middle of the call."""


@pytest.mark.parametrize("start", [0, LIVE])
async def test_a_call_of_a_stream_that_is_taken_up_is_whole(cs: Callstream, start: int) -> None:
    """From the beginning, or from where the first reading broke off."""
    bodies = [FRAMES[:LIVE], FRAMES[start:]]
    async with BodiesProvider(WIRE, bodies) as provider, cs.httpx_client(collapse="all", ask_again=0) as http:
        client = AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=http, max_retries=0)
        async with cs.run("t"):
            created: Any = await client.responses.create(model="gpt-5", input="go", background=True, stream=True)
            async for _ in created:
                pass
            retrieved: Any = await client.responses.retrieve("resp_1", stream=True, starting_after=start)
            answer = SDKS[WIRE].fold([event async for event in retrieved])
        asked = provider.requests[1]
    assert (asked.method, asked.query["stream"]) == ("GET", "true")
    assert (answer.calls, answer.text) == ([("c1", "write", ARGS)], "Done.")
    first, second = await cs.journal.calls()
    assert (first.state, first.reason) == (CallState.DISCARDED, "truncated")
    taken_up = await cs.journal.call(second.call_id)
    assert taken_up is not None
    assert (taken_up.provider_id, json.loads(taken_up.args_json or "")) == ("c1", ARGS)
    assert taken_up.state is not CallState.DISCARDED or taken_up.reason == "aborted"


@pytest.mark.parametrize("rejected", ["raise", "say"])
async def test_a_response_that_is_looked_at_is_not_read(cs: Callstream, rejected: OnRejected) -> None:
    """A program that waits for a background response looks at it again and again."""
    async with ScriptedProvider(WIRE, SCRIPT) as provider, cs.httpx_client(collapse="all") as http:
        client = AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=http, max_retries=0)
        async with cs.run("t", rejected=rejected) as run:
            response = await client.responses.retrieve("resp_1")
    assert [item.type for item in response.output] == ["function_call", "message"]
    assert not [record async for record in cs.journal.read(run.run_id) if isinstance(record.event, TextAppended)]
    assert await cs.journal.calls() == []
