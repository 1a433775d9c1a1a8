"""What becomes of an agent whose model makes a mistake, framework by framework.

The model calls a tool wrongly, then rightly, and then says that it is done. Wanted is: the model was told what was wrong, the
tool ran once, on the arguments of the second call, and the agent came to its end. ::

    python -m tests.frameworks.faults langgraph

runs the agent of that environment, prints what became of it, and keeps it in ``results``, from where ``docs/faults.py``
writes the table of docs/howto/frameworks.md.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from callstream import Callstream, Reject, Settings, tool
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall

RESULTS = Path(__file__).with_name("results")
GOOD = {"title": "Tides", "count": 3}
WELL = "told, goes on"
_SECONDS = 300  # the first time, the framework is imported and compiled
_PACKAGES = {
    "agents": "openai-agents",
    "agents_responses": "openai-agents",
    "pydantic_ai": "pydantic-ai-slim",
    "llamaindex": "llama-index-core",
    "autogen": "autogen-agentchat",
    "agent_framework": "agent-framework-core",
    "strands": "strands-agents",
    "haystack": "haystack-ai",
}


class Fault(NamedTuple):
    """What the model does wrong, and a word of what it has to be told; the id of the call where that is the framework's."""

    steps: list[Any]
    told: str = "bad"


FAULTS = {
    "missing argument": Fault([ToolCall("write", {"title": "Tides"}, call_id="bad")], "count"),
    "wrong type": Fault([ToolCall("write", {"title": "Tides", "count": "many"}, call_id="bad")], "count"),
    "not JSON": Fault([ToolCall("write", text='{"title": Tides, "count": 3}', call_id="bad")]),
    "cut off": Fault([ToolCall("write", {**GOOD, "title": "T" * 90}, call_id="bad", stop_after=3), Finish("length")]),
    "rejected": Fault([ToolCall("write", {**GOOD, "title": "Secrets"}, call_id="bad")], "about secrets"),
    "unknown tool": Fault([ToolCall("erase", GOOD, call_id="bad")]),
}


class Tools:
    """The tool, and what it ran on."""

    def __init__(self) -> None:
        self.ran: list[dict[str, Any]] = []

        async def write(title: str, count: int) -> str:
            """Writes a document.

            Args:
                title: What it is called.
                count: How many pages it has.
            """
            return self._write(title, count)

        def write_now(title: str, count: int) -> str:
            """Writes a document.

            Args:
                title: What it is called.
                count: How many pages it has.
            """
            return self._write(title, count)

        self.write = tool(write)
        self.write_now = tool(name="write")(write_now)

    def _write(self, title: str, count: int) -> str:
        self.ran.append({"title": title, "count": count})
        return "written"


async def outcome(program: Any, fault: Fault) -> str:
    """What became of the agent, in a few words."""
    tools = Tools()
    is_sync = getattr(program, "IS_SYNC", False)
    cs = Callstream(tools=[tools.write_now if is_sync else tools.write], settings=Settings(rejected="ask"))
    cs.on_args_complete("write", _judge)
    last = getattr(program, "LAST", [Text("Done.")])
    script = [fault.steps, [ToolCall("write", GOOD, call_id="good")], last, last]
    wire = getattr(program, "WIRE", "openai_chat")
    said: Any = None
    async with cs, ScriptedProvider(wire, script, stream_args_unasked=True) as provider:
        try:
            async with asyncio.timeout(_SECONDS), cs.run("thread"):
                if is_sync:
                    said = await asyncio.to_thread(program.run, provider.base_url, cs, tools)
                else:
                    said = await program.run(provider.base_url, cs, tools)
        except Exception as error:
            if not provider.requests:
                raise  # the program is wrong, and the framework was never asked
            return f"raises {type(error).__name__}" + ("" if not tools.ran else f", ran {len(tools.ran)}×")
        is_told = any(fault.told.encode() in request.body for request in provider.requests[1:])
    wrong = [f"ran on {args}" for args in tools.ran if args != GOOD]
    if not is_told:
        wrong.append("not told")
    if tools.ran.count(GOOD) != 1:
        wrong.append(f"ran {tools.ran.count(GOOD)}×")
    if "Done." not in str(said):
        wrong.append(f"ends with {str(said)[:40]!r}")
    return ", ".join(wrong) or WELL


async def _judge(call: Any, signal: Any) -> None:
    if call.args["title"] == "Secrets":
        raise Reject("nobody may write about secrets")


def main(environment: str) -> int:
    """Runs the agents of an environment, whose name may end in the year of its versions."""
    logging.disable(logging.CRITICAL)
    name = environment.removesuffix("_2025")
    bad = 0
    for each in (name, f"{name}_responses"):
        if not Path(__file__).with_name("agents").joinpath(f"{each}.py").exists():
            continue
        program = importlib.import_module(f"tests.frameworks.agents.{each}")
        found = {fault: asyncio.run(outcome(program, FAULTS[fault])) for fault in FAULTS}
        bad += sum(what != WELL for what in found.values())
        title = f"{program.__doc__.strip().rstrip('.')} {_version(each)}"
        kept = {"framework": title, "wire": getattr(program, "WIRE", "openai_chat"), "outcomes": found}
        suffix = environment.removeprefix(name)
        RESULTS.joinpath(f"{each}{suffix}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"{title}\n" + "".join(f"  {fault}: {what}\n" for fault, what in found.items()))
        sys.stdout.flush()
    return bad


def _version(name: str) -> str:
    try:
        return version(_PACKAGES.get(name, name))
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) > 0)
