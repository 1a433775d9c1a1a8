"""Every block of the quickstarts is executed as it stands, against scripted providers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from ag_ui.core import RunAgentInput
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from callstream import Callstream, Reject, open_journal
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallStarted,
    MessageReceived,
    MessageStarted,
    RunEnded,
    RunStarted,
)
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall, stream_args
from tests.captures import ROOT

DOCUMENT = {"title": "Tides", "content": "The moon pulls, and the sea follows.\n" * 12}
TURN = [[Text("I write."), ToolCall("write_document", DOCUMENT, call_id="c1", size=8)], [Text("Written.")]]


def blocks(page: str, language: str = "python") -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def executed(page: str) -> dict[str, Any]:
    """What all Python blocks of a page define, one after the other."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for provider in ("ANTHROPIC", "OPENAI", "GOOGLE"):
        monkeypatch.setenv(f"{provider}_API_KEY", "none")


@pytest.mark.parametrize(("page", "ask"), [("quickstart/plain-sdk.md", "turn"), ("quickstart/pydantic-ai.md", "ask")])
async def test_quickstart_over_anthropic(
    page: str, ask: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedProvider("anthropic", TURN) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        names = executed(page)
        assert await names[ask]("Write of tides.") in ("Written.", "I write.Written.")
        assert capsys.readouterr().out == DOCUMENT["content"]
        call = await names["cs"].journal.call("c1")
        assert (call.state, call.args) == ("completed", DOCUMENT)
        await names["client"].close()
        await names["cs"].aclose()


PLAIN = {
    "anthropic": ("turn", "client", "ANTHROPIC_BASE_URL"),
    "openai_chat": ("chat_turn", "openai", "OPENAI_BASE_URL"),
    "openai_responses": ("responses_turn", "openai", "OPENAI_BASE_URL"),
    "gemini": ("gemini_turn", "gemini", "GOOGLE_GEMINI_BASE_URL"),
}


@contextlib.asynccontextmanager
async def plain_sdk(
    wire: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ScriptedProvider, dict[str, Any], Any]]:
    """The page as a program: the provider, what the page defines, and its loop for that wire."""
    turn, client, base_url = PLAIN[wire]
    async with ScriptedProvider(wire, script, stream_args_unasked=True) as provider:
        monkeypatch.setenv(base_url, provider.base_url)
        names = executed("quickstart/plain-sdk.md")
        yield provider, names, names[turn]
        for name in {"client", "openai", client} - {"gemini"}:
            await names[name].close()
        await names["cs"].aclose()


@pytest.mark.parametrize("wire", PLAIN)
async def test_the_plain_sdk_loops(
    wire: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with plain_sdk(wire, TURN, monkeypatch) as (provider, names, turn):
        assert await turn("Write of tides.") == "Written."
        assert capsys.readouterr().out == DOCUMENT["content"]
        assert f'{{"characters":{len(DOCUMENT["content"])}}}' in told(provider.requests[1].body)
        [call] = await names["cs"].journal.calls()
        assert call.state == "completed"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the SDK sends back an input that is a list
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
@pytest.mark.parametrize("wire", PLAIN)
async def test_the_plain_sdk_loops_tell_the_model_of_every_mistake(
    wire: str, ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistakes = [
        ToolCall("write_document", {"title": "", "content": "The moon pulls."}),
        ToolCall("write_document", DOCUMENT),
        ToolCall("write_document", {"title": "Tides"}),
        ToolCall("write_document", {"title": "Tides", "content": "", "colour": "blue"}),
        ToolCall("write_document", {"title": "Tides", "content": 7}),
        ToolCall("wrote_document", {}),
    ]
    if ids:
        mistakes = [msgspec.structs.replace(call, call_id=f"c{number}") for number, call in enumerate(mistakes)]
    texts = [
        "a document needs a title",
        '"characters"',
        "write_document did not run: the argument 'content' is missing",
        "write_document did not run: there is no argument 'colour'",
        "write_document did not run: the argument 'content' should be a string, got the number 7",
        "there is no tool wrote_document; the tools are: write_document",
    ]
    cut_off = [ToolCall("write_document", DOCUMENT, stop_after=3), Finish("length")]
    invented = [Text("So."), ToolCall("wrote_document", DOCUMENT, stop_after=3), Finish("length")]
    script = [[Text("I write."), *mistakes], cut_off, invented, [Text("Written.")]]
    if wire != "gemini":  # there arguments are always an object
        mistakes.append(ToolCall("write_document", text='["a"]'))
        texts.append("the arguments of write_document cannot be read (the arguments are not an object)")
        script[0] = [Text("I write."), *mistakes]
    async with plain_sdk(wire, script, monkeypatch) as (provider, names, turn):

        @names["write_document"].on_args_complete
        async def check(call: Any, signal: Any) -> None:
            if isinstance(call.args, dict) and not call.args["title"]:
                raise Reject("a document needs a title")

        assert await turn("Write of tides.") == "Written."
        second, third, fourth = (told(request.body) for request in provider.requests[1:])
        places = [second.index(text) for text in texts]
        assert places == sorted(places)
        assert [third.count(text) for text in texts] == [second.count(text) for text in texts]
        assert "the arguments of write_document were cut off" not in second
        assert third.count("the arguments of write_document were cut off") == 1
        assert fourth.count("the arguments of wrote_document were cut off") == 1
        assert fourth.count('"name":"wrote_document"') == second.count('"name":"wrote_document"')  # no half of a call
        assert "will_continue" not in fourth
        states = [call.state for call in await names["cs"].journal.calls()]
        assert sorted(states) == sorted(["completed", *["discarded"] * (len(mistakes) + 1)])


def told(body: bytes) -> str:
    """A request as text, in which JSON inside of JSON reads as JSON."""
    return body.decode().replace('\\"', '"')


@pytest.mark.parametrize("is_tapped", [False, True], ids=["bare", "tapped"])
async def test_the_sdks_own_streams_raise_for_what_was_cut_off(
    is_tapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tap and without: that is why the loops of the page read the stream as they do."""
    cut_off = [ToolCall("write_document", DOCUMENT, stop_after=3), Finish("length")]
    asked: Any = [{"role": "user", "content": "go"}]

    async def chat(client: AsyncOpenAI, tools: Any) -> None:
        async with client.chat.completions.stream(model="m", messages=asked, tools=tools) as stream:
            await stream.get_final_completion()

    async def responses(client: AsyncOpenAI, tools: Any) -> None:
        async with client.responses.stream(model="m", input=asked, tools=tools) as stream:
            await stream.get_final_response()

    for wire, ask, error in (
        ("openai_chat", chat, openai.LengthFinishReasonError),
        ("openai_responses", responses, RuntimeError),
    ):
        async with plain_sdk(wire, [cut_off], monkeypatch) as (provider, names, _):
            tools = [names["write_document"].schema(wire)]
            async with AsyncOpenAI(base_url=provider.base_url, api_key="none") as bare:
                async with names["cs"].run("thread", rejected="forward"):
                    with pytest.raises(error):
                        await ask(names["openai"] if is_tapped else bare, tools)


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")
@pytest.mark.parametrize("which", ["app", "live_app"])
async def test_quickstart_google_adk(
    which: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The app as it is, and with the plugin; both behind an ADKAgent, which is what ``callstream serve`` makes of them."""
    from callstream.adk import ADKAgent

    async with ScriptedProvider("gemini", TURN, stream_args_unasked=True) as provider:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", provider.base_url)
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        names = executed("quickstart/google-adk.md")
        agent = ADKAgent.from_app(names[which], user_id="user")
        given = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Tides"}]}
        events = [event async for event in agent.run(RunAgentInput.model_validate(given))]
        shown = [event.model_dump(by_alias=True, mode="json") for event in events]
        args = "".join(event["delta"] for event in shown if event["type"] == "TOOL_CALL_ARGS")
        assert json.loads(args) == DOCUMENT
        assert capsys.readouterr().out == DOCUMENT["content"]
        assert any(event["type"] == "ACTIVITY_SNAPSHOT" for event in shown)
        await agent.close()
        await names["cs"].aclose()


async def test_howto_blocks_run() -> None:
    progress = executed("howto/progress.md")
    assert await progress["print_copies"](3) == "3 copies"
    assert executed("howto/approvals.md")["agent"].tools
    json.loads(blocks("howto/approvals.md", "json")[0].replace("adk-…", "adk-1"))


async def test_the_journal_read_with_sql() -> None:
    begun = [RunStarted("t"), MessageStarted("m"), CallStarted("toolu_01", "ask", message_id="m")]
    args = [ArgsAppended("toolu_01", '{"why":'), ArgsAppended("toolu_01", '"sea"}'), CallCompleted("toolu_01")]
    async with open_journal("sqlite:///calls.db") as journal:
        await journal.append("r1", [*begun, *args, CallAwaiting("toolu_01"), RunEnded("finished")])
        of_a_day, yesterday, _, pieces = blocks("howto/journal.md", "sql")
        state = "WHERE thread_id = 't' AND state = 'awaiting'"
        of_a_day = of_a_day.replace("WHERE thread_id = 'thread-1' AND state = 'failed'", state)
        of_a_day = of_a_day.replace("2026-01-30", "1970-01-01").replace("2026-01-31", "9999-01-01")
        with contextlib.closing(sqlite3.connect("calls.db")) as database:
            assert [row[:2] for row in database.execute(of_a_day)] == [("toolu_01", "ask")]
            assert database.execute(yesterday.split(";")[0]).fetchall() == []
            assert database.execute(pieces).fetchall() == [('{"why":',), ('"sea"}',)]
            await journal.compact("r1")
            assert database.execute(pieces).fetchall() == [('{"why":"sea"}',)]


async def test_a_document_grows_in_a_file() -> None:
    names = executed("howto/hooks.md")
    driven = await stream_args(names["write_document"], DOCUMENT)
    draft = names["draft_of"](driven.call.call_id)
    assert draft.read_text(encoding="utf-8") == DOCUMENT["content"]
    assert await driven.run() == {"characters": len(DOCUMENT["content"])}

    await stream_args(names["write_document"], DOCUMENT, stop_after=9)
    assert not draft.exists()


async def test_a_tool_of_pydantic_ai_reports_its_progress() -> None:
    names = executed("howto/progress.md")
    reported: list[Any] = []
    cs = Callstream(on_tool_progress=lambda *report: reported.append(report))
    script = [[ToolCall("print_slowly", {"copies": 3}, call_id="c1")], [Text("Printed.")]]
    async with ScriptedProvider("anthropic", script) as provider:
        http = cs.httpx2_client(collapse="all")
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http) as client:
            model = AnthropicModel("claude", provider=AnthropicProvider(anthropic_client=client))
            agent = Agent(model, tools=[Tool(names["print_slowly"], takes_ctx=True)])
            async with cs.run("t"):
                assert (await agent.run("Print.")).output == "Printed."
    assert reported == [("print_slowly", "c1", {"done": 1, "total": 3, "message": "printing"})]
    call = await cs.journal.call("c1")
    assert call is not None
    assert call.state == "completed"
    await cs.aclose()


@pytest.mark.parametrize(
    ("approved", "state", "told"), [(True, "completed", "Tides is published"), (False, "failed", "the user said no")]
)
async def test_a_plain_sdk_program_asks_a_person(approved: bool, state: str, told: str) -> None:
    asking, later = executed("howto/approvals.md"), executed("howto/approvals.md")  # two processes, so to speak
    asked = {"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "go"}]}
    async with ScriptedProvider("anthropic", [ToolCall("publish", {"title": "Tides"}, call_id="c1")]) as provider:
        http = asking["cs"].httpx2_client()
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http) as client:
            async with asking["cs"].run("t") as run:
                async with client.messages.stream(**asked) as stream:
                    await stream.get_final_message()
                await asking["ask"](run)
    await asking["cs"].aclose()
    assert await later["waiting"]("t") == ["c1"]
    assert await later["decide"]("t", "c1", approved) == told
    assert await later["decide"]("t", "c1", approved) is None
    assert await later["waiting"]("t") == []
    assert (await later["cs"].journal.call("c1")).state == state
    await later["cs"].aclose()


async def test_a_plain_sdk_loop_stops_while_a_call_awaits_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request has a result for each call, whatever the calls of a response wait for."""
    both = [
        ToolCall("write_document", DOCUMENT, call_id="c1"),
        ToolCall("publish", {"title": "Tides"}, call_id="c2"),
        ToolCall("publish", {"title": "Ebb"}, call_id="c3"),
    ]
    cut_off = [ToolCall("write_document", DOCUMENT, stop_after=3), Finish("length")]
    async with ScriptedProvider("anthropic", [both, cut_off, [Text("Done.")]]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        names = executed("howto/approvals.md")
        messages: list[Any] = [{"role": "user", "content": "go"}]
        results = await names["turn"]("t", messages)
        assert list(results) == ["c1"]
        results = await names["answer_call"]("t", messages, results, "c3", approved=False)
        assert len(provider.requests) == 1
        assert await names["answer_call"]("t", messages, results, "c2", approved=True) is None
        await names["client"].close()
        await names["cs"].aclose()
    second, third = (request.json["messages"] for request in provider.requests[1:])
    told = [(block["tool_use_id"], block["content"]) for block in second[-1]["content"]]
    size = f"{len(DOCUMENT['content'])} characters"
    assert told == [("c1", size), ("c2", "Tides is published"), ("c3", "the user said no")]
    assert "were cut off" in third[-1]["content"][0]["text"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user", "assistant"]


async def test_a_person_who_clicks_twice_is_heard_once() -> None:
    names = executed("howto/approvals.md")
    cs, decide = names["cs"], names["decide"]
    for approved in ((True, True), (True, False), (False, False)):
        async with cs.run("t") as run:
            call_id = await run.free_call_id("c")
            args = '{"title": "Tides"}'
            await run.record([CallStarted(call_id, "publish", call_id), CallCompleted(call_id, args)])
            await names["ask"](run)
        heard = await asyncio.gather(*(decide("t", call_id, each) for each in approved))
        assert heard.count(None) == 1
        assert [text for text in heard if text is not None] in (["Tides is published"], ["the user said no"])
    await cs.aclose()


async def test_the_streams_of_the_agui_page() -> None:
    """One sees a run from its beginning, the other joins in the middle of an argument; both see the same call."""
    names = executed("agui.md")
    async with open_journal("memory:") as journal:
        earlier = [RunStarted("t"), MessageReceived("user", "Hello", "u1"), RunEnded("finished")]
        await journal.append("r1", earlier)
        begun = [RunStarted("t"), MessageStarted("m"), CallStarted("c1", "pick_colour", message_id="m")]
        await journal.append("r2", [*begun, ArgsAppended("c1", '{"why":')])
        joining = names["join"](journal, "t")
        joined = sse_events(await anext(joining))
        rest = [ArgsAppended("c1", '"sea"}'), CallCompleted("c1"), CallAwaiting("c1"), RunEnded("finished")]
        await journal.append("r2", rest)
        joined += sse_events(b"".join([piece async for piece in joining]))
        seen = sse_events(b"".join([piece async for piece in names["stream"](journal, "r2")]))
    assert "".join(event["delta"] for event in seen if event["type"] == "TOOL_CALL_ARGS") == '{"why":"sea"}'
    [snapshot] = [event for event in joined if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [message["role"] for message in snapshot["messages"]] == ["user"]  # what is open is told after it, whole
    assert [event["toolCallName"] for event in joined if event["type"] == "TOOL_CALL_START"] == ["pick_colour"]
    assert "".join(event["delta"] for event in joined if event["type"] == "TOOL_CALL_ARGS") == '{"why":"sea"}'
    assert [events[-1]["outcome"]["pendingToolCallIds"] for events in (seen, joined)] == [["c1"], ["c1"]]


def sse_events(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: ")]
