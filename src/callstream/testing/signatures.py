"""The law of thought signatures, as Gemini 3 holds its callers to it.

Of every step of the current turn (what the model said since the user last spoke, tool results aside), the first
function call has to come back with the signature that it was sent with.
https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from callstream.testing.script import HttpError, Parallel, Step, ToolCall

SENTINEL = b"skip_thought_signature_validator"
"""What the API takes in place of a signature that never was."""

_ACCEPTED = frozenset({SENTINEL.decode(), base64.b64encode(SENTINEL).decode().rstrip("=")})


class Signatures:
    """The signatures that were sent. It signs what is sent, and judges what comes back."""

    def __init__(self) -> None:
        self._sent: set[str] = set()

    def signed(self, steps: list[Step], number: int) -> list[Step]:
        """The steps with a signature on the response's first call, unless the script says that it has none ("")."""
        signed: list[Step] = []
        is_first = True
        for step in steps:
            if isinstance(step, ToolCall):
                step, is_first = self._signed_call(step, is_first, number), False
            elif isinstance(step, Parallel):
                calls = []
                for call in step.calls:
                    calls.append(self._signed_call(call, is_first, number))
                    is_first = False
                step = Parallel(calls)
            signed.append(step)
        return signed

    def _signed_call(self, call: ToolCall, is_first: bool, number: int) -> ToolCall:
        signature = call.signature
        if signature is None and is_first:
            signature = base64.b64encode(f"thought signature {number}".encode()).decode()
        if signature:
            self._sent.add(_normal(signature))
        return msgspec.structs.replace(call, signature=signature or None)

    def fault_in(self, request: Any) -> HttpError | None:
        """The refusal that the API would answer the request with; None if nothing is wrong with it."""
        contents = request.get("contents") if isinstance(request, dict) else None
        for position, part in _first_calls(contents if isinstance(contents, list) else []):
            name = _either(part, "functionCall", "function_call").get("name")
            signature = _either(part, "thoughtSignature", "thought_signature")
            if not signature:
                return HttpError(
                    400,
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                    "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                    f"data, function call `default_api:{name}` , position {position}. Please refer to "
                    "https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                )
            if _normal(signature) not in self._sent | _ACCEPTED:
                return HttpError(400, "Corrupted thought signature.")
        return None


def _first_calls(contents: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first call of each step of the current turn, with the position of its content, counted from 1."""
    turn = 0
    for index, content in enumerate(contents):
        answers = [_either(part, "functionResponse", "function_response") for part in _parts(content)]
        if _role(content) != "model" and None in answers:
            turn = index + 1
    is_found = False
    for position, content in enumerate(contents[turn:], turn + 1):
        if _role(content) != "model":
            is_found = False
            continue
        calls = [part for part in _parts(content) if _either(part, "functionCall", "function_call") is not None]
        if calls and not is_found:  # a client may keep one step in several contents
            is_found = True
            yield position, calls[0]


def _role(content: Any) -> Any:
    return content.get("role") if isinstance(content, dict) else None


def _parts(content: Any) -> list[dict[str, Any]]:
    parts = content.get("parts") if isinstance(content, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _either(part: dict[str, Any], name: str, other: str) -> Any:
    """The API takes names in either spelling."""
    return part.get(name, part.get(other))


def _normal(signature: str) -> str:
    """One spelling for both alphabets of base64. The sentinel as plain text stays what it is."""
    if signature == SENTINEL.decode():
        return signature
    return signature.replace("-", "+").replace("_", "/").rstrip("=")
