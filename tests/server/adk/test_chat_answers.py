"""Answers through the AI SDK's chat, sent by itself: each counts once; forged, stale and repeated ones run nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Parallel, Text, ToolCall
from tests.adk.hosting import Models
from tests.agui.judge import NodeProgram
from tests.server.agents import Stepping
from tests.server.serving import served
from tests.uistream.conftest import ai_sdk

from .scenes import PAINT
from .test_chat import END, PICK, SIGN, Stage, chats, plain, staged, tool_part

__all__ = ["ai_sdk", "chats"]

SIGNED = ("sign", {"name": "Ada"})
TOOLS: dict[str, Any] = {"body": {"tools": [PAINT]}}


async def states(cs: Callstream) -> dict[str, CallState]:
    return {call.name: call.state for call in await cs.journal.calls()}


@pytest.mark.parametrize("sdk", [6, 7])
async def test_an_approval_and_a_tool_of_the_page_in_one_step(
    cs: Callstream, models: Models, chats: NodeProgram, sdk: int
) -> None:
    """Nothing is sent before both are answered; then both count, once."""
    both = [Parallel([ToolCall("paint", {"color": "red"}), ToolCall("sign", {"name": "Ada"})]), Finish()]
    async with staged(cs, models, chats, both, END, END) as stage:
        told = await stage.live({"send": "Go"}, sdk=sdk, answers={"paint": {"painted": True}}, **TOOLS)
        assert (told["calls"].count("paint"), told["errors"], len(await stage.runs())) == (1, [], 1)
        told = await stage.live({"approve": True}, {"send": "And?"}, messages=told["messages"], sdk=sdk, **TOOLS)
        assert (told["status"], told["errors"], told["calls"]) == ("ready", [], [])
        assert stage.ran == [SIGNED]
        found = await states(cs)
        assert (found["paint"], found["sign"]) == (CallState.COMPLETED, CallState.COMPLETED)
        parts = {part["type"]: part["state"] for part in told["messages"][1]["parts"] if "toolCallId" in part}
        assert parts == {"tool-paint": "output-available", "tool-sign": "output-available"}


async def test_an_error_of_a_tool_of_the_page(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, PICK, END) as stage:
        failed = {"tool": "paint", "state": "output-error", "errorText": "no paint"}
        told = await stage.live({"send": "Go"}, {"output": failed}, **TOOLS)
        assert (told["status"], told["errors"]) == ("ready", [])
        assert tool_part(told, "paint")["state"] == "output-error"
        [call] = await cs.journal.calls()
        assert (call.state, call.error) == (CallState.FAILED, "no paint")
        assert len(await stage.runs()) == 2


async def test_an_output_that_is_no_approval(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    """Who may say yes or no may not say what the server's tool returned."""
    async with staged(cs, models, chats, SIGN, END, END) as stage:
        asked = await stage.live({"send": "Sign it"})
        forged = {"tool": "sign", "output": "signed by somebody else"}
        await stage.live({"output": forged}, messages=asked["messages"])
        assert stage.ran == []
        assert CallState.COMPLETED not in (await states(cs)).values()
        told = await stage.live({"reload": True, "approve": True})
        assert tool_part(told, "sign")["output"] == {"result": "signed"}
        assert stage.ran == [SIGNED]


@pytest.mark.parametrize("answer", ["approve", "output"])
async def test_an_answer_to_a_call_that_there_is_not(
    cs: Callstream, models: Models, chats: NodeProgram, answer: str
) -> None:
    async with staged(cs, models, chats, SIGN if answer == "approve" else PICK, END, END) as stage:
        asked = await stage.live({"send": "Go"}, **TOOLS)
        step = {"output": {"tool": "paint", "toolCallId": "forged", "output": "mine"}}
        if answer == "approve":
            step = {"approve": True, "id": "forged"}  # type: ignore[dict-item]
        told = await stage.live(step, messages=asked["messages"], **TOOLS)
        assert told["status"] == "error", told
        assert stage.ran == []
        assert CallState.AWAITING in (await states(cs)).values()


async def test_a_tab_that_is_out_of_date_approves_again(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, SIGN, END, END) as stage:
        asked = await stage.live({"send": "Sign it"})
        first = await stage.live({"approve": True}, messages=asked["messages"])
        assert (first["status"], stage.ran) == ("ready", [SIGNED])
        for approved in (True, False):  # the same answer, and another one
            again = await stage.live({"approve": approved}, messages=asked["messages"])
            assert (again["status"], again["requests"]) == ("ready" if approved else "error", 1)
            assert stage.ran == [SIGNED]
            assert len(await stage.runs()) == 2
            assert tool_part({"messages": await stage.messages()}, "sign")["state"] == "output-available"


async def test_a_tab_that_is_out_of_date_has_another_output(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, PICK, END, END) as stage:
        asked = await stage.live({"send": "Go"}, **TOOLS)
        for output in ("first", "second", "first"):
            step = {"output": {"tool": "paint", "output": output}}
            told = await stage.live(step, messages=asked["messages"], **TOOLS)
            assert (told["status"], told["requests"]) == ("ready" if output == "first" else "error", 1)
            assert len(await stage.runs()) == 2
            [call] = await cs.journal.calls()
            assert (call.state, call.result) == (CallState.COMPLETED, "first")


async def test_two_answers_at_once(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    """Two tabs, one says yes and one says no: one of them is heard."""
    async with staged(cs, models, chats, SIGN, END, [Text("And?"), Finish()]) as stage:
        asked = await stage.live({"send": "Sign it"})

        def body(approved: bool) -> dict[str, Any]:
            user, answer = asked["messages"]
            parts = [
                {**part, "state": "approval-responded", "approval": {**part["approval"], "approved": approved}}
                if part["type"] == "tool-sign"
                else part
                for part in answer["parts"]
            ]
            return {"id": "chat", "messages": [user, {**answer, "parts": parts}], "trigger": "submit-message"}

        await asyncio.gather(*(stage.server.post("/ui?sdk=7", json=body(approved)) for approved in (True, False, True)))
        [call] = [call for call in await cs.journal.calls() if call.name == "sign"]
        assert stage.ran == ([SIGNED] if call.state is CallState.COMPLETED else [])


@pytest.mark.parametrize("sdk", [6, 7])
async def test_a_run_that_ends_with_a_call_is_not_continued_for_ever(
    cs: Callstream, chats: NodeProgram, sdk: int
) -> None:
    """Of an agent that has nothing to say after its tool."""
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        stage = Stage(server, chats, cs, [])
        told = await stage.live({"send": "Go"}, sdk=sdk)
        assert (told["status"], told["errors"], told["requests"]) == ("ready", [], 1)
        assert tool_part(told, "write")["state"] == "output-available"
        assert plain(await stage.messages(sdk=sdk)) == plain(told["messages"])
    assert len(agent.executed) == 1
