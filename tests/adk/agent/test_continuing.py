"""A run of google-adk whose process ends in the middle, and the process that goes on with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.adk.workflow import START, FunctionNode, RetryConfig, Workflow
from google.genai import types

from callstream import Call, Callstream, FieldDelta, open_journal, tool
from callstream.adk import ADKAgent
from callstream.adk.services import KeptSession, ResumedSessions, keep_session
from callstream.calls import CallState
from callstream.errors import CannotGoOn, UsageError
from callstream.events import InputKept, RunEnded
from callstream.runtime.continuing import unpack
from callstream.testing import Delay, Finish, Parallel, Text, ToolCall
from callstream.view import Passage, RunView
from tests.adk.hosting import Models, agent_of, by_agent, scripted
from tests.gated import PATIENCE

from .agents import adk_agent, gemini
from .asking import API_KEY, asked_in, reply
from .clients import Client, dumped
from .test_credentials import Calendar

pytestmark = pytest.mark.asyncio
END = [Text("Done."), Finish()]


class Place:
    """Where an agent is when its process ends: ``reached`` there, and goes no further. The next passes by."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.passed = asyncio.Event()
        self.began: list[str] = []

    async def pass_by(self, name: str) -> str:
        self.began.append(name)
        if not self.passed.is_set():
            self.reached.set()
            await asyncio.Event().wait()
        return f"{name} done"


class Processes:
    """Processes with one journal and one store of sessions, one after the other. ``root`` makes the agent of each."""

    def __init__(self, folder: Path, root: Callable[[], Any]) -> None:
        self._folder = folder
        self._root = root
        self._dead = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._dead.aclose()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[ADKAgent]:
        async with Callstream(open_journal(f"sqlite:///{self._folder}/calls.db", housekeeping=None)) as cs:
            sessions = SqliteSessionService(f"{self._folder}/sessions.db")
            agent = adk_agent(cs, self._root(), session_service=sessions)
            agent.continues = True
            yield agent
            await agent.close()

    async def begin(self, place: Place, awaiting: int = 0, *, is_killed: bool = False, **given: Any) -> str:
        """A run whose process is dead when the agent is at that place: it does nothing any more. The run's id.

        It has handed the run over, unless it ``is_killed``.
        """
        if is_killed:
            self._dead.enter_context(suppress(UsageError))  # it cannot end its run
        agent = await self._dead.enter_async_context(self.next())
        client = Client(agent)
        client.messages.append({"id": "user-1", "role": "user", "content": "Go"})
        started = await agent.begin(client.input(**{"runId": "run-1", **given}))
        work = asyncio.create_task(started.work())
        self._dead.callback(work.cancel)
        await place.reached.wait()
        while len(await agent.callstream.journal.calls(states=[CallState.AWAITING])) < awaiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert is_killed or await started.run.hand_over()
        await agent.callstream.journal.aclose()
        return started.run.run_id

    async def go_on(self, run_id: str) -> RunView:
        """Another process goes on with the run to its end."""
        async with self.next() as agent:
            journal = agent.callstream.journal
            assert await journal.adopt(agent.apps) == [run_id]
            started = await agent.go_on(run_id)
            await started.work()
            records = await journal.read_whole([run_id])
            assert records[-1].event == RunEnded("finished")
            return RunView.of(records)

    async def session(self) -> Session:
        service = SqliteSessionService(f"{self._folder}/sessions.db")
        async with self.next() as agent:
            (app_name,) = agent.apps
        (found,) = (await service.list_sessions(app_name=app_name)).sessions
        whole = await service.get_session(app_name=found.app_name, user_id=found.user_id, session_id=found.id)
        assert whole is not None
        return whole


def said(view: RunView) -> list[str]:
    return [item.text for item in view.items if isinstance(item, Passage)]


async def answered(agent: ADKAgent, call_id: str, payload: Any) -> str:
    """What the agent says to the answer."""
    resume = [{"interruptId": call_id, "status": "resolved", "payload": payload}]
    events = [dumped(event) async for event in agent.run(Client(agent).input(runId="run-2", resume=resume))]
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def test_an_agent_that_is_closed_hands_its_runs_over(tmp_path: Path, models: Models) -> None:
    place = Place()

    @tool(replay="safe")
    async def write() -> str:
        """Writes."""
        return await place.pass_by("write")

    script = [[Text("I write."), ToolCall("write", {}), Finish()], END]
    async with scripted("gemini", script) as provider:
        async with Processes(tmp_path, lambda: agent_of(models(provider, "none"), write)) as processes:
            async with processes.next() as agent:
                client = Client(agent)
                client.messages.append({"id": "user-1", "role": "user", "content": "Go"})

                async def read() -> list[str]:
                    return [dumped(event)["type"] async for event in agent.run(client.input(runId="run-1"))]

                reading = asyncio.create_task(read())
                await place.reached.wait()
                await agent.close()
                (row,) = await agent.callstream.journal.runs(run_id="run-1")
                assert row.outcome is None
            told = await asyncio.wait_for(reading, PATIENCE)
            assert told[-1] == "RUN_ERROR"  # nobody has gone on with it while it was read here
            place.passed.set()
            assert said(await processes.go_on("run-1")) == ["I write.", "Done."]
    assert place.began == ["write", "write"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_the_abort_hook_of_a_call_that_was_cut_runs_once(tmp_path: Path, models: Models, is_killed: bool) -> None:
    """In the process that goes on; in the one that leaves the run in peace, if it does."""
    place = Place()
    processes: list[list[tuple[str, str]]] = []

    def root() -> LlmAgent:
        heard: list[tuple[str, str]] = []
        processes.append(heard)

        @tool
        async def write(content: str) -> str:
            """Writes."""
            return "written"

        @write.on_field("content")
        async def grow(field: FieldDelta, signal: Any) -> None:
            if "moon" in field.value:
                place.reached.set()

        @write.on_args_abort
        async def undo(call: Call, reason: str) -> None:
            heard.append((reason, (call.args_json or "")[:20]))

        return agent_of(models(provider, "none"), write)

    half = ToolCall("write", {"content": "The moon pulls the sea."}, stop_after=4)
    again = [ToolCall("write", {"content": "The sea."}), Finish()]
    script = [[Text("I write."), half, Delay(30), Finish()], again, END, END]
    async with scripted("gemini", script) as provider, Processes(tmp_path, root) as run:
        run_id = await run.begin(place, is_killed=is_killed)
        undone = [("interrupted", '{"content":"The moon')]
        assert processes == [[] if is_killed else undone]
        assert said(await run.go_on(run_id)) == ["Done."]
        assert processes == ([[], undone] if is_killed else [undone, []])
        async with run.next() as agent:
            await Client(agent).send("Go")  # in the thread, once more
            cut, *whole = await agent.callstream.journal.calls()
        assert [each for heard in processes for each in heard] == undone
    assert (cut.state, cut.reason) == (CallState.DISCARDED, "interrupted")
    assert [call.state for call in whole] == [CallState.COMPLETED]


async def test_an_answer_after_a_run_went_on_does_not_run_a_tool_again(tmp_path: Path, models: Models) -> None:
    place = Place()

    @tool
    async def write() -> str:
        """Writes."""
        return await place.pass_by("write")

    def order() -> dict[str, str]:
        """Orders."""
        place.began.append("order")
        return {"status": "ordered"}

    script = [
        [Parallel([ToolCall("order", {}), ToolCall("write", {})]), Finish()],
        [Text("Ordered."), Finish()],
        [Text("It has come."), Finish()],
    ]
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:
        tools = [LongRunningFunctionTool(order), write]
        processes = await stack.enter_async_context(
            Processes(tmp_path, lambda: agent_of(gemini(models, provider), *tools))
        )
        run_id = await processes.begin(place, awaiting=1)
        place.passed.set()
        assert said(await processes.go_on(run_id)) == ["Ordered."]
        async with processes.next() as agent:
            (asked,) = await agent.callstream.journal.calls(states=[CallState.AWAITING])
            assert await answered(agent, asked.call_id, {"ok": True}) == "It has come."
        session = await processes.session()
        assert place.began == ["order", "write"]
        assert len(provider.requests) == 3
        assert "aborted" not in session.model_dump_json()


async def test_a_run_that_brings_the_result_of_a_job_goes_on_with_it(tmp_path: Path, models: Models) -> None:
    """The session has what the tool itself returned. That is not the answer, which the run has taken before."""
    place = Place()

    @tool(replay="safe")
    async def write() -> str:
        """Writes."""
        return await place.pass_by("write")

    def order() -> dict[str, str]:
        """Orders."""
        return {"status": "ordered"}

    script = [
        [ToolCall("order", {}), Finish()],
        [Text("Ordered."), Finish()],
        [Text("It has come."), ToolCall("write", {}), Finish()],
        END,
    ]
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:
        tools = [LongRunningFunctionTool(order), write]
        processes = await stack.enter_async_context(
            Processes(tmp_path, lambda: agent_of(gemini(models, provider), *tools))
        )
        async with processes.next() as agent:
            await Client(agent).send("Go")
            (asked,) = await agent.callstream.journal.calls(states=[CallState.AWAITING])
        resume = [{"interruptId": asked.call_id, "status": "resolved", "payload": {"status": "came"}}]
        run_id = await processes.begin(place, resume=resume, messages=[])
        place.passed.set()
        assert said(await processes.go_on(run_id)) == ["It has come.", "Done."]
        assert len(provider.requests) == 4
        session = await processes.session()
    responses = [each.response for event in session.events for each in event.get_function_responses()]
    assert responses == [{"status": "ordered"}, {"status": "came"}, {"result": "write done"}]
    assert place.began == ["write", "write"]


async def test_a_credential_of_an_earlier_turn_is_not_kept(tmp_path: Path, models: Models) -> None:
    """Clients send all of a thread with every run. The turn that it was given in is over, and the session has it."""
    place = Place()

    @tool(replay="safe")
    async def write() -> str:
        """Writes."""
        return await place.pass_by("write")

    calendar = Calendar(API_KEY)
    script = [
        [ToolCall("read_calendar", {}), Finish()],
        [Text("Nothing today."), Finish()],
        [Text("I write."), ToolCall("write", {}), Finish()],
        END,
    ]
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:
        tools = [FunctionTool(calendar.tool()), write]
        processes = await stack.enter_async_context(
            Processes(tmp_path, lambda: agent_of(gemini(models, provider), *tools))
        )
        async with processes.next() as agent:
            client = Client(agent)
            await client.send("What is today?")
            asked = asked_in(client, interrupts=False)
            await reply(client, asked["id"], "s3cret", interrupts=False)
            assert client.text() == "Nothing today."
        assert "s3cret" in json.dumps(client.messages)
        again = {"id": "user-3", "role": "user", "content": "Write it down"}
        run_id = await processes.begin(place, messages=[*client.messages, again])
        async with processes.next() as agent:
            kept = [record.event async for record in agent.callstream.journal.read(run_id)]
            (run_input,) = [unpack(event.data) for event in kept if isinstance(event, InputKept)]
            assert b"Write it down" in run_input
            assert b"s3cret" not in run_input
        place.passed.set()
        assert said(await processes.go_on(run_id)) == ["I write.", "Done."]
    assert [credential.api_key for credential in calendar.credentials] == ["s3cret"]


async def test_an_agent_after_parallel_ones_goes_on_whichever_was_done_first(tmp_path: Path, models: Models) -> None:
    """It is told what these have said, in the order in which they said it. When the run goes on, none has to wait."""
    place = Place()
    is_said = asyncio.Event()

    @tool(replay="safe")
    async def write() -> str:
        """Writes."""
        return await place.pass_by("write")

    async def wait(**given: Any) -> None:
        await is_said.wait()

    async def say(**given: Any) -> None:
        is_said.set()

    script = by_agent(
        {
            "LEFT": [[Text("left"), Finish()]],
            "RIGHT": [[Text("right"), Finish()]],
            "LAST": [[Text("I write."), ToolCall("write", {}), Finish()], END],
        }
    )
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:

        def root() -> SequentialAgent:
            def made(name: str, *tools: Any, **options: Any) -> LlmAgent:
                model = gemini(models, provider)
                return LlmAgent(name=name, model=model, instruction=name.upper(), tools=list(tools), **options)

            left, right = made("left", before_agent_callback=wait), made("right", after_agent_callback=say)
            both = ParallelAgent(name="both", sub_agents=[left, right])
            return SequentialAgent(name="steps", sub_agents=[both, made("last", write)])

        processes = await stack.enter_async_context(Processes(tmp_path, root))
        run_id = await processes.begin(place)
        place.passed.set()
        assert sorted(said(await processes.go_on(run_id))) == ["Done.", "I write.", "left", "right"]
        assert len(provider.requests) == 4
    assert place.began == ["write", "write"]


async def test_a_transfer_that_was_interrupted_is_done_again(tmp_path: Path, models: Models) -> None:
    """It has no effect but to say who goes on."""
    place = Place()

    async def stay(**given: Any) -> None:
        await place.pass_by("transfer")

    script = [[ToolCall("transfer_to_agent", {"agent_name": "second"}), Finish()], [Text("It is me."), Finish()]]
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:

        def root() -> LlmAgent:
            second = LlmAgent(name="second", model=gemini(models, provider))
            return LlmAgent(
                name="first", model=gemini(models, provider), sub_agents=[second], before_tool_callback=stay
            )

        processes = await stack.enter_async_context(Processes(tmp_path, root))
        run_id = await processes.begin(place)
        place.passed.set()
        view = await processes.go_on(run_id)
        assert said(view) == ["It is me."]
        assert [call.state for call in view.calls.values()] == [CallState.COMPLETED]


class Nodes:
    """A workflow of two functions around an agent. The last one is where the process ends."""

    def __init__(self, place: Place, model: Callable[[], Any], **last: Any) -> None:
        self.ran: list[str] = []

        def prepare(node_input: str) -> Event:
            self.ran.append("prepare")
            return Event(output=f"prepared {node_input}", state={"prepared": True})

        async def count(ctx: Any, node_input: str) -> None:
            self.ran.append("count")
            ctx.state["count"] = 3
            ctx.output = f"counted {node_input}"

        async def check(node_input: str) -> AsyncIterator[Event]:
            yield Event(state={"checked": node_input})
            yield Event(output=await place.pass_by("check"))

        nodes = [FunctionNode(func=prepare), FunctionNode(func=count), FunctionNode(func=check, **last)]
        self.root = lambda: Workflow(name="flow", edges=[(START, *nodes[:2], agent_of(model()), nodes[2])])


@pytest.mark.parametrize("last", [{"rerun_on_resume": True}, {"retry_config": RetryConfig(max_attempts=2)}])
async def test_function_nodes_give_what_they_gave(last: dict[str, Any], tmp_path: Path, models: Models) -> None:
    place = Place()
    async with scripted("gemini", [END]) as provider, AsyncExitStack() as stack:
        nodes = Nodes(place, lambda: gemini(models, provider), **last)
        processes = await stack.enter_async_context(Processes(tmp_path, nodes.root))
        run_id = await processes.begin(place)
        place.passed.set()
        assert said(await processes.go_on(run_id)) == ["Done."]
        session = await processes.session()
    assert nodes.ran == ["prepare", "count"]
    assert place.began == ["check", "check"]
    assert len(provider.requests) == 1
    assert "counted prepared Go" in provider.requests[0].body.decode()
    state = {key: value for key, value in session.state.items() if not key.startswith("_")}
    assert state == {"prepared": True, "count": 3, "checked": "Done."}
    assert [event.output for event in session.events if event.output] == [
        "prepared Go",
        "counted prepared Go",
        "check done",
    ]


async def test_a_function_node_that_may_not_run_again_ends_the_run(tmp_path: Path, models: Models) -> None:
    place = Place()
    async with scripted("gemini", [END]) as provider, AsyncExitStack() as stack:
        nodes = Nodes(place, lambda: gemini(models, provider))
        processes = await stack.enter_async_context(Processes(tmp_path, nodes.root))
        run_id = await processes.begin(place)
        place.passed.set()
        with pytest.raises(CannotGoOn, match=r"check\S* was running"):
            await processes.go_on(run_id)
    assert place.began == ["check"]


async def test_a_confirmed_tool_that_was_running_is_not_run_again(tmp_path: Path, models: Models) -> None:
    """The run that brings the confirmation is not the one that made the call."""
    place = Place()

    @tool
    async def remove() -> str:
        """Removes."""
        return await place.pass_by("remove")

    script = [[ToolCall("remove", {}), Finish()], [Text("I look."), Finish()]]
    async with scripted("gemini", script) as provider, AsyncExitStack() as stack:
        tools = [FunctionTool(remove, require_confirmation=True)]
        processes = await stack.enter_async_context(
            Processes(tmp_path, lambda: agent_of(gemini(models, provider), *tools))
        )
        async with processes.next() as agent:
            await Client(agent).send("Go")
            asked = await agent.callstream.journal.calls(states=[CallState.AWAITING])
            (question,) = [call for call in asked if call.name == "adk_request_confirmation"]
        resume = [{"interruptId": question.call_id, "status": "resolved", "payload": {"confirmed": True}}]
        run_id = await processes.begin(place, resume=resume, messages=[])
        place.passed.set()
        assert said(await processes.go_on(run_id)) == ["I look."]
        assert "may or may not have taken effect" in provider.requests[1].body.decode()
    assert place.began == ["remove"]


async def test_what_is_stored_is_known_again_in_any_order_of_keys(tmp_path: Path) -> None:
    """PostgreSQL gives JSON back in an order of its own."""
    service = SqliteSessionService(str(tmp_path / "sessions.db"))
    key = {"app_name": "app", "user_id": "user", "session_id": "session"}

    def called(invocation_id: str, args: dict[str, Any]) -> Event:
        call = types.FunctionCall(id="c", name="write", args=args)
        content = types.Content(role="model", parts=[types.Part(function_call=call)])
        return Event(author="writer", invocation_id=invocation_id, content=content)

    session = await service.create_session(**key)
    before = KeptSession.read(keep_session(session))
    await service.append_event(session, called("e-1", {"body": "b", "deep": {"y": 1, "x": [2]}}))
    resumed = ResumedSessions(service, before)
    known = await resumed.get_session(**key)
    assert known is not None
    await resumed.append_event(known, called("e-2", {"deep": {"x": [2], "y": 1}, "body": "b"}))
    await resumed.append_event(known, called("e-2", {"body": "new"}))
    stored = await service.get_session(**key)
    assert stored is not None
    assert [event.invocation_id for event in stored.events] == ["e-1", "e-1"]
    assert [event.invocation_id for event in known.events] == ["e-2", "e-2"]


async def test_what_a_former_owner_stores_late_counts_as_stored(tmp_path: Path) -> None:
    """It was stopped for longer than its lease, and comes back in the middle of a write."""
    service = SqliteSessionService(str(tmp_path / "sessions.db"))
    key = {"app_name": "app", "user_id": "user", "session_id": "session"}

    def said(text: str, invocation_id: str) -> Event:
        content = types.Content(role="model", parts=[types.Part(text=text)])
        return Event(author="writer", invocation_id=invocation_id, content=content)

    session = await service.create_session(**key)
    resumed = ResumedSessions(service, KeptSession.read(keep_session(session)))
    assert (await resumed.create_session(**key)).id == "session"
    known = await resumed.get_session(**key)
    assert known is not None
    await service.append_event(session, said("one", "e-1"))
    await resumed.append_event(known, said("one", "e-2"))
    await service.append_event(session, said("two", "e-1"))
    await resumed.append_event(known, said("other", "e-2"))
    await resumed.append_event(known, said("two", "e-2"))
    stored = await service.get_session(**key)
    assert stored is not None
    assert [event.content.parts[0].text for event in stored.events] == ["one", "two", "other"]
    assert {event.invocation_id for event in stored.events} == {"e-1"}
