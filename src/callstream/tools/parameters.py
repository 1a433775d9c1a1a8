"""The parameters of a tool that the program fills in, not the model alone: a ``Progress``, and a ``Streamed``.

A running tool uses its Progress to report how far it is. A Streamed gives it a value while the model is writing that value:
``content: Streamed[str]`` yields text as it arrives, ``items: Streamed[list[Item]]`` each item when it is whole. The model
sees a string, or an array, declared after all other parameters, so that it writes it last. An async tool iterates with
``async for``, a sync tool with ``for`` in its own thread; ``for`` in an async tool would block the event loop, which brings
the pieces, so it raises ``UsageError``. The end of the arguments ends the iteration; if they will not arrive whole and
valid, the iteration raises ``ArgumentsAborted``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import msgspec

from callstream.errors import ArgumentsAborted, UsageError
from callstream.waits import running_loop

T = TypeVar("T")
Item = TypeVar("Item")

Filled: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Fill: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Filled]
"""Completes the arguments of a call."""


def positional_names(function: Callable[..., Any]) -> list[str]:
    """The parameters that a caller may pass by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _place(positional: list[str], name: str) -> int:
    """The parameter's position; beyond all positions if it can only be passed by name."""
    return positional.index(name) if name in positional else sys.maxsize


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """How a running tool reports its progress to its interface; the model never sees it.

    ``progress(done, total, message)`` reports ``{"done": …, "total": …, "message": …}``; ``progress(data)`` with
    anything but a number reports that. The call itself makes the report. Its return value may be awaited, which lets
    other tasks run, but need not be, so plain functions and generators can use it as well. ``report`` must be
    thread-safe.
    """

    __slots__ = ("_report",)

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report

    def __call__(self, done: Any = None, total: float | None = None, message: str | None = None) -> Awaitable[None]:
        is_number = isinstance(done, int | float) and not isinstance(done, bool)
        if done is None or is_number or total is not None or message is not None:
            self._report({"done": done, "total": total, "message": message})
        else:
            self._report(done)
        return _REPORTED

    def __repr__(self) -> str:
        return "no_progress" if self is no_progress else f"Progress({self._report!r})"


class _Reported:
    """Already done; awaiting it gives other tasks a turn."""

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.sleep(0).__await__()


_REPORTED: Final = _Reported()
no_progress: Final = Progress(lambda data: None)
current_progress: ContextVar[Progress | None] = ContextVar("callstream_progress", default=None)
"""The Progress that tools called in this context report to, if their caller passes none itself."""


def progress_parameter(function: Callable[..., Any], signature: inspect.Signature) -> inspect.Parameter | None:
    """The parameter that is annotated ``Progress``, has such a default, or is named ``progress_callback``.

    Otherwise it is one named ``progress``, unless something suggests that a model could fill it in: it must have no
    annotation or that of a callable, and no default but None. ``progress: int`` is an argument like any other.
    """
    parameters = signature.parameters.values()
    found = [p for p in parameters if is_progress(p)] or [p for p in parameters if _may_take_progress(p)]
    if len(found) > 1:
        names = " and ".join(p.name for p in found)
        raise UsageError(f"expected at most one parameter for progress in {function!r}, got {names}")
    if found and found[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UsageError(f"parameter {found[0].name!r} of {function!r} takes the progress, so it needs to have a name")
    return found[0] if found else None


def is_progress(parameter: inspect.Parameter) -> bool:
    """Whether the parameter can only be meant for a Progress."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        is_annotated = annotation.split(".")[-1].split(" ")[0].rstrip("]") == "Progress"
    else:
        is_annotated = annotation is Progress or Progress in get_args(annotation)
    return is_annotated or isinstance(parameter.default, Progress) or parameter.name == "progress_callback"


def _may_take_progress(parameter: inspect.Parameter) -> bool:
    return (
        parameter.name == "progress"
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.default is parameter.empty or parameter.default is None)
        and (parameter.annotation is parameter.empty or _is_callable(parameter.annotation))
    )


def _is_callable(annotation: Any) -> bool:
    return any(each is Callable or get_origin(each) is Callable for each in (annotation, *get_args(annotation)))


def progress_filling(positional: list[str], hidden: inspect.Parameter) -> Fill:
    """Supplies the Progress that a function expects if its caller, which may not know about it, passed none."""
    place = _place(positional, hidden.name)
    is_last = place == len(positional) - 1
    default: Any = no_progress if hidden.default is hidden.empty else hidden.default

    def fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Filled:
        reaches = len(args) > place
        if hidden.name in kwargs or (reaches and (is_last or isinstance(args[place], Progress))):
            return args, kwargs
        progress = current_progress.get() or default
        if reaches:
            return (*args[:place], progress, *args[place:]), kwargs
        return args, {**kwargs, hidden.name: progress}

    return fill


# -- values that stream -----------------------------------------------------------------------------------------------


class Streamed(Generic[T]):
    """An iterator, async and sync, over the pieces of one argument. It can be read once, by one reader at a time.

    ``Streamed.of("…")`` is whole from the beginning, for tests: its arguments are the pieces, or one list of them. With
    ``aborted="truncated"`` (or another reason) ``ArgumentsAborted`` is raised after the pieces.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._seen: list[Any] = []
        self._has_ended = False
        self._reason: str | None = None
        self._detail: str | None = None
        self._keeps_pieces = False  # an abort is raised after the pieces so far, not at once
        self._is_for_task = False  # a coroutine function was called with it
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @classmethod
    def of(cls, *pieces: Any, aborted: str | None = None, detail: str | None = None) -> Streamed[Any]:
        made: Streamed[Any] = cls()
        for piece in pieces[0] if len(pieces) == 1 and isinstance(pieces[0], list) else pieces:
            made.put(piece)
        if aborted is None:
            made.end()
        else:
            made._keeps_pieces = True
            made.abort(aborted, detail)
        return made

    @property
    def text(self) -> str:
        """All text that has arrived, whether read or not."""
        return "".join(self.items)

    @property
    def items(self) -> list[Any]:
        """All pieces or items that have arrived, whether read or not."""
        with self._lock:
            return [*self._seen, *self._waiting]

    @property
    def is_complete(self) -> bool:
        """Whether the arguments have ended, so that no more will come."""
        return self._has_ended

    # -- reading --

    def __aiter__(self) -> Self:
        return self

    @overload
    async def __anext__(self: Streamed[list[Item]]) -> Item: ...
    @overload
    async def __anext__(self: Streamed[str]) -> str: ...
    async def __anext__(self) -> Any:
        while True:
            with self._lock:
                if self._is_known():
                    return self._pop(StopAsyncIteration)
                reader = self._reader = (asyncio.get_running_loop(), asyncio.Event())
            try:
                await reader[1].wait()
            finally:
                with self._lock:
                    if self._reader is reader:  # it was cancelled, and waits no longer
                        self._reader = None

    def __iter__(self) -> Self:
        return self

    @overload
    def __next__(self: Streamed[list[Item]]) -> Item: ...
    @overload
    def __next__(self: Streamed[str]) -> str: ...
    def __next__(self) -> Any:
        with self._lock:
            if (self._is_for_task or not self._is_known()) and running_loop() is not None:
                raise UsageError(
                    "expected 'async for' over a Streamed in an async tool, got 'for': it would block the event loop, which "
                    "brings the pieces"
                )
            self._lock.wait_for(self._is_known)
            return self._pop(StopIteration)

    def _is_known(self) -> bool:
        return bool(self._waiting) or self._has_ended or self._reason is not None

    def _pop(self, end: type[Exception]) -> Any:
        if self._reason is not None and not (self._keeps_pieces and self._waiting):
            raise ArgumentsAborted(self._reason, self._detail)
        if not self._waiting:
            raise end
        piece = self._waiting.popleft()
        self._seen.append(piece)
        return piece

    # -- writing, in any thread --

    def put(self, piece: Any) -> None:
        """Adds the next piece of text, or the next item."""
        with self._lock:
            self._waiting.append(piece)
            self._wake()

    def end(self) -> None:
        """The arguments have ended, whole and valid."""
        with self._lock:
            self._has_ended = True
            self._wake()

    def abort(self, reason: str, detail: str | None = None) -> bool:
        """The rest will not arrive. Changes nothing if the arguments have ended. Returns whether a task was waiting."""
        with self._lock:
            has_reader = self._reader is not None
            if not self._has_ended:
                self._reason, self._detail = reason, detail
                self._wake()
            return has_reader

    def expect_task(self) -> None:
        """A task will read it, and must use ``async for`` even if everything has arrived."""
        self._is_for_task = True

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader[0].is_closed():
            reader[0].call_soon_threadsafe(reader[1].set)
        self._lock.notify_all()

    def __repr__(self) -> str:
        how = f"aborted: {self._reason}" if self._reason else "complete" if self._has_ended else "arriving"
        return f"<Streamed {how}, {len(self.items)} pieces>"


class StreamedParameter(msgspec.Struct, frozen=True):
    """The parameter of a tool that takes a ``Streamed``. ``type``: as the model sees it. ``item``: of an array's items."""

    name: str
    type: Any
    item: Any = msgspec.UNSET
    takes_none: bool = False
    default: Any = inspect.Parameter.empty

    @property
    def is_text(self) -> bool:
        return self.item is msgspec.UNSET


def streamed_filling(positional: list[str], streamed: StreamedParameter, *, is_async: bool) -> Fill:
    """Wraps the value for a parameter that expects a ``Streamed`` if the caller passed it whole."""
    place = _place(positional, streamed.name)

    def wrap(value: Any) -> Any:
        if isinstance(value, str if streamed.is_text else list):
            value = Streamed.of(value) if value else Streamed.of()
        if is_async and isinstance(value, Streamed):
            value.expect_task()
        return value

    def fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Filled:
        if len(args) > place:
            return (*args[:place], wrap(args[place]), *args[place + 1 :]), kwargs
        value = kwargs.get(streamed.name, streamed.default)
        return args, kwargs if value is inspect.Parameter.empty else {**kwargs, streamed.name: wrap(value)}

    return fill


def streamed_parameter(function: Callable[..., Any], signature: inspect.Signature) -> StreamedParameter | None:
    """The parameter that is annotated ``Streamed[…]``, possibly with ``| None``; at most one."""
    found = [made for p in signature.parameters.values() if (made := _streamed(function, p)) is not None]
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise UsageError(
            f"expected at most one Streamed parameter in {function!r}, got {names}: a model writes one last"
        )
    return found[0] if found else None


def _streamed(function: Callable[..., Any], parameter: inspect.Parameter) -> StreamedParameter | None:
    annotation, notes = parameter.annotation, list[Any]()
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
    takes_none = get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation)
    if takes_none:
        annotation = next((each for each in get_args(annotation) if each is not type(None)), None)
    if annotation is Streamed:
        annotation = Streamed[str]
    if get_origin(annotation) is not Streamed:
        return None
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UsageError(f"parameter {parameter.name!r} of {function!r} is streamed, so it needs to have a name")
    (inner,) = get_args(annotation)
    item: Any = msgspec.UNSET
    if inner is list or get_origin(inner) is list:
        item = (get_args(inner) or (Any,))[0]
    elif inner is not str:
        raise UsageError(
            f"parameter {parameter.name!r} of {function!r}: expected Streamed[str] or Streamed[list[…]], got {annotation}"
        )
    shown = inner | None if takes_none else inner
    if notes:
        shown = Annotated[(shown, *notes)]
    return StreamedParameter(parameter.name, shown, item, takes_none, parameter.default)


def declare_last(signature: inspect.Signature, streamed: StreamedParameter) -> inspect.Signature:
    """The signature that the model and the frameworks see: the streamed value whole, after all others."""
    parameters = list(signature.parameters.values())
    place = next(index for index, each in enumerate(parameters) if each.name == streamed.name)
    shown = parameters.pop(place).replace(annotation=streamed.type)
    if isinstance(shown.default, Streamed):
        default: Any = shown.default.text if streamed.is_text else shown.default.items
        shown = shown.replace(default=default)
    variadic = [each for each in parameters if each.kind is each.VAR_KEYWORD]
    others = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    if place < len(others):  # after parameters with defaults, only one that is passed by name may follow
        shown = shown.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    return signature.replace(parameters=[*others, shown, *variadic])


class Joined(Protocol):
    """A tool that has begun already, whose result is wanted now."""

    async def wait(self) -> Any:
        """Returns or raises what the tool does."""
        ...

    def wait_here(self) -> Any:
        """The same for a plain function: blocks its thread."""
        ...
