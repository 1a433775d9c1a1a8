"""What stands between the arguments of a run's calls and their tools: the hooks of each call.

A tool may run when ``ready`` has returned its call, complete, and ``claim`` was true; never on arguments that are
unfinished, never after an abort. A tool without hooks has nothing here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from callstream import codec
from callstream.calls import BEING_WRITTEN, Call, CallEvent, Ledger, refusal
from callstream.errors import CallRejected, TransitionError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded
from callstream.hooks import CallHooks, Outcome
from callstream.runtime.ending import Ending

if TYPE_CHECKING:
    from callstream.runtime.callstream import Callstream

Discard: TypeAlias = Callable[[CallDiscarded], Awaitable[Call]]
"""Records that a call is discarded, also while its run is being ended, and returns it as it is then."""


class Barrier:
    """The hooks of a run's calls. It only reads the ledger, which has each event before it is told here."""

    def __init__(self, callstream: Callstream, ledger: Ledger) -> None:
        self._callstream = callstream
        self._ledger = ledger
        self._hooks: dict[str, CallHooks] = {}
        self.failure: Exception | None = None
        """What makes the run fail: the error of a hook (``fail_run``), or of what hooks had to have recorded."""

    @property
    def runs_hooks(self) -> bool:
        """Whether a hook is running now."""
        return any(hooked.is_running for hooked in self._hooks.values())

    def seconds(self, call_id: str) -> float | None:
        """How long the call's hooks have run, all together; None if it has none."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.seconds

    def started(self, call: Call, discard: Discard) -> None:
        """A call has started. If its tool has hooks, they hear of it from now on; ``discard`` is for what they refuse."""
        hooks = self._callstream.hooks_of(call.name)
        if hooks:
            settings = self._callstream.hook_settings(call.name)
            on_failure = partial(self._hook_failed, call.call_id, discard)
            self._hooks[call.call_id] = CallHooks(call, hooks, settings, on_failure=on_failure)

    def went_on(self, event: CallEvent, call: Call, seq: int) -> None:
        """An event, which is the run's record of that number, has made the call what it is now."""
        hooked = self._hooks.get(event.call_id)
        if hooked is None:
            return
        if isinstance(event, ArgsAppended):
            hooked.push(event.text, seq)
        elif isinstance(event, CallCompleted):
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
        if call.state not in BEING_WRITTEN:
            call = await self.settled(call_id)
        if call.state in BEING_WRITTEN:
            raise TransitionError(f"call {call_id!r} is {call.state}; its tool must not run on unfinished arguments")
        return call

    def claim(self, call_id: str) -> bool:
        """Takes the call over from its hooks, which from now on cannot be aborted any more. False if they were before."""
        hooked = self._hooks.get(call_id)
        return hooked is None or hooked.claim()

    def hook_error(self, call_id: str) -> Exception | None:
        """What the hook raised that made an end of the call."""
        hooked = self._hooks.get(call_id)
        return None if hooked is None else hooked.error

    def rejection(self, call: Call) -> CallRejected:
        """Why the tool of a discarded call must not run."""
        return rejection(call, self.hook_error(call.call_id))

    async def close(self, ending: Ending) -> None:
        """Aborts the hooks of the calls that this end discards, and waits for all hooks. The run ends whatever they do."""
        for call in self._ledger.open_calls():
            hooked = self._hooks.get(call.call_id)
            if hooked is not None and (reason := ending.discards(call)) is not None:
                hooked.abort(call, reason, is_recorded=False)
        for hooked in list(self._hooks.values()):  # a call may start meanwhile
            try:
                await hooked.settled()
            except Exception as error:  # noqa: BLE001  # finish raises it
                self.failure = self.failure or error

    async def _hook_failed(self, call_id: str, discard: Discard, outcome: Outcome) -> Call:
        call = await discard(CallDiscarded(call_id, outcome.reason, outcome.detail))  # type: ignore[arg-type]
        if outcome.fails_run:
            self.failure = outcome.error
        return call


def mistake(call: Call) -> str | None:
    """What is wrong with a call's arguments. Whoever records calls without a decoder may have recorded anything."""
    if call.args_json is not None and not codec.is_strict(call.args_json):
        return "the arguments are not JSON"
    if call.encoding == "json" and not isinstance(call.args, dict | None):
        return "the arguments are not an object"
    return None


def rejection(call: Call, hook_error: Exception | None) -> CallRejected:
    """Why the tool of a discarded call must not run; ``hook_error`` is what a hook raised, if one did."""
    rejected = CallRejected(call.call_id, call.name, refusal(call), reason=call.reason or "", detail=call.detail)
    rejected.__cause__ = hook_error
    return rejected
