"""What the runs of a process share: the journal, the tools with their hooks, settings, ids, and which runs are active.

Runs, the tap and the driver are built on the engine, and ``Callstream`` on them. The engine keeps runs without looking into
them, so that nothing here imports from above: ``RunT`` is ``Run``.

``Toolbox`` has the tools that a Callstream was given: their hooks, and how they are called. A tool's hooks are those it
was decorated with, then those registered by its name. Hooks registered by name need no tool: they are for tools that
cannot be decorated, such as those of a framework.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import ExitStack
from itertools import takewhile
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from callstream.calls import Call, number_id
from callstream.errors import UsageError
from callstream.events import ResponseEnded
from callstream.guards import Guard, Guards
from callstream.hooks import HookSettings
from callstream.journal import Journal
from callstream.jsontext.path import format_path
from callstream.runtime.log import EndRetries, is_being_cancelled
from callstream.runtime.ownloop import run_function
from callstream.runtime.progress import ProgressHandler, arguments_for, check_handler
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
    running_for,
    tool,
    typed_arguments,
)

logger = logging.getLogger("callstream")

OnRejected: TypeAlias = Literal["raise", "forward", "ask", "say"]
"""What the SDK gets for a response in which a call was rejected: ``CallRejected``; all of it, including the call; the
response without the call, and the model's next answer if there is nothing else in it for the program to act on; or the
response with a sentence instead of the call."""


class Settings(msgspec.Struct, frozen=True):
    """What can be set for all tools and runs of a Callstream."""

    hook_timeout: float = 30.0
    """Seconds that a hook may take before it is cancelled and counts as raised."""
    on_hook_error: ErrorPolicy = "fail_call"
    progress_interval: float = 0.1
    """Seconds between two progress records of one call. Reports in between are merged: the last of each message stays."""
    merge_progress: bool = False
    """Whether ``on_tool_progress`` gets only merged reports, as the records have them, instead of every one."""
    max_args_bytes: int | None = None
    """Argument text that a model may write for one call; a run that exceeds it fails. None means no limit."""
    max_run_bytes: int | None = None
    """All text, reasoning and arguments that a model may write in one run."""
    telemetry_arguments: bool = False
    """Whether the spans of calls carry their arguments and results."""
    first_byte: float | None = None
    """Seconds within which a provider's streamed answer has to begin, or it ends with a time-out. None means no limit."""
    idle: float | None = None
    """Seconds for which a streamed answer that has begun may send nothing, or it ends with a time-out."""
    rejected: OnRejected = "raise"
    """What the SDK gets if a hook rejected a call or failed, in runs that do not set it themselves: see ``cs.run``."""
    ask_again: int = 1
    """How often the tap asks again a model that wrote nothing but calls which cannot run: cut off, not JSON, not fitting."""
    cut_refused: bool = False
    """Whether a streamed answer is ended as soon as it is certain that none of its calls can run.

    Only if the model is asked again. The provider then need not write the rest, which saves its cost.
    """
    hook_grace: float = 5.0
    """Seconds that a hook past its time may take to end, before its call is given up and the abort hooks run beside it.

    A plain function gets them, too: it cannot be cancelled, and an abort hook should not undo what it is still writing.
    """

    def __post_init__(self) -> None:
        check_hook_settings(self.hook_timeout, self.on_hook_error)
        check_silence(self.first_byte, self.idle)
        check_rejected(self.rejected)
        check_ask_again(self.ask_again)
        times: dict[str, Any] = {"progress_interval": self.progress_interval, "hook_grace": self.hook_grace}
        for name, seconds in times.items():
            if not (isinstance(seconds, int | float) and seconds >= 0):
                raise UsageError(f"expected {name} to be a number of seconds, got {seconds!r}")
        sizes: dict[str, Any] = {"max_args_bytes": self.max_args_bytes, "max_run_bytes": self.max_run_bytes}
        for name, size in sizes.items():
            if size is not None and not isinstance(size, int):
                raise UsageError(f"expected {name} to be a number of bytes, or None, got {size!r}")


def check_rejected(rejected: Any) -> None:
    if rejected not in get_args(OnRejected):
        raise UsageError(f"expected rejected to be 'raise', 'forward', 'ask' or 'say', got {rejected!r}")


def check_ask_again(times: Any) -> None:
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise UsageError(f"expected ask_again to be how often, 0 or more, got {times!r}")


def check_silence(first_byte: float | None, idle: float | None) -> None:
    limits: dict[str, Any] = {"first_byte": first_byte, "idle": idle}
    for name, seconds in limits.items():
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise UsageError(f"expected {name} to be a number of seconds above 0, or None, got {seconds!r}")


_NO_HOOKS = Hooks()

RunPlain: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in a thread."""


class Toolbox:
    """The part of ``Callstream`` that knows tools. It has no journal and no runs."""

    def __init__(
        self,
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        settings: Settings | None = None,
        guards: Iterable[Guard] = (),
    ) -> None:
        if settings is not None and not isinstance(settings, Settings):
            raise UsageError(
                f"expected settings to be callstream.Settings, got {type(settings).__module__}.{type(settings).__name__}"
            )
        if callable(tools) or not isinstance(tools, Iterable):
            raise UsageError(f"expected a list of tools, such as tools=[search], got {tools!r:.100}")
        check_handler(on_tool_progress)
        self.settings = settings or Settings()
        self.on_tool_progress = on_tool_progress
        self.guards = Guards(guards)
        self._tools: dict[str, Tool[Any]] = {}
        self._hosted: dict[str, Tool[Any]] = {}  # the latest tool of each name that a host has had
        self._named_hooks: dict[str, Hooks] = {}
        for function in tools:
            self.add_tool(function)

    def add_tool(self, function: Callable[..., Any]) -> None:
        """Makes a tool known by its name. Its hooks then run whenever a model calls that name."""
        made = function if is_tool(function) else tool(function)
        if inspect.isbuiltin(function):
            made.schema("anthropic")  # raises for one that no model could call, such as print
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
        """Registers a hook for the moment when all arguments have arrived, before the tool runs."""
        self._hooks_named(tool_name).on_args_complete(hook)

    def on_args_abort(self, tool_name: str, hook: ArgsAbortHook) -> None:
        """Registers a hook for calls whose tool will not run."""
        self._hooks_named(tool_name).on_args_abort(hook)

    def knows(self, tool_name: str) -> bool:
        """Whether a tool of that name, hooks for it, or a guard over it were given."""
        return tool_name in self._named_hooks or self.find_tool(tool_name) is not None or self.guards.watches(tool_name)

    def streams(self, tool_name: str) -> bool:
        """Whether a provider may be asked to stream the arguments of that tool."""
        made = self.find_tool(tool_name)
        return made is None or made.stream_arguments

    def hooks_of(self, tool_name: str, made: Tool[Any] | None = None) -> Hooks:
        """The hooks of a tool: guards first, then its own, then those registered by name. False if there are none.

        ``made``: the tool that the name means where it is called, if the caller knows it. To be asked for each call anew:
        guards keep what they have seen of it.
        """
        made = made or self.find_tool(tool_name)
        own = _NO_HOOKS if made is None else made.hooks
        named = self._named_hooks.get(tool_name)
        hooks = own if named is None else own | named
        guarding = self.guards.hooks_for(tool_name)
        return hooks if guarding is None else guarding | hooks

    def host_tool(self, tool_name: str, made: Tool[Any]) -> None:
        """Notes that a host has this tool under that name. Another of its agents may have another one, so the latest counts.

        Which tool a call means is decided by its own agent; this is for callers that know only the name.
        """
        for hook in self._named_hooks.get(tool_name, _NO_HOOKS).field:
            check_field(made, format_path(hook.path))
        self._hosted[tool_name] = made

    def find_tool(self, tool_name: str) -> Tool[Any] | None:
        """The tool of that name: the one that was given, or else the latest that a host has had."""
        return self._tools.get(tool_name) or self._hosted.get(tool_name)

    @property
    def has_abort_hooks(self) -> bool:
        return any(self.hooks_of(name).args_abort for name in (*self._tools, *self._hosted, *self._named_hooks))

    def hook_settings(self, tool_name: str, made: Tool[Any] | None = None) -> HookSettings:
        settings = self.settings
        common = HookSettings(settings.hook_timeout, settings.hook_grace, on_error=settings.on_hook_error)
        made = made or self.find_tool(tool_name)
        own = common if made is None else common.for_tool(made)
        if not self.guards.watches(tool_name):
            return own
        return msgspec.structs.replace(own, timeout=max(own.timeout, self.guards.patience * 3))  # it has its own limits

    def _hooks_named(self, tool_name: str) -> Hooks:
        return self._named_hooks.setdefault(tool_name, Hooks())

    async def call_tool(
        self, made: Tool[Any], call: Call, progress: Progress, typed: dict[str, Any] | None = None
    ) -> Any:
        """Calls a tool with a call's arguments, or with ``typed`` ones, which are converted already. A generator's items are
        its result.

        Plain functions run in a thread: that of the program that waits for them in a ``SyncRun``, else one of the loop's.
        """
        args = call.args if typed is None else typed
        with running_for(call):
            return await self.call_with(made, {} if args is None else args, progress, typed)

    async def call_with(
        self,
        made: Tool[Any],
        arguments: Any,
        progress: Progress,
        typed: dict[str, Any] | None = None,
        *,
        run_plain: RunPlain = run_function,
    ) -> Any:
        """Calls a tool with arguments by name, or with the one value of a free-text tool.

        ``typed``: those of the arguments that have their annotated types already. ``run_plain`` runs plain functions.
        """
        tokens = current_progress.set(progress), typed_arguments.set(typed)
        try:
            if isinstance(arguments, dict):
                return await _call(made, *_place(made, arguments), run_plain)
            return await _call(made, (arguments,), {}, run_plain)
        finally:
            current_progress.reset(tokens[0])
            typed_arguments.reset(tokens[1])

    async def report_progress(self, call: Call, data: Any, handler: ProgressHandler | None = None) -> None:
        """Calls the application's handler, or the one given. An exception of the handler is logged and changes nothing."""
        tell = handler or self.on_tool_progress
        if tell is None:
            return
        try:
            report = {"tool_name": call.name, "function_call_id": call.wire_id, "data": data, "call_id": call.call_id}
            args, kwargs = arguments_for(tell, report)
            reported: Any = tell(*args, **kwargs)
            if inspect.isawaitable(reported):
                await reported
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise  # otherwise, something that the handler waited for was cancelled
            logger.exception("on_tool_progress raised for call %s of tool %s", call.call_id, call.name)


def _place(made: Callable[..., Any], arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model gives every argument by name; positional-only parameters get theirs by position."""
    parameters = inspect.signature(made).parameters.values()
    nameless = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    reached = list(takewhile(arguments.__contains__, nameless))
    return (
        tuple(arguments[name] for name in reached),
        {name: arguments[name] for name in arguments if name not in reached},
    )


async def _call(made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], run_plain: RunPlain) -> Any:
    if inspect.isasyncgenfunction(made):
        return [item async for item in made(*args, **kwargs)]
    if inspect.iscoroutinefunction(made):
        return await made(*args, **kwargs)
    if inspect.isgeneratorfunction(made):
        return await run_plain(lambda: list(made(*args, **kwargs)))
    result = await run_plain(lambda: made(*args, **kwargs))
    return await result if inspect.isawaitable(result) else result  # a decorator may hide that a tool is async


RunT = TypeVar("RunT")
_Observed_contra = TypeVar("_Observed_contra", contravariant=True)


class RunObserver(Protocol[_Observed_contra]):
    """Is notified of runs and calls after the fact, in the run's own loop: for telemetry and logs.

    Pieces of text are left out: a call that gets ten thousand of them changes its state once. An observer's exception is
    logged, and changes nothing. It must not wait. If it has a method ``run_entered(run)``, that is called in the context
    of the run's work when the work begins (``async with run``), and the function that it returns when the work ends there.
    These methods are optional as well: ``response_ended(run, event)``, with the usage of a model's response;
    ``asked_again(run, wire)``, when the tap asks the model again because none of its calls can run; for a run that goes on,
    ``turn_given(run)``, when a request is answered from the journal, and ``tool_interrupted(run, call)``, when the model is
    told that the outcome of a tool is unknown; for a gateway, ``answer_began(upstream, status, seconds)``, with the seconds
    since its request, and ``answer_attached(upstream)``, when a client came back for it.
    """

    def run_started(self, run: _Observed_contra) -> None: ...

    def call_changed(self, run: _Observed_contra, call: Call) -> None:
        """The call has a new state. ``run`` is the run that recorded it; for an answer that is not the call's own run."""

    def run_ended(self, run: _Observed_contra) -> None:
        """``run.outcome`` and ``run.reason`` say how."""

    def streams_changed(self, change: int) -> None:
        """A server has more streams that are being read, or fewer."""


class Observers(Generic[RunT]):
    """All observers as one."""

    def __init__(self, observers: Iterable[RunObserver[RunT]] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: RunObserver[RunT]) -> None:
        self._observers += (observer,)

    def run_started(self, run: RunT) -> None:
        self._notify("run_started", run)

    def run_entered(self, run: RunT) -> Callable[[], None]:
        """Enters the run with the observers that surround it. Returns a function that leaves it again."""
        leaves = self._notify("run_entered", run)

        def leave() -> None:
            for undo in reversed(leaves):
                try:
                    undo()
                except Exception:
                    logger.exception("an observer failed when the work of a run ended")

        return leave

    def call_changed(self, run: RunT, call: Call) -> None:
        self._notify("call_changed", run, call)

    def run_ended(self, run: RunT) -> None:
        self._notify("run_ended", run)

    def response_ended(self, run: RunT, event: ResponseEnded) -> None:
        self._notify("response_ended", run, event)

    def asked_again(self, run: RunT, wire: str) -> None:
        self._notify("asked_again", run, wire)

    def turn_given(self, run: RunT) -> None:
        self._notify("turn_given", run)

    def tool_interrupted(self, run: RunT, call: Call) -> None:
        self._notify("tool_interrupted", run, call)

    def answer_began(self, upstream: str, status: int, seconds: float) -> None:
        self._notify("answer_began", upstream, status, seconds)

    def answer_attached(self, upstream: str) -> None:
        self._notify("answer_attached", upstream)

    def streams_changed(self, change: int) -> None:
        self._notify("streams_changed", change)

    def _notify(self, method: str, *args: Any) -> list[Any]:
        """Calls the method of all observers that have it. Returns the results."""
        returned = []
        for observer in self._observers:
            try:
                if hasattr(observer, method):
                    returned.append(getattr(observer, method)(*args))
            except Exception:  # an observer's errors are its own, never a run's
                logger.exception("observer %s failed", type(observer).__name__)
        return returned


class Working(msgspec.Struct, Generic[RunT], eq=False):
    """The work on a run. ``turn``: what no other work may use at the same time; None if there is no such thing."""

    run: RunT
    task: asyncio.Task[None]
    turn: Hashable
    permits: ExitStack
    """What the run holds until its work is done: a permit, and its turn if it has to wait for one."""
    limit: asyncio.TimerHandle | None = None
    """Limits the run's time, and once the run has ended, the time of what its agent still does."""
    watchers: int = 0
    leaving: asyncio.TimerHandle | None = None
    stopping: asyncio.Task[None] | None = None


class Engine(Toolbox, Generic[RunT]):
    """``make_observers`` is called when the first observer is needed, so that telemetry can be configured before."""

    def __init__(
        self,
        journal: Journal,
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        settings: Settings | None = None,
        guards: Iterable[Guard] = (),
        make_observers: Callable[[Settings], Iterable[RunObserver[RunT]]] = lambda settings: (),
    ) -> None:
        super().__init__(tools, on_tool_progress=on_tool_progress, settings=settings, guards=guards)
        self.journal = journal
        self.end_retries = EndRetries()
        """Runs whose end the journal has not accepted yet: they end as soon as it does."""
        self.has_host = False
        """Whether a host (a framework's plugin) says which requests come from its agents."""
        self.owner: Any = None
        """The Callstream that owns this engine; for ``Run.callstream`` only."""
        self._make_observers = make_observers
        self._observers: Observers[RunT] | None = None
        self._active: dict[str, RunT] = {}
        self.working: dict[str, Working[RunT]] = {}
        """The work on runs, by run id, until it has returned. All drivers' work is here."""
        self._reserved: set[str] = set()

    @property
    def observers(self) -> Observers[RunT]:
        """The observers that are notified when runs and calls change their state."""
        if self._observers is None:
            self._observers = Observers(self._make_observers(self.settings))
        return self._observers

    @observers.setter
    def observers(self, observers: Observers[RunT]) -> None:
        self._observers = observers

    # -- active runs --

    @property
    def active_runs(self) -> list[RunT]:
        """The runs of this process that have not ended."""
        return list(self._active.values())

    def active_run(self, run_id: str) -> RunT | None:
        return self._active.get(run_id)

    def add_run(self, run_id: str, run: RunT) -> None:
        """Called when the run's first record is in the journal."""
        self._active[run_id] = run

    def remove_run(self, run_id: str) -> None:
        """Called when the run has ended."""
        self._active.pop(run_id, None)

    # -- ids --

    def new_id(self, kind: str) -> str:
        return f"{kind}_{uuid.uuid4().hex}"

    def new_call_id(self) -> str:
        """The id of a call for which the provider sent none."""
        return self.new_id("call")

    async def free_run_id(self, wanted: str) -> str:
        """The wanted id if no run in the journal has it, else that with a number: an id is used up when its run has ended.

        It is reserved in this process until a run has been started with it, or could not be, so nothing may be awaited
        between this and ``Run.start``: a failure there would leave the id reserved without a run. Some clients give every
        run the same id: from the ninth on it gets a random suffix, which need not be looked up.
        """
        for number in range(1, 9):
            run_id = number_id(wanted, number)
            if not await self._is_taken(run_id):
                return run_id
        return f"{wanted}~{uuid.uuid4().hex}"

    def reserve_run_id(self, run_id: str) -> bool:
        """Reserves an id until it is released. False if a run of that id is being started or active in this process."""
        if run_id in self._reserved or run_id in self._active:
            return False
        self._reserved.add(run_id)
        return True

    def release_run_id(self, run_id: str) -> None:
        """Called when a run has been started with the id, or could not be."""
        self._reserved.discard(run_id)

    async def _is_taken(self, run_id: str) -> bool:
        if run_id in self._reserved:
            return True
        self._reserved.add(run_id)  # before awaiting: if two ask at once, one gets it
        try:
            taken = bool(await self.journal.runs(run_id=run_id, limit=1))
        except BaseException:
            self._reserved.discard(run_id)
            raise
        if taken:
            self._reserved.discard(run_id)
        return taken
