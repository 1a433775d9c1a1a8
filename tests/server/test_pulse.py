"""The clock of all streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream.server.settings import ServerSettings
from callstream.server.streams import Pulse


class Stream:
    def __init__(self, beats: int) -> None:
        self.left = beats
        self.is_done = asyncio.Event()

    def beat(self, now: float) -> None:
        self.left -= 1
        if not self.left:
            self.is_done.set()


async def test_one_timer_beats_for_all_streams_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def count(*args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*args, **options))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", count)
    pulse = Pulse(ServerSettings(heartbeat_seconds=0.015, stall_seconds=60))
    for _ in range(2):  # it begins again
        timers.clear()
        streams = [Stream(3) for _ in range(50)]
        for stream in streams:
            pulse.add(stream)
        assert len(timers) == 1
        for stream in streams:
            await stream.is_done.wait()
        assert len(timers) < 20
        for stream in streams:
            pulse.remove(stream)
            pulse.remove(stream)
        assert timers[-1].cancelled()


async def test_the_shorter_time_sets_the_pace_and_a_heartbeat_is_never_late() -> None:
    assert Pulse(ServerSettings(heartbeat_seconds=15, stall_seconds=60)).heartbeat_seconds == 14
    assert Pulse(ServerSettings(heartbeat_seconds=15, stall_seconds=3)).heartbeat_seconds == pytest.approx(14.8)
