"""The paths that data takes through the package, traced in the running program: ``python -m tests.walks``.

A walk is the functions that were called while one thing happened: a chunk of the provider reached an AG-UI client, a
hook got its delta, a client's answer reached the model, an old run was archived, ``callstream serve`` came up. docs/flows.md describes these paths,
and ``tests/test_flows.py`` compares the two. ``--steps`` prints the functions, ``--json`` every single call of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import callstream
from callstream import Callstream, FieldDelta, tool
from callstream.events import RunEnded, RunStarted
from callstream.journal import Housekeeping, open_journal
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.server.serving import Server, run_input, served, tool_message

PACKAGE = Path(callstream.__file__).parent
NOT_THE_PRODUCT = ("testing/",)
FIRST, ROUNDS = 4, (6, 8, 10, 12)
"""The pieces of arguments between which is looked."""
PAINT = {
    "name": "paint",
    "description": "Paints the page.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}


class Walk:
    """Functions of the package as ``file::function``, in the order in which they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._is_on = False
        self._rounds: list[int] = []

    def __enter__(self) -> Walk:
        self._is_on = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            file = code.co_filename[len(str(PACKAGE)) + 1 :]
            if not file.startswith(NOT_THE_PRODUCT):
                self.calls.append(f"{file}::{code.co_qualname}")

    def end_round(self) -> None:
        """The same has happened once more. A step is what each round has: timers ring when they like."""
        self._rounds.append(len(self.calls))

    @property
    def steps(self) -> list[str]:
        """In the order in which they were first called."""
        rounds = [set(self.calls[first:last]) for first, last in pairwise([0, *self._rounds])]
        return [step for step in dict.fromkeys(self.calls) if all(step in each for each in rounds)]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(step.partition("::")[0] for step in self.steps))


@contextmanager
def tracing() -> Iterator[Walk]:
    """Threads that begin inside are seen as well: the journal's is one."""
    walk = Walk()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@asynccontextmanager
async def serving_agent(cs: Callstream, scripts: Any, *tools: Any) -> AsyncIterator[Server]:
    from anthropic import AsyncAnthropic
    from google.adk.agents import LlmAgent
    from google.adk.models.anthropic_llm import AnthropicLlm

    from callstream.adk import ADKAgent, AGUIToolset

    async with ScriptedProvider("anthropic", scripts, deltas_per_second=6) as provider:
        model = AnthropicLlm(model="claude", client=AsyncAnthropic(api_key="none", base_url=provider.base_url))
        agent = ADKAgent(LlmAgent(name="writer", model=model, tools=[*tools, AGUIToolset()]), callstream=cs)
        async with served(agent) as server:
            yield server


@tool
async def write(body: str) -> str:
    """Writes."""
    return f"{len(body)} characters"


async def walk_of_a_chunk(journal: str) -> Walk:
    """From a chunk of the provider to the AG-UI client, in the middle of a call's arguments.

    The provider has answered once before: the very first bytes of an address are looked at on their own.
    """
    call = ToolCall("write", {"body": "word " * 16}, size=5)
    scripts = [[Text("Hello."), Finish()], [call, Finish()], [Text("Done."), Finish()]]
    with tracing() as walk:
        async with Callstream(journal, tools=[write]) as cs, serving_agent(cs, scripts, write) as server:
            async with server.run("Hello") as stream:
                await stream.all()
            async with server.run("Go") as stream:
                seen = 0
                async for event in stream:
                    if event["type"] == "TOOL_CALL_ARGS":
                        seen += 1
                        if seen == FIRST:
                            walk.__enter__()
                        elif seen in ROUNDS:
                            walk.end_round()
                            if seen == ROUNDS[-1]:
                                walk.__exit__()
    return walk


async def walk_of_a_hook(journal: str) -> Walk:
    """From a chunk of the provider to a tool's hook, nobody watching."""

    @tool
    async def draft(body: str) -> str:
        """Drafts."""
        return "drafted"

    with tracing() as walk:
        seen = 0

        @draft.on_field("body")
        async def grow(field: FieldDelta, signal: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == FIRST:
                walk.__enter__()
            elif seen in ROUNDS:
                walk.end_round()
                if seen == ROUNDS[-1]:
                    walk.__exit__()

        from anthropic import AsyncAnthropic

        scripts = [[ToolCall("draft", {"body": "word " * 16}, size=5), Finish()]]
        async with (
            Callstream(journal, tools=[draft]) as cs,
            ScriptedProvider("anthropic", scripts, deltas_per_second=6) as provider,
        ):
            client = AsyncAnthropic(api_key="none", base_url=provider.base_url, http_client=cs.httpx2_client())
            async with cs.run("thread"):
                messages: Any = [{"role": "user", "content": "Go"}]
                schemas: Any = [draft.schema("anthropic")]
                async with client.messages.stream(
                    model="claude", max_tokens=1000, messages=messages, tools=schemas
                ) as stream:
                    async for _ in stream:
                        pass
    return walk


async def walk_of_an_answer(journal: str) -> Walk:
    """From a client's answer to a call that awaits it, to the request in which the model reads it. Several times."""
    with tracing() as walk:
        is_answered = False

        def scripts(request: Any) -> list[Any]:
            if not is_answered:
                return [ToolCall("paint", {"color": "red"}), Finish()]
            walk.__exit__()
            walk.end_round()
            return [Text("Done."), Finish()]

        async with Callstream(journal) as cs, serving_agent(cs, scripts) as server:
            for _ in ROUNDS:
                is_answered = False
                async with server.run("Go", tools=[PAINT]) as stream:
                    events = await stream.all()
                (started,) = [event for event in events if event["type"] == "TOOL_CALL_START"]
                answer = tool_message(started["toolCallId"], {"painted": True})
                is_answered = True
                walk.__enter__()
                async with server.stream(
                    "POST", "/agui", json=run_input(None, messages=[answer], tools=[PAINT])
                ) as stream:
                    await stream.all()
    return walk


AGENT = """
from google.adk.agents import LlmAgent

agent = LlmAgent(name="writer", model="gemini-3-flash-preview")
"""


async def walk_of_an_old_run(journal: str) -> Walk:
    """From the moment when a run may leave the journal until it is forgotten."""
    with tempfile.TemporaryDirectory() as folder, tracing() as walk:
        duties = Housekeeping(sweep_every=None, compact_after=None, archive_after=0.01)
        opened = open_journal(journal, archive=Path(folder).as_uri(), housekeeping=duties)
        with walk:
            for run_id in ("old", "other"):
                await opened.append(run_id, [RunStarted(run_id, f"user of {run_id}"), RunEnded("finished")])
                await opened.compact(run_id)
            while not (await opened.stats())["archive"]["runs"]:  # noqa: ASYNC110  # what happens in a database sets no event
                await asyncio.sleep(0.01)
            assert len(await opened.read_whole(["old"])) == 2
            await opened.forget(principal="user of old")
        await opened.aclose()
    return walk


async def walk_of_serving(journal: str) -> Walk:
    """From the command ``callstream serve`` to the first answer, and from SIGTERM to the end."""
    from callstream.cli import program
    from callstream.cli.output import Printer

    class Address(Printer):
        def write(self, text: str) -> None:
            printed.set_result(text.strip())

    printed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder, tracing() as walk:
        Path(folder, "writer.py").write_text(AGENT, encoding="utf-8")  # noqa: ASYNC240
        argv = ["serve", f"{folder}/writer.py:agent", "--journal", journal, "--port", "0"]
        with walk:
            options = program._parser().parse_args(argv)
            serving = asyncio.create_task(options.run(options, Address(plain=True)))
            async with httpx.AsyncClient(base_url=await printed) as client:
                while not (await client.get("/readyz")).is_success:
                    pass
            signal.raise_signal(signal.SIGTERM)
            await serving
    return walk


WALKS = {
    "A chunk of the provider reaches a client": walk_of_a_chunk,
    "A hook gets its delta": walk_of_a_hook,
    "A client's answer reaches the model": walk_of_an_answer,
    "A run that ended long ago": walk_of_an_old_run,
    "A server starts and ends": walk_of_serving,
}


async def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    calls: dict[str, list[str]] = {}
    for title, walk_of in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            walk = await walk_of(f"sqlite:///{folder}/calls.db")
        calls[title] = walk.calls
        if "--json" not in sys.argv:
            print(f"{title}: {len(walk.files)} files, {len(walk.steps)} functions")
        if "--steps" in sys.argv:
            for step in walk.steps:
                print(f"  {step}")
    if "--json" in sys.argv:
        print(json.dumps(calls))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
