"""Where each wire is found on its provider's server, and how a request says which form of answer it wants."""

from __future__ import annotations

import msgspec

from callstream.testing.encoders import ENCODERS
from callstream.testing.encoders.encoder import Form
from callstream.testing.httpserver import ReceivedRequest


class Route(msgspec.Struct, frozen=True):
    """What a request asks for. ``model`` is the one that it names."""

    wire: str
    form: Form
    model: str | None


def base_path(wire: str) -> str:
    """What an SDK's ``base_url`` has after the host."""
    return ENCODERS[wire].base_path


def place_of(wire: str) -> str:
    """Where the wire's requests go, for people."""
    return ENCODERS[wire].place


def wire_of(path: str) -> str | None:
    """The wire that is spoken at a path."""
    return next((wire for wire, encoder in ENCODERS.items() if encoder.path.search(path)), None)


def route_of(request: ReceivedRequest) -> Route | None:
    """What the request asks for; None if it is no request of any wire."""
    if request.method == "GET":
        return _resumed(request)
    if request.method != "POST":
        return None
    for wire, encoder in ENCODERS.items():
        match = encoder.path.search(request.path)
        if match is not None:
            body = request.json
            fields = body if isinstance(body, dict) else {}
            named = match.groupdict()
            form = encoder.form_of(named.get("verb"), request.query, fields)
            return Route(wire, form, named.get("model") or fields.get("model"))
    return None


def _resumed(request: ReceivedRequest) -> Route | None:
    for wire, encoder in ENCODERS.items():
        if encoder.resumed_path is not None and encoder.resumed_path.search(request.path):
            return Route(wire, "events" if request.query.get("stream") == "true" else "whole", None)
    return None
