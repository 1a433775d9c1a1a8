"""Where each wire is found on its provider's server, and how a request says which form of answer it wants."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from callstream.testing.httpserver import ReceivedRequest

Form: TypeAlias = Literal["events", "array", "whole"]
"""A stream of server-sent events, Gemini's stream as a JSON array, or an answer that is not streamed."""

_PLACES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "gemini",
        re.compile(
            r"/(?:models|tunedModels|endpoints)/(?P<model>[^/:]+):(?P<verb>streamGenerateContent|generateContent)$"
        ),
        "/v1beta/models/{model}:streamGenerateContent",
    ),
    ("anthropic", re.compile(r"/messages$"), "/v1/messages"),
    (
        "anthropic",
        re.compile(r"/publishers/anthropic/models/(?P<model>[^/:]+):(?P<verb>streamRawPredict|rawPredict)$"),
        "/v1/messages",
    ),
    ("openai_chat", re.compile(r"/chat/completions$"), "/v1/chat/completions"),
    ("openai_responses", re.compile(r"/responses$"), "/v1/responses"),
)
_BASE_PATHS = {"gemini": "", "anthropic": "", "openai_chat": "/v1", "openai_responses": "/v1"}


class Route(msgspec.Struct, frozen=True):
    """What a request asks for. ``model`` is the one that it names."""

    wire: str
    form: Form
    model: str | None


def base_path(wire: str) -> str:
    """What an SDK's ``base_url`` has after the host."""
    return _BASE_PATHS[wire]


def place_of(wire: str) -> str:
    """Where the wire's requests go, for people."""
    return next(shown for name, _, shown in _PLACES if name == wire)


def wire_of(path: str) -> str | None:
    """The wire that is spoken at a path."""
    return next((wire for wire, pattern, _ in _PLACES if pattern.search(path)), None)


def route_of(request: ReceivedRequest) -> Route | None:
    """What the request asks for; None if it is no request of any wire."""
    if request.method != "POST":
        return None
    for wire, pattern, _ in _PLACES:
        match = pattern.search(request.path)
        if match is not None:
            body = request.json
            fields = body if isinstance(body, dict) else {}
            named = match.groupdict()
            model = named.get("model") or fields.get("model")
            return Route(wire, _form(wire, named.get("verb"), request, fields), model)
    return None


def _form(wire: str, verb: str | None, request: ReceivedRequest, fields: dict[str, Any]) -> Form:
    if wire == "gemini":
        if verb == "generateContent":
            return "whole"
        # google-genai writes the parameter as $alt for some servers.
        return "events" if "sse" in (request.query.get("alt"), request.query.get("$alt")) else "array"
    return "events" if fields.get("stream") is True or verb == "streamRawPredict" else "whole"
