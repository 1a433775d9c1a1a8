"""Gemini ``streamGenerateContent`` and ``generateContent``, on AI Studio and on Vertex. This is the writing side.

``decoding`` reads the provider's bytes; together they would be over 800 lines.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from callstream.events import RequestEvent, ResultReceived
from callstream.wire.collapsing import ChunkCall, ChunkCollapser, OwnedPiece, Split, changed
from callstream.wire.decoder import Decoder, Strict
from callstream.wire.framing import Frame
from callstream.wire.gemini.decoding import GeminiDecoder, PlainResponse, plain_token
from callstream.wire.joining import Joint, Saying, add_usage
from callstream.wire.provider import AnswerKind, IsLeftOut, Provider
from callstream.wire.requests import (
    MODEL,
    Asks,
    KnownSignature,
    Notes,
    RefusedCall,
    Request,
    RequestTurn,
    all_tools,
    note_text,
    objects_in,
    read_body,
    schemas,
    user_message,
)
from callstream.wire.slots import Output, Passage, TextForm

SENTINEL = base64.b64encode(b"skip_thought_signature_validator").decode()
"""What Gemini accepts as a signature where there is none."""
SIGNATURE = "thoughtSignature"

# Google's own models, with a project in the path or, with an API key, without; and tuned models behind an endpoint.
_VERTEX = re.compile(r"/(?:publishers/google/models|endpoints)/[^/]+:streamGenerateContent$")
_CALLING_CONFIG = (("toolConfig", "tool_config"), ("functionCallingConfig", "function_calling_config"))
_STREAM_ARGUMENTS = ("streamFunctionCallArguments", "stream_function_call_arguments")
_COMPUTER_USE = ("computerUse", "computer_use")
_CONTINUATION = ("continuationToken", "continuation_token")
_SCHEMAS = ("parameters", "parametersJsonSchema", "parameters_json_schema")
"""Where a declaration has its schema. google-genai sends the name of the field as it came."""
_PIECES = ("partialArgs", "willContinue", "args")

# -- collapsing --------------------------------------------------------------------------------------------------------


class _PartCall(ChunkCall):
    """A call, and what its chunks hold beside its pieces."""

    chunk: dict[str, Any] = msgspec.field(default_factory=dict)
    candidate: dict[str, Any] = msgspec.field(default_factory=dict)
    content: dict[str, Any] = msgspec.field(default_factory=dict)
    part: dict[str, Any] = msgspec.field(default_factory=dict)
    has_args: bool = False  # a call that came whole may have none

    @property
    def choice(self) -> int:
        return self.candidate.get("index") or 0

    @property
    def ends_answer(self) -> bool:
        """Whether the end of the answer came with its last piece, and so leaves with it."""
        return "finishReason" in self.candidate

    def add(self, part: dict[str, Any]) -> None:
        self.chunk |= _without(part, "candidates")
        for candidate in part["candidates"]:
            self.candidate |= _without(candidate, "content")
            self.content |= _without(candidate.get("content") or {}, "parts")
            for piece in _parts(candidate):
                known = self.part.get("functionCall", {})
                self.part.update(piece)
                self.has_args = self.has_args or not _is_whole(piece) or "args" in piece["functionCall"]
                self.part["functionCall"] = known | _without(piece["functionCall"], *_PIECES)

    def whole_chunk(self, signature: str | None) -> dict[str, Any]:
        function_call: dict[str, Any] = {"name": self.name, "id": self.wire_id}
        if self.has_args or self.args_json != "{}":
            function_call["args"] = msgspec.Raw(self.args_json.encode())
        part = {**self.part, "functionCall": self.part["functionCall"] | function_call}
        if signature is not None:
            part[SIGNATURE] = signature
        return {**self.chunk, "candidates": [{**self.candidate, "content": {**self.content, "parts": [part]}}]}

    def end_chunk(self) -> dict[str, Any]:
        """The end of the answer alone."""
        return {**self.chunk, "candidates": [{**self.candidate, "content": self.content}]}


def split(chunk: dict[str, Any], owned: Sequence[Sequence[OwnedPiece]]) -> Iterator[Split]:
    """The parts of a chunk. ``owned``: each candidate's parts that leave. The usage is with the last of them."""
    before = _without(chunk, "usageMetadata")
    passing: list[dict[str, Any]] = []  # candidates
    begun: list[tuple[int, OwnedPiece]] = []
    last: _PartCall | None = None  # the last call for which something is withheld
    for candidate, parts in zip(chunk["candidates"], owned, strict=True):
        kept: list[dict[str, Any]] = []
        for each in parts:
            if not each.is_withheld:
                kept.append(each.piece)
                begun += [(candidate.get("index") or 0, each)] if each.begins else []
                continue
            last = each.call
            if not each.begins:
                yield Split({"candidates": [{"content": {"parts": [each.piece]}}]}, last)
                continue
            passing += [_bare(candidate, kept)] if kept else []
            if passing:
                yield Split({**before, "candidates": passing}, begun=begun)
            kept, passing, begun = [], [], []
            yield Split({**before, "candidates": [_bare(candidate, [each.piece])]}, last)
        if not _parts(candidate):
            passing.append(candidate)
        elif kept:
            passing.append({**candidate, "content": {**candidate["content"], "parts": kept}})
        elif candidate.get("finishReason") and (last is None or len(owned) > 1):
            passing.append({**candidate, "content": _without(candidate["content"], "parts")})
        elif last is not None:
            # Its end is withheld as well: google-genai's chats forget a turn in which a chunk has no parts. A checkpoint in
            # the middle of a call means nothing to a program that gets the call whole.
            yield Split({"candidates": [_without(candidate, "content", "index", _CONTINUATION[0])]}, last)
    if passing:
        yield Split({**chunk, "candidates": passing}, begun=begun)
    elif last is not None:
        yield Split({**chunk, "candidates": []}, last)


class _TextPart(Strict):
    text: str
    thought: bool = False


class _TextContent(Strict):
    parts: list[_TextPart]
    role: str | None = None


class _TextCandidate(Strict):
    content: _TextContent
    index: int | None = None


class _TextChunk(PlainResponse, rename="camel"):
    candidates: list[_TextCandidate]


def _passage_of(chunk: _TextChunk) -> Passage | None:
    """The passage of a chunk with a single part of text or thought."""
    if len(chunk.candidates) != 1 or len(chunk.candidates[0].content.parts) != 1:
        return None
    [candidate] = chunk.candidates
    return (candidate.index, candidate.content.parts[0].thought)


def _with_text(chunk: dict[str, Any], text: str) -> dict[str, Any]:
    [candidate] = chunk["candidates"]
    [part] = candidate["content"]["parts"]
    content = {**candidate["content"], "parts": [{**part, "text": text}]}
    return {**chunk, "candidates": [{**candidate, "content": content}]}


class GeminiCollapser(ChunkCollapser[_PartCall]):
    """A whole call is one ``functionCall`` part with ``args``, its id and its signature, in a chunk of its own.

    That chunk is made of the fields of the chunks that the call came in. A call that the provider sent whole stays in its
    chunk; where the provider gave it no id, the decoder's is added, so that every call has the same id everywhere.

    Only the first of several calls carries a signature, and a history without it is refused. So the signature of a call
    that is left out goes to the next call of the candidate that is forwarded and has none, whether it is collapsed or not;
    if there is no such call, it is lost. A signature that comes after its call was forwarded leaves on an empty text part.
    """

    _call_type = _PartCall
    text_form = TextForm(msgspec.json.Decoder(_TextChunk), _passage_of, _with_text)

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._signatures: dict[int, str] = {}  # of calls that were left out, by candidate

    def _is_mere_delta(self, call: _PartCall, frame: Frame, chunk: Any) -> bool:
        if not super()._is_mere_delta(call, frame, chunk):
            return False
        if chunk.usage_metadata:
            call.chunk["usageMetadata"] = chunk.usage_metadata
        return True

    def _split(self, chunk: dict[str, Any], calls: Sequence[_PartCall | None]) -> Iterator[Split]:
        owners = iter(calls)
        owned = [[_owned(part, owners) for part in _parts(candidate)] for candidate in chunk["candidates"]]
        return split(chunk, [[each for each in parts if each is not None] for parts in owned])

    def _whole(self, call: _PartCall) -> list[Output]:
        moved = self._signatures.pop(call.choice, None)
        return [Output(self._passed(call.frame, call.whole_chunk(call.signature or moved)), (call.call_id,))]

    def _left_out(self, call: _PartCall) -> list[Output]:
        if call.signature is not None:
            self._signatures.setdefault(call.choice, call.signature)
        return [Output(self._passed(call.frame, call.end_chunk()))] if call.ends_answer else []

    def _pass_part(self, frame: Frame, chunk: dict[str, Any], split: Split) -> list[Output]:
        after = changed(chunk, split.part)
        for choice, (part, *_) in split.begun:
            moved = self._signatures.pop(choice, None)
            if moved is not None and not part.get(SIGNATURE):
                part[SIGNATURE] = moved
                after = split.part
        whole = tuple([each.call.call_id for _, each in split.begun if each.call.collapsed])
        return [Output(self._passed(frame, after), whole)]

    def _over(self) -> None:
        self._signatures.clear()


def _owned(part: dict[str, Any], owners: Iterator[_PartCall | None]) -> OwnedPiece | None:
    """A part with its owner; None if it does not leave."""
    if part.get("functionCall") is None:
        return OwnedPiece(part)
    for call in owners:
        if call is None:
            return OwnedPiece(part)
        begins, call.placed = not (call.placed or call.is_aside), True
        if not call.collapsed:
            return OwnedPiece(part, call, begins)
        if call.gone:  # an end that came twice
            return OwnedPiece({"text": "", SIGNATURE: part[SIGNATURE]}) if SIGNATURE in part else None
        if not (begins and call.state == "completed" and _is_whole(part)):
            return OwnedPiece(part, call, begins, is_withheld=True)
        call.gone = True
        if not part["functionCall"].get("id"):
            part = {**part, "functionCall": {**part["functionCall"], "id": call.wire_id}}
        return OwnedPiece(part, call, begins)
    return None  # a part after an error in the middle of a chunk has no owner, and it must not be executed


def _is_whole(part: dict[str, Any]) -> bool:
    return "partialArgs" not in part["functionCall"] and not part["functionCall"].get("willContinue")


def _parts(candidate: dict[str, Any]) -> list[Any]:
    return (candidate.get("content") or {}).get("parts") or []


def _without(value: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: value[field] for field in value if field not in fields}


def _silent(candidate: dict[str, Any]) -> dict[str, Any]:
    """A candidate without its content. Gemini itself writes an empty text then, and google-genai's chats forget a turn in
    which a chunk has no parts.
    """
    return {**candidate, "content": {"role": "model", **(candidate.get("content") or {}), "parts": [{"text": ""}]}}


def _bare(candidate: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A candidate with some of its parts, and nothing that belongs to its end."""
    content = {**candidate["content"], "parts": parts}
    return {"index": candidate["index"], "content": content} if "index" in candidate else {"content": content}


# -- two answers as one ------------------------------------------------------------------------------------------------


class _GeminiJoint(Joint):
    """Chunks follow one another, and only the last has a finish reason."""

    _is_one_text = True

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._usage = value.get("usageMetadata") or self._usage
        candidates = value.get("candidates") or []
        if not any(candidate.get("finishReason") for candidate in candidates):
            return value, None
        if not any(_parts(candidate) for candidate in candidates):
            return None, value
        unfinished = [_without(each, "finishReason") for each in candidates]
        return {**value, "candidates": unfinished}, {**value, "candidates": [_silent(each) for each in candidates]}

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        return {**value, "candidates": [self._kept(each) for each in value.get("candidates") or []]}

    def _kept(self, candidate: dict[str, Any]) -> dict[str, Any]:
        parts = [part for part in _parts(candidate) if (part.get("functionCall") or {}).get("id") not in self._dropped]
        return {**candidate, "content": {**candidate["content"], "parts": parts}} if parts else _silent(candidate)

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        yield {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}]}

    def _made_end(self, finish: Literal["stop", "calls"]) -> Iterable[dict[str, Any]]:
        yield {**self._begun, "candidates": [_silent({"index": 0, "finishReason": "STOP"})]}

    @classmethod
    def _add_text(cls, answer: dict[str, Any], saying: Saying) -> None:
        content = answer["candidates"][0].setdefault("content", {"role": "model"})
        content["parts"] = [*(content.get("parts") or ()), {"text": cls._words(saying)}]

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if not value.get("usageMetadata"):
            return value
        return {**value, "usageMetadata": add_usage(self._usage, value["usageMetadata"])}


# -- requests ----------------------------------------------------------------------------------------------------------
# The API accepts the names of fields in camel case and in snake case, its own examples use both, and google-genai mixes them
# in one request.


class _RequestBlob(msgspec.Struct):
    """The API accepts both spellings of a name, and its own examples use both."""

    camel_type: str | None = msgspec.field(name="mimeType", default=None)
    snake_type: str | None = msgspec.field(name="mime_type", default=None)

    @property
    def mime_type(self) -> str:
        return self.camel_type or self.snake_type or "file"


class _RequestFunction(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    response: Any = None


class _RequestPart(msgspec.Struct):
    text: str | None = None
    camel_inline: _RequestBlob | None = msgspec.field(name="inlineData", default=None)
    snake_inline: _RequestBlob | None = msgspec.field(name="inline_data", default=None)
    camel_file: _RequestBlob | None = msgspec.field(name="fileData", default=None)
    snake_file: _RequestBlob | None = msgspec.field(name="file_data", default=None)
    camel_call: _RequestFunction | None = msgspec.field(name="functionCall", default=None)
    snake_call: _RequestFunction | None = msgspec.field(name="function_call", default=None)
    camel_response: _RequestFunction | None = msgspec.field(name="functionResponse", default=None)
    snake_response: _RequestFunction | None = msgspec.field(name="function_response", default=None)


class _RequestContent(msgspec.Struct):
    role: str | None = None
    parts: list[_RequestPart] | None = None


class _GenerateRequest(msgspec.Struct):
    contents: list[_RequestContent] | _RequestContent | None = None


def _is_error(response: Any) -> bool:
    """The API's own convention: an ``error`` member, and no ``output`` or other result beside it."""
    return isinstance(response, dict) and set(response) == {"error"}


def _declarations(tool: dict[str, Any]) -> list[dict[str, Any]]:
    return objects_in(tool.get("functionDeclarations") or tool.get("function_declarations"))


def _call_part(call: RefusedCall) -> dict[str, Any]:
    named = {"id": call.provider_id} if call.provider_id else {}
    return {"functionCall": {**named, "name": call.name, "args": call.args}}


def _response_part(call: RefusedCall) -> dict[str, Any]:
    named = {"id": call.provider_id} if call.provider_id else {}
    return {"functionResponse": {**named, "name": call.name, "response": {"error": call.text}}}


class Said(NamedTuple):
    """A content of a conversation. ``signed``: whether each of its calls is; ``is_word``: it holds more than results."""

    is_models: bool
    signed: Sequence[bool]
    is_word: bool


def unsigned(contents: Sequence[Said]) -> Iterator[tuple[int, bool]]:
    """The model's contents whose first call has no signature, and whether each is in the current turn.

    Gemini 3 wants a signature back with the first call of every step of the turn, that is, of everything that the model
    said since the user last spoke. A tool's result does not count as the user speaking.
    """
    turn = max((index for index, said in enumerate(contents) if said.is_word and not said.is_models), default=-1)
    for index, said in enumerate(contents):
        if said.is_models and said.signed and not said.signed[0]:
            yield index, index > turn


# -- the provider ------------------------------------------------------------------------------------------------------


class Gemini(Provider):
    wire = "gemini"
    checkpoint = re.compile(rb'"continuation(?:T|_t)oken".*?\r?\n\r?\n', re.DOTALL)
    path = re.compile(r":(?:streamGenerateContent|generateContent)$")
    decoder = GeminiDecoder
    collapser = GeminiCollapser
    joint = _GeminiJoint
    signs_calls = True
    pieces_field = re.compile(rb"stream_?function_?call_?arguments", re.IGNORECASE)

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        contents = read_body(self.wire, body, _GenerateRequest).contents or []
        for content in contents if isinstance(contents, list) else [contents]:
            parts = content.parts or []
            if content.role == "model":
                calls = [call for part in parts if (call := part.camel_call or part.snake_call) is not None]
                yield RequestTurn(MODEL, [], [(call.id, call.name or "") for call in calls])
                continue
            answers = [answer for part in parts if (answer := part.camel_response or part.snake_response) is not None]
            blobs = [part.camel_inline or part.snake_inline or part.camel_file or part.snake_file for part in parts]
            text = "".join(part.text for part in parts if part.text)
            events: list[RequestEvent] = [
                ResultReceived(answer.id or None, answer.name, answer.response, is_error=_is_error(answer.response))
                for answer in answers
            ]
            yield RequestTurn(
                "user", [*events, *user_message(text, [blob.mime_type for blob in blobs if blob is not None])]
            )

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        declarations = [each for tool in objects_in(request.fields.get("tools")) for each in _declarations(tool)]
        return schemas((each, next((each[key] for key in _SCHEMAS if each.get(key)), None)) for each in declarations)

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """Empty where the model may use a computer: those functions are declared nowhere."""
        uses_computer = any(name in tool for tool in objects_in(request.fields.get("tools")) for name in _COMPUTER_USE)
        return () if uses_computer else tuple(self.declared_tools(request))

    def from_checkpoint(self, request: Request, token: str) -> Request:
        return Request(request.path, msgspec.json.encode({**request.fields, _CONTINUATION[0]: token}))

    def continued(self, request: Request) -> str | None:
        found = [request.fields.get(name) for name in _CONTINUATION]
        return next((plain_token(token) for token in found if isinstance(token, str) and token), None)

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        """The request with argument streaming switched on, on Vertex, which supports it, if all functions are to stream.

        A request that sets the switch itself, in either spelling, is left alone: true, false and null all stand. Which
        value counts if a field comes under both names is not defined. So each field is looked for under both names and
        written under the one in use, and a request that already has a field under both is left alone, too.
        """
        if not _VERTEX.search(request.path):
            return request
        names = self.declared_tools(request)
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

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A note as a content of its own: one with function responses has exactly as many parts as there were calls."""
        contents = request.fields.get("contents")
        contents = contents if isinstance(contents, list) else [contents]
        if not objects_in(contents) or objects_in(contents)[-1].get("role") == "model":
            return None
        request.fields["contents"] = [*contents, {"role": "user", "parts": [{"text": note_text(notes)}]}]
        return request.rewritten()

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
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

    def _restore(self, request: Request, refused: RefusedCall) -> bool:
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

    def sign(self, request: Request, known: KnownSignature) -> Request:
        """The signature that came with the call is used where it is known, the sentinel only where it is not.

        The provider does not check earlier turns, so they stay as they are.
        """
        contents = objects_in(request.fields.get("contents"))
        calls = [
            [part for part in objects_in(content.get("parts")) if isinstance(part.get("functionCall"), dict)]
            for content in contents
        ]
        said = [
            Said(
                content.get("role") == "model",
                [bool(part.get(SIGNATURE)) for part in parts],
                any("functionResponse" not in part for part in objects_in(content.get("parts"))),
            )
            for content, parts in zip(contents, calls, strict=True)
        ]
        lacking = [calls[index][0] for index, is_current in unsigned(said) if is_current]
        for part in lacking:
            call = part["functionCall"]
            part[SIGNATURE] = known(call.get("id"), call.get("name")) or SENTINEL
        return request.rewritten() if lacking else request

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        kind = super().answer_kind(request, status, content_type)
        # Without alt=sse the stream is a JSON array.
        return "stream" if kind == "whole" and self.is_streamed(request) else kind

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        """A signature moves to the next call."""
        for candidate in answer.get("candidates") or ():
            content = candidate.get("content") or {}
            moved = None
            parts = []
            for part in content.get("parts") or ():
                if "functionCall" in part:
                    if is_left_out():
                        moved = moved or part.get(SIGNATURE)
                        continue
                    if moved is not None:
                        part.setdefault(SIGNATURE, moved)
                        moved = None
                parts.append(part)
            if "parts" in content:
                content["parts"] = parts
