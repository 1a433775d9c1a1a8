"""The replicas: processes that are started, killed and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.ports import kept_port

START_SECONDS = 60.0


class Replica:
    """One address. Who answers there changes."""

    def __init__(self, arguments: list[str]) -> None:
        self._port = kept_port()
        self._command = [sys.executable, "-m", "tests.server.chaos.replica", *arguments, "--port", str(self._port)]
        self._process: asyncio.subprocess.Process | None = None
        self.is_up = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(*self._command)
        async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as http:
            while True:
                assert process.returncode is None, "a replica ended by itself"
                try:
                    if (await http.get(f"{self.url}/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        self.is_up = True

    async def close(self) -> None:
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL: it can do nothing about it."""
        self.is_up = False
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


class Workers(Replica):
    """One address with several workers behind it. A worker is killed, and its supervisor starts another."""

    def __init__(self, arguments: list[str], count: int, chance: random.Random) -> None:
        super().__init__([*arguments, "--workers", str(count)])
        self._chance = chance

    async def kill(self) -> None:
        assert self._process is not None
        while not (workers := _children(self._process.pid)):  # noqa: ASYNC110  # the last one was killed
            await asyncio.sleep(0.05)
        os.kill(self._chance.choice(workers), signal.SIGKILL)

    async def close(self) -> None:
        assert self._process is not None
        for _ in range(2):  # the second does not wait for runs
            if self._process.returncode is None:
                self._process.terminate()
                await asyncio.sleep(0.2)
        await self._process.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Fleet:
    def __init__(self, replicas: list[Replica], chance: random.Random) -> None:
        self.replicas = replicas
        self._chance = chance
        self.kills = 0
        self.is_spared = False
        """Whether nothing will be killed any more."""

    def any_url(self) -> str:
        """Any replica's, but for the time in which it is known to be gone, as a balancer does it."""
        up = [replica for replica in self.replicas if replica.is_up]
        return self._chance.choice(up or self.replicas).url

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(replica.start())

    async def kill_and_restart(self, kills: int, work: Callable[[], int], between: int) -> None:
        """One at a time, now and then both at once; between two kills, so much more of the work is done.

        So a slow machine is given the time that it needs to come forward at all.
        """
        while self.kills < kills:
            done = work() + between
            while work() < done:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._chance.uniform(0, 1))
            victims = self.replicas if self._chance.random() < 0.15 else [self._chance.choice(self.replicas)]
            for replica in victims[: kills - self.kills]:
                await replica.kill()
                self.kills += 1
            for replica in self.replicas:
                if not replica.is_up:
                    await replica.start()
        self.is_spared = True

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.close()
