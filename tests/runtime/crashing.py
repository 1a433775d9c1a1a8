"""A process that dies while its tool reads what the model is writing: ``python -m tests.runtime.crashing BASE_URL FILE``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from anthropic import AsyncAnthropic

from callstream import Callstream, Streamed, open_journal, tool

LEASE = 0.5


@tool
async def write(content: Streamed[str]) -> str:
    async for _ in content:
        if "moon" in content.text:
            os.kill(os.getpid(), signal.SIGKILL)
    return "written"


async def main(base_url: str, file: str) -> None:
    async with Callstream(open_journal(f"sqlite:///{file}", lease_ttl=LEASE), tools=[write]) as cs:
        async with AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client()) as client:
            async with cs.run("thread", "run"):
                async with client.messages.stream(
                    model="claude",
                    max_tokens=99,
                    messages=[{"role": "user", "content": "Write."}],
                    tools=[write.schema("anthropic")],
                ) as stream:
                    await stream.get_final_message()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
