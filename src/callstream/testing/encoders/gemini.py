"""Gemini's streamGenerateContent: CRLF, candidates with parts; streamed arguments in the form that Vertex AI sends.

A streamed call opens with its name, continues with ``partialArgs`` (one value of one path per chunk, a string in pieces
with an empty piece that ends it), and ends with an empty ``functionCall``. A call that is not streamed is one whole part.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import msgspec

from callstream.errors import UsageError
from callstream.jsontext.path import Path, format_path
from callstream.testing.encoders.encoder import Encoder, Form, dumps
from callstream.testing.script import HttpError, Step, Text, Thought, ToolCall, with_calls

_SPACED = (",", ": ")
# Google's serialiser escapes these too. google-genai relies on that: any Unicode line end ends a line of its stream.
_ESCAPED = re.compile("[<>\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")


class GoogleEncoder(Encoder):
    """What both of Gemini's wires have in common: their server, and its errors."""

    upstream = "https://generativelanguage.googleapis.com"
    variables = ("GOOGLE_GEMINI_BASE_URL",)
    credentials = (("GEMINI_API_KEY", "none"),)
    stream_type = "text/event-stream"
    failure_status = 503
    kinds: ClassVar[Mapping[int, str]] = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }
    other_kind = "UNKNOWN"

    def error_body(self, status: int, kind: str, message: str) -> Any:
        return {"error": {"code": status, "message": message, "status": kind}}


class GeminiEncoder(GoogleEncoder):
    model = "gemini-3-pro-preview"
    path = re.compile(
        r"/(?:models|tunedModels|endpoints)/(?P<model>[^/:]+):(?P<verb>streamGenerateContent|generateContent)$"
    )
    place = "/v1beta/models/{model}:streamGenerateContent"
    ends = ("STOP", "STOP", "MAX_TOKENS")

    @classmethod
    def form_of(cls, verb: str, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        if verb == "generateContent":
            return "whole"
        # google-genai writes the parameter as $alt for some servers.
        return "events" if "sse" in (query.get("alt"), query.get("$alt")) else "array"

    def text(self, step: Text) -> Iterator[bytes]:
        self.content.append({"text": step.text})
        for piece in self.pieces(step.text, step.size):
            yield self._chunk([{"text": piece}])

    def thought(self, step: Thought) -> Iterator[bytes]:
        signature = {} if step.signature is None else {"thoughtSignature": step.signature}
        self.content.append({"text": step.text, "thought": True, **signature})
        for piece in self.pieces(step.text, step.size):
            yield self._chunk([{"text": piece, "thought": True}])
        if signature:
            yield self._chunk([{"text": "", "thought": True, **signature}])

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        """Calls come one after another; adjacent whole calls share a chunk."""
        for is_streamed, group in groupby(calls, key=lambda call: call.streamed):
            if is_streamed:
                for call in group:
                    yield from self.call(call)
            else:
                yield self._chunk([self._whole(call) for call in group])

    def _whole(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "args": _arguments(call)} | ({"id": call.call_id} if call.call_id else {})
        part = {"functionCall": function} | ({} if call.signature is None else {"thoughtSignature": call.signature})
        if call.stop_after is None:
            self.content.append(part)
        return part

    def call(self, call: ToolCall) -> Iterator[bytes]:
        part = self._whole(call)
        head = dict(part["functionCall"])
        args = head.pop("args")
        if not args and call.stop_after is None:  # a call without arguments is one chunk
            yield self._chunk([part | {"functionCall": head}])
            return
        yield self._chunk([part | {"functionCall": head | {"willContinue": True}}])
        for piece in list(self.partial_args(args, (), call.size))[: call.stop_after]:
            yield self._chunk([{"functionCall": {**piece, "willContinue": True}}])
        if call.stop_after is None:
            yield self._chunk([{"functionCall": {}}])

    def partial_args(self, value: Any, path: Path, size: int | None) -> Iterator[dict[str, Any]]:
        """The pieces of a value in order. Between items that are objects there is an empty piece."""
        if isinstance(value, dict) and value:
            for name, member in value.items():
                yield from self.partial_args(member, (*path, name), size)
        elif isinstance(value, list) and value:
            for index, item in enumerate(value):
                if index and isinstance(item, dict):
                    yield {}
                yield from self.partial_args(item, (*path, index), size)
        else:
            place = {"jsonPath": format_path(path)}
            if isinstance(value, str):
                for piece in self.pieces(value, size):
                    yield {"partialArgs": [{**place, "stringValue": piece, "willContinue": True}]}
            yield {"partialArgs": [{**place, **_last(value)}]}

    def finish(self) -> Iterator[bytes]:
        yield self._chunk([{"text": ""}])

    def whole(self) -> Any:
        return self._response(self.content)

    def framed(self, payload: Any) -> bytes:
        text = _ESCAPED.sub(lambda character: f"\\u{ord(character[0]):04x}", dumps(payload, _SPACED))
        return f"data: {text}\r\n\r\n".encode()

    def _chunk(self, parts: list[dict[str, Any]]) -> bytes:
        return self.framed(self._response(parts))

    def _response(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}}
        usage: dict[str, Any] = {"trafficType": "ON_DEMAND"}
        if self.finish_reason is not None:
            candidate["finishReason"] = self.finish_reason
            usage = {
                "promptTokenCount": 25,
                "candidatesTokenCount": self.output_tokens,
                "totalTokenCount": 25 + self.output_tokens,
                **usage,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 25}],
                "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": self.output_tokens}],
            }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": self.model_name,
            "createTime": "2025-10-09T08:53:20.000000Z",
            "responseId": f"response-{self.response_number}",
        }


def _arguments(call: ToolCall) -> Any:
    """The values to send: this wire carries values, not the text that the model wrote."""
    try:
        args = call.args if call.text is None else json.loads(call.text)
    except ValueError as error:
        raise UsageError(f"gemini cannot carry argument text that is not JSON: {call.text!r:.80}") from error
    if not isinstance(args, dict):
        raise UsageError(f"gemini's arguments are an object, got {args!r:.80}")
    return args


def _last(value: Any) -> dict[str, Any]:
    """The fields that finish the value at a path; none for an empty container."""
    if value is None:
        return {"nullValue": "NULL_VALUE"}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int | float):
        return {"numberValue": value}
    return {"stringValue": ""} if isinstance(value, str) else {}


# -- thought signatures ------------------------------------------------------------------------------------------------

SENTINEL = b"skip_thought_signature_validator"
"""What the API accepts instead of a signature that never existed."""

_ACCEPTED = frozenset({SENTINEL.decode(), base64.b64encode(SENTINEL).decode().rstrip("=")})


class Signatures:
    """The signatures that were sent. Signs calls that are sent, and judges those that come back, as Gemini 3 does.

    In every step of the current turn (everything the model said since the user last spoke, tool results aside), the first
    function call has to come back with the signature that it was sent with.
    https://ai.google.dev/gemini-api/docs/thought-signatures
    """

    def __init__(self) -> None:
        self._sent: set[str] = set()

    def signed(self, steps: list[Step], number: int) -> list[Step]:
        """The steps with a signature on the response's first call, unless the script says that it has none ("")."""
        made_up: str | None = base64.b64encode(f"thought signature {number}".encode()).decode()

        def sign(call: ToolCall) -> ToolCall:
            nonlocal made_up
            signature = made_up if call.signature is None else call.signature
            made_up = None  # only the first call has one
            if signature:
                self._sent.add(_normal(signature))
            return msgspec.structs.replace(call, signature=signature or None)

        return with_calls(steps, sign)

    def fault_in(self, request: Any) -> HttpError | None:
        """The refusal with which the API would answer the request; None if nothing is wrong with it."""
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
    """The API accepts names in either spelling."""
    return part.get(name, part.get(other))


def _normal(signature: str) -> str:
    """One spelling for both alphabets of base64. The sentinel as plain text stays unchanged."""
    if signature == SENTINEL.decode():
        return signature
    return signature.replace("-", "+").replace("_", "/").rstrip("=")
