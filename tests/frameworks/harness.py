"""What every framework has to show: its call arrived, whole, and the journal has the pieces that the provider sent.

A program defines ``ask(base_url, cs)``, sync or async, which asks its framework for one answer through the tap and returns
the name and the arguments of the call that the framework was given. ``IS_WHOLE``: its wire sends arguments in one piece. ::

    python -m tests.frameworks.harness instructor
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from typing import Any

from callstream import Callstream
from callstream.events import ArgsAppended
from callstream.testing import ScriptedProvider, ToolCall

ARGS = {"title": "Tides", "content": "The moon pulls, and the sea follows."}
WIRE = "openai_chat"


def run(name: str) -> None:
    """Runs the program of a framework. Raises AssertionError if it does not show what it has to."""
    program = importlib.import_module(f"tests.frameworks.{name}")
    wire = getattr(program, "WIRE", WIRE)
    with ScriptedProvider(wire, [ToolCall("write", ARGS)], stream_args_unasked=True) as provider:
        asyncio.run(_check(program.ask, provider, 1 if getattr(program, "IS_WHOLE", False) else 4))


async def _check(ask: Any, provider: ScriptedProvider, least: int) -> None:
    async with Callstream() as cs:
        cs.on_args_delta("write", lambda delta, signal: None)
        asked = (
            ask(provider.base_url, cs)
            if inspect.iscoroutinefunction(ask)
            else asyncio.to_thread(ask, provider.base_url, cs)
        )
        name, args = await asked
        assert (name, args) == ("write", ARGS), (name, args)
        (call,) = await cs.journal.calls()
        (run,) = await cs.journal.runs()
        pieces = [
            record.event.text async for record in cs.journal.read(run.run_id) if isinstance(record.event, ArgsAppended)
        ]
        kept = await cs.journal.call(call.call_id)
        assert kept is not None
        assert kept.args == ARGS, kept
        assert len(pieces) >= least, f"expected the pieces that the provider sent, got {len(pieces)}"


if __name__ == "__main__":
    for program in sys.argv[1:]:
        run(program)
        sys.stdout.write(f"{program}: the call arrived whole, and its pieces are in the journal\n")
