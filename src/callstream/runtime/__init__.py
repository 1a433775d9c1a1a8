"""Runs: where decoder, ledger, hooks and journal meet. ``Engine`` is what they share, ``Driver`` works on them."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from callstream.errors import warn_of_name
from callstream.runtime.driver import Driver, DriverSettings, Limit, Permit, RunRequest, StartedRun
from callstream.runtime.engine import Engine, Observers, Settings
from callstream.runtime.log import TextLimits
from callstream.runtime.response import Response, TextFilter
from callstream.runtime.run import ModelCall, Observer, Run, RunEngine, current_model_call, current_run

__all__ = [
    "Driver",
    "DriverSettings",
    "Engine",
    "Limit",
    "ModelCall",
    "Observer",
    "Observers",
    "Permit",
    "Response",
    "Run",
    "RunEngine",
    "RunRequest",
    "Settings",
    "StartedRun",
    "TextFilter",
    "TextLimits",
    "current_model_call",
    "current_run",
]


_RENAMED = {"Seats": "Limit", "Seat": "Permit"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warn_of_name(name, _RENAMED[name])
        return globals()[_RENAMED[name]]
    if name not in ("Callstream", "SyncRun"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from callstream, not from callstream.runtime", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("callstream"), name)
