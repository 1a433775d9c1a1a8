"""A process that dies while its tool reads what the model is writing: ``python -m tests.runtime.crashing BASE_URL FILE``.

With ``continues`` as a third word its run can go on; ``again`` goes on with it, and lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from anthropic import AsyncAnthropic

from callstream import Callstream, Streamed, open_journal, tool

LEASE = 0.5


async def main(base_url: str, file: str, how: str = "") -> None:
    @tool(replay="safe")
    async def write(content: Streamed[str]) -> str:
        async for _ in content:
            if "moon" in content.text and how != "again":
                os.kill(os.getpid(), signal.SIGKILL)
        return f"written: {content.text}"

    async with Callstream(open_journal(f"sqlite:///{file}", lease_ttl=LEASE), tools=[write]) as cs:
        async with AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client()) as client:
            async with cs.run("thread", "run", continues=bool(how)) as run:
                async with client.messages.stream(
                    model="claude",
                    max_tokens=99,
                    messages=[{"role": "user", "content": "Write."}],
                    tools=[write.schema("anthropic")],
                ) as stream:
                    await stream.get_final_message()
                print(*[result.text for result in await run.run_tools()])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
