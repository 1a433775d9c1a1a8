"""The tools that a Callstream was given: their hooks, and how they are called.

A tool's hooks are those it was decorated with, then those registered by its name. Hooks registered by name need no tool:
they are for tools that cannot be decorated, such as those of a framework.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import takewhile
from typing import Any, TypeAlias

from callstream.calls import Call
from callstream.errors import UsageError
from callstream.hooks import HookSettings
from callstream.jsontext.path import format_path
from callstream.runtime.limits import Settings
from callstream.runtime.ownloop import run_function
from callstream.runtime.progress import ProgressHandler, arguments_for, check_handler
from callstream.tools import (
    ArgsAbortHook,
    ArgsCompleteHook,
    ArgsDeltaHook,
    FieldHook,
    Hooks,
    Progress,
    StreamCheck,
    Tool,
    call_claims,
    check_field,
    current_progress,
    is_tool,
    running_for,
    tool,
    typed_arguments,
)

logger = logging.getLogger("callstream")

_NO_HOOKS = Hooks()

RunPlain: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in some thread."""


class Toolbox:
    """The part of ``Callstream`` that knows tools. It has no journal and no runs."""

    def __init__(
        self,
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        settings: Settings | None = None,
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
        self._tools: dict[str, Tool[Any]] = {}
        self._hosted: dict[str, Tool[Any]] = {}  # the latest that a host has had of each name
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
        """Registers a hook for the moment when all arguments are there, before the tool runs."""
        self._hooks_named(tool_name).on_args_complete(hook)

    def on_args_abort(self, tool_name: str, hook: ArgsAbortHook) -> None:
        """Registers a hook for calls whose tool will not run."""
        self._hooks_named(tool_name).on_args_abort(hook)

    def knows(self, tool_name: str) -> bool:
        """Whether a tool of that name, or hooks for it, were given."""
        return tool_name in self._named_hooks or self.find_tool(tool_name) is not None

    def streams(self, tool_name: str) -> bool:
        """Whether a provider may be asked to stream the arguments of that tool."""
        made = self.find_tool(tool_name)
        return made is None or made.stream_arguments

    def hooks_of(self, tool_name: str, made: Tool[Any] | None = None) -> Hooks:
        """The hooks of a tool: its own first, then those registered by name. False if there are none.

        ``made``: the tool that the name means where it is called, if the caller knows it.
        """
        made = made or self.find_tool(tool_name)
        own = _NO_HOOKS if made is None else made.hooks
        named = self._named_hooks.get(tool_name)
        return own if named is None else own | named

    def host_tool(self, tool_name: str, made: Tool[Any]) -> None:
        """A host has this tool under that name. Another agent of its may have another one, so the latest stands.

        What a call means is decided by its own agent; this is for those who know nothing but the name.
        """
        for hook in self._named_hooks.get(tool_name, _NO_HOOKS).field:
            check_field(made, format_path(hook.path))
        self._hosted[tool_name] = made

    def find_tool(self, tool_name: str) -> Tool[Any] | None:
        """The tool of that name: one that was given, or else the latest that a host has had."""
        return self._tools.get(tool_name) or self._hosted.get(tool_name)

    def stream_check(self, tool_name: str, made: Tool[Any] | None = None) -> StreamCheck | None:
        """What judges the arguments of a tool while they are written, if it was made with ``check="stream"``."""
        made = made or self.find_tool(tool_name)
        return None if made is None or made.check != "stream" else made.arguments.stream_check()

    @property
    def has_abort_hooks(self) -> bool:
        return any(self.hooks_of(name).args_abort for name in (*self._tools, *self._hosted, *self._named_hooks))

    def hook_settings(self, tool_name: str, made: Tool[Any] | None = None) -> HookSettings:
        settings = self.settings
        common = HookSettings(settings.hook_timeout, settings.hook_grace, on_error=settings.on_hook_error)
        made = made or self.find_tool(tool_name)
        return common if made is None else common.for_tool(made)

    def _hooks_named(self, tool_name: str) -> Hooks:
        return self._named_hooks.setdefault(tool_name, Hooks())

    async def call_tool(
        self, made: Tool[Any], call: Call, progress: Progress, typed: dict[str, Any] | None = None
    ) -> Any:
        """Calls a tool with a call's arguments, or with these, which have their types. A generator's items are its result.

        Plain functions run in a thread: that of the program that waits for them in a ``SyncRun``, else one of the loop's.
        """
        args = call.args if typed is None else typed
        with running_for(call):
            return await self.call_with(made, {} if args is None else args, progress, typed)

    async def call_with(
        self,
        made: Tool[Any],
        given: Any,
        progress: Progress,
        typed: dict[str, Any] | None = None,
        *,
        run_plain: RunPlain = run_function,
    ) -> Any:
        """Calls a tool with arguments by name, or with the one value of a free-text tool.

        ``typed``: those of them that have their annotated types already. ``run_plain`` runs plain functions.
        """
        tokens = current_progress.set(progress), typed_arguments.set(typed), call_claims.set(None)
        try:
            if isinstance(given, dict):
                return await _call(made, *_place(made, given), run_plain)
            return await _call(made, (given,), {}, run_plain)
        finally:
            current_progress.reset(tokens[0])
            typed_arguments.reset(tokens[1])
            call_claims.reset(tokens[2])

    async def report_progress(self, call: Call, data: Any, handler: ProgressHandler | None = None) -> None:
        """Calls the application's handler, or the one given. What it raises is logged and changes nothing."""
        tell = handler or self.on_tool_progress
        if tell is None:
            return
        try:
            report = {"tool_name": call.name, "function_call_id": call.wire_id, "data": data, "call_id": call.call_id}
            args, kwargs = arguments_for(tell, report)
            reported: Any = tell(*args, **kwargs)
            if inspect.isawaitable(reported):
                await reported
        except Exception:
            logger.exception("on_tool_progress raised for call %s of tool %s", call.call_id, call.name)


def _place(made: Callable[..., Any], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model gives every argument by its name; parameters that take none from a caller get theirs by position."""
    parameters = inspect.signature(made).parameters.values()
    nameless = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    reached = list(takewhile(given.__contains__, nameless))
    return tuple(given[name] for name in reached), {name: given[name] for name in given if name not in reached}


async def _call(made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], run_plain: RunPlain) -> Any:
    if inspect.isasyncgenfunction(made):
        return [item async for item in made(*args, **kwargs)]
    if inspect.iscoroutinefunction(made):
        return await made(*args, **kwargs)
    if inspect.isgeneratorfunction(made):
        return await run_plain(lambda: _run_without_stop_iteration(lambda: list(made(*args, **kwargs))))
    result = await run_plain(lambda: _run_without_stop_iteration(lambda: made(*args, **kwargs)))
    return await result if inspect.isawaitable(result) else result  # a decorator may hide that a tool is async


def _run_without_stop_iteration(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:  # No future can carry it, so awaiting the thread would never end.
        raise RuntimeError("the tool raised StopIteration") from error
