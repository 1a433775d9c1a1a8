"""The program of docs/howto/langchain.md runs, with LangChain as it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from callstream.testing import Call, ScriptedProvider, Text
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


def test_chat_anthropic_takes_no_client() -> None:
    """If this fails, langchain-anthropic can be tapped, and the page should say how."""
    chat = pytest.importorskip("langchain_anthropic", reason="LangChain is not installed here").ChatAnthropic
    assert [name for name in chat.model_fields if "http" in name and "client" in name] == []
