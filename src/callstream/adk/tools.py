"""Tools under google-adk: an application's functions, and the tools that a client brings with a run.

A function made with ``@tool`` only has to be listed in ``tools=[…]``: its hooks are registered when the plugin first sees
it, and its progress reaches the run. A plain function that takes a ``progress_callback`` gets one too: google-adk would
declare that parameter to the model, or refuse it, so it is replaced by a function without it.

``AGUIToolset`` among an agent's tools marks the place of the client's tools. Their calls stream like any others, end the
agent's turn, and await the client's answer, which comes with another run.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
from ag_ui.core import Tool as ClientToolSpec
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events.event import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.utils.context_utils import find_context_parameter
from google.genai import types

from callstream.adk.calls import HOST_QUESTIONS
from callstream.calls import Call
from callstream.callstream import Callstream
from callstream.errors import UsageError
from callstream.runtime import Run
from callstream.runtime.ownloop import run_function
from callstream.tools import Tool, current_progress, is_tool, starts_early
from callstream.tools.parameters import is_progress, positional_names, progress_filling
from callstream.tools.schema import gemini_schema
from callstream.tools.tool import resolved_signature, same_kind, shown_as, without_parameter

logger = logging.getLogger("callstream")

McpProgress = Callable[[float, float | None, str | None], Awaitable[None]]


class StreamingTool(FunctionTool):
    """A FunctionTool whose function may yield more than once.

    google-adk gives the model one value of a generator tool, and breaks off at the second. Here all of them are the result:
    a single value by itself, several as a list. Events that the function yields are shown while it runs, and in live mode
    every value goes to the model by itself, both as in google-adk.
    """

    def __init__(self, func: Callable[..., Any], *, require_confirmation: bool | Callable[..., bool] = False) -> None:
        super().__init__(func, require_confirmation=require_confirmation)
        self._whole: FunctionTool | None = None

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        if not _is_generator(self.func) or tool_context.get_invocation_context().live_request_queue is not None:
            return await super().run_async(args=args, tool_context=tool_context)
        if self._whole is None:
            self._whole = _stand_in(FunctionTool(_collect(self.func)), self)
        return await self._whole.run_async(args=args, tool_context=tool_context)


class LiveStream(FunctionTool):
    """Replaces a generator tool in live mode, where it streams to the model while the conversation continues.

    google-adk tells the model at once that results are pending, but does not say when the last one was sent; this tool does.
    """

    def __init__(self, original: FunctionTool) -> None:
        super().__init__(_report_when_ended(original.func))
        _stand_in(self, original)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        result = await super().run_async(args=args, tool_context=tool_context)
        if not inspect.isasyncgen(result):
            await _report([result], None)  # an error about the arguments, or a question
        return result


def function_of(tool: BaseTool) -> Tool[Any] | None:
    """The function that a tool runs, directly or through a replacement, if it was made with ``@tool``."""
    function = getattr(tool, "func", None)
    if function is None:
        return None
    return next((each for each in (function, getattr(function, "__wrapped__", None)) if is_tool(each)), None)


StreamEnd = Callable[[list[Any], BaseException | None], Awaitable[None]]
stream_end: ContextVar[StreamEnd | None] = ContextVar("callstream_stream_end", default=None)
"""Called by a ``LiveStream`` with the values that it has sent to the model, and the error that ended it, if any."""


async def _report(values: list[Any], error: BaseException | None) -> None:
    end = stream_end.get()
    if end is not None:
        await end(values, error)


def mcp_progress(tool_name: str, **kwargs: Any) -> McpProgress | None:
    """For ``McpToolset(progress_callback=mcp_progress)``: a server's progress notifications become the call's progress."""
    progress = current_progress.get()
    if progress is None:
        return None

    async def report(done: float, total: float | None, message: str | None) -> None:
        await progress(done, total, message)

    return report


def register_tools(callstream: Callstream, tools: dict[str, BaseTool]) -> dict[str, Tool[Any]]:
    """The ``@tool`` functions of an agent, by the names that its model uses.

    They are also registered with the Callstream, which does some things by name alone, such as calling hooks for a call that
    a crash left behind.
    """
    functions = {name: function for name, made in tools.items() if (function := function_of(made)) is not None}
    for name, function in functions.items():
        callstream.engine.host_tool(name, function)
    return functions


def with_progress(tool: Any) -> Any:
    """A tool of an agent, without the parameter that takes its progress; the tool itself if it has none.

    Functions and FunctionTools are inspected. The content of a toolset is known only after it has been asked.
    """
    if type(tool) in (FunctionTool, LongRunningFunctionTool, StreamingTool):
        filled = _fill_in(tool.func)
        made = tool if filled is tool.func else _stand_in(type(tool)(filled), tool)
        return in_thread(made, tool.func)
    if isinstance(tool, BaseTool | BaseToolset):
        return tool
    filled = _fill_in(tool)
    return in_thread(FunctionTool(filled), tool) if _blocks(tool) else filled


def in_thread(tool: Any, function: Callable[..., Any]) -> Any:
    """The tool, or a replacement that runs it in a thread, if its function reports progress and would block the loop.

    While the loop is blocked, no report is read.
    """
    if type(tool) in (FunctionTool, LongRunningFunctionTool) and _blocks(function):
        return _stand_in(type(tool)(_in_thread(tool.func)), tool)
    return tool


def _blocks(function: Any) -> bool:
    """Whether a function reports progress and is not async. Generators do not count: google-adk runs them itself."""
    is_plain = not inspect.iscoroutinefunction(function) and not _is_generator(function)
    reports = (
        function.progress_parameter is not None if is_tool(function) else _progress_parameter(function) is not None
    )
    return is_plain and reports


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    @_standing_for(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = await run_function(lambda: function(*args, **kwargs))
        return await result if inspect.isawaitable(result) else result  # a decorator may hide that it is async

    return run


def takes_progress(tool: BaseTool) -> bool:
    """Whether a tool has a progress parameter that should have been filled in. A function is inspected only once."""
    function = getattr(tool, "func", None)
    if not inspect.isfunction(function):
        return function is not None and _progress_parameter(function) is not None
    if function not in _asked:
        _asked[function] = _progress_parameter(function) is not None
    return _asked[function]


_asked: WeakKeyDictionary[Callable[..., Any], bool] = WeakKeyDictionary()


def _standing_for(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like ``functools.wraps``, but a function that replaces a ``@tool`` is not one itself: see ``function_of``."""
    return functools.wraps(function, updated=())


def _stand_in(made: FunctionTool, original: FunctionTool) -> FunctionTool:
    """Gives a tool the attributes that google-adk reads, from another tool, including whether it needs confirmation."""
    made.name = original.name
    made.description = original.description
    made.behavior = original.behavior
    made.response_scheduling = original.response_scheduling
    made.custom_metadata = original.custom_metadata
    made.check_require_confirmation = original.check_require_confirmation  # type: ignore[method-assign]
    return made


def _fill_in(function: Callable[..., Any]) -> Callable[..., Any]:
    hidden = _progress_parameter(function)
    if hidden is None:
        return function
    signature = resolved_signature(function)
    signature = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != hidden.name])
    made: Any = same_kind(function, progress_filling(positional_names(function), hidden))
    functools.update_wrapper(made, function)
    made.__name__ = getattr(function, "__name__", type(function).__name__)
    made.__doc__ = without_parameter(inspect.getdoc(function), hidden.name)
    return cast("Callable[..., Any]", shown_as(made, signature))


def _progress_parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter of a plain function that takes its progress. A parameter that a model might fill in does not count."""
    if is_tool(function) or not callable(function):
        return None
    try:
        parameters = resolved_signature(function).parameters.values()
    except (TypeError, UsageError):
        return None
    return next((each for each in parameters if is_progress(each)), None)


def collapsed_names(tools: dict[str, BaseTool]) -> frozenset[str]:
    """The tools whose calls may reach google-adk whole: all but the one that it uses to stream structured output."""
    return frozenset(name for name, tool in tools.items() if not isinstance(tool, SetModelResponseTool))


def streamed_names(tools: dict[str, BaseTool]) -> frozenset[str]:
    """The tools whose arguments a provider may be asked to stream: all but ``@tool(stream_arguments=False)``."""
    functions = {name: function_of(tool) for name, tool in tools.items()}
    return frozenset(name for name, made in functions.items() if made is None or made.stream_arguments)


def collect_generators(tools: dict[str, BaseTool]) -> None:
    """Replaces the tools of plain generator functions in a request, so that these may yield more than once.

    Also makes functions of a toolset that report progress run in a thread; those of an agent do already.
    """
    for name, tool in tools.items():
        if type(tool) is FunctionTool and _is_generator(tool.func):
            tools[name] = _stand_in(StreamingTool(tool.func), tool)
        elif isinstance(tool, FunctionTool):
            tools[name] = in_thread(tool, tool.func)


def watch_generators(tools: dict[str, BaseTool]) -> None:
    """Replaces the tools that stream in live mode."""
    for name, tool in tools.items():
        if type(tool) in (FunctionTool, StreamingTool) and inspect.isasyncgenfunction(tool.func):  # type: ignore[attr-defined]
            tools[name] = LiveStream(tool)  # type: ignore[arg-type]


def tools_by_name(tools: Iterable[Any]) -> dict[str, BaseTool]:
    """The functions among an agent's tools, by name. The content of a toolset is known only after it has been asked."""
    made = [FunctionTool(tool) if is_tool(tool) else tool for tool in tools]
    return {tool.name: tool for tool in made if isinstance(tool, BaseTool)}


def _is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _collect(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same kind that yields events as they come, and all values as one at the end."""
    if inspect.isasyncgenfunction(function):

        @_standing_for(function)
        async def stream(*args: Any, **kwargs: Any) -> Any:
            values: list[Any] = []
            async for item in function(*args, **kwargs):
                if isinstance(item, Event):
                    yield item
                else:
                    values.append(item)
            if values:
                yield result_of(values)

        return stream

    @_standing_for(function)
    def steps(*args: Any, **kwargs: Any) -> Any:
        values: list[Any] = []
        for item in function(*args, **kwargs):
            if isinstance(item, Event):
                yield item
            else:
                values.append(item)
        if values:
            yield result_of(values)

    return steps


def result_of(values: list[Any]) -> Any:
    """The result of a generator tool: a single value by itself, several as a list."""
    return values[0] if len(values) == 1 else values


def _report_when_ended(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same generator function, but it reports all its values when it has ended."""

    @_standing_for(function)
    async def stream(*args: Any, **kwargs: Any) -> Any:
        values: list[Any] = []
        items = function(*args, **kwargs)
        try:
            async for item in items:
                if not isinstance(item, Event):
                    values.append(item)
                yield item
        except BaseException as error:
            await _report(values, error)
            raise
        finally:
            await items.aclose()
        await _report(values, None)

    return stream


# -- tools that begin while the model is writing --


async def _may_need_confirmation(made: BaseTool) -> bool:
    """Whether a person may have to confirm a call of the tool, whatever its arguments will be.

    A tool that always or never needs confirmation does not look at its arguments. There are none yet, so a tool that does
    look at them fails here: it may need confirmation for some arguments.
    """
    try:
        return await made.check_require_confirmation(None, None)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  # whatever the application's own function raises
        return True


async def check_early(run: Run, tools: dict[str, BaseTool], warned_of: set[tuple[str, str]]) -> None:
    """Refuses tools that begin early although a person has to confirm or answer their calls: they would not wait for that.

    A tool that takes google-adk's context waits until google-adk calls it, because there is no context before that.
    """
    for name, made in tools.items():
        function = run.engine.tools.get(name) if isinstance(made, ClientTool) else function_of(made)
        if function is None or not starts_early(function):
            continue
        needs_confirmation = not made.is_long_running and await _may_need_confirmation(made)
        if made.is_long_running or needs_confirmation:
            why = "needs a confirmation" if needs_confirmation else "gets its answer from a client or a person"
            raise UsageError(
                f"tool {name!r} begins while the model is writing its call (Streamed, or start='early'), and {why}, which "
                "would come too late: remove one of the two"
            )
        context = find_context_parameter(function) or "tool_context"
        if context not in inspect.signature(function).parameters:
            continue
        run.early.held |= {name}
        if (name, context) not in warned_of:
            warned_of.add((name, context))
            logger.warning(
                "tool %r should begin while the model is writing (Streamed, or start='early'), but takes google-adk's "
                "context (%r), which exists only when google-adk calls it: it runs after the response",
                name,
                context,
            )


# -- the client's tools --


class ClientInput(msgspec.Struct, frozen=True):
    """A run's input beside messages: the client's tools, and its instructions for the agent with ``agent_name``."""

    tools: tuple[ClientToolSpec, ...] = ()
    instructions: str | None = None
    agent_name: str | None = None
    given_up: tuple[Call, ...] = ()
    """Calls that a process left behind in the thread when it died."""


current_input: ContextVar[ClientInput | None] = ContextVar("callstream_client_input", default=None)
"""Set in the task of the run, so that concurrent runs each have their own."""


class ClientTool(BaseTool):
    """A tool whose answer comes from the client, with another run."""

    def __init__(self, spec: ClientToolSpec) -> None:
        super().__init__(name=spec.name, description=spec.description, is_long_running=True)
        self._schema = gemini_schema(spec.parameters)

    def _get_declaration(self) -> types.FunctionDeclaration:
        parameters = types.Schema.model_validate(self._schema) if self._schema.get("properties") else None
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> None:
        """Nothing: google-adk then leaves the call without a response."""


class AGUIToolset(BaseToolset):
    """The place of the client's tools among an agent's. Outside an ``ADKAgent`` it is empty.

    ``tool_filter`` is a list of the client's own names, or a predicate; ``tool_name_prefix`` goes before the names.
    """

    def __init__(
        self, *, tool_filter: ToolPredicate | list[str] | None = None, tool_name_prefix: str | None = None
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        self._taken: frozenset[str] = frozenset()
        # An answer continues the invocation of its call, and its run may bring other tools than that one had.
        self._use_invocation_cache = False

    def beside(self, names: frozenset[str]) -> AGUIToolset:
        """A toolset that leaves out the client's tools of these names: a request must not declare a name twice."""
        made = AGUIToolset(tool_filter=self.tool_filter, tool_name_prefix=self.tool_name_prefix)
        made._taken = names
        return made

    def named(self, tool_name: str) -> str:
        """The name by which the model knows a tool of the client."""
        return f"{self.tool_name_prefix}_{tool_name}" if self.tool_name_prefix else tool_name

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        client = current_input.get()
        made = [ClientTool(spec) for spec in (client.tools if client is not None else ())]
        taken = self._taken | HOST_QUESTIONS
        return [tool for tool in made if self.named(tool.name) not in taken and self._wants(tool, readonly_context)]

    def _wants(self, tool: BaseTool, context: ReadonlyContext | None) -> bool:
        if self.tool_filter is None:
            return True
        if isinstance(self.tool_filter, Sequence):
            return tool.name in self.tool_filter
        return bool(self.tool_filter(tool, context))
