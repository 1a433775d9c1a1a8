"""Stops, disconnects and cancellations at random moments."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import httpx
from ag_ui.core import RunAgentInput

from tests.server.serving import run_input

from .stage import Stage

LANES = 8
FIRST = 0.1
"""Seconds that count as the beginning of a run."""
LONGEST = 0.5
WORDS = ("hello", "work", "work", "count")


class Stops:
    """``play`` stops that many runs. ``problems`` says what should not have been."""

    def __init__(self, stage: Stage, count: int, seed: int) -> None:
        self._stage = stage
        self._left = count
        self._random = random.Random(seed)
        self.stopped = 0
        self.early = 0
        self.ways: Counter[str] = Counter()
        self.threads: list[str] = []
        self.problems: list[str] = []

    async def play(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._lane(lane))
        for thread in self.threads:
            await self._still_runs(thread)

    async def _lane(self, lane: int) -> None:
        ways: dict[str, Callable[[str, str, float], Awaitable[None]]] = {
            "stop": self._stop,
            "disconnect": self._disconnect,
            "cancel": self._cancel,
            "close": self._close,
            "limit": self._limit,
            "end": self._end,
        }
        number = 0
        while self._left > 0:
            self._left -= 1
            if number % 25 == 0:
                thread = f"lane {lane}, thread {number // 25}"
                self.threads.append(thread)
            number += 1
            way = self._random.choice(list(ways))
            moment = self._random.uniform(0, FIRST if self._random.random() < 0.5 else LONGEST)
            self.ways[way] += 1
            self.early += moment <= FIRST
            word = self._random.choice(WORDS)
            try:
                async with asyncio.timeout(60):
                    await ways[way](thread, word, moment)
            except TimeoutError:
                self.problems.append(f"{thread}: {word!r} did not end after {way} at {moment:.3f} s")
            self.stopped += 1

    # -- over HTTP --

    async def _stop(self, thread: str, word: str, moment: float) -> None:
        async with self._stage.server.run(word, thread=thread) as stream:
            if self._refused(stream.status, stream.response.text if stream.status != 200 else ""):
                return
            reading = asyncio.create_task(stream.all())
            await asyncio.wait({reading}, timeout=moment)
            answer = await self._stage.server.post(f"/runs/{stream.run_id}/stop")
            self._refused(answer.status_code, answer.text)
            await reading

    async def _disconnect(self, thread: str, word: str, moment: float) -> None:
        async with httpx.AsyncClient(base_url=self._stage.server.url, timeout=30) as client:

            async def read() -> None:
                async with client.stream("POST", "/agui", json=run_input(word, thread=thread)) as response:
                    if response.status_code != 200:
                        self._refused(response.status_code, (await response.aread()).decode())
                    async for _ in response.aiter_bytes():
                        pass

            await _cancelled(asyncio.create_task(read()), moment)

    def _refused(self, status: int, text: str) -> bool:
        if status != 200:
            self.problems.append(f"HTTP {status}: {text}")
        return status != 200

    # -- in the program --

    async def _events(self, thread: str, word: str) -> None:
        async for _ in self._stage.agent.run(_given(thread, word)):
            pass

    async def _cancel(self, thread: str, word: str, moment: float) -> None:
        await _cancelled(asyncio.create_task(self._events(thread, word)), moment)

    async def _close(self, thread: str, word: str, moment: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + moment
        async with aclosing(self._stage.agent.run(_given(thread, word))) as events:
            async for _ in events:
                if loop.time() >= until:
                    break

    async def _limit(self, thread: str, word: str, moment: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(moment):
                await self._events(thread, word)

    async def _end(self, thread: str, word: str, moment: float) -> None:
        """``run.stop()``, by whoever has the run."""
        given = _given(thread, word)

        async def read() -> None:
            async for _ in self._stage.agent.run(given):
                pass

        reading = asyncio.create_task(read())
        await asyncio.wait({reading}, timeout=moment)
        run = self._stage.callstream.active_run(given.run_id)
        if run is not None:
            await run.stop("ended")
        await reading

    # -- afterwards --

    async def _still_runs(self, thread: str) -> None:
        async with self._stage.server.run("work", thread=thread) as stream:
            if self._refused(stream.status, stream.response.text if stream.status != 200 else ""):
                return
            events = await stream.all()
        if events[-1]["type"] != "RUN_FINISHED" or events[-1]["outcome"]["type"] != "success":
            self.problems.append(f"{thread} ends with {events[-1]}")
        said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        if not said.endswith("All is done."):
            self.problems.append(f"{thread} says {said!r}")


def _given(thread: str, word: str) -> RunAgentInput:
    return RunAgentInput.model_validate(run_input(word, thread=thread))


async def _cancelled(task: asyncio.Task[Any], moment: float) -> None:
    await asyncio.wait({task}, timeout=moment)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
