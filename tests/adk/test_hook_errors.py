"""A hook that raises under google-adk: its call does not run, its siblings do, and its error stays in the house."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, STREAMED, WHOLE, Host, Models, agent_of, responses_in, scripted


def note(text: str) -> str:
    return text.upper()


def other(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize("path", PATHS)
async def test_the_error_of_a_hook_is_logged_and_not_sent_to_the_provider(
    path: str, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(call: Any, signal: Any) -> None:
        raise ValueError("the password is 1234")

    cs.on_args_complete("note", break_down)
    calls = [ToolCall("note", {"text": "a"}, call_id="1"), ToolCall("other", {"text": "b"}, call_id="2")]
    async with scripted("gemini", [[*calls, Finish()], [Text("Done."), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider, path), note, other))
        events = await host.run()
        assert responses_in(events) == [
            ("1", {"error": "note did not run: the call was interrupted"}),
            ("2", {"result": "B"}),
        ]
        assert b"1234" not in provider.requests[-1].body
    assert [(call.name, call.state) for call in await host.calls()] == [
        ("note", CallState.DISCARDED),
        ("other", CallState.COMPLETED),
    ]
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
async def test_calls_independent_a_tool_does_not_wait_for_another_calls_hook(
    path: str, config: Any, cs: Callstream, models: Models
) -> None:
    ran = asyncio.Event()

    async def slow(call: Any, signal: Any) -> None:
        await ran.wait()

    async def quick(text: str) -> str:
        ran.set()
        return text

    cs.on_args_complete("note", slow)
    calls = [ToolCall("note", {"text": "a"}, call_id="1"), ToolCall("quick", {"text": "b"}, call_id="2")]
    async with scripted("gemini", [[*calls, Finish()], [Text("Done."), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider, path), note, quick))
        events = await host.run(config=config)
        assert responses_in(events) == [("1", {"result": "A"}), ("2", {"result": "b"})]
