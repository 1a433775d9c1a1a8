"""A function as others see it: its signature, the module of its annotations, its kind, and the call that it runs for.

The kinds are those of ``inspect``: plain, async, generator, async generator.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, get_type_hints

from callstream.errors import UsageError

if TYPE_CHECKING:
    from callstream.calls import Call
    from callstream.tools.streamed import Joined


# -- docstrings of Google's style --------------------------------------------------------------------------------------
# The sections begin with a heading of their own line (``Args:``); what comes before the first one describes the function.
# A parameter's entry begins at the indentation of the section's first line, and its deeper lines belong to it.
#
# By hand, because ``without_parameter`` has to know the lines of an entry. docstring_parser and griffe do not say these, so
# they would be a second parser beside this one, and a second dependency of the core. Of the five docstrings in
# ``python -m bench.byhand`` docstring_parser raises for one (an empty section) and passes over another (``Keyword Args``);
# griffe reads all as they are meant. Both take 260 µs for one, this file 50.


_HEADING = re.compile(
    r"^(?P<title>Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Returns?|Yields?"
    r"|Raises|Examples?|Notes?|Warnings?|See Also|References|Todo|Attributes):\s*$"
)
_PARAMETER_SECTIONS = frozenset(
    {
        "Args",
        "Arguments",
        "Parameters",
        "Params",
        "Keyword Args",
        "Keyword Arguments",
        "Other Parameters",
    }
)
_ENTRY = re.compile(r"^\s*\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")


def description_of(doc: str | None) -> str:
    """The text before the first section."""
    lines: list[str] = []
    for line in _lines(doc):
        if _HEADING.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def parameters_of(doc: str | None) -> dict[str, str]:
    """The text of each parameter's entry, its lines joined with spaces."""
    lines = _lines(doc)
    return {
        name: " ".join([_text_of(lines[first]), *(line.strip() for line in lines[first + 1 : end])]).strip()
        for name, first, end in _entries(lines)
    }


def without_parameter(doc: str | None, name: str) -> str | None:
    """The docstring without one parameter's entry, and without the section if nothing is left in it."""
    lines = _lines(doc)
    entry = next((entry for entry in _entries(lines) if entry[0] == name), None)
    if entry is None:
        return doc
    _, first, end = entry
    kept = lines[:first] + lines[end:]
    heading = max(index for index in range(first) if _HEADING.match(lines[index]))
    if not any(found > heading and _section_of(kept, found) == heading for _, found, _ in _entries(kept)):
        del kept[heading]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _lines(doc: str | None) -> list[str]:
    return inspect.cleandoc(doc).splitlines() if doc else []


def _text_of(line: str) -> str:
    entry = _ENTRY.match(line)
    return entry["text"].strip() if entry else ""


def _section_of(lines: list[str], index: int) -> int:
    return max((at for at in range(index) if _HEADING.match(lines[at])), default=-1)


def _entries(lines: list[str]) -> list[tuple[str, int, int]]:
    """The entries of all parameter sections: a name, the index of its first line and the one after its last."""
    found: list[tuple[str, int, int]] = []
    inside = False
    margin: int | None = None
    for index, line in enumerate(lines):
        heading = _HEADING.match(line)
        if heading:
            inside, margin = heading["title"] in _PARAMETER_SECTIONS, None
            continue
        if not inside or not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            inside = False
            continue
        margin = indent if margin is None else margin
        entry = _ENTRY.match(line) if indent <= margin else None
        if entry:
            found.append((entry["name"], index, index + 1))
        elif found and found[-1][2] == index:
            found[-1] = (found[-1][0], found[-1][1], index + 1)
    return found


# -- the call of the model that it runs for ----------------------------------------------------------------------------

_called: ContextVar[Call | None] = ContextVar("callstream_called", default=None)


def current_call() -> Call | None:
    """Inside a tool: the call that it runs for, as its hooks have seen it; None if no model has called it."""
    return _called.get()


class ClaimedCall(NamedTuple):
    """The model's call that a call of a tool in Python means, and the tool itself where it has begun already."""

    call: Call
    joined: Joined | None = None


class CallClaims(Protocol):
    """The calls of a run, for tools that are called in Python."""

    def find(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        """The one that a call of the tool with these arguments means, which is claimed by that; None if there is none."""
        ...


call_claims: ContextVar[CallClaims | None] = ContextVar("callstream_call_claims", default=None)
"""Where a tool that is called in this context looks for its call."""


@contextmanager
def running_for(call: Call | None) -> Iterator[None]:
    """The tool of that call runs: it knows the call, and tools that it calls run for no call. None changes nothing."""
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
            pass  # a generator may be closed in another context than it began in


# -- signature and kind ------------------------------------------------------------------------------------------------

Fill: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
"""Completes the arguments of a call."""
Claim: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], ClaimedCall | None]
"""Finds the model's call that such a call of the function means."""


_NO_CALL = (None, None)


def resolved_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with its annotations resolved one by one: a name that only a type checker knows stays a string."""
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
    """The module in which the annotations were written: of a class those of ``__init__``, of an object ``__call__``."""
    origin: Any = inspect.unwrap(without_partials(function))
    if inspect.isclass(origin):
        origin = origin.__init__
    elif not inspect.isroutine(origin):
        origin = type(origin).__call__
    return getattr(inspect.unwrap(origin), "__globals__", {})


def without_receiver(signature: inspect.Signature) -> inspect.Signature:
    """The signature of a bound method, without its receiver: a tool does not learn what it is bound to."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls") and parameters[0].annotation is inspect.Parameter.empty:
        return signature.replace(parameters=parameters[1:])
    return signature


def annotations_of(signature: inspect.Signature) -> dict[str, Any]:
    found = {p.name: p.annotation for p in signature.parameters.values() if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        found["return"] = signature.return_annotation
    return found


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
            with running_for(call):
                items = function(*args, **kwargs)
                try:
                    async for item in items:
                        yield item
                finally:
                    await items.aclose()

        return stream
    if is_of_kind(inspect.isgeneratorfunction, function):

        def steps(*args: Any, **kwargs: Any) -> Any:
            call, begun = claim(args, kwargs) or _NO_CALL
            if begun is not None:
                yield from begun.wait_here()
                return None
            args, kwargs = fill(args, kwargs)
            with running_for(call):
                return (yield from function(*args, **kwargs))

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


def is_of_kind(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether the function, or the ``__call__`` of a callable object, is of that kind."""
    if inspect.isroutine(function):
        return kind(function)
    return kind(function) or kind(type(function).__call__)
