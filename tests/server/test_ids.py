"""Ids that clients choose."""

from __future__ import annotations

import pytest

from callstream import Callstream
from tests.adk.conftest import IGNORED

from .agents import Stepping
from .principals import called, refused
from .serving import run_input, served, tool_message

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]


@pytest.mark.parametrize("wrong", ["", "a\0b", "a\nb", "\x7f", "x" * 257, "\u202e", " \t"])
async def test_ids_that_a_client_chose_are_checked(cs: Callstream, wrong: str) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        for given in (
            {"threadId": wrong},
            {"runId": wrong},
            {"messages": [{**tool_message("c", 1), "toolCallId": wrong}]} if len(wrong) < 257 else {"runId": wrong},
            {"tools": [{"name": wrong, "description": "", "parameters": {}}]},
        ):
            refused(await server.post("/agui", json=run_input(**given)), 422)
        assert agent.inputs == []


@pytest.mark.parametrize("wrong", ["a\0~2", "a\nb~2", "x" * (16 * 1024) + "~2"])
async def test_ids_of_calls_in_a_history_are_checked(cs: Callstream, wrong: str) -> None:
    """They are looked up like all others."""
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        history = [{"id": "a", "role": "assistant", "toolCalls": [called("fine~2", "x", {}), called(wrong, "x", {})]}]
        answer = await server.post("/agui", json=run_input(messages=history))
        refused(answer, 422)
        assert "messages.0.toolCalls.1.id" in answer.text
        assert agent.inputs == []


async def test_ids_that_are_made_up_cannot_be_guessed(cs: Callstream) -> None:
    made = {cs.new_id("run") for _ in range(1000)}
    assert len(made) == 1000
    assert min(len(each) for each in made) >= 32
