"""The code of docs/howto/streamed.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from anthropic import AsyncAnthropic

from callstream import CallState
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.gated import GatedProvider
from tests.test_quickstarts import executed

CONTENT = "It rises and it falls, twice a day."


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def take_document() -> str | None:
    """What was written, which then is gone."""
    path = Path("Tides.md")
    text = path.read_text(encoding="utf-8") if path.exists() else None
    path.unlink(missing_ok=True)
    return text


async def test_the_page_writes_a_document_while_the_model_does() -> None:
    names = executed("howto/streamed.md")
    await names["test_a_document_is_written"]()
    assert take_document() == "The moon pulls.The moon pulls."
    await names["test_a_document_that_is_not_finished_is_deleted"]()
    assert names["post"].schema("anthropic")["input_schema"]["properties"]["body"]["maxLength"] == 280
    script = [
        [
            ToolCall("write_document", {"title": "Tides", "content": CONTENT}, size=4),
            ToolCall("add_to_cart", {"items": [{"name": "apples", "amount": 2}]}),
            ToolCall("get_weather", {"city": "Paris"}),
        ],
        [Text("Written.")],
    ]
    cs = names["cs"]
    cs.add_tool(names["get_weather"])
    async with GatedProvider("anthropic", script, held=20) as provider:

        async def append(self: object, piece: str) -> None:
            provider.open()
            await written(self, piece)

        written, names["Document"].append = names["Document"].append, append
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            assert await names["ask"](client, "Write about tides.") == "Written."
    assert provider.was_opened
    assert take_document() == CONTENT
    calls = await cs.journal.calls()
    assert {call.state for call in calls} == {CallState.COMPLETED}
    assert all(call.ran_early for call in calls)
    await cs.aclose()


async def test_the_page_takes_back_what_the_model_did_not_finish() -> None:
    names = executed("howto/streamed.md")
    call = ToolCall("write_document", {"title": "Tides", "content": CONTENT}, size=4, stop_after=14)
    cs = names["cs"]
    async with ScriptedProvider("anthropic", [[call, Finish("max_tokens")], [Text("Sorry.")]]) as provider:
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            assert await names["ask"](client, "Write about tides.") == "Sorry."
    assert take_document() is None
    question, note = provider.requests[1].json["messages"]
    assert question["content"] == "Write about tides."
    assert [block["type"] for block in note["content"]] == ["text"]
    assert "were cut off" in note["content"][0]["text"]
    [kept] = await cs.journal.calls()
    assert (kept.state, kept.reason) == (CallState.DISCARDED, "truncated")
    await cs.aclose()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("write_document", text='{"title": "Tides", "content": "The moon', size=4), "cannot be read"),
        (ToolCall("write_document", text='{"title": "Tides", "content": "The moon",}', size=4), "cannot be read"),
        (ToolCall("write_document", text='["Tides", "The moon"]', size=4), "not an object"),
        (ToolCall("write_document", {"title": 5, "content": "The moon"}, size=4), "'title'"),
        (ToolCall("write_document", {"title": "Tides", "content": ["The moon"]}, size=4), "'content'"),
        (ToolCall("write_document", {"title": "Tides", "content": "The moon", "style": "bold"}, size=4), "'style'"),
        (ToolCall("write_document", {"content": "The moon"}, size=4), "'title'"),
        (ToolCall("write_documents", {"title": "Tides"}, size=4), "there is no tool"),
    ],
)
async def test_the_loop_tells_the_model_of_each_mistake(call: ToolCall, told: str) -> None:
    names = executed("howto/streamed.md")
    cs = names["cs"]
    async with ScriptedProvider("anthropic", [[call], [Text("Sorry.")]]) as provider:
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            assert await names["ask"](client, "Write about tides.") == "Sorry."
    assert take_document() is None
    _, again = provider.requests
    messages = again.json["messages"]
    assert all(message["content"] for message in messages)
    called = {block["id"] for each in messages for block in each["content"] if block_type(block) == "tool_use"}
    answers = messages[-1]["content"]
    assert told in str(answers)
    assert {block["tool_use_id"] for block in answers if block_type(block) == "tool_result"} == called
    await cs.aclose()


def block_type(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None
