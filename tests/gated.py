"""A scripted provider that waits for the tool: it sends the end of an answer only when somebody has opened its gate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from callstream.testing import Cut, Delay, ReceivedRequest, ScriptedProvider
from callstream.testing.httpserver import HttpAnswer
from callstream.testing.provider import Route

PATIENCE = 60.0
"""Seconds after which a gate that nobody opens lets everything pass, so that a test fails and does not hang."""


class GatedProvider(ScriptedProvider):
    """Holds the last ``held`` frames of its first answer back until ``open()``, and then sends them, or cuts there."""

    def __init__(self, wire: str, script: Any, *, held: int, cuts: bool = False, **options: Any) -> None:
        super().__init__(wire, script, stream_args_unasked=True, **options)
        self._gate = threading.Event()
        self._held = held
        self._cuts = cuts
        self._is_first = True
        self.was_opened = False
        """Whether the gate was opened, and not only given up."""

    def open(self) -> None:
        self._gate.set()

    def __exit__(self, *raised: Any) -> None:
        self._gate.set()  # else its thread would wait for a client that is gone
        super().__exit__(*raised)

    async def __aexit__(self, *raised: Any) -> None:
        self._gate.set()
        await super().__aexit__(*raised)

    def hold(self) -> None:
        """Holds the next answer back, too."""
        self._gate.clear()
        self._is_first = True

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        answer = await super().answer(request, route)
        if not self._is_first:
            return answer
        self._is_first = False
        frames = [frame for frame in answer.frames if not isinstance(frame, Delay)]
        return msgspec.structs.replace(answer, frames=[], relayed=self._relay(frames))

    async def _relay(self, frames: list[Any]) -> AsyncGenerator[Any, None]:
        for frame in frames[: -self._held]:
            yield frame
        self.was_opened = await asyncio.to_thread(self._gate.wait, PATIENCE)
        if self._cuts:
            yield Cut()
        for frame in frames[-self._held :]:
            yield frame
