"""Gemini ``streamGenerateContent`` and ``generateContent``, on AI Studio and on Vertex.

A call is a ``functionCall`` part: whole with ``args``, or streamed in several parts. The first part of a streamed call
has the name, the following ones have ``partialArgs`` (a JSON path and a value each) and no name; a part without
``willContinue`` ends it, and so may an empty one. Parts without a name or an id belong to the call that was opened
last, and a name that comes late names it. Instead of paths, parts may bring ``args`` that grow. Calls carry thought
signatures. The stream has no end marker: a finish reason ends a candidate, and the end of the body ends the response.

A response that reaches the decode limit of one request ends anywhere, with ``CONTINUATION`` and a token: the SDK sends the
request once more with the token, and the answer goes on where the first stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import DiscardReason
from callstream.jsontext.path import Path, parse_path
from callstream.jsontext.writer import EMPTY
from callstream.wire.decoder import Decoder, Strict, reported
from callstream.wire.framing import SseOrArrayFraming
from callstream.wire.joining import add_usage
from callstream.wire.transcript import PiecewiseCall, WireCall, json_text

NORMAL_FINISH: Final = "STOP"
NO_FINISH: Final = "FINISH_REASON_UNSPECIFIED"
CONTINUES: Final = "CONTINUATION"
_ONE_ALPHABET = str.maketrans("-_", "+/")
MALFORMED_FINISHES = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"})


# Seven objects per delta, in no cycle: the GC need not track them.


class _PartialArg(msgspec.Struct, rename="camel", gc=False):
    json_path: str = "$"
    string_value: str | msgspec.UnsetType = msgspec.UNSET
    number_value: int | float | msgspec.UnsetType = msgspec.UNSET
    bool_value: bool | msgspec.UnsetType = msgspec.UNSET
    null_value: Any = msgspec.UNSET
    will_continue: bool | None = None

    def value(self) -> Any:
        """The piece of string, the scalar, or EMPTY: a path without a value is an empty container."""
        if self.string_value is not msgspec.UNSET:  # nearly always
            return self.string_value
        for value in (self.number_value, self.bool_value):
            if value is not msgspec.UNSET:
                return value
        return EMPTY if self.null_value is msgspec.UNSET else None


class _FunctionCall(msgspec.Struct, rename="camel", gc=False):
    id: str | None = None
    name: str | None = None
    args: Any = None
    partial_args: list[_PartialArg] | None = None
    will_continue: bool | None = None


class _Part(msgspec.Struct, rename="camel", gc=False):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel", gc=False):
    index: int | None = None
    content: _Content | None = None
    finish_reason: str | None = None
    continuation_token: str | None = None


class _PromptFeedback(msgspec.Struct, rename="camel", gc=False):
    block_reason: str | None = None


class _GenerateContentResponse(msgspec.Struct, rename="camel", gc=False):
    candidates: list[_Candidate] | None = None
    usage_metadata: Any = None
    response_id: str | None = None
    prompt_feedback: _PromptFeedback | None = None
    error: Any = None


# -- a chunk that holds nothing but a piece of a call; fields that it lacks are None, as in a response --


class PlainResponse(Strict, rename="camel", kw_only=True):
    """The fields that a chunk may have beside the one thing that it says."""

    usage_metadata: Any = None
    model_version: msgspec.Raw = msgspec.Raw(b"")
    create_time: msgspec.Raw = msgspec.Raw(b"")
    response_id: str | None = None


class _BareFunctionCall(Strict, rename="camel"):
    id: str | None = None
    partial_args: list[_PartialArg] | None = None
    will_continue: bool | None = None
    name: ClassVar[None] = None
    args: ClassVar[None] = None


class _BarePart(Strict, rename="camel"):
    function_call: _BareFunctionCall
    thought_signature: ClassVar[None] = None


class _BareContent(Strict, rename="camel"):
    parts: list[_BarePart]
    role: str | None = None


class _BareCandidate(Strict, rename="camel"):
    content: _BareContent
    index: int | None = None
    finish_reason: ClassVar[None] = None
    continuation_token: ClassVar[None] = None


class _BareResponse(PlainResponse, rename="camel"):
    candidates: list[_BareCandidate]
    prompt_feedback: ClassVar[None] = None
    error: ClassVar[None] = None


class _StreamedCall(PiecewiseCall[_FunctionCall]):
    grows: bool | None = None  # by args (True) or by partialArgs; not known before the first of either

    def paths_in(self, part: _FunctionCall) -> Iterator[Path]:
        yield from (parse_path(piece.json_path) for piece in part.partial_args or ())
        if isinstance(part.args, dict):
            yield from ((name,) for name in part.args)

    def text_of(self, part: _FunctionCall) -> str:
        if part.args:  # an empty object beside partialArgs says nothing
            self._speak(grows=True)
            text = self.writer.grow(part.args, bool(part.will_continue))
            if part.partial_args:
                self._speak(grows=False)
            return text
        text = ""
        for piece in part.partial_args or ():
            if self.grows is not False:
                self._speak(grows=False)
            text += self.writer.write(parse_path(piece.json_path), piece.value(), bool(piece.will_continue))
        return text

    def _speak(self, *, grows: bool) -> None:
        if self.grows is not None and self.grows is not grows:
            raise WireError(f"expected args or partialArgs of call {self.call.call_id!r}, got both")
        self.grows = grows


def plain_token(token: str) -> str:
    """A continuation token in one spelling: google-genai reads it in either alphabet of base64, and writes the other."""
    return token.translate(_ONE_ALPHABET).rstrip("=")


class GeminiDecoder(Decoder[_GenerateContentResponse]):
    wire = "gemini"
    _framing = SseOrArrayFraming
    _payloads = msgspec.json.Decoder(_GenerateContentResponse)
    _bare_payloads = msgspec.json.Decoder(_BareResponse)

    _unended = "the stream ended without a finish reason"

    def _forget_response(self) -> None:
        super()._forget_response()
        self._response_id: str | None = None
        self._streamed: dict[int, list[_StreamedCall]] = {}  # the open ones, by candidate
        self._last: dict[int, WireCall] = {}  # by candidate
        self._token: str | None = None
        self._checkpoint: str | None = None
        self._earlier_usage: dict[str, Any] | None = None  # of the bodies before this one

    @property
    def continuation(self) -> str | None:
        return None if self._token is None else plain_token(self._token)

    @property
    def checkpoint(self) -> str | None:
        return self._checkpoint

    def resume(self) -> None:
        super().resume()
        self._token = None

    def _pause(self) -> None:
        self._earlier_usage = add_usage(self._earlier_usage, self._usage)
        self._finish_reason = self._usage = None

    def _chunk(self, chunk: _GenerateContentResponse) -> None:
        if chunk.response_id and chunk.response_id != self._response_id:
            if self._finish_reason is not None:
                self._end_of_body()  # another response in the same body
            self._response_id = self._transcript.response_message_id = chunk.response_id
        if not self._in_response:
            known = (chunk.candidates, chunk.usage_metadata, chunk.response_id, chunk.prompt_feedback)
            self._in_response = any(field is not None for field in known)
        if isinstance(chunk.usage_metadata, dict):
            self._usage = chunk.usage_metadata
        for candidate in chunk.candidates or ():
            for part in (candidate.content and candidate.content.parts) or ():
                self._part(part, candidate.index or 0)
            if candidate.continuation_token and not candidate.finish_reason and not candidate.index:
                self._checkpoint = candidate.continuation_token
            if candidate.finish_reason and candidate.finish_reason != NO_FINISH and not chunk.error:
                self._token = candidate.continuation_token if candidate.finish_reason == CONTINUES else None
                self._finish(candidate.finish_reason, candidate.index or 0)
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._finish_reason = chunk.prompt_feedback.block_reason
        if chunk.error:
            raise reported(chunk.error)

    def _part(self, part: _Part, choice: int) -> None:
        if part.function_call is not None:
            self._function_call(part.function_call, part.thought_signature, choice)
        elif part.text:
            self._transcript.believe_ends(choice)
            if part.thought:
                self._transcript.append_reasoning(part.text, choice)
            else:
                self._transcript.append_text(part.text, choice)

    def _function_call(self, part: _FunctionCall, signature: str | None, choice: int) -> None:
        streamed = self._continued(part, choice)
        if streamed is None:
            if (
                not part.name and part.args is None and not part.partial_args
            ):  # the end of a call that had ended already
                self._transcript.piece_of(self._last.get(choice))
                if signature and choice in self._last:
                    self._transcript.sign_call(self._last[choice], signature)
                return
            self._transcript.believe_ends(choice)
            call = self._transcript.open_call(part.name, part.id, signature=signature, choice=choice)
            self._transcript.piece_of(call)
            self._last[choice] = call
            if part.name and part.partial_args is None and not part.will_continue:
                self._transcript.append_args(call, json_text(part.args or {}))
                self._transcript.end_call(call)
                return
            streamed = _StreamedCall(call, self._tools)
            self._streamed.setdefault(choice, []).append(streamed)
        else:
            self._transcript.piece_of(streamed.call)
            if signature:
                self._transcript.sign_call(streamed.call, signature)
        streamed.add(part, self._transcript)
        if not part.will_continue:
            self._close(streamed)
            self._transcript.end_call(streamed.call)

    def _continued(self, part: _FunctionCall, choice: int) -> _StreamedCall | None:
        """The open call that the part belongs to, None if it begins one."""
        open_calls = self._streamed.get(choice)
        if not open_calls:
            return None
        if part.id:
            for streamed in open_calls:
                if streamed.call.provider_id == part.id:
                    return streamed
        last = open_calls[-1]
        if part.id and last.call.provider_id:
            return None
        if not part.name or last.call.name is None:
            return last
        # Servers whose args grow send the name with each of them.
        return last if last.grows and part.args and part.name == last.call.name else None

    def _close(self, streamed: _StreamedCall) -> None:
        self._streamed[streamed.call.choice].remove(streamed)
        if streamed.call.name is not None:
            self._transcript.append_args(streamed.call, streamed.writer.close())

    def _finish(self, finish_reason: str, choice: int) -> None:
        self._finish_reason = finish_reason
        normal = finish_reason == NORMAL_FINISH
        if normal:
            for streamed in list(self._streamed.get(choice) or ()):
                self._close(streamed)
        elif finish_reason == CONTINUES:  # in the answer to the SDK's next request
            self._transcript.believe_ends(choice)
            if self._token is not None:
                return  # what becomes of open calls is decided at the end of the body
        self._streamed.pop(choice, None)
        reason: DiscardReason = "malformed" if finish_reason in MALFORMED_FINISHES else "truncated"
        self._transcript.finish_calls(
            normal=normal, reason=reason, detail=f"finishReason {finish_reason}", choice=choice
        )

    def _end_of_body(self) -> None:
        if self._token is not None:  # nothing asks for the rest
            self._transcript.finish_calls(normal=False, detail=f"finishReason {CONTINUES}")
            self._finish_reason = CONTINUES
        self._usage = add_usage(self._earlier_usage, self._usage)
        super()._end_of_body()

    def _read_whole(self, body: bytes) -> None:
        self._chunk(self._decoded(body, self._payloads))
        if not self._in_response:
            raise WireError(f"expected a response with candidates, got {outline(body)}")
        if self._token is not None:  # the rest comes in another body: an open call is whole in neither
            self._streamed.clear()
            self._transcript.finish_calls(normal=False, detail=f"finishReason {CONTINUES}")
        if not self._pauses():
            self._end_of_body()
