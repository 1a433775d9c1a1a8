"""Callstream: the journal, the tools and their hooks, and the runs that use them.

Constructing it opens nothing. The journal opens itself at the first use, on a thread of its own, so one Callstream may
serve several event loops; ``aclose`` or ``async with`` closes it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property, partial
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from callstream.calls import Call, number_id
from callstream.errors import CallstreamError, JournalError, UsageError
from callstream.events import RunEvent, RunStarted
from callstream.hooks import HookSettings
from callstream.journal import Journal, open_journal
from callstream.jsontext.path import format_path
from callstream.runtime.ending import Ending
from callstream.runtime.limits import TextLimits
from callstream.runtime.observing import Observer, Observers, usual_observers
from callstream.runtime.progress import ProgressHandler, arguments_for, check_handler
from callstream.runtime.run import OnRejected, Run
from callstream.runtime.unended import Unended
from callstream.runtime.waiting import completed, finished
from callstream.tools import (
    ArgsAbortHook,
    ArgsCompleteHook,
    ArgsDeltaHook,
    ErrorPolicy,
    FieldHook,
    Hooks,
    Progress,
    Tool,
    check_field,
    check_hook_settings,
    current_progress,
    is_tool,
    tool,
)

if TYPE_CHECKING:
    import httpx
    import httpx2

    from callstream.tap import Collapse, Tap, TapSettings, TapTransport

logger = logging.getLogger("callstream")

_NO_HOOKS = Hooks()


class Settings(msgspec.Struct, frozen=True):
    """What can be set for all tools and runs of a Callstream."""

    hook_timeout: float = 30.0
    """Seconds that a hook may take before it is cancelled and counts as raised."""
    on_hook_error: ErrorPolicy = "fail_call"
    progress_interval: float = 0.1
    """Seconds between two progress records of one call. What comes in between is merged: the last of each message stays."""
    merge_progress: bool = False
    """Whether ``on_tool_progress`` hears of merged reports only, as the records have them, and not of every one."""
    max_args_bytes: int | None = None
    """Argument text that a model may write for one call; a run that passes it fails. None is no limit."""
    max_run_bytes: int | None = None
    """All text, reasoning and arguments that a model may write in one run."""
    telemetry_arguments: bool = False
    """Whether the spans of calls carry their arguments and results."""

    def __post_init__(self) -> None:
        check_hook_settings(self.hook_timeout, self.on_hook_error)


class Callstream:
    """Live, durable tool calls.

    ``journal`` is a URL (``memory:``, ``sqlite:///calls.db``, ``postgresql://…``) or a journal. ``tools`` are functions
    made with ``@tool``; plain functions are made tools. Hooks of tools that cannot be decorated are registered by name
    with ``on_args_delta`` and its siblings. ``on_tool_progress`` is told what running tools report: the tool's name, the
    call's id and the data. ``redact`` changes events before they are journalled. ``settings`` hold for all tools and
    runs.

    Constructing it opens nothing; the journal opens itself at the first use. ``aclose`` or ``async with`` closes it.
    """

    def __init__(
        self,
        journal: str | Journal = "memory:",
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        redact: Callable[[RunEvent], RunEvent] | None = None,
        settings: Settings | None = None,
    ) -> None:
        if not isinstance(journal, str) and not callable(getattr(journal, "append", None)):
            raise UsageError(f"expected a journal or its URL, such as sqlite:///file.db, got {journal!r}")
        if not isinstance(journal, str) and redact is not None:
            raise UsageError("give redact= to open_journal when you open the journal yourself")
        self.journal: Journal = open_journal(journal, redact=redact) if isinstance(journal, str) else journal
        if settings is not None and not isinstance(settings, Settings):
            raise UsageError(
                f"expected settings to be callstream.Settings, got {type(settings).__module__}.{type(settings).__name__}"
            )
        self.settings = settings or Settings()
        check_handler(on_tool_progress)
        self.on_tool_progress = on_tool_progress
        self._tools: dict[str, Tool[Any]] = {}
        self._named_hooks: dict[str, Hooks] = {}
        self._runs: dict[str, Run] = {}
        self._unended = Unended()
        self._promised: set[str] = set()
        self._observers: Observers | None = None
        for function in tools:
            self.add_tool(function)

    # -- tools and hooks --

    def add_tool(self, function: Callable[..., Any]) -> None:
        """Makes a tool known by its name. Its hooks then run whenever a model calls that name."""
        made = function if is_tool(function) else tool(function)
        known = self._tools.get(made.__name__)
        if known is not None and known != made:  # a method is another object each time it is asked for
            raise UsageError(
                f"there is a tool {made.__name__!r} already; give one of them another name with @tool(name=…)"
            )
        for hook in self._named_hooks.get(made.__name__, _NO_HOOKS).field:
            check_field(made, format_path(hook.path))
        self._tools[made.__name__] = made

    def tool(self, name: str) -> Tool[Any]:
        try:
            return self._tools[name]
        except KeyError:
            raise UsageError(
                f"no tool {name!r} was given to this Callstream; it has {sorted(self._tools) or 'none'}"
            ) from None

    @property
    def tools(self) -> dict[str, Tool[Any]]:
        """The tools by name."""
        return dict(self._tools)

    def on_args_delta(self, tool_name: str, hook: ArgsDeltaHook) -> None:
        """Registers a hook for every piece of argument text of the tool of that name."""
        self._hooks_named(tool_name).on_args_delta(hook)

    def on_field(self, tool_name: str, path: str, hook: FieldHook) -> None:
        """Registers a hook for one field: the name of a top-level one, or a JSON path."""
        if tool_name in self._tools:
            check_field(self._tools[tool_name], path)
        self._hooks_named(tool_name).on_field(path)(hook)

    def on_args_complete(self, tool_name: str, hook: ArgsCompleteHook) -> None:
        """Registers a hook for the moment when all arguments are there, before the tool runs."""
        self._hooks_named(tool_name).on_args_complete(hook)

    def on_args_abort(self, tool_name: str, hook: ArgsAbortHook) -> None:
        """Registers a hook for calls whose tool will not run."""
        self._hooks_named(tool_name).on_args_abort(hook)

    def knows(self, tool_name: str) -> bool:
        """Whether a tool of that name, or hooks for it, were given."""
        return tool_name in self._tools or tool_name in self._named_hooks

    def hooks_of(self, tool_name: str) -> Hooks:
        """The hooks of a tool: its own first, then those registered by name. False if there are none."""
        own = self._tools[tool_name].hooks if tool_name in self._tools else _NO_HOOKS
        named = self._named_hooks.get(tool_name)
        return own if named is None else own | named

    def hook_settings(self, tool_name: str) -> HookSettings:
        common = HookSettings(timeout=self.settings.hook_timeout, on_error=self.settings.on_hook_error)
        return common.for_tool(self._tools[tool_name]) if tool_name in self._tools else common

    def _hooks_named(self, tool_name: str) -> Hooks:
        return self._named_hooks.setdefault(tool_name, Hooks())

    # -- clients for the providers' SDKs --

    @cached_property
    def _tap(self) -> Tap:
        from callstream.tap import Tap  # Late: the tap stands on the runtime. This is the one import that points up.

        return Tap(self)

    def transport(
        self,
        inner: Any = None,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
    ) -> TapTransport:
        """A transport for an async client of httpx or httpx2: ``AsyncClient(transport=cs.transport())``.

        ``inner`` is the transport to wrap; without one, connections are made as the library would, proxies of the
        environment included. ``wire`` states the wire instead of recognising it by path. ``collapse`` says which calls
        reach the SDK whole: ``"known"``, those of tools that this Callstream was given; ``"all"``; ``"none"``.
        """
        return self._tap.transport(inner, settings, wire, collapse)

    def http_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx2.AsyncClient:
        """An async HTTP client with the tap in it, for the SDKs of anthropic, openai and google-genai.

        It is an ``httpx2.AsyncClient`` where httpx2 is installed, else an ``httpx.AsyncClient``, which has the same
        methods. Takes the usual arguments of either. ``wire``, ``collapse`` and ``settings`` are those of ``transport``.
        An SDK that accepts httpx only, though httpx2 is installed too, gets ``httpx_client()``.
        """
        client: httpx2.AsyncClient = self._tap.client(None, settings, wire, collapse, kwargs)
        return client

    def httpx_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx.AsyncClient:
        """``http_client()`` as an ``httpx.AsyncClient``, for SDKs that accept no other."""
        client: httpx.AsyncClient = self._tap.client("httpx", settings, wire, collapse, kwargs)
        return client

    def httpx2_client(
        self,
        *,
        wire: str | None = None,
        collapse: Collapse = "known",
        settings: TapSettings | None = None,
        **kwargs: Any,
    ) -> httpx2.AsyncClient:
        """``http_client()`` as an ``httpx2.AsyncClient``, for SDKs that accept no other."""
        client: httpx2.AsyncClient = self._tap.client("httpx2", settings, wire, collapse, kwargs)
        return client

    # -- runs --

    def run(
        self,
        thread_id: str,
        run_id: str | None = None,
        *,
        principal: str | None = None,
        run_input: Any = None,
        rejected: OnRejected = "raise",
    ) -> _RunContext:
        """A run as a context: ``async with cs.run("thread-1") as run``. Leaving it ends the run.

        ``rejected`` says what the SDK gets where a hook rejected a call or failed: ``"raise"``, CallRejected rises out of
        the response; ``"forward"``, the response arrives whole, with that call, which must not be run. ``run.invoke``
        sees to that, and ``run.refusals()`` has the sentence for the model.
        """
        how: dict[str, Any] = {"principal": principal, "run_input": run_input, "rejected": rejected}
        return _RunContext(partial(self.start, thread_id, run_id, as_current=False, **how))

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
        rejected: OnRejected = "raise",
    ) -> Run:
        """Starts a run that ``run.finish()`` or ``run.stop()`` has to end. It is this task's current run, if wanted.

        ``exclusive``: ThreadBusy if the thread has another active run, in this process or another. ``host_traces``: the
        caller emits OpenTelemetry spans of its own for agents and tools, so Callstream must not do that again.
        ``rejected``: see ``run``.
        """
        run = Run(self, _named(thread_id), run_id or self.new_id("run"), principal, rejected=rejected)
        run.host_traces = host_traces
        starting = asyncio.ensure_future(self._begin(run, RunStarted(thread_id, principal, run_input, exclusive)))
        try:
            await completed(starting)
        except asyncio.CancelledError:
            await finished(asyncio.ensure_future(_stop_when_started(run, starting)))
            raise
        if as_current:
            run.make_current()
        return run

    async def _begin(self, run: Run, started: RunStarted) -> None:
        try:
            await self.journal.open()
            await run.record([started])
        except JournalError as error:
            if run.is_doubtful and run.run_id not in self._runs:  # it may be in the journal, and nobody would end it
                self.end_later(run, Ending.failed(str(error)))
            raise
        finally:
            self._promised.discard(run.run_id)
        self._runs[run.run_id] = run
        self.observers.run_started(run)

    async def free_run_id(self, wanted: str) -> str:
        """The wanted id if no run in the journal has it, else that with a number: a run ends once, and its id with it.

        It is nobody else's in this process until a run was started with it, or could not be. Some clients give every
        run the same id: from the ninth on it gets a number that nobody has to look for.
        """
        for number in range(1, 9):
            run_id = number_id(wanted, number)
            if not await self._is_taken(run_id):
                return run_id
        return f"{wanted}~{uuid.uuid4().hex}"

    async def _is_taken(self, run_id: str) -> bool:
        if run_id in self._promised:
            return True
        self._promised.add(run_id)  # before waiting: of two who ask at once, one gets it
        try:
            taken = bool(await self.journal.runs(run_id=run_id, limit=1))
        except BaseException:
            self._promised.discard(run_id)
            raise
        if taken:
            self._promised.discard(run_id)
        return taken

    def active_run(self, run_id: str) -> Run | None:
        """A run of this process that has not ended."""
        return self._runs.get(run_id)

    def forget_run(self, run: Run) -> None:
        self._runs.pop(run.run_id, None)

    def end_later(self, run: Run, ending: Ending) -> None:
        """Ends a run whose end could not be written, as soon as the journal takes it: every run ends."""
        self._unended.add(run, ending)

    # -- what runs need --

    @property
    def text_limits(self) -> TextLimits:
        """What a run may write, unless it is told less."""
        return TextLimits(max_args_bytes=self.settings.max_args_bytes, max_run_bytes=self.settings.max_run_bytes)

    @property
    def observers(self) -> Observers:
        """Who is told when runs and calls change their state."""
        if self._observers is None:
            self._observers = usual_observers(show_arguments=self.settings.telemetry_arguments)
        return self._observers

    def observe(self, observer: Observer) -> None:
        """Has the observer told of all runs that start from now on."""
        self.observers.add(observer)

    def new_id(self, kind: str) -> str:
        return f"{kind}_{uuid.uuid4().hex}"

    def new_call_id(self) -> str:
        """The id of a call for which the provider sent none."""
        return self.new_id("call")

    async def call_tool(self, made: Tool[Any], call: Call, progress: Progress) -> Any:
        """Calls a tool with a call's arguments. Sync tools run in a thread; the items of a generator are its result."""
        token = current_progress.set(progress)
        try:
            args = call.args
            given = {} if args is None else args
            if call.encoding == "text":
                return await _called(made, (given,), {})
            return await _called(made, *_placed(made, given))
        finally:
            current_progress.reset(token)

    async def report_progress(self, call: Call, data: Any, handler: ProgressHandler | None = None) -> None:
        """Tells the application's handler, or the one given, whose errors are its own."""
        tell = handler or self.on_tool_progress
        if tell is None:
            return
        try:
            report = {"tool_name": call.name, "function_call_id": call.wire_id, "data": data}
            args, kwargs = arguments_for(tell, report)
            reported: Any = tell(*args, **kwargs)
            if inspect.isawaitable(reported):
                await reported
        except Exception:
            logger.exception("on_tool_progress raised for call %s of tool %s", call.call_id, call.name)

    # -- the end --

    async def aclose(self) -> None:
        """Stops the active runs of this event loop, closes what its clients left open, and the journal."""
        tap: Tap | None = self.__dict__.get("_tap")
        if tap is not None:
            await tap.end_runs()
        try:
            await self._close()
        finally:
            if tap is not None:
                await tap.close_pools()

    async def _close(self) -> None:
        failures = await self._unended.end_now()
        for run in list(self._runs.values()):
            if run.loop is asyncio.get_running_loop():
                try:
                    await run.stop("closed")
                except CallstreamError as error:  # one that cannot be ended keeps neither the others nor the journal
                    failures.append(error)
        self._unended.give_up()
        await self.journal.aclose()
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        await self.journal.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _RunContext:
    """Starts a run when it is entered and ends it when it is left."""

    def __init__(self, start: Callable[[], Awaitable[Run]]) -> None:
        self._start = start
        self._run: Run | None = None

    async def __aenter__(self) -> Run:
        self._run = await self._start()
        return await self._run.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._run is not None
        await self._run.__aexit__(kind, error, traceback)


async def _stop_when_started(run: Run, starting: asyncio.Future[None]) -> None:
    """Ends a run that nobody gets who could end it."""
    await asyncio.wait({starting})
    if run.seq:
        await run.stop("cancelled")


def _named(thread_id: Any) -> str:
    if isinstance(thread_id, str) and thread_id:
        return thread_id
    raise UsageError(f"expected the id of a thread, a text that is not empty, got {thread_id!r}")


def _placed(made: Callable[..., Any], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model gives every argument by its name; parameters that take none from a caller get theirs by position."""
    parameters = inspect.signature(made).parameters.values()
    nameless = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    reached = list(takewhile(given.__contains__, nameless))
    return tuple(given[name] for name in reached), {name: given[name] for name in given if name not in reached}


async def _called(made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.isasyncgenfunction(made):
        return [item async for item in made(*args, **kwargs)]
    if inspect.iscoroutinefunction(made):
        return await made(*args, **kwargs)
    if inspect.isgeneratorfunction(made):
        return await asyncio.to_thread(_without_stop_iteration, lambda: list(made(*args, **kwargs)))
    result = await asyncio.to_thread(_without_stop_iteration, lambda: made(*args, **kwargs))
    return await result if inspect.isawaitable(result) else result  # a decorator may hide that a tool is async


def _without_stop_iteration(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:  # No future can carry it, so whoever waits for the thread would wait for ever.
        raise RuntimeError("the tool raised StopIteration") from error
