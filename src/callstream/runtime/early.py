"""Tools that run before the response of the model has ended.

::

    waiting ──ready──▶ begun ──tool and arguments have ended, hooks settled──▶ result recorded
                         └──arguments will not arrive, or were refused──▶ ArgumentsAborted inside the tool; discarded

A tool with a ``Streamed`` parameter begins when its required parameters are whole and valid and the streamed value has
begun; one with ``start="early"`` when the wire has ended its arguments and its hooks have settled. Laws:

- A call begins once. Whoever asks for it later, by ``invoke`` or by calling the tool in the run, gets the result of that.
- What the tool sees is in the journal: pieces come here after they were recorded, and it is recorded that the tool runs
  before it runs.
- There is no result before the arguments have ended, whole and valid, and the hooks for their end have settled. What a tool
  returned or raised before waits for that, and does not count if the call is discarded.
- A call that is discarded while its tool runs raises ``ArgumentsAborted`` at the tool's await; in a thread, where it reads
  the stream. The end of the run waits for what the tool then undoes, for as long as a hook may take.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from callstream.calls import Call, CallEvent
from callstream.runtime.barrier import Write
from callstream.runtime.core import RunCore
from callstream.runtime.earlyrun import EarlyRun
from callstream.runtime.ending import Ending
from callstream.runtime.tooluse import ToolUse
from callstream.tools import Tool, starts_early

EarlyPolicy: TypeAlias = Literal["record", "report", "never"]
"""Whether tools of a response's calls may begin early: with their results recorded, or left to a host that reports them."""


class EarlyRuns:
    """The tools of one run that begin early, and the calls of which they may become."""

    held: frozenset[str] = frozenset()
    """Names of tools that never begin early, because their host gives them something when it calls them."""

    def __init__(self, run: RunCore, tool_use: ToolUse, write: Write) -> None:
        self._run = run
        self._tool_use = tool_use
        self._write = write
        self._expected: dict[str, tuple[EarlyPolicy, Tool[Any] | None]] = {}
        self._runs: dict[str, EarlyRun] = {}

    @property
    def is_running(self) -> bool:
        """Whether a tool is running that the end of the run waits for."""
        return any(not early.is_over for early in self._runs.values())

    def expect(self, call_id: str, policy: EarlyPolicy, own: Tool[Any] | None = None) -> None:
        """A response that is being read brings this call, so its tool may begin early.

        ``own``: the tool that its name means to the agent that asked, if that is known.
        """
        self._expected[call_id] = policy, own

    def take(self, event: CallEvent, call: Call) -> None:
        """An event has made the call what it is now."""
        early = self._runs.get(event.call_id)
        if early is None:
            policy, own = self._expected.pop(event.call_id, ("never", None))
            tool = own or self._run.engine.tools.get(call.name) if policy != "never" else None
            if tool is None or not starts_early(tool) or call.name in self.held:
                return
            is_recorded = policy == "record"
            early = EarlyRun(self._run, self._tool_use, self._write, call, tool, is_recorded=is_recorded)
            self._runs[event.call_id] = early
        early.take(event, call)

    def begun(self, call_id: str) -> EarlyRun | None:
        """The early run of that call, if it has begun."""
        early = self._runs.get(call_id)
        return early if early is not None and early.has_begun else None

    async def settle(self, call_id: str) -> None:
        early = self._runs.get(call_id)
        if early is not None:
            await early.settle()

    def abort(self, ending: Ending) -> None:
        """The run ends: tools whose arguments are not whole are told so, the others are cancelled."""
        for early in self._runs.values():
            if early.is_over:
                continue
            call = self._run.call(early.call_id)
            if call.is_being_written:
                early.abort(ending.discards(call) or "interrupted")
            elif not call.is_final:
                early.cancel()

    async def close(self) -> None:
        """Waits for the tools."""
        for early in list(self._runs.values()):
            if not early.is_over:
                await early.close()
