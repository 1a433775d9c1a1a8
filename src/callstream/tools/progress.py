"""How a running tool tells its interface how far it is, and the parameter by which it is handed the means."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, get_args, get_origin

from callstream.errors import UsageError


class Progress:
    """How a running tool tells its interface how far it is; the model never sees it.

    ``progress(done, total, message)`` reports ``{"done": …, "total": …, "message": …}``; ``progress(data)`` with
    anything but a number reports that. The report is made by the call itself. What it returns may be awaited, which
    lets other tasks run, and need not be, so a plain function or a generator uses it as well. ``report`` must be
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


def _ignore(data: Any) -> None:
    """Nobody listens."""


_REPORTED: Final = _Reported()
no_progress: Final = Progress(_ignore)
current_progress: ContextVar[Progress | None] = ContextVar("callstream_progress", default=None)
"""What tools called in this context report to, if their caller hands them no Progress itself."""


def progress_parameter(function: Callable[..., Any], signature: inspect.Signature) -> inspect.Parameter | None:
    """The parameter that is annotated ``Progress``, has such a default, or is named ``progress_callback``.

    Where there is none, it is one named ``progress`` of which nothing says that a model could fill it in: it has no
    annotation or that of a callable, and no default but None. ``progress: int`` is an argument like any other.
    """
    parameters = signature.parameters.values()
    found = [p for p in parameters if _takes_progress(p)] or [p for p in parameters if _may_take_progress(p)]
    if len(found) > 1:
        names = " and ".join(p.name for p in found)
        raise UsageError(f"expected at most one parameter for progress in {function!r}, got {names}")
    if found and found[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UsageError(f"parameter {found[0].name!r} of {function!r} takes the progress, so it needs to have a name")
    return found[0] if found else None


def _takes_progress(parameter: inspect.Parameter) -> bool:
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


class ProgressFilling:
    """Puts a Progress where the function expects one and its caller, who may not know of it, gave none."""

    def __init__(self, function: Callable[..., Any], hidden: inspect.Parameter | None) -> None:
        self._hidden = hidden
        self._index = 0
        self._is_last = True
        if hidden is not None:
            parameters = inspect.signature(function).parameters.values()
            positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            if hidden.name in positional:
                self._index = positional.index(hidden.name)
                self._is_last = self._index == len(positional) - 1

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = self._hidden
        if hidden is None or hidden.name in kwargs:
            return args, kwargs
        reaches = hidden.kind is hidden.POSITIONAL_OR_KEYWORD and len(args) > self._index
        if reaches and (self._is_last or isinstance(args[self._index], Progress)):
            return args, kwargs
        progress: Any = current_progress.get()
        if progress is None:
            progress = no_progress if hidden.default is hidden.empty else hidden.default
        if reaches:
            return (*args[: self._index], progress, *args[self._index :]), kwargs
        return args, {**kwargs, hidden.name: progress}
