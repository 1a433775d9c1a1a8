"""The pages about typed arguments and checks: their programs run, and print what the pages say."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from tests.captures import ROOT


@pytest.mark.parametrize("page", ["typed", "checks"])
def test_a_page_prints_what_it_says(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    module = ModuleType("page")  # dataclasses look theirs up
    monkeypatch.setitem(sys.modules, "page", module)
    said = 0
    for language, block in blocks:
        if language == "python":
            exec(compile(block, f"{page}.md", "exec"), vars(module))
        else:
            assert capsys.readouterr().out == block
            said += 1
    assert said == {"typed": 2, "checks": 1}[page]
