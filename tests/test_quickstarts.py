"""Every block of the quickstarts is executed as it stands, against scripted providers over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from anthropic import AsyncAnthropic
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
from callstream.testing import Call, Finish, ScriptedProvider, Text, stream_args
from tests.captures import ROOT

DOCUMENT = {"title": "Tides", "content": "The moon pulls, and the sea follows.\n" * 12}
TURN = [[Text("I write."), Call("write_document", DOCUMENT, call_id="c1", size=8)], [Text("Written.")]]


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


async def test_the_plain_sdk_loop_tells_the_model_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = Call("write_document", {"title": "", "content": "The moon pulls."}, call_id="c1")
    sound = Call("write_document", DOCUMENT, call_id="c2")
    cut_off = [Call("write_document", DOCUMENT, call_id="c3", stop_after=3), Finish("length")]
    script = [[Text("I write."), rejected, sound], cut_off, [Text("Written.")]]
    async with ScriptedProvider("anthropic", script) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        names = executed("quickstart/plain-sdk.md")

        @names["write_document"].on_args_complete
        async def check(call: Any, signal: Any) -> None:
            if not call.args["title"]:
                raise Reject("a document needs a title")

        assert await names["turn"]("Write of tides.") == "Written."
        second, third = (request.json["messages"] for request in provider.requests[1:])
        assert [block["type"] for block in second[1]["content"]] == ["text", "tool_use", "tool_use"]
        told = {result["tool_use_id"]: (result["content"], result.get("is_error")) for result in second[2]["content"]}
        length = len(DOCUMENT["content"])
        assert told == {"c1": ("a document needs a title", True), "c2": (str({"characters": length}), None)}
        assert third[:3] == second
        [note] = third[3]["content"]
        assert note["text"].startswith("the arguments of write_document were cut off")
        states = {call.call_id: call.state for call in await names["cs"].journal.calls()}
        assert states == {"c1": "discarded", "c2": "completed", "c3": "discarded"}
        await names["client"].close()
        await names["cs"].aclose()


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
    script = [[Call("print_slowly", {"copies": 3}, call_id="c1")], [Text("Printed.")]]
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
    async with ScriptedProvider("anthropic", [Call("publish", {"title": "Tides"}, call_id="c1")]) as provider:
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
    assert [message["role"] for message in snapshot["messages"]] == ["user", "assistant"]
    known = snapshot["messages"][1]["toolCalls"][0]["function"]["arguments"]
    assert known + "".join(event["delta"] for event in joined if event["type"] == "TOOL_CALL_ARGS") == '{"why":"sea"}'
    assert [events[-1]["outcome"]["pendingToolCallIds"] for events in (seen, joined)] == [["c1"], ["c1"]]


def sse_events(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: ")]
