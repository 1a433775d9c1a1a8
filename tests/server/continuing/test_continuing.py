"""A sample of ``make continue``, which kills more often and in more places."""

from __future__ import annotations

import signal

import pytest

from .stage import Stage

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.subprocess]


@pytest.mark.parametrize(("kind", "wire"), [("llm", "anthropic"), ("agent_tool", "gemini")])
async def test_runs_go_on_after_a_kill(kind: str, wire: str) -> None:
    stage = Stage("sqlite", kind, wire, kills=2, seed=7)
    await stage.play()
    assert stage.said == []
    assert stage.interrupted


async def test_a_server_that_is_stopped_hands_its_runs_over() -> None:
    stage = Stage("sqlite", "llm", "gemini", kills=2, seed=7, how=signal.SIGTERM, replicas=2)
    await stage.play()
    assert stage.said == []
    assert stage.interrupted
