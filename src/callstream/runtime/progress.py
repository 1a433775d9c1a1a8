"""What running tools report to their interface: from any thread, never into the model's context.

The application's handler gets every report, in order, each when it has handled the one before. Other processes and
interfaces get records, which are fewer: reports that come within the interval are merged, and the last one of each message
is kept. If merging was asked for, the handler gets only what is recorded.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from callstream.errors import CallstreamError, TransitionError, UsageError
from callstream.events import CallProgressed, RunEvent
from callstream.runtime.log import wait_until_done

logger = logging.getLogger("callstream")

MAX_WAITING = 10_000
"""How many reports may wait for a handler that is slower than its tool. Beyond that they are merged, with a warning."""

_PATIENCE = 30.0
"""Seconds for which the end of a tool waits for the handler to take all reports."""
_LONGEST_REPR = 1_000
_REPORT = ("tool_name", "function_call_id", "data")
"""The parameters of every handler, in this order."""


class NamedProgressHandler(Protocol):
    """A handler whose parameters have these names, in any order."""

    def __call__(self, *, tool_name: str, function_call_id: str, data: Any) -> Awaitable[None] | None: ...


class CallProgressHandler(Protocol):
    """A handler that also takes the call's id in Callstream."""

    def __call__(self, *, tool_name: str, function_call_id: str, data: Any, call_id: str) -> Awaitable[None] | None: ...


ProgressHandler: TypeAlias = (
    Callable[[str, str, Any], Awaitable[None] | None] | NamedProgressHandler | CallProgressHandler
)
"""Called with the tool's name, the call's id and what the tool reported. Sync or async; its exceptions are logged.

It is called by name if its parameters are named ``tool_name``, ``function_call_id`` and ``data``, else by position. The
second is the provider's id. A parameter ``call_id``, besides it or instead, gets the id by which hooks and the journal know
the call.
"""


def arguments_for(handler: Any, report: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments with which to call a handler for a report. UsageError if there is no way."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # not callable, or a C function without a signature
        if not callable(handler):
            raise UsageError(f"expected a function as on_tool_progress, got {handler!r}") from None
        return tuple(report[name] for name in _REPORT), {}
    wanted = {name: value for name, value in report.items() if name in signature.parameters}
    named = wanted if "call_id" in wanted else {name: report[name] for name in _REPORT}
    ways: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((), named),
        (tuple(report[name] for name in _REPORT), {}),
    )
    for args, kwargs in ways:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return args, kwargs
    raise UsageError(f"expected on_tool_progress to take (tool_name, function_call_id, data), got {signature}")


def check_handler(handler: ProgressHandler | None) -> None:
    if handler is not None:
        arguments_for(handler, {"tool_name": "", "function_call_id": "", "data": None, "call_id": ""})


def _to_json(data: Any) -> Any:
    """The data as JSON values: values that JSON does not know are written as their ``repr``."""
    try:
        return json.loads(json.dumps(data, default=repr, allow_nan=False))
    except (TypeError, ValueError, RecursionError):  # a key that is not text, infinity, something that contains itself
        return repr(data)[:_LONGEST_REPR]


class ProgressFeed:
    """The progress of one executing call, on the loop where it was made.

    ``write`` records events of the run. ``tell`` hands one report to the application; it does not raise. ``interval``:
    seconds between two records. ``merge``: whether the application gets only what is recorded.
    """

    def __init__(
        self,
        call_id: str,
        write: Callable[[Sequence[RunEvent]], Awaitable[None]],
        tell: Callable[[str, Any], Coroutine[Any, Any, None]],
        *,
        interval: float,
        merge: bool,
    ) -> None:
        self._call_id = call_id
        self._write = write
        self._tell = tell
        self._interval = interval
        self._merge = merge
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._untold: deque[Any] = deque()
        self._unkept: dict[str, Any] = {}  # by message
        self._teller: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._keeping: asyncio.Future[None] | None = None  # what is being recorded
        self._closed = False
        self._warned: set[str] = set()

    def report(self, data: Any) -> None:
        """Takes a report, in any thread. After the call has ended it is not recorded, but the handler still gets it."""
        data = _copy(data)
        with self._lock:
            is_told = self._closed or not self._merge
            wake = not self._unkept or (is_told and not self._untold)
            if not self._closed:
                _put(self._unkept, data)
            if is_told:
                self._untold.append(data)
                if len(self._untold) > MAX_WAITING:
                    self._untold = deque(_merge_reports(self._untold))
                    self._warn("progress of call %r comes faster than on_tool_progress takes it, and is merged")
            if self._closed:
                self._warn("progress of call %r came after its end, and is not recorded")
        if wake and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def aclose(self, *, wait: bool = True) -> None:
        """Records waiting reports, and ends. ``wait``: also waits for the handler to take all, unless it takes too long; not
        at the end of a run, because a handler may be what ends it.
        """
        with self._lock:
            self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if self._keeping is not None:
            await wait_until_done(self._keeping)
        await self._flush()
        self._wake()
        if wait and self._teller is not None:
            _, pending = await asyncio.wait({self._teller}, timeout=_PATIENCE)
            if pending:
                self._warn("on_tool_progress still has reports of call %r to take; the run no longer waits for it")

    def _wake(self) -> None:
        if self._untold and self._teller is None:
            self._teller = self._loop.create_task(self._tell_all(), name=f"callstream progress of {self._call_id}")
        if self._unkept and self._keeper is None and not self._closed:
            self._keeper = self._loop.create_task(self._keep_all(), name=f"callstream progress of {self._call_id}")

    async def _tell_all(self) -> None:
        while self._untold:
            with self._lock:
                data = self._untold.popleft()
            await self._tell(self._call_id, data)
        self._teller = None

    async def _keep_all(self) -> None:
        while await self._flush():  # noqa: ASYNC110  # a pace, not a poll
            await asyncio.sleep(self._interval)
        self._keeper = None

    async def _flush(self) -> bool:
        with self._lock:
            reports = list(self._unkept.values())
            self._unkept.clear()
        if not reports:
            return False
        self._keeping = asyncio.ensure_future(self._keep(reports))
        await wait_until_done(self._keeping)
        return True

    async def _keep(self, reports: Sequence[Any]) -> None:
        await self._record(reports)
        if self._merge:
            with self._lock:
                self._untold.extend(reports)
            self._wake()

    async def _record(self, reports: Sequence[Any]) -> None:
        """Records the reports, oldest first, as far as possible. The tool must not fail if they are not recorded."""
        try:
            try:
                await self._write([CallProgressed(self._call_id, data) for data in reports])
            except TransitionError:
                raise
            except UsageError:  # a report has something that JSON cannot express
                await self._write([CallProgressed(self._call_id, _to_json(data)) for data in reports])
        except CallstreamError as error:
            logger.warning("progress of call %r was not recorded: %s", self._call_id, error)

    def _warn(self, text: str) -> None:
        """Logs each warning once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, self._call_id)


def _copy(data: Any) -> Any:
    """Tools often change an object and report it again, so its containers are copied as they are now."""
    try:
        match data:
            case dict():
                return {key: _copy(value) for key, value in data.items()}
            case list():
                return [_copy(value) for value in data]
            case _:
                return data
    except RecursionError:
        return data


def _put(reports: dict[str, Any], data: Any) -> None:
    """Adds a report as the newest. It supersedes the one with the same message; a text is its own message."""
    message = data.get("message") if isinstance(data, dict) else data if isinstance(data, str) else None
    key = message if isinstance(message, str) else ""
    reports.pop(key, None)
    reports[key] = data


def _merge_reports(reports: Iterable[Any]) -> list[Any]:
    merged: dict[str, Any] = {}
    for data in reports:
        _put(merged, data)
    return list(merged.values())
