"""Servers within a moment: a process that has imported everything, and forks one whenever it is asked to.

``python -m tests.server.continuing.nursery`` reads a line of JSON for each server: the arguments of ``callstream``, and what
its environment has besides. It answers with the id of the new process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from typing import Any

from tests.captures import ROOT


class Nursery:
    """One of these processes. ``seed`` is that of its hashes: two processes need not agree about the order of a set."""

    def __init__(self, seed: int, **environment: str) -> None:
        self._environment = {"PYTHONHASHSEED": str(seed), **environment}
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def bear(self, arguments: list[str], environment: dict[str, str]) -> int:
        async with self._turn:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-W", "ignore", "-m", "tests.server.continuing.nursery"),
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **self._environment},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([arguments, environment]).encode() + b"\n")
            return int(await process.stdout.readline())

    async def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()


def serve(arguments: list[str], environment: dict[str, str]) -> None:
    """In the new process: ``callstream`` with these arguments, and nothing after it."""
    from callstream.cli import main as callstream

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environment)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(silence, 1)
    if not os.environ.get("CONTINUING_LOUD"):
        os.dup2(silence, 2)
    os._exit(callstream(arguments))


def main() -> None:
    import anthropic
    import asyncpg
    import openai
    import sqlalchemy
    import uvicorn
    from google.adk import runners
    from google.adk.integrations import openai as adk_openai
    from google.adk.models import anthropic_llm
    from google.adk.sessions import database_session_service, sqlite_session_service
    from google.adk.tools import mcp_tool

    import callstream.adk
    import callstream.cli.serve
    import callstream.journal.postgres
    import callstream.journal.sqlite
    import callstream.server

    loaded: tuple[Any, ...] = (
        *(anthropic, asyncpg, openai, sqlalchemy, uvicorn, runners, adk_openai, anthropic_llm, mcp_tool),
        *(database_session_service, sqlite_session_service, callstream.adk, callstream.cli.serve, callstream.server),
    )
    assert all(loaded)
    assert threading.active_count() == 1, "a fork has one thread"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    gc.freeze()
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        pid = os.fork()
        if not pid:
            serve(arguments, environment)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
