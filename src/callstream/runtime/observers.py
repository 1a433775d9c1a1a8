"""The observers of runs that come with Callstream: OpenTelemetry, where its API is installed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from callstream.runtime.engine import RunObserver, Settings
from callstream.runtime.run import Run

Observer: TypeAlias = RunObserver[Run]
"""Is notified of runs and calls."""


def remote_parent(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """A context in which runs belong to the trace that a request names (``traceparent``), if there is none already."""
    try:
        from callstream.runtime.telemetry import continue_trace
    except ImportError:
        return nullcontext()
    return continue_trace(headers)


def usual_observers(settings: Settings) -> list[Observer]:
    """OpenTelemetry, where its API is installed."""
    try:
        from callstream.runtime.telemetry import Telemetry
    except ImportError:
        return []
    return [Telemetry(show_arguments=settings.telemetry_arguments)]
