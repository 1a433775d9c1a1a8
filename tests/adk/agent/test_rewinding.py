"""Turns that were rewound, and sessions that are gone: what was asked in them cannot be answered, and is not run again."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import LongRunningFunctionTool

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import Host, Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client, kinds

ASK = [ToolCall("approve", {"what": "x"}), Finish()]


def approve(what: str) -> None:
    """Asks a person."""


async def rewind(sessions: InMemorySessionService, runner: Runner, session_id: str) -> None:
    session = await sessions.get_session(app_name="app", user_id="user", session_id=session_id)
    assert session is not None
    turn = next(event.invocation_id for event in session.events if event.get_function_calls())
    await runner.rewind_async(user_id="user", session_id=session_id, rewind_before_invocation_id=turn)


@pytest.mark.parametrize("host_kind", ["plugin", "agent"])
async def test_a_question_of_a_rewound_turn_awaits_nothing(host_kind: str, cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [ASK, END]) as provider:
        model = models(provider) if host_kind == "plugin" else gemini(models, provider)
        root = agent_of(model, LongRunningFunctionTool(approve))
        if host_kind == "plugin":
            host = Host(cs, root, sessions=sessions)
            await host.run()
            (session,) = (await sessions.list_sessions(app_name="app")).sessions
            turn = (await cs.journal.runs())[0].run_id
            await host.runner.rewind_async(
                user_id=session.user_id, session_id=session.id, rewind_before_invocation_id=turn
            )
            await host.run("Something else")
        else:
            agent = adk_agent(cs, root, session_service=sessions)
            client = Client(agent)
            await client.send()
            runner = Runner(app_name="app", agent=root, session_service=sessions)
            await rewind(sessions, runner, "thread")
            assert kinds(await client.send("Something else"))[-1] == "RUN_FINISHED"
        (call,) = await cs.journal.calls()
        assert (call.state, call.reason) == (CallState.DISCARDED, "aborted")
        assert call.detail == "the conversation was rewound to before this call"


async def test_an_answer_to_a_question_of_a_rewound_turn_is_refused(cs: Callstream, models: Models) -> None:
    sessions = InMemorySessionService()
    async with scripted("gemini", [ASK, END]) as provider:
        root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
        client = Client(adk_agent(cs, root, session_service=sessions))
        await client.send()
        (asked,) = client.pending()
        await rewind(sessions, Runner(app_name="app", agent=root, session_service=sessions), "thread")
        events = await client.answer({asked: {"approved": True}})
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "answer_refused")
        assert len(provider.requests) == 1


@pytest.mark.parametrize("more", [False, True])
async def test_a_message_does_not_run_again_beside_an_answer_whose_session_is_gone(
    more: bool, cs: Callstream, models: Models
) -> None:
    """As some clients send it: the user's message and the answer, without the call between them."""
    async with scripted("gemini", [ASK, [Text("Later."), Finish()]]) as provider:
        root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
        client = Client(adk_agent(cs, root))
        await client.send("Erase everything")
        (asked,) = client.pending()
        later = Client(adk_agent(cs, root))  # with sessions of its own, as after a restart
        later.messages = [message for message in client.messages if message["role"] == "user"]
        answer: dict[str, Any] = {"id": "answer", "role": "tool", "toolCallId": asked, "content": "{}"}
        later.messages.append(answer)
        if more:
            later.messages.append({"id": "new", "role": "user", "content": "And now?"})
        events = [event.model_dump(mode="json", by_alias=True) async for event in later.agent.run(later.input())]
        if not more:
            assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "answer_refused")
            assert len(provider.requests) == 1
            return
        assert events[-1]["type"] == "RUN_FINISHED"
        received = [call for run in (await cs.journal.runs())[:1] for call in await texts_of(cs, run.run_id)]
        assert received == ["And now?"]


async def texts_of(cs: Callstream, run_id: str) -> list[str]:
    return [
        record.event.text
        async for record in cs.journal.read(run_id)
        if type(record.event).__name__ == "MessageReceived"
    ]
