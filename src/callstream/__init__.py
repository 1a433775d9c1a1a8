"""Live, durable tool calls for agent applications: arguments seen while the model writes them."""

from __future__ import annotations

from callstream.calls import Call, CallState, Refusal, ToolResult
from callstream.callstream import Callstream, SyncRun
from callstream.errors import (
    ArgumentsAborted,
    CallRejected,
    CallstreamError,
    Compacted,
    JournalError,
    Reject,
    TransitionError,
    UsageError,
    WireError,
)
from callstream.events import Record
from callstream.hooks import ArgsDelta, FieldDelta
from callstream.journal import Journal, open_journal
from callstream.jsontext import Change, JsonStream, JsonWriter
from callstream.logtext import guard_loggers as _guard_loggers
from callstream.runtime import Run, Settings, current_run
from callstream.tools import AbortSignal, Progress, Streamed, no_progress, tool
from callstream.wire import decoder_for, results_in

__all__ = [
    # running
    "Callstream",
    "Settings",
    "Run",
    "SyncRun",
    "current_run",
    # tools and their hooks
    "tool",
    "ArgsDelta",
    "FieldDelta",
    "AbortSignal",
    "Progress",
    "no_progress",
    "Streamed",
    "ArgumentsAborted",
    "Reject",
    "Refusal",
    "ToolResult",
    # what is kept
    "open_journal",
    "Journal",
    "Record",
    "Call",
    "CallState",
    # reading streams
    "decoder_for",
    "results_in",
    "JsonStream",
    "Change",
    "JsonWriter",
    # errors
    "CallstreamError",
    "CallRejected",
    "WireError",
    "UsageError",
    "TransitionError",
    "JournalError",
    "Compacted",
]

__version__ = "0.1.0"

_guard_loggers()
