"""``callstream demo --terminal``: the same agent, its journal watched in the terminal it was started in."""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import aclosing
from typing import Any

from ag_ui.core import RunAgentInput

from callstream.adk import ADKAgent
from callstream.calls import Call, CallState
from callstream.cli.output import Printer, clean
from callstream.cli.sources import JournalSource
from callstream.cli.watch import follow

QUESTION = "Write down how tides work."


class TerminalChat:
    """One thread with the agent. ``yes``: what it asks is agreed to, without a person."""

    def __init__(self, agent: ADKAgent, out: Printer, *, yes: bool) -> None:
        self._agent = agent
        self._out = out
        self._yes = yes
        self._journal = agent.callstream.journal
        self._thread_id = f"demo-{uuid.uuid4().hex[:8]}"

    async def hold(self, said: str) -> None:
        """Asks, and answers what the agent asks back until it asks nothing more."""
        run_id = await self._run({"role": "user", "content": said})
        while waiting := await self._journal.calls(run_id=run_id, states=[CallState.AWAITING]):
            answer = await self._answer(waiting[0])
            if answer is None:
                self._out.note(f"call {waiting[0].call_id} still awaits its answer")
                return
            run_id = await self._run({"role": "tool", "toolCallId": waiting[0].call_id, "content": answer})

    async def _run(self, message: dict[str, Any]) -> str:
        run_id = f"run_{uuid.uuid4().hex[:12]}"
        run_input = RunAgentInput.model_validate(
            {"threadId": self._thread_id, "runId": run_id, "messages": [{"id": uuid.uuid4().hex, **message}]}
        )
        async with aclosing(self._agent.run(run_input)) as events, asyncio.TaskGroup() as tasks:
            await anext(events)  # which the journal has, so the run is there to be watched
            tasks.create_task(follow(JournalSource(self._journal, ""), run_id, self._out))
            async for _ in events:
                pass
        return run_id

    async def _answer(self, call: Call) -> str | None:
        whole = await self._journal.call(call.call_id)
        asked = whole.args if whole is not None and isinstance(whole.args, dict) else {}
        question = f"Publish “{clean(str(asked.get('title', '')))}”? [y/n] "
        if self._yes:
            self._out.line(f"{question}y")
            return '{"approved":true}'
        self._out.write(question)
        said = await asyncio.to_thread(sys.stdin.readline)
        if not said:
            self._out.line()
            return None
        return '{"approved":true}' if said.strip().lower() in ("y", "yes") else '{"approved":false}'


async def show_calls(agent: ADKAgent, out: Printer) -> None:
    """What the journal kept."""
    calls = await agent.callstream.journal.calls()
    stats = await agent.callstream.journal.stats()
    out.line()
    out.line(f"The journal has {stats['records']} records of {stats['runs']} runs. Its calls:")
    rows = [(call.name, str(call.state), call.call_id) for call in calls]
    out.table(("tool", "state", "call"), rows)
