"""A sample of ``make continue``, which kills more often and in more places."""

from __future__ import annotations

import os
import signal

import pytest

from tests import npm

from .audience import Audience
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


async def test_clients_that_look_on_show_what_is_valid() -> None:
    audience = Audience("sqlite", ["ag-ui", "ai6"], ["a page's call"])
    try:
        await audience.play()
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the clients: {reason}")
        pytest.skip(str(reason))
    assert audience.said == []
    assert audience.is_well
