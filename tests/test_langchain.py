"""The program of docs/howto/langchain.md runs, with LangChain as it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, Reject, Streamed, tool
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.captures import ROOT
from tests.gated import GatedProvider

PAGE = (ROOT / "docs" / "howto" / "langchain.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONTENT = "It rises and it falls, twice a day."


def test_the_program_compiles() -> None:
    compile(PROGRAM, "langchain.md", "exec")


async def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("langchain_openai", reason="LangChain is not installed here; `make langchain` runs this test")
    from langchain_core.messages import HumanMessage

    script = [[ToolCall("write_document", {"title": "Tides", "content": CONTENT}, size=8)], [Text("Written.")]]
    monkeypatch.chdir(tmp_path)
    with ScriptedProvider("openai_chat", script) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        names: dict[str, Any] = {}
        exec(PROGRAM, names)
        messages = await names["ask"]([HumanMessage("Write about tides.")])
        [call] = await names["cs"].journal.calls()
        await names["cs"].aclose()
    assert messages[-1].text == "Written."
    assert capsys.readouterr().out == CONTENT
    assert (call.name, call.state, call.result) == ("write_document", "completed", f"{len(CONTENT)} characters")


async def test_the_program_tells_the_model_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain_openai", reason="LangChain is not installed here; `make langchain` runs this test")
    from langchain_core.messages import HumanMessage

    sound = ToolCall("write_document", {"title": "Tides", "content": CONTENT}, call_id="c1")
    rejected = ToolCall("write_document", {"title": "", "content": CONTENT}, call_id="c2")
    cut_off = ToolCall("write_document", {"title": "Tides", "content": CONTENT}, call_id="c3", stop_after=3)
    invented = ToolCall("wrote_document", {"title": "Tides", "content": CONTENT}, call_id="c0")
    script = [[invented, sound, rejected], [cut_off, Finish("length")], [Text("Written.")]]
    monkeypatch.chdir(tmp_path)

    async def check(call: Any, signal: Any) -> None:
        if not call.args["title"]:
            raise Reject("a document needs a title")

    with ScriptedProvider("openai_chat", script) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        names: dict[str, Any] = {}
        exec(PROGRAM, names)
        names["cs"].on_args_complete("write_document", check)
        messages = await names["ask"]([HumanMessage("Write about tides.")])
        states = [call.state for call in await names["cs"].journal.calls()]
        await names["cs"].aclose()
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai", "human", "ai"]
    assert [message.text for message in messages[2:5]] == [
        "there is no tool wrote_document; the tools are: write_document",
        f"{len(CONTENT)} characters",
        "a document needs a title",
    ]
    assert (messages[5].tool_calls, messages[5].invalid_tool_calls) == ([], [])
    assert messages[6].text.startswith("the arguments of write_document were cut off")
    assert messages[-1].text == "Written."
    assert sorted(states) == ["completed", "completed", "discarded", "discarded"]


def test_chat_anthropic_takes_no_client() -> None:
    """If this fails, langchain-anthropic can be tapped, and the page should say how."""
    chat = pytest.importorskip("langchain_anthropic", reason="LangChain is not installed here").ChatAnthropic
    assert [name for name in chat.model_fields if "http" in name and "client" in name] == []


async def test_a_streamed_parameter_is_read_while_the_model_writes_it() -> None:
    """LangChain calls the tool after the response, and gets the result of the one that is running."""
    pytest.importorskip("langchain_openai", reason="LangChain is not installed here; `make langchain` runs this test")
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI

    runs: list[str] = []
    pieces: list[str] = []
    document = {"title": "Tides", "content": CONTENT}
    script = [[ToolCall("write_document", document, size=4)], [Text("Written.")]]
    with GatedProvider("openai_chat", script, held=4) as provider:

        @tool
        async def write_document(title: str, content: Streamed[str]) -> str:
            """Writes a document."""
            runs.append(title)
            async for piece in content:
                pieces.append(piece)
                provider.open()
            return f"{len(content.text)} characters"

        async with Callstream(tools=[write_document]) as cs:
            wrapped = StructuredTool.from_function(coroutine=write_document, name="write_document")
            chat = ChatOpenAI(
                model="gpt-5",
                streaming=True,
                api_key="none",  # type: ignore[arg-type]
                base_url=provider.base_url,
                http_async_client=cs.http_client(),
            )
            async with cs.run("thread-1"):
                answer = await chat.bind_tools([wrapped]).ainvoke([HumanMessage("Write about tides.")])
                [result] = [await wrapped.ainvoke(call) for call in answer.tool_calls]
            [call] = await cs.journal.calls()
    assert provider.was_opened
    assert (runs, "".join(pieces)) == (["Tides"], CONTENT)
    assert result.content == f"{len(CONTENT)} characters"
    assert (call.state, call.ran_early, call.result) == ("completed", True, f"{len(CONTENT)} characters")
