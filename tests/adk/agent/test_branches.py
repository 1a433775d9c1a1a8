"""Agents beside each other and after each other: whose call it is, whatever branch google-adk's events name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.tools import FunctionTool, LongRunningFunctionTool, exit_loop
from google.adk.workflow import START, JoinNode, Workflow

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.testing import Finish, HttpError, Text, ToolCall
from tests.adk.hosting import Models, by_agent, scripted

from .agents import END, adk_agent, gemini
from .clients import Client


def after_parallel(model: Any, tool: Any, **options: Any) -> LlmAgent:
    """An agent that transfers to a sequence, whose last agent has the tool and comes after two that ran in parallel.

    google-adk names the branch of one of these in the last one's events, and none in its context.
    """

    def made(name: str, **given: Any) -> LlmAgent:
        return LlmAgent(name=name, model=model, instruction=name.upper(), **given)

    both = ParallelAgent(name="both", sub_agents=[made("left"), made("right")])
    steps = SequentialAgent(
        name="steps", description="does it", sub_agents=[both, made("last", tools=[tool], **options)]
    )
    return made("boss", sub_agents=[steps])


def scripts(last: list[Any]) -> Any:
    transfer = [ToolCall("transfer_to_agent", {"agent_name": "steps"}), Finish()]
    return by_agent(
        {"LEFT": [[Text("l"), Finish()]], "RIGHT": [[Text("r"), Finish()]], "LAST": last, "BOSS": [transfer]}
    )


def nothing() -> None:
    """Does something and says nothing."""


def number() -> int:
    """Gives a number."""
    return 1


def keep(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
    """A callback that changes nothing."""


@pytest.mark.parametrize(
    ("tool", "options", "result"),
    [
        (nothing, {}, '{"result":null}'),
        (exit_loop, {}, '{"result":null}'),
        (number, {"after_tool_callback": keep}, '{"result":1}'),
    ],
)
async def test_a_tool_after_parallel_agents_has_its_result(
    tool: Callable[..., Any], options: dict[str, Any], result: str, cs: Callstream, models: Models
) -> None:
    last = [[ToolCall(tool.__name__, {}), Finish()], END]
    async with scripted("gemini", scripts(last)) as provider:
        client = Client(adk_agent(cs, after_parallel(gemini(models, provider), tool, **options)))
        await client.send()
    assert [(call["name"], call["result"]) for call in client.calls()][1:] == [(tool.__name__, result)]
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


async def test_a_tool_after_parallel_agents_can_be_confirmed(cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    last = [[ToolCall("remove", {"path": "a"}), Finish()], END]
    async with scripted("gemini", scripts(last)) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        client = Client(adk_agent(cs, after_parallel(gemini(models, provider), tool)))
        await client.send()
        (question,) = client.pending()
        assert "result" not in next(call for call in client.calls() if call["name"] == "remove")
        await client.answer({question: {"confirmed": True}})
    assert ran == ["a"]
    assert client.text() == "Done."
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


def ask(path: str) -> None:
    """Asks."""


PICK = Tool(name="ask", description="Asks.", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


class Pair:
    """Two agents beside each other, each with a call that a person has to answer, and one that comes after them."""

    def __init__(self, shape: str, how: str, model: Any) -> None:
        self.removed: list[str] = []

        def remove(path: str) -> str:
            """Removes."""
            self.removed.append(path)
            return "removed"

        tools = {
            "long_running": LongRunningFunctionTool(ask),
            "client": AGUIToolset(),
            "confirmed": FunctionTool(remove, require_confirmation=True),
        }

        def made(name: str, *tools: Any) -> LlmAgent:
            return LlmAgent(name=name, model=model, instruction=name.upper(), tools=list(tools))

        left, right, last = made("left", tools[how]), made("right", tools[how]), made("last")
        self.agent: Any
        if shape == "workflow":
            join = JoinNode(name="join")
            self.agent = Workflow(name="flow", edges=[(START, (left, right)), ((left, right), join), (join, last)])
        else:
            self.agent = ParallelAgent(name="both", sub_agents=[left, right])
        if shape in ("sequence", "transfer"):
            self.agent = SequentialAgent(name="steps", sub_agents=[self.agent, last])
        if shape == "transfer":
            self.agent = LlmAgent(name="boss", model=model, instruction="BOSS", sub_agents=[self.agent])


def pair_scripts(how: str, call_id: str | None = None) -> Any:
    name = "remove" if how == "confirmed" else "ask"

    def script(word: str) -> list[Any]:
        return [[ToolCall(name, {"path": word}, call_id=call_id), Finish()], [Text(f"{word} has it. "), Finish()]]

    transfer = [ToolCall("transfer_to_agent", {"agent_name": "steps"}), Finish()]
    return by_agent(
        {"LEFT": script("left"), "RIGHT": script("right"), "LAST": [[Text("All done."), Finish()]], "BOSS": [transfer]}
    )


def hosted(cs: Callstream, agent: Any, *, resumable: bool) -> ADKAgent:
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    app = App(name="app", root_agent=agent, resumability_config=config)
    return ADKAgent.from_app(app, user_id="user", callstream=cs)


@pytest.mark.parametrize("resumable", [False, True], ids=["", "resumable"])
@pytest.mark.parametrize("how", ["long_running", "client", "confirmed"])
@pytest.mark.parametrize("shape", ["parallel", "sequence", "transfer", "workflow"])
async def test_one_request_answers_two_parallel_agents(
    shape: str, how: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    async with scripted("gemini", pair_scripts(how)) as provider:
        pair = Pair(shape, how, gemini(models, provider))
        client = Client(hosted(cs, pair.agent, resumable=resumable), tools=[PICK])
        await client.send()
        pending = client.pending()
        assert len(pending) == 2
        await client.answer({call_id: {"confirmed": True} for call_id in reversed(pending)})
        asked_last = any(b"LAST" in request.body for request in provider.requests)
    assert "left has it. " in client.text()
    assert "right has it. " in client.text()
    assert sorted(pair.removed) == (["left", "right"] if how == "confirmed" else [])
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}
    if shape == "workflow" or (shape == "sequence" and resumable):
        assert client.text().endswith("All done.")
    else:
        assert not asked_last  # google-adk continues the agents alone


@pytest.mark.parametrize("how", ["long_running", "confirmed"])
async def test_an_answer_that_google_adk_was_not_given_still_awaits(how: str, cs: Callstream, models: Models) -> None:
    """The agent before it fails; then the same messages bring the answer again."""
    fails = True

    def script(request: Any) -> Any:
        steps = answered(request)
        return [HttpError(400)] if fails and steps[0] == Text("left has it. ") else steps

    answered = pair_scripts(how)
    async with scripted("gemini", script) as provider:
        pair = Pair("parallel", how, gemini(models, provider))
        client = Client(hosted(cs, pair.agent, resumable=False))
        await client.send()
        pending = client.pending()
        events = await client.answer({call_id: {"confirmed": True} for call_id in pending})
        assert events[-1]["type"] == "RUN_ERROR"
        states = {call.call_id: call.state for call in await cs.journal.calls()}
        assert [states[call_id] for call_id in pending] == [CallState.COMPLETED, CallState.AWAITING]
        fails = False
        await client.run()
    assert "right has it. " in client.text()
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


@pytest.mark.parametrize("resumable", [False, True], ids=["", "resumable"])
@pytest.mark.parametrize("how", ["long_running", "confirmed"])
@pytest.mark.parametrize("shape", ["parallel", "sequence", "transfer", "workflow"])
async def test_two_parallel_agents_are_answered_one_after_the_other(
    shape: str, how: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    async with scripted("gemini", pair_scripts(how)) as provider:
        pair = Pair(shape, how, gemini(models, provider))
        client = Client(hosted(cs, pair.agent, resumable=resumable))
        await client.send()
        first, second = client.pending()
        await client.answer({second: {"confirmed": True}})
        said = client.text()
        assert "All done." not in said
        await client.answer({first: {"confirmed": True}})
        said += client.text()
    assert "left has it. " in said
    assert "right has it. " in said
    assert sorted(pair.removed) == (["left", "right"] if how == "confirmed" else [])
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}
    assert said.endswith("All done.") == (shape == "workflow" or (shape == "sequence" and resumable))


@pytest.mark.parametrize("resumable", [False, True], ids=["", "resumable"])
@pytest.mark.parametrize("how", ["long_running", "confirmed"])
@pytest.mark.parametrize("shape", ["parallel", "workflow"])
async def test_answers_reach_their_agents_although_the_models_use_one_id(
    shape: str, how: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    """A person says yes to one and no to the other. The models read their own ids again."""
    async with scripted("gemini", pair_scripts(how, call_id="0")) as provider:
        pair = Pair(shape, how, gemini(models, provider))
        client = Client(hosted(cs, pair.agent, resumable=resumable))
        await client.send()
        asked = {call["id"]: call for call in client.calls()}
        about = {
            call_id: asked[call_id]["args"].get("originalFunctionCall", asked[call_id])["args"]["path"]
            for call_id in client.pending()
        }
        assert sorted(about.values()) == ["left", "right"]
        await client.answer({call_id: {"confirmed": path == "left"} for call_id, path in about.items()})
        bodies = {
            path: next(r.json for r in reversed(provider.requests) if path.upper() in r.body.decode())
            for path in about.values()
        }
    for path, body in bodies.items():
        parts = [part for content in body["contents"] for part in content["parts"]]
        (call,) = (part["functionCall"] for part in parts if "functionCall" in part)
        (response,) = (part["functionResponse"] for part in parts if "functionResponse" in part)
        assert (call["id"], response["id"], call["args"]["path"]) == ("0", "0", path)
        if how == "long_running":
            assert response["response"] == {"confirmed": path == "left"}
    assert pair.removed == (["left"] if how == "confirmed" else [])
