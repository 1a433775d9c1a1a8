"""Table "end to end": what a delta costs a google-adk program, without the tap and with it.

A scripted provider in another process sends one call; the real SDK and google-adk's Runner take it here, stream it and run
the tool. CPU time of this process alone, per delta. Without the tap google-adk's cost per delta grows with the length of
the arguments, so fewer deltas would flatter it: the same number is sent both ways. Then the latency that the tap adds,
at a pace of 100 deltas a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

import httpx
import httpx2

from bench.providers import provider
from bench.table import Table
from callstream import Callstream
from callstream.testing import Text, ToolCall
from callstream.testing.provider import STAMP

SIZE = 8
WANTED_BARE, WANTED_FULL = 20.0, 12.0
WIRES = ("gemini", "anthropic", "openai_chat")


def text_of(deltas: int) -> str:
    line = "def f(x):\n    return x + 1\n"
    return (line * (deltas * SIZE // len(line) + 1))[: deltas * SIZE]


def model_of(wire: str, base_url: str, cs: Callstream | None) -> Any:
    """google-adk's own model of the wire; with the tap in its client if there is a Callstream."""
    if wire == "gemini":
        from google.adk.models import Gemini
        from google.genai import types

        client = httpx.AsyncClient(timeout=600) if cs is None else cs.httpx_client(collapse="all")
        options = types.HttpOptions(base_url=base_url, httpx_async_client=client)
        return Gemini(model="gemini-3-flash-preview", client_kwargs={"http_options": options, "api_key": "none"})
    if wire == "anthropic":
        from anthropic import AsyncAnthropic
        from google.adk.models.anthropic_llm import AnthropicLlm

        other = httpx2.AsyncClient(timeout=600) if cs is None else cs.httpx2_client(collapse="all")
        return AnthropicLlm(
            model="claude-sonnet-5-5", client=AsyncAnthropic(base_url=base_url, api_key="none", http_client=other)
        )
    from google.adk.integrations.openai import OpenAILlm
    from openai import AsyncOpenAI

    client = httpx.AsyncClient(timeout=600) if cs is None else cs.httpx_client(collapse="all")
    return OpenAILlm(model="gpt-5", client=AsyncOpenAI(base_url=base_url, api_key="none", http_client=client))


async def turn(model: Any, cs: Callstream | None) -> tuple[float, str]:
    """One turn of an agent: CPU seconds, and the text that its tool was called with."""
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    written: list[str] = []

    def write(content: str) -> dict[str, int]:
        """Writes."""
        written.append(content)
        return {"characters": len(content)}

    runner = InMemoryRunner(agent=LlmAgent(name="writer", model=model, tools=[write]), app_name="bench")
    session = await runner.session_service.create_session(app_name="bench", user_id="user")
    asked = types.Content(role="user", parts=[types.Part(text="go")])
    config = RunConfig(streaming_mode=StreamingMode.SSE)

    async def run() -> None:
        async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=asked, run_config=config):
            pass

    began = time.process_time()
    if cs is None:
        await run()
    else:
        async with cs.run(session.id):
            await run()
    return time.process_time() - began, written[0]


async def measured(wire: str, deltas: int, journal: str | None, *, hooked: bool = False) -> float:
    """CPU microseconds per delta. ``journal``: None for no tap."""
    text = text_of(deltas)
    scripts = [[ToolCall("write", {"content": text}, size=SIZE)], [Text("Done.")]]
    with provider(wire, scripts, "--stream-args-unasked") as base_url:
        if journal is None:
            seconds, written = await turn(model_of(wire, base_url, None), None)
        else:
            async with Callstream(journal) as cs:
                seen: list[int] = []
                if hooked:

                    async def count(delta: Any, signal: Any) -> None:
                        seen.append(len(delta.text))

                    cs.on_args_delta("write", count)
                seconds, written = await turn(model_of(wire, base_url, cs), cs)
    if written != text:
        raise AssertionError(f"{wire}: the tool got {len(written)} characters instead of {len(text)}")
    return seconds / deltas * 1e6


async def latencies(tapped: bool, deltas: int) -> list[float]:
    """Milliseconds from the provider's write to a reader of the raw stream, for each delta that the reader sees."""
    scripts = [[Text(STAMP * deltas, size=len(STAMP))]]
    found: list[float] = []
    with provider("openai_chat", scripts, "--deltas-per-second", "100", "--stamp") as base_url:
        async with Callstream() as cs:
            made = cs.httpx_client() if tapped else httpx.AsyncClient()
            async with made as client:
                body = {"model": "m", "stream": True, "messages": []}
                async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
                    async for line in response.aiter_lines():
                        _, mark, rest = line.partition('"content":"')
                        if mark and rest[:20].isdigit():
                            found.append((time.monotonic_ns() - int(rest[:20])) / 1e6)
    return found


async def tables(deltas: int) -> bool:
    table = Table(
        f"end to end: {deltas:,} deltas through the SDK and google-adk's Runner, CPU µs per delta",
        ["wire", "no tap", "tap", "times less", "tap, SQLite, a hook", "times less", ""],
    )
    passed = True
    for wire in WIRES:
        await measured(wire, 10, None)  # what is loaded and built once is not a delta's cost
        await measured(wire, 10, "memory:", hooked=True)
        with tempfile.TemporaryDirectory() as folder:
            bare = await measured(wire, deltas, "memory:")
            full = await measured(wire, deltas, f"sqlite:///{folder}/calls.db", hooked=True)
        without = await measured(wire, deltas, None)
        good = without / bare >= WANTED_BARE and without / full >= WANTED_FULL
        passed = passed and good
        table.row(wire, without, bare, without / bare, full, without / full, "PASS" if good else "FAIL")
    table.print()
    delays = Table("latency at 100 deltas/s, provider's write to reader, ms", ["", "p50", "p99"])
    for name, tapped in (("no tap", False), ("tap", True)):
        found = sorted(await latencies(tapped, 500))
        delays.row(name, statistics.median(found), found[int(len(found) * 0.99)])
    delays.print()
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltas", type=int, default=20_000)
    warnings.simplefilter("ignore")
    return 0 if asyncio.run(tables(parser.parse_args().deltas)) else 1


if __name__ == "__main__":
    sys.exit(main())
