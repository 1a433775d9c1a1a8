"""Tools: the decorator, what it declares to a model, and the progress that a running tool reports."""

from __future__ import annotations

from callstream.tools.abort import AbortSignal
from callstream.tools.check import StreamCheck
from callstream.tools.convert import Arguments, typed_arguments
from callstream.tools.fault import Fault, describe
from callstream.tools.progress import Progress, current_progress, no_progress
from callstream.tools.schema import Provider
from callstream.tools.streamed import BegunTools, Joined, Streamed, StreamedParameter, begun_tools
from callstream.tools.tool import (
    ArgsAbortHook,
    ArgsCompleteHook,
    ArgsDeltaHook,
    ErrorPolicy,
    FieldHook,
    Hook,
    Hooks,
    Start,
    Tool,
    check_field,
    check_hook_settings,
    is_tool,
    starts_early,
    tool,
)

__all__ = [
    "AbortSignal",
    "ArgsAbortHook",
    "ArgsCompleteHook",
    "ArgsDeltaHook",
    "Arguments",
    "BegunTools",
    "ErrorPolicy",
    "Fault",
    "FieldHook",
    "Hook",
    "Hooks",
    "Joined",
    "Progress",
    "Provider",
    "Start",
    "Streamed",
    "StreamedParameter",
    "StreamCheck",
    "Tool",
    "begun_tools",
    "check_field",
    "check_hook_settings",
    "current_progress",
    "describe",
    "is_tool",
    "no_progress",
    "starts_early",
    "tool",
    "typed_arguments",
]
