"""What every run does: it records events, keeps its ledger, waits for hooks, and ends.

Every event of a run passes ``RunLog.submit``: it goes to the journal first, then to the ledger, then to the hooks. So
nothing is shown that a crash could still lose, and hooks see only what the journal has. (The one exception is an end that
the journal would not take at first.) A run belongs to the event loop that started it. However it ends, its hooks settle
first, and afterwards each of its calls is final or awaits an answer.

The end of a run begins once, with whatever ends the run first; anything else that would end it waits for that same end.
Nothing is recorded after it. ``is_ending`` is set before the end's task first runs, and ``record`` refuses from then on.
Events that were accepted before are still recorded. One may start a call, so the hooks are closed again afterwards. By
then hooks have settled and progress is closed, so the end is all that is left to write.

Tools that run before their response has ended are built on ``RunCore``, which knows only their interface, ``EarlyTools``.
``Run`` puts the two together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

from callstream.calls import CALL_EVENTS, Call, CallState, Ledger
from callstream.errors import (
    CallRejected,
    InvalidArguments,
    JournalError,
    LeaseLost,
    LimitExceeded,
    Reject,
    RunOver,
    TransitionError,
    UsageError,
)
from callstream.events import (
    PIECES_OF_TEXT,
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    Question,
    Record,
    ReplayRule,
    RequestEvent,
    ResponseEnded,
    RunEvent,
    RunOutcome,
)
from callstream.runtime.answers import Answers, Directory
from callstream.runtime.barrier import Barrier, CallListener, ToolUse, mistake
from callstream.runtime.continuing import Keeping, KeptTurn, OnDivergence, Replay
from callstream.runtime.engine import Engine, OnRejected, check_rejected
from callstream.runtime.log import Ending, EventsThen, RunLog, TextLimits, Then, describe, submitted, wait_for_result
from callstream.runtime.progress import ProgressFeed, ProgressHandler
from callstream.tools import Progress, Tool

logger = logging.getLogger("callstream")


class EarlyTools(ABC):
    """The tools of a run that begin before their response has ended."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether a tool is running that the end of the run waits for."""

    @abstractmethod
    def begun(self, call_id: str) -> object | None:
        """The early run of that call's tool, if it has begun."""

    @abstractmethod
    def listener(self, call: Call) -> CallListener | None:
        """Listens to a call, which has started, on behalf of its tool. None if the tool does not begin early."""

    @abstractmethod
    async def wait_for_refusal(self, call_id: str) -> None:
        """Waits until a refusal on which the call's tool has decided is recorded."""

    @abstractmethod
    def abort(self, ending: Ending) -> None:
        """Called when the run ends: tools whose arguments are not whole are notified, the others are cancelled."""

    @abstractmethod
    async def close(self) -> None:
        """Waits for the tools."""


class RunCore(ABC):
    """What every run does; ``Run`` gives it its ``early`` tools."""

    early: EarlyTools
    """The tools that run before the response has ended."""

    def __init__(
        self,
        engine: Engine[Any],
        thread_id: str,
        run_id: str,
        principal: str | None = None,
        *,
        rejected: OnRejected | None = None,
    ) -> None:
        settings = engine.settings
        rejected = settings.rejected if rejected is None else rejected
        check_rejected(rejected)
        self.engine = engine
        self.thread_id = thread_id
        self.run_id = run_id
        self.principal = principal
        self.rejected: OnRejected = rejected
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        self.outcome: RunOutcome | None = None
        """How the run ended; None while it is running."""
        self.reason: str | None = None
        """Why the run failed or was cancelled."""
        self.error: BaseException | None = None
        """The exception that failed the run, if it was one."""
        self.host_traces = False
        """Whether the run's host emits OpenTelemetry spans of its own for agents and tools."""
        self._discard_callbacks: list[Callable[[], object]] = []
        self.on_tool_progress: ProgressHandler | None = None
        """Replaces the Callstream's own handler in this run."""
        self.keeping: Keeping | None = None
        """Keeps what the run needs to go on in another process; None if it cannot."""
        self._ledger = Ledger()
        self._log = RunLog(
            engine.journal,
            run_id,
            self._ledger,
            TextLimits(max_args_bytes=settings.max_args_bytes, max_run_bytes=settings.max_run_bytes),
            apply=self._apply,
            on_excess=self._end_at_limit,
        )
        self._failure_callbacks: list[Callable[[Exception], object]] = []
        self._barrier = Barrier(engine, self._ledger, self._write, self._tell_failure)
        self.tool_use = ToolUse(self._ledger, self._barrier, rejected, self.hides)
        self._listeners: dict[str, tuple[CallListener, ...]] = {}
        """Listeners to the events of each call: its hooks, and its tool if that may begin early. Most calls have neither."""
        self.schedule: Callable[[Callable[[], object]], None] = partial(engine.journal.schedule, run_id)
        """Calls work that will record something, together with such work of other runs: see ``Journal.schedule``."""
        self.directory = Directory(engine.journal, thread_id, principal)
        """Which call of the thread an id means."""
        self._answers = Answers(self._ledger, self.directory)
        self._feeds: dict[str, ProgressFeed] = {}
        """The progress of the calls whose tools run."""
        self.is_ending = False
        """Whether the run has ended, or is being ended."""
        self.is_left = False
        """Whether it was left for another process to go on with. Then it has ended in this process only."""
        self._stop_callbacks: list[Callable[[str], object]] = []
        self._end: asyncio.Task[Exception | None] | None = None

    @property
    def callstream(self) -> Any:
        """Deprecated: use the run's ``engine``."""
        warnings.warn("use run.engine, not run.callstream", DeprecationWarning, stacklevel=2)
        return self.engine.owner

    @abstractmethod
    def begin_tool(self) -> None:
        """Called in the task that is about to run a tool of this run."""

    @abstractmethod
    def handed_over(self) -> frozenset[str]:
        """The calls whose tools have run, or may have, although no outcome was observed."""

    # -- what is known --

    @property
    def must_judge(self) -> bool:
        """Whether the program must not get any answer that guards could not read."""
        return self.rejected == "say"

    @property
    def calls(self) -> list[Call]:
        """The run's calls, in the order in which they started."""
        return list(self._ledger)

    def call(self, call_id: str) -> Call:
        return self._ledger[call_id]

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process has taken the run over, or is to do so: what happens here is no longer part of it."""
        return self.is_left or self._log.is_lost

    @property
    def seq(self) -> int:
        """The number of the last record of the run."""
        return self._log.seq

    @property
    def is_doubtful(self) -> bool:
        """Whether the journal may have more of the run than was acknowledged."""
        return self._log.is_doubtful

    def args_bytes(self, call_id: str) -> int:
        """How many bytes of argument text, in UTF-8, this run has for the call."""
        return self._log.text.args_bytes(call_id)

    def hook_seconds(self, call_id: str) -> float | None:
        """How long the call's hooks have run in total; None if it has none."""
        return self._barrier.seconds(call_id)

    def tighten(self, limits: TextLimits) -> None:
        """Applies these limits to the run, besides those that it has."""
        self._log.text.tighten(limits)

    # -- what happens to it --

    async def record(
        self, events: Sequence[RunEvent] | EventsThen, *, response_id: str | None = None, author: str | None = None
    ) -> None:
        """Journals the events, then applies them to the ledger, then hands them to the hooks.

        ``events`` may be a function that returns them: it is called when everything submitted before has been applied. A
        caller that is cancelled stops waiting at once; the events are recorded nevertheless, before any later ones. Events
        that the wire still brings for a call that was discarded meanwhile are left out. Text beyond a limit raises
        LimitExceeded and fails the run, whatever its host does with the exception: see ``TextLimits``.
        """
        self._check_open()
        if self.replay is not None and not callable(events):
            events = self.replay.unknown(events)
        await self._write(events, response_id, author)
        if self._barrier.failure is not None:
            raise self._barrier.failure

    def submit(
        self,
        events: Sequence[RunEvent] | EventsThen,
        then: Then,
        *,
        response_id: str | None = None,
        author: str | None = None,
        context: Context | None = None,
    ) -> None:
        """``record`` without waiting: ``then`` is called later, with the error that ``record`` would have raised, or None.

        Unlike with ``record``, events that an earlier attempt of the run has recorded are not left out: submitted events
        come from new responses. Whatever the events start, such as hooks, runs in the ``context``: the caller's, unless
        another is given.
        """
        if self.is_ending:
            self.loop.call_soon(then, self._over())
        else:
            then = partial(self._submitted, then)
            self._log.submit(events, then, response_id=response_id, author=author, context=context)

    def _submitted(self, then: Then, error: Exception | None) -> None:
        then(error or self._barrier.failure)

    async def receive(self, events: Sequence[RequestEvent], *, author: str | None = None) -> None:
        """Records what is new in a request (``results_in``): messages, and results of calls that have none yet."""
        receiving = self._answers.receive(events, partial(self.record, author=author))
        await wait_for_result(asyncio.ensure_future(receiving))

    def name_call(self, wanted: str) -> str:
        """A ``call_id`` that no call of this run has: the wanted one, or that with a number. The journal still refuses it if
        another run has it.
        """
        return self._ledger.name_for(wanted)

    async def is_free(self, call_id: str) -> bool:
        """Whether no call in the journal has this ``call_id``."""
        return await self.engine.journal.free_call_id(call_id) == call_id

    async def free_call_id(self, wanted: str) -> str:
        """A ``call_id`` that no call in the journal has: the wanted one, or that with a number."""
        return self._ledger.name_for(await self.engine.journal.free_call_id(wanted))

    # -- tools --

    async def convert(
        self, call_id: str, tool: Tool[Any] | None = None, args: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The arguments for the tool, converted to its annotated types, after the call's hooks have settled.

        None if the call has nothing to convert. If the tool cannot be called with its arguments, the call is discarded and
        ``CallRejected`` raised. ``tool``: the tool, if a host runs it. ``args``: the arguments, if not those of the call.
        """
        call = await self.ready(call_id)
        if call.state is not CallState.ARGS_COMPLETE:
            return None
        is_hosts = tool is not None
        known = self.engine.tools
        tool = tool or self._barrier.own_tools.get(call_id) or known.get(call.name)
        absent = None if is_hosts else self.tool_use.absence(call, tool, known)
        if absent is not None:
            await self.record([CallDiscarded(call_id, "rejected", absent)])
            raise self.rejection(call_id)
        if tool is None:
            raise UsageError(f"tool {call.name!r} was declared to the model but not given to Callstream(tools=…)")
        if call.encoding != "json" or mistake(call) is not None:
            return None
        try:
            return tool.arguments.convert(call.args or {} if args is None else args, check_names=not is_hosts)
        except InvalidArguments as invalid:
            await self.record([CallDiscarded(call_id, "invalid", invalid.detail)])
            raise self.rejection(call_id) from None

    async def execute(self, call_id: str, *, is_safe: bool = False) -> Call:
        """The barrier before a tool: waits for the call's hooks, records that it executes, returns it with arguments.

        Raises CallRejected if it was discarded, TransitionError if its arguments are not complete, and RunOver if the run
        was ended. In all these cases the tool must not run. ``is_safe``: its host vouches that running it twice is harmless.
        """
        if self.early.begun(call_id) is not None:
            raise TransitionError(f"the tool of call {call_id!r} has begun early; run.invoke gives its result")
        call = await self.prepare(call_id)
        tool = self._barrier.own_tools.get(call_id) or self.engine.find_tool(call.name)
        rule: ReplayRule = "safe" if is_safe else "unsafe" if tool is None else tool.replay
        await self.record([CallExecuting(call_id, rule)])
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
        is_over = self.is_ending and not self._barrier.is_refused(call)
        return self._over() if is_over else self._barrier.rejection(call)

    def is_cut(self, call_id: str) -> bool:
        """Whether a hook rejected the call and does not want the rest of its response."""
        error = self._barrier.hook_error(call_id)
        return isinstance(error, Reject) and error.cut

    async def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done. Waits for its arguments if they are not complete."""
        await self.early.wait_for_refusal(call_id)
        return await self._barrier.settled(call_id)

    async def complete(self, call_id: str, result: Any = None) -> None:
        """The tool has returned."""
        await self.close_progress(call_id)
        await self.record([CallReturned(call_id, result)])

    async def record_outcome(self, call_id: str, result: Any, error: BaseException | None = None) -> None:
        """The tool has returned, or raised the error."""
        if error is not None:
            await self.fail(call_id, error)
            return
        try:
            await self.complete(call_id, result)
        except (RunOver, TransitionError):
            raise
        except UsageError as unfit:  # the tool returned something that JSON cannot express
            await self.fail(call_id, unfit)
            raise

    async def fail(self, call_id: str, error: str | BaseException) -> None:
        """The tool has failed."""
        await self.close_progress(call_id)
        await self.record([CallFailed(call_id, error if isinstance(error, str) else describe(error))])

    async def await_answer(self, call_id: str, question: Question | None = None, *, is_paused: bool = False) -> Call:
        """Leaves the call to be answered by a client or a person. It outlives the run, until ``answer`` is called for it.

        ``question`` says what is asked, where the arguments do not. ``is_paused``: the answer will come to another call,
        which asks about this one.
        """
        if self.early.begun(call_id) is not None:
            raise UsageError(f"the tool of call {call_id!r} has begun early, so it is too late to ask about it")
        if self._ledger[call_id].state is not CallState.EXECUTING:
            await self.ready(call_id)
            self._claim(call_id)
        await self.record([CallAwaiting(call_id, question, is_paused)])
        return self._ledger[call_id]

    async def answer(
        self, call_id: str | Call, result: Any = None, *, error: str | None = None, message_id: str | None = None
    ) -> bool:
        """Records the answer to a call of this thread that awaits one, named by its ``call_id`` or its wire id, or given as
        a ``Call``.

        ``message_id`` is that of the message in which the client sent the answer, which is then not sent back to it. False
        if the call has its answer already, or another run is executing it. UsageError if this thread has no such call.
        """
        return await self._answers.answer(call_id, self.record, result, error=error, message_id=message_id)

    async def resume(self, call_id: str) -> Call | None:
        """Takes up a call of this thread that awaits an answer, by its ``call_id`` or its wire id, so that it can execute.

        None if the call has its answer already, or is executing in another run that has taken it up. Of two runs that
        take it up at once, one executes it; ``execute`` and ``invoke`` raise TransitionError in the other. Raises UsageError
        if this thread has no such call.
        """
        return await self._answers.awaiting(call_id)

    async def progress(self, call_id: str, data: Any) -> None:
        """Reports progress of an executing call to its interface; the model never sees it."""
        await self.record([CallProgressed(call_id, data)])
        await self._tell_progress(call_id, data)

    async def close_progress(self, call_id: str) -> None:
        """Called when the tool has ended: its last reports are recorded and handled, and no more follow."""
        feed = self._feeds.pop(call_id, None)
        if feed is not None:
            await feed.aclose()

    def progress_of(self, call_id: str) -> Progress:
        """The ``Progress`` to hand to the tool of an executing call."""
        settings = self.engine.settings
        feed = self._feeds[call_id] = ProgressFeed(
            call_id,
            self._write,
            self._tell_progress,
            interval=settings.progress_interval,
            merge=settings.merge_progress,
        )
        return Progress(feed.report)

    # -- the end --

    async def finish(self) -> None:
        """Ends the run as finished, after all hooks have settled. Does nothing if it has ended.

        Raises the error of a hook that failed the run instead (``fail_run``), as leaving the run's context does.
        """
        failure = await self._reach(Ending.finished())
        if failure is not None:
            raise failure

    async def stop(self, reason: str = "stopped") -> None:
        """Ends the run as cancelled: hooks are aborted, open calls discarded, upstream streams closed."""
        await self._reach(Ending.cancelled(reason))

    async def end(self, error: BaseException | None) -> None:
        """Ends the run according to what ended its work: None finishes it, a cancellation cancels it, any other exception
        fails it.

        Unlike ``finish``, raises nothing if a hook fails the run: ``outcome`` shows it.
        """
        await self._reach(Ending.by(error))

    async def hand_over(self) -> bool:
        """Leaves the run as it is for another process. False, with nothing done, if no process could go on with it."""
        if self.keeping is None or self.keeping.is_given_up or self.is_ending:
            return False
        self.is_left = True
        await self._reach(Ending.left())
        return True

    def _begin_end(self, ending: Ending) -> None:
        """Ends the run in that way, unless its end has begun."""
        if self._end is None:
            self.is_ending = True
            self._end = asyncio.ensure_future(self._end_here(ending) if self.is_left else self._close(ending))

    async def _reach(self, ending: Ending) -> Exception | None:
        """Ends the run and waits for it. Returns the error of the hook that made the run fail, if one did."""
        self._begin_end(ending)
        assert self._end is not None, "it has begun"
        # Hooks and early tools end in their own time, which is bounded. If none is running, it is the store that hangs.
        return await wait_for_result(self._end, while_=lambda: self._barrier.runs_hooks or self.early.is_running)

    async def _end_here(self, ending: Ending) -> None:
        """Ends this process's work on the run, but not the run. Hooks undo here what they began for unfinished calls."""
        self._call_back(ending)
        self.early.abort(ending)
        await self._settle_hooks(ending)
        self._finish(ending)

    async def _close(self, ending: Ending) -> Exception | None:
        ending = ending.after(self.handed_over())
        self._call_back(ending)
        self.early.abort(ending)
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            await feed.aclose(wait=False)
        for call in self._ledger.open_calls():
            is_untouched = self.hides(call.call_id) and call.state is CallState.ARGS_COMPLETE
            if is_untouched and ending.discards(call) is not None:
                self._barrier.listener(call)  # its hooks ran in an earlier attempt; here they only get the end
        await self._settle_hooks(ending)
        await self.early.close()
        failure = self._barrier.failure if ending.outcome == "finished" else None
        if failure is not None:
            ending = ending.failed_by_hook(failure)
        try:
            await self._record_end(ending)
        except LeaseLost as lost:
            ending = Ending.failed("interrupted", error=lost)  # the process that took it over has ended it
            raise
        except JournalError:
            self.engine.end_retries.add(self.run_id, partial(self.end_in_journal, ending))
            raise
        finally:
            self._finish(ending)
        return failure

    async def _settle_hooks(self, ending: Ending) -> None:
        await self._barrier.close(ending)
        await self._write(lambda: ())  # when it is called, everything that had passed the check has been applied
        self.early.abort(ending)
        await self._barrier.close(ending)

    async def _record_end(self, ending: Ending) -> None:
        if not self.is_doubtful:
            try:
                await self._write(lambda: ending.events(self._ledger.open_calls()))
                return
            except TransitionError:
                pass  # another run has answered a call that this one was executing: the journal knows
        await self.end_in_journal(ending)

    def _finish(self, ending: Ending) -> None:
        self.outcome, self.reason, self.error = ending.outcome, ending.reason, ending.error
        self.engine.remove_run(self.run_id)
        self.engine.observers.run_ended(self)

    def _call_back(self, ending: Ending) -> None:
        callbacks, self._stop_callbacks = self._stop_callbacks, []  # they need not live as long as the run is known
        for callback in callbacks:
            try:
                callback(ending.reason or ending.outcome)
            except Exception:
                logger.exception("a callback raised at the end of run %s", self.run_id)

    async def end_in_journal(self, ending: Ending) -> None:
        """Ends the run by what the journal has of it, which may be more than was acknowledged. It may be called again."""
        await self._log.end(ending)

    def on_stop(self, callback: Callable[[str], object]) -> Callable[[], None]:
        """Has the callback called, on the run's loop, when the run ends. Returns a function that takes that back.

        An exception of the callback is logged, and the run ends nevertheless.
        """
        self._stop_callbacks.append(callback)
        return lambda: self._stop_callbacks.remove(callback) if callback in self._stop_callbacks else None

    def on_failure(self, callback: Callable[[Exception], object]) -> Callable[[], None]:
        """Has the callback called, on the run's loop, with the error of a hook that makes the run fail (``fail_run``).

        For whatever waits for something else than the run: the run itself raises the error where its host uses it next, and
        ends when its host leaves it. Returns a function that takes that back.
        """
        self._failure_callbacks.append(callback)
        return lambda: self._failure_callbacks.remove(callback) if callback in self._failure_callbacks else None

    def _tell_failure(self, failure: Exception) -> None:
        for callback in list(self._failure_callbacks):
            callback(failure)

    def on_discard(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Has the callback called, on the run's loop, whenever a call is discarded. Returns what takes that back."""
        self._discard_callbacks.append(callback)
        return lambda: self._discard_callbacks.remove(callback) if callback in self._discard_callbacks else None

    # -- going on --

    @property
    def replay(self) -> Replay | None:
        """What earlier attempts have left; None if this is the run's first."""
        return None if self.keeping is None else self.keeping.replay

    def hides(self, call_id: str) -> bool:
        """Whether the program does not know the call yet: an earlier attempt made it, in a turn that was not given back."""
        return self.replay is not None and self.replay.hides(call_id)

    def keep(self, *, replay: Replay | None = None, on_divergence: OnDivergence = "fail") -> None:
        """From now on, keeps what is needed to go on in another process."""
        new_id = partial(self.engine.new_id, "response")
        self.keeping = Keeping(self.record, new_id, replay=replay, on_divergence=on_divergence)

    async def _restore(self, records: Sequence[Record]) -> None:
        """Restores the run from these records, which are all that the journal has of it. Hooks are not notified."""
        for record in records:
            event = record.event
            if not isinstance(event, CALL_EVENTS):
                continue
            if not isinstance(event, CallStarted) and event.call_id not in self._ledger:
                answered = await self.engine.journal.call(event.call_id)
                if answered is not None:
                    self._ledger.adopt(answered)
            elif self._ledger.get(event.call_id) is None or self._ledger[event.call_id].run_id == self.run_id:
                self._ledger.apply(event, run_id=self.run_id, thread_id=self.thread_id)
        self._log.restore([record.event for record in records], records[-1].seq)

    def give_again(self, turn: KeptTurn, tools: Mapping[str, Tool[Any]]) -> None:
        """Takes a response of an earlier attempt as given back. Hooks of its calls whose tools have not begun run now."""
        for call_id in turn.call_ids:
            call = self._ledger[call_id]
            own = tools.get(call.name)
            if own is not None:
                self._barrier.own_tools[call_id] = own
            hear = self._barrier.listener(call) if call.state is CallState.ARGS_COMPLETE else None
            if hear is not None:
                self._listeners[call_id] = (hear,)
                hear(ArgsAppended(call_id, call.args_json or ""), call, self.seq)
                hear(CallCompleted(call_id, call.args_json), call, self.seq)

    # -- inside --

    async def _write(
        self, events: Sequence[RunEvent] | EventsThen, response_id: str | None = None, author: str | None = None
    ) -> None:
        """Does what ``record`` does, but also while the run is being ended: hooks may still give up their calls then."""
        if events:
            await submitted(partial(self._log.submit, events, response_id=response_id, author=author))

    def _end_at_limit(self, excess: LimitExceeded) -> None:
        self._begin_end(Ending.by(excess, detail=str(excess)))

    def _check_open(self) -> None:
        if self.is_ending:
            raise self._over()

    def _over(self) -> RunOver:
        return RunOver(f"run {self.run_id!r} is over")

    async def ready(self, call_id: str) -> Call:
        """The call with all its arguments, after its hooks have settled. Raises if its tool must not run."""
        await self.early.wait_for_refusal(call_id)
        call = await self._barrier.ready(call_id)
        if self.is_ending or call.state is CallState.DISCARDED:
            raise self.rejection(call_id)
        return call

    def _claim(self, call_id: str) -> None:
        if not self._barrier.claim(call_id):
            raise TransitionError(f"call {call_id!r} is {self._ledger[call_id].state}; its tool must not run again")

    def _apply(self, events: Sequence[RunEvent], first_seq: int) -> None:
        for seq, event in enumerate(events, first_seq):
            if type(event) not in PIECES_OF_TEXT:
                self._apply_one(event, seq)

    def _apply_one(self, event: RunEvent, seq: int) -> None:
        if not isinstance(event, CALL_EVENTS):
            if isinstance(event, MessageReceived):
                self._answers.keep(event)
            elif isinstance(event, ResponseEnded):
                self.engine.observers.response_ended(self, event)
            return
        before = self._ledger.get(event.call_id)
        call = self._ledger.apply(event, run_id=self.run_id, thread_id=self.thread_id)
        if isinstance(event, CallStarted):
            listeners = self._barrier.listener(call), self.early.listener(call)
            if any(listeners):
                self._listeners[call.call_id] = tuple(hear for hear in listeners if hear is not None)
        for hear in self._listeners.get(event.call_id, ()):
            hear(event, call, seq)
        if call is before:
            return  # a piece, mostly
        if isinstance(event, CallDiscarded):
            for callback in list(self._discard_callbacks):
                callback()
            level = logging.INFO if event.reason == "aborted" else logging.WARNING
            logger.log(
                level,
                "call %r of tool %r was discarded (%s)%s",
                call.call_id,
                call.name,
                event.reason,
                f": {event.detail!r}" if event.detail and event.reason != "invalid" else "",  # that quotes arguments
            )
        if before is None or call.state is not before.state:
            self.engine.observers.call_changed(self, call)

    async def _tell_progress(self, call_id: str, data: Any) -> None:
        await self.engine.report_progress(self._ledger[call_id], data, self.on_tool_progress)
