"""Processes that are killed in the middle of a tool, and what goes on with their runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream import open_journal, results_in
from callstream.events import ResultReceived
from callstream.runtime.continuing import INTERRUPTED
from callstream.testing import Finish, ReceivedRequest, Script, ScriptedProvider, Text, ToolCall
from tests.captures import ROOT

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


class Stage:
    def __init__(self, folder: Path) -> None:
        self.journal = f"sqlite:///{folder / 'calls.db'}"
        self.log = folder / "tools.log"
        self.asked: list[list[Any]] = []
        self.address = ""
        self._processes: list[asyncio.subprocess.Process] = []

    def script(self, request: ReceivedRequest) -> Script:
        found = [event.content for event in results_in("anthropic", request.body) if isinstance(event, ResultReceived)]
        self.asked.append(found)
        match len(found):
            case 0:
                return [ToolCall("find_order", {"order": "17"}), Finish()]
            case 1:
                return [ToolCall("pay_back", {"amount": 40}), Finish()]
            case _:
                return [Text("Settled."), Finish()]

    async def start(self, *command: str, hangs_at: str = "") -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "CONTINUED_JOURNAL": self.journal,
            "CONTINUED_LOG": str(self.log),
            "CONTINUED_PROVIDER": self.address,
            "CONTINUED_HANGS_AT": hangs_at,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", *command), cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
        )
        self._processes.append(process)
        return process

    def did(self) -> list[str]:
        return self.log.read_text().splitlines()

    async def end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    async with ScriptedProvider("anthropic", made.script) as provider:
        made.address = provider.base_url
        try:
            yield made
        finally:
            await made.end()


async def read_until(process: asyncio.subprocess.Process, word: str) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if word in line.decode():
            return line.decode()
    raise AssertionError(f"the program has ended without {word!r}")


async def test_a_program_that_is_killed_goes_on_when_it_is_started_again(stage: Stage) -> None:
    program = ("-m", "tests.server.continued.program", "17")
    for hangs_at in ("find 17", "pay 40"):
        process = await stage.start(*program, hangs_at=hangs_at)
        await read_until(process, "hanging")
        process.kill()
        await process.wait()
    process = await stage.start(*program)
    await read_until(process, "Settled.")
    assert await process.wait() == 0
    assert stage.did() == ["find 17", "find 17", "pay 40"]  # what is safe runs again
    assert [len(found) for found in stage.asked] == [0, 1, 2]
    assert stage.asked[-1][1] == INTERRUPTED


async def test_a_worker_goes_on_with_the_run_of_a_server_that_is_killed(stage: Stage) -> None:
    target = "tests/server/continued/app.py:app"
    server = await stage.start("-m", "callstream", "serve", target, "--port", "0", hangs_at="pay 40")
    address = (await read_until(server, "http://")).strip()
    given = {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "Settle order 17."}],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    async with httpx.AsyncClient(timeout=60) as client:
        asking = asyncio.create_task(client.post(f"{address}agui", json=given))
        await read_until(server, "hanging")
        server.kill()
        await server.wait()
        with pytest.raises(httpx.HTTPError):
            await asking
    worker = await stage.start("-m", "callstream", "work", target)
    async with open_journal(stage.journal, housekeeping=None) as journal:
        async for _ in journal.follow("r"):
            pass
        (row,) = await journal.runs(run_id="r")
    assert (row.outcome, stage.did()) == ("finished", ["find 17", "pay 40"])
    assert [len(found) for found in stage.asked] == [0, 1, 2]
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0
