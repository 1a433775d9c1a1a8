"""What Callstream does, in a terminal: ``python -m callstream.testing.demo``.

A scripted provider plays the model over real HTTP. It writes a document, looks two things up at once and starts a slow
job; the arguments are shown while they are being written, and the journal is read at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from typing import Any

from callstream.calls import Call as JournalCall
from callstream.calls import CallState
from callstream.deltas import FieldDelta
from callstream.errors import CallstreamError, UsageError
from callstream.events import ArgsAppended
from callstream.progress import Progress, no_progress
from callstream.tap import Callstream
from callstream.testing.provider import ScriptedProvider
from callstream.testing.script import Call, Step, Text
from callstream.tools import AbortSignal, tool

DOCUMENT = """# Tides

The moon pulls, and the sea follows: twice a day up, twice a day down.
When sun and moon pull together, the tide runs high; when they pull apart, it hardly runs at all.

Write it down, and the next page is ready before the ink is dry.
"""
SCRIPTS: list[list[Step]] = [
    [Text("I will write that down."), Call("write_document", {"title": "Tides", "content": DOCUMENT}, size=6)],
    [Call("look_up", {"topic": topic}) for topic in ("the moon", "the sun")],
    [Call("print_copies", {"copies": 20})],
    [Text("Written, checked and printed.")],
]


@tool
async def write_document(title: str, content: str) -> dict[str, Any]:
    """Writes a document."""
    return {"title": title, "characters": len(content)}


@write_document.on_field("content")
async def grow(field: FieldDelta, signal: AbortSignal) -> None:
    say(field.text)


@write_document.on_args_complete
async def written(call: JournalCall, signal: AbortSignal) -> None:
    say(f"[{call.name}: all arguments are here, and only now the tool runs]\n\n")


@tool
async def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


@tool
async def print_copies(copies: int, progress: Progress = no_progress) -> str:
    """Prints copies, slowly."""
    for done in range(1, copies + 1):
        await asyncio.sleep(0.05)
        await progress(done, copies, "printing")
    return f"{copies} copies"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def bar(tool_name: str, call_id: str, data: Any) -> None:
    filled = int(30 * data["done"] / data["total"])
    end = "\n\n" if data["done"] == data["total"] else ""
    say(f"\r{tool_name} [{'#' * filled}{'.' * (30 - filled)}] {data['done']}/{data['total']}{end}")


async def demo(journal: str, pace: float) -> None:
    """One turn of an agent: ask, run the tools of the answer, ask again, until there are none."""
    tools = [write_document, look_up, print_copies]
    async with Callstream(journal, tools=tools, on_tool_progress=bar) as cs:
        async with ScriptedProvider("anthropic", SCRIPTS, deltas_per_second=pace) as provider:
            say(f"The model is a scripted provider at {provider.base_url}; the journal is {journal}\n\n")
            async with cs.run("demo") as run, cs.httpx_client() as client:
                messages: list[dict[str, Any]] = [{"role": "user", "content": "Write down how tides work."}]
                while True:
                    body = {"model": "scripted", "max_tokens": 4000, "stream": True, "messages": messages}
                    async with client.stream("POST", f"{provider.base_url}/v1/messages", json=body) as response:
                        async for _ in response.aiter_bytes():
                            pass
                    ready = [call for call in run.calls if call.state is CallState.ARGS_COMPLETE]
                    if not ready:
                        break
                    results = await asyncio.gather(*(run.invoke(call.call_id) for call in ready))
                    messages += _turn(ready, results)
        await tell(cs, run.run_id)


def _turn(calls: list[JournalCall], results: list[Any]) -> list[dict[str, Any]]:
    """What the calls and their results are in the next request."""
    pairs = list(zip(calls, results, strict=True))
    uses = [{"type": "tool_use", "id": call.provider_id, "name": call.name, "input": call.args} for call in calls]
    answers = [
        {"type": "tool_result", "tool_use_id": call.provider_id, "content": str(result)} for call, result in pairs
    ]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": answers}]


async def tell(cs: Callstream, run_id: str) -> None:
    """What the journal kept."""
    records = [record async for record in cs.journal.read(run_id)]
    say(f"The journal has {len(records)} records of this run:\n")
    for call in await cs.journal.calls(run_id=run_id):
        pieces = [record.event for record in records if isinstance(record.event, ArgsAppended)]
        own = [piece.text for piece in pieces if piece.call_id == call.call_id]
        say(f"  {call.call_id:10} {call.name:15} {call.state:10} {len(own):3} pieces, result {call.result!r}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m callstream.testing.demo", description=__doc__)
    parser.add_argument("--journal", help="a journal URL; without one, a SQLite file that is removed at the end")
    parser.add_argument("--pace", type=float, default=40, help="deltas a second (default: 40)")
    options = parser.parse_args(arguments)
    try:
        if options.pace <= 0:
            raise UsageError(f"expected a pace of more than 0 deltas a second, got {options.pace}")
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(demo(options.journal or f"sqlite:///{folder}/calls.db", options.pace))
    except CallstreamError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
