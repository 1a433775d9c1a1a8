"""State from a request's headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ag_ui.core import RunAgentInput

if TYPE_CHECKING:
    from fastapi import Request

StateExtractor: TypeAlias = "Callable[[Request, RunAgentInput], Awaitable[dict[str, Any] | None]]"
"""Gives state that the server decides, by the request and its input."""


def make_extract_headers(headers_to_extract: Sequence[str]) -> StateExtractor:
    """An ``extract_state_from_request`` that puts these headers into ``state["headers"]``.

    Each is there under its name in lower case with underscores and without ``x-``, if the request has it. What the client
    has in ``state["headers"]`` comes first.
    """

    async def extract_headers(request: Request, given: RunAgentInput) -> dict[str, Any]:
        found = {
            name.lower().removeprefix("x-").replace("-", "_"): value
            for name in headers_to_extract
            if (value := request.headers.get(name)) is not None
        }
        if not found:
            return {}
        sent = given.state.get("headers") if isinstance(given.state, dict) else None
        return {"headers": {**found, **(sent if isinstance(sent, dict) else {})}}

    return extract_headers
