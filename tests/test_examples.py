"""The examples run as they are, offline, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = ("plain_sdk.py", "pydantic_ai_agent.py", "openai_agents.py", "google_adk_agent.py", "langchain_agent.py")
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")


def run(name: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in KEYS}
    environment["PYTHONPATH"] = str(EXAMPLES.parent / "src")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", name],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_gets_live_calls_results_and_a_whole_journal(name: str) -> None:
    if name == "langchain_agent.py":
        pytest.importorskip(
            "langchain_openai", reason="LangChain is not installed here; `make langchain` runs this test"
        )
    printed = run(name).splitlines()
    write, *lookups = printed[-3:]
    assert write.startswith("write_document: completed, ")
    assert "232" in write.partition("result")[2]
    pieces = int(write.split(" in ")[1].split()[0])
    assert pieces > 15
    assert [lookup.split(",")[0] for lookup in lookups] == ["look_up: completed"] * 2
    assert "what is known of water" in lookups[0]
    assert "what is known of leaves" in lookups[1]
    if name in ("plain_sdk.py", "langchain_agent.py"):
        assert "Pour, and wait again." in printed
    if name != "plain_sdk.py":
        assert "The document is written." in printed


def test_every_example_is_run() -> None:
    files = {file.name for file in EXAMPLES.glob("*.py")} - {"offline.py"}
    assert files == set(PROGRAMS)
