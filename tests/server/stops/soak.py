"""Runs that are started, left, joined, stopped and answered, for as long as one likes."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from typing import Any

import httpx

from tests.server.serving import run_input, tool_message

from .stage import Stage

LANES = 4
SAMPLE_SECONDS = 2.0
TURNS = 12
"""After these a lane begins a new thread: a session that grows for ever is no leak."""
MEMORY = 0.08
"""How much more the last quarter may need than the second."""
DESCRIPTORS = 4


class Soak:
    """``play`` plays for so many seconds. ``problems`` says what should not have been."""

    def __init__(self, stage: Stage, seconds: float, seed: int) -> None:
        self._stage = stage
        self._seconds = seconds
        self._random = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.samples: list[tuple[float, int]] = []
        self.problems: list[str] = []

    async def play(self) -> None:
        until = asyncio.get_running_loop().time() + self._seconds
        sampling = asyncio.create_task(self._sample(), name="samples of the soak")
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._lane(lane, until))
        sampling.cancel()
        await asyncio.wait({sampling})

    async def _lane(self, lane: int, until: float) -> None:
        number = 0
        while asyncio.get_running_loop().time() < until:
            thread = f"soak {lane}, thread {number // TURNS}"
            number += 1
            how = self._random.choice((self._run, self._run, self._leave_and_join, self._stop, self._answer))
            self.did[how.__name__.strip("_")] += 1
            async with asyncio.timeout(60):
                await how(thread)

    async def _run(self, thread: str, **given: Any) -> dict[str, Any]:
        word = self._random.choice(("hello", "work", "count"))
        async with self._stage.server.run(given.pop("text", word), thread=thread, **given) as stream:
            if stream.status != 200:
                self.problems.append(f"HTTP {stream.status}: {stream.response.text}")
                return {}
            last = (await stream.all())[-1]
        if last["type"] != "RUN_FINISHED":
            self.problems.append(f"{thread} ends with {last}")
        return last

    async def _leave_and_join(self, thread: str) -> None:
        """Leaves while somebody else watches, so that the run goes on, and joins it again."""
        async with self._stage.server.run("work", thread=thread) as stream:
            if stream.status != 200:
                self.problems.append(f"HTTP {stream.status}: {stream.response.text}")
                return
            reading = asyncio.create_task(stream.all())
            for _ in range(2):
                async with self._stage.server.connect(thread) as joined:
                    async for _ in joined:
                        if self._random.random() < 0.3:
                            break
            async with self._stage.server.connect(thread) as joined:
                last = (await joined.all())[-1]
            await reading
        if last["type"] != "RUN_FINISHED":
            self.problems.append(f"{thread}, joined, ends with {last}")

    async def _stop(self, thread: str) -> None:
        moment = self._random.uniform(0, 0.3)
        if self._random.random() < 0.5:
            async with self._stage.server.run("work", thread=thread) as stream:
                reading = asyncio.create_task(stream.all())
                await asyncio.wait({reading}, timeout=moment)
                await self._stage.server.post(f"/runs/{stream.run_id}/stop")
                await reading
            return
        async with httpx.AsyncClient(base_url=self._stage.server.url, timeout=30) as client:
            task = asyncio.create_task(client.post("/agui", json=run_input("work", thread=thread)))
            await asyncio.wait({task}, timeout=moment)
            task.cancel()
            await asyncio.wait({task})

    async def _answer(self, thread: str) -> None:
        asked = await self._run(thread, text="ask")
        pending = asked.get("outcome", {}).get("pendingToolCallIds", ())
        if len(pending) != 1:
            self.problems.append(f"{thread} awaits {pending}")
            return
        await self._run(thread, text=None, messages=[tool_message(pending[0], {"approved": True})])

    # -- what it needs --

    async def _sample(self) -> None:
        while True:
            self.samples.append(self._stage.figures())
            await asyncio.sleep(SAMPLE_SECONDS)

    def growth(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Memory in MB and descriptors: the medians of the second quarter and of the last."""
        quarter = max(1, len(self.samples) // 4)
        second, last = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        memory, descriptors = (
            [statistics.median(each[which] for each in part) for part in (second, last)] for which in (0, 1)
        )
        return (memory[0], memory[1]), (descriptors[0], descriptors[1])

    @property
    def is_flat(self) -> bool:
        (memory, memory_then), (descriptors, descriptors_then) = self.growth()
        return memory_then <= memory * (1 + MEMORY) and descriptors_then <= descriptors + DESCRIPTORS
