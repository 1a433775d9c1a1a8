"""The agent of the image, until you put yours in its place; and who may use it."""

from __future__ import annotations

import hmac
import os

from google.adk.agents import LlmAgent
from starlette.requests import Request

_TOKENS = dict(pair.split("=", 1) for pair in os.environ.get("TOKENS", "").split())


def user_of(request: Request) -> str | None:
    """The user whose bearer token a request carries; None, and so a 401, for all others."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    return next((user for user, token in _TOKENS.items() if hmac.compare_digest(given, token.encode())), None)


def count_words(text: str) -> int:
    """Counts the words of a text.

    Args:
        text: The text.
    """
    return len(text.split())


root_agent = LlmAgent(
    name="assistant",
    model=os.environ.get("MODEL", "gemini-3-flash-preview"),
    instruction="You are a helpful assistant.",
    tools=[count_words],
)
