"""Who is told when runs and calls change their state: telemetry, logs.

Observers are told after the fact, in the run's own loop. Pieces of text are not told: a call that gets ten thousand of
them changes its state once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

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
                logger.exception("the observer %s failed", type(observer).__name__)


def usual_observers(*, show_arguments: bool) -> Observers:
    """OpenTelemetry, where its API is installed."""
    try:
        from callstream.runtime.telemetry import Telemetry
    except ImportError:
        return Observers()
    return Observers([Telemetry(show_arguments=show_arguments)])
