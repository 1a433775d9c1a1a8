"""A model that falls silent under google-adk: the Callstream's ``idle`` ends its stream."""

from __future__ import annotations

import httpx
import pytest

from callstream import CallState, Callstream, Settings
from callstream.testing import Delay, Text, ToolCall

from .hosting import Host, Models, agent_of, scripted


async def test_a_silent_model_ends_with_a_time_out() -> None:
    ran: list[str] = []
    aborted: list[str] = []

    def write(content: str) -> None:
        """Writes."""
        ran.append(content)

    silent = [Text("I write."), ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=3), Delay(60)]
    async with Callstream(settings=Settings(idle=0.4)) as cs, scripted("gemini", [silent]) as provider:
        cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
        models = Models(cs)
        host = Host(cs, agent_of(models(provider), write))
        with pytest.raises(httpx.ReadTimeout, match="the stream to continue"):
            await host.run()
        (call,) = await host.calls()
        (run,) = await cs.journal.runs()
        await models.aclose()
    assert (call.state, call.reason, aborted, ran) == (CallState.DISCARDED, "interrupted", ["interrupted"], [])
    assert run.outcome == "failed"
