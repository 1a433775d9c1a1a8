"""A server in a process of its own, and what can be asked about that process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.captures import ROOT

from .serving import Server


class Process(Server):
    def __init__(self, process: asyncio.subprocess.Process, client: httpx.AsyncClient, port: int) -> None:
        super().__init__(None, client, port)  # type: ignore[arg-type]
        self.process = process

    def megabytes(self, of: str = "VmRSS") -> float:
        """Its memory now, or at most so far (``VmHWM``)."""
        found = re.search(rf"^{of}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024

    async def ended(self) -> tuple[int, str]:
        """The exit code, and what it wrote to its log."""
        out, log = await asyncio.wait_for(self.process.communicate(), 120)
        assert (b"ended" in out) == (self.process.returncode == 0)
        return self.process.returncode or 0, log.decode()


@asynccontextmanager
async def process(url: str, **settings: Any) -> AsyncIterator[Process]:
    variables = {f"CALLSTREAM_{name.upper()}": str(value) for name, value in settings.items()}
    made = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.server.program",
        url,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert made.stdout is not None
        line = await asyncio.wait_for(made.stdout.readline(), 120)
        if not line:
            raise AssertionError((await made.communicate())[1].decode())
        port = json.loads(line)["port"]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield Process(made, client, port)
    finally:
        if made.returncode is None:
            made.kill()
            await made.wait()
