"""Frameworks that are installed here, with models that make mistakes; and the table of all that were run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.frameworks.faults import FAULTS, RESULTS, WELL, outcome

ROOT = Path(__file__).parent.parent.parent
HERE = ("agents", "agents_responses", "pydantic_ai", "anthropic")


@pytest.mark.filterwarnings("ignore:Tool 'erase' not found")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("framework", HERE)
async def test_the_model_is_told_and_the_agent_goes_on(framework: str, fault: str) -> None:
    program = importlib.import_module(f"tests.frameworks.agents.{framework}")
    assert await outcome(program, FAULTS[fault]) == WELL


def test_the_table_says_what_was_found() -> None:
    path = ROOT / "docs" / "faults.py"
    spec = importlib.util.spec_from_file_location("faults", path)
    assert spec is not None
    assert spec.loader is not None
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    page = faults.PAGE.read_text(encoding="utf-8")
    assert faults.with_table(page) == page, "run: python docs/faults.py"


def test_nothing_that_was_found_is_wrong() -> None:
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    assert {what for each in kept for what in each["outcomes"].values()} == {WELL}


def test_every_environment_has_a_row() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rows = re.findall("^(?:AGENTS|YEAR_OLD) = (.*)$", makefile, re.MULTILINE)
    assert len(rows) == 2
    assert {name for row in rows for name in row.split()} <= {path.stem for path in RESULTS.glob("*.json")}
