from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import npm
from tests.agui.judge import NodeProgram

FOLDER = Path(__file__).parent / "client"


@pytest.fixture(scope="session")
def ai_sdk() -> Path:
    """The AI SDK. Where it cannot be installed the test is skipped with the reason; in CI it fails."""
    try:
        npm.install(FOLDER)
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the AI SDK: {reason}")
        pytest.skip(str(reason))
    return FOLDER


@pytest.fixture(scope="session")
def judge(ai_sdk: Path) -> Iterator[NodeProgram]:
    with NodeProgram("judge.mjs", ai_sdk) as program:
        yield program
