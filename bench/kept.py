"""Table "kept": how many bytes a run keeps so that another process can go on with it.

Runs of a google-adk agent with so many turns, each of which has reasoning, text and the call of a tool, and a last text; on
every wire that google-adk speaks. Bytes as they are in the journal, compressed: of the whole run, of each turn in it, and
what share that is of all that the journal has of the run while it works. Then the run ends and is compacted, which
Callstream does a minute after its end by default, and what is kept then is counted again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput, UserMessage
from google.adk.agents import LlmAgent
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from bench.table import Table
from callstream import Callstream, results_in
from callstream.adk import ADKAgent
from callstream.events import KEPT, Record, RequestKept, ResponseKept, ResultReceived
from callstream.runtime.continuing import unpack
from callstream.testing import Finish, ReceivedRequest, Script, ScriptedProvider, Text, Thought, ToolCall

WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")
LINE = "The river rose, and {0} of the {1} houses had to be left before the night was over. "
SIZE = 8


def text_of(size: int, number: int) -> str:
    """So many characters, not too much like each other."""
    lines = [LINE.format(number * 31 + place * 7, number * 97 + place * 13) for place in range(size // 60 + 1)]
    return "".join(lines)[:size]


class Models:
    def __init__(self, wire: str, turns: int, size: int) -> None:
        self._wire, self._turns, self._size = wire, turns, size

    def script(self, request: ReceivedRequest) -> Script:
        turn = sum(isinstance(event, ResultReceived) for event in results_in(self._wire, request.body))
        said = Text(text_of(self._size // 2, turn), size=SIZE)
        if turn >= self._turns - 1:
            return [said, Finish()]
        call = ToolCall("write", {"content": text_of(self._size, turn + 100)}, size=SIZE)
        return [Thought(text_of(self._size // 4, turn + 200), size=SIZE), said, call, Finish()]


def model_of(wire: str, base_url: str) -> Any:
    if wire == "gemini":
        from google.adk.models import Gemini
        from google.genai import types

        options = types.HttpOptions(base_url=base_url)
        return Gemini(model="gemini-3-flash-preview", client_kwargs={"http_options": options, "api_key": "none"})
    if wire == "anthropic":
        from google.adk.models.anthropic_llm import AnthropicLlm

        os.environ.update(ANTHROPIC_BASE_URL=base_url, ANTHROPIC_API_KEY="none")
        return AnthropicLlm(model="claude-sonnet-5-5")
    from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm

    if wire == "openai_chat":
        return OpenAILlm(model="gpt-5", api_key="none", base_url=base_url)
    return OpenAIResponsesLlm(model="gpt-5", store=False, api_key="none", base_url=base_url)


def write(content: str) -> dict[str, int]:
    """Writes."""
    return {"characters": len(content)}


async def measured(wire: str, turns: int, size: int) -> tuple[list[Record], list[Record]]:
    """The records of a run before and after it was compacted."""
    with tempfile.TemporaryDirectory() as folder:
        with ScriptedProvider(wire, Models(wire, turns, size).script, stream_args_unasked=True) as provider:
            async with Callstream(f"sqlite:///{Path(folder) / 'calls.db'}") as cs:
                root = LlmAgent(name="writer", model=model_of(wire, provider.base_url), tools=[write])
                sessions = SqliteSessionService(str(Path(folder) / "sessions.db"))
                agent = ADKAgent(root, callstream=cs, session_service=sessions, user_id="user", continues=True)
                asked = [UserMessage(id="user", content="Write it.")]
                async for _ in agent.run(RunAgentInput(thread_id="thread", run_id="run", messages=asked)):
                    pass
                before = await cs.journal.read_whole(["run"])
                await cs.journal.compact("run")
                after = await cs.journal.read_whole(["run"])
                await agent.close()
    return before, after


def stored(records: list[Record]) -> int:
    return sum(len(msgspec.json.encode(record.event)) for record in records)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kept", description="Bytes that continuing keeps.")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--size", type=int, default=4000, help="characters of the arguments of each call")
    given = parser.parse_args()
    columns = ["wire", "for the SDK", "kept", "per turn", "of it responses", "of the run's records", "after its end"]
    table = Table(
        f"bytes kept of a run of {given.turns} turns, {given.size:,} characters of arguments a turn, in deltas of {SIZE}",
        columns,
    )
    is_well = True
    for wire in WIRES:
        before, after = asyncio.run(measured(wire, given.turns, given.size))
        kept = [record for record in before if type(record.event) in KEPT]
        bodies = [record.event for record in kept if isinstance(record.event, ResponseKept)]
        per_turn = stored([record for record in kept if isinstance(record.event, RequestKept | ResponseKept)])
        left = stored([record for record in after if type(record.event) in KEPT])
        wired = sum(len(unpack(body.body)) for body in bodies)
        share = f"{stored(kept) / stored(before):.0%}"
        of_bodies = sum(len(body.body) for body in bodies)
        cells = [f"{each:,}" for each in (wired, stored(kept), per_turn // len(bodies), of_bodies)]
        table.row(wire, *cells, share, f"{left:,}")
        is_well &= len(bodies) == given.turns and left == 0
    table.print()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
