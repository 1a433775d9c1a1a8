"""Agents for a server: one whose steps the test decides, and one of google-adk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import RunAgentInput

from callstream import current_run
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallStarted,
    MessageEnded,
    MessageStarted,
    TextAppended,
)


class Stepping:
    """Writes one call, piece by piece; each piece waits until the test lets it (``step``), or none does (``free``)."""

    name = "stepping"

    def __init__(self, pieces: list[str] | None = None, *, free: bool = False) -> None:
        self.pieces = pieces or ['{"content":"', "one ", "two ", "three ", 'four"}']
        self.inputs: list[RunAgentInput] = []
        self.executed: list[Any] = []
        self.cancelled = 0
        self._free = free
        self._steps: asyncio.Queue[None] = asyncio.Queue()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._steps.put_nowait(None)

    async def run(self, input: RunAgentInput) -> AsyncIterator[Any]:  # noqa: A002
        self.inputs.append(input)
        run = current_run()
        assert run is not None
        call_id = f"call-{run.run_id}"
        try:
            await run.record([MessageStarted(f"m-{run.run_id}"), TextAppended(f"m-{run.run_id}", "I write.")])
            await run.record([CallStarted(call_id, "write", call_id, message_id=f"m-{run.run_id}")])
            for piece in self.pieces:
                if not self._free:
                    await self._steps.get()
                await run.record([ArgsAppended(call_id, piece)])
            await run.record([CallCompleted(call_id, "".join(self.pieces)), MessageEnded(f"m-{run.run_id}")])
            call = await run.execute(call_id)
            self.executed.append(call.args)
            await run.complete(call_id, {"written": True})
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        yield None


class Scripted:
    """Yields AG-UI events that somebody else made, as an agent that knows nothing of a journal does."""

    name = "scripted"

    def __init__(self, *runs: list[dict[str, Any]]) -> None:
        self._runs = list(runs)

    async def run(self, input: RunAgentInput) -> AsyncIterator[Any]:  # noqa: A002
        for event in self._runs.pop(0):
            yield event
