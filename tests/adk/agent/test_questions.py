"""Questions that a workflow of google-adk asks, or a tool after an answer: they reach the client, and its answers them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk import __version__
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.workflow import START, FunctionNode, Workflow, node

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.testing import Finish, ToolCall
from tests.adk.hosting import Host, Models, agent_of, function_calls_in, scripted
from tests.adk.hosting import answer as response

from .agents import END, adk_agent, gemini
from .asking import COLOR, Painting, asked_in, reply
from .clients import Client, kinds
from .clienttools import responses_in

VERSION = tuple(int(number) for number in __version__.split(".")[:2])

# -- a workflow asks --


@pytest.mark.parametrize("interrupts", [False, True])
async def test_questions_reach_the_client_request_input(interrupts: bool, cs: Callstream) -> None:
    painting = Painting(response_schema=COLOR)
    client = Client(adk_agent(cs, painting.workflow, emit_interrupt_outcome=interrupts))
    await client.send()
    asked = asked_in(client, interrupts=interrupts)
    assert asked["name"] == "adk_request_input"
    assert (asked["args"]["message"], asked["args"]["payload"]) == ("Which color?", {"choices": ["red"]})
    assert asked["args"]["response_schema"] == COLOR
    if interrupts:
        interrupt = asked["interrupt"]
        assert (interrupt["reason"], interrupt["message"]) == ("input_required", "Which color?")
        assert interrupt["responseSchema"] == COLOR
        assert interrupt["metadata"]["payload"] == {"choices": ["red"]}
    await reply(client, asked["id"], {"color": "red"}, interrupts=interrupts)
    assert painting.painted == [{"color": "red"}]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"color": "red"})
    # Again: nothing happens.
    await client.run()
    assert painting.painted == [{"color": "red"}]


@pytest.mark.parametrize(
    ("schema", "said", "taken"),
    [
        (None, "blue", "blue"),
        (None, "3", 3),
        ({"type": "string"}, "blue", "blue"),
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, '"quoted"', "quoted"),
        ({"type": "integer"}, "3", 3),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "OBJECT"}, '{"a": 1}', {"a": 1}),
    ],
)
async def test_request_input_takes_text_and_json(schema: Any, said: str, taken: Any, cs: Callstream) -> None:
    painting = Painting(response_schema=schema)
    client = Client(adk_agent(cs, painting.workflow))
    await client.send()
    await client.answer({client.pending()[0]: said})
    assert painting.painted == [taken]


async def test_answer_that_a_workflow_did_not_ask_for_is_refused(cs: Callstream) -> None:
    """google-adk would keep it and fail on it, now and ever after."""
    painting = Painting(response_schema=COLOR)
    client = Client(adk_agent(cs, painting.workflow))
    await client.send()
    (asked,) = client.pending()
    events = await client.answer({asked: {"colour": "red"}})
    assert (kinds(events), events[0]["code"]) == (["RUN_ERROR"], "answer_refused")
    assert "'color' is a required property" in events[0]["message"]
    assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING]
    client.messages.pop()
    await client.answer({asked: {"color": "red"}})
    assert painting.painted == [{"color": "red"}]


async def test_an_answer_that_was_refused_does_not_stand_in_the_way_of_the_next(cs: Callstream) -> None:
    painting = Painting(response_schema=COLOR)
    client = Client(adk_agent(cs, painting.workflow))
    await client.send()
    (asked,) = client.pending()
    (refused,) = await client.answer({asked: {"colour": "red"}})
    assert refused["code"] == "answer_refused"
    await client.answer({asked: {"color": "red"}})
    assert painting.painted == [{"color": "red"}]


async def test_workflow_asks_again_under_the_same_id(cs: Callstream) -> None:
    said: list[Any] = []

    async def ask(node_input: Any) -> Any:
        yield RequestInput(interrupt_id="again", message=f"Round {len(said) + 1}?")

    def judge(node_input: Any) -> Any:
        said.append(node_input)
        return Event(route="ask" if len(said) < 2 else "end")

    def end(node_input: Any) -> str:
        return "done"

    workflow = Workflow(name="rounds", edges=[(START, ask, judge), (judge, {"ask": ask, "end": end})])
    client = Client(adk_agent(cs, workflow))
    await client.send()
    (first,) = client.pending()
    await client.answer({first: "one"})
    (second,) = client.pending()
    assert (first, second) == ("again", "again~2")
    await client.answer({second: "two"})
    assert said == ["one", "two"]
    assert [(call.call_id, call.result) for call in await cs.journal.calls()] == [("again", "one"), ("again~2", "two")]


async def test_workflow_asks_two_at_once(cs: Callstream) -> None:
    """They are answered one by one, and the one that is left is not asked a second time."""
    heard: dict[str, Any] = {}

    def asking(name: str) -> Any:
        def ask(node_input: Any) -> RequestInput:
            return RequestInput(interrupt_id=name, message=f"{name}?")

        ask.__name__ = f"ask_{name}"
        return ask

    def hearing(name: str) -> Any:
        def hear(node_input: Any) -> str:
            heard[name] = node_input
            return name

        hear.__name__ = f"hear_{name}"
        return hear

    edges = [(START, asking(name), hearing(name)) for name in ("left", "right")]
    client = Client(adk_agent(cs, Workflow(name="both", edges=edges)))
    await client.send()
    assert sorted(client.pending()) == ["left", "right"]
    await client.answer({"right": "r"})
    assert heard == {"right": "r"}
    await client.answer({"left": "l"})
    assert heard == {"left": "l", "right": "r"}
    assert sorted(call.call_id for call in await cs.journal.calls()) == ["left", "right"]


@pytest.mark.parametrize("resumable", [False, True])
async def test_workflow_that_is_a_tool_asks(resumable: bool, cs: Callstream, models: Models) -> None:
    """Its call has neither failed nor to be made again: the result follows the answer, under the same id."""

    @node(rerun_on_resume=True)
    async def ask(ctx: Any, node_input: Any) -> Any:
        if "color" in ctx.resume_inputs:
            yield Event(output="painted")
        else:
            yield RequestInput(interrupt_id="color", message="Which color?")

    painting = Workflow(name="paint", description="Paints.", input_schema=str, edges=[(START, ask)])
    async with scripted("gemini", [[ToolCall("paint", {"request": "x"}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), painting)
        config = ResumabilityConfig(is_resumable=True) if resumable else None
        app = App(name="app", root_agent=root, resumability_config=config)
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs))
        events = await client.send()
        assert "TOOL_CALL_RESULT" not in kinds(events)
        assert client.pending() == ["color"]
        [made] = [call["id"] for call in client.calls() if call["name"] == "paint"]
        [asked] = [call["args"] for call in client.calls() if call["name"] == "adk_request_input"]
        assert asked["functionCallId"] == made
        await client.answer({"color": "red"})
        assert client.text() == "Done."
        assert client.calls() == [], "none begins anew"
    results = [event for event in client.events if event["type"] == "TOOL_CALL_RESULT"]
    assert [(event["toolCallId"], event["content"]) for event in results] == [(made, '{"result":"painted"}')]
    assert [(call.name, call.state) for call in await cs.journal.calls()] == [
        ("paint", CallState.COMPLETED),
        ("adk_request_input", CallState.COMPLETED),
    ]


def asking_workflow() -> Workflow:
    @node(rerun_on_resume=True)
    async def ask(ctx: Any, node_input: Any) -> Any:
        if ctx.resume_inputs:
            yield Event(output=next(iter(ctx.resume_inputs.values())))
        else:
            yield RequestInput(message="Which color?")

    return Workflow(name="paint", description="Paints.", input_schema=str, edges=[(START, ask)])


@pytest.mark.skipif(VERSION < (2, 13), reason="google-adk 2.12 begins the calls beside it again, answered or not")
@pytest.mark.parametrize(
    ("beside", "resumable"),
    # Not beside a client's tool in a resumable App: there google-adk by itself goes on with neither.
    [("workflow", False), ("workflow", True), ("client tool", False)],
)
@pytest.mark.parametrize("order", ["together", "first", "last"])
async def test_workflow_asks_beside_another_call(
    order: str, beside: str, resumable: bool, cs: Callstream, models: Models
) -> None:
    """google-adk cancels one when the other is interrupted, and begins both again with each answer."""
    name = "paint" if beside == "workflow" else "pick"
    made = [ToolCall("paint", {"request": "x"}, call_id="one"), ToolCall(name, {"request": "y"}, call_id="two")]
    async with scripted("gemini", [[*made, Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), asking_workflow(), AGUIToolset())
        config = ResumabilityConfig(is_resumable=True) if resumable else None
        app = App(name="app", root_agent=root, resumability_config=config)
        pick = Tool(name="pick", description="Picks.", parameters={"type": "object", "properties": {}})
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs), tools=[pick])
        assert "TOOL_CALL_RESULT" not in kinds(await client.send())
        pending = client.pending()
        assert len(pending) == 2
        said = {call_id: f"said {number}" for number, call_id in enumerate(pending)}
        steps = {"together": [pending], "first": [pending[:1], pending[1:]], "last": [pending[1:], pending[:1]]}
        for some in steps[order]:
            await client.answer({call_id: said[call_id] for call_id in some})
        assert client.text() == "Done."
        assert len(provider.requests) == 2
        answers = responses_in(provider.requests[1].body)
    assert sorted(json.dumps(answer) for answer in answers) == sorted(
        json.dumps({"result": text}) for text in said.values()
    )
    states = {call.call_id: call.state for call in await cs.journal.calls()}
    assert states == dict.fromkeys(["one", "two", *pending], CallState.COMPLETED)


# -- with the plugin in a runner of one's own --


async def test_plugin_journals_a_workflows_question(cs: Callstream) -> None:
    painting = Painting(interrupt_id="color")
    host = Host(cs, painting.workflow)
    (asked,) = function_calls_in(await host.run())
    (call,) = await host.calls()
    assert (call.name, call.state, call.args["message"]) == (
        "adk_request_input",
        CallState.AWAITING,
        "Which color?",
    )
    await host.run([response("adk_request_input", asked.id, {"result": "red"})])
    (call,) = await host.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"result": "red"})
    await host.run([response("adk_request_input", asked.id, {"result": "blue"})])
    assert painting.painted == ["red"]


async def test_workflow_asks_before_a_model_is_asked(cs: Callstream, models: Models) -> None:
    """The model hears the answer, and nothing of google-adk's question."""

    def ask(node_input: Any) -> RequestInput:
        return RequestInput(message="Which color?")

    async with scripted("gemini", [END]) as provider:
        agent = agent_of(gemini(models, provider), instruction="Paint.")
        client = Client(adk_agent(cs, Workflow(name="painting", edges=[(START, ask, agent)])))
        await client.send()
        assert provider.requests == []
        await client.answer({client.pending()[0]: "a deep blue"})
        assert client.text() == "Done."
        body = provider.requests[0].body.decode()
    assert "a deep blue" in body
    assert "adk_request_input" not in body


async def test_node_of_a_workflow_is_confirmed(cs: Callstream) -> None:
    ran: list[Any] = []

    def wipe(node_input: Any) -> str:
        ran.append(node_input)
        return "wiped"

    workflow = Workflow(
        name="wiping", edges=[(START, FunctionNode(func=wipe, require_confirmation=True, rerun_on_resume=True))]
    )
    client = Client(adk_agent(cs, workflow))
    await client.send()
    assert ran == []
    asked = asked_in(client, interrupts=False)
    assert asked["args"]["payload"]["tool_name"] == "wipe"
    await client.answer({asked["id"]: {"confirmed": True}})
    assert len(ran) == 1


async def test_model_asks_with_the_tool_of_google_adk(cs: Callstream, models: Models) -> None:
    """Its name is that of google-adk's own questions, but the call is the model's, and so is the answer."""
    from google.adk.tools import request_input

    args = {"message": "Which color?", "response_schema": {"type": "string"}}
    async with scripted("gemini", [[ToolCall("adk_request_input", args), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), request_input)
        client = Client(adk_agent(cs, root, emit_interrupt_outcome=True))
        await client.send()
        asked = asked_in(client, interrupts=True)
        assert len(client.calls()) == 1
        assert asked["interrupt"]["message"] == "Which color?"
        assert asked["interrupt"]["responseSchema"] == {"type": "string"}
        await reply(client, asked["id"], "blue", interrupts=True)
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "blue"}]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, "blue")
