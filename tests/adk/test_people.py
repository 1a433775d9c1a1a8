"""A person in the loop: calls that await an answer, whenever and wherever it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool

from callstream import Callstream, tool
from callstream.calls import CallState
from callstream.events import CallProgressed, MessageReceived
from callstream.testing import Finish, Parallel, Text, ToolCall

from .hosting import PATHS, WIRES, Host, Models, agent_of, answer, function_calls_in, responses_in, scripted, text_of

END = [Text("Done."), Finish()]


def approve(what: str) -> None:
    """Asks a person."""


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_answer_after_restart(wire: str, path: str, resumable: bool, tmp_path: Path) -> None:
    """Another process: nothing is left but the session and the journal."""
    script = [[Text("May I?"), ToolCall("approve", {"what": "x"}), Finish()], END]
    async with scripted(wire, script) as provider:
        for round_number in (1, 2):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
                models = Models(cs)
                sessions = SqliteSessionService(f"{tmp_path}/sessions.db")
                agent = agent_of(models(provider, path), LongRunningFunctionTool(approve))
                host = Host(cs, agent, sessions=sessions, resumable=resumable)
                if round_number == 1:
                    (asked,) = function_calls_in(await host.run())
                    (call,) = await host.calls()
                    assert (call.state, call.args) == (CallState.AWAITING, {"what": "x"})
                    assert asked.id == (call.provider_id or call.call_id)
                else:
                    events = await host.run([answer("approve", asked.id, {"approved": True})])
                    (call,) = await host.calls()
                    assert (call.state, call.result) == (CallState.COMPLETED, {"approved": True})
                    assert "Done." in text_of(events)
                    assert [run.outcome for run in await cs.journal.runs()] == ["finished", "finished"]
                    assert len({run.run_id for run in await cs.journal.runs()}) == 2
                await models.aclose()
        assert "approved" in provider.requests[1].body.decode()


@pytest.mark.parametrize("path", PATHS)
async def test_duplicate_answer_ignored(path: str, cs: Callstream, models: Models) -> None:
    script = [[ToolCall("approve", {"what": "x"}), Finish()], END, [Text("Next."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), LongRunningFunctionTool(approve)))
        (asked,) = function_calls_in(await host.run())
        await host.run([answer("approve", asked.id, {"approved": True})])
        again = await host.run([answer("approve", asked.id, {"approved": False})])
        assert len(provider.requests) == 2
        assert responses_in(again) == []
        (call,) = await host.calls()
        assert call.result == {"approved": True}
        await host.run("And now?")
        body = provider.requests[2].body.decode()
    assert "true" in body
    assert "false" not in body


def export(what: str) -> dict[str, str]:
    """Begins a job."""
    return {"status": "pending", "what": what}


RESPONSES = [{"status": "pending", "done": 50}, {"status": "written"}, {"status": "checked"}]


@pytest.mark.parametrize("path", PATHS)
async def test_later_responses_reach_the_model_as_without_the_plugin(path: str, cs: Callstream, models: Models) -> None:
    """A job's status, its result, and what comes after it. The same again is nothing new."""
    from google.adk.apps import App
    from google.adk.runners import Runner

    heard: dict[str, list[Any]] = {}
    for with_plugin in (False, True):
        script = [[ToolCall("export", {"what": "x"}), Finish()], *[[Text(f"{n}."), Finish()] for n in range(5)]]
        async with scripted("gemini", script) as provider:
            agent = agent_of(models(provider, path if with_plugin else "partial"), LongRunningFunctionTool(export))
            host = Host(cs, agent)
            if not with_plugin:
                host.runner = Runner(
                    app=App(name="app", root_agent=agent), session_service=host.sessions, auto_create_session=True
                )
            asked = function_calls_in(await host.run())[0]
            for response in RESPONSES:
                await host.run([answer("export", asked.id, response)])
            if with_plugin:
                asking = len(provider.requests)
                await host.run([answer("export", asked.id, RESPONSES[-1])])
                assert len(provider.requests) == asking
            heard[str(with_plugin)] = [
                [
                    part
                    for content in request.json["contents"]
                    for part in content["parts"]
                    if "functionResponse" in part
                ]
                for request in provider.requests
            ]
    assert heard["True"] == heard["False"]
    assert [parts[-1]["functionResponse"]["response"] for parts in heard["True"][2:]] == RESPONSES
    (call,) = await host.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"status": "written"})
    events = await host.events()
    assert [event.data for event in events if isinstance(event, CallProgressed)] == [
        {"status": "pending", "what": "x"},  # what the tool returned at once
        {"status": "pending", "done": 50},
    ]
    assert [event.text for event in events if isinstance(event, MessageReceived) and event.role == "tool"] == [
        '{"status":"checked"}'
    ]


async def test_answer_that_says_that_more_will_come(cs: Callstream, models: Models) -> None:
    """google-genai has a word for it, which holds for tools that return nothing, too."""
    async with scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END, END]) as provider:
        host = Host(cs, agent_of(models(provider), LongRunningFunctionTool(approve)))
        (asked,) = function_calls_in(await host.run())
        part = answer("approve", asked.id, {"seen": True})
        assert part.function_response is not None
        part.function_response.will_continue = True
        await host.run([part])
        (call,) = await host.calls()
        assert call.state is CallState.AWAITING
        await host.run([answer("approve", asked.id, {"approved": True})])
        assert len(provider.requests) == 3
    (call,) = await host.calls()
    assert (call.state, call.result) == (CallState.COMPLETED, {"approved": True})


@pytest.mark.parametrize("path", PATHS)
async def test_foreign_answer_refused(path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), LongRunningFunctionTool(approve)))
        await host.run()
        with pytest.raises(ValueError, match="somebody else's"):
            await host.run([answer("approve", "somebody else's", {"approved": True})])
        (call,) = await host.calls()
        assert call.state is CallState.AWAITING
        assert len(provider.requests) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_id_reuse_new_call_that_awaits_an_answer(wire: str, path: str, cs: Callstream, models: Models) -> None:
    """The id of a call that was answered before: the answer is to the one that awaits it, and counts once."""
    asking = [[ToolCall("approve", {"what": what}, call_id="0"), Finish()] for what in ("one", "two")]
    async with scripted(wire, [asking[0], END, asking[1], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), LongRunningFunctionTool(approve)))
        for what in ("one", "two"):
            (asked,) = function_calls_in(await host.run(what))
            assert asked.id == "0"
            await host.run([answer("approve", "0", {"said": what})])
        await host.run([answer("approve", "0", {"said": "too late"})])
        assert len(provider.requests) == 4
    calls = await host.calls()
    assert [(call.call_id, call.state, call.result) for call in calls] == [
        ("0", CallState.COMPLETED, {"said": "one"}),
        ("0~2", CallState.COMPLETED, {"said": "two"}),
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_results_by_id(wire: str, path: str, cs: Callstream, models: Models) -> None:
    """Two calls of one tool, answered in the wrong order: each answer reaches the model with its call."""
    calls = [ToolCall("approve", {"what": "first"}), ToolCall("approve", {"what": "second"})]
    async with scripted(wire, [[Parallel(calls), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), LongRunningFunctionTool(approve)))
        first, second = function_calls_in(await host.run())
        assert (first.args, second.args) == ({"what": "first"}, {"what": "second"})
        await host.run(
            [answer("approve", second.id, {"said": "to second"}), answer("approve", first.id, {"said": "to first"})]
        )
        body = provider.requests[1].body.decode()
    assert body.index("to first") < body.index("to second")
    assert [call.result for call in await host.calls()] == [{"said": "to first"}, {"said": "to second"}]


@pytest.mark.parametrize("path", PATHS)
async def test_old_thread_goes_on(path: str, cs: Callstream, models: Models) -> None:
    """A session that began without the plugin, with a call that awaits its answer."""
    from google.adk.apps import App
    from google.adk.runners import Runner
    from google.genai import types

    async with scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END]) as provider:
        agent = agent_of(models(provider, "partial"), LongRunningFunctionTool(approve))
        host = Host(cs, agent_of(models(provider, path), LongRunningFunctionTool(approve)))
        plain = Runner(app=App(name="app", root_agent=agent), session_service=host.sessions, auto_create_session=True)
        message = types.Content(role="user", parts=[types.Part(text="Go")])
        events = [event async for event in plain.run_async(user_id="user", session_id="session", new_message=message)]
        (asked,) = function_calls_in(events)
        assert await host.calls() == []
        await host.run([answer("approve", asked.id, {"approved": True})])
    (call,) = await host.calls()
    assert (call.name, call.args, call.state) == ("approve", {"what": "x"}, CallState.COMPLETED)


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_tool_confirmation(path: str, resumable: bool, confirmed: bool, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    @tool
    async def delete(place: str) -> str:
        """Deletes."""
        ran.append(place)
        return "gone"

    async with scripted("gemini", [[ToolCall("delete", {"place": "attic"}), Finish()], END]) as provider:
        agent = agent_of(models(provider, path), FunctionTool(delete, require_confirmation=True))
        host = Host(cs, agent, resumable=resumable)
        events = await host.run()
        request = next(c for c in function_calls_in(events) if c.name == "adk_request_confirmation")
        call, question = await host.calls()
        assert (call.name, call.state, call.args) == ("delete", CallState.AWAITING, {"place": "attic"})
        assert (question.name, question.state) == ("adk_request_confirmation", CallState.AWAITING)
        assert ran == []
        await host.run([answer("adk_request_confirmation", request.id, {"confirmed": confirmed})])
    assert ran == (["attic"] if confirmed else [])
    call, question = await host.calls()
    assert call.state is (CallState.COMPLETED if confirmed else CallState.FAILED)
    assert (question.state, question.result) == (CallState.COMPLETED, {"confirmed": confirmed})


@pytest.mark.parametrize("path", PATHS)
async def test_session_holds_call(path: str, cs: Callstream, models: Models) -> None:
    """After a run that ends on a long-running call, a plain Runner goes on with the session."""
    from google.adk.apps import App
    from google.adk.runners import Runner
    from google.genai import types

    async with scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END]) as provider:
        model: Any = models(provider, path)
        agent = agent_of(model, LongRunningFunctionTool(approve))
        host = Host(cs, agent)
        (asked,) = function_calls_in(await host.run())
        plain = Runner(app=App(name="app", root_agent=agent), session_service=host.sessions)
        message = types.Content(role="user", parts=[answer("approve", asked.id, {"approved": True})])
        events = [event async for event in plain.run_async(user_id="user", session_id="session", new_message=message)]
    assert events[-1].content.parts[0].text == "Done."
