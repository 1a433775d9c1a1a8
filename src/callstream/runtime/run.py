"""A run: one turn of an agent, from its input to its end.

``core`` has what every run does. Leaving a run's context ends it: finished, failed if an exception leaves it, cancelled if
its task is cancelled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from callstream.calls import BEFORE_EXECUTING, HAS_OUTCOME, Call, CallState, Refusal, ToolResult, refusal
from callstream.errors import CallRejected, CannotGoOn, JournalError, LeaseLost, RunIdTaken, RunOver, UsageError
from callstream.events import (
    CallDiscarded,
    CallFailed,
    CallStarted,
    InputKept,
    RunEvent,
    RunResumed,
    RunStarted,
)
from callstream.journal import Journal
from callstream.runtime.claims import Claims, EarlierCalls, outcome_of
from callstream.runtime.continuing import INTERRUPTED, OnDivergence, Replay
from callstream.runtime.core import RunCore
from callstream.runtime.early import EarlyPolicy, EarlyRuns
from callstream.runtime.engine import Engine, OnRejected, RunObserver
from callstream.runtime.log import Ending, is_being_cancelled, wait_for_result, wait_until_done
from callstream.runtime.questions import Questions
from callstream.runtime.response import GivenResponse, Response, TextFilter, WithheldRun
from callstream.tools import CallClaims, Tool, call_claims
from callstream.wire.transcript import ArgumentText, json_text

_current_run: ContextVar[Run | None] = ContextVar("callstream_run", default=None)


def current_run() -> Run | None:
    """The run that this task or thread belongs to, None outside of one.

    A run that has ended does not count, nor does one of the process that this one was forked from.
    """
    run = _current_run.get()
    return run if run is not None and run.outcome is None and run.process == os.getpid() else None


def run_of_task() -> Run | None:
    """The run in which this task was started, even if it has ended."""
    return _current_run.get()


class Run(RunCore):
    """Made by ``Callstream.run`` or ``Callstream.start``."""

    engine: Engine[Run]

    def __init__(
        self,
        engine: Engine[Run],
        thread_id: str,
        run_id: str,
        principal: str | None = None,
        *,
        rejected: OnRejected | None = None,
    ) -> None:
        super().__init__(engine, thread_id, run_id, principal, rejected=rejected)
        self.early: EarlyRuns = EarlyRuns(self, self._write)
        questions = Questions(engine.journal, partial(Run.start, engine, as_current=False))
        self.earlier = EarlierCalls(self, questions)
        """The outcomes of calls in earlier attempts."""
        self.claims = Claims(self, self.early, self.earlier)
        """Finds the call that is meant when a tool is called in Python."""
        self.unfinished: dict[str, Response] = {}
        """Responses that continue with the answer to a request that brings their key."""
        self.starts_early = True
        """Whether tools may begin early. Not in a run that was not opened, since nothing would wait for them."""
        self.given_up: tuple[Call, ...] = ()
        """Calls that the previous attempt left unfinished: this attempt has given them up, and notifies their hooks."""
        self._invoking: frozenset[str] = frozenset()
        self._entered: tuple[Token[Run | None], Token[CallClaims | None], Callable[[], None]] | None = None

    @classmethod
    async def start(
        cls,
        engine: Engine[Run],
        started: RunStarted,
        run_id: str | None = None,
        *,
        numbered: bool = False,
        kept: InputKept | None = None,
        as_current: bool = True,
        host_traces: bool = False,
        rejected: OnRejected | None = None,
    ) -> Run:
        """See ``Callstream.start``. ``kept``: what the run needs to go on in another process, if it can."""
        start = partial(cls._start, engine, started, kept=kept, host_traces=host_traces, rejected=rejected)
        run = await (_start_numbered(engine, start, run_id) if numbered and run_id is not None else start(run_id))
        if as_current:
            run.make_current()
        return run

    @classmethod
    async def _start(
        cls,
        engine: Engine[Run],
        started: RunStarted,
        run_id: str | None,
        *,
        kept: InputKept | None,
        host_traces: bool,
        rejected: OnRejected | None,
    ) -> Run:
        thread_id, run_id = check_thread_id(started.thread_id), run_id or engine.new_id("run")
        run = cls(engine, thread_id, run_id, started.principal, rejected=rejected)
        run.host_traces = host_traces
        if kept is not None:
            run.keep()
        starting = asyncio.ensure_future(run._begin([started] if kept is None else [started, kept]))
        try:
            await wait_for_result(starting)
        except asyncio.CancelledError:
            await wait_until_done(asyncio.ensure_future(run._stop_when_started(starting)))
            raise
        return run

    @classmethod
    async def go_on(
        cls,
        engine: Engine[Run],
        run_id: str,
        *,
        on_divergence: OnDivergence = "fail",
        rejected: OnRejected | None = None,
        host_traces: bool = False,
    ) -> Run:
        """Goes on with a run that this process has taken over (``Journal.adopt``), from all that the journal has of it.

        Raises CannotGoOn if its agent cannot run again; in that case the run has been ended.
        """
        records = await engine.journal.read_whole([run_id])
        started = records[0].event
        assert isinstance(started, RunStarted), "every run that is taken over began with RunStarted"
        run = cls(engine, started.thread_id, run_id, started.principal, rejected=rejected)
        run.host_traces = host_traces
        replay = Replay(records)
        await run._restore(records)
        if (obstacle := replay.obstacle(run.calls)) is not None:
            await run.end_in_journal(Ending.failed("interrupted"))
            raise CannotGoOn(run_id, obstacle)
        engine.add_run(run_id, run)
        open_calls = [call for call in run.calls if call.call_id in replay.void_calls and not call.is_final]
        ended = [
            CallFailed(call.call_id, INTERRUPTED)
            if call.state is CallState.EXECUTING
            else CallDiscarded(call.call_id, "interrupted")
            for call in open_calls
        ]
        await run.record([RunResumed(replay.attempt + 1, replay.void), *ended])
        untouched = [call for call in open_calls if call.state in BEFORE_EXECUTING or call.is_being_written]
        run.given_up = tuple(run.call(call.call_id) for call in untouched)
        run.keep(replay=replay, on_divergence=on_divergence)
        run._observe()
        return run

    async def _begin(self, events: Sequence[RunEvent]) -> None:
        engine = self.engine
        try:
            await engine.journal.open()
            await self.record(events)
        except JournalError as error:
            # The run may be in the journal, and nothing else would end it.
            if self.is_doubtful and engine.active_run(self.run_id) is None:
                engine.end_retries.add(self.run_id, partial(self.end_in_journal, Ending.failed(str(error))))
            raise
        finally:
            engine.release_run_id(self.run_id)
        engine.add_run(self.run_id, self)
        self._observe()

    def _observe(self) -> None:
        self.engine.observers.run_started(self)
        if self.keeping is not None and (traced := self.keeping.traced()):
            self.submit(traced, lambda error: None)

    async def _stop_when_started(self, starting: asyncio.Future[None]) -> None:
        """Ends a run whose starter was cancelled: nothing else has it, so nothing else could end it."""
        await asyncio.wait({starting})
        if not starting.cancelled():
            starting.exception()  # retrieved, since nothing else will
        if self.seq:
            await self.stop("cancelled")

    def make_current(self) -> None:
        """Makes this the current run of the calling task, and of those that it starts from now on."""
        _current_run.set(self)
        call_claims.set(self.claims.find)

    def enter(self) -> None:
        """Makes this the current run of the calling task or thread until ``leave``, with the observers around it."""
        run, claims = _current_run.set(self), call_claims.set(self.claims.find)
        self._entered = run, claims, self.engine.observers.run_entered(self)

    def leave(self) -> None:
        if self._entered is not None:
            run, claims, leave = self._entered
            try:
                _current_run.reset(run)
                call_claims.reset(claims)
                leave()
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
        own_tools: Mapping[str, Tool[Any]] | None = None,
        text_filters: Sequence[TextFilter] = (),
    ) -> Response:
        """A response of a model, to be read into this run: ``async with run.response("anthropic") as response``.

        ``tools`` are the request's tools, JSON Schemas by name; see ``decoder_for``. ``offered``: all names that its calls
        may have, where that is known; a call with another name is refused. ``early``: whether tools of its calls may begin
        while it is being read. ``withheld``: nothing of it is recorded; its host records what the application makes of it.
        ``own_tools``: the tools that names mean to the agent that asks; other names are looked up among the tools of the
        Callstream. ``text_filters`` decide which of its text is recorded.
        """
        self.tool_use.declared.update(tools or ())
        new_call_id = new_call_id or self.engine.new_call_id
        response_id = self.engine.new_id("response")
        policy: EarlyPolicy = early if self.starts_early else "never"
        together: list[str] = []

        def expect(started: CallStarted, call_id: str, text: ArgumentText | None, former: str | None) -> None:
            if former is not None:
                self.tool_use.forget(former)
            if text is not None:
                self._ledger.lend(call_id, text)
            is_offered = self.tool_use.expect(call_id, started.name, offered, together)
            own = (own_tools or {}).get(started.name)
            if own is not None:
                self._barrier.own_tools[call_id] = own
            self.early.expect(call_id, policy if is_offered else "never", own)

        tool = current_tool.get()
        return Response(
            WithheldRun(self) if withheld else self,
            wire,
            response_id,
            new_call_id=new_call_id,
            tools=tools,
            author=author,
            within=tool[1] if tool is not None and tool[0] is self else None,
            expect=None if withheld else expect,
            text_filters=text_filters,
        )

    async def end_unfinished(self) -> None:
        """Called when nothing will ask for the rest of paused responses: their open calls are discarded."""
        while self.unfinished:
            _, response = self.unfinished.popitem()
            await response.end()

    # -- tools --

    def refusals(self) -> list[Refusal]:
        """The calls whose tools will not run, each with a sentence for the model, in the order of the calls.

        They were rejected, their hooks failed, there is no such tool, or the model did not finish them, did not write
        JSON, or wrote arguments that do not fit. Calls that were given up because the connection broke or the run was
        stopped are not among them. The caller has to pass them on to the model.
        """
        return self.tool_use.tell_refusals()

    async def invoke(self, call_id: str) -> Any:
        """Runs the tool that Callstream was given for this call, from barrier to result, and returns the result.

        An exception of the tool is recorded and raised unchanged. CallRejected is raised if the tool must not run, with a
        text for the model: a hook rejected the call, an argument is missing or unknown, or there is no such tool. If the run
        is ended meanwhile, the tool is cancelled (a sync one runs on in its thread) and RunOver is raised.
        """
        self._invoking |= {call_id}
        try:
            return await self._invoke(call_id)
        finally:
            self._invoking -= {call_id}

    async def _invoke(self, call_id: str) -> Any:
        if (early := self.early.begun(call_id)) is not None:
            await self.ready(call_id)
            return await early.wait()
        earlier = await self.earlier.resolve(call_id, self.engine.find_tool(self.call(call_id).name))
        if earlier is not None and earlier.state in HAS_OUTCOME:
            return outcome_of(earlier)
        typed = await self.convert(call_id)
        call = await self.execute(call_id) if earlier is None else earlier
        tool = self.engine.tool(call.name)
        running = asyncio.ensure_future(self.engine.call_tool(tool, call, self.progress_of(call_id), typed))
        undo = self.on_stop(lambda reason: running.cancel())
        try:
            result = await running
        except BaseException as error:
            if not self.is_ending:
                await self.fail(call_id, error)
            elif isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
                raise RunOver(f"run {self.run_id!r} was ended while tool {call.name!r} ran") from None
            raise
        finally:
            undo()
        await self.record_outcome(call_id, result)
        return result

    async def run_tools(self) -> list[ToolResult]:
        """Runs the tool of every call whose arguments are complete, and returns what to tell the model, call by call.

        This is the part of a loop between two requests. Each call is in one of these lists once: with its result, with the
        error that its tool raised, or with the reason why its tool did not run. Tools run one after the other, in the
        order of the calls. If several tasks ask at once, the first that finds a call complete gets it. Errors that are not
        about a single call are raised: RunOver, or an error of the journal.
        """
        results = []
        for call_id in [call.call_id for call in self.calls]:
            if call_id in self.tool_use.told or call_id in self._invoking or self.hides(call_id):
                continue
            self.tool_use.told.add(call_id)
            result = None
            try:
                result = await self._result(self.call(call_id))
            finally:
                if result is None:
                    self.tool_use.told.discard(call_id)
            if result is not None:
                results.append(result)
        return results

    async def _result(self, call: Call) -> ToolResult | None:
        """What to tell the model about a call; None if there is nothing to tell yet."""
        result_with = partial(ToolResult, call.call_id, call.name, call.wire_id)
        early = self.early.begun(call.call_id)
        has_run = early is not None and not early.is_joined and not call.is_being_written
        is_earlier = call.state is not CallState.DISCARDED and self.earlier.has(call.call_id)
        if call.state is CallState.ARGS_COMPLETE or is_earlier or (has_run and call.state is not CallState.DISCARDED):
            try:
                value = await self.invoke(call.call_id)
            except CallRejected as rejected:
                return result_with(str(rejected), is_error=True)
            except (Exception, asyncio.CancelledError) as error:
                failed = self.call(call.call_id)
                # CancelledError may come from something that the tool has waited for.
                is_cancelled = isinstance(error, asyncio.CancelledError) and is_being_cancelled()
                if self.is_ending or is_cancelled or failed.state is not CallState.FAILED:
                    raise  # it was not the tool
                return result_with(failed.error or "", is_error=True)
            return result_with(value if isinstance(value, str) else json_text(value), value=value)
        return result_with(refusal(call), is_error=True) if self._barrier.is_refused(call) else None

    def begin_tool(self) -> None:
        self.make_current()
        call_claims.set(None)  # this is the tool itself
        current_model_call.set(None)

    def handed_over(self) -> frozenset[str]:
        return self.claims.handed_over()


async def _start_numbered(engine: Engine[Run], start: Callable[[str], Awaitable[Run]], wanted: str) -> Run:
    """Starts a run with the wanted id, or with that id and a number if the journal has such a run."""
    if engine.reserve_run_id(wanted):
        try:
            return await start(wanted)  # most clients make a new id each time, so the journal is not asked first
        except (LeaseLost, RunIdTaken, RunOver):
            pass
        finally:
            engine.release_run_id(wanted)
    return await start(await engine.free_run_id(wanted))


RunEngine: TypeAlias = Engine[Run]
Observer: TypeAlias = RunObserver[Run]
"""Is notified of runs and calls."""


def check_thread_id(thread_id: Any) -> str:
    if isinstance(thread_id, str) and thread_id:
        return thread_id
    raise UsageError(f"expected the id of a thread, a text that is not empty, got {thread_id!r}")


class ModelCall(msgspec.Struct, eq=False):
    """One call of a model by a host, so that a response is read in one place only.

    A host (a framework's plugin) opens a model call before its framework asks the model; if the request passes the tap, the
    tap marks the call as read. The host looks at the framework's own partial events only if the call stayed unmarked.
    """

    run: Run
    author: str | None = None
    collapses: Callable[[str], bool] | None = None
    """For which tools calls should reach the SDK whole; None leaves it to the tap's setting."""
    refuses: bool = False
    """Whether the host refuses rejected calls itself, before their tools run, so that they may be forwarded."""
    reports: bool = False
    """Whether the host reports the run's input and the results of its tools itself: requests are not read for them."""
    new_call_id: Callable[[], str] | None = None
    streams: Callable[[str], bool] | None = None
    """For which tools the provider may be asked to stream the arguments; None leaves it to the tap's setting."""
    withholds: bool = False
    """Whether the application may still change the answer, so that the host records it afterwards."""
    tools: Mapping[str, Tool[Any]] = {}
    """The tools that names mean to the agent that asks."""
    joins_text: bool | None = None
    """Whether text reaches the SDK passage by passage; None leaves it to the tap's setting."""
    text_filters: Sequence[TextFilter] = ()
    """Filters that decide which text of the answer is recorded, besides the tap's own."""
    read_by_tap: bool = False
    responses: list[Response | GivenResponse] = []
    """The responses that were read for it, in order: more than one if the host itself asked again."""


current_tool: ContextVar[tuple[Run, str] | None] = ContextVar("callstream_tool", default=None)
"""The run and the call of the tool in whose context this is, if a host sets it: models that are asked there work for it."""

current_model_call: ContextVar[ModelCall | None] = ContextVar("callstream_model_call", default=None)


_LOOK_SECONDS: Final = 0.5
_LEASES: Final = 2
"""How many lease times to wait for a process that does not renew its lease: a lease may just have begun."""


def check_journal(journal: Journal) -> None:
    """Raises UsageError if no other process could go on with what is in the journal."""
    if not journal.is_persistent:
        raise UsageError(
            "a run that continues needs a journal on disk, such as sqlite:///calls.db; this one is in memory"
        )
    if journal.redacts:
        raise UsageError(
            "a run that continues needs a journal that keeps what models say as it came; this one has a redact"
        )


def journal_obstacles(journal: Journal) -> list[str]:
    """Why no other process could go on with what is in the journal; empty if one could."""
    found = {"the journal is in memory": not journal.is_persistent, "the journal has a redact": journal.redacts}
    return [reason for reason, holds in found.items() if holds]


def kept_for(run_id: str) -> InputKept:
    """Marks a run as one that its own program goes on with: when the program is started again, it takes up the run of that
    id where the last process left it. No other process looks for such a run, since its app is named after the run's id.
    """
    return InputKept(_app(run_id), "")


def _app(run_id: str) -> str:
    return f"program of {run_id}"


async def take_up(
    engine: RunEngine,
    thread_id: str,
    run_id: str,
    principal: str | None,
    *,
    on_divergence: OnDivergence,
    rejected: OnRejected | None,
) -> Run | None:
    """Goes on with the run of that id; None if the journal has none.

    If a process no longer works on it, waits until that process's lease has run out. Raises RunOver if the run has ended,
    RunIdTaken if this or another process works on it, and CannotGoOn if it cannot go on; in that case it has been ended.
    """
    journal, clock = engine.journal, asyncio.get_running_loop().time
    until = clock() + journal.lease_ttl * _LEASES
    while True:
        rows = await journal.runs(run_id=run_id, limit=1)
        if not rows:
            return None
        (row,) = rows
        if (row.thread_id, row.principal) != (thread_id, principal):
            raise UsageError(f"run {run_id!r} belongs to thread {row.thread_id!r}, or to another principal")
        if row.outcome is not None:
            why = f" ({row.reason})" if row.reason else ""
            raise RunOver(f"run {run_id!r} has {row.outcome}{why}; a new one needs another id")
        if engine.active_run(run_id) is not None:
            raise RunIdTaken(f"this Callstream works on run {run_id!r} already")
        if await journal.adopt({_app(run_id)}, run_id):
            return await Run.go_on(engine, run_id, on_divergence=on_divergence, rejected=rejected)
        await journal.sweep()  # it may have been tried too often
        if clock() >= until:
            raise RunIdTaken(
                f"another process works on run {run_id!r}, or the Callstream that has handed it over is not closed yet"
            )
        await asyncio.sleep(_LOOK_SECONDS)
