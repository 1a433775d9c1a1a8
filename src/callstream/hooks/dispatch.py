"""The hooks of one call: in order, beside the stream, and settled before the tool runs.

::

    receiving ──complete──▶ completing ──hooks done──▶ ready ──claim──▶ claimed
        └──────────────────────┴──────────────────────────┴─▶ aborting ──abort hooks done──▶ ended
                                          (abort, or a hook that failed)

Laws:

- One hook of a call runs at a time. For each delta its raw hooks run in the order of registration, then its field hooks
  in the order of the text; after the last delta the complete hooks. Calls do not wait for each other.
- ``push``, ``complete`` and ``abort`` never wait. What cannot be delivered yet waits in a ``DeltaQueue``.
- After an abort or a failure no delta, field or complete hook begins. The signal is set first. A hook that is running
  then has ``abort_notice`` seconds to end by itself, is cancelled, and is abandoned after ``grace`` more seconds.
- The abort hooks run once, whenever the call is given up before its tool was let run: its arguments will not arrive, a
  hook rejected or failed it, or the run stopped between the last argument and ``claim``, since what the hooks began is
  as orphaned then. They never run after ``claim``.
- The tool may run if ``claim()`` is true, which it is once, after ``settled()`` was ready and if no abort came since.
- A tool without hooks gets no task, no queue and no parser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from time import perf_counter
from typing import Any, Literal, TypeAlias, cast

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import Reject, UsageError, WireError
from callstream.events import DiscardReason
from callstream.hooks.deltas import ArgsDelta, ArgsText, DeltaQueue, FieldDelta, FieldReader
from callstream.hooks.worker import HookCutOff, HookWorker
from callstream.tools import AbortSignal, ErrorPolicy, Hook, Hooks, Tool

log = logging.getLogger("callstream.hooks")


class HookSettings(msgspec.Struct, frozen=True):
    """The limits of hooks. Times are in seconds; ``math.inf`` is no limit."""

    timeout: float = 30.0
    """How long a hook may take for one delta before it is cancelled and counts as raised."""
    grace: float = 5.0
    """How long a cancelled hook may go on before it is abandoned."""
    abort_notice: float = 0.25
    """How long a running hook has to see the signal and end by itself before an abort cancels it."""
    on_error: ErrorPolicy = "fail_call"
    queue_deltas: int = 64
    queue_chars: int = 65_536

    def for_tool(self, tool: Tool[Any]) -> HookSettings:
        """These settings with what the tool says itself."""
        timeout = self.timeout if tool.hook_timeout is None else tool.hook_timeout
        return msgspec.structs.replace(self, timeout=timeout, on_error=tool.on_hook_error or self.on_error)


class Outcome(msgspec.Struct, frozen=True):
    """What the hooks of a call came to.

    ``reason`` is one word, which the signal and the abort hooks are told: that of ``abort``, or for a failure the
    DiscardReason that fits it. ``detail`` is a sentence; after a ``Reject`` the one for the model. ``fails_run``: the
    policy ``fail_run`` wants ``error`` raised in the run. ``abandoned``: a hook of this call still runs, because it
    ignored its cancellation.
    """

    kind: Literal["ready", "rejected", "failed", "aborted"]
    reason: str = ""
    detail: str | None = None
    error: Exception | None = None
    fails_run: bool = False
    abandoned: bool = False

    @property
    def ready(self) -> bool:
        return self.kind == "ready"


OnFailure: TypeAlias = Callable[[Outcome], Awaitable[Call]]
"""Keeps what a failed or rejected call comes to, before its abort hooks hear of it, and returns the call after that.

It runs in the task of the hooks, so it must not wait for ``settled()`` of the same call. What it raises, ``settled()``
raises.
"""


class _Phase(Enum):
    RECEIVING = "receiving"
    COMPLETING = "completing"
    READY = "ready"
    CLAIMED = "claimed"
    ABORTING = "aborting"
    ENDED = "ended"


_SETTLED = frozenset({_Phase.READY, _Phase.CLAIMED, _Phase.ENDED})
_GIVEN_UP = frozenset({_Phase.ABORTING, _Phase.ENDED})


class CallHooks:
    """Runs the hooks of one call. It belongs to the event loop that it is first used on, that of the request."""

    def __init__(
        self, call: Call, hooks: Hooks, settings: HookSettings | None = None, on_failure: OnFailure | None = None
    ) -> None:
        self.signal = AbortSignal()
        """The same for every hook of the call."""
        self._call = call
        self._hooks = hooks | Hooks()  # A copy: a hook that is registered later is not one of this call.
        self._settings = settings or HookSettings()
        self._on_failure = on_failure
        self._phase = _Phase.RECEIVING
        self._outcome = Outcome("ready")
        self._unreported: Outcome | None = None
        self._error: BaseException | None = None
        self._settled = asyncio.Event()
        self._worker: HookWorker | None = None
        self._aborts_begun = 0
        self._dropped: set[int] = set()
        self._seq = 0
        self.seconds = 0.0
        """How long the call's hooks have run, all together."""
        self._reads = bool(hooks.args_delta or hooks.field)
        if self._reads:
            self._queue = DeltaQueue(self._settings.queue_deltas, self._settings.queue_chars)
            self._text = ArgsText(call.encoding)
            self._fields = FieldReader(hook.path for hook in hooks.field) if hooks.field else None

    @property
    def error(self) -> Exception | None:
        """What the hook raised that made an end of the call."""
        return self._outcome.error

    @property
    def is_running(self) -> bool:
        """Whether one of the hooks is running now."""
        return self._worker is not None and self._worker.is_running_hook

    # -- what happens to the call --------------------------------------------------------------------------------------

    def push(self, text: str, seq: int | None = None) -> None:
        """A piece of argument text has arrived. ``seq`` is its number where it has one, else pieces count from 1."""
        if not self._reads or not text or self._phase in _GIVEN_UP:
            return
        if self._phase is not _Phase.RECEIVING:
            raise UsageError(f"call {self._call.call_id!r} is complete and cannot get more argument text")
        self._seq = self._seq + 1 if seq is None else seq
        self._queue.put(text, self._seq)
        self._go_on()

    def complete(self, call: Call, seq: int | None = None) -> None:
        """All arguments are there. A call of which nothing was pushed came whole: its hooks get it as one delta.

        ``seq`` is the number of that delta, as for ``push``.
        """
        if self._phase in _GIVEN_UP:
            return
        if self._phase is not _Phase.RECEIVING:
            raise UsageError(f"call {self._call.call_id!r} was completed before")
        if self._seq == 0 and call.args_json:
            text = call.args_json if call.encoding == "json" else msgspec.json.decode(call.args_json, type=str)
            self.push(text, seq)
        self._call = call
        self._phase = _Phase.COMPLETING
        if self._reads or self._hooks.args_complete:
            self._go_on()
        else:
            self._settle(_Phase.READY)

    def abort(self, call: Call, reason: str, *, keep: bool = False) -> None:
        """The call is given up. Nothing happens if that was decided before, or if its tool was let run.

        ``keep``: it is not recorded yet; ``on_failure`` has to do that before the abort hooks hear of it.
        """
        if self._phase not in _GIVEN_UP and self._phase is not _Phase.CLAIMED:
            self._call = call
            self._give_up(Outcome("aborted", reason), unreported=keep)

    def claim(self) -> bool:
        """Whether the tool may run now. True once, after which the call cannot be aborted here any more."""
        if self._phase is not _Phase.READY:
            return False
        self._phase = _Phase.CLAIMED
        return True

    async def settled(self) -> Outcome:
        """Waits until the call is complete or given up and its hooks are done, and says what came of it.

        The barrier before the tool, and before the end of the run. Cancelling whoever waits here leaves the hooks
        alone.
        """
        while self._phase not in _SETTLED:
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        return self._outcome

    async def aclose(self) -> None:
        """Gives the call up unless that is decided, and waits for its hooks. Cancelled, it cancels them."""
        self.abort(_discarded(self._call, "interrupted", None), "interrupted")
        try:
            await self.settled()
        except asyncio.CancelledError:
            if self._worker is not None:
                self._worker.cancel()
            raise

    # -- from phase to phase -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._worker is None:
            limits = (self._settings.timeout, self._settings.grace)
            name = f"callstream hooks of call {self._call.call_id}"
            self._worker = HookWorker(name, limits, self._work, self._hook_abandoned, self._worker_died)
        self._worker.start()

    def _give_up(self, outcome: Outcome, *, unreported: bool = True) -> None:
        self.signal.abort(outcome.reason)
        self._phase = _Phase.ABORTING
        self._outcome = outcome
        self._settled.clear()
        if self._reads:
            self._queue.clear()
        if unreported:
            self._unreported = outcome
        if self._worker is not None and self._worker.is_active:
            self._worker.hurry(self._settings.abort_notice)
        elif self._hooks.args_abort or self._unreported:
            self._go_on()
        else:
            self._settle(_Phase.ENDED)

    def _settle(self, phase: _Phase) -> None:
        self._phase = phase
        if self._worker is not None:
            self._worker.close()
        self._settled.set()

    def _hook_abandoned(self, hook: Hook, error: HookCutOff) -> None:
        self._worker = None
        if self._phase is _Phase.ABORTING:
            self._outcome = msgspec.structs.replace(self._outcome, abandoned=True)
            self._go_on()
        else:
            self._fail(hook, error, abandoned=True)

    def _worker_died(self, error: BaseException | None) -> None:
        """The worker was cancelled from outside, as a loop that is closed does, or something in it broke."""
        if self._phase not in _GIVEN_UP:
            self.signal.abort("interrupted")
            self._outcome = Outcome("aborted", "interrupted", "the task of the hooks was cancelled")
        self._error = error
        self._settle(_Phase.ENDED)

    # -- what the worker does ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self._phase not in _SETTLED:
            if self._phase is _Phase.ABORTING:
                await self._undo()
                self._settle(_Phase.ENDED)
            elif self._reads and len(self._queue) > 0:
                await self._deliver(*self._queue.take())
            elif self._phase is _Phase.COMPLETING:
                await self._finish()
            else:
                return

    async def _deliver(self, text: str, seq: int) -> None:
        delta = ArgsDelta(self._call.call_id, self._call.name, seq, text, self._text, self._text.add(text))
        for hook in self._hooks.args_delta:
            if not await self._passes(hook, delta):
                return
        try:
            fields = [] if self._fields is None else self._fields.read(delta)
        except WireError as error:
            self._fail_malformed(error)
            return
        for field in fields:
            if not await self._passes_field(field):
                return
        if self._text.error is not None:
            self._fail_malformed(self._text.error)

    async def _finish(self) -> None:
        # Free text has no end of its own, so a field hook on the whole of it hears of it here.
        if self._reads and self._call.encoding == "text":
            end = FieldDelta(self._call.call_id, self._call.name, self._seq, (), "", True, whole=self._text.whole)
            if not await self._passes_field(end):
                return
        for hook in self._hooks.args_complete:
            if not await self._passes(hook, self._call):
                return
        self._settle(_Phase.READY)

    async def _undo(self) -> None:
        outcome, self._unreported = self._unreported, None
        if outcome is not None:
            self._call = _discarded(self._call, cast(DiscardReason, outcome.reason), outcome.detail)
            if self._on_failure is not None:
                try:
                    self._call = await self._on_failure(outcome)
                except Exception as error:  # noqa: BLE001  # settled() raises it, when the abort hooks have run
                    self._error = error
        while self._aborts_begun < len(self._hooks.args_abort):
            hook = self._hooks.args_abort[self._aborts_begun]
            self._aborts_begun += 1
            failure = await self._run(hook, self._call, self._outcome.reason)
            if failure is not None:
                log.error("%s", self._told(hook, failure), exc_info=failure)

    # -- one hook ------------------------------------------------------------------------------------------------------

    async def _run(self, hook: Hook, *args: Any) -> Exception | None:
        assert self._worker is not None, "hooks run in a worker"
        began = perf_counter()
        try:
            return await self._worker.run(hook, *args)
        finally:
            self.seconds += perf_counter() - began

    async def _passes_field(self, field: FieldDelta) -> bool:
        for hook in self._hooks.field:
            if hook.path == field.path and not await self._passes(hook, field):
                return False
        return True

    async def _passes(self, hook: Hook, subject: ArgsDelta | FieldDelta | Call) -> bool:
        """Runs a hook and judges how it ended. False if the call was given up meanwhile, or because of it."""
        if id(hook) in self._dropped:
            return True
        failure = await self._run(hook, subject, self.signal)
        if self._phase is _Phase.ABORTING:
            if failure is not None and not isinstance(failure, HookCutOff):
                log.error("after the abort: %s", self._told(hook, failure), exc_info=failure)
            return False
        if failure is None:
            return True
        if isinstance(failure, Reject):
            self._give_up(Outcome("rejected", "rejected", failure.reason, failure))
        elif isinstance(failure, WireError) and self._has_found(failure):
            self._fail_malformed(failure)
        elif self._settings.on_error == "isolate":
            log.error("left out of the rest of the call: %s", self._told(hook, failure), exc_info=failure)
            self._dropped.add(id(hook))
            return True
        else:
            self._fail(hook, failure)
        return False

    def _has_found(self, error: WireError) -> bool:
        """Whether the error is that of this call's own text, which the hook looked at, and not of another's."""
        return self._reads and error is self._text.error

    def _fail(self, hook: Hook, failure: Exception, *, abandoned: bool = False) -> None:
        fails_run = self._settings.on_error == "fail_run"
        detail = self._told(hook, failure)
        if not fails_run:  # else the run raises it
            log.error("%s", detail, exc_info=failure)
        self._give_up(Outcome("failed", "interrupted", detail, failure, fails_run=fails_run, abandoned=abandoned))

    def _fail_malformed(self, error: Exception) -> None:
        """The text is at fault and not the hook that read it, so the policy does not matter: no tool runs on it."""
        self._give_up(Outcome("failed", "malformed", str(error), error))

    def _told(self, hook: Hook, failure: Exception) -> str:
        tool, call_id = self._call.name, self._call.call_id
        return f"hook {hook.name!r} of tool {tool!r} failed in call {call_id!r}: {type(failure).__name__}: {failure}"


def _discarded(call: Call, reason: DiscardReason, detail: str | None) -> Call:
    return msgspec.structs.replace(call, state=CallState.DISCARDED, reason=reason, detail=detail)
