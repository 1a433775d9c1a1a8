"""The tool of one call, run before the response of the model has ended: from the arguments that start it to its result.

``runtime/early.py`` states the laws.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

from callstream.calls import Call, CallEvent, CallState
from callstream.errors import ArgumentsAborted, CallstreamError, RunOver
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallRunningEarly,
    DiscardReason,
)
from callstream.hooks.thread import HookThread
from callstream.runtime.arriving import ArrivingArguments, UnusableArguments
from callstream.runtime.barrier import Write
from callstream.runtime.core import RunCore
from callstream.runtime.interruptible import Interruptible
from callstream.runtime.tooluse import ToolUse
from callstream.tools import Tool, running_for

logger = logging.getLogger("callstream")


class EarlyRun:
    """The tool of one call. It belongs to the event loop of its run."""

    def __init__(
        self, run: RunCore, tool_use: ToolUse, write: Write, call: Call, tool: Tool[Any], *, is_recorded: bool = True
    ) -> None:
        self.call_id = call.call_id
        self.tool = tool
        self.has_begun = False
        self.is_joined = False
        """Whether somebody has asked for the result, who will not be given another's."""
        self.given: Any = {}
        """What the tool is called with: arguments by name, or the one of a free-text tool."""
        self._run = run
        self._tool_use = tool_use
        self._write = write
        self._is_recorded = is_recorded
        streams = tool.streamed is not None
        self._args = ArrivingArguments(tool, tool.streamed, call.encoding) if tool.streamed is not None else None
        self._starts_at_end = tool.start == "early" and not streams
        self._task: asyncio.Task[None] | None = None
        self._running: Interruptible | None = None
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

    def take(self, event: CallEvent, call: Call) -> None:
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
                    self._args = None  # it came whole, or what should start it never came
            case CallDiscarded(reason=reason, detail=detail):
                self.abort(reason, detail)
            case CallExecuting() | CallAwaiting():
                self._args, self._starts_at_end = None, False  # somebody else has it
            case _:
                pass

    def abort(self, reason: str, detail: str | None = None) -> None:
        """The call is discarded: the tool, if it runs, is told so."""
        self._args_ended.set()
        if self._reason is not None:
            return
        self._reason, self._detail = reason, detail
        is_told = self._args is not None and self._args.stream.abort(reason, detail)
        if self._running is not None and not is_told:  # who reads the stream, perhaps another task, learns it there
            self._running.interrupt(ArgumentsAborted(reason, detail))

    async def close(self) -> None:
        """Waits for the tool, for as long as a hook of it may take. If it still runs then, it is left alone."""
        if self._task is not None:
            timeout = self._run.engine.hook_settings(self.tool.__name__, self.tool).timeout
            _, pending = await asyncio.wait({self._task}, timeout=None if timeout == math.inf else timeout)
            if pending:
                self.cancel()
                logger.error("tool %r of call %r does not end, and is left alone", self.tool.__name__, self.call_id)

    def cancel(self) -> None:
        """Nobody wants the result any more: the tool is cancelled, as one that runs at its usual time."""
        if self._task is not None:
            self._task.cancel()

    def _guard(self, read: Callable[[ArrivingArguments], None]) -> None:
        if self._args is None or self._refusal is not None or self._reason is not None:
            return
        try:
            read(self._args)
        except UnusableArguments as fault:
            if self._args.is_ready or fault.reason == "malformed":
                self._refusal = asyncio.create_task(self._refuse(fault.reason, fault.detail))
            else:
                self._args = None  # the tool never starts; the end of the arguments says why

    async def _refuse(self, reason: DiscardReason, detail: str) -> None:
        try:
            await self._write([CallDiscarded(self.call_id, reason, detail)])
        except CallstreamError as error:  # the run is over, or its store away: its end says what became of the call
            logger.warning("call %r was not discarded (%s): %s", self.call_id, reason, error)
            self.abort(reason, detail)

    async def settle(self) -> None:
        """Waits until a refusal that was decided is recorded."""
        if self._refusal is not None:
            await asyncio.wait({self._refusal})

    # -- the tool --

    def _begin(self) -> None:
        self.has_begun = True
        if self._args is not None:
            self.given = self._args.kwargs
        self._task = asyncio.get_running_loop().create_task(
            self._main(), name=f"callstream early run of call {self.call_id}", context=contextvars.copy_context()
        )

    async def _main(self) -> None:
        try:
            result = await self._work()
        except asyncio.CancelledError as error:
            over = RunOver(f"run {self._run.run_id!r} was ended while tool {self.tool.__name__!r} ran")
            self._outcome.set_exception(over if self._run.is_ending else error)
        except Exception as error:  # noqa: BLE001  # it rises where the result is asked for
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
                await self._tool_use.record_outcome(self.call_id, result, error)
        if error is not None:
            raise error
        return result

    async def _start(self) -> None:
        """Records that the tool runs. Raises if it must not."""
        run = self._run
        if self._args is None:
            typed = await self._tool_use.convert(self.call_id)
            call = await run.prepare(self.call_id)
            self.given = (call.args or {}) if typed is None else typed
        await self._write([CallRunningEarly(self.call_id)])
        if run.call(self.call_id).state is not CallState.RUNNING_EARLY:
            raise run.rejection(self.call_id)
        run.begin_tool()

    async def _call_tool(self) -> Any:
        run = self._run
        if self._reason is not None:
            raise ArgumentsAborted(self._reason, self._detail)
        progress = run.progress_of(self.call_id)
        typed = self.given if isinstance(self.given, dict) else None
        self._running = Interruptible(
            run.engine.call_with(self.tool, self.given, progress, typed, run_plain=self._run_in_thread)
        )
        try:
            with running_for(run.call(self.call_id)):
                return await self._running
        finally:
            self._running = None

    async def _run_in_thread(self, function: Callable[[], Any]) -> Any:
        """A thread of its own: it may wait for the model, and those of a pool are not without number.

        A thread cannot be interrupted. It learns of an abort where it reads the stream, and is waited for until then.
        """
        self._running = None
        self._is_in_thread = True

        def work() -> Any:
            try:
                value = function()
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
        """The call was discarded: says what its tool came to, and raises why nothing of that counts."""
        if error is not None and not isinstance(error, ArgumentsAborted):
            logger.error("tool %r failed after call %r was discarded", self.tool.__name__, self.call_id, exc_info=error)
        await self._run.close_progress(self.call_id)
        raise self._run.rejection(self.call_id)

    # -- who asks for the result --

    def join(self) -> EarlyRun | None:
        """This run, for whoever asks first; None if he has to run the tool himself."""
        if not self.can_be_joined_here():
            return None
        self.is_joined = True
        return self

    def can_be_joined_here(self) -> bool:
        """False, and the tool does not run, for a plain function that is called in the loop's thread before it began.

        That thread could not wait for it: the loop itself has to begin it. So its caller runs it.
        """
        is_plain = not (inspect.iscoroutinefunction(self.tool) or inspect.isasyncgenfunction(self.tool))
        if not is_plain or self._is_in_thread or self._outcome.done() or not self._is_on_loop():
            return True
        self.has_begun, self._args, self._starts_at_end = False, None, False
        self.cancel()
        return False

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._run.loop
        except RuntimeError:
            return False

    async def wait_until_over(self) -> None:
        """Waits for the tool, whatever it comes to."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def wait(self) -> Any:
        self.is_joined = True
        outcome = asyncio.wrap_future(self._outcome)
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody else may see it
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not self._outcome.done():
                self._run.loop.call_soon_threadsafe(self.cancel)
            raise

    def wait_here(self) -> Any:
        """In the thread of the run's own loop, what the tool's thread returns is all that can be waited for."""
        self.is_joined = True
        if self._is_on_loop() and not self._outcome.done():
            return self._value.result()
        return self._outcome.result()
