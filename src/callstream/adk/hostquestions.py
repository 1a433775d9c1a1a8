"""Questions that google-adk itself asks a person, as calls. Neither the model nor the journal knows of them."""

from __future__ import annotations

from typing import Final

from google.genai import types

CONFIRMATION: Final = "adk_request_confirmation"
"""Whether a call of the model's may run."""
HOST_QUESTIONS: Final = frozenset({CONFIRMATION, "adk_request_credential", "adk_request_input"})
"""The names of such calls."""


def asked_about(confirmation: types.FunctionCall) -> str | None:
    """The id of the call that is to be confirmed."""
    original = (confirmation.args or {}).get("originalFunctionCall")
    call_id = original.get("id") if isinstance(original, dict) else None
    return call_id if isinstance(call_id, str) else None
