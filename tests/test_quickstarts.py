"""Every block of the quickstarts is executed as it stands, against scripted providers over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream.testing import Call, ScriptedProvider, Text
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
