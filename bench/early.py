"""Table "early": how long a turn takes when tools start early, when they read a stream, and when they wait as usual.

Six turns of a scripted provider in another process, at the pace of a model, over real HTTP and with Anthropic's SDK. A tool
that writes takes a moment for each piece, as a tool does that sends it on; a tool that reads takes as long as a request. A
turn is over when the model has answered with what the tools returned.

- plain: ``run.run_tools()`` runs the tools after the response, one after the other.
- early: ``@tool(start="early")``: each starts when its own arguments are whole, beside the others.
- streamed: ``Streamed[str]`` where a tool has a text, else as early.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from anthropic import AsyncAnthropic

from bench.endtoend import text_of
from bench.providers import provider
from bench.table import Table
from callstream import Callstream, Streamed, tool
from callstream.testing import Text, Thought, ToolCall

DELTAS_PER_SECOND = 40
SIZE = 8
LOOK_SECONDS = 0.5
SECONDS_PER_CHARACTER = 0.002
SLACK = 1.15
"""A turn that has nothing to gain may take that much longer, by chance."""

Kind: TypeAlias = Literal["plain", "early", "streamed"]
KINDS: tuple[Kind, ...] = ("plain", "early", "streamed")
WORDS = "Let me think about what was asked, and about what is known. "

TURNS: dict[str, tuple[Sequence[Any], Kind | None]] = {
    "one slow tool": ([ToolCall("look", {"city": "Paris"}), Text(WORDS * 4, size=SIZE)], "early"),
    "three parallel calls": (
        [ToolCall("look", {"city": city, "question": WORDS * 2}, size=SIZE) for city in ("Paris", "Rome", "Oslo")],
        "early",
    ),
    "a long document": ([ToolCall("write", {"title": "Tides", "content": text_of(100)}, size=SIZE)], "streamed"),
    "a tool that fails": ([ToolCall("fail", {"city": "Atlantis"}), Text(WORDS * 4, size=SIZE)], "early"),
    "thinking before": (
        [
            Thought(WORDS * 2, size=SIZE, signature="c2ln"),
            ToolCall("write", {"title": "T", "content": text_of(60)}, size=SIZE),
        ],
        "streamed",
    ),
    "a plain answer": ([Text(WORDS * 4, size=SIZE)], None),
}
"""What the model sends, and which way has to be quicker than plain; None: none."""


def tools_of(kind: Kind) -> list[Any]:
    start: Any = "end" if kind == "plain" else "early"

    @tool(start=start)
    async def look(city: str, question: str = "") -> str:
        """Looks."""
        await asyncio.sleep(LOOK_SECONDS)
        return f"{city}: sunny"

    @tool(start=start)
    async def fail(city: str) -> str:
        """Fails."""
        await asyncio.sleep(LOOK_SECONDS)
        raise LookupError(city)

    async def send(text: str) -> None:
        await asyncio.sleep(len(text) * SECONDS_PER_CHARACTER)

    async def write_whole(title: str, content: str) -> int:
        """Writes."""
        await send(content)
        return len(content)

    async def write_streamed(title: str, content: Streamed[str]) -> int:
        """Writes."""
        async for piece in content:
            await send(piece)
        return len(content.text)

    if kind == "streamed":
        return [look, fail, tool(name="write")(write_streamed)]
    return [look, fail, tool(name="write", start=start)(write_whole)]


async def turn(client: AsyncAnthropic, cs: Callstream) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    schemas = [made.schema("anthropic") for made in cs.tools.values()]
    async with cs.run("thread") as run:
        while True:
            async with client.messages.stream(model="m", max_tokens=9999, messages=messages, tools=schemas) as stream:
                message = await stream.get_final_message()
            messages.append({"role": "assistant", "content": message.content})
            results = await run.run_tools()
            if not results:
                return
            told = [{"type": "tool_result", "tool_use_id": each.wire_id, "content": each.text} for each in results]
            messages.append({"role": "user", "content": told})


async def measure(script: Sequence[Any], kind: Kind) -> float:
    """Seconds of a turn."""
    scripts = [script, [Text("Done.")]] if any(isinstance(step, ToolCall) for step in script) else [script]
    with provider("anthropic", scripts, "--deltas-per-second", str(DELTAS_PER_SECOND)) as base_url:
        async with Callstream(tools=tools_of(kind)) as cs:
            async with AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client()) as client:
                began = time.perf_counter()
                await turn(client, cs)
                return time.perf_counter() - began


async def table(choose: Callable[[str], bool]) -> bool:
    shown = Table(
        f"early: seconds of a turn at {DELTAS_PER_SECOND} deltas a second", ["turn", *KINDS, "plain / best", ""]
    )
    passed = True
    await measure([Text("Warm.")], "plain")  # what is loaded once is no part of it
    for name, (script, wanted) in TURNS.items():
        if not choose(name):
            continue
        seconds = {kind: await measure(script, kind) for kind in KINDS}
        best = min(seconds["early"], seconds["streamed"])
        good = best < seconds["plain"] * SLACK if wanted is None else seconds[wanted] < seconds["plain"]
        passed = passed and good
        shown.row(name, *seconds.values(), seconds["plain"] / best, "PASS" if good else "FAIL")
    shown.print()
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turn", default="", help="only turns whose name has this in it")
    wanted = parser.parse_args().turn
    warnings.simplefilter("ignore")
    return 0 if asyncio.run(table(lambda name: wanted in name)) else 1


if __name__ == "__main__":
    sys.exit(main())
