"""What a run's tools are called with, what they come to, and what the model learns of refused calls: each call once.

``Run.run_tools`` tells results and refusals, ``tell_refusals`` refusals alone. What the program does not get to see, the tap
tells: it asks again where a response has nothing else (``to_ask_again``), and puts the rest into the next request
(``untold``), and into those after it beside the calls of the same response (``written_back``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from callstream.calls import Call, CallState, Refusal, refusal
from callstream.errors import InvalidArguments, RunOver, TransitionError, UsageError
from callstream.events import CallDiscarded
from callstream.runtime.barrier import Barrier, mistake
from callstream.runtime.core import RunCore
from callstream.tools import Tool
from callstream.wire.requests import RefusedCall


class ToolUse:
    """Of one run. ``declared``: the tools that the run's requests have declared."""

    _refusals_told: frozenset[str] = frozenset()  # those whose refusal was asked for

    def __init__(self, run: RunCore, barrier: Barrier) -> None:
        self._run = run
        self._barrier = barrier
        self.declared: set[str] = set()
        self._offered: dict[str, Collection[str]] = {}  # with each call, what the model could have called, where known
        self.told: set[str] = set()
        """The calls that ``run_tools`` gives a result for, or has given."""
        self._together: dict[str, list[str]] = {}  # with each call, all calls of its response
        self._written_back: set[str] = set()  # the calls of which requests tell

    def expect(self, call_id: str, name: str, offered: Collection[str], together: list[str] | None = None) -> bool:
        """A response brings this call. Whether it is one of the tools that were ``offered``, if that is known.

        ``together``: the calls of that response, as they come.
        """
        if together is not None:
            together.append(call_id)
            self._together[call_id] = together
        if offered:
            self._offered[call_id] = offered
        return not offered or name in offered

    def forget(self, call_id: str) -> None:
        """The call that was expected under this id has got another one."""
        self._offered.pop(call_id, None)
        together = self._together.pop(call_id, [])
        if call_id in together:
            together.remove(call_id)

    async def record_outcome(self, call_id: str, result: Any, error: BaseException | None = None) -> None:
        """Records what a tool returned, or the error that it raised."""
        run = self._run
        if error is not None:
            await run.fail(call_id, error)
            return
        try:
            await run.complete(call_id, result)
        except (RunOver, TransitionError):
            raise
        except UsageError as unfit:  # what the tool returned is nothing that JSON can express
            await run.fail(call_id, unfit)
            raise

    async def convert(
        self, call_id: str, tool: Tool[Any] | None = None, args: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The arguments that the tool is called with, of its annotated types, after the call's hooks have settled.

        None for a call that has none to convert. One that its tool cannot be called with is discarded, and
        ``CallRejected`` raised. ``tool``: if a host runs it; ``args``: with others than are shown.
        """
        run = self._run
        call = await run.ready(call_id)
        if call.state is not CallState.ARGS_COMPLETE:
            return None
        is_hosts = tool is not None
        given = run.engine.tools
        tool = tool or self._barrier.own_tools.get(call_id) or given.get(call.name)
        offered = self._offered.get(call.call_id, ())
        is_missing = call.name not in offered if offered else tool is None and call.name not in self.declared
        if is_missing and not is_hosts:
            await run.record([CallDiscarded(call_id, "rejected", absence(call.name, offered or given))])
            raise run.rejection(call_id)
        if tool is None:
            raise UsageError(f"tool {call.name!r} was declared to the model but not given to Callstream(tools=…)")
        if call.encoding != "json" or mistake(call) is not None:
            return None
        try:
            return tool.arguments.convert(call.args or {} if args is None else args, check_names=not is_hosts)
        except InvalidArguments as invalid:
            await run.record([CallDiscarded(call_id, "invalid", invalid.detail)])
            raise run.rejection(call_id) from None

    def _is_invented(self, call: Call) -> bool:
        offered = self._offered.get(call.call_id, ())
        return bool(offered) and call.name not in offered

    # -- refusals --

    def tell_refusals(self) -> list[Refusal]:
        """All refusals of the run. Who asks for them tells the model."""
        found = self._refusals()
        self.mark_told(found)
        return found

    def untold(self, tool_names: Collection[str]) -> list[Refusal]:
        """The calls of these tools that the program never saw, and of which neither it nor the model knows.

        Calls of tools that were never there are any tool's.
        """
        return [
            refused
            for refused in self._refusals()
            if self._is_withheld(refused)
            and (refused.name in tool_names or (tool_names and self._is_invented(self._run.call(refused.call_id))))
            and refused.call_id not in self._refusals_told
            and refused.call_id not in self.told
        ]

    def mark_told(self, refusals: Sequence[Refusal]) -> None:
        """The caller tells the model of these."""
        self._refusals_told |= {refused.call_id for refused in refusals}

    def mark_asked(self, refusals: Sequence[Refusal]) -> None:
        """The model is asked again about these, so the program has nothing to say of them."""
        self.mark_told(refusals)
        self.told |= {refused.call_id for refused in refusals}

    def mark_written_back(self, call_ids: Collection[str]) -> None:
        """Requests contain these from now on."""
        self._refusals_told |= set(call_ids)
        self._written_back |= set(call_ids)

    def to_ask_again(self, call_ids: Collection[str]) -> list[Refusal]:
        """Why none of these calls of one response reaches the program; empty if one does, or if it knows of one."""
        refusals = {refused.call_id: refused for refused in self._refusals() if self._is_withheld(refused)}
        known = [call_id for call_id in call_ids if call_id not in self.told and call_id not in self._refusals_told]
        return [refusals[each] for each in known] if refusals.keys() >= set(call_ids) == set(known) else []

    def withheld(self, call_ids: Collection[str]) -> list[Refusal]:
        """Why these calls of one response do not reach the program: of those that do not."""
        return [refused for refused in self._refusals() if refused.call_id in call_ids and self._is_withheld(refused)]

    def written_back(self, untold: Sequence[Refusal]) -> dict[str, RefusedCall]:
        """The refused calls whose responses brought the program others: those, and such of which requests tell already."""
        wanted = {refused.call_id for refused in untold} | self._written_back
        refusals = [refused for refused in self._refusals() if refused.call_id in wanted]
        made = [(refused.call_id, self.as_written(refused)) for refused in refusals]
        return {call_id: call for call_id, call in made if call is not None and call.beside}

    def as_written(self, refused: Refusal) -> RefusedCall | None:
        """A refused call as requests tell of it; None for a free-text one, which has no arguments."""
        call = self._run.call(refused.call_id)
        if call.encoding != "json":
            return None
        others = [self._run.call(each) for each in self._together.get(call.call_id, ()) if each != call.call_id]
        beside = tuple(other.wire_id for other in others if other.state is not CallState.DISCARDED)
        args = call.args if isinstance(call.args, dict) else {}
        return RefusedCall(call.wire_id, call.name, args, refused.text, call.provider_id, call.signature, beside)

    def is_untold(self, call: Call) -> bool:
        """Whether the call was refused, and neither the program nor the model knows of it."""
        told = call.call_id in self._refusals_told or call.call_id in self.told
        return self._barrier.is_refused(call) and not told

    def _is_withheld(self, refused: Refusal) -> bool:
        """Whether the tap has kept the call from the program."""
        if self._run.rejected in ("ask", "say"):
            return self._run.call(refused.call_id).state is CallState.DISCARDED
        return refused.reason in ("truncated", "malformed", "invalid")

    def _refusals(self) -> list[Refusal]:
        found = []
        keeping = self._run.keeping
        replay = None if keeping is None else keeping.replay
        for call in self._run.calls:
            if replay is not None and replay.hides(call.call_id):
                continue
            if call.reason is not None and self._barrier.is_refused(call):
                found.append(Refusal(call.call_id, call.name, call.provider_id, call.reason, refusal(call)))
            elif self._is_invented(call) and (
                call.state is CallState.ARGS_COMPLETE or call.call_id in self._refusals_told
            ):
                absent = absence(call.name, self._offered[call.call_id])
                found.append(Refusal(call.call_id, call.name, call.provider_id, "rejected", absent))
        return found


def absence(name: str, offered: Iterable[str]) -> str:
    """That there is no such tool, in a sentence for the model."""
    return f"there is no tool {name}; the tools are: {', '.join(offered) or 'none'}"
