"""The page about google-adk begins with a program; it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream.testing import Finish, Text, ToolCall

from .hosting import STREAMED, scripted, text_of

PAGE = Path(__file__).parents[2] / "docs" / "google-adk.md"


async def test_the_first_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    args = {"title": "Tides", "content": "The moon pulls the sea."}
    async with scripted(
        "gemini", [[ToolCall("write_document", args), Finish()], [Text("Done."), Finish()]]
    ) as provider:
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", provider.base_url)
        made: dict[str, Any] = {"__name__": "program"}
        exec(program, made)
        runner = Runner(app=made["app"], session_service=InMemorySessionService(), auto_create_session=True)
        message = types.Content(role="user", parts=[types.Part(text="Write about tides.")])
        stream = runner.run_async(user_id="u", session_id="s", new_message=message, run_config=STREAMED)
        assert "Done." in text_of([event async for event in stream])
    assert capsys.readouterr().out == "The moon pulls the sea."
    (call,) = await made["cs"].journal.calls(thread_id="s")
    assert call.result == {"words": 5}
    await made["cs"].aclose()
