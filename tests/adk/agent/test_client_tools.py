"""Tools of the client: calls that end a run, and answers that begin the next one."""

from __future__ import annotations

import json

import pytest
from ag_ui.core import Tool
from google.adk.tools import FunctionTool

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.calls import CallState
from callstream.testing import Finish, Parallel, Text, ToolCall
from tests.adk.hosting import WIRES, Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client, kinds
from .clienttools import PAINT, responses_in

ERASE = Tool(name="erase", description="Erases the page.", parameters={})


@pytest.mark.parametrize("wire", WIRES)
async def test_client_tool_round_trip(wire: str, cs: Callstream, models: Models) -> None:
    script = [[Text("I paint."), ToolCall("paint", {"color": "red", "size": 3}), Finish()], END]
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


async def test_an_answer_may_bring_other_client_tools(cs: Callstream, models: Models) -> None:
    script = [[ToolCall("paint", {"color": "red"}), Finish()], END]
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

    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), paint, AGUIToolset())), tools=[PAINT, ERASE])
        await client.send()
        declared = json.loads(provider.requests[0].body)["tools"][0]["functionDeclarations"]
    assert sorted(each["name"] for each in declared) == ["erase", "paint"]
    assert json.loads(client.calls()[0]["result"]) == {"result": "painted red"}


async def test_results_by_id_in_any_order(cs: Callstream, models: Models) -> None:
    calls = [ToolCall("paint", {"color": "first"}), ToolCall("paint", {"color": "second"})]
    async with scripted("gemini", [[Parallel(calls), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        first, second = client.pending()
        await client.answer({second: {"said": "second"}, first: {"said": "first"}})
        assert responses_in(provider.requests[1].body) == [{"said": "first"}, {"said": "second"}]
    assert client.text() == "Done."


async def test_partial_answers_wait(cs: Callstream, models: Models) -> None:
    """No model takes a request in which one of two calls is answered."""
    calls = [ToolCall("paint", {"color": "first"}), ToolCall("paint", {"color": "second"})]
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
    paints = [[ToolCall("paint", {"color": color}), Finish()] for color in ("first", "second")]
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

    calls = [ToolCall("look", {}), ToolCall("paint", {"color": "red"})]
    async with scripted("gemini", [[Parallel(calls), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), look, AGUIToolset())), tools=[PAINT])
        await client.send()
        assert len(provider.requests) == 1
        (pending,) = client.pending()
        await client.answer({pending: "yes"})
        assert client.text() == "Done."
        assert responses_in(provider.requests[1].body) == [{"result": "seen"}, {"result": "yes"}]


async def test_answer_with_a_new_message(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset()))
        client = Client(agent, tools=[PAINT])
        await client.send()
        other = Client(agent, "other thread", tools=[PAINT])
        other.messages = [{"id": "t", "role": "tool", "toolCallId": client.pending()[0], "content": "mine"}]
        [refused] = await other.run()
        assert (refused["type"], refused["code"]) == ("RUN_ERROR", "answer_refused")
        assert "Traceback" not in caplog.text
        assert len(await cs.journal.runs()) == 1
        assert [call.state for call in await cs.journal.calls()] == [CallState.AWAITING]
        assert len(provider.requests) == 1


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
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
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

    calls = Parallel([ToolCall("look", {}), ToolCall("paint", {"color": "red"})])
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


@pytest.mark.parametrize(
    ("result", "error", "told"),
    [("painted", None, {"result": "painted"}), (None, "interrupted", {"error": "interrupted"})],
)
async def test_message_after_an_answer_that_a_crash_kept_from_the_session(
    result: str | None, error: str | None, told: dict[str, str], cs: Callstream, models: Models
) -> None:
    script = [[ToolCall("paint", {"color": "red"}), Finish()], END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[PAINT])
        await client.send()
        (call,) = await cs.journal.calls()
        async with cs.run(thread_id="thread", principal="user") as run:
            await run.answer(call.call_id, result, error=error)
        client.messages = [{"id": "then", "role": "user", "content": "And then?"}]
        await client.run()
        contents = provider.requests[1].json["contents"]
    assert [part["functionResponse"]["response"] for part in contents[2]["parts"]] == [told]


async def test_late_answer_after_a_turn_that_a_crash_ended(cs: Callstream, models: Models) -> None:
    """google-adk first leaves out what came since the call that is answered; the next request has all of it."""

    def look() -> str:
        """Looks."""
        return "seen"

    red, blue = ToolCall("paint", {"color": "red"}), ToolCall("paint", {"color": "blue"})
    script = [[red, Finish()], [blue, Finish()], [ToolCall("look", {}), Finish()], END]
    async with scripted("gemini", script) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), look, AGUIToolset())), tools=[PAINT])
        await client.send("Paint it red.")
        (first,) = client.pending()
        await client.send("Paint it blue.")
        (second,) = [call.call_id for call in await cs.journal.calls() if call.call_id != first]
        async with cs.run(thread_id="thread", principal="user") as run:
            await run.answer(second, error="interrupted")
        await client.answer({first: "painted"})
        assert client.text() == "Done."
        contents = provider.requests[3].json["contents"]
    told = [
        part["functionResponse"]["response"]
        for each in contents
        for part in each["parts"]
        if "functionResponse" in part
    ]
    assert told == [{"result": "painted"}, {"error": "interrupted"}, {"result": "seen"}]


async def test_client_tools_without_a_place(cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))), tools=[PAINT])
        await client.send()
        assert "paint" not in provider.requests[0].body.decode()
    assert [record.getMessage() for record in caplog.records if "AGUIToolset" in record.getMessage()]


async def test_client_tool_in_a_workflow(cs: Callstream, models: Models) -> None:
    """The client's tools are there wherever an agent has a place for them."""
    from google.adk.workflow import Workflow

    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
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
    async with scripted("gemini", [[ToolCall("paint", {"color": "red"}), Finish()], END]) as provider:
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
    asking = [[ToolCall("paint", {"color": color}, call_id="0"), Finish()] for color in ("red", "blue")]
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

    asking = [[ToolCall("wipe", {"what": f"{user}'s"}, call_id="0"), Finish()] for user in ("ann", "bob")]
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
