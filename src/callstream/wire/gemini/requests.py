"""Gemini: what a request says, and what is added to it.

The API takes the names of fields in camel case and in snake case, its own examples use both, and google-genai mixes them
in one request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from callstream.events import RequestEvent, ResultReceived
from callstream.wire.requests import (
    MODEL,
    Asks,
    KnownSignature,
    RefusedCall,
    Request,
    Turn,
    objects_in,
    read_body,
    schemas,
    user_message,
)

SENTINEL = base64.b64encode(b"skip_thought_signature_validator").decode()
"""What Gemini takes for a signature where there is none."""
SIGNATURE = "thoughtSignature"

# Google's own models, with a project in the path or, with an API key, without; and tuned models behind an endpoint.
_VERTEX = re.compile(r"/(?:publishers/google/models|endpoints)/[^/]+:streamGenerateContent$")
_CALLING_CONFIG = (("toolConfig", "tool_config"), ("functionCallingConfig", "function_calling_config"))
_STREAM_ARGUMENTS = ("streamFunctionCallArguments", "stream_function_call_arguments")
_COMPUTER_USE = ("computerUse", "computer_use")
_SCHEMAS = ("parameters", "parametersJsonSchema", "parameters_json_schema")
"""Where a declaration has its schema. google-genai sends the name of the field as it came."""

# -- what it says --


class RequestBlob(msgspec.Struct):
    """The API takes both spellings of a name, and its own examples use both."""

    camel_type: str | None = msgspec.field(name="mimeType", default=None)
    snake_type: str | None = msgspec.field(name="mime_type", default=None)

    @property
    def mime_type(self) -> str:
        return self.camel_type or self.snake_type or "file"


class RequestFunction(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    response: Any = None


class RequestPart(msgspec.Struct):
    text: str | None = None
    camel_inline: RequestBlob | None = msgspec.field(name="inlineData", default=None)
    snake_inline: RequestBlob | None = msgspec.field(name="inline_data", default=None)
    camel_file: RequestBlob | None = msgspec.field(name="fileData", default=None)
    snake_file: RequestBlob | None = msgspec.field(name="file_data", default=None)
    camel_call: RequestFunction | None = msgspec.field(name="functionCall", default=None)
    snake_call: RequestFunction | None = msgspec.field(name="function_call", default=None)
    camel_response: RequestFunction | None = msgspec.field(name="functionResponse", default=None)
    snake_response: RequestFunction | None = msgspec.field(name="function_response", default=None)


class RequestContent(msgspec.Struct):
    role: str | None = None
    parts: list[RequestPart] | None = None


class GenerateRequest(msgspec.Struct):
    contents: list[RequestContent] | RequestContent | None = None


def read_turns(body: bytes) -> Iterator[Turn]:
    contents = read_body("gemini", body, GenerateRequest).contents or []
    for content in contents if isinstance(contents, list) else [contents]:
        parts = content.parts or []
        if content.role == "model":
            calls = [call for part in parts if (call := part.camel_call or part.snake_call) is not None]
            yield Turn(MODEL, [], [(call.id, call.name or "") for call in calls])
            continue
        answers = [answer for part in parts if (answer := part.camel_response or part.snake_response) is not None]
        blobs = [part.camel_inline or part.snake_inline or part.camel_file or part.snake_file for part in parts]
        text = "".join(part.text for part in parts if part.text)
        events: list[RequestEvent] = [
            ResultReceived(answer.id or None, answer.name, answer.response, is_error=_is_error(answer.response))
            for answer in answers
        ]
        yield Turn("user", [*events, *user_message(text, [blob.mime_type for blob in blobs if blob is not None])])


def _is_error(response: Any) -> bool:
    """The API's own convention: an ``error`` member, and no ``output`` or other result beside it."""
    return isinstance(response, dict) and set(response) == {"error"}


def declared_tools(request: Request) -> dict[str, dict[str, Any]]:
    declarations = [each for tool in objects_in(request.fields.get("tools")) for each in _declarations(tool)]
    return schemas((each, next((each[key] for key in _SCHEMAS if each.get(key)), None)) for each in declarations)


def offered_names(request: Request) -> tuple[str, ...]:
    """None of them where the model may use a computer: those functions are declared nowhere."""
    uses_computer = any(name in tool for tool in objects_in(request.fields.get("tools")) for name in _COMPUTER_USE)
    return () if uses_computer else tuple(declared_tools(request))


def _declarations(tool: dict[str, Any]) -> list[dict[str, Any]]:
    return objects_in(tool.get("functionDeclarations") or tool.get("function_declarations"))


# -- what is added to it --


def ask_for_pieces(request: Request, asks: Asks) -> Request:
    """The request with argument streaming switched on, on Vertex, which knows it, if all of its functions are to stream.

    A request that says itself whether it wants it, in either spelling, is left alone: true, false and null all stand. A
    field that came under both names would be anybody's guess. So each field is looked for under both names and written
    under the one that is there, and a request in which a field has both already is left alone, too.
    """
    if not _VERTEX.search(request.path):
        return request
    names = declared_tools(request)
    if not names or not all(map(asks, names)):
        return request
    found: Any = request.fields
    for spellings in _CALLING_CONFIG:
        there = [name for name in spellings if found.get(name) is not None]
        if sum(name in found for name in spellings) > 1 or (there and not isinstance(found[there[0]], dict)):
            return request
        found = found[there[0]] if there else {}
    if any(name in found for name in _STREAM_ARGUMENTS) or found.get("mode") == "NONE":
        return request
    place: Any = request.fields
    for spellings in _CALLING_CONFIG:
        name = next((name for name in spellings if name in place), spellings[0])
        place[name] = place = place.get(name) or {}
    place[_STREAM_ARGUMENTS[0]] = True
    return request.rewritten()


def add_note(request: Request, text: str) -> Request | None:
    """A note as a content of its own: one with function responses has exactly as many parts as there were calls."""
    contents = request.fields.get("contents")
    contents = contents if isinstance(contents, list) else [contents]
    if not objects_in(contents) or objects_in(contents)[-1].get("role") == "model":
        return None
    request.fields["contents"] = [*contents, {"role": "user", "parts": [{"text": text}]}]
    return request.rewritten()


def ask_again(request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
    """The contents, and after them the calls that the model made and their refusals. The first call has a signature."""
    contents = request.fields.get("contents")
    contents = contents if isinstance(contents, list) else [contents]
    if not objects_in(contents):
        return None
    calls = [_call_part(call) for call in refused]
    calls[0][SIGNATURE] = refused[0].signature or SENTINEL
    answer = {"role": "model", "parts": [*([{"text": said}] if said else []), *calls]}
    request.fields["contents"] = [
        *contents,
        answer,
        {"role": "user", "parts": [_response_part(each) for each in refused]},
    ]
    return request.rewritten()


def restore(request: Request, refused: RefusedCall) -> bool:
    """Puts a call and its refusal back beside the calls of its response and theirs. False if they are not there."""
    contents = objects_in(request.fields.get("contents"))
    for called, answered in pairwise(contents):
        calls = [part.get("functionCall") or part.get("function_call") for part in objects_in(called.get("parts"))]
        is_beside = any(call.get("id") in refused.beside for call in objects_in(calls))
        parts = objects_in(answered.get("parts"))
        if is_beside and any("functionResponse" in part or "function_response" in part for part in parts):
            called["parts"] = [*called["parts"], _call_part(refused)]
            answered["parts"] = [*parts, _response_part(refused)]
            return True
    return False


def _call_part(call: RefusedCall) -> dict[str, Any]:
    named = {"id": call.provider_id} if call.provider_id else {}
    return {"functionCall": {**named, "name": call.name, "args": call.args}}


def _response_part(call: RefusedCall) -> dict[str, Any]:
    named = {"id": call.provider_id} if call.provider_id else {}
    return {"functionResponse": {**named, "name": call.name, "response": {"error": call.text}}}


def sign(request: Request, known: KnownSignature) -> Request:
    """The request with a thought signature on the first call of each step of the model's last turn that lacks one.

    Gemini 3 refuses a history without them. The signature that came with the call is used where it is known, the
    sentinel only where it is not. Earlier turns are not looked at by the provider, so they stay as they are.
    """
    contents = objects_in(request.fields.get("contents"))
    turn = max((index for index, content in enumerate(contents) if _is_users_word(content)), default=-1)
    is_changed = False
    for content in contents[turn + 1 :]:
        parts = objects_in(content.get("parts"))
        first = next((part for part in parts if isinstance(part.get("functionCall"), dict)), None)
        if content.get("role") == "model" and first is not None and not first.get(SIGNATURE):
            call = first["functionCall"]
            first[SIGNATURE] = known(call.get("id"), call.get("name")) or SENTINEL
            is_changed = True
    return request.rewritten() if is_changed else request


def _is_users_word(content: dict[str, Any]) -> bool:
    """Whether the user said something: an answer of a tool is not the user's word."""
    parts = objects_in(content.get("parts"))
    return content.get("role") != "model" and any("functionResponse" not in part for part in parts)
