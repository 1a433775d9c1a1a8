"""Callstream: the object that programs use. It owns the engine of its runs, the tap for their clients, and a loop for sync
programs.

Constructing it opens nothing. The journal opens itself at the first use, on a thread of its own, so one Callstream may
serve several event loops; ``aclose`` or ``async with`` closes it. A sync program uses the same object, with ``with`` and
``close``: its runs and responses live on the Callstream's own event loop, in a thread that starts when it is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from callstream.calls import Call, Refusal, ToolResult
from callstream.errors import CallstreamError, UsageError
from callstream.events import Question, RunEvent, RunOutcome, RunStarted
from callstream.guards import Guard
from callstream.journal import Journal, open_journal
from callstream.runtime import Engine, Observer, Observers, Run, Settings
from callstream.runtime.answers import OrphanedCalls
from callstream.runtime.continuing import OnDivergence, check_on_divergence
from callstream.runtime.engine import OnRejected
from callstream.runtime.ownloop import OwnLoop, Work, run_in
from callstream.runtime.progress import ProgressHandler
from callstream.runtime.run import check_journal, check_thread_id, kept_for, take_up
from callstream.tap import Collapse, Tap, TapSettings, TapTransport
from callstream.tools import ArgsAbortHook, ArgsCompleteHook, ArgsDeltaHook, FieldHook, Progress, Tool

if TYPE_CHECKING:
    import httpx
    import httpx2

_T = TypeVar("_T")
_Boto = TypeVar("_Boto")


class Callstream:
    """Live, durable tool calls.

    ``journal`` is a URL (``memory:``, ``sqlite:///calls.db``, ``postgresql://…``) or a journal. ``tools`` are functions
    made with ``@tool``; plain functions are turned into tools. Hooks of tools that cannot be decorated are registered by
    name with ``on_args_delta`` and its siblings. ``on_tool_progress`` receives the reports of running tools: the tool's
    name, the call's id and the data. ``redact`` changes events before they are journaled. ``archive`` is where runs that
    ended long ago are moved (``s3://bucket/prefix``, ``file:///folder``). ``settings`` apply to all tools and runs.
    ``guards`` judge calls while they are written: see ``callstream.guards``.

    Constructing it opens nothing; the journal opens itself at the first use. ``async with`` or ``aclose`` closes it, and
    ``with`` or ``close`` in a sync program.
    """

    def __init__(
        self,
        journal: str | Journal = "memory:",
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        redact: Callable[[RunEvent], RunEvent] | None = None,
        archive: str | None = None,
        settings: Settings | None = None,
        guards: Iterable[Guard] = (),
    ) -> None:
        if not isinstance(journal, str) and not callable(getattr(journal, "append", None)):
            raise UsageError(f"expected a journal or its URL, such as sqlite:///file.db, got {journal!r}")
        for name, value in (("redact", redact), ("archive", archive)):
            if not isinstance(journal, str) and value is not None:
                raise UsageError(f"give {name}= to open_journal when you open the journal yourself")
        self.engine: Engine[Run] = Engine(
            open_journal(journal, redact=redact, archive=archive) if isinstance(journal, str) else journal,
            tools,
            on_tool_progress=on_tool_progress,
            settings=settings,
            guards=guards,
            make_observers=_usual_observers,
        )
        """Shared by all runs."""
        self.engine.owner = self
        self.orphaned_calls = OrphanedCalls(self.engine)
        """The calls that dead processes left in threads which continue here."""
        self.own_loop = OwnLoop(self.aclose)
        """The loop on which the work of sync programs is done."""
        self._tap = Tap(self.engine, self.own_loop)

    @property
    def journal(self) -> Journal:
        return self.engine.journal

    @journal.setter
    def journal(self, journal: Journal) -> None:
        self.engine.journal = journal

    @property
    def settings(self) -> Settings:
        return self.engine.settings

    # -- tools --

    def add_tool(self, function: Callable[..., Any]) -> None:
        """Registers a tool under its name. From then on its hooks run whenever a model calls that name."""
        self.engine.add_tool(function)

    def tool(self, name: str) -> Tool[Any]:
        """The tool with that name. UsageError if there is none."""
        return self.engine.tool(name)

    @property
    def tools(self) -> dict[str, Tool[Any]]:
        """The tools by name."""
        return self.engine.tools

    @property
    def on_tool_progress(self) -> ProgressHandler | None:
        """Called with the reports of running tools."""
        return self.engine.on_tool_progress

    @on_tool_progress.setter
    def on_tool_progress(self, handler: ProgressHandler | None) -> None:
        self.engine.on_tool_progress = handler

    def on_args_delta(self, tool_name: str, hook: ArgsDeltaHook) -> None:
        """Registers a hook for every piece of argument text of the tool with that name."""
        self.engine.on_args_delta(tool_name, hook)

    def on_field(self, tool_name: str, path: str, hook: FieldHook) -> None:
        """Registers a hook for one field: ``path`` is the name of a top-level field, or a JSON path."""
        self.engine.on_field(tool_name, path, hook)

    def on_args_complete(self, tool_name: str, hook: ArgsCompleteHook) -> None:
        """Registers a hook for the moment when all arguments have arrived, before the tool runs."""
        self.engine.on_args_complete(tool_name, hook)

    def on_args_abort(self, tool_name: str, hook: ArgsAbortHook) -> None:
        """Registers a hook for calls whose tool will not run."""
        self.engine.on_args_abort(tool_name, hook)

    # -- clients for the providers' SDKs --

    def transport(
        self,
        inner: Any = None,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        stream_arguments: bool = True,
        first_byte: float | None = None,
        idle: float | None = None,
        ask_again: int | None = None,
        settings: TapSettings | None = None,
        limits: Any = None,
    ) -> TapTransport:
        """A transport for a client of httpx or httpx2, async or sync: ``AsyncClient(transport=cs.transport())``.

        ``inner`` is the transport to wrap; without one, connections are made as the library would make them, including
        proxies from the environment. ``wire`` states the wire instead of recognising it by path. ``collapse`` says which
        calls reach the SDK whole: ``"known"``, those of tools that this Callstream was given; ``"all"``; ``"none"``.
        ``stream_arguments`` asks the provider to stream the arguments of those calls where it does so only on request.
        ``first_byte`` and ``idle``: the seconds within which a streamed answer has to begin, and the longest silence after
        that; then it ends with the library's ReadTimeout. ``ask_again``: how often the model is asked again if it wrote
        nothing but calls that cannot run. ``settings`` has all of these, and more. ``limits``: the library's own, for
        connections without ``inner``.
        """
        return self._tap.transport(
            inner,
            settings,
            limits=limits,
            wire=wire,
            collapse=collapse,
            stream_arguments=stream_arguments,
            first_byte=first_byte,
            idle=idle,
            ask_again=ask_again,
        )

    def http_client(self, **kwargs: Any) -> httpx2.AsyncClient:
        """An async HTTP client with the tap in it, for the SDKs of anthropic, openai and google-genai.

        It is an ``httpx2.AsyncClient`` where httpx2 is installed, else an ``httpx.AsyncClient``, which has the same
        methods. Takes the usual arguments of either, and those of ``transport``: ``wire``, ``collapse``,
        ``stream_arguments``, ``first_byte``, ``idle``, ``ask_again`` and ``settings``. ``joins_text=True``: the SDK gets
        text and reasoning passage by passage, for programs that do not read them as they are written. ``text_filter``
        decides which of that text is journaled and shown; the SDK gets all of it.
        For an SDK that accepts only httpx although httpx2 is installed too, use ``httpx_client()``.
        """
        client: httpx2.AsyncClient = self._tap.client(None, "AsyncClient", kwargs)
        return client

    def httpx_client(self, **kwargs: Any) -> httpx.AsyncClient:
        """``http_client()`` as an ``httpx.AsyncClient``, for SDKs that accept no other."""
        client: httpx.AsyncClient = self._tap.client("httpx", "AsyncClient", kwargs)
        return client

    def httpx2_client(self, **kwargs: Any) -> httpx2.AsyncClient:
        """``http_client()`` as an ``httpx2.AsyncClient``, for SDKs that accept no other."""
        client: httpx2.AsyncClient = self._tap.client("httpx2", "AsyncClient", kwargs)
        return client

    def sync_http_client(self, **kwargs: Any) -> httpx2.Client:
        """``http_client()`` for sync SDKs: an ``httpx2.Client`` where httpx2 is installed, else an ``httpx.Client``.

        For an SDK that accepts only httpx although httpx2 is installed too: ``httpx.Client(transport=cs.transport())``.
        """
        client: httpx2.Client = self._tap.client(None, "Client", kwargs)
        return client

    def tap_boto(self, client: _Boto, *, collapse: Collapse = "known", stream_arguments: bool = False) -> _Boto:
        """Taps a ``bedrock-runtime`` client of boto3, botocore or aiobotocore, or all that a session makes from now on.

        Returns the same client or session. ``collapse`` is that of ``transport``. ``stream_arguments`` asks Claude to
        stream the arguments of calls as it writes them. On Bedrock that is a beta for a whole request, so it is off by
        default, and only asked for if all tools of a request are collapsed.
        """
        self._tap.boto(client, TapSettings(collapse=collapse, bedrock_beta=stream_arguments))
        return client

    # -- runs --

    def run(
        self,
        thread_id: str,
        run_id: str | None = None,
        *,
        principal: str | None = None,
        run_input: Any = None,
        rejected: OnRejected | None = None,
        continues: bool = False,
        on_divergence: OnDivergence = "fail",
    ) -> _RunContext:
        """A run as a context: ``async with cs.run("thread-1") as run``. Leaving it ends the run.

        ``with cs.run("thread-1") as run``, in a sync program, gives a ``SyncRun``, whose methods block.

        If an earlier run of the thread died with its process, the abort hooks of its calls run first. A process counts as
        dead when its lease has expired; if that happens later, the hooks run then.

        ``rejected`` says what the SDK gets if a hook rejected a call or failed. ``"raise"``: reading the response raises
        CallRejected. ``"forward"``: the response arrives whole, with that call, which must not be run; ``run.invoke`` and
        the tool itself see to that, and ``run.refusals()`` has the sentence for the model. ``"ask"``: the response arrives
        without that call, and the tap tells the model: by itself if the program gets no other call, otherwise with the
        results of the others. ``"say"``: the response has a sentence instead of that call. By default the settings decide.

        ``continues``: if the process dies and the program is started again, the run with this ``run_id`` goes on. Answers
        of models and results of tools are replayed from the journal, which has to be on disk, until the program asks for
        something new. ``on_divergence``: if a model is asked something other than before, the run fails (``"fail"``), or
        the model is asked (``"ask"``).
        """
        how: dict[str, Any] = {"principal": principal, "rejected": rejected}
        start = partial(self._next_run, thread_id, run_id, run_input=run_input, **how)
        if continues:
            if run_id is None:
                raise UsageError("a run that continues is found by its id: give it a run_id")
            check_on_divergence(on_divergence)
            check_journal(self.journal)
            start = partial(self._same_run, thread_id, run_id, run_input, on_divergence, **how)
        return _RunContext(start, self.own_loop)

    async def _same_run(
        self, thread_id: str, run_id: str, run_input: Any, on_divergence: OnDivergence, **how: Any
    ) -> Run:
        """Continues the run with that id, or starts it."""
        await self.journal.open()
        earlier = await take_up(self.engine, check_thread_id(thread_id), run_id, on_divergence=on_divergence, **how)
        if earlier is not None:
            await self.orphaned_calls.tell(earlier.given_up)
            return earlier
        return await self._next_run(thread_id, run_id, run_input=run_input, kept=kept_for(run_id), **how)

    async def _next_run(
        self, thread_id: str, run_id: str | None, *, principal: str | None, run_input: Any, **how: Any
    ) -> Run:
        """Starts a run, and runs abort hooks for the calls that a dead process has left in its thread."""
        has_hooks = self.engine.has_abort_hooks
        orphaned = await self.orphaned_calls.find(check_thread_id(thread_id), principal) if has_hooks else []
        started = RunStarted(thread_id, principal, run_input)
        run = await Run.start(self.engine, started, run_id, as_current=False, **how)
        await self.orphaned_calls.tell(orphaned)
        return run

    async def start(
        self,
        thread_id: str,
        run_id: str | None = None,
        *,
        principal: str | None = None,
        run_input: Any = None,
        as_current: bool = True,
        exclusive: bool = False,
        host_traces: bool = False,
        rejected: OnRejected | None = None,
        numbered: bool = False,
    ) -> Run:
        """Starts a run that ``run.finish()`` or ``run.stop()`` has to end. ``as_current``: it becomes this task's run.

        ``exclusive``: ThreadBusy if the thread has another active run, in this process or another. ``host_traces``: the
        caller emits its own OpenTelemetry spans for agents and tools, so Callstream must not emit them again.
        ``rejected``: see ``run``. ``numbered``: if the journal has a run with that id, a number is added to the id.
        """
        return await Run.start(
            self.engine,
            RunStarted(thread_id, principal, run_input, exclusive),
            run_id,
            numbered=numbered,
            as_current=as_current,
            host_traces=host_traces,
            rejected=rejected,
        )

    async def free_run_id(self, wanted: str) -> str:
        """The wanted id if no run in the journal has it, otherwise that id with a number.

        It is reserved in this process until a run was started with it, or failed to start, so nothing may be awaited
        between this and ``start``.
        """
        return await self.engine.free_run_id(wanted)

    def active_run(self, run_id: str) -> Run | None:
        """A run of this process that has not ended."""
        return self.engine.active_run(run_id)

    @property
    def observers(self) -> Observers[Run]:
        """The observers that are notified when runs and calls change their state."""
        return self.engine.observers

    def observe(self, observer: Observer) -> None:
        """Adds an observer, which is notified of all runs that start from now on."""
        self.engine.observers.add(observer)

    def new_id(self, kind: str) -> str:
        return self.engine.new_id(kind)

    def new_call_id(self) -> str:
        """The id of a call for which the provider sent none."""
        return self.engine.new_call_id()

    # -- the end --

    async def aclose(self) -> None:
        """Stops the active runs of this event loop and of sync programs, closes their connections and the journal."""
        elsewhere = None if self.own_loop.is_current or self.own_loop.has_ended else self.own_loop.loop
        failures = await self._end_runs()
        if elsewhere is not None:
            failures += await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_runs(), elsewhere))
        try:
            await self.journal.aclose()
        finally:
            if elsewhere is not None:
                await asyncio.to_thread(self.own_loop.end)
            elif not self.own_loop.is_current:
                self.own_loop.end()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """``aclose`` for sync programs. Blocks until everything is closed."""
        if not self.own_loop.has_ended:
            try:
                self.own_loop.run(self.aclose)
            finally:
                self.own_loop.end()

    async def _end_runs(self) -> list[CallstreamError]:
        """Ends the runs of this event loop and closes its connections. Returns why some runs could not be ended."""
        await self._tap.end_runs()
        await self.orphaned_calls.aclose()
        failures = await self.engine.end_retries.end_now()
        for run in self.engine.active_runs:
            if run.loop is asyncio.get_running_loop():
                try:
                    await run.stop("closed")
                except CallstreamError as error:  # the other runs and the journal must be closed all the same
                    failures.append(error)
        self.engine.end_retries.give_up()
        await self._tap.close_pools()
        return failures

    async def __aenter__(self) -> Self:
        await self.journal.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        self.own_loop.run(self.journal.open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncRun:
    """A run for programs that have no event loop, or block the one they have: methods that a ``Run`` awaits block here.

    ``with cs.run("thread-1") as run`` gives one. ``SyncRun(run)`` wraps any ``Run``, such as ``current_run()``.

    It may be used in any thread except the one that runs the event loop of the run. Async hooks and tools run on that loop,
    sync hooks in threads of their own, and a sync tool in the thread that called ``invoke`` or ``run_tools``. The methods
    are those of ``Run``, which documents each in more detail.
    """

    def __init__(self, run: Run) -> None:
        if not isinstance(run, Run):
            raise UsageError(f"expected a run, got {run!r:.100}; current_run() gives None outside of one")
        self.run = run
        """The run itself, for code on its event loop."""

    # -- state --

    @property
    def thread_id(self) -> str:
        return self.run.thread_id

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def principal(self) -> str | None:
        return self.run.principal

    @property
    def outcome(self) -> RunOutcome | None:
        """How the run ended; None while it is running."""
        return self.run.outcome

    @property
    def reason(self) -> str | None:
        """Why the run failed or was cancelled."""
        return self.run.reason

    @property
    def error(self) -> BaseException | None:
        """The exception that failed the run, if there was one."""
        return self.run.error

    @property
    def seq(self) -> int:
        """The number of the last record of the run."""
        return self.run.seq

    @property
    def calls(self) -> list[Call]:
        """The run's calls, in the order in which they started."""
        return self.run.calls

    def call(self, call_id: str) -> Call:
        return self.run.call(call_id)

    def refusals(self) -> list[Refusal]:
        """The calls whose tools will not run, each with a sentence for the model, in the order of the calls."""
        return self.run.refusals()

    # -- tools --

    def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done."""
        return self._wait(partial(self.run.settled, call_id))

    def execute(self, call_id: str, *, is_safe: bool = False) -> Call:
        """The barrier before a tool: waits for the call's hooks, records that it executes, returns it with arguments."""
        return self._wait(partial(self.run.execute, call_id, is_safe=is_safe))

    def complete(self, call_id: str, result: Any = None) -> None:
        """The tool has returned."""
        self._wait(partial(self.run.complete, call_id, result))

    def fail(self, call_id: str, error: str | BaseException) -> None:
        """The tool has failed."""
        self._wait(partial(self.run.fail, call_id, error))

    def invoke(self, call_id: str) -> Any:
        """Runs the tool of this call, from barrier to result, and returns the result. A sync tool runs in this thread."""
        return self._wait(partial(self.run.invoke, call_id))

    def run_tools(self) -> list[ToolResult]:
        """Runs the tool of every call whose arguments are complete, and returns what to tell the model, call by call."""
        return self._wait(self.run.run_tools)

    def await_answer(self, call_id: str, question: Question | None = None, *, is_paused: bool = False) -> Call:
        """A client or a person has to answer this call: it outlives the run until ``answer`` finds it."""
        return self._wait(partial(self.run.await_answer, call_id, question, is_paused=is_paused))

    def answer(
        self, call_id: str | Call, result: Any = None, *, error: str | None = None, message_id: str | None = None
    ) -> bool:
        """Answers a call of this thread that awaits an answer. False if it already has one."""
        return self._wait(partial(self.run.answer, call_id, result, error=error, message_id=message_id))

    def resume(self, call_id: str) -> Call | None:
        """Takes in a call of this thread that awaits an answer, so that it can execute."""
        return self._wait(partial(self.run.resume, call_id))

    def progress(self, call_id: str, data: Any) -> None:
        """Reports the progress of an executing call to its interface; the model never sees it."""
        self._wait(partial(self.run.progress, call_id, data))

    def progress_of(self, call_id: str) -> Progress:
        """The ``Progress`` to pass to the tool of an executing call."""

        async def open_progress() -> Progress:
            return self.run.progress_of(call_id)

        return self._wait(open_progress)

    # -- the end --

    def finish(self) -> None:
        """Ends the run as finished, after all hooks have settled. Raises the error of a hook that failed the run."""
        self._wait(self.run.finish)

    def stop(self, reason: str = "stopped") -> None:
        """Ends the run as cancelled: hooks are aborted, open calls discarded, upstream streams closed."""
        self._wait(partial(self.run.stop, reason))

    def hand_over(self) -> bool:
        """Leaves the run as it is for another process. False if none can go on with it; then nothing was done."""
        return self._wait(self.run.hand_over)

    def __enter__(self) -> SyncRun:
        self.run.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self.run.leave()
        if self.run.outcome is not None and self.run.loop.is_closed():
            return False  # closing the Callstream has ended the run
        if error is None:
            self.finish()
        else:
            self._wait(partial(self.run.end, error))
        return False

    def _wait(self, work: Work[_T]) -> _T:
        if self.run.process != os.getpid():
            raise UsageError(f"run {self.run_id!r} belongs to the process that this one was forked from")
        return run_in(self.run.loop, work)


class _RunContext:
    """Starts a run when it is entered and ends it when it is left."""

    def __init__(self, start: Work[Run], own_loop: OwnLoop) -> None:
        self._start = start
        self._own_loop = own_loop
        self._run: Run | None = None
        self._sync_run: SyncRun | None = None

    def __enter__(self) -> SyncRun:
        self._sync_run = SyncRun(self._own_loop.run(self._start))
        return self._sync_run.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._sync_run is not None
        self._sync_run.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Run:
        self._run = await self._start()
        return await self._run.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._run is not None
        await self._run.__aexit__(kind, error, traceback)


def _usual_observers(settings: Settings) -> list[Observer]:
    """OpenTelemetry, where its API is installed."""
    try:
        from callstream.runtime.telemetry import Telemetry
    except ImportError:
        return []
    return [Telemetry(show_arguments=settings.telemetry_arguments)]
