"""A public test aid: providers that answer by a script, with the bytes that the real ones would send.

``ScriptedProvider`` serves scripts over real HTTP, ``record`` and ``replay`` keep and serve real answers,
``stream_args`` drives a tool's hooks. ``encode`` and its siblings return just the bytes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from callstream.errors import warn_of_name
from callstream.testing.encoders import WIRES, encode, encode_whole, frames
from callstream.testing.script import (
    Cut,
    Delay,
    Failure,
    Finish,
    HttpError,
    Parallel,
    Script,
    Step,
    Text,
    Thought,
    ToolCall,
    Truncated,
    script_from_json,
    script_to_json,
)

if TYPE_CHECKING:
    from callstream.testing.driving import Driven, stream_args
    from callstream.testing.encoders.anthropic import eager_refusal, eager_tools, garble
    from callstream.testing.httpserver import ReceivedRequest
    from callstream.testing.provider import STAMP, ScriptedProvider
    from callstream.testing.recording import Recording, record, recording_proxy, replay

__all__ = [
    # scripts
    "Script",
    "Step",
    "Text",
    "Thought",
    "ToolCall",
    "Parallel",
    "Finish",
    "Failure",
    "Truncated",
    "Delay",
    "Cut",
    "HttpError",
    "script_from_json",
    "script_to_json",
    "garble",
    # providers
    "ScriptedProvider",
    "ReceivedRequest",
    "eager_refusal",
    "eager_tools",
    "STAMP",
    "record",
    "recording_proxy",
    "replay",
    "Recording",
    # tools
    "stream_args",
    "Driven",
    # bytes
    "WIRES",
    "encode",
    "encode_whole",
    "frames",
]

# Imported on first use: code that only wants bytes needs no server, and
# `python -m callstream.testing.provider` must not find its module already imported.
_LATER = {
    "Driven": "driving",
    "ReceivedRequest": "httpserver",
    "Recording": "recording",
    "STAMP": "provider",
    "ScriptedProvider": "provider",
    "eager_refusal": "encoders.anthropic",
    "eager_tools": "encoders.anthropic",
    "garble": "encoders.anthropic",
    "record": "recording",
    "recording_proxy": "recording",
    "replay": "recording",
    "stream_args": "driving",
}

# The former names of steps, which clashed with `callstream.Call` and `callstream.Refusal`.
_RENAMED = {"Call": ToolCall, "Refusal": HttpError}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warn_of_name(f"{__name__}.{name}", _RENAMED[name].__name__)
        return _RENAMED[name]
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
