"""Tools of the client, and of people: calls that end a run and are answered with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.testing import Call as Calls
from callstream.testing import Failure, Finish, Parallel, Text
from callstream.tools.schema import gemini_schema
from tests.adk.hosting import WIRES, Models, agent_of, scripted

from .clients import Client, kinds
from .test_run import END, adk_agent, gemini

SCHEMA = {
    "type": "object",
    "properties": {"color": {"type": "string", "const": "red"}, "size": {"$ref": "#/$defs/size"}},
    "required": ["color"],
    "additionalProperties": False,
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"size": {"type": ["integer", "null"], "exclusiveMinimum": 0}},
}
PAINT = Tool(name="paint", description="Paints the page.", parameters=SCHEMA)
ERASE = Tool(name="erase", description="Erases the page.", parameters={})


def responses_in(body: bytes) -> list[Any]:
    contents = json.loads(body)["contents"]
    parts = [part for content in contents for part in content["parts"]]
    return [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]


@pytest.mark.parametrize("wire", WIRES)
async def test_client_tool_round_trip(wire: str, cs: Callstream, models: Models) -> None:
    script = [[Text("I paint."), Calls("paint", {"color": "red", "size": 3}), Finish()], END]
    async with scripted(wire, script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        events = await client.send()
        (call,) = client.calls()
        assert call["args"] == {"color": "red", "size": 3}
        assert kinds(events).count("TOOL_CALL_ARGS") > 1
        assert client.pending() == [call["id"]]
        assert [each.state for each in await cs.journal.calls()] == [CallState.AWAITING]
        await client.answer({call["id"]: {"painted": True}})
        assert client.text() == "Done."
        assert client.pending() == []
        assert "painted" in provider.requests[1].body.decode()
        (kept,) = await cs.journal.calls()
        assert (kept.state, kept.result) == (CallState.COMPLETED, {"painted": True})
        # Again: nothing happens.
        await client.run()
        assert len(provider.requests) == 2


async def test_client_schemas_are_cleaned(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END]) as provider:
        toolset = AGUIToolset(tool_filter=["paint"], tool_name_prefix="ui")
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), toolset)), tools=[PAINT, ERASE])
        await client.send()
        (declared,) = json.loads(provider.requests[0].body)["tools"][0]["functionDeclarations"]
    assert declared["name"] == "ui_paint"
    parameters = json.dumps(declared["parameters"])
    assert "additionalProperties" not in parameters
    assert "$" not in parameters
    assert declared["parameters"]["properties"]["color"]["enum"] == ["red"]


def test_gemini_schema() -> None:
    assert gemini_schema(SCHEMA) == {
        "type": "object",
        "properties": {"color": {"type": "string", "enum": ["red"]}, "size": {"nullable": True, "type": "integer"}},
        "required": ["color"],
    }
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}}
    assert "$ref" not in json.dumps(gemini_schema(endless))
    assert gemini_schema({"oneOf": [{"type": "string"}, {"enum": [1, 2]}]}) == {
        "anyOf": [{"type": "string"}, {"type": "integer", "description": "One of: 1, 2."}]
    }


def test_gemini_schema_of_what_only_a_tool_s_author_used_to_get() -> None:
    """Both kinds of schemas are written by the same rules."""
    assert gemini_schema(
        {
            "allOf": [{"$ref": "#/$defs/named"}],
            "properties": {
                "mail": {"type": "string", "format": "email"},
                "when": {"type": "string", "format": "date-time", "default": "now"},
                "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "$defs": {"named": {"type": "object", "required": ["mail"]}},
        }
    ) == {
        "type": "object",
        "required": ["mail"],
        "properties": {
            "mail": {"type": "string"},
            "when": {"type": "string", "format": "date-time", "default": "now"},
            "pair": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
            "maybe": {"type": "string", "nullable": True},
        },
    }


@pytest.mark.parametrize("wrong", [[], "object", 1, None, {"properties": 3}, {"allOf": 1, "anyOf": [None], "enum": 2}])
def test_gemini_schema_of_anything(wrong: Any) -> None:
    gemini_schema(wrong)
    gemini_schema({"properties": {"a": wrong}, "items": wrong, "$defs": wrong, "anyOf": [wrong]})


def test_gemini_schema_of_definitions_that_use_each_other() -> None:
    """Unfolded, these would have millions of entries."""
    reference = {"$ref": "#/$defs/node"}
    node = {"type": "object", "properties": {"name": {"type": "string"}, **dict.fromkeys("abcdef", reference)}}
    made = gemini_schema({**node, "$defs": {"node": node}})
    assert made["properties"]["f"]["properties"]["f"]["properties"]["name"] == {"type": "string"}
    assert len(json.dumps(made)) < 100_000
    chain = {f"d{n}": {"properties": {f"p{i}": {"$ref": f"#/$defs/d{n + 1}"} for i in range(8)}} for n in range(9)}
    assert len(json.dumps(gemini_schema({"$ref": "#/$defs/d0", "$defs": chain}))) < 100_000


@pytest.mark.parametrize(
    "long",
    [
        {"properties": {f"p{n}": {} for n in range(2000)}},
        {"type": "string", "enum": ["x" * 20] * 1000},
        {"description": "x" * 20_000},
    ],
)
def test_gemini_schema_of_a_long_definition_that_is_used_often(long: dict[str, Any]) -> None:
    """A client must not make a server's memory many times as large as what it sends."""
    properties = {f"r{n}": {"$ref": "#/$defs/long"} for n in range(250)}
    schema = {"type": "object", "properties": properties, "$defs": {"long": long}}
    made = gemini_schema(schema)
    assert made["properties"]["r0"] == long
    assert made["properties"]["r249"] == {"type": "object"}
    assert len(json.dumps(made)) < 3 * len(json.dumps(schema)) + 70_000


async def test_an_answer_may_bring_other_client_tools(cs: Callstream, models: Models) -> None:
    script = [[Calls("paint", {"color": "red"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        client.tools = [ERASE]
        await client.answer({client.pending()[0]: "done"})
        declared = [json.loads(request.body)["tools"][0]["functionDeclarations"] for request in provider.requests]
    assert [[tool["name"] for tool in tools] for tools in declared] == [["paint"], ["erase"]]


async def test_server_tool_wins_over_client_tool_of_its_name(cs: Callstream, models: Models) -> None:
    def paint(color: str) -> str:
        """Paints."""
        return f"painted {color}"

    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), paint, AGUIToolset())), tools=[PAINT, ERASE])
        await client.send()
        declared = json.loads(provider.requests[0].body)["tools"][0]["functionDeclarations"]
    assert sorted(each["name"] for each in declared) == ["erase", "paint"]
    assert json.loads(client.calls()[0]["result"]) == {"result": "painted red"}


async def test_results_by_id_in_any_order(cs: Callstream, models: Models) -> None:
    calls = [Calls("paint", {"color": "first"}), Calls("paint", {"color": "second"})]
    async with scripted("gemini", [[Parallel(calls), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        first, second = client.pending()
        await client.answer({second: {"said": "second"}, first: {"said": "first"}})
        assert responses_in(provider.requests[1].body) == [{"said": "first"}, {"said": "second"}]
    assert client.text() == "Done."


async def test_partial_answers_wait(cs: Callstream, models: Models) -> None:
    """No model takes a request in which one of two calls is answered."""
    calls = [Calls("paint", {"color": "first"}), Calls("paint", {"color": "second"})]
    async with scripted("gemini", [[Parallel(calls), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        first, second = client.pending()
        await client.answer({second: {"said": "second"}})
        assert len(provider.requests) == 1
        await client.answer({first: {"said": "first"}})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"said": "first"}, {"said": "second"}]


async def test_answers_to_several_turns_at_once(cs: Callstream, models: Models) -> None:
    """A question was passed over, and is answered together with a later one."""
    paints = [[Calls("paint", {"color": color}), Finish()] for color in ("first", "second")]
    async with scripted("gemini", [*paints, END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        (first,) = client.pending()
        await client.send("Something else.")
        (second,) = client.pending()
        await client.answer({first: {"said": "first"}, second: {"said": "second"}})
        assert client.text() == "Done."
        assert responses_in(provider.requests[2].body) == [{"said": "first"}, {"said": "second"}]
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


async def test_server_and_client_tool_in_one_turn(cs: Callstream, models: Models) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    calls = [Calls("look", {}), Calls("paint", {"color": "red"})]
    async with scripted("gemini", [[Parallel(calls), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), look, AGUIToolset())), tools=[PAINT])
        await client.send()
        assert len(provider.requests) == 1
        (pending,) = client.pending()
        await client.answer({pending: "yes"})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "seen"}, {"result": "yes"}]


async def test_answer_with_a_new_message(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        (pending,) = client.pending()
        client.put_result({"id": "t", "role": "tool", "toolCallId": pending, "content": "ok"})
        await client.send("And now blue.")
        contents = json.loads(provider.requests[1].body)["contents"]
    assert client.text() == "Done."
    assert "functionResponse" in contents[-2]["parts"][0]
    assert contents[-1]["parts"] == [{"text": "And now blue."}]


async def test_foreign_answer_refused(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()))
        client = Client(agent, tools=[PAINT])
        await client.send()
        other = Client(agent, "other thread", tools=[PAINT])
        other.messages = [{"id": "t", "role": "tool", "toolCallId": client.pending()[0], "content": "mine"}]
        events = await other.run()
        assert kinds(events) == ["RUN_STARTED", "RUN_ERROR"]
        assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING]
        assert len(provider.requests) == 1


def approve(what: str) -> None:
    """Asks a person."""


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_long_running_answer_after_restart(
    interrupts: bool, resumable: bool, tmp_path: Path, models: Models
) -> None:
    script = [[Text("May I?"), Calls("approve", {"what": "x"}), Finish()], END]
    messages: list[Any] = []
    async with scripted("gemini", script) as provider:
        for number in (1, 2):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
                config = ResumabilityConfig(is_resumable=True) if resumable else None
                root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
                app = App(name="app", root_agent=root, resumability_config=config)
                sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
                agent = ADKAgent.from_app(
                    app, user_id="user", callstream=cs, session_service=sessions, emit_interrupt_outcome=interrupts
                )
                client = Client(agent)
                client.messages = messages
                if number == 1:
                    await client.send()
                    messages = client.messages
                    assert client.ended is not None
                    outcome = client.ended["outcome"]
                    asked = outcome["interrupts"][0]["id"] if interrupts else outcome["pendingToolCallIds"][0]
                else:
                    client._number = 10
                    if interrupts:
                        await client.run(resume=[{"interruptId": asked, "status": "resolved", "payload": {"ok": True}}])
                    else:
                        await client.answer({asked: {"ok": True}})
                    assert client.text() == "Done."
                    (call,) = await cs.journal.calls()
                    assert (call.state, call.result) == (CallState.COMPLETED, {"ok": True})
                await agent.close()
        assert len(provider.requests) == 2
        assert responses_in(provider.requests[1].body) == [{"ok": True}]


async def test_a_jobs_updates_reach_the_model_until_its_result(cs: Callstream, models: Models) -> None:
    """A client's answer counts once: what it says after the result changes nothing."""

    def export() -> dict[str, str]:
        """Begins a job."""
        return {"status": "pending"}

    script = [[Calls("export", {}), Finish()], *[[Text(f"{n}."), Finish()] for n in range(3)]]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), LongRunningFunctionTool(export))))
        await client.send()
        (asked,) = client.pending()
        said = [{"status": "pending", "done": 50}, {"status": "written"}, {"status": "checked"}]
        for number, response in enumerate(said):
            message = {"role": "tool", "toolCallId": asked, "content": json.dumps(response)}
            events = await client.run(messages=[{"id": f"said-{number}", **message}])
            assert kinds(events)[-1] == "RUN_FINISHED"
        assert [responses_in(request.body)[-1] for request in provider.requests[2:]] == said[:2]
    (call,) = await cs.journal.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"status": "written"})


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("interrupts", [False, True])
async def test_tool_confirmation(interrupts: bool, confirmed: bool, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    async with scripted("gemini", [[Calls("remove", {"path": "/x"}), Finish()], END]) as provider:
        tool = FunctionTool(remove, require_confirmation=True)
        agent = adk_agent(cs, agent_of(gemini(models, provider), tool), emit_interrupt_outcome=interrupts)
        client = Client(agent)
        await client.send()
        assert ran == []
        assert client.ended is not None
        if interrupts:
            asked = client.ended["outcome"]["interrupts"][0]["id"]
            events = await client.run(
                resume=[{"interruptId": asked, "status": "resolved", "payload": {"confirmed": confirmed}}]
            )
            assert "TOOL_CALL_RESULT" in kinds(events)
        else:
            (asked,) = client.pending()
            await client.answer({asked: {"confirmed": confirmed}})
        assert client.text() == "Done."
    assert ran == (["/x"] if confirmed else [])


async def test_tool_confirmations_answered_one_by_one(cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    calls = [Calls("remove", {"path": path}) for path in ("/x", "/y")]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        client = Client(
            adk_agent(cs, agent_of(gemini(models, provider), FunctionTool(remove, require_confirmation=True)))
        )
        await client.send()
        first, second = client.pending()
        events = await client.answer({second: {"confirmed": True}})
        assert kinds(events) == ["RUN_STARTED", "RUN_FINISHED"]
        await client.answer({first: {"confirmed": False}})
        assert client.text() == "Done."
    assert ran == ["/y"]
    assert [(call.name, call.state) for call in await cs.journal.calls()] == [
        ("remove", CallState.FAILED),
        ("remove", CallState.COMPLETED),
        ("adk_request_confirmation", CallState.COMPLETED),
        ("adk_request_confirmation", CallState.COMPLETED),
    ]


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [(0, 1)], [(1, 0)]])
@pytest.mark.parametrize("resumable", [False, True])
async def test_tool_confirmation_beside_a_client_tool(
    resumable: bool, order: list[Any], cs: Callstream, models: Models
) -> None:
    """One after the other, in either order, or both at once: the model is asked when both have their answers."""

    def remove(path: str) -> str:
        """Removes."""
        return "removed"

    calls = [Calls("remove", {"path": "/x"}), Calls("paint", {"color": "red"})]
    async with scripted("gemini", [[*calls, Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(remove, require_confirmation=True), AGUIToolset())
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs), tools=[PAINT])
        await client.send()
        painting, question = client.pending()
        answers = [(question, {"confirmed": True}), (painting, {"painted": 1})]
        for step in order:
            assert len(provider.requests) == 1
            await client.answer(dict([answers[step]] if isinstance(step, int) else [answers[each] for each in step]))
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "removed"}, {"painted": 1}]


@pytest.mark.parametrize("resumable", [False, True])
async def test_tool_confirmation_with_a_new_message(resumable: bool, cs: Callstream, models: Models) -> None:
    """The tool runs and the model is told, and then it is told what else the person said."""

    def remove(path: str) -> str:
        """Removes."""
        return "removed"

    async with scripted("gemini", [[Calls("remove", {"path": "/x"}), Finish()], END, END]) as provider:
        root = agent_of(gemini(models, provider), FunctionTool(remove, require_confirmation=True))
        app = App(name="app", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=resumable))
        client = Client(ADKAgent.from_app(app, user_id="user", callstream=cs))
        await client.send()
        answer = {"role": "tool", "toolCallId": client.pending()[0], "content": '{"confirmed": true}'}
        client.put_result({"id": "answer", **answer})
        await client.send("And hurry.")
        assert client.text() == "Done.Done."
        told, asked = (request.body.decode() for request in provider.requests[1:])
        assert responses_in(told.encode()) == [{"result": "removed"}]
        assert ("And hurry." in told, "And hurry." in asked) == (False, True)
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


async def test_new_message_beside_a_tool_confirmation_is_heard_after_that_failed(
    cs: Callstream, models: Models
) -> None:
    """The turn of the confirmation breaks off; the client sends the same again, and something more."""

    def remove(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "removed"

    ran: list[str] = []
    script = [[Calls("remove", {"path": "/x"}), Finish()], [Failure("overloaded")], END, END]
    async with scripted("gemini", script) as provider:
        client = Client(
            adk_agent(cs, agent_of(gemini(models, provider), FunctionTool(remove, require_confirmation=True)))
        )
        await client.send()
        answer = {"role": "tool", "toolCallId": client.pending()[0], "content": '{"confirmed": true}'}
        client.put_result({"id": "answer", **answer})
        events = await client.send("And hurry.")
        assert kinds(events)[-1] == "RUN_ERROR"
        await client.send("Well?")
        assert client.text() == "Done."
        asked = provider.requests[-1].body.decode()
        assert ("And hurry." in asked, "Well?" in asked) == (True, True)
        await client.send("Thanks.")
        assert provider.requests[-1].body.decode().count("And hurry.") == 1
    assert ran == ["/x"]
    assert [call.state for call in await cs.journal.calls()] == [CallState.COMPLETED] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_answers_one_by_one_to_calls_that_a_callback_has_changed(
    order: tuple[int, ...], cs: Callstream, models: Models
) -> None:
    def repaint(callback_context: Any, llm_response: Any) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            if part.function_call is not None and not llm_response.partial:
                part.function_call.args = {"color": part.function_call.args["color"].upper()}

    script = [[Calls("paint", {"color": "red"}), Calls("paint", {"color": "blue"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        root.after_model_callback = repaint
        client = Client(adk_agent(cs, root), tools=[PAINT])
        await client.send()
        assert [call["args"] for call in client.calls()][-2:] == [{"color": "RED"}, {"color": "BLUE"}]
        pending = client.pending()
        for number in order:
            await client.answer({pending[number]: {"painted": number}})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"painted": 0}, {"painted": 1}]


async def test_old_thread_goes_on_with_a_pending_call(cs: Callstream, models: Models) -> None:
    """The session is another program's; the journal knows nothing of it."""
    from google.adk.events.event import Event
    from google.adk.sessions import InMemorySessionService
    from google.genai import types

    sessions = InMemorySessionService()
    state = {"_ag_ui_thread_id": "thread", "_ag_ui_processed_message:u1": True}
    session = await sessions.create_session(app_name="app", user_id="user", state=state)
    call = types.Part(function_call=types.FunctionCall(id="adk-old", name="paint", args={"color": "red"}))
    for author, role, part in (("user", "user", types.Part(text="Paint")), ("writer", "model", call)):
        await sessions.append_event(session, Event(author=author, content=types.Content(role=role, parts=[part])))
    async with scripted("gemini", [END]) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        client = Client(adk_agent(cs, root, session_service=sessions), tools=[PAINT])
        function = {"name": "paint", "arguments": '{"color":"red"}'}
        client.messages = [
            {"id": "u1", "role": "user", "content": "Paint"},
            {
                "id": "a1",
                "role": "assistant",
                "toolCalls": [{"id": "adk-old", "type": "function", "function": function}],
            },
            {"id": "t1", "role": "tool", "toolCallId": "adk-old", "content": "painted"},
        ]
        events = [event.type async for event in client.agent.run(client.input())]
        assert responses_in(provider.requests[0].body) == [{"result": "painted"}]
    assert events[-1] == "RUN_FINISHED"


async def test_answer_that_a_crash_kept_from_the_session(cs: Callstream, models: Models) -> None:
    """The journal has the answer, google-adk has not: sent again, it reaches the model, and as it was the first time."""
    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        (pending,) = client.pending()
        async with cs.run("thread", principal="user") as run:
            await run.answer(pending, {"said": "first"})
        await client.answer({pending: {"said": "again"}})
        assert responses_in(provider.requests[1].body) == [{"said": "first"}]
    assert client.text() == "Done."


async def test_calls_of_another_person_cannot_be_answered(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    """Even in a thread of the same name."""
    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), AGUIToolset())
        client = Client(adk_agent(cs, root), tools=[PAINT])
        await client.send()
        other = ADKAgent(adk_agent=root, app_name="app", user_id="somebody else", callstream=cs)
        intruder = Client(other, tools=[PAINT])
        intruder.messages = [{"id": "t", "role": "tool", "toolCallId": client.pending()[0], "content": "mine"}]
        assert kinds(await intruder.run())[-1] == "RUN_ERROR"
        assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING]
        state = await other.thread_state("thread", user_id="user")
    assert state is None or state["messages"] == []


@pytest.mark.parametrize("wire", WIRES)
async def test_message_while_an_answer_is_awaited(wire: str, cs: Callstream, models: Models) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    calls = Parallel([Calls("look", {}), Calls("paint", {"color": "red"})])
    script = [[calls, Finish()], [Text("I wait."), Finish()], END]
    async with scripted(wire, script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), look, AGUIToolset())), tools=[PAINT])
        await client.send()
        (pending,) = client.pending()
        await client.send("And then?")
        assert client.text() == "I wait."
        body = provider.requests[1].body.decode()
        assert body.index("seen") < body.index("no answer yet") < body.index("And then?")
        await client.answer({pending: "painted"})
        assert client.text() == "Done."
        body = provider.requests[2].body.decode()
        assert "painted" in body
        assert "no answer yet" not in body
    assert {call.state for call in await cs.journal.calls()} == {CallState.COMPLETED}


async def test_client_tools_without_a_place(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))), tools=[PAINT])
        await client.send()
        assert "paint" not in provider.requests[0].body.decode()
    assert [record.getMessage() for record in caplog.records if "AGUIToolset" in record.getMessage()]


async def test_client_tool_in_a_workflow(cs: Callstream, models: Models) -> None:
    """The client's tools are there wherever an agent has a place for them."""
    from google.adk.workflow import Workflow

    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        node = agent_of(models(provider), AGUIToolset())
        flow = Workflow(name="flow", edges=[("START", node)])
        client = Client(ADKAgent(adk_agent=flow, app_name="app", user_id="user", callstream=cs), tools=[PAINT])
        await client.send()
        (call,) = client.calls()
        assert call["args"] == {"color": "red"}
        assert client.pending() == [call["id"]]
        await client.answer({call["id"]: "painted"})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "painted"}]


async def test_duplicate_answer_ignored(cs: Callstream, models: Models) -> None:
    """The same answer in another message: the first one counts, and the model is not asked again."""
    async with scripted("gemini", [[Calls("paint", {"color": "red"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        (call_id,) = client.pending()
        await client.answer({call_id: "painted"})
        again = {"id": "again", "role": "tool", "toolCallId": call_id, "content": "painted twice"}
        events = [event.type async for event in client.agent.run(client.input(messages=[*client.messages, again]))]
        assert len(provider.requests) == 2
    assert events[-1] == "RUN_FINISHED"
    (call,) = await cs.journal.calls()
    assert call.result == "painted"


async def test_id_reuse_new_call_of_a_client_tool(cs: Callstream, models: Models) -> None:
    """The client sees two calls with ids of their own, the model two with the id that it gave both."""
    asking = [[Calls("paint", {"color": color}, call_id="0"), Finish()] for color in ("red", "blue")]
    async with scripted("openai_chat", [asking[0], END, asking[1], END]) as provider:
        agent = ADKAgent(
            adk_agent=agent_of(gemini(models, provider), AGUIToolset()), app_name="app", user_id="user", callstream=cs
        )
        client = Client(agent, tools=[PAINT])
        for color, call_id in (("red", "0"), ("blue", "0~2")):
            await client.send()
            assert client.pending() == [call_id]
            await client.answer({call_id: f"painted {color}"})
            assert client.text() == "Done."
        messages = provider.requests[-1].json["messages"]
    sent = [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]
    assert [call_id for call_id, _ in sent] == ["0", "0"]
    assert ["red" in content for _, content in sent] == [True, False]
    assert "blue" in sent[1][1]


@pytest.mark.parametrize("by_wire_id", [False, True])
@pytest.mark.parametrize("first", ["ann", "bob"])
async def test_threads_of_one_name_have_calls_of_their_own(
    first: str, by_wire_id: bool, cs: Callstream, models: Models
) -> None:
    """Two people, one name for their threads, one id for their calls: each confirms, and gets, what he asked for."""
    done: list[str] = []

    def wipe(what: str) -> str:
        """Wipes."""
        done.append(what)
        return f"wiped {what}"

    asking = [[Calls("wipe", {"what": f"{user}'s"}, call_id="0"), Finish()] for user in ("ann", "bob")]
    async with scripted("openai_chat", [*asking, END, END]) as provider:
        agent = ADKAgent(
            agent_of(gemini(models, provider), FunctionTool(wipe, require_confirmation=True)),
            user_id_extractor=lambda given: given.forwarded_props["user"],
            callstream=cs,
        )
        clients = {user: Client(agent) for user in ("ann", "bob")}
        asked = {}
        for user, client in clients.items():
            await client.send(forwardedProps={"user": user})
            (asked[user],) = client.pending()
        for user in sorted(clients, key=lambda user: user != first):
            if by_wire_id:
                resume = [{"interruptId": "0", "status": "resolved", "payload": {"confirmed": True}}]
                await clients[user].run(resume=resume, forwardedProps={"user": user})
            else:
                await clients[user].answer({asked[user]: {"confirmed": True}}, forwardedProps={"user": user})
            assert done[-1] == f"{user}'s"
            question = await cs.journal.call(asked[user])
            assert question is not None
            assert question.state is CallState.COMPLETED
            call = await cs.journal.call(question.args["originalFunctionCall"]["id"])
            assert call is not None
            assert (call.state, call.result) == (CallState.COMPLETED, {"result": f"wiped {user}'s"})
        await agent.close()
    assert len(done) == 2
