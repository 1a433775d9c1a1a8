"""Tools: the decorator, what it declares to a model, and the progress that a running tool reports."""

from __future__ import annotations

from callstream.tools.check import StreamCheck, describe
from callstream.tools.convert import typed_arguments
from callstream.tools.delta import AbortSignal
from callstream.tools.parameters import Joined, Progress, Streamed, StreamedParameter, current_progress, no_progress
from callstream.tools.tool import (
    NOT_DONE,
    UNKNOWN,
    ArgsAbortHook,
    ArgsCompleteHook,
    ArgsDeltaHook,
    CallClaims,
    ClaimedCall,
    ErrorPolicy,
    FieldHook,
    Hook,
    Hooks,
    Reconcile,
    Tool,
    call_claims,
    check_field,
    check_hook_settings,
    current_call,
    is_tool,
    running_for,
    starts_early,
    tool,
)

__all__ = [
    "NOT_DONE",
    "UNKNOWN",
    "AbortSignal",
    "ArgsAbortHook",
    "ArgsCompleteHook",
    "ArgsDeltaHook",
    "CallClaims",
    "ClaimedCall",
    "ErrorPolicy",
    "FieldHook",
    "Hook",
    "Hooks",
    "Joined",
    "Progress",
    "Reconcile",
    "Streamed",
    "StreamedParameter",
    "StreamCheck",
    "Tool",
    "call_claims",
    "check_field",
    "check_hook_settings",
    "current_call",
    "current_progress",
    "describe",
    "is_tool",
    "no_progress",
    "running_for",
    "starts_early",
    "tool",
    "typed_arguments",
]
