"""The hooks of one call: in order, beside the stream, and settled before the tool runs.

::

    receiving ──complete──▶ completing ──hooks done──▶ ready ──claim──▶ claimed
        └──────────────────────┴──────────────────────────┴─▶ aborting ──abort hooks done──▶ ended
                                          (abort, or a hook that failed)

Laws:

- One hook of a call runs at a time. For each delta its raw hooks run in the order of registration, then its field hooks
  in the order of the text; after the last delta the complete hooks. Calls do not wait for each other.
- ``push``, ``complete`` and ``abort`` never wait. Text that cannot be delivered yet waits in a ``DeltaQueue``. Hooks that
  have been at work for ``merge_after`` seconds without catching up get all waiting text as one delta, so they are never
  further behind than that plus the time they take for one delta.
- After an abort or a failure no delta, field or complete hook begins. The signal is set first. A hook that is running
  at that moment has ``abort_notice`` seconds to end by itself, then is cancelled, and after ``grace`` more seconds it is
  abandoned.
- The abort hooks run once, whenever the call is given up before ``claim``: its arguments will not arrive, a hook
  rejected or failed it, or the run stopped between the last argument and ``claim``, which orphans the hooks' work just
  the same. They never run after ``claim``.
- The tool may run if ``claim()`` is true, which it is once, if ``settled()`` was ready and no abort has come since.
- A tool without hooks gets no task, no queue and no parser.

Why the order holds: all hooks of a call run inside one task (``_main``), one after another, and that task alone takes
from the queue. ``push`` and its siblings only change the phase or the queue and wake the task, so nothing that happens
while a hook runs can start another one. Each step returns a verdict: None, or the ``Outcome`` that ends the call. The
loop is the one place that acts on it, and it looks at the phase before every step, so an abort that came during a hook
wins over anything that the hook raises afterwards.

Why there is no task per hook: this way a hook costs no more than calling it. The price is that a hook which ignores its
cancellation, as every sync hook does because a thread cannot be cancelled, blocks the task. Such a task is abandoned:
``_task`` becomes another one, which continues where it stopped. Everything that may be done only once is marked before a
hook begins (a delta leaves the queue, ``_aborts_begun`` is counted), so the successor repeats nothing; and the abandoned
task, when its hook returns after all, sees that it is no longer ``_task`` and ends without touching the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from time import perf_counter
from typing import Any, Literal, TypeAlias, cast

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import Reject, UsageError, WireError, message_of
from callstream.events import DiscardReason
from callstream.hooks.deltas import DeltaQueue, FieldReader
from callstream.jsontext.path import Path
from callstream.tools import AbortSignal, ErrorPolicy, Hook, Hooks, Tool
from callstream.tools.delta import ArgsDelta, ArgsText, FieldDelta
from callstream.waits import Alarm


class HookSettings(msgspec.Struct, frozen=True):
    """The limits of hooks. Times are in seconds; ``math.inf`` means no limit."""

    timeout: float = 30.0
    """How long a hook may take for one delta before it is cancelled, which counts as an error that it raised."""
    grace: float = 5.0
    """How long a cancelled hook may keep running before it is abandoned."""
    abort_notice: float = 0.25
    """How long a running hook has to see the signal and end by itself before an abort cancels it."""
    on_error: ErrorPolicy = "fail_call"
    queue_deltas: int = 64
    queue_chars: int = 65_536
    merge_after: float = 0.1
    """How long the hooks may be behind before they get all waiting text as one delta."""

    def for_tool(self, tool: Tool[Any]) -> HookSettings:
        """These settings, with those that the tool sets itself."""
        timeout = self.timeout if tool.hook_timeout is None else tool.hook_timeout
        return msgspec.structs.replace(self, timeout=timeout, on_error=tool.on_hook_error or self.on_error)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a call's hooks.

    ``reason`` is one word, for the signal and the abort hooks: that of ``abort``, or for a failure the
    DiscardReason that fits it. ``detail`` is a sentence; after a ``Reject`` the one for the model. ``fails_run``: under the
    policy ``fail_run``, ``error`` has to be raised in the run. ``abandoned``: a hook of this call still runs, because it
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
"""Records the outcome of a failed or rejected call before its abort hooks run, and returns the call as recorded.

It runs in the task of the hooks, so it must not wait for ``settled()`` of the same call. ``settled()`` raises any error
that it raises.
"""


class HookCutOff(TimeoutError):
    """A hook was cancelled because its time was up."""


log = logging.getLogger("callstream.hooks")

_abandoned: set[asyncio.Task[None]] = set()
"""Tasks whose hook ignored its cancellation. Kept until they end, because a loop holds its tasks weakly."""


class _AbandonedError(Exception):
    """Ends a task whose hook returned after all: another task has taken over."""


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
    """Runs the hooks of one call. It belongs to the event loop on which it is first used, that of the request."""

    def __init__(
        self, call: Call, hooks: Hooks, settings: HookSettings | None = None, on_failure: OnFailure | None = None
    ) -> None:
        self.signal = AbortSignal()
        """Shared by all hooks of the call."""
        self.seconds = 0.0
        """How long the call's hooks have run in total."""
        self._call = call
        self._hooks = hooks | Hooks()  # A copy: a hook that is registered later does not belong to this call.
        self._settings = settings or HookSettings()
        self._on_failure = on_failure
        self._phase = _Phase.RECEIVING
        self._outcome = Outcome("ready")
        self._is_recorded = True
        self._error: BaseException | None = None
        self._settled = asyncio.Event()
        self._aborts_begun = 0
        self._dropped: set[int] = set()
        self._seq = 0
        self._reads = bool(hooks.args_delta or hooks.field)
        if self._reads:
            self._queue = DeltaQueue(self._settings.queue_deltas, self._settings.queue_chars)
            self._text = ArgsText(call.encoding)
            self._field_hooks: dict[Path, list[Hook]] = {}
            for hook in hooks.field:
                self._field_hooks.setdefault(hook.path, []).append(hook)
            self._fields = FieldReader(self._field_hooks) if hooks.field else None
        # The task in which the hooks run, None while there is nothing to do, and the hook that is running in it.
        self._task: asyncio.Task[None] | None = None
        self._context: contextvars.Context | None = None
        self._thread: HookThread | None = None
        self._running: Hook | None = None
        self._alarm = Alarm(self._cut)
        self._is_cut = False

    @property
    def error(self) -> Exception | None:
        """The exception of the hook that ended the call."""
        return self._outcome.error

    @property
    def is_running(self) -> bool:
        """Whether one of the hooks is running now."""
        return self._running is not None

    # -- what happens to the call --------------------------------------------------------------------------------------

    def push(self, text: str, seq: int | None = None) -> None:
        """A piece of argument text has arrived. ``seq`` is its number if it has one; otherwise pieces count from 1."""
        if not self._reads or not text or self._phase in _GIVEN_UP:
            return
        if self._phase is not _Phase.RECEIVING:
            raise UsageError(f"call {self._call.call_id!r} is complete and cannot get more argument text")
        self._seq = self._seq + 1 if seq is None else seq
        self._queue.put(text, self._seq)
        self._wake()

    def complete(self, call: Call, seq: int | None = None) -> None:
        """All arguments have arrived. If nothing was pushed, the call came whole: its hooks get it as one delta.

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
            self._wake()
        else:
            self._settle(_Phase.READY)

    def abort(self, call: Call, reason: str, detail: str | None = None, *, is_recorded: bool = True) -> None:
        """The call is given up. Does nothing if that was decided before, or if the tool was allowed to run.

        If this is not recorded yet, ``on_failure`` records it before the abort hooks run.
        """
        if self._phase not in _GIVEN_UP and self._phase is not _Phase.CLAIMED:
            self._call = call
            self._give_up(Outcome("aborted", reason, detail), is_recorded=is_recorded)

    def claim(self) -> bool:
        """Whether the tool may run now. True once; after that the call can no longer be aborted here."""
        if self._phase is not _Phase.READY:
            return False
        self._phase = _Phase.CLAIMED
        return True

    async def settled(self) -> Outcome:
        """Waits until the call is complete or given up and its hooks are done, and returns the outcome.

        The barrier before the tool, and before the end of the run. Cancelling a caller that waits here leaves the hooks
        alone.
        """
        while self._phase not in _SETTLED:
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        return self._outcome

    async def aclose(self) -> None:
        """Gives up the call unless its fate is decided, and waits for its hooks. If cancelled, it cancels them."""
        self.abort(_discard(self._call, "interrupted", None), "interrupted")
        try:
            await self.settled()
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            raise

    # -- from phase to phase -------------------------------------------------------------------------------------------

    def _give_up(self, outcome: Outcome, *, is_recorded: bool = False) -> None:
        self.signal.abort(outcome.reason)
        self._phase = _Phase.ABORTING
        self._outcome = outcome
        self._is_recorded = is_recorded
        self._settled.clear()
        if self._reads:
            self._queue.clear()
        if self._task is not None:
            if self._running is not None and not self._is_cut:
                self._alarm.bring_forward(self._task.get_loop(), self._settings.abort_notice)
        elif self._hooks.args_abort or not is_recorded:
            self._wake()
        else:
            self._settle(_Phase.ENDED)

    def _settle(self, phase: _Phase) -> None:
        self._phase = phase
        self._release()
        self._settled.set()

    def _wake(self) -> None:
        """Starts the task unless it is at work."""
        if self._task is not None:
            return
        if self._context is None:
            self._context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._main(), name=self._name, context=self._context)
        self._task.add_done_callback(self._check_end)

    @property
    def _name(self) -> str:
        return f"callstream hooks of call {self._call.call_id}"

    def _check_end(self, task: asyncio.Task[None]) -> None:
        """A task that finished, or was abandoned, is no longer ``_task``. So this one was cancelled, or it failed."""
        if task is not self._task:
            return
        self._task = self._running = None
        self._is_cut = False
        if self._phase not in _GIVEN_UP:
            self.signal.abort("interrupted")
            self._outcome = Outcome("aborted", "interrupted", "the task of the hooks was cancelled")
        self._error = None if task.cancelled() else task.exception()
        self._settle(_Phase.ENDED)

    # -- what the task does: each step returns the outcome that ends the call, or None ---------------------------------

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        behind_from = loop.time() + self._settings.merge_after  # The task ends as soon as nothing waits.
        try:
            while self._phase not in _SETTLED:
                if self._phase is _Phase.ABORTING:
                    await self._undo()
                    self._settle(_Phase.ENDED)
                    break
                if self._reads and len(self._queue) > 0:
                    verdict = await self._deliver(*self._queue.pop(merged=loop.time() > behind_from))
                elif self._phase is _Phase.COMPLETING:
                    verdict = await self._finish()
                else:
                    break
                if verdict is not None and self._phase not in _GIVEN_UP:
                    self._give_up(verdict)
        except _AbandonedError:
            return
        self._task = None

    async def _deliver(self, text: str, seq: int) -> Outcome | None:
        delta = ArgsDelta(self._call.call_id, self._call.name, seq, text, self._text, self._text.add(text))
        verdict = await self._run_hooks(self._hooks.args_delta, delta)
        if verdict is not None:
            return verdict
        try:
            fields = [] if self._fields is None else self._fields.read(delta)
        except WireError as error:
            return _malformed(error)
        for field in fields:
            verdict = await self._run_hooks(self._field_hooks[field.path], field)
            if verdict is not None:
                return verdict
        return None if self._text.error is None else _malformed(self._text.error)

    async def _finish(self) -> Outcome | None:
        verdict = None
        # Free text has no end of its own, so a field hook on the whole of it gets its last delta here.
        if self._reads and self._call.encoding == "text":
            end = FieldDelta(self._call.call_id, self._call.name, self._seq, (), "", True, whole=self._text.whole)
            verdict = await self._run_hooks(self._field_hooks.get((), ()), end)
        if verdict is None:
            verdict = await self._run_hooks(self._hooks.args_complete, self._call)
        if verdict is None:
            self._settle(_Phase.READY)
        return verdict

    async def _undo(self) -> None:
        """Has the outcome recorded, then runs the abort hooks: they see a call that is discarded in the journal."""
        if not self._is_recorded:
            self._is_recorded = True
            self._call = _discard(self._call, cast(DiscardReason, self._outcome.reason), self._outcome.detail)
            if self._on_failure is not None:
                try:
                    self._call = await self._on_failure(self._outcome)
                except Exception as error:  # noqa: BLE001  # settled() raises it once the abort hooks have run
                    self._error = error
        while self._aborts_begun < len(self._hooks.args_abort):
            hook = self._hooks.args_abort[self._aborts_begun]
            self._aborts_begun += 1
            failure = await self._run_hook(hook, self._call, self._outcome.reason)
            if failure is not None:
                log.error("%s", self._describe(hook, failure), exc_info=failure)

    async def _run_hooks(self, hooks: Iterable[Hook], subject: ArgsDelta | FieldDelta | Call) -> Outcome | None:
        for hook in hooks:
            if id(hook) in self._dropped:
                continue
            failure = await self._run_hook(hook, subject, self.signal)
            if self._phase is _Phase.ABORTING:
                if failure is not None and not isinstance(failure, HookCutOff):
                    log.error("after the abort: %s", self._describe(hook, failure), exc_info=failure)
                return self._outcome
            if failure is not None and (verdict := self._judge(hook, failure)) is not None:
                return verdict
        return None

    def _judge(self, hook: Hook, failure: Exception) -> Outcome | None:
        """The outcome for a hook that raised; None if the call continues without the hook."""
        if isinstance(failure, Reject):
            return Outcome("rejected", "rejected", failure.reason, failure)
        if isinstance(failure, WireError) and self._reads and failure is self._text.error:
            return _malformed(failure)  # of this call's own text, which the hook looked at
        if self._settings.on_error == "isolate" and not hook.is_vital:
            log.error("left out of the rest of the call: %s", self._describe(hook, failure), exc_info=failure)
            self._dropped.add(id(hook))
            return None
        return self._fail(hook, failure)

    def _fail(self, hook: Hook, failure: Exception, *, abandoned: bool = False) -> Outcome:
        fails_run = self._settings.on_error == "fail_run"
        detail = self._describe(hook, failure)
        if not fails_run:  # else the run raises it
            log.error("%s", detail, exc_info=failure)
        return Outcome("failed", "interrupted", detail, failure, fails_run=fails_run, abandoned=abandoned)

    def _describe(self, hook: Hook, failure: Exception) -> str:
        tool, call_id = self._call.name, self._call.call_id
        said = f"{type(failure).__name__}: {message_of(failure)}"
        return f"hook {hook.name!r} of tool {tool!r} failed in call {call_id!r}: {said}"

    # -- one hook, within its time -------------------------------------------------------------------------------------

    async def _run_hook(self, hook: Hook, *args: Any) -> Exception | None:
        """Runs the hook in the task and returns the error it raised; ``HookCutOff`` if its time was up, whatever it did."""
        task = self._task
        assert task is not None, "hooks run in the task"
        began = perf_counter()
        self._running = hook
        self._alarm.set(task.get_loop(), self._settings.timeout)
        failure: BaseException | None = None
        try:
            if hook.is_async:
                await hook.function(*args)
            else:
                await self._run_in_thread(task, hook.function, *args)
        except asyncio.CancelledError as error:
            if not self._is_cut and task.cancelling():
                raise
            failure = error
        except Exception as error:  # noqa: BLE001  # a hook is the application's code: ``_judge`` decides
            failure = error
        finally:
            self.seconds += perf_counter() - began
        if self._task is not task:
            raise _AbandonedError
        self._running = None
        self._alarm.unset()
        if self._is_cut:
            self._is_cut = False
            if task.uncancel():
                raise asyncio.CancelledError
            return _cut_off(hook, failure)
        return failure if failure is None or isinstance(failure, Exception) else _cancelled(hook, failure)

    async def _run_in_thread(self, task: asyncio.Task[None], function: Callable[..., Any], *args: Any) -> None:
        if self._thread is None:
            self._thread = HookThread(self._name)
        done = self._thread.submit(function, *args)
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError:
                # After a cut-off the thread still runs the hook: another one may only begin when it has ended.
                if not self._is_cut or task.cancelling() > 1:
                    raise
        result = done.result()
        if inspect.isawaitable(result):  # A decorator around an async hook may return one.
            await result

    def _cut(self) -> None:
        """The running hook's time is up."""
        if self._running is None or self._task is None:
            return
        if self._is_cut:
            self._abandon(self._running, self._task)
        else:
            self._is_cut = True
            self._alarm.set(self._task.get_loop(), self._settings.grace)
            self._task.cancel()

    def _abandon(self, hook: Hook, task: asyncio.Task[None]) -> None:
        log.error("hook %r ignores its cancellation and is abandoned (%s)", hook.name, self._name)
        _abandoned.add(task)
        task.add_done_callback(_abandoned.discard)
        task.add_done_callback(lambda _: log.warning("abandoned hook %r has ended (%s)", hook.name, self._name))
        self._release()
        self._task = self._running = self._context = None
        self._is_cut = False
        if self._phase is _Phase.ABORTING:
            self._outcome = msgspec.structs.replace(self._outcome, abandoned=True)
            self._wake()
        else:
            self._give_up(self._fail(hook, _cut_off(hook, None), abandoned=True))

    def _release(self) -> None:
        """Lets go of timer and thread. The next hook gets new ones."""
        self._alarm.stop()
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def _malformed(error: Exception) -> Outcome:
    """The text is at fault, not the hook that read it, so the error policy does not apply: no tool runs on such text."""
    return Outcome("failed", "malformed", str(error), error)


def _discard(call: Call, reason: DiscardReason, detail: str | None) -> Call:
    return msgspec.structs.replace(call, state=CallState.DISCARDED, reason=reason, detail=detail)


def _cut_off(hook: Hook, failure: BaseException | None) -> HookCutOff:
    error = HookCutOff(f"hook {hook.name!r} was cut off when its time was up")
    error.__cause__ = failure
    return error


def _cancelled(hook: Hook, error: BaseException) -> RuntimeError:
    """The hook raised CancelledError without being cancelled itself: something that it waited for was cancelled."""
    failure = RuntimeError(f"hook {hook.name!r} waited for something that was cancelled")
    failure.__cause__ = error
    return failure


# -- the thread of sync hooks ------------------------------------------------------------------------------------------


class HookThread:
    """A thread for the sync hooks of one call: runs one function after another.

    Each call has its own, because in a shared pool calls would wait for each other as soon as it is exhausted. It is a
    daemon: a hook that never returns must not keep the process alive. It ends on ``close``, or when nothing refers to it.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Runs the function in a copy of the caller's context. The future is done when the function has ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = context.run(function, *args)
            except BaseException as error:  # noqa: BLE001  # raised again where the future is awaited
                failure = error
            try:
                loop.call_soon_threadsafe(_resolve, future, result, failure)
            except RuntimeError:  # The loop was closed: nothing is waiting.
                pass

        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Lets the thread end after the functions submitted so far."""
        self._jobs.put(None)

    __del__ = close


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job


def _resolve(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    elif isinstance(failure, StopIteration):  # A future cannot carry it.
        future.set_exception(RuntimeError(f"the hook raised {failure!r}"))
    else:
        future.set_exception(failure)
