"""Observers (telemetry, logs) are told of runs and calls after the fact, in the run's own loop.

Pieces of text are not told: a call that gets ten thousand of them changes its state once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from callstream.calls import Call

if TYPE_CHECKING:
    from callstream.runtime.run import Run

logger = logging.getLogger("callstream")


class Observer(Protocol):
    """What it raises is logged, and changes nothing. It must not wait."""

    def run_started(self, run: Run) -> None: ...

    def call_changed(self, run: Run, call: Call) -> None:
        """The call has a new state. ``run`` is the one that told of it, for an answer not the call's own."""

    def run_ended(self, run: Run) -> None:
        """``run.outcome`` and ``run.reason`` say how."""

    def streams_changed(self, change: int) -> None:
        """A server has more streams that are read, or less."""


@runtime_checkable
class Surrounding(Protocol):
    """An observer that also wants to surround the work of a run: ``async with run`` enters and leaves it."""

    def run_entered(self, run: Run) -> Callable[[], None]:
        """Called in the context of the work, when it begins; what it returns is called when the work ends there."""


class Observers:
    """All of a Callstream's observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        self._observers += (observer,)

    def run_started(self, run: Run) -> None:
        self._tell(lambda observer: observer.run_started(run))

    def run_entered(self, run: Run) -> Callable[[], None]:
        """Enters the run with the observers that surround it. Returns what leaves it again."""
        left: list[Callable[[], None]] = []
        self._tell(lambda each: left.append(each.run_entered(run)) if isinstance(each, Surrounding) else None)

        def leave() -> None:
            for undo in reversed(left):
                undo()

        return leave

    def call_changed(self, run: Run, call: Call) -> None:
        self._tell(lambda observer: observer.call_changed(run, call))

    def run_ended(self, run: Run) -> None:
        self._tell(lambda observer: observer.run_ended(run))

    def streams_changed(self, change: int) -> None:
        self._tell(lambda observer: observer.streams_changed(change))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:  # an observer's errors are its own, never a run's
                logger.exception("observer %s failed", type(observer).__name__)


def remote_parent(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """A context in which runs belong to the trace that a request names (``traceparent``), if there is none already."""
    try:
        from callstream.runtime.telemetry import continue_trace
    except ImportError:
        return nullcontext()
    return continue_trace(headers)


def usual_observers(*, show_arguments: bool) -> Observers:
    """OpenTelemetry, where its API is installed."""
    try:
        from callstream.runtime.telemetry import Telemetry
    except ImportError:
        return Observers()
    return Observers([Telemetry(show_arguments=show_arguments)])
