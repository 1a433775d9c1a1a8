"""Callstream and Run: where decoder, ledger, hooks and journal meet."""

from __future__ import annotations

from callstream.runtime.callstream import Callstream
from callstream.runtime.driver import Driver, DriverSettings, StartedRun
from callstream.runtime.limits import Seats, Settings, TextLimits
from callstream.runtime.modelcall import ModelCall, current_model_call
from callstream.runtime.observers import Observer, Observers, remote_parent
from callstream.runtime.repeats import RunRequest
from callstream.runtime.response import Response
from callstream.runtime.run import Run, current_run
from callstream.runtime.syncrun import SyncRun

__all__ = [
    "Callstream",
    "Driver",
    "DriverSettings",
    "ModelCall",
    "Observer",
    "Observers",
    "Response",
    "Run",
    "RunRequest",
    "Seats",
    "Settings",
    "StartedRun",
    "SyncRun",
    "TextLimits",
    "current_model_call",
    "current_run",
    "remote_parent",
]
