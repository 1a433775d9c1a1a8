"""The program of docs/howto/continuing.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import RunOver
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.captures import ROOT

PAGE = (ROOT / "docs" / "howto" / "continuing.md").read_text(encoding="utf-8")
PROGRAMS = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "__main__" in text]


async def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = PROGRAMS
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    monkeypatch.chdir(tmp_path)
    script = [
        [ToolCall("find_order", {"order": "17"}), Finish()],
        [ToolCall("pay_back", {"amount": 40}), Finish()],
        [Text("Settled."), Finish()],
    ]
    async with ScriptedProvider("anthropic", script) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        await names["main"]("17")
        with pytest.raises(RunOver):
            await names["main"]("17")
    assert capsys.readouterr().out == "Settled.\n"
