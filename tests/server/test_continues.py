"""Agents that are functions, and whose runs go on in another process (``create_app(…, continues=True)``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from anthropic import AsyncAnthropic

from callstream import Call, CallState, Callstream, current_run, open_journal, results_in, tool
from callstream.errors import UsageError
from callstream.events import ResultReceived
from callstream.runtime.continuing import INTERRUPTED
from callstream.server import ServerSettings, create_app
from callstream.testing import Delay, Finish, ReceivedRequest, Script, ScriptedProvider, Text, ToolCall

from .serving import served, tool_message

pytestmark = pytest.mark.asyncio
SETTINGS = ServerSettings(shutdown_seconds=0.0)


class Stage:
    """One agent in several servers, one after the other. ``says``: what it yields itself."""

    def __init__(self, folder: Path, provider: ScriptedProvider) -> None:
        self.url = f"sqlite:///{folder / 'calls.db'}"
        self.provider = provider
        self.ran: list[str] = []
        self.undone: list[str] = []
        self.hangs = True
        self.hanging = asyncio.Event()
        self.question: str | None = None
        self.says: list[dict[str, Any]] = []
        self.how: dict[str, Any] = {}

    def agent(self) -> tuple[Any, Callstream]:
        @tool(**self.how)
        async def pay(amount: int) -> str:
            """Pays."""
            self.ran.append(f"pay {amount}")
            if self.hangs:
                self.hanging.set()
                await asyncio.Event().wait()
            return "paid"

        @pay.on_args_abort
        async def undo(call: Call, reason: str) -> None:
            self.undone.append(reason)

        cs = Callstream(open_journal(self.url, housekeeping=None), tools=[pay])
        client = AsyncAnthropic(base_url=self.provider.base_url, api_key="none", http_client=cs.http_client())

        async def agent(given: RunAgentInput) -> AsyncIterator[dict[str, Any]]:
            for event in self.says:
                yield event
            run = current_run()
            assert run is not None
            messages: list[Any] = [{"role": "user", "content": self.question or str(given.messages[-1].content)}]
            mine = [
                {"name": each.name, "description": each.description, "input_schema": each.parameters}
                for each in given.tools or ()
            ]
            while True:
                async with client.messages.stream(
                    model="m", max_tokens=99, messages=messages, tools=[pay.schema("anthropic"), *mine]
                ) as stream:
                    answer = await stream.get_final_message()
                messages.append({"role": "assistant", "content": answer.content})
                if any(block.type == "tool_use" and block.name == "choose" for block in answer.content):
                    return  # the client answers it
                results = await run.run_tools()
                if not results:
                    return
                content = [
                    {"type": "tool_result", "tool_use_id": each.wire_id, "content": each.text} for each in results
                ]
                messages.append({"role": "user", "content": content})

        return agent, cs

    async def begin_and_leave(self, **given: Any) -> str:
        """The id of a run whose server has ended while its tool was running."""
        agent, cs = self.agent()
        async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
            async with server.run("Pay 5.", **given) as stream:
                await stream.until("TOOL_CALL_END")
                await self.hanging.wait()
                run_id = stream.run_id
        self.hangs = False
        return run_id


class Model:
    def __init__(self) -> None:
        self.asked: list[list[Any]] = []
        self.first: Script | None = None

    def __call__(self, request: ReceivedRequest) -> Script:
        found = [event.content for event in results_in("anthropic", request.body) if isinstance(event, ResultReceived)]
        self.asked.append(found)
        if self.first is not None:
            first, self.first = self.first, None
            return first
        if not found:
            return [Text("I pay. "), ToolCall("pay", {"amount": 5}), Finish()]
        if b'"choose"' in request.body:
            return [ToolCall("choose", {"between": "a and b"}), Finish()]
        return [Text("Done."), Finish()]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def stage(tmp_path: Path, model: Model) -> AsyncIterator[Stage]:
    async with ScriptedProvider("anthropic", model) as provider:
        yield Stage(tmp_path, provider)


async def test_a_function_goes_on_in_another_server(stage: Stage, model: Model) -> None:
    run_id = await stage.begin_and_leave()
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
        assert (await server.finished(run_id))["outcome"] == "finished"
        async with server.connect() as stream:
            (snapshot,) = [event for event in await stream.all() if event["type"] == "MESSAGES_SNAPSHOT"]
    said = [(message["role"], message.get("content")) for message in snapshot["messages"]]
    told = '{"error":"the tool failed"}'  # what errors say is not for clients
    assert said == [("user", "Pay 5."), ("assistant", "I pay. "), ("tool", told), ("assistant", "Done.")]
    assert stage.ran == ["pay 5"]
    assert model.asked == [[], [INTERRUPTED]]


async def test_a_person_decides_about_a_tool_that_was_running(stage: Stage, model: Model) -> None:
    stage.how = {"replay": "ask"}
    run_id = await stage.begin_and_leave()
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
        async with server.connect() as stream:
            (*_, shown) = await stream.until("ACTIVITY_SNAPSHOT")
            asks = shown["content"]["progress"]["asks"]
            calls = (await server.get("/api/calls", params={"state": "awaiting"})).json()["calls"]
            assert {call["call_id"] for call in calls} == {shown["content"]["toolCallId"], asks["toolCallId"]}
            reply = [tool_message(asks["toolCallId"], {"approved": True})]
            async with server.run("", thread=asks["threadId"], messages=reply) as answering:
                assert (await answering.all())[-1]["type"] == "RUN_FINISHED"
            assert (await stream.all())[-1]["type"] == "RUN_FINISHED"
        assert (await server.finished(run_id))["outcome"] == "finished"
        assert await cs.journal.calls(states=[CallState.AWAITING]) == []
    assert stage.ran == ["pay 5", "pay 5"]
    assert model.asked == [[], ["paid"]]  # the answer has asked nothing of the model


async def test_tools_of_the_client_are_left_to_it(stage: Stage, model: Model) -> None:
    schema = {"type": "object", "properties": {"between": {"type": "string"}}}
    choose = {"name": "choose", "description": "Asks the user.", "parameters": schema}
    run_id = await stage.begin_and_leave(tools=[choose])
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
        assert (await server.finished(run_id))["outcome"] == "finished"
        assert [(call.name, str(call.state)) for call in await cs.journal.calls(run_id=run_id)] == [
            ("pay", "failed"),
            ("choose", "awaiting"),
        ]


async def test_the_abort_hook_of_a_call_whose_response_was_cut_runs_once(stage: Stage, model: Model) -> None:
    model.first = [ToolCall("pay", {"amount": 5}), Text("And then "), Delay(30), Finish()]
    stage.hanging.set()  # the tool does not begin
    run_id = await stage.begin_and_leave()
    assert stage.undone == []  # the call is whole: whether it is void is for the next process to say
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
        assert (await server.finished(run_id))["outcome"] == "finished"
    assert (stage.undone, stage.ran) == (["interrupted"], ["pay 5"])


@pytest.mark.parametrize("rule", ["fail", "ask"])
async def test_what_becomes_of_a_run_that_asks_something_else(stage: Stage, model: Model, rule: Any) -> None:
    run_id = await stage.begin_and_leave()
    stage.question = "Pay 6."
    settings = ServerSettings.from_env({"CALLSTREAM_ON_DIVERGENCE": rule}, shutdown_seconds=0.0)
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=settings, name="payer", continues=True) as server:
        row = await server.finished(run_id)
    assert row["outcome"] == ("failed" if rule == "fail" else "finished")
    assert ("messages/0" in (row["reason"] or "")) == (rule == "fail")
    assert len(model.asked) == (1 if rule == "fail" else 3)


async def test_an_agent_that_speaks_for_itself_does_not_go_on(stage: Stage) -> None:
    said = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "own", "role": "assistant", "delta": "Welcome."}
    stage.says = [said]
    run_id = await stage.begin_and_leave()
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer", continues=True) as server:
        row = await server.finished(run_id)
    assert (row["outcome"], row["reason"], stage.ran) == ("failed", "interrupted", ["pay 5"])


async def test_a_server_without_continues_leaves_them_alone(stage: Stage) -> None:
    run_id = await stage.begin_and_leave()
    agent, cs = stage.agent()
    async with served(agent, callstream=cs, settings=SETTINGS, name="payer") as server:
        assert not server.app.state.continues()
        assert (await server.get(f"/api/runs/{run_id}")).json()["outcome"] is None


async def test_a_function_that_continues_needs_a_journal_on_disk() -> None:
    async def agent(given: RunAgentInput) -> None:
        pass

    with pytest.raises(UsageError, match="needs a journal on disk"):
        create_app(agent, callstream=Callstream(), continues=True)
