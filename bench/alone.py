"""What a run of google-adk weighs by itself, for the table "pace": so much of a stream's memory is not the server's.

A process with runs of the agent that the servers serve, and nothing around them. Prints the KiB of each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os

import uvicorn
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types

from bench.served import agent_of
from bench.usage import SETTLING, STARTS_PER_SECOND, resident

WARM_UP = 20


async def work(runner: InMemoryRunner) -> None:
    session = await runner.session_service.create_session(app_name="bench", user_id="user")
    said = types.Content(role="user", parts=[types.Part(text="Write.")])
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=said, run_config=config):
        pass


async def measure(base_url: str, runs: int, seconds: float) -> float:
    runner = InMemoryRunner(agent_of(base_url), app_name="bench")
    tasks: list[asyncio.Task[None]] = []

    async def start(count: int) -> None:
        for _ in range(count):
            tasks.append(asyncio.create_task(work(runner)))
            await asyncio.sleep(1 / STARTS_PER_SECOND)
        await asyncio.sleep(SETTLING + seconds)

    await start(WARM_UP)
    gc.collect()
    gc.freeze()
    before = resident(os.getpid())
    await start(runs)
    if ended := [task for task in tasks if task.done()]:
        raise RuntimeError(f"{len(ended)} runs ended early: {ended[0].exception()!r}")
    return (resident(os.getpid()) - before) * 1024 / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", required=True, help="the base URL of the model")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        print(runner.run(measure(options.provider, options.runs, options.seconds)), flush=True)
    os._exit(0)  # without waiting for runs that nobody needs any more


if __name__ == "__main__":
    main()
