"""What stands between the arguments of a run's calls and their tools: the hooks of each call, and refusals.

A tool may run once ``ready`` has returned its complete call and ``claim`` was true; never on arguments that are
unfinished, never after an abort. A call has nothing in the ``Barrier`` if its tool has no hooks and its arguments are only
checked at their end. ``ToolUse`` knows whether program and model still have to be told of a call that was refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from callstream import codec
from callstream.calls import Call, CallEvent, CallState, Ledger, Refusal, refusal
from callstream.errors import CallRejected, TransitionError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, DiscardReason, RunEvent
from callstream.hooks import CallHooks, Outcome
from callstream.runtime.engine import OnRejected, Toolbox
from callstream.runtime.log import Ending
from callstream.tools import StreamCheck, Tool
from callstream.wire.requests import RefusedCall

CallListener: TypeAlias = Callable[[CallEvent, Call, int], None]
"""Called with each event of a call, the call as it is after the event, and the number of the event's record."""
Write: TypeAlias = Callable[[Sequence[RunEvent]], Awaitable[None]]
"""Records events of the run, also while it is being ended."""


class Barrier:
    """The hooks of a run's calls. It only reads the ledger, which has each event before it comes here.

    ``on_failure`` is called with the error of a hook that makes the run fail, once it is recorded that its call was ended.
    """

    def __init__(
        self, toolbox: Toolbox, ledger: Ledger, write: Write, on_failure: Callable[[Exception], object]
    ) -> None:
        self._toolbox = toolbox
        self._ledger = ledger
        self._write = write
        self._on_failure = on_failure
        self._hooks: dict[str, CallHooks] = {}
        self.own_tools: dict[str, Tool[Any]] = {}
        """By call: the tool that its name means to the agent that asked."""
        self.failure: Exception | None = None
        """Why the run fails: the error of a hook (``fail_run``), or of recording what hooks decided."""

    @property
    def runs_hooks(self) -> bool:
        """Whether a hook is running now."""
        return any(hooked.is_running for hooked in self._hooks.values())

    def seconds(self, call_id: str) -> float | None:
        """How long the call's hooks have run in total; None if it has none."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.seconds

    def listener(self, call: Call) -> CallListener | None:
        """The listener for the hooks of the call, which has started. None if it has neither hooks nor a check to make."""
        made = self.own_tools.get(call.call_id) or self._toolbox.find_tool(call.name)
        hooks = self._toolbox.hooks_of(call.name, made)
        check: StreamCheck | None = None
        if made is not None and made.check == "stream" and call.encoding == "json":
            check = made.arguments.stream_check()
        if not hooks and check is None:
            return None
        settings = self._toolbox.hook_settings(call.name, made)
        on_failure = partial(self._record_outcome, call.call_id)
        hooked = self._hooks[call.call_id] = CallHooks(call, hooks, settings, on_failure=on_failure)
        return partial(self._apply, hooked, check)

    @staticmethod
    def _apply(hooked: CallHooks, check: StreamCheck | None, event: CallEvent, call: Call, seq: int) -> None:
        """Notifies the hooks of a call of an event, until its arguments are known not to fit the tool."""
        if isinstance(event, CallDiscarded):
            hooked.abort(call, event.reason)
            return
        if check is not None and isinstance(event, ArgsAppended):
            check.feed(event.text)
        elif check is not None and isinstance(event, CallCompleted) and not check.has_begun:  # it came whole
            check.feed(call.args_json or "{}")
        if check is not None and check.refusal is not None:
            hooked.abort(call, *check.refusal, is_recorded=False)
        elif isinstance(event, ArgsAppended):
            hooked.push(event.text, seq)
        elif isinstance(event, CallCompleted):
            hooked.complete(call, seq)

    async def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done. Raises the error of a hook that makes the run fail."""
        hooked = self._hooks.get(call_id)
        if hooked is not None:
            outcome = await hooked.settled()
            if outcome.fails_run and outcome.error is not None:
                raise outcome.error
        return self._ledger[call_id]

    async def ready(self, call_id: str) -> Call:
        """The call with all its arguments, or discarded, after its hooks have settled."""
        call = self._ledger[call_id]
        if not call.is_being_written:
            call = await self.settled(call_id)
        if call.is_being_written:
            raise TransitionError(f"call {call_id!r} is {call.state}; its tool must not run on unfinished arguments")
        return call

    def claim(self, call_id: str) -> bool:
        """Takes the call over from its hooks, which can no longer be aborted from now on. False if they already were."""
        hooked = self._hooks.get(call_id)
        return hooked is None or hooked.claim()

    def hook_error(self, call_id: str) -> Exception | None:
        """The exception of the hook that ended the call."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.error

    def is_refused(self, call: Call) -> bool:
        """Whether the model has to be told why the call's tool did not run; not if a stop discarded the call."""
        if call.reason in ("aborted", "interrupted"):
            return self.hook_error(call.call_id) is not None
        return call.state is CallState.DISCARDED

    def rejection(self, call: Call) -> CallRejected:
        """Why the tool of a discarded call must not run."""
        return rejection(call, self.hook_error(call.call_id))

    async def close(self, ending: Ending) -> None:
        """Aborts the hooks of the calls that this end discards, and waits for all hooks. The run ends regardless of them."""
        for call in self._ledger.open_calls():
            hooked = self._hooks.get(call.call_id)
            if hooked is not None and call.state is CallState.RUNNING_EARLY and not call.is_being_written:
                hooked.claim()  # as if it were executing, if they have let it pass
            if hooked is not None and (reason := ending.discards(call)) is not None:
                hooked.abort(call, reason, is_recorded=False)
        for hooked in list(self._hooks.values()):  # a call may start meanwhile
            try:
                await hooked.settled()
            except Exception as error:  # noqa: BLE001  # finish raises it
                self.failure = self.failure or error

    async def _record_outcome(self, call_id: str, outcome: Outcome) -> Call:
        """Records that hooks ended the call. When the record comes back here, it changes nothing."""
        await self._write([CallDiscarded(call_id, cast(DiscardReason, outcome.reason), outcome.detail)])
        if outcome.fails_run and outcome.error is not None:
            self.failure = outcome.error
            self._on_failure(outcome.error)
        return self._ledger[call_id]


class ToolUse:
    """Tracks what program and model know about a run's calls, so that each refusal reaches the model once.

    ``Run.run_tools`` reports results and refusals, ``Run.refusals`` only refusals. Refusals of calls that the program does
    not get to see are reported by the tap: if a response has nothing else, it asks the model again (``to_ask_again``); it
    puts the others into the next request (``untold``), and repeats them in later requests beside the other calls of the
    same response (``written_back``).

    ``hides``: whether the program does not know a call yet, because the turn that made it was not given back.
    """

    def __init__(self, ledger: Ledger, barrier: Barrier, rejected: OnRejected, hides: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._barrier = barrier
        self._rejected = rejected
        self._hides = hides
        self.declared: set[str] = set()
        """The tools that the run's requests have declared."""
        self._refusals_told: set[str] = set()  # calls whose refusals have been reported
        self._offered: dict[str, Collection[str]] = {}  # for each call, the names that the model could call
        self.told: set[str] = set()
        """The calls that ``run_tools`` gives a result for, or has given."""
        self._together: dict[str, list[str]] = {}  # for each call, all calls of its response
        self._written_back: set[str] = set()  # refused calls that are put into requests

    def expect(self, call_id: str, name: str, offered: Collection[str], together: list[str]) -> bool:
        """Notes that a response brings this call. Returns whether its tool was ``offered``; true if that is not known.

        ``together``: the calls of that response, as they come.
        """
        together.append(call_id)
        self._together[call_id] = together
        if offered:
            self._offered[call_id] = offered
        return not offered or name in offered

    def forget(self, call_id: str) -> None:
        """Called when a call that was expected under this id has got another id."""
        self._offered.pop(call_id, None)
        together = self._together.pop(call_id, [])
        if call_id in together:
            together.remove(call_id)

    def absence(self, call: Call, tool: Tool[Any] | None, known: Iterable[str]) -> str | None:
        """A sentence for the model, saying that it was offered no tool of that name; None if it was.

        ``tool`` is the tool of that name among the ``known`` ones, if there is one.
        """
        offered = self._offered.get(call.call_id, ())
        is_missing = call.name not in offered if offered else tool is None and call.name not in self.declared
        return absence(call.name, offered or known) if is_missing else None

    def _is_invented(self, call: Call) -> bool:
        offered = self._offered.get(call.call_id, ())
        return bool(offered) and call.name not in offered

    # -- refusals --

    def tell_refusals(self) -> list[Refusal]:
        """All refusals of the run. The caller has to pass them on to the model."""
        found = self._refusals()
        self.mark_told(found)
        return found

    def untold(self, tool_names: Collection[str]) -> list[Refusal]:
        """Refused calls of these tools that were kept from the program, and of which the model has not been told either.

        A call of a tool that does not exist counts as one of any tool.
        """
        return [
            refused
            for refused in self._refusals()
            if self._is_withheld(refused)
            and (refused.name in tool_names or (tool_names and self._is_invented(self._ledger[refused.call_id])))
            and refused.call_id not in self._refusals_told
            and refused.call_id not in self.told
        ]

    def mark_told(self, refusals: Sequence[Refusal]) -> None:
        """Notes that the caller tells the model of these."""
        self._refusals_told.update(refused.call_id for refused in refusals)

    def mark_asked(self, refusals: Sequence[Refusal]) -> None:
        """Notes that the model is asked again about these, so the program need not report them."""
        self.mark_told(refusals)
        self.told |= {refused.call_id for refused in refusals}

    def mark_written_back(self, call_ids: Collection[str]) -> None:
        """Notes that requests contain these from now on."""
        self._refusals_told.update(call_ids)
        self._written_back.update(call_ids)

    def to_ask_again(self, call_ids: Collection[str]) -> list[Refusal]:
        """The refusals of these calls of one response, if none reaches the program or is known to it; otherwise empty."""
        refusals = {refused.call_id: refused for refused in self._refusals() if self._is_withheld(refused)}
        known = [call_id for call_id in call_ids if call_id not in self.told and call_id not in self._refusals_told]
        return [refusals[each] for each in known] if refusals.keys() >= set(call_ids) == set(known) else []

    def withheld(self, call_ids: Collection[str]) -> list[Refusal]:
        """The refusals of those of these calls that do not reach the program."""
        return [refused for refused in self._refusals() if refused.call_id in call_ids and self._is_withheld(refused)]

    def written_back(self, untold: Sequence[Refusal]) -> dict[str, RefusedCall]:
        """Refused calls, by id, whose responses also brought calls that reached the program: the untold ones among them, and
        those that requests contain already.
        """
        wanted = {refused.call_id for refused in untold} | self._written_back
        refusals = [refused for refused in self._refusals() if refused.call_id in wanted]
        made = [(refused.call_id, self.as_written(refused)) for refused in refusals]
        return {call_id: call for call_id, call in made if call is not None and call.beside}

    def as_written(self, refused: Refusal) -> RefusedCall | None:
        """A refused call as it is put into requests; None for a free-text one, which has no arguments."""
        call = self._ledger[refused.call_id]
        if call.encoding != "json":
            return None
        others = [self._ledger[each] for each in self._together.get(call.call_id, ()) if each != call.call_id]
        beside = tuple(other.wire_id for other in others if other.state is not CallState.DISCARDED)
        args = call.args if isinstance(call.args, dict) else {}
        return RefusedCall(call.wire_id, call.name, args, refused.text, call.provider_id, call.signature, beside)

    def is_untold(self, call: Call) -> bool:
        """Whether the call was refused without the program or the model knowing."""
        told = call.call_id in self._refusals_told or call.call_id in self.told
        return self._barrier.is_refused(call) and not told

    def _is_withheld(self, refused: Refusal) -> bool:
        """Whether the tap has kept the call from the program."""
        if self._rejected in ("ask", "say"):
            return self._ledger[refused.call_id].state is CallState.DISCARDED
        return refused.reason in ("truncated", "malformed", "invalid")

    def _refusals(self) -> list[Refusal]:
        found = []
        for call in self._ledger:
            if self._hides(call.call_id):
                continue
            if call.reason is not None and self._barrier.is_refused(call):
                found.append(Refusal(call.call_id, call.name, call.provider_id, call.reason, refusal(call)))
            elif self._is_invented(call) and (
                call.state is CallState.ARGS_COMPLETE or call.call_id in self._refusals_told
            ):
                absent = absence(call.name, self._offered[call.call_id])
                found.append(Refusal(call.call_id, call.name, call.provider_id, "rejected", absent))
        return found


def mistake(call: Call) -> str | None:
    """What is wrong with a call's arguments. A host that records calls without a decoder may have recorded anything."""
    if call.args_json is not None and (wrong := codec.mistake_in(call.args_json)):
        return wrong
    if call.encoding == "json" and not isinstance(call.args, dict | None):
        return "the arguments are not an object"
    return None


def rejection(call: Call, hook_error: Exception | None) -> CallRejected:
    """Why the tool of a discarded call must not run; ``hook_error`` is what a hook raised, if one did."""
    rejected = CallRejected(call.call_id, call.name, refusal(call), reason=call.reason or "", detail=call.detail)
    rejected.__cause__ = hook_error
    return rejected


def absence(name: str, offered: Iterable[str]) -> str:
    """A sentence for the model, saying that there is no such tool."""
    return f"there is no tool {name}; the tools are: {', '.join(offered) or 'none'}"
