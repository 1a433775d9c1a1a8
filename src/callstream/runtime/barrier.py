"""What stands between the arguments of a run's calls and their tools: the hooks of each call.

A tool may run when ``ready`` has returned its call, complete, and ``claim`` was true; never on arguments that are
unfinished, never after an abort. A tool without hooks, and whose arguments are judged at their end, has nothing here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from callstream import codec
from callstream.calls import Call, CallEvent, CallState, Ledger, refusal
from callstream.errors import CallRejected, TransitionError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, DiscardReason, RunEvent
from callstream.hooks import CallHooks, Outcome
from callstream.runtime.engine import Toolbox
from callstream.runtime.log import Ending
from callstream.tools import StreamCheck, Tool

CallListener: TypeAlias = Callable[[CallEvent, Call, int], None]
"""Called with each event of a call, what it has made of the call, and the number of its record."""
Write: TypeAlias = Callable[[Sequence[RunEvent]], Awaitable[None]]
"""Records events of the run, also while it is being ended."""


class Barrier:
    """The hooks of a run's calls. It only reads the ledger, which has each event before it comes here."""

    def __init__(self, toolbox: Toolbox, ledger: Ledger, write: Write) -> None:
        self._toolbox = toolbox
        self._ledger = ledger
        self._write = write
        self._hooks: dict[str, CallHooks] = {}
        self._checks: dict[str, StreamCheck] = {}
        self.own_tools: dict[str, Tool[Any]] = {}
        """By call, the tool that its name means to the agent that asked."""
        self.failure: Exception | None = None
        """Why the run fails: the error of a hook (``fail_run``), or of recording what hooks decided."""

    @property
    def runs_hooks(self) -> bool:
        """Whether a hook is running now."""
        return any(hooked.is_running for hooked in self._hooks.values())

    def seconds(self, call_id: str) -> float | None:
        """How long the call's hooks have run, all together; None if it has none."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.seconds

    def listener(self, call: Call) -> CallListener | None:
        """What the hooks of the call, which has started, have to hear of it. None if it has none."""
        own = self.own_tools.get(call.call_id)
        hooks = self._toolbox.hooks_of(call.name, own)
        check = self._toolbox.stream_check(call.name, own) if call.encoding == "json" else None
        if check is not None:
            self._checks[call.call_id] = check
        if not hooks and check is None:
            return None
        settings = self._toolbox.hook_settings(call.name, own)
        on_failure = partial(self._record_outcome, call.call_id)
        hooked = self._hooks[call.call_id] = CallHooks(call, hooks, settings, on_failure=on_failure)
        return partial(self._apply, hooked)

    def _apply(self, hooked: CallHooks, event: CallEvent, call: Call, seq: int) -> None:
        if isinstance(event, ArgsAppended):
            if not self._is_refused_now(hooked, call, event.text):
                hooked.push(event.text, seq)
        elif isinstance(event, CallCompleted):
            if not self._is_refused_now(hooked, call, None):
                hooked.complete(call, seq)
        elif isinstance(event, CallDiscarded):
            hooked.abort(call, event.reason)

    async def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done. Raises the error of one that makes the run fail."""
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
        """Takes the call over from its hooks, which from now on cannot be aborted any more. False if they were before."""
        hooked = self._hooks.get(call_id)
        return hooked is None or hooked.claim()

    def hook_error(self, call_id: str) -> Exception | None:
        """The exception of the hook that ended the call."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.error

    def is_refused(self, call: Call) -> bool:
        """Whether the model has to learn why the call's tool did not run. What a stop discarded it need not know."""
        if call.reason in ("aborted", "interrupted"):
            return self.hook_error(call.call_id) is not None
        return call.state is CallState.DISCARDED

    def rejection(self, call: Call) -> CallRejected:
        """Why the tool of a discarded call must not run."""
        return rejection(call, self.hook_error(call.call_id))

    async def close(self, ending: Ending) -> None:
        """Aborts the hooks of the calls that this end discards, and waits for all hooks. The run ends whatever they do."""
        for call in self._ledger.open_calls():
            hooked = self._hooks.get(call.call_id)
            if hooked is not None and call.state is CallState.RUNNING_EARLY and not call.is_being_written:
                hooked.claim()  # as if it executed, if they have let it pass
            if hooked is not None and (reason := ending.discards(call)) is not None:
                hooked.abort(call, reason, is_recorded=False)
        for hooked in list(self._hooks.values()):  # a call may start meanwhile
            try:
                await hooked.settled()
            except Exception as error:  # noqa: BLE001  # finish raises it
                self.failure = self.failure or error

    def _is_refused_now(self, hooked: CallHooks, call: Call, text: str | None) -> bool:
        """Whether the arguments, with this text or (None) at their end, are known not to fit the tool."""
        check = self._checks.get(call.call_id)
        if check is None:
            return False
        if text is not None:
            check.feed(text)
        elif not check.has_begun:  # it came whole
            check.feed(call.args_json or "{}")
        if check.refusal is None:
            return False
        del self._checks[call.call_id]
        hooked.refuse(call, *check.refusal)
        return True

    async def _record_outcome(self, call_id: str, outcome: Outcome) -> Call:
        """Records that hooks ended the call. The record comes back, and changes nothing any more."""
        await self._write([CallDiscarded(call_id, cast(DiscardReason, outcome.reason), outcome.detail)])
        if outcome.fails_run:
            self.failure = outcome.error
        return self._ledger[call_id]


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
