"""docs/flows.md is true: the functions that it names are called, in its order, and every walk is in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.walks import WALKS

ROOT = Path(__file__).parents[1]
SECTIONS = dict(
    section.split("\n", 1) for section in (ROOT / "docs" / "flows.md").read_text(encoding="utf-8").split("\n## ")[1:]
)


@pytest.fixture(scope="module")
def calls() -> dict[str, list[str]]:
    """Every call of every walk, from a process of its own, since the tracing slows down whatever runs beside it."""
    walked = subprocess.run(
        [sys.executable, "-m", "tests.walks", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(walked.stdout)
    return found


def test_the_design_names_every_room() -> None:
    package = ROOT / "src" / "callstream"
    rooms = {path.stem for path in package.iterdir() if path.stem[:2] != "__" and path.suffix in ("", ".py")}
    table = re.findall(r"^\| \d+ \| (.+?) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == rooms


def test_every_walk_has_a_section() -> None:
    assert list(SECTIONS) == list(WALKS)


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("title", WALKS)
def test_functions_are_called_in_this_order(title: str, calls: dict[str, list[str]]) -> None:
    named = re.findall(r"`([\w/]+\.py::[\w.]+)`", SECTIONS[title])
    assert len(named) > 10
    assert set(named) <= set(calls[title])
    steps = iter(calls[title])
    for number, name in enumerate(named):
        assert name in steps, f"not called after {named[:number]}"
