"""Which of the model's calls a tool runs for that is called in Python.

A framework calls a tool without saying for which call. It has changed the arguments, perhaps: filled in defaults, stripped
text, made objects of them. So a call of a tool in a run is one of the model's calls of that tool, each of them once: the one
whose arguments are most alike, and of those that are equally alike the first. What follows from it:

- a tool that has begun early is waited for, and does not run again;
- the tool of a call that was rejected does not run;
- a call whose tool has run is not undone when the run ends before its result was seen: see ``Ending``;
- the tool can find out its own call: ``current_call``.

A tool that nobody called for the model, as a helper of another tool, is not taken for a call: inside of a tool there are
no claims.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from callstream.calls import Call, CallState
from callstream.runtime.core import RunCore
from callstream.runtime.early import EarlyRuns
from callstream.runtime.earlyrun import EarlyRun
from callstream.runtime.tooluse import ToolUse
from callstream.tools import ClaimedCall, Streamed, Tool


class Claims:
    """Of one run. Tools are called in any thread."""

    def __init__(self, run: RunCore, tool_use: ToolUse, early: EarlyRuns) -> None:
        self._run = run
        self._tool_use = tool_use
        self._early = early
        self._claimed: set[str] = set()
        self._delivered: set[str] = set()
        self._lock = threading.Lock()

    def find(self, tool: Tool[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        """The call that this call of the tool in Python means, which then is nobody else's; None if it means none.

        Raises CallRejected if the tool must not run for it.
        """
        run = self._run
        if run.outcome is not None:
            return None
        with self._lock:
            waiting = [call for call in run.calls if call.call_id not in self._claimed and self._may_mean(tool, call)]
            if not waiting:
                return None
            call = max(waiting, key=lambda each: self._likeness(tool, each, args, kwargs))  # the first of equals
            self._claimed.add(call.call_id)
        early = self._early.begun(call.call_id)
        joined = None if early is None else early.join()
        if joined is None and call.state is CallState.DISCARDED:
            raise run.rejection(call.call_id)
        return ClaimedCall(call, joined)

    def mark_delivered(self, call_ids: Collection[str]) -> None:
        """The program has got these calls whole, and runs their tools by itself."""
        self._delivered |= set(call_ids)

    def handed_over(self) -> frozenset[str]:
        """The calls whose tools have run, or may have: nobody sees it where a tool is not one of this Callstream."""
        tools = self._run.engine.tools
        unseen = {call.call_id for call in self._run.calls if call.name not in tools}
        return frozenset(self._claimed | (self._delivered & unseen))

    def _may_mean(self, tool: Tool[Any], call: Call) -> bool:
        run = self._run
        early = self._early.begun(call.call_id)
        if early is not None:
            is_whole = not call.is_being_written or (run.rejected == "forward" and call.state is CallState.DISCARDED)
            return early.tool == tool and not early.is_joined and is_whole
        if run.engine.find_tool(call.name) != tool:
            return False
        if call.state is CallState.DISCARDED:
            return run.rejected == "forward" and self._tool_use.is_untold(call)
        return call.state in (CallState.ARGS_COMPLETE, CallState.EXECUTING)

    def _likeness(self, tool: Tool[Any], call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """How many arguments of a call of the tool in Python are those that the model wrote, or what was made of them."""
        try:
            bound = inspect.signature(tool).bind_partial(*args, **kwargs).arguments
        except TypeError:
            return -1
        written = call.args if isinstance(call.args, dict) else {}
        early: EarlyRun | None = self._early.begun(call.call_id)
        typed = early.given if early is not None and isinstance(early.given, dict) else {}
        values = {**{name: value for name, value in typed.items() if not isinstance(value, Streamed)}, **written}
        return sum(name in bound and _is_equal(bound[name], values[name], typed.get(name)) for name in values)


class OneCall:
    """For a host that knows which call it runs: the tool that it calls is that call's, which may have begun."""

    def __init__(self, call: Call, tool: Tool[Any], early: EarlyRun | None = None) -> None:
        self._claimed = ClaimedCall(call, early)
        self._tool = tool

    def find(self, tool: Tool[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        return self._claimed if self._tool == tool else None


def _is_equal(value: Any, written: Any, converted: Any) -> bool:
    try:
        return value in (written, converted) or bool(msgspec.to_builtins(value, enc_hook=_dump) == written)
    except (TypeError, ValueError):
        return False


def _dump(value: Any) -> Any:
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return value.model_dump(mode="json")
