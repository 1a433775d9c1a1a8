"""Table "eager": how long until the first piece of an argument is seen, without Callstream and with it.

A scripted provider in another process does what Anthropic's API does: it holds a value back until the value is whole,
unless the tool asks for its pieces. The model writes one value for five seconds. Measured is the time from the request
until the program sees the first piece of it: in the SDK's own events, in google-adk's events, and in a hook.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import warnings
from typing import Any

from bench.endtoend import model_of, text_of
from bench.providers import provider
from bench.table import Table
from callstream import Callstream
from callstream.testing import Text, ToolCall

DELTAS_PER_SECOND = 40
SIZE = 8
WANTED = 10.0
TOOL: Any = {
    "name": "write",
    "input_schema": {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]},
}


class Clock:
    """Seconds from the beginning to the first time that something is seen."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: float | None = None

    def seen(self) -> None:
        if self.seconds is None:
            self.seconds = time.perf_counter() - self._began


async def by_sdk(base_url: str, cs: Callstream | None, clock: Clock) -> None:
    from anthropic import AsyncAnthropic

    http_client = None if cs is None else cs.httpx2_client()
    asked: Any = [{"role": "user", "content": "go"}]
    async with (
        AsyncAnthropic(base_url=base_url, api_key="none", http_client=http_client) as client,
        client.messages.stream(model="m", max_tokens=9999, messages=asked, tools=[TOOL]) as events,
    ):
        async for event in events:
            if cs is None and event.type == "input_json" and event.snapshot:
                clock.seen()


async def by_google_adk(base_url: str, cs: Callstream | None, clock: Clock) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    def write(content: str) -> str:
        """Writes."""
        return "written"

    agent = LlmAgent(name="writer", model=model_of("anthropic", base_url, cs), tools=[write])
    async with InMemoryRunner(agent=agent, app_name="bench") as runner:
        session = await runner.session_service.create_session(app_name="bench", user_id="user")
        async for event in runner.run_async(
            user_id="user",
            session_id=session.id,
            new_message=types.Content(role="user", parts=[types.Part(text="go")]),
            run_config=RunConfig(streaming_mode=StreamingMode.SSE),
        ):
            if cs is None and any(call.args or call.partial_args for call in event.get_function_calls()):
                clock.seen()


async def measured(ask: Any, seconds: float, *, tapped: bool) -> float:
    """Seconds to the first piece of the value."""
    content = text_of(round(seconds * DELTAS_PER_SECOND))
    scripts = [[ToolCall("write", {"content": content}, size=SIZE)], [Text("Done.")]]
    pace = ("--eager", "known", "--deltas-per-second", str(DELTAS_PER_SECOND))
    with provider("anthropic", scripts, *pace) as base_url:
        async with Callstream() as cs:
            clock = Clock()

            async def grow(field: Any, signal: Any) -> None:
                if field.text:
                    clock.seen()

            cs.on_field("write", "content", grow)
            clock = Clock()
            await ask(base_url, cs if tapped else None, clock)
    if clock.seconds is None:
        raise AssertionError(f"{ask.__name__}: the value was never seen")
    return clock.seconds


async def table(seconds: float) -> bool:
    shown = Table(
        f"eager: seconds until the first piece of a value that is written for {seconds:g} s",
        ["program", "without", "with Callstream", "times earlier", ""],
    )
    passed = True
    for name, ask in (("anthropic SDK", by_sdk), ("google-adk, AnthropicLlm", by_google_adk)):
        await measured(ask, 0.1, tapped=True)  # what is loaded once is no part of it
        without = await measured(ask, seconds, tapped=False)
        with_tap = await measured(ask, seconds, tapped=True)
        good = without / with_tap >= WANTED
        passed = passed and good
        shown.row(name, without, with_tap, without / with_tap, "PASS" if good else "FAIL")
    shown.print()
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the model writes the value")
    warnings.simplefilter("ignore")
    return 0 if asyncio.run(table(parser.parse_args().seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
