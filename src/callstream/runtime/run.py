"""A run: one turn of an agent, from its input to its end.

Everything that happens to it passes ``record``: first the journal, then the ledger, then the hooks; so nothing is shown
that a crash could still lose, and hooks see what the journal has. A run belongs to the event loop that started it.
Leaving it ends it: finished, failed with an exception, cancelled with a cancellation. Whatever the way, hooks settle
first, and every call of it is final or awaits an answer afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from callstream.calls import Call, CallEvent, CallState, Ledger, Refusal, ToolResult
from callstream.errors import (
    CallRejected,
    LimitExceeded,
    RunOver,
    TransitionError,
    UsageError,
)
from callstream.events import (
    CallAwaiting,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    Question,
    RequestEvent,
    RunEvent,
    RunOutcome,
)
from callstream.runtime.answers import Answers
from callstream.runtime.barrier import Barrier, mistake
from callstream.runtime.directory import Directory
from callstream.runtime.early import EarlyPolicy, EarlyRuns
from callstream.runtime.ending import Ending, describe
from callstream.runtime.limits import TextLimits
from callstream.runtime.progress import ProgressFeeds, ProgressHandler
from callstream.runtime.response import Response
from callstream.runtime.runend import RunEnd
from callstream.runtime.runlog import EventsThen, RunLog
from callstream.runtime.tooluse import ToolUse
from callstream.runtime.waiting import wait_for_result
from callstream.runtime.withheld import WithheldRun
from callstream.tools import BegunTools, Progress, begun_tools
from callstream.wire.argtext import ArgumentText

if TYPE_CHECKING:
    from callstream.runtime.callstream import Callstream

logger = logging.getLogger("callstream")

OnRejected: TypeAlias = Literal["raise", "forward"]
"""What the SDK gets of a response in which a call was rejected: ``CallRejected``, or all of it, the call included."""

_CALL_EVENTS = get_args(CallEvent)
_current_run: ContextVar[Run | None] = ContextVar("callstream_run", default=None)


def current_run() -> Run | None:
    """The run that this task or thread belongs to, None outside of one.

    A run that has ended does not count, nor does one of the process that this one was forked from.
    """
    run = _current_run.get()
    return run if run is not None and run.outcome is None and run.process == os.getpid() else None


class Run:
    """Made by ``Callstream.run`` or ``Callstream.start``."""

    def __init__(
        self,
        callstream: Callstream,
        thread_id: str,
        run_id: str,
        principal: str | None = None,
        *,
        rejected: OnRejected = "raise",
    ) -> None:
        if rejected not in get_args(OnRejected):
            raise UsageError(f"expected rejected to be 'raise' or 'forward', got {rejected!r}")
        self.callstream = callstream
        self.thread_id = thread_id
        self.run_id = run_id
        self.principal = principal
        self.rejected: OnRejected = rejected
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        self.host_traces = False
        """Whether the run's host emits OpenTelemetry spans of its own for agents and tools."""
        self.on_tool_progress: ProgressHandler | None = None
        """Takes the place of the Callstream's own handler in this run."""
        self._ledger = Ledger()
        self._log = RunLog(callstream.journal, run_id, self._ledger, callstream.text_limits)
        self._barrier = Barrier(callstream, self._ledger, self._write)
        self.when_due: Callable[[Callable[[], object]], None] = partial(callstream.journal.when_due, run_id)
        """Calls what will record something, together with what other runs want to record: see ``Journal.when_due``."""
        self.directory = Directory(callstream.journal, thread_id, principal)
        """Which call of the thread an id means."""
        self._answers = Answers(self._ledger, callstream.journal, self.directory)
        settings = callstream.settings
        self._feeds = ProgressFeeds(
            self._write, self._tell_progress, interval=settings.progress_interval, merge=settings.merge_progress
        )
        self._end = RunEnd(self, self._ledger, self._log, self._barrier, self._feeds, self._write)
        self.tool_use = ToolUse(self, self._barrier)
        self.early = EarlyRuns(self, self._write)
        """The tools that run before the response has ended."""
        self.starts_early = True
        """Whether tools may do that. Not in a run that nobody opened, since nobody would wait for them."""
        self._token: Token[Run | None] | None = None
        self._begun_tools: Token[BegunTools | None] | None = None
        self._leave: Callable[[], None] | None = None

    # -- what is known --

    @property
    def calls(self) -> list[Call]:
        """The run's calls, in the order in which they started."""
        return list(self._ledger)

    def call(self, call_id: str) -> Call:
        return self._ledger[call_id]

    def refusals(self) -> list[Refusal]:
        """The calls whose tools will not run, each with a sentence for the model, in the order of the calls.

        They were rejected, their hooks failed, there is no such tool, or the model did not finish them, did not write
        JSON, or wrote arguments that do not fit. What was given up because the connection broke or the run was stopped is
        not among them. Who asks for them tells the model.
        """
        return self.tool_use.tell_refusals()

    @property
    def is_ending(self) -> bool:
        """Whether the run has ended, or is being ended."""
        return self._end.has_begun

    @property
    def outcome(self) -> RunOutcome | None:
        """How the run ended; None while it is running."""
        return None if self._end.ending is None else self._end.ending.outcome

    @property
    def reason(self) -> str | None:
        """Why the run failed or was cancelled."""
        return None if self._end.ending is None else self._end.ending.reason

    @property
    def error(self) -> BaseException | None:
        """The exception that failed the run, if it was one."""
        return None if self._end.ending is None else self._end.ending.error

    @property
    def seq(self) -> int:
        """The number of the last record of the run."""
        return self._log.seq

    @property
    def is_doubtful(self) -> bool:
        """Whether the journal may have more of the run than was acknowledged."""
        return self._log.is_doubtful

    def args_bytes(self, call_id: str) -> int:
        """How much argument text this run has of the call, in UTF-8."""
        return self._log.text.args_bytes(call_id)

    def hook_seconds(self, call_id: str) -> float | None:
        """How long the call's hooks have run, all together; None if it has none."""
        return self._barrier.seconds(call_id)

    def tighten(self, limits: TextLimits) -> None:
        """The run may write no more than that, either."""
        self._log.text.limits = self._log.text.limits.tighten(limits)

    def make_current(self) -> None:
        """Makes this the current run of the calling task, and of those that it starts from now on."""
        _current_run.set(self)
        begun_tools.set(self.early)

    # -- what happens to it --

    async def record(
        self, events: Sequence[RunEvent] | EventsThen, *, response_id: str | None = None, author: str | None = None
    ) -> None:
        """Journals the events, then takes them into the ledger, then hands them to the hooks.

        A function is asked for the events when everything that was on its way has been written. A caller that is
        cancelled while it waits leaves at once; the events are recorded all the same, before any that come later. What
        the wire still says of a call that was discarded meanwhile is left out. Text beyond a limit raises LimitExceeded
        and fails the run, whatever its host makes of the exception: see ``TextLimits``.
        """
        self._check_open()
        await self._write(events, response_id, author)
        if self._barrier.failure is not None:
            raise self._barrier.failure

    def record_now(
        self,
        events: Sequence[RunEvent],
        then: Callable[[Exception | None], None],
        *,
        response_id: str | None = None,
        author: str | None = None,
    ) -> bool:
        """The short way for pieces of text and arguments, which are most of what happens: no task waits for them.

        ``then`` is called when they are recorded, or with what ``record`` would have raised. False, and nothing was done,
        where only ``record`` will do.
        """
        barrier = self._barrier
        if self._end.has_begun or barrier.failure is not None:
            return False

        def recorded(error: Exception | None) -> None:
            then(error or barrier.failure)

        return self._log.write_now(events, self._take, recorded, response_id, author)

    def response(
        self,
        wire: str,
        *,
        tools: Mapping[str, dict[str, Any]] | None = None,
        offered: Collection[str] = (),
        author: str | None = None,
        new_call_id: Callable[[], str] | None = None,
        early: EarlyPolicy = "record",
        withheld: bool = False,
    ) -> Response:
        """A response of a model that is to be read into this run: ``async with run.response("anthropic") as response``.

        ``tools`` are the request's tools, JSON Schemas by name; see ``decoder_for``. ``offered``: all names that its calls
        may have, where that is known; a call with another name is refused. ``early``: whether tools of its calls may begin
        while it is being read. ``withheld``: nothing of it is recorded; its host records what the application makes of it.
        """
        self.tool_use.declared.update(tools or ())
        new_call_id = new_call_id or self.callstream.new_call_id
        response_id = self.callstream.new_id("response")
        policy: EarlyPolicy = early if self.starts_early else "never"

        def expect(started: CallStarted, call_id: str, text: ArgumentText | None) -> None:
            if text is not None:
                self._ledger.lend(call_id, text)
            is_offered = self.tool_use.expect(call_id, started.name, offered)
            self.early.expect(call_id, policy if is_offered else "never")

        return Response(
            WithheldRun(self) if withheld else self,
            wire,
            response_id,
            new_call_id=new_call_id,
            tools=tools,
            author=author,
            expect=None if withheld else expect,
        )

    async def receive(self, events: Sequence[RequestEvent], *, author: str | None = None) -> None:
        """Takes in what a request says (``results_in``): new messages, and results of calls that have none yet."""
        receiving = self._answers.receive(events, partial(self.record, author=author))
        await wait_for_result(asyncio.ensure_future(receiving))

    async def free_call_id(self, wanted: str) -> str:
        """A ``call_id`` that no call in the journal has: the wanted one, or that with a number."""
        return self._ledger.name_for(await self.callstream.journal.free_call_id(wanted))

    # -- tools --

    async def execute(self, call_id: str) -> Call:
        """The barrier before a tool: waits for the call's hooks, records that it executes, returns it with arguments.

        Raises CallRejected if it was discarded, TransitionError if its arguments are not complete, and RunOver if the run
        was ended. Then the tool must not run.
        """
        if self.early.begun(call_id) is not None:
            raise TransitionError(f"the tool of call {call_id!r} has begun early; run.invoke gives its result")
        await self.prepare(call_id)
        await self.record([CallExecuting(call_id)])
        self._check_open()  # the run may have been ended while that was written
        return self._ledger[call_id]

    async def prepare(self, call_id: str) -> Call:
        """Waits for the call's hooks and takes it over from them. Raises if its tool must not run."""
        call = await self.ready(call_id)
        if wrong := mistake(call):
            await self.record([CallDiscarded(call_id, "malformed", wrong)])
            raise self.rejection(call_id)
        self._claim(call_id)
        return call

    def rejection(self, call_id: str) -> CallRejected | RunOver:
        """Why the tool of a call must not run: what was wrong with the call, or else that the run was ended."""
        call = self._ledger[call_id]
        is_over = self._end.has_begun and not self._barrier.is_refused(call)
        return self._over() if is_over else self._barrier.rejection(call)

    async def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done. Waits for its arguments if they are not complete."""
        await self.early.settle(call_id)
        return await self._barrier.settled(call_id)

    async def complete(self, call_id: str, result: Any = None) -> None:
        """The tool has returned."""
        await self._feeds.close(call_id)
        await self.record([CallReturned(call_id, result)])

    async def fail(self, call_id: str, error: str | BaseException) -> None:
        """The tool has failed."""
        await self._feeds.close(call_id)
        await self.record([CallFailed(call_id, error if isinstance(error, str) else describe(error))])

    async def await_answer(self, call_id: str, question: Question | None = None, *, is_paused: bool = False) -> Call:
        """A client or a person has to answer this call: it outlives the run until ``answer`` finds it.

        ``question`` says what is asked, where the arguments do not. ``is_paused``: the answer is one to another call,
        which asks about this one.
        """
        if self.early.begun(call_id) is not None:
            raise UsageError(f"the tool of call {call_id!r} has begun early, so nobody can be asked about it any more")
        if self._ledger[call_id].state is not CallState.EXECUTING:
            await self.ready(call_id)
            self._claim(call_id)
        await self.record([CallAwaiting(call_id, question, is_paused)])
        return self._ledger[call_id]

    async def answer(
        self, call_id: str, result: Any = None, *, error: str | None = None, message_id: str | None = None
    ) -> bool:
        """The answer to a call of this thread that awaits one, by its ``call_id`` or its wire id.

        ``message_id`` is that of the message in which the client sent it, which then is not sent back to it. False if
        the call has its answer already, or another run is executing it. Raises UsageError if this thread has no such call.
        """
        return await self._answers.answer(call_id, self.record, result, error=error, message_id=message_id)

    async def resume(self, call_id: str) -> Call | None:
        """Takes in a call of this thread that awaits an answer, by its ``call_id`` or its wire id, so that it can execute.

        None if the call has its answer already, or is executing in another run that has taken it up. Of two runs that
        take it up at once, one executes it; ``execute`` and ``invoke`` raise TransitionError in the other. Raises UsageError
        if this thread has no such call.
        """
        return await self._answers.awaiting(call_id)

    async def progress(self, call_id: str, data: Any) -> None:
        """What an executing call tells its interface; the model never sees it."""
        await self.record([CallProgressed(call_id, data)])
        await self._tell_progress(call_id, data)

    async def close_progress(self, call_id: str) -> None:
        """The tool has ended, and what it told its interface is all that there is."""
        await self._feeds.close(call_id)

    def progress_of(self, call_id: str) -> Progress:
        """The ``Progress`` to hand to the tool of an executing call."""
        return self._feeds.open(call_id)

    async def invoke(self, call_id: str) -> Any:
        """Runs the tool that Callstream was given for this call, from barrier to result, and returns the result.

        What the tool raises is recorded and rises unchanged. CallRejected rises if the tool must not run, and its text is
        for the model: a hook rejected the call, an argument is missing or unknown, or there is no such tool. If the run is
        ended meanwhile, the tool is cancelled (a sync one runs on in its thread) and RunOver rises.
        """
        return await self.tool_use.invoke(call_id)

    async def run_tools(self) -> list[ToolResult]:
        """Runs the tool of every call whose arguments are complete, and returns what to tell the model, call by call.

        This is the part of a loop between two requests. A call is in one of these lists once: with its result, with the
        error that its tool raised, or with the reason for which its tool did not run. Tools run one after the other, in the
        order of the calls. Of several tasks that ask at once, the first that finds a call complete gets it. What is not
        about a single call rises: RunOver, or an error of the journal.
        """
        return await self.tool_use.run_tools()

    # -- the end --

    async def finish(self) -> None:
        """Ends the run as finished, after all hooks have settled. Does nothing if it has ended.

        Raises the error of a hook that failed the run instead (``fail_run``), as leaving the run's context does.
        """
        failure = await self._end.wait(Ending.finished())
        if failure is not None:
            raise failure

    async def stop(self, reason: str = "stopped") -> None:
        """Ends the run as cancelled: hooks are aborted, open calls discarded, upstream streams closed."""
        await self._end.wait(Ending.cancelled(reason))

    async def end(self, error: BaseException | None) -> None:
        """Ends the run by what ended its work: nothing finishes it, a cancellation cancels it, all else fails it.

        Unlike ``finish`` it is silent where a hook fails the run: ``outcome`` says so.
        """
        await self._end.wait(Ending.by(error))

    async def end_in_journal(self, ending: Ending) -> None:
        """Ends the run by what the journal has of it, which may be more than was acknowledged. It may be repeated."""
        await self._log.end(ending)

    def on_stop(self, callback: Callable[[str], object]) -> Callable[[], None]:
        """Has the callback called, on the run's loop, when the run ends. Returns what takes that back.

        What it raises is logged, and the run ends all the same.
        """
        return self._end.add_callback(callback)

    def enter(self) -> None:
        """Makes this the current run of the calling task or thread until ``leave``, with the observers around it."""
        self._token = _current_run.set(self)
        self._begun_tools = begun_tools.set(self.early)
        self._leave = self.callstream.observers.run_entered(self)

    def leave(self) -> None:
        if self._token is not None:
            try:
                _current_run.reset(self._token)
                if self._begun_tools is not None:
                    begun_tools.reset(self._begun_tools)
                if self._leave is not None:
                    self._leave()
            except ValueError:
                pass  # A generator may be closed in another context than it began in; the run is not current there.

    async def __aenter__(self) -> Run:
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self.leave()
        if error is None:
            await self.finish()
        else:
            await self.end(error)
        return False

    # -- inside --

    async def _write(
        self, events: Sequence[RunEvent] | EventsThen, response_id: str | None = None, author: str | None = None
    ) -> None:
        """What ``record`` does, also while the run is being ended: hooks may still give up their call then."""
        if not events:
            return
        writing = asyncio.ensure_future(self._log.write(events, self._take, response_id, author))
        try:
            excess = await wait_for_result(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._end_at_limit)  # nobody else will
            raise
        if excess is not None:
            self._end.begin(_limit_ending(excess))
            raise excess

    def _end_at_limit(self, writing: asyncio.Future[LimitExceeded | None]) -> None:
        excess = None if writing.cancelled() or writing.exception() is not None else writing.result()
        if excess is not None:
            self._end.begin(_limit_ending(excess))

    def _check_open(self) -> None:
        if self._end.has_begun:
            raise self._over()

    def _over(self) -> RunOver:
        return RunOver(f"run {self.run_id!r} is over")

    async def ready(self, call_id: str) -> Call:
        """The call with all its arguments, after its hooks have settled. Raises if its tool must not run."""
        await self.early.settle(call_id)
        call = await self._barrier.ready(call_id)
        if self._end.has_begun or call.state is CallState.DISCARDED:
            raise self.rejection(call_id)
        return call

    def _claim(self, call_id: str) -> None:
        if not self._barrier.claim(call_id):
            raise TransitionError(f"call {call_id!r} is {self._ledger[call_id].state}; its tool must not run again")

    def _take(self, event: RunEvent, seq: int) -> None:
        if isinstance(event, MessageReceived):
            self._answers.keep(event)
        if not isinstance(event, _CALL_EVENTS):
            return
        before = self._ledger.get(event.call_id)
        call = self._ledger.apply(event, run_id=self.run_id, thread_id=self.thread_id)
        self._barrier.take(event, call, seq)
        self.early.take(event, call)
        if call is before:
            return  # a piece, mostly
        if isinstance(event, CallDiscarded):
            level = logging.INFO if event.reason == "aborted" else logging.WARNING
            logger.log(
                level,
                "call %r of tool %r was discarded (%s)%s",
                call.call_id,
                call.name,
                event.reason,
                f": {event.detail!r}" if event.detail else "",
            )
        if before is None or call.state is not before.state:
            self.callstream.observers.call_changed(self, call)

    async def _tell_progress(self, call_id: str, data: Any) -> None:
        await self.callstream.report_progress(self._ledger[call_id], data, self.on_tool_progress)


def _limit_ending(excess: LimitExceeded) -> Ending:
    return Ending.by(excess, detail=str(excess))
