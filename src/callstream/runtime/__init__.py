"""Runs: where decoder, ledger, hooks and journal meet. ``Engine`` is what they share, ``Driver`` works on them."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from callstream.runtime.driver import Driver, DriverSettings, RunRequest, Seat, Seats, StartedRun
from callstream.runtime.engine import Engine, Observers, Settings
from callstream.runtime.log import TextLimits
from callstream.runtime.response import Response, TextFilter
from callstream.runtime.run import ModelCall, Observer, Run, RunEngine, current_model_call, current_run

__all__ = [
    "Driver",
    "DriverSettings",
    "Engine",
    "ModelCall",
    "Observer",
    "Observers",
    "Response",
    "Run",
    "RunEngine",
    "RunRequest",
    "Seat",
    "Seats",
    "Settings",
    "StartedRun",
    "TextFilter",
    "TextLimits",
    "current_model_call",
    "current_run",
]


def __getattr__(name: str) -> Any:
    if name not in ("Callstream", "SyncRun"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from callstream, not from callstream.runtime", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("callstream"), name)
