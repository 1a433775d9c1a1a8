"""Tools that run before the response of the model has ended.

::

    waiting ──ready──▶ begun ──tool and arguments have ended, hooks settled──▶ result recorded
                         └──arguments will not arrive, or were refused──▶ ArgumentsAborted inside the tool; discarded

A tool with a ``Streamed`` parameter begins when its required parameters are whole and valid and the streamed value has
begun; one with ``start="early"`` when the wire has ended its arguments and its hooks have settled. Laws:

- A call's tool begins once. Asking for it later, by ``invoke`` or by calling the tool in the run, gives the same result.
- The journal has everything that the tool sees: pieces come here after they were recorded, and the start of the tool is
  recorded before it runs.
- There is no result before the arguments have ended, whole and valid, and the hooks for their end have settled. A result or
  exception from before that is held back until then, and does not count if the call is discarded.
- If a call is discarded while its tool runs, ``ArgumentsAborted`` is raised where the tool awaits; in a thread, where it
  reads the stream. The end of the run waits while the tool cleans up, for as long as a hook may take.

``_ArrivingArguments`` are those of a call on their way to a tool with a ``Streamed`` parameter, which starts before they
have ended. Every argument is converted when it is whole. The tool may start when its required parameters have arrived and
the streamed value has begun (``is_ready``). From then on nothing may change what it was called with: another argument
that arrives is a fault, unless it is the default that the tool has anyway, or null for it; and so is a key that comes
twice.

``_Interruptible`` is a coroutine into which an exception can be thrown at whatever it awaits. A task can be cancelled
from outside, which raises CancelledError at its await. Here that exception is exchanged for another one on its way in, so
``async with`` and ``except`` in the coroutine get the reason.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, TypeAlias

from callstream import codec
from callstream.calls import Call, CallEvent, CallState
from callstream.errors import ArgumentsAborted, CallstreamError, InvalidArguments, RunOver, WireError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallRunningEarly,
    DiscardReason,
    Encoding,
)
from callstream.hooks.dispatch import HookThread
from callstream.jsontext.stream import Change, JsonStream
from callstream.runtime.barrier import CallListener, Write
from callstream.runtime.core import EarlyTools, RunCore
from callstream.runtime.log import Ending
from callstream.runtime.ownloop import without_stop_iteration
from callstream.tools import Streamed, StreamedParameter, Tool, running_for, starts_early
from callstream.tools.check import Misfit, UnknownArgument, describe
from callstream.tools.convert import converter
from callstream.waits import running_loop

logger = logging.getLogger("callstream")


class _UnusableArguments(Exception):
    """Why the tool must not run on these arguments, or must stop."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: DiscardReason = reason
        self.detail = detail


class _ArrivingArguments:
    """The arguments of one call. ``streamed`` is the tool's parameter that takes the stream."""

    def __init__(self, tool: Tool[Any], streamed: StreamedParameter, encoding: Encoding) -> None:
        self.stream: Streamed[Any] = Streamed()
        """What the tool iterates over."""
        self.is_ready = False
        """Whether the tool can start. From then on its arguments do not change, wherever the text was cut into pieces."""
        self._streamed = streamed
        self._convert_value = None if streamed.is_text else converter(streamed.item)
        self._is_text = encoding == "text"
        self._json = JsonStream(unique_names=True)
        self._arguments = tool.arguments
        self._required = {*tool.arguments.missing({})} - {streamed.name}
        self._given: dict[str, Any] = {}
        self._begun: set[str] = set()
        self._open: str | None = None

    @property
    def kwargs(self) -> dict[str, Any]:
        """What the tool is called with."""
        return {**self._given, self._streamed.name: self.stream}

    def feed(self, text: str) -> None:
        """Reads more of the text. Raises _UnusableArguments."""
        if self._is_text:
            self.is_ready = True
            if text:
                self.stream.put(text)
            return
        try:
            changes = self._json.feed(text)
        except WireError as error:
            raise _UnusableArguments("malformed", str(error)) from error
        for change in changes:
            self._read(change)
            self.is_ready = self.is_ready or (
                self._streamed.name in self._begun and self._required <= self._given.keys()
            )
        if self._json.error is not None:
            raise _UnusableArguments("malformed", str(self._json.error))

    def end(self, call: Call) -> None:
        """Called when the wire has ended the arguments. Raises _UnusableArguments if the tool should not have started."""
        if not self._is_text and (mistake := codec.mistake_in(call.args_json or "{}")):
            raise _UnusableArguments("malformed", mistake)
        self.stream.end()

    def _read(self, change: Change) -> None:
        path = change.path
        if not path:
            if not isinstance(change.value, dict):
                raise _UnusableArguments("malformed", "the arguments are not an object")
            return
        name = str(path[0])
        if self._open != name:
            self._open = name
            self._begin(name)
        if name == self._streamed.name:
            self._grow(change)
        if len(path) == 1 and change.kind in ("set", "close"):
            self._open = None
            if name != self._streamed.name:
                self._give(name, self._convert(name, change.value))

    def _begin(self, name: str) -> None:
        is_named = name in self._arguments.parameters
        if not is_named and not self._arguments.takes_all:
            raise _UnusableArguments(
                "invalid", describe([UnknownArgument((name,), "nothing")], self._arguments.parameters)
            )
        if self.is_ready and not is_named:
            raise self._too_late(name)
        self._begun.add(name)

    def _give(self, name: str, value: Any) -> None:
        if not self.is_ready:
            self._given[name] = value
        elif not _is_same(value, self._arguments.parameters[name].default):
            raise self._too_late(name)

    def _too_late(self, name: str) -> _UnusableArguments:
        return _UnusableArguments(
            "invalid",
            f"the argument {name!r} came after the tool had started; write {name!r} before {self._streamed.name!r}",
        )

    def _grow(self, change: Change) -> None:
        """Takes in a change of the streamed value."""
        streamed = self._streamed
        expects = "append" if streamed.is_text else "open"
        if len(change.path) == 1 and change.kind != "close":
            if change.kind != expects or (expects == "open" and not isinstance(change.value, list)):
                if change.value is None and streamed.takes_none:
                    self._begun.discard(streamed.name)  # nothing is streamed, so nothing starts early
                    return
                expected = "a string" if streamed.is_text else "an array"
                raise _UnusableArguments("invalid", f"the argument {streamed.name!r} should be {expected}")
            if streamed.is_text and change.value:
                self.stream.put(change.value)
        elif not streamed.is_text and len(change.path) == 2 and change.kind in ("set", "close"):
            self.stream.put(self._convert_item(change))

    def _convert(self, name: str, value: Any) -> Any:
        try:
            return self._arguments.convert_one(name, value)
        except InvalidArguments as invalid:
            raise _UnusableArguments("invalid", invalid.detail) from invalid

    def _convert_item(self, change: Change) -> Any:
        try:
            return change.value if self._convert_value is None else self._convert_value(change.value)
        except Misfit as misfit:
            raise _UnusableArguments(
                "invalid", describe(misfit.within(change.path), self._arguments.parameters)
            ) from misfit


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


class _Interruptible:
    """Awaits the coroutine in the task that awaits this object. ``interrupt`` may be called once it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        """Raises the error where the coroutine awaits, once. Does nothing if it is not running."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._task = asyncio.current_task()
        inner = self._coroutine.__await__()
        thrown: BaseException | None = None
        is_delivered = False
        try:
            while True:
                try:
                    awaited = inner.send(None) if thrown is None else inner.throw(thrown)
                except StopIteration as end:
                    return end.value
                try:
                    yield awaited
                    thrown = None
                except asyncio.CancelledError as cancelled:
                    thrown = cancelled
                    if self._error is not None and not is_delivered:
                        is_delivered = True
                        thrown = self._error
                        self._uncancel()
                except BaseException as error:  # noqa: BLE001  # as it came
                    thrown = error
        finally:
            if self._error is not None and not is_delivered:
                self._uncancel()  # the coroutine ended by itself before the cancellation reached it
            self._task = None

    def _uncancel(self) -> None:
        if self._task is not None:
            self._task.uncancel()


class EarlyRun:
    """The tool of one call. It belongs to the event loop of its run."""

    def __init__(self, run: RunCore, write: Write, call: Call, tool: Tool[Any], *, is_recorded: bool = True) -> None:
        self.call_id = call.call_id
        self.tool = tool
        self.has_begun = False
        self.is_joined = False
        """Whether a caller has asked for the result already. Each result goes to one caller."""
        self.arguments: Any = {}
        """What the tool is called with: arguments by name, or the single one of a free-text tool."""
        self._run = run
        self._write = write
        self._is_recorded = is_recorded
        self._args = _ArrivingArguments(tool, tool.streamed, call.encoding) if tool.streamed is not None else None
        self._starts_at_end = tool.streamed is None
        self._task: asyncio.Task[None] | None = None
        self._running: _Interruptible | None = None
        self._refusal: asyncio.Task[None] | None = None
        self._reason: str | None = None  # why the call was discarded
        self._detail: str | None = None
        self._is_in_thread = False  # the tool, a plain function
        self._args_ended = asyncio.Event()
        self._value: concurrent.futures.Future[Any] = concurrent.futures.Future()  # of a tool in a thread
        self._outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    @property
    def is_over(self) -> bool:
        return self._task is None or self._task.done()

    # -- what happens to the call --

    def apply(self, event: CallEvent, call: Call, seq: int) -> None:
        """Takes in an event of the call: see ``CallListener``."""
        match event:
            case ArgsAppended(text=text):
                self._guard(lambda args: args.feed(text))
                if self._args is not None and self._args.is_ready and self._refusal is None and not self.has_begun:
                    self._begin()
            case CallCompleted():
                if self.has_begun:
                    self._guard(lambda args: args.end(call))
                    if self._refusal is None:
                        self._args_ended.set()
                elif self._refusal is not None:
                    pass  # it is being discarded
                elif self._starts_at_end and not (
                    call.encoding == "json" and self.tool.arguments.missing(call.args or {})
                ):
                    self._args_ended.set()
                    self._begin()
                else:
                    self._args = None  # the call came whole, or the arguments that start the tool never came
            case CallDiscarded(reason=reason, detail=detail):
                self.abort(reason, detail)
            case CallExecuting() | CallAwaiting():
                self._args, self._starts_at_end = None, False  # the tool is run elsewhere
            case _:
                pass

    def abort(self, reason: str, detail: str | None = None) -> None:
        """Called when the call is discarded: the tool, if it runs, is notified."""
        self._args_ended.set()
        if self._reason is not None:
            return
        self._reason, self._detail = reason, detail
        informs_reader = self._args is not None and self._args.stream.abort(reason, detail)
        if self._running is not None and not informs_reader:  # else the reader of the stream gets it
            self._running.interrupt(ArgumentsAborted(reason, detail))

    async def close(self) -> None:
        """Waits for the tool, for as long as one of its hooks may take. If it still runs then, it is cancelled and left."""
        if self._task is not None:
            timeout = self._run.engine.hook_settings(self.tool.__name__, self.tool).timeout
            _, pending = await asyncio.wait({self._task}, timeout=None if timeout == math.inf else timeout)
            if pending:
                self.cancel()
                logger.error("tool %r of call %r does not end, and is left alone", self.tool.__name__, self.call_id)

    def cancel(self) -> None:
        """Cancels the tool, like one that runs at the usual time: the result is no longer wanted."""
        if self._task is not None:
            self._task.cancel()

    def _guard(self, read: Callable[[_ArrivingArguments], None]) -> None:
        if self._args is None or self._refusal is not None or self._reason is not None:
            return
        try:
            read(self._args)
        except _UnusableArguments as fault:
            if self._args.is_ready or fault.reason == "malformed":
                self._refusal = asyncio.create_task(self._refuse(fault.reason, fault.detail))
            else:
                self._args = None  # the tool never starts; the end of the arguments says why

    async def _refuse(self, reason: DiscardReason, detail: str) -> None:
        try:
            await self._write([CallDiscarded(self.call_id, reason, detail)])
        except CallstreamError as error:  # the run is over, or its store unavailable: its end discards the call
            logger.warning("call %r was not discarded (%s): %s", self.call_id, reason, error)
            self.abort(reason, detail)

    async def wait_for_refusal(self) -> None:
        """Waits until a refusal on which this has decided is recorded."""
        if self._refusal is not None:
            await asyncio.wait({self._refusal})

    # -- the tool --

    def _begin(self) -> None:
        self.has_begun = True
        if self._args is not None:
            self.arguments = self._args.kwargs
        self._task = asyncio.get_running_loop().create_task(
            self._main(), name=f"callstream early run of call {self.call_id}", context=contextvars.copy_context()
        )

    async def _main(self) -> None:
        try:
            result = await self._work()
        except asyncio.CancelledError as error:
            over = RunOver(f"run {self._run.run_id!r} was ended while tool {self.tool.__name__!r} ran")
            self._outcome.set_exception(over if self._run.is_ending else error)
        except Exception as error:  # noqa: BLE001  # it is raised where the result is asked for
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)
        finally:
            if not self._value.done():
                self._value.set_exception(RunOver(f"call {self.call_id!r} has no result"))

    async def _work(self) -> Any:
        run = self._run
        await self._start()
        result: Any = None
        error: BaseException | None = None
        try:
            result = await self._call_tool()
        except BaseException as raised:  # noqa: BLE001  # recorded, or raised, when the arguments have ended
            error = raised
        if error is None or (isinstance(error, Exception) and not run.is_ending):
            await self._args_ended.wait()
        if self._reason is not None:
            await self._drop(error)
        if not run.call(self.call_id).is_being_written and not run.is_ending:
            if self._args is not None:
                await run.prepare(self.call_id)
            if self._is_recorded:
                await run.record_outcome(self.call_id, result, error)
        if error is not None:
            raise error
        return result

    async def _start(self) -> None:
        """Records that the tool runs. Raises if it must not."""
        run = self._run
        if self._args is None:
            typed = await run.convert(self.call_id)
            call = await run.prepare(self.call_id)
            self.arguments = (call.args or {}) if typed is None else typed
        await self._write([CallRunningEarly(self.call_id, self.tool.replay)])
        if run.call(self.call_id).state is not CallState.RUNNING_EARLY:
            raise run.rejection(self.call_id)
        run.begin_tool()

    async def _call_tool(self) -> Any:
        run = self._run
        if self._reason is not None:
            raise ArgumentsAborted(self._reason, self._detail)
        progress = run.progress_of(self.call_id)
        typed = self.arguments if isinstance(self.arguments, dict) else None
        self._running = _Interruptible(
            run.engine.call_with(self.tool, self.arguments, progress, typed, run_plain=self._run_in_thread)
        )
        try:
            with running_for(run.call(self.call_id)):
                return await self._running
        finally:
            self._running = None

    async def _run_in_thread(self, function: Callable[[], Any]) -> Any:
        """Runs it in a thread of its own: it may wait for the model, and the threads of a pool are limited.

        A thread cannot be interrupted. An abort reaches it where it reads the stream, and until then it is waited for.
        """
        self._running = None
        self._is_in_thread = True

        def work() -> Any:
            try:
                value = without_stop_iteration(function)
            except BaseException as error:
                self._value.set_exception(error)
                raise
            self._value.set_result(value)
            return value

        thread = HookThread(f"callstream tool of call {self.call_id}")
        try:
            return await thread.submit(work)
        finally:
            thread.close()

    async def _drop(self, error: BaseException | None) -> None:
        """Called when the call was discarded: logs an error of its tool, and raises why no result of it counts."""
        if error is not None and not isinstance(error, ArgumentsAborted):
            logger.error("tool %r failed after call %r was discarded", self.tool.__name__, self.call_id, exc_info=error)
        await self._run.close_progress(self.call_id)
        raise self._run.rejection(self.call_id)

    # -- callers that ask for the result --

    def join(self) -> EarlyRun | None:
        """Claims this run for the first caller; None if the caller must run the tool."""
        is_plain = not (inspect.iscoroutinefunction(self.tool) or inspect.isasyncgenfunction(self.tool))
        if is_plain and not self._is_in_thread and not self._outcome.done() and running_loop() is self._run.loop:
            # The loop's own thread cannot wait for a plain function that has not begun yet: the loop would have to begin it.
            self.has_begun, self._args, self._starts_at_end = False, None, False
            self.cancel()
            return None
        self.is_joined = True
        return self

    async def wait_until_over(self) -> None:
        """Waits for the tool, whatever its outcome."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def wait(self) -> Any:
        self.is_joined = True
        outcome = asyncio.wrap_future(self._outcome)
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())  # it has one reader
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not self._outcome.done():
                self._run.loop.call_soon_threadsafe(self.cancel)
            raise

    def wait_here(self) -> Any:
        """``wait`` for plain functions. In the thread of the run's own loop, it can only wait for the tool's thread."""
        self.is_joined = True
        if running_loop() is self._run.loop and not self._outcome.done():
            return self._value.result()
        return self._outcome.result()


EarlyPolicy: TypeAlias = Literal["record", "report", "never"]
"""Whether tools of a response's calls may begin early: with their results recorded, or left to a host that reports them."""


class EarlyRuns(EarlyTools):
    """The tools of one run that begin early, and the calls for which tools may."""

    held: frozenset[str] = frozenset()
    """Names of tools that never begin early, because their host gives them something when it calls them."""

    def __init__(self, run: RunCore, write: Write) -> None:
        self._run = run
        self._write = write
        self._expected: dict[str, tuple[EarlyPolicy, Tool[Any] | None]] = {}
        self._runs: dict[str, EarlyRun] = {}

    @property
    def is_running(self) -> bool:
        """Whether a tool is running that the end of the run waits for."""
        return any(not early.is_over for early in self._runs.values())

    def expect(self, call_id: str, policy: EarlyPolicy, own: Tool[Any] | None = None) -> None:
        """Notes that a response that is being read brings this call, so its tool may begin early.

        ``own``: the tool that its name means to the agent that asked, if that is known.
        """
        self._expected[call_id] = policy, own

    def listener(self, call: Call) -> CallListener | None:
        """Listens to a call, which has started, on behalf of its tool. None if the tool does not begin early."""
        policy, own = self._expected.pop(call.call_id, ("never", None))
        tool = own or self._run.engine.tools.get(call.name) if policy != "never" else None
        if tool is None or not starts_early(tool) or call.name in self.held:
            return None
        is_recorded = policy == "record"
        early = EarlyRun(self._run, self._write, call, tool, is_recorded=is_recorded)
        self._runs[call.call_id] = early
        return early.apply

    def begun(self, call_id: str) -> EarlyRun | None:
        """The early run of that call, if it has begun."""
        early = self._runs.get(call_id)
        return early if early is not None and early.has_begun else None

    async def wait_for_refusal(self, call_id: str) -> None:
        early = self._runs.get(call_id)
        if early is not None:
            await early.wait_for_refusal()

    def abort(self, ending: Ending) -> None:
        """Called when the run ends: tools whose arguments are not whole are notified, the others are cancelled."""
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
