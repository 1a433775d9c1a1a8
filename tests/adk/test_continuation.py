"""Gemini's long answers under google-adk: what google-genai asks for in several requests is one response."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types

from callstream import Callstream, tool
from callstream.calls import CallState
from callstream.events import MessageStarted, TextAppended
from callstream.testing import Text, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import encode

from .hosting import PATHS, Host, Models, agent_of, responses_in

ARGS = {"title": "Tides", "content": "The moon pulls."}
ANSWER = list(encode("gemini", [Text("I write."), ToolCall("write", ARGS)]))
LAST = list(encode("gemini", [Text("Done.")]))
FOLLOWS = "automatic_continuation" in types.GenerateContentConfig.model_fields


def limit(token: str = "dG9rZW4=") -> bytes:
    candidate = {"content": {"role": "model", "parts": []}, "finishReason": "CONTINUATION", "continuationToken": token}
    return b"data: " + json.dumps({"candidates": [candidate]}).encode() + b"\r\n\r\n"


def writer(executed: list[Any]) -> Any:
    @tool
    async def write(title: str, content: str) -> dict[str, Any]:
        """Writes a document."""
        executed.append({"title": title, "content": content})
        return {"words": 3}

    return write


@pytest.mark.skipif(not FOLLOWS, reason="this google-genai does not ask for the rest")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("place", range(1, len(ANSWER)))
async def test_a_call_in_two_answers_runs_once_and_whole(place: int, path: str, cs: Callstream, models: Models) -> None:
    executed: list[Any] = []
    async with BodiesProvider("gemini", [[*ANSWER[:place], limit()], ANSWER[place:], LAST]) as provider:
        host = Host(cs, agent_of(models(provider, path), writer(executed)))
        events = await host.run()
        assert len(provider.requests) == 3
    (call,) = await host.calls()
    assert (call.state, call.args, executed) == (CallState.COMPLETED, ARGS, [ARGS])
    assert [response for _, response in responses_in(events)] == [{"words": 3}]
    recorded = await host.events()
    assert sum(isinstance(event, MessageStarted) for event in recorded) == 2
    assert "".join(event.text for event in recorded if isinstance(event, TextAppended)) == "I write.Done."


async def test_a_call_whose_rest_is_not_asked_for_is_cut_off(cs: Callstream, models: Models) -> None:
    """The model learns of it, and calls once more."""
    executed: list[Any] = []
    config = types.GenerateContentConfig(automatic_continuation=False) if FOLLOWS else None
    async with BodiesProvider("gemini", [[*ANSWER[:5], limit()], ANSWER, LAST]) as provider:
        host = Host(cs, agent_of(models(provider), writer(executed), generate_content_config=config))
        await host.run()
    assert [call.reason for call in await host.calls()] == ["truncated", None]
    assert executed == [ARGS]
