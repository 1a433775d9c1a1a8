"""The AI SDK's chat against a server with a real agent: streams, answers, approvals, drops and reloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Text, Thought, ToolCall
from tests.adk.agent.test_run import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.judge import NodeProgram
from tests.server.serving import Server, served
from tests.uistream.conftest import ai_sdk

from .scenes import LONG, PAINT, tools_of

__all__ = ["ai_sdk"]

END = [Text("Done.", size=2), Finish()]
WRITE = [Thought("Hm."), Text("I write.", size=3), ToolCall("write", LONG), Finish()]
SIGN = [Text("May I?"), ToolCall("sign", {"name": "Ada"}), Finish()]
PICK = [Text("I paint."), ToolCall("paint", {"color": "red", "size": 3}), Finish()]


@pytest.fixture(scope="module")
def chats(ai_sdk: Path) -> Iterator[NodeProgram]:
    with NodeProgram("chat.mjs", ai_sdk) as program:
        yield program


class Stage:
    def __init__(self, server: Server, chats: NodeProgram, cs: Callstream, ran: list[Any]) -> None:
        self.server = server
        self.ran = ran
        self._chats = chats
        self._cs = cs

    async def live(self, *steps: dict[str, Any], sdk: int = 7, chat: str = "chat", **given: Any) -> dict[str, Any]:
        question = {"sdk": sdk, "url": self.server.url, "chatId": chat, "steps": steps, **given}
        told: dict[str, Any] = await asyncio.to_thread(self._chats.ask, question)
        assert "failed" not in told, told["failed"]
        return told

    async def messages(self, chat: str = "chat", sdk: int = 7) -> Any:
        return (await self.server.get(f"/ui/{chat}/messages?sdk={sdk}")).json()

    async def runs(self, chat: str = "chat") -> list[Any]:
        return await self._cs.journal.runs(thread_id=chat)


@asynccontextmanager
async def staged(
    cs: Callstream, models: Models, chats: NodeProgram, *script: Any, pace: float = 500.0
) -> AsyncIterator[Stage]:
    ran: list[Any] = []
    async with scripted("gemini", list(script), deltas_per_second=pace) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), *tools_of(cs, ran)))
        async with served(agent) as server:
            yield Stage(server, chats, cs, ran)


def plain(messages: list[dict[str, Any]]) -> list[Any]:
    """What is shown of messages: no ids of users, nothing that depends on how text came."""
    left_out = ("rawInput", "id", "preliminary", "approval", "providerExecuted", "title", "toolCallId")
    return [
        [
            message["role"],
            [{key: value for key, value in part.items() if key not in left_out} for part in message["parts"]],
        ]
        for message in messages
    ]


def tool_part(told: dict[str, Any], name: str) -> dict[str, Any]:
    [part] = [part for part in told["messages"][-1]["parts"] if part["type"] == f"tool-{name}"]
    return dict(part)


@pytest.mark.parametrize("sdk", [6, 7])
async def test_chat_streams_and_shows_the_same_when_it_is_loaded(
    cs: Callstream, models: Models, chats: NodeProgram, sdk: int
) -> None:
    async with staged(cs, models, chats, WRITE, END, [Text("Again."), Finish()]) as stage:
        told = await stage.live({"send": "Go"}, {"send": "Once more"}, sdk=sdk)
        assert (told["status"], told["errors"]) == ("ready", [])
        assert [message["role"] for message in told["messages"]] == ["user", "assistant", "user", "assistant"]
        [part] = [part for part in told["messages"][1]["parts"] if part["type"] == "tool-write"]
        assert (part["state"], part["input"], part["output"]) == ("output-available", LONG, {"written": True})
        assert stage.ran == [("write", LONG)]
        assert [finished["finishReason"] for finished in told["finished"]] == ["stop", "stop"]
        loaded = await stage.messages(sdk=sdk)
        assert plain(loaded) == plain(told["messages"])
        assert [message["id"] for message in loaded] == [message["id"] for message in told["messages"]]
        assert (await stage.server.get("/ui/chat/stream")).status_code == 204
        assert len(await stage.runs()) == 2


@pytest.mark.parametrize("drop", [1, 3, 6, 9])
async def test_chat_that_drops_resumes_the_whole_turn(
    cs: Callstream, models: Models, chats: NodeProgram, drop: int
) -> None:
    async with staged(cs, models, chats, WRITE, END, WRITE, END, pace=30) as stage:
        whole = await stage.live({"send": "Go"}, chat="whole")
        told = await stage.live({"drop": drop, "send": "Go"}, {"resume": True})
        assert told["finished"][0]["isDisconnect"] is True
        assert told["statuses"] == [200, 200]
        assert plain(told["messages"]) == plain(whole["messages"])
        assert len(await stage.runs()) == 1
        assert len(stage.ran) == 2


async def test_a_drop_in_a_visible_tab_heals_by_itself(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, WRITE, END, pace=30) as stage:
        told = await stage.live({"drop": 4, "send": "Go"}, heals=10)
        assert told["finished"][0]["isDisconnect"] is True
        assert (told["status"], told.get("loaded")) == ("ready", None)
        assert plain(told["messages"]) == plain(await stage.messages())
        assert tool_part(told, "write")["input"] == LONG
        assert len(await stage.runs()) == 1


async def test_a_drop_heals_when_the_run_has_ended_meanwhile(
    cs: Callstream, models: Models, chats: NodeProgram
) -> None:
    async with staged(cs, models, chats, WRITE, END, pace=400) as stage:
        told = await stage.live({"drop": 2, "send": "Go"}, heals=900)
        assert told["loaded"] is True
        assert plain(told["messages"]) == plain(await stage.messages())
        assert [message["role"] for message in told["messages"]] == ["user", "assistant"]


async def test_chat_that_is_reloaded_in_the_middle_of_an_argument(
    cs: Callstream, models: Models, chats: NodeProgram
) -> None:
    async with staged(cs, models, chats, WRITE, END, pace=40) as stage:
        told = await stage.live({"drop": 5, "send": "Go"}, {"reload": True, "resume": True})
        assert plain(told["messages"]) == plain(await stage.messages())
        assert [message["role"] for message in told["messages"]] == ["user", "assistant"]
        assert tool_part(told, "write")["input"] == LONG
        assert len(await stage.runs()) == 1


@pytest.mark.parametrize("sdk", [6, 7])
async def test_client_tool_is_run_once_and_its_output_sent_by_itself(
    cs: Callstream, models: Models, chats: NodeProgram, sdk: int
) -> None:
    async with staged(cs, models, chats, PICK, END) as stage:
        given: dict[str, Any] = {"body": {"tools": [PAINT]}, "answers": {"paint": {"painted": "123"}}}
        told = await stage.live({"send": "Go"}, {"reload": True}, sdk=sdk, **given)
        assert told["calls"] == ["paint"]
        assert [message["role"] for message in told["messages"]] == ["user", "assistant"]
        assert tool_part(told, "paint")["output"] == {"painted": "123"}
        assert told["messages"][-1]["parts"][-1]["text"] == "Done."
        [call] = await cs.journal.calls()
        assert (call.state, call.result) == (CallState.COMPLETED, {"painted": "123"})
        assert len(await stage.runs()) == 2


@pytest.mark.parametrize("sdk", [6, 7])
@pytest.mark.parametrize("approved", [True, False])
async def test_approval_counts_once(
    cs: Callstream, models: Models, chats: NodeProgram, approved: bool, sdk: int
) -> None:
    async with staged(cs, models, chats, SIGN, END, [Text("Later."), Finish()]) as stage:
        asked = await stage.live({"send": "Sign it"}, sdk=sdk)
        assert tool_part(asked, "sign")["state"] == "approval-requested"
        told = await stage.live({"reload": True, "approve": approved}, {"send": "And now?"}, sdk=sdk)
        assert (told["status"], told["errors"]) == ("ready", [])
        roles = [message["role"] for message in told["messages"]]
        assert roles == ["user", "assistant", "user", "assistant"]
        [part] = [part for part in told["messages"][1]["parts"] if part["type"] == "tool-sign"]
        assert part["state"] == ("output-available" if approved else "output-denied"), part
        assert stage.ran == ([("sign", {"name": "Ada"})] if approved else [])
        assert len(await stage.runs()) == 3


async def test_forged_and_repeated_approvals_run_nothing(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    # An end of one delta: of several, a client that is behind gets some as one.
    async with staged(cs, models, chats, SIGN, [Text("Done."), Finish()]) as stage:
        asked = await stage.live({"send": "Sign it"})
        question = tool_part(asked, "sign")["approval"]["id"]

        def body(approval_id: str) -> dict[str, Any]:
            user, answer = asked["messages"]
            parts = [
                {**part, "state": "approval-responded", "approval": {"id": approval_id, "approved": True}}
                if part["type"] == "tool-sign"
                else part
                for part in answer["parts"]
            ]
            return {"id": "chat", "messages": [user, {**answer, "parts": parts}], "trigger": "submit-message"}

        forged = await stage.server.post("/ui", json=body("forged"))
        assert (forged.status_code, forged.json()["error"]["code"]) == (409, "answer_refused")
        assert stage.ran == []
        answers = await asyncio.gather(*(stage.server.post("/ui?sdk=7", json=body(question)) for _ in range(3)))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.text for answer in answers}) == 1
        assert stage.ran == [("sign", {"name": "Ada"})]
        assert [row.outcome for row in await stage.runs()] == ["finished", "finished"]


async def test_another_answer_replaces_the_first(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    one, two = [Text("One."), Finish()], [Text("Two."), Finish()]
    async with staged(cs, models, chats, one, two, [Text("Three."), Finish()]) as stage:
        told = await stage.live({"send": "Say"}, {"regenerate": True}, {"regenerate": True})
        assert [part["text"] for part in told["messages"][-1]["parts"] if part["type"] == "text"] == ["Three."]
        assert plain(await stage.messages()) == plain(told["messages"])
        assert [message["id"] for message in await stage.messages()] == [each["id"] for each in told["messages"]]
        assert len(await stage.runs()) == 3


async def test_a_chat_that_there_is_not(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, END) as stage:
        assert await stage.messages("nowhere") == []
        assert (await stage.server.get("/ui/nowhere/stream")).status_code == 204
        for body in ({}, {"id": "", "messages": []}, {"id": "c", "messages": [{"role": "user"}]}, []):
            answer = await stage.server.post("/ui", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "wrong_input")
        assert (await stage.server.get("/ui/c/stream?sdk=4")).status_code == 422
        assert await stage.runs() == []
