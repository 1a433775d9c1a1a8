"""Which wire a request and its answer speak: told by path and content type, never by host name.

So compatible servers and gateways are recognised like the originals. What is not recognised passes untouched.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

_PATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r":(?:streamGenerateContent|generateContent)$"), "gemini"),
    (re.compile(r"/messages$"), "anthropic"),
    (re.compile(r"/publishers/anthropic/models/[^/]+:(?:streamRawPredict|rawPredict)$"), "anthropic"),
    (re.compile(r"/chat/completions$"), "openai_chat"),
    (re.compile(r"/responses$"), "openai_responses"),
)
# Google's own models, with a project in the path or, with an API key, without; and tuned models behind an endpoint.
_VERTEX = re.compile(r"/(?:publishers/google/models|endpoints)/[^/]+:streamGenerateContent$")


class Exchange(msgspec.Struct, frozen=True):
    """A request that the tap reads. ``is_vertex``: Gemini on Vertex, which streams arguments when it is asked to."""

    wire: str
    is_vertex: bool = False


def recognised(method: str, path: str, stated: str | None = None) -> Exchange | None:
    """The exchange that a request begins; None if it is none of ours. A stated wire counts for every POST."""
    if method != "POST":
        return None
    path = path.rstrip("/")
    wire = stated or next((wire for pattern, wire in _PATHS if pattern.search(path)), None)
    if wire is None:
        return None
    return Exchange(wire, is_vertex=wire == "gemini" and bool(_VERTEX.search(path)))


def answer_kind(wire: str, status: int, content_type: str, path: str) -> Literal["stream", "whole"] | None:
    """How an answer is to be read; None if it is not to be read at all: errors belong to the SDK."""
    if status != 200:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return "stream"
    if kind == "application/json":
        # Without alt=sse Gemini streams a JSON array.
        return "stream" if wire == "gemini" and path.endswith(":streamGenerateContent") else "whole"
    return None
