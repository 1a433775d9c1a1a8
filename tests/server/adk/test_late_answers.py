"""Two clients show the same question, and both answer: the first answer counts, and the other client gets to know it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream import Callstream, current_run
from callstream.adk import AGUIToolset
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.testing import Finish, Parallel, ToolCall
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.judge import LiveJudge
from tests.server.principals import by_name
from tests.server.serving import run_input, served, tool_message
from tests.server.yielding import ran

from .scenes import END, PAINT, SCENES, answers, says
from .test_official_client import accepted, staged

SAME = {"add": [answers("no")]}
OTHER = {"add": [{**answers("no"), "id": "another"}]}
YES = {"add": [answers("yes")]}
APPROVED = {"resume": [{"interruptId": "$0", "status": "resolved", "payload": {"approved": True}}]}
CANCELLED = {"resume": [{"interruptId": "$0", "status": "cancelled"}]}


@pytest.mark.parametrize(
    ("name", "first", "late"),
    [
        ("client_tool", YES, OTHER),
        ("client_tool", YES, SAME),
        ("pending_answered_with_a_message", YES, OTHER),
        ("interrupt_resumed", APPROVED, CANCELLED),
    ],
    ids=["client tool", "message with the same id", "question", "interrupt"],
)
async def test_a_client_whose_answer_comes_too_late_shows_the_one_that_counts(
    name: str, first: dict[str, Any], late: dict[str, Any], cs: Callstream, models: Models, live_judge: LiveJudge
) -> None:
    async with staged(SCENES[name], cs, models, live_judge) as stage:
        asked, answered = await stage.play("thread", {"how": "run", "add": says("Go")}, {"how": "run", **first})
        step = json.loads(json.dumps(late).replace("$0", asked_about(asked)))
        (told,) = await stage.play("thread", {"how": "run", **step, "add": [*asked["messages"], *step.get("add", [])]})
        (joined,) = await stage.play("thread", {"how": "connect"})
    assert accepted(told)["events"] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert shown(told) == shown(accepted(answered)) == shown(joined)


def asked_about(verdict: dict[str, Any]) -> str:
    (call,) = [call for message in verdict["messages"] for call in message.get("toolCalls", ())]
    return str(call["id"])


def shown(verdict: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["id"], each["role"], each.get("content"), each.get("toolCallId")) for each in verdict["messages"]]


async def test_an_answer_that_is_sent_again_with_another_one_was_not_too_late(cs: Callstream, models: Models) -> None:
    """A client sends all answers since the model spoke. The thread may have fewer of its messages, so it gets no snapshot."""
    both = Parallel([ToolCall("paint", {"color": "red"}), ToolCall("paint", {"color": "blue"})])
    async with scripted("gemini", [[both, Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()))
        async with served(agent) as server:
            asked = await ran(server, tools=[PAINT])
            one, two = asked[-1]["outcome"]["pendingToolCallIds"]
            sent = [tool_message(one, {"painted": True}), tool_message(two, "blue it is")]
            for count in (1, 2):
                events = await ran(server, None, messages=sent[:count], tools=[PAINT])
                assert "MESSAGES_SNAPSHOT" not in [event["type"] for event in events]


async def test_without_a_server_the_client_gets_it_too(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()))

        async def events_of(text: str | None, **given: Any) -> list[dict[str, Any]]:
            asked = RunAgentInput.model_validate(run_input(text, tools=[PAINT], **given))
            return [event.model_dump(mode="json", by_alias=True) async for event in agent.run(asked)]

        asked = await events_of("Go")
        [call_id] = asked[-1]["outcome"]["pendingToolCallIds"]
        await events_of(None, messages=[tool_message(call_id, "yes")])
        late = await events_of(None, messages=[tool_message(call_id, "no")])
        again = await events_of(None, messages=[tool_message(call_id, "yes")])
    assert [event["type"] for event in late] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert [each["content"] for each in late[1]["messages"] if each["role"] == "tool"] == ['"yes"']
    assert [event["type"] for event in again] == ["RUN_STARTED", "RUN_FINISHED"]


async def asks(given: RunAgentInput) -> AsyncIterator[Any]:
    """Asks in its first run."""
    run = current_run()
    assert run is not None
    if any(message.role == "user" for message in given.messages):
        call_id = f"q-{run.principal}"
        await run.record(
            [CallStarted(call_id, "ask", call_id), ArgsAppended(call_id, "{}"), CallCompleted(call_id, "{}")]
        )
        await run.await_answer(call_id)
    yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": run.run_id, "delta": "Done."}


async def test_an_agent_that_knows_nothing_of_it(cs: Callstream) -> None:
    async with served(asks, callstream=cs, auth=by_name) as server:
        server.headers = {"x-user": "ann"}
        await ran(server)
        await ran(server, None, messages=[tool_message("q-ann", "yes")])
        events = await ran(server, None, messages=[tool_message("q-ann", "no")])
        assert [event["type"] for event in events][-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert [each["content"] for each in events[-2]["messages"] if each["role"] == "tool"] == ["yes"]
        server.headers = {"x-user": "bob"}  # learns nothing about hers
        events = await ran(server, None, messages=[tool_message("q-ann", "no")], thread="bob's")
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_ERROR"]
