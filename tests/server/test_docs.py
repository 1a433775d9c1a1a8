"""The programs of the how-to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from callstream.server.serving import HEAD_SECONDS
from callstream.testing import Finish, HttpError, Text, ToolCall
from tests.adk.conftest import IGNORED
from tests.adk.hosting import scripted
from tests.agui.model import StrictClient
from tests.captures import ROOT

from .serving import run_input, serving

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]
PAGE = (ROOT / "docs" / "howto" / "server.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def made(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    return names


async def test_the_first_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALLSTREAM_JOURNAL", raising=False)
    async with scripted("gemini", [Text("Done."), Finish()]) as provider:
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", provider.base_url)
        app = made(PROGRAMS[0])["app"]
        assert isinstance(app, Starlette)
        async with serving(app) as server, server.run() as stream:
            events = await stream.all()
    assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["Done."]
    assert (tmp_path / "calls.db").exists()


async def test_the_program_with_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENS", "ann=one bob=two")
    async with serving(made(PROGRAMS[1])["app"]) as server:
        assert (await server.post("/agui", json=run_input())).status_code == 401
        server.headers = {"authorization": "Bearer one"}
        answer = await server.post("/agui", json=run_input())
        assert answer.status_code == 200
        assert "Hello." in answer.text
        server.headers = {"authorization": "Bearer two"}
        assert (await server.post("/agui", json=run_input())).status_code == 404


def test_the_program_with_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("logging.basicConfig", lambda **given: handlers.extend(given["handlers"]))
    made(PROGRAMS[2])
    assert [type(handler.formatter).__name__ for handler in handlers] == ["JsonFormatter"]
    assert len(PROGRAMS) == 4


async def test_the_program_with_a_route_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    document = {"title": "A", "content": "abc"}
    script = [
        [
            ToolCall("write_document", document),
            ToolCall("write_document", {"title": "A"}),
            ToolCall("wrote", {}),
            Finish(),
        ],
        [ToolCall("write_document", document, stop_after=2), Finish("length")],
        [Text("Written."), Finish()],
        [Text("You are welcome."), Finish()],
        [HttpError(400, "out of order")],
    ]
    async with scripted("anthropic", script) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        program = made(PROGRAMS[3])
        async with serving(program["app"]) as server:
            turns = []
            for question in ("Write.", "Thanks.", "More."):
                async with server.stream("POST", "/chat/thread", json={"question": question}) as stream:
                    turns.append(await stream.all())
            calls = await program["cs"].journal.calls(thread_id="thread")
            assert not program["turns"]
        await program["client"].close()
    client = StrictClient()
    for event in turns[0]:
        client.take(event)
    assert [events[-1]["type"] for events in turns] == ["RUN_FINISHED", "RUN_FINISHED", "RUN_ERROR"]
    assert turns[0][-1]["outcome"] == {"type": "success"}
    assert [call.state for call in calls] == ["completed", "discarded", "discarded", "discarded"]
    assert calls[0].result == {"characters": 3}
    assert "Written." in str(client.messages)
    asked = [message for message in provider.requests[3].json["messages"] if isinstance(message["content"], str)]
    assert [message["content"] for message in asked] == ["Write.", "Thanks."]
    assert "a turn failed" in caplog.text


async def test_the_program_whose_text_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK gets a passage of text in one event or two; clients get all of it."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "howto" / "frameworks.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n# joined.py\n(.*?)```", page, re.DOTALL)
    said = "High tide is at noon. " * 5
    async with scripted("anthropic", [Text(said, size=4), Finish()]) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        counted = program.replace(
            "        await stream.get",
            "        seen.extend([each.type async for each in stream])\n        await stream.get",
        )
        assert counted != program
        names: dict[str, Any] = {"__name__": "program", "seen": []}
        exec(counted, names)
        async with serving(names["app"]) as server, server.run() as stream:
            events = await stream.all()
        await names["client"].close()
    assert names["seen"].count("text") <= 2  # the first of a message leaves at once
    deltas = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(deltas) == said


def test_the_page_knows_every_metric_and_how_long_a_head_may_take() -> None:
    source = (ROOT / "src" / "callstream" / "runtime" / "telemetry.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(callstream\.[\w.]+)"', source))
    assert len(names) > 10
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    assert f"{HEAD_SECONDS:g} s for its first head" in PAGE
