"""A tool: a function, what its provider learns about it, and the hooks that watch its arguments arrive.

``tool`` returns a function of the same kind (plain, async, generator, async generator), so anything that runs or inspects
functions can run and inspect tools. The parameter that takes a ``Progress`` belongs to the program, not to the model: it
is left out of ``__signature__``, ``__annotations__`` and ``__doc__``, and filled in when the tool is called without it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import takewhile
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

import msgspec

from callstream.errors import UsageError, WireError
from callstream.events import ReplayRule
from callstream.jsontext.path import Path, lacks_place, parse_path
from callstream.tools.convert import Arguments, explain_annotations
from callstream.tools.delta import AbortSignal
from callstream.tools.parameters import (
    Fill,
    Filled,
    StreamedParameter,
    declare_last,
    positional_names,
    progress_filling,
    progress_parameter,
    streamed_filling,
    streamed_parameter,
)
from callstream.tools.schema import Provider, declaration, parameters_schema

if TYPE_CHECKING:
    from callstream.calls import Call
    from callstream.tools.delta import ArgsDelta, FieldDelta
    from callstream.tools.parameters import Joined

# A function as others see it: its signature, the module of its annotations, its kind, and the call that it runs for.
#
# The kinds are those of ``inspect``: plain, async, generator, async generator.

# -- docstrings in Google style ----------------------------------------------------------------------------------------
# A section begins with a heading on a line of its own (``Args:``); the text before the first one describes the function.
# A parameter's entry begins at the indentation of the section's first line, and lines indented further belong to it.
#
# Hand-written, because ``without_parameter`` has to know the lines of an entry. docstring_parser and griffe do not provide
# these, so they would be a second parser beside this one, and a second dependency of the core. Of the five docstrings in
# ``python -m bench.byhand`` docstring_parser raises on one (an empty section) and skips another (``Keyword Args``); griffe
# reads all of them correctly. Both take 260 µs for one, this file 50.


_HEADING = re.compile(
    r"^(?:(?P<parameters>Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters)"
    r"|Returns?|Yields?|Raises|Examples?|Notes?|Warnings?|See Also|References|Todo|Attributes):\s*$"
)
_ENTRY = re.compile(r"^\s*\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")


class _Entry(NamedTuple):
    """The text about one parameter: in the section with that ``heading``, from line ``first`` up to but not ``end``."""

    name: str
    text: str
    heading: int
    first: int
    end: int


def description_of(doc: str | None) -> str:
    """The text before the first section."""
    return "\n".join(takewhile(lambda line: not _HEADING.match(line), _lines(doc))).strip()


def parameters_of(doc: str | None) -> dict[str, str]:
    """The text of each parameter's entry, its lines joined with spaces."""
    return {entry.name: entry.text.strip() for entry in _entries(_lines(doc))}


def without_parameter(doc: str | None, name: str) -> str | None:
    """The docstring without one parameter's entry, and without the section if nothing is left in it."""
    lines = _lines(doc)
    entries = _entries(lines)
    entry = next((each for each in entries if each.name == name), None)
    if entry is None:
        return doc
    del lines[entry.first : entry.end]
    if not any(each.heading == entry.heading for each in entries if each is not entry):
        del lines[entry.heading]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _lines(doc: str | None) -> list[str]:
    return inspect.cleandoc(doc).splitlines() if doc else []


def _entries(lines: list[str]) -> list[_Entry]:
    """The entries of all parameter sections."""
    found: list[_Entry] = []
    section: int | None = None
    margin: int | None = None
    for index, line in enumerate(lines):
        heading = _HEADING.match(line)
        if heading:
            section, margin = index if heading["parameters"] else None, None
            continue
        if section is None or not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            section = None
            continue
        margin = indent if margin is None else margin
        entry = _ENTRY.match(line) if indent <= margin else None
        if entry:
            found.append(_Entry(entry["name"], entry["text"].strip(), section, index, index + 1))
        elif found and found[-1].end == index:
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {line.strip()}", end=index + 1)
    return found


# -- the model's call that a tool runs for -----------------------------------------------------------------------------

_called: ContextVar[Call | None] = ContextVar("callstream_called", default=None)


def current_call() -> Call | None:
    """Inside a tool: the call that it runs for, as its hooks have seen it; None if no model has called it."""
    return _called.get()


class ClaimedCall(NamedTuple):
    """The model's call that a Python call of a tool stands for, and the tool itself if it has begun already."""

    call: Call
    joined: Joined | None = None


CallClaims: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], ClaimedCall | None]
"""Finds, and thereby claims, the model's call that a Python call of the tool with these arguments stands for, if any."""
call_claims: ContextVar[CallClaims | None] = ContextVar("callstream_call_claims", default=None)
"""Where a tool that is called in this context looks for its call."""


@contextmanager
def running_for(call: Call | None) -> Iterator[None]:
    """Around the run of a call's tool: the tool sees the call, and tools that it calls run for none. None: no effect."""
    if call is None:
        yield
        return
    tokens = _called.set(call), call_claims.set(None)
    try:
        yield
    finally:
        try:
            _called.reset(tokens[0])
            call_claims.reset(tokens[1])
        except ValueError:
            pass  # a generator may be closed in a context other than the one it began in


# -- signature and kind ------------------------------------------------------------------------------------------------

Claim: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], ClaimedCall | None]
"""Finds the model's call that a Python call of the function with these arguments stands for."""


_NO_CALL = (None, None)


def resolved_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with its annotations resolved one by one; a name that only a type checker knows stays a string."""
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # A function written in C may have none.
        raise UsageError(f"expected a function whose parameters can be read, got {function!r}") from error
    namespace = _namespace(function)

    def resolved(annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation
        try:
            probe = SimpleNamespace(__annotations__={"it": annotation})
            return get_type_hints(probe, globalns=namespace, include_extras=True)["it"]
        except (NameError, AttributeError, SyntaxError, TypeError):
            return annotation

    parameters = [p.replace(annotation=resolved(p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=resolved(signature.return_annotation))


def without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, whose name and docstring a ``functools.partial`` of it does not have."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals of the annotations' module: for a class, where ``__init__`` is, for an object, ``__call__``."""
    origin: Any = inspect.unwrap(without_partials(function))
    if inspect.isclass(origin):
        origin = origin.__init__
    elif not inspect.isroutine(origin):
        origin = type(origin).__call__
    return getattr(inspect.unwrap(origin), "__globals__", {})


def without_receiver(signature: inspect.Signature) -> inspect.Signature:
    """The signature as of a bound method, without its receiver: a tool is made before it is bound."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls") and parameters[0].annotation is inspect.Parameter.empty:
        return signature.replace(parameters=parameters[1:])
    return signature


def shown_as(made: Any, signature: inspect.Signature) -> Any:
    """The function, which shows this signature when inspected."""
    found = {p.name: p.annotation for p in signature.parameters.values() if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        found["return"] = signature.return_annotation
    made.__signature__, made.__annotations__ = signature, found
    return made


def same_kind(function: Callable[..., Any], fill: Fill, claim: Claim = lambda args, kwargs: None) -> Callable[..., Any]:
    """A function that calls this one and is of its kind by ``inspect``."""
    if is_of_kind(inspect.isasyncgenfunction, function):

        async def stream(*args: Any, **kwargs: Any) -> Any:
            call, begun = claim(args, kwargs) or _NO_CALL
            if begun is not None:
                for item in await begun.wait():
                    yield item
                return
            args, kwargs = fill(args, kwargs)
            items = function(*args, **kwargs)
            try:
                while True:
                    with running_for(call):  # but not between two items, when its reader runs
                        try:
                            item = await anext(items)
                        except StopAsyncIteration:
                            return
                    yield item
            finally:
                with running_for(call):
                    await items.aclose()

        return stream
    if is_of_kind(inspect.isgeneratorfunction, function):

        def steps(*args: Any, **kwargs: Any) -> Any:
            call, begun = claim(args, kwargs) or _NO_CALL
            if begun is not None:
                yield from begun.wait_here()
                return None
            args, kwargs = fill(args, kwargs)
            return (yield from _running_for(call, function(*args, **kwargs)))

        return steps
    if is_of_kind(inspect.iscoroutinefunction, function):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            call, begun = claim(args, kwargs) or _NO_CALL
            if begun is not None:
                return await begun.wait()
            args, kwargs = fill(args, kwargs)
            with running_for(call):
                return await function(*args, **kwargs)

        return coroutine

    def plain(*args: Any, **kwargs: Any) -> Any:
        call, begun = claim(args, kwargs) or _NO_CALL
        if begun is not None:
            return begun.wait_here()
        args, kwargs = fill(args, kwargs)
        with running_for(call):
            return function(*args, **kwargs)

    return plain


def _running_for(call: Call | None, items: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A generator that runs for a call, but not between two items, when its reader runs."""
    step: Callable[[], Any] = functools.partial(next, items)
    while True:
        with running_for(call):
            try:
                item = step()
            except StopIteration as end:
                return end.value
        try:
            step = functools.partial(items.send, (yield item))
        except GeneratorExit:
            with running_for(call):
                items.close()
            raise
        except BaseException as error:  # noqa: BLE001  # thrown into it by its reader
            step = functools.partial(items.throw, error)


def is_of_kind(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether the function, or the ``__call__`` of a callable object, is of that kind."""
    if inspect.isroutine(function):
        return kind(function)
    return kind(function) or kind(type(function).__call__)


def is_generator(function: Callable[..., Any]) -> bool:
    return is_of_kind(inspect.isasyncgenfunction, function) or is_of_kind(inspect.isgeneratorfunction, function)


def check_takes(function: Callable[..., Any], arguments: int, expected: str) -> None:
    """Raises UsageError, naming what was expected, if the function cannot be called with that many arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # A function written in C may have none.
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise UsageError(f"expected {expected}, got {function!r} with {signature}") from error


Function = TypeVar("Function", bound=Callable[..., Any])
Function_co = TypeVar("Function_co", covariant=True)

Checks: TypeAlias = Literal["end", "stream"]
ErrorPolicy: TypeAlias = Literal["fail_call", "isolate", "fail_run"]
"""What a hook that raised does: ends its call, ends only its own part in the call, or ends the run."""

Start: TypeAlias = Literal["end", "early"]
"""When a tool starts: when its caller runs it, after the response; or as soon as its own arguments are whole and valid."""
OwnReplay: TypeAlias = Literal["unsafe", "safe", "ask"]
Reconcile: TypeAlias = "Callable[[Call], Any]"


class Unsettled(Enum):
    """What ``reconcile`` returns for a tool without a result: it has done nothing, or that cannot be found out."""

    NOT_DONE = "not done"
    UNKNOWN = "unknown"


NOT_DONE = Unsettled.NOT_DONE
UNKNOWN = Unsettled.UNKNOWN

ArgsDeltaHook: TypeAlias = "Callable[[ArgsDelta, AbortSignal], Awaitable[None] | None]"
FieldHook: TypeAlias = "Callable[[FieldDelta, AbortSignal], Awaitable[None] | None]"
ArgsCompleteHook: TypeAlias = "Callable[[Call, AbortSignal], Awaitable[None] | None]"
ArgsAbortHook: TypeAlias = "Callable[[Call, str], Awaitable[None] | None]"

_D = TypeVar("_D", bound=ArgsDeltaHook)
_F = TypeVar("_F", bound=FieldHook)
_C = TypeVar("_C", bound=ArgsCompleteHook)
_A = TypeVar("_A", bound=ArgsAbortHook)


class Hook(msgspec.Struct, frozen=True):
    """One registered function. ``is_async``: it runs on the event loop, else in a thread. ``path``: for field hooks.

    ``is_vital``: no call continues without it, whatever the policy for failed hooks.
    """

    function: Callable[..., Any]
    is_async: bool
    path: Path = ()
    is_vital: bool = False

    @property
    def name(self) -> str:
        return cast(str, getattr(self.function, "__qualname__", None) or repr(self.function))


class Hooks(msgspec.Struct, eq=False):
    """The hooks of one tool, each kind in the order of registration. Registering returns the function.

    The tuples are replaced, never changed: a call keeps the ones from when it began.
    """

    args_delta: tuple[Hook, ...] = ()
    field: tuple[Hook, ...] = ()
    args_complete: tuple[Hook, ...] = ()
    args_abort: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.args_delta or self.field or self.args_complete or self.args_abort)

    def __or__(self, other: Hooks) -> Hooks:
        """These hooks, then the other's."""
        return Hooks(
            self.args_delta + other.args_delta,
            self.field + other.field,
            self.args_complete + other.args_complete,
            self.args_abort + other.args_abort,
        )

    def on_args_delta(self, hook: _D) -> _D:
        """Called with every piece of argument text: ``hook(delta: ArgsDelta, signal: AbortSignal)``."""
        self.args_delta += (_checked(hook, "(delta, signal)"),)
        return hook

    def on_field(self, path: str) -> Callable[[_F], _F]:
        """Called as one field of the arguments arrives: ``hook(field: FieldDelta, signal: AbortSignal)``.

        ``path`` is the name of a top-level field, or a JSON path (``$.items[0].title``; ``$`` is the whole).
        """
        place = _field_path(path)

        def register(hook: _F) -> _F:
            self.field += (_checked(hook, "(field, signal)", place),)
            return hook

        return register

    def on_args_complete(self, hook: _C) -> _C:
        """Called once when all arguments have arrived, before the tool runs: ``hook(call: Call, signal: AbortSignal)``."""
        self.args_complete += (_checked(hook, "(call, signal)"),)
        return hook

    def on_args_abort(self, hook: _A) -> _A:
        """Called once if the call is given up before its tool was allowed to run: ``hook(call: Call, reason: str)``."""
        self.args_abort += (_checked(hook, "(call, reason)"),)
        return hook


class Tool(Generic[Function_co]):
    """What ``tool`` returns: the function, with its hooks and its declaration.

    This class is for type checkers: ``tool`` really returns a function. ``Tool[Any]`` is any tool. The type is covariant,
    so a list of several tools is a list of tools, whatever they take.
    """

    __name__: str
    __signature__: inspect.Signature
    description: str
    hooks: Hooks
    hook_timeout: float | None
    """Seconds that a hook of this tool may take; None for the runtime's own limit, ``math.inf`` for none."""
    on_hook_error: ErrorPolicy | None
    stream_arguments: bool
    """Whether providers that stream arguments only on request are asked for them."""
    check: Checks
    """When arguments are judged by the schema: ``end``, or ``stream``, while they are written."""
    arguments: Arguments
    """How the values that the tool is called with are made from what a model wrote."""
    progress_parameter: str | None
    """The hidden parameter through which a caller passes a ``Progress``."""
    streamed: StreamedParameter | None
    """The parameter that takes a ``Streamed``."""
    start: Start
    replay: ReplayRule
    """What happens to the tool if its process dies while it runs and the run goes on in another process."""
    reconcile: Reconcile | None
    """Finds out what the interrupted tool has done."""

    __call__: Function_co  # not a property, which pyright would not call

    def on_args_delta(self, hook: _D, /) -> _D:
        """Called with every piece of argument text: ``hook(delta: ArgsDelta, signal: AbortSignal)``."""
        raise NotImplementedError

    def on_field(self, path: str, /) -> Callable[[_F], _F]:
        """Called as one field arrives: ``hook(field: FieldDelta, signal: AbortSignal)``.

        ``path`` is the name of a top-level field, or a JSON path (``$.items[0].title``; ``$`` is the whole).
        """
        raise NotImplementedError

    def on_args_complete(self, hook: _C, /) -> _C:
        """Called once when all arguments have arrived: ``hook(call: Call, signal: AbortSignal)``."""
        raise NotImplementedError

    def on_args_abort(self, hook: _A, /) -> _A:
        """Called once if the tool will not run: ``hook(call: Call, reason: str)``."""
        raise NotImplementedError

    def schema(self, provider: Provider, /) -> Any:
        """The declaration for plain SDK users, a dict, by the name of a wire; ``openai`` and ``bedrock`` are short names.

        It is typed Any, because each SDK has its own type for it.
        """
        raise NotImplementedError


def is_tool(candidate: object) -> TypeGuard[Tool[Any]]:
    return callable(candidate) and isinstance(getattr(candidate, "hooks", None), Hooks)


def starts_early(made: Tool[Any]) -> bool:
    """Whether the tool may begin before the response of the model has ended."""
    return made.streamed is not None or made.start == "early"


@overload
def tool(function: Function, /) -> Tool[Function]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    hook_timeout: float | None = None,
    on_hook_error: ErrorPolicy | None = None,
    stream_arguments: bool = True,
    start: Start = "end",
    check: Checks = "end",
    replay: OwnReplay = "unsafe",
    reconcile: Reconcile | None = None,
) -> Callable[[Function], Tool[Function]]: ...
def tool(  # noqa: PLR0913  # each is an independent choice for the tool
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    hook_timeout: float | None = None,
    on_hook_error: ErrorPolicy | None = None,
    stream_arguments: bool = True,
    start: Start = "end",
    check: Checks = "end",
    replay: OwnReplay = "unsafe",
    reconcile: Reconcile | None = None,
) -> Any:
    """Makes a tool of a function, bare (``@tool``) or with arguments (``@tool(name=…)``).

    ``name`` and ``description`` replace the function's own name and docstring. The function itself is not changed.
    ``stream_arguments=False``: a provider that streams arguments only on request is not asked for those of this tool.
    ``start="early"``: in a run, the tool starts when its own arguments are whole and valid, while the model is still
    writing. A tool with a ``Streamed`` parameter starts even earlier, without this.
    ``check="stream"``: arguments are judged by the schema while they are written, and a call is discarded as soon as a fault
    is certain; otherwise they are judged when they are whole.
    ``replay="safe"``: if the process dies while the tool runs and the run goes on in another one, the tool runs again, with
    the same ``current_call().idempotency_key``; otherwise the model is told that the outcome is unknown.
    ``replay="ask"``: a person is asked whether it may run again.
    ``reconcile(call)`` is then called to find out what the tool has done: its return value is the result, ``NOT_DONE`` lets
    the tool run, with ``UNKNOWN`` the outcome stays unknown.
    """
    _check_choice("start", start, Start)
    _check_choice("check", check, Checks)
    _check_choice("replay", replay, OwnReplay)
    check_hook_settings(hook_timeout, on_hook_error)
    if reconcile is not None and not callable(reconcile):
        raise UsageError(f"expected reconcile to be a function of the call, got {reconcile!r}")

    def make(function: Callable[..., Any]) -> Any:
        made = _made(function, name, description)
        made.hook_timeout = hook_timeout
        made.on_hook_error = on_hook_error
        made.stream_arguments = stream_arguments
        made.start = start
        made.check = check
        made.replay = replay if reconcile is None else "reconcile"
        made.reconcile = reconcile
        return made

    return make if function is None else make(function)


def check_hook_settings(hook_timeout: Any, on_hook_error: ErrorPolicy | None) -> None:
    """Raises UsageError for hook settings that neither a tool nor the runtime accepts."""
    if hook_timeout is not None and not (isinstance(hook_timeout, int | float) and hook_timeout > 0):
        raise UsageError(f"expected hook_timeout in seconds, more than 0, got {hook_timeout!r}")
    if on_hook_error is not None:
        _check_choice("on_hook_error", on_hook_error, ErrorPolicy)


def _check_choice(setting: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise UsageError(f"expected {setting} to be one of {get_args(choices)}, got {value!r}")


def _made(function: Callable[..., Any], name: str | None, description: str | None) -> Any:
    if not callable(function):
        raise UsageError(f"expected a function to make a tool of, got {function!r}")
    signature = resolved_signature(function)
    origin = without_partials(function)
    doc = inspect.getdoc(origin) if inspect.isroutine(origin) else origin.__doc__
    hidden = progress_parameter(function, signature)
    if hidden is not None:
        signature = signature.replace(parameters=[p for p in signature.parameters.values() if p is not hidden])
        doc = without_parameter(doc, hidden.name)
    streamed = streamed_parameter(function, signature)
    if streamed is not None:
        signature = declare_last(signature, streamed)
    tool_name = name or str(getattr(origin, "__name__", type(origin).__name__))
    if any(map(str.isspace, tool_name)):
        raise UsageError(f"expected a name that providers accept, without white space, got {tool_name!r}")
    declared = without_receiver(signature)
    arguments = Arguments(tool_name, declared)

    def claim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        find = call_claims.get()
        return None if find is None else find(made, args, kwargs)

    made: Any = same_kind(function, _filling(function, hidden, arguments, streamed), claim)
    functools.update_wrapper(made, function)
    made.__name__ = tool_name
    made.arguments = arguments
    made.__doc__ = description or doc
    shown_as(made, explain_annotations(signature))
    hooks = Hooks()
    made.hooks = hooks
    made.on_args_delta = hooks.on_args_delta

    def on_field(path: str, /) -> Callable[[_F], _F]:
        check_field(made, path)
        return hooks.on_field(path)

    made.on_field = on_field
    made.on_args_complete = hooks.on_args_complete
    made.on_args_abort = hooks.on_args_abort
    made.progress_parameter = hidden.name if hidden is not None else None
    made.streamed = streamed
    made.description = description or description_of(doc)
    described = parameters_of(doc)

    def schema(provider: Provider, /) -> dict[str, Any]:
        return declaration(
            provider, made.__name__, made.description, parameters_schema(made.__name__, declared, described)
        )

    made.schema = schema
    return made


def _filling(
    function: Callable[..., Any],
    hidden: inspect.Parameter | None,
    arguments: Arguments,
    streamed: StreamedParameter | None,
) -> Fill:
    """Completes a call: adds a Progress if its caller passed none, converts values to their types, adds a Streamed."""
    positional = positional_names(function)
    fills: list[Fill] = [] if hidden is None else [progress_filling(positional, hidden)]
    fills.append(functools.partial(arguments.fill, positional))
    if streamed is not None:
        is_async = any(is_of_kind(kind, function) for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction))
        fills.append(streamed_filling(positional, streamed, is_async=is_async))

    def fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Filled:
        for each in fills:
            args, kwargs = each(args, kwargs)
        return args, kwargs

    return fill


def check_field(made: Tool[Any], path: str) -> None:
    """Raises UsageError for a field that the tool's arguments cannot have: its hooks would wait forever."""
    try:
        parameters = made.schema("anthropic")["input_schema"]
    except UsageError:  # the tool cannot be declared from its signature, so nothing is known about its arguments
        return
    if lacks_place(parameters, _field_path(path)):
        names = ", ".join(parameters["properties"]) or "none"
        raise UsageError(f"tool {made.__name__!r} has no argument at {path!r}; its arguments: {names}")


def _checked(hook: Callable[..., Any], parameters: str, path: Path = ()) -> Hook:
    """The hook, if it can be called with two arguments and is not a generator."""
    expected = f"a hook that takes {parameters}"
    if not callable(hook):
        raise UsageError(f"expected {expected}, got {hook!r}")
    if is_generator(hook):
        raise UsageError(f"hook {hook!r} is a generator; a hook acts when it is called, so it must not yield")
    check_takes(hook, 2, expected)
    return Hook(hook, is_of_kind(inspect.iscoroutinefunction, hook), path)


def _field_path(text: str) -> Path:
    if not isinstance(text, str):
        raise UsageError(f'on_field takes the name of a field, as in @tool.on_field("content"), got {text!r}')
    if not text:
        raise UsageError("expected the name of a field or a JSON path, got an empty text")
    if not text.startswith("$"):
        return (text,)
    try:
        return parse_path(text)
    except WireError as error:
        raise UsageError(f"expected the name of a field or a JSON path: {error}") from error
