"""Programs whose runs go on when they are started again (``cs.run(…, continues=True)``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic

from callstream import CallState, Callstream, Run, open_journal, results_in, tool
from callstream.calls import Call
from callstream.cli import main as callstream
from callstream.errors import CannotGoOn, Diverged, RunIdTaken, RunOver, UsageError
from callstream.events import MessageReceived, Record, ResultReceived, RunResumed
from callstream.guards import APPROVAL
from callstream.runtime.claims import REFUSED
from callstream.runtime.continuing import INTERRUPTED
from callstream.testing import Finish, Parallel, ReceivedRequest, Script, ScriptedProvider, Text, ToolCall
from callstream.tools import NOT_DONE, current_call
from tests.gated import PATIENCE

pytestmark = pytest.mark.asyncio


class Model:
    """Looks something up, then writes twice at once, then is done. ``asked``: the results that each request brought."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    def __call__(self, request: ReceivedRequest) -> Script:
        if b'"tools"' not in request.body:
            return [Text("A leaf."), Finish()]
        results = [event for event in results_in("anthropic", request.body) if isinstance(event, ResultReceived)]
        self.asked.append([result.content for result in results])
        match len(results):
            case 0:
                return [Text("I look. "), ToolCall("look", {"what": "tea"}), Finish()]
            case 1:
                return [Text("I write. "), Parallel([ToolCall("write", {"text": each}) for each in "ab"]), Finish()]
            case _:
                return [Text("Done."), Finish()]


class Stage:
    """A program that is started again and again, on one journal."""

    def __init__(self, url: str, provider: ScriptedProvider) -> None:
        self.url = url
        self.provider = provider
        self.ran: list[str] = []
        self.keys: list[str] = []
        self.hangs_at: str | None = None
        self.hanging = asyncio.Event()
        self.question = "Make tea."
        self.how: dict[str, Any] = {}
        self.write_how: dict[str, Any] = {}

    def tools(self) -> list[Any]:
        @tool(replay="safe")
        async def look(what: str) -> dict[str, str]:
            """Looks something up."""
            await self._work(f"look {what}")
            return {"found": what}

        @tool(**self.write_how)
        async def write(text: str) -> str:
            """Writes."""
            await self._work(f"write {text}")
            return f"wrote {text}"

        return [look, write]

    async def _work(self, did: str) -> None:
        call = current_call()
        assert call is not None
        self.ran.append(did)
        self.keys.append(call.idempotency_key)
        if did == self.hangs_at:
            self.hanging.set()
            await asyncio.Event().wait()

    async def start(self, turn: Callable[[Stage, AsyncAnthropic, Run, list[Any]], Awaitable[str]]) -> str:
        """Runs the program to its end, or until it hangs: then its process is gone."""
        cs = Callstream(open_journal(self.url, housekeeping=None), tools=self.tools())
        client = AsyncAnthropic(base_url=self.provider.base_url, api_key="none", http_client=cs.http_client())
        current: list[Run] = []

        async def program() -> str:
            async with cs.run("thread", "order-1", continues=True, **self.how) as run:
                current.append(run)
                return await turn(self, client, run, [made.schema("anthropic") for made in cs.tools.values()])

        working = asyncio.create_task(program())
        hanging = asyncio.create_task(self.hanging.wait())
        try:
            await asyncio.wait({working, hanging}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                assert await current[0].hand_over()  # as a process leaves it that is killed
                working.cancel()
                await asyncio.wait({working})
                self.hanging.clear()
                self.hangs_at = None
                return "killed"
            return working.result()
        finally:
            hanging.cancel()
            await client.close()
            await cs.aclose()

    async def call(self, call_id: str) -> Call:
        async with open_journal(self.url, housekeeping=None) as journal:
            found = await journal.call(call_id)
        assert found is not None
        return found

    async def records(self) -> list[Record]:
        async with open_journal(self.url, housekeeping=None) as journal:
            return await journal.read_whole(["order-1"])


async def by_run_tools(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
    """A loop over ``run.run_tools()``."""
    messages: list[Any] = [{"role": "user", "content": stage.question}]
    while True:
        async with client.messages.stream(model="m", max_tokens=99, messages=messages, tools=tools) as stream:
            answer = await stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        results = await run.run_tools()
        if not results:
            return "".join(block.text for block in answer.content if block.type == "text")
        content = [
            {"type": "tool_result", "tool_use_id": each.wire_id, "content": each.text, "is_error": each.is_error}
            for each in results
        ]
        messages.append({"role": "user", "content": content})


async def by_calling(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
    """A loop that calls the tools itself, as frameworks do, and asks without streaming."""
    functions = run.engine.tools
    messages: list[Any] = [{"role": "user", "content": stage.question}]
    while True:
        answer = await client.messages.create(model="m", max_tokens=99, messages=messages, tools=tools)
        messages.append({"role": "assistant", "content": answer.content})
        uses = [block for block in answer.content if block.type == "tool_use"]
        if not uses:
            return "".join(block.text for block in answer.content if block.type == "text")
        values = [await functions[use.name](**use.input) for use in uses]
        content = [
            {"type": "tool_result", "tool_use_id": use.id, "content": str(value)}
            for use, value in zip(uses, values, strict=True)
        ]
        messages.append({"role": "user", "content": content})


LOOPS = pytest.mark.parametrize("loop", [by_run_tools, by_calling])


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def stage(tmp_path: Path, model: Model) -> AsyncIterator[Stage]:
    async with ScriptedProvider("anthropic", model) as provider:
        yield Stage(f"sqlite:///{tmp_path / 'calls.db'}", provider)


@LOOPS
async def test_what_is_known_is_given_back_and_the_rest_is_asked(stage: Stage, model: Model, loop: Any) -> None:
    stage.hangs_at = "write b"
    assert await stage.start(loop) == "killed"
    assert stage.ran == ["look tea", "write a", "write b"]
    asked = len(model.asked)
    assert await stage.start(loop) == "Done."
    assert stage.ran == ["look tea", "write a", "write b"]  # nothing ran again
    assert len(model.asked) == asked + 1  # the first request that had no answer
    assert model.asked[-1][1:] == ["wrote a", INTERRUPTED]
    events = [record.event for record in await stage.records()]
    assert [event for event in events if isinstance(event, RunResumed)] == [RunResumed(2)]
    assert sum(isinstance(event, MessageReceived) for event in events) == 1


@LOOPS
async def test_a_safe_tool_runs_again_with_the_same_key(stage: Stage, model: Model, loop: Any) -> None:
    stage.hangs_at = "look tea"
    assert await stage.start(loop) == "killed"
    assert await stage.start(loop) == "Done."
    assert stage.ran == ["look tea", "look tea", "write a", "write b"]
    assert stage.keys[0] == stage.keys[1]
    assert len(model.asked) == 3


@LOOPS
async def test_reconcile_says_what_has_become_of_a_tool(stage: Stage, model: Model, loop: Any) -> None:
    answers = {"write a": NOT_DONE, "write b": "found b"}
    stage.write_how = {"reconcile": lambda call: answers[f"write {call.args['text']}"]}
    for stage.hangs_at in ("write a", "write b"):
        assert await stage.start(loop) == "killed"
    assert await stage.start(loop) == "Done."
    assert stage.ran == ["look tea", "write a", "write a", "write b"]
    assert model.asked[-1][1:] == ["wrote a", "found b"]


async def the_question(stage: Stage) -> Call:
    """What a person is asked, when it is."""
    async with open_journal(stage.url, housekeeping=None) as journal, asyncio.timeout(PATIENCE):
        while True:
            for call in await journal.calls(states=[CallState.AWAITING]):
                if call.name == APPROVAL:
                    return call
            await asyncio.sleep(0.01)


@LOOPS
@pytest.mark.parametrize(
    ("said", "told", "runs"),
    [
        ({"confirmed": True}, "wrote b", 2),
        ({"confirmed": False}, REFUSED, 1),
        ({"confirmed": False, "payload": {"result": "was written"}}, "was written", 1),
    ],
    ids=["yes", "no", "done"],
)
async def test_a_person_decides_about_a_tool_that_was_running(
    stage: Stage, model: Model, loop: Any, said: Any, told: str, runs: int
) -> None:
    stage.write_how = {"replay": "ask"}
    stage.hangs_at = "write b"
    assert await stage.start(loop) == "killed"
    going_on = asyncio.create_task(stage.start(loop))
    question = await the_question(stage)
    assert json.loads((await stage.call(question.call_id)).args_json or "")["arguments"] == {"text": "b"}
    answer = ("answer", question.call_id, json.dumps(said), "--journal", stage.url)
    assert await asyncio.to_thread(callstream, answer) == 0
    assert await going_on == "Done."
    assert stage.ran == ["look tea", "write a", *["write b"] * runs]
    assert stage.keys[2:] == [stage.keys[2]] * runs
    assert model.asked[-1][1:] == ["wrote a", told]


async def test_a_person_is_asked_once_however_often_the_program_is_started(stage: Stage, model: Model) -> None:
    stage.write_how = {"replay": "ask"}
    stage.hangs_at = "write b"
    assert await stage.start(by_run_tools) == "killed"
    asked = []
    for _ in range(2):
        stage.hanging.clear()
        going_on = asyncio.create_task(stage.start(by_run_tools))
        asked.append((await the_question(stage)).call_id)
        if len(asked) == 1:
            stage.hanging.set()
            assert await going_on == "killed"
    assert asked[0] == asked[1]
    answer = ("answer", asked[0], '{"confirmed": true}', "--journal", stage.url)
    assert await asyncio.to_thread(callstream, answer) == 0
    assert await going_on == "Done."
    assert stage.ran == ["look tea", "write a", "write b", "write b"]


async def test_a_question_of_a_run_that_is_stopped_is_withdrawn(stage: Stage) -> None:
    runs: list[Run] = []

    async def loop(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
        runs.append(run)
        return await by_run_tools(stage, client, run, tools)

    stage.write_how = {"replay": "ask"}
    stage.hangs_at = "write a"
    assert await stage.start(loop) == "killed"
    going_on = asyncio.create_task(stage.start(loop))
    question = await the_question(stage)
    await runs[-1].stop()
    with pytest.raises(RunOver, match="while a person was asked about tool 'write'"):
        await going_on
    assert (await stage.call(question.call_id)).state is CallState.FAILED
    async with open_journal(stage.url, housekeeping=None) as journal:
        assert await journal.calls(states=[CallState.AWAITING]) == []


async def test_a_tool_that_failed_has_failed(stage: Stage, model: Model) -> None:
    def fails(did: str) -> None:
        stage.ran.append(did)
        raise ValueError("no paper")

    @tool
    async def look(what: str) -> str:
        """Looks."""
        fails(f"look {what}")
        return what

    tools = stage.tools()
    stage.tools = lambda: [look, tools[1]]  # type: ignore[method-assign]
    stage.hangs_at = "write a"
    assert await stage.start(by_run_tools) == "killed"
    assert await stage.start(by_run_tools) == "Done."
    assert stage.ran == ["look tea", "write a", "write b"]
    assert model.asked[-1] == ["ValueError: no paper", INTERRUPTED, "wrote b"]


async def test_the_third_attempt_is_the_last(stage: Stage) -> None:
    for _ in range(3):
        stage.hangs_at = "look tea"
        assert await stage.start(by_run_tools) == "killed"
    with pytest.raises(RunOver, match=r"order-1' has failed \(interrupted\)"):
        await stage.start(by_run_tools)


async def test_a_run_that_has_ended_is_over(stage: Stage) -> None:
    assert await stage.start(by_run_tools) == "Done."
    with pytest.raises(RunOver, match="order-1' has finished; a new one needs another id"):
        await stage.start(by_run_tools)


async def test_a_request_that_differs_fails_or_is_asked(
    stage: Stage, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    stage.hangs_at = "write a"
    assert await stage.start(by_run_tools) == "killed"
    stage.question, stage.how = "Make coffee.", {"on_divergence": "ask"}
    assert await stage.start(by_run_tools) == "Done."
    assert [len(results) for results in model.asked] == [0, 1, 0, 1, 3]
    void = [record.event.void for record in await stage.records() if isinstance(record.event, RunResumed)]
    assert [len(each) for each in void] == [0, 2]
    [said] = [record.getMessage() for record in caplog.records if "the model is asked" in record.getMessage()]
    assert said.startswith("the run asks its model something other than before")


async def test_a_request_that_differs_fails_the_run(stage: Stage, model: Model) -> None:
    stage.hangs_at = "write a"
    assert await stage.start(by_run_tools) == "killed"
    stage.question = "Make coffee."
    with pytest.raises(Diverged, match=r"messages/0"):
        await stage.start(by_run_tools)
    with pytest.raises(RunOver, match="failed"):
        await stage.start(by_run_tools)
    assert len(model.asked) == 2


async def test_a_run_with_a_tool_that_is_not_ours_does_not_go_on(stage: Stage) -> None:
    async def with_another(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
        other = {"name": "other", "description": "", "input_schema": {"type": "object", "properties": {}}}
        await client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "?"}], tools=[other]
        )
        assert run.keeping is not None
        assert run.keeping.is_given_up
        return "given up"

    assert await stage.start(with_another) == "given up"


async def test_what_a_tool_asks_is_not_asked_again(stage: Stage, model: Model) -> None:
    """A tool that has returned is not entered again, so what it asked a model stands in nobody's way."""
    clients: list[AsyncAnthropic] = []

    @tool
    async def look(what: str) -> str:
        """Asks another model."""
        stage.ran.append("look")
        answer = await clients[-1].messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": what}]
        )
        return answer.content[0].text  # type: ignore[union-attr]

    async def loop(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
        clients.append(client)
        return await by_run_tools(stage, client, run, tools)

    tools = stage.tools()
    stage.tools = lambda: [look, tools[1]]  # type: ignore[method-assign]
    stage.hangs_at = "write a"
    assert await stage.start(loop) == "killed"
    assert await stage.start(loop) == "Done."
    assert stage.ran.count("look") == 1


async def test_a_sync_program_goes_on(stage: Stage, model: Model) -> None:
    ran: list[str] = []

    def start(hangs: bool) -> str:
        @tool
        def look(what: str) -> str:
            """Looks."""
            ran.append(what)
            return what

        @tool
        def write(text: str) -> str:
            """Writes."""
            ran.append(text)
            return text

        cs = Callstream(open_journal(stage.url, housekeeping=None), tools=[look, write])
        client = Anthropic(base_url=stage.provider.base_url, api_key="none", http_client=cs.sync_http_client())
        with cs, client:
            tools: list[Any] = [look.schema("anthropic"), write.schema("anthropic")]
            messages: list[Any] = [{"role": "user", "content": "Go"}]
            functions: Any = {"look": look, "write": write}
            with cs.run("thread", "order-1", continues=True) as run:
                while True:
                    answer = client.messages.create(model="m", max_tokens=9, messages=messages, tools=tools)
                    messages.append({"role": "assistant", "content": answer.content})
                    uses = [block for block in answer.content if block.type == "tool_use"]
                    if hangs and len(uses) == 2:
                        assert run.hand_over()
                        return "killed"
                    if not uses:
                        return "done"
                    results = [(use.id, functions[use.name](**use.input)) for use in uses]
                    content = [
                        {"type": "tool_result", "tool_use_id": each, "content": value} for each, value in results
                    ]
                    messages.append({"role": "user", "content": content})

    assert await asyncio.to_thread(start, True) == "killed"
    assert await asyncio.to_thread(start, False) == "done"
    assert ran == ["tea", "a", "b"]
    assert len(model.asked) == 3


# -- what is refused --


async def test_a_run_that_continues_needs_an_id_and_a_journal_on_disk(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    with pytest.raises(UsageError, match="give it a run_id"):
        Callstream(url).run("thread", continues=True)
    with pytest.raises(UsageError, match="needs a journal on disk"):
        Callstream().run("thread", "r", continues=True)
    with pytest.raises(UsageError, match="has a redact"):
        Callstream(url, redact=lambda event: event).run("thread", "r", continues=True)
    with pytest.raises(UsageError, match="'fail' or 'ask', got 'guess'"):
        Callstream(url).run("thread", "r", continues=True, on_divergence="guess")  # type: ignore[arg-type]


async def test_a_run_that_another_process_works_on_is_not_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with Callstream(open_journal(url, housekeeping=None)) as owner:
        async with owner.run("thread", "r", continues=True) as run:
            async with Callstream(open_journal(url, housekeeping=None, lease_ttl=0.1)) as other:
                with pytest.raises(RunIdTaken, match="another process works on run 'r'"):
                    async with other.run("thread", "r", continues=True):
                        pass
                with pytest.raises(UsageError, match="belongs to thread 'thread'"):
                    async with other.run("another", "r", continues=True):
                        pass
            assert run.outcome is None


async def test_a_run_that_this_process_works_on_is_refused_at_once(tmp_path: Path) -> None:
    """Nobody waits for a lease that this process renews itself."""
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with Callstream(open_journal(url, housekeeping=None, lease_ttl=3600)) as cs:
        async with cs.run("thread", "r", continues=True) as run:
            with pytest.raises(RunIdTaken, match="this Callstream works on run 'r' already"):
                async with cs.run("thread", "r", continues=True):
                    pass
            assert run.outcome is None


async def test_a_run_is_free_when_the_callstream_that_has_handed_it_over_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with Callstream(open_journal(url, housekeeping=None, lease_ttl=0.1)) as cs:
        async with cs.run("thread", "r", continues=True) as run:
            assert await run.hand_over()
        with pytest.raises(RunIdTaken, match="the Callstream that has handed it over is not closed yet"):
            async with cs.run("thread", "r", continues=True):
                pass
    async with Callstream(url) as cs, cs.run("thread", "r", continues=True) as run:
        assert run.seq > 2
    assert run.outcome == "finished"


async def test_a_run_whose_call_awaits_an_answer_is_left_to_the_answer(stage: Stage) -> None:
    async def asks(stage: Stage, client: AsyncAnthropic, run: Run, tools: list[Any]) -> str:
        messages: list[Any] = [{"role": "user", "content": "Go"}]
        await client.messages.create(model="m", max_tokens=9, messages=messages, tools=tools)
        await run.await_answer(run.calls[0].call_id)
        stage.hanging.set()
        return await asyncio.Event().wait() and ""

    assert await stage.start(asks) == "killed"
    with pytest.raises(CannotGoOn, match="awaits an answer"):
        await stage.start(asks)
    async with open_journal(stage.url, housekeeping=None) as journal:
        (call,) = await journal.calls(run_id="order-1")
    assert call.state is CallState.AWAITING
    for call_id in (call.call_id, "another"):  # only an agent can hear the first answer
        answer = ("answer", call_id, "1", "--journal", stage.url)
        assert await asyncio.to_thread(callstream, answer) == 1
