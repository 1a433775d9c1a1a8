"""The program of docs/howto/langchain.md runs, with LangChain as it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from callstream import Reject
from callstream.testing import Call, Finish, ScriptedProvider, Text
from tests.captures import ROOT

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

    script = [[Call("write_document", {"title": "Tides", "content": CONTENT}, size=8)], [Text("Written.")]]
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

    sound = Call("write_document", {"title": "Tides", "content": CONTENT}, call_id="c1")
    rejected = Call("write_document", {"title": "", "content": CONTENT}, call_id="c2")
    cut_off = Call("write_document", {"title": "Tides", "content": CONTENT}, call_id="c3", stop_after=3)
    script = [[sound, rejected], [cut_off, Finish("length")], [Text("Written.")]]
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
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "ai", "human", "ai"]
    assert [message.text for message in messages[2:4]] == [f"{len(CONTENT)} characters", "a document needs a title"]
    assert (messages[4].tool_calls, messages[4].invalid_tool_calls) == ([], [])
    assert messages[5].text.startswith("the arguments of write_document were cut off")
    assert messages[-1].text == "Written."
    assert states == ["completed", "discarded", "discarded"]


def test_chat_anthropic_takes_no_client() -> None:
    """If this fails, langchain-anthropic can be tapped, and the page should say how."""
    chat = pytest.importorskip("langchain_anthropic", reason="LangChain is not installed here").ChatAnthropic
    assert [name for name in chat.model_fields if "http" in name and "client" in name] == []
