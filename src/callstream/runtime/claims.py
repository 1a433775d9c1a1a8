"""Which of the model's calls a tool runs for that is called in Python.

A framework calls a tool without
saying for which call. It has changed the arguments, perhaps: filled in defaults, stripped text, made objects of them.
So a call of a tool in a run is one of the model's calls of that tool, each of them once: the one whose arguments are
most alike, and of those that are equally alike the first. What follows from it:

- a tool that has begun early is waited for, and does not run again;
- the tool of a call that was rejected does not run;
- a call whose tool has run is not undone when the run ends before its result was seen: see ``Ending``;
- the tool can find out its own call: ``current_call``.

A tool that is not called for the model, as a helper of another tool, is not taken for a call: inside of a tool there
are no claims.

In a run that can go on in another process, such a tool begins when that is recorded, and its result is recorded when it has
returned: what an earlier attempt has recorded is given back, and the tool does not run.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from callstream.calls import HAS_OUTCOME, Call, CallState
from callstream.errors import CallRejected, RunOver, TransitionError, UsageError
from callstream.runtime.core import RunCore
from callstream.runtime.earlier import EarlierCalls, outcome_of
from callstream.runtime.early import EarlyRun, EarlyRuns
from callstream.runtime.ownloop import Work, run_in
from callstream.runtime.tooluse import ToolUse
from callstream.tools import ClaimedCall, Joined, Streamed, Tool, running_for


class Claims:
    """Of one run. Tools are called in any thread."""

    def __init__(self, run: RunCore, tool_use: ToolUse, early: EarlyRuns, earlier: EarlierCalls) -> None:
        self._run = run
        self._tool_use = tool_use
        self._early = early
        self._earlier = earlier
        self._claimed: set[str] = set()
        self._delivered: set[str] = set()
        self._lock = threading.Lock()

    def find(self, tool: Tool[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        """The call that this call of the tool in Python means, which is claimed by that; None if it means none.

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
        joined: Joined | None = None if early is None else early.join()
        if joined is None and call.state is CallState.DISCARDED:
            raise run.rejection(call.call_id)
        if joined is None and self._is_recorded(call):
            function: Any = tool
            joined = RecordedCall(run, self._earlier, call, partial(function, *args, **kwargs), tool)
        return ClaimedCall(call, joined)

    def _is_recorded(self, call: Call) -> bool:
        """Whether the run records that the tool begins and ends, because it can go on elsewhere."""
        keeping = self._run.keeping
        if keeping is None or keeping.is_given_up:
            return False
        return call.state is CallState.ARGS_COMPLETE or self._earlier.has(call.call_id)

    def mark_delivered(self, call_ids: Collection[str]) -> None:
        """The program has got these calls whole, and runs their tools by itself."""
        self._delivered |= set(call_ids)

    def handed_over(self) -> frozenset[str]:
        """The calls whose tools have run, or may have: that is not seen where a tool is not one of this Callstream."""
        tools = self._run.engine.tools
        unseen = {call.call_id for call in self._run.calls if call.name not in tools}
        return frozenset(self._claimed | (self._delivered & unseen))

    def _may_mean(self, tool: Tool[Any], call: Call) -> bool:
        run = self._run
        early = self._early.begun(call.call_id)
        if early is not None:
            is_whole = not call.is_being_written or (run.rejected == "forward" and call.state is CallState.DISCARDED)
            return early.tool == tool and not early.is_joined and is_whole
        if run.engine.find_tool(call.name) != tool or self._earlier.hides(call.call_id):
            return False
        if self._earlier.has(call.call_id):
            return True
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


class RecordedCall:
    """A tool that is called in Python for a call of a run that can go on elsewhere. See ``Joined``."""

    def __init__(
        self, run: RunCore, earlier: EarlierCalls, call: Call, function: Callable[[], Any], tool: Tool[Any]
    ) -> None:
        self._run = run
        self._earlier = earlier
        self._call = call
        self._function = function
        self._tool = tool

    async def wait(self) -> Any:
        """Runs the tool, in the event loop of its caller."""
        earlier = await self._there(self._begin)
        if earlier is not None:
            return _told(earlier)
        try:
            with running_for(self._call):
                made = self._function()
                value = await made if inspect.isawaitable(made) else [item async for item in made]
        except BaseException as error:
            await self._there(partial(self._fail, error))
            raise
        await self._there(partial(self._complete, value))
        return value

    def wait_here(self) -> Any:
        """Runs the tool, a plain function, in the thread of its caller."""
        earlier = run_in(self._run.loop, self._begin)
        if earlier is not None:
            return _told(earlier)
        try:
            with running_for(self._call):
                made = self._function()
                value = list(made) if inspect.isgenerator(made) else made
        except BaseException as error:
            run_in(self._run.loop, partial(self._fail, error))
            raise
        run_in(self._run.loop, partial(self._complete, value))
        return value

    async def _begin(self) -> Call | None:
        """The call with the outcome of an earlier attempt; None if its tool runs now, which is recorded."""
        earlier = await self._earlier.settle(self._call.call_id, self._tool)
        if earlier is None:
            self._call = await self._run.execute(self._call.call_id)
        return earlier if earlier is not None and earlier.state in HAS_OUTCOME else None

    async def _complete(self, value: Any) -> None:
        try:
            await self._run.complete(self._call.call_id, value)
        except RunOver:
            pass  # its end has said what became of the call
        except TransitionError:
            raise
        except UsageError:
            assert self._run.keeping is not None, "it can go on elsewhere"
            await self._run.keeping.give_up(f"what tool {self._call.name} returned is not JSON")

    async def _fail(self, error: BaseException) -> None:
        if not self._run.is_ending:
            await self._run.fail(self._call.call_id, error)

    async def _there(self, work: Work[Any]) -> Any:
        """Does something on the event loop of the run."""
        loop = self._run.loop
        if loop is asyncio.get_running_loop():
            return await work()
        return await asyncio.to_thread(run_in, loop, work)


def _told(call: Call) -> Any:
    """What a caller of the tool gets, who may be a framework: the model has to learn of an interruption as of a result."""
    try:
        return outcome_of(call)
    except CallRejected as interrupted:
        return str(interrupted)


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
