"""OpenAI chat completions: ``POST /v1/chat/completions``, and the many servers that speak it in their own way.

Calls of a choice are distinguished by id, then by index, then by name and order; ``_attributed`` says how, quirk by quirk.
A finish reason ends the choice. Servers that never send one end with ``[DONE]``: then calls whose text is whole are
completed, and no others. Nothing on this wire ends a single call but the call after it; so where the length limit cuts
a response, all its calls but the last are as finished as they can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import DiscardReason, Encoding
from callstream.wire.decoder import Decoder, Strict, error_in, reported
from callstream.wire.transcript import WireCall, text_of

# "stop" comes with calls, too; the others are what compatible servers send to mean the same.
NORMAL_FINISHES = frozenset(
    {"stop", "tool_calls", "function_call", "tool_use", "tool_call", "end_turn", "stop_sequence"}
    | {"eos", "eos_token", "complete", "completed", "finished"}
)
# OpenRouter translates the finish reasons of others, sometimes into a normal one; the native one is the true one.
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
MALFORMED = frozenset({"malformed_function_call", "unexpected_tool_call", "too_many_tool_calls"})
# What servers write as the id in the deltas after the first.
NO_ID = frozenset({"", "null"})
# How text-generation-inference names itself; it ends a stream of calls with neither a finish reason nor a sentinel.
TEXT_GENERATION_INFERENCE = re.compile(r"\d+\.\d+\.\d+\S*-(?:native|sha-\w+)")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _CustomTool(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class _ToolCallDelta(msgspec.Struct):
    index: int | str | None = None
    id: str | int | None = None
    function: _Function | None = None
    custom: _CustomTool | None = None


class _Delta(msgspec.Struct):
    """What a chunk adds to a choice; a whole answer's message has the same fields."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCallDelta] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    error: Any = None


class _Completion(msgspec.Struct):
    """A chunk, or a whole answer."""

    id: str | int | None = None
    choices: list[_Choice] | None = None
    usage: Any = None
    system_fingerprint: Any = None
    error: Any = None
    message: Any = None
    detail: Any = None
    x_groq: Any = None


# -- a chunk that holds nothing but a piece of a call; fields that it lacks are None, as in a Completion --


class PlainChunk(Strict, kw_only=True):
    """The fields that a chunk may have beside the one thing that it says."""

    id: str | int | None = None
    object: msgspec.Raw = msgspec.Raw(b"")
    created: msgspec.Raw = msgspec.Raw(b"")
    model: msgspec.Raw = msgspec.Raw(b"")
    system_fingerprint: Any = None
    service_tier: msgspec.Raw = msgspec.Raw(b"")
    obfuscation: msgspec.Raw = msgspec.Raw(b"")
    usage: None = None


class _BareFunction(Strict):
    arguments: str | None = None
    name: str | None = None


class _BareToolCall(Strict):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _BareFunction | None = None
    custom: ClassVar[None] = None


class _BareDelta(Strict):
    tool_calls: list[_BareToolCall]
    role: str | None = None
    content: str | None = None
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    function_call: None = None
    reasoning_text: ClassVar[None] = None


class _BareChoice(Strict):
    delta: _BareDelta
    index: int | None = None
    logprobs: None = None
    finish_reason: None = None
    native_finish_reason: None = None
    message: ClassVar[None] = None
    error: ClassVar[None] = None


class _BareCompletion(PlainChunk):
    choices: list[_BareChoice]
    provider: msgspec.Raw = msgspec.Raw(b"")
    error: ClassVar[None] = None
    message: ClassVar[None] = None
    detail: ClassVar[None] = None
    x_groq: ClassVar[None] = None


class OpenAIChatDecoder(Decoder[_Completion]):
    wire = "openai_chat"
    _payloads = msgspec.json.Decoder(_Completion)
    _bare_payloads = msgspec.json.Decoder(_BareCompletion)
    _unended = "the stream ended without a finish reason"

    def _forget_response(self) -> None:
        super()._forget_response()
        self._response_id = ""
        self._calls: dict[int, list[tuple[int | None, WireCall]]] = {}  # by choice: the index and the call
        self._half_names: dict[WireCall, str] = {}
        self._ends_with_body = False

    def _chunk(self, chunk: _Completion) -> None:
        if chunk.id != self._response_id and chunk.id and isinstance(chunk.id, str):
            self._begin(chunk.id, chunk.choices or ())
        if isinstance(chunk.usage, dict):
            self._usage = chunk.usage
        if chunk.choices or (chunk.choices is not None and not self._transcript.any_response):
            self._in_response = True
        for choice in chunk.choices or ():
            if choice.delta is not None:
                self._delta(choice.delta, choice.index or 0)
                if choice.delta.tool_calls and chunk.id == "" and isinstance(chunk.system_fingerprint, str):
                    self._ends_with_body = bool(TEXT_GENERATION_INFERENCE.fullmatch(chunk.system_fingerprint))
            if choice.error:
                raise reported(choice.error)
            if choice.finish_reason and not chunk.error:
                self._finish(choice)
        if chunk.error or chunk.choices is None or chunk.x_groq:
            self._raise_error_in(chunk)

    def _raise_error_in(self, chunk: _Completion) -> None:
        """Raises an error beside the choices, or one that came instead of them."""
        error = chunk.error or (chunk.x_groq.get("error") if isinstance(chunk.x_groq, dict) else None)
        if error:
            raise reported(error)
        failed = error_in({"message": chunk.message, "detail": chunk.detail})
        if chunk.choices is None and failed is not None:
            raise failed

    def _begin(self, response_id: str, choices: Sequence[_Choice]) -> None:
        """A new id: another response in the same body, if the one before has finished and this one says something.

        Some servers give every chunk an id of its own.
        """
        if self._finish_reason is not None:
            if not any(choice.delta is not None and _says_something(choice.delta) for choice in choices):
                return
            super()._end_of_body()
        self._response_id = self._transcript.response_message_id = response_id

    def _delta(self, delta: _Delta, choice: int) -> None:
        thoughts = delta.reasoning_content or delta.reasoning or delta.reasoning_text
        if thoughts and isinstance(thoughts, str):
            self._transcript.append_reasoning(thoughts, choice)
        if delta.content:
            self._content(delta.content, choice)
        if delta.refusal and isinstance(delta.refusal, str):
            self._transcript.append_text(delta.refusal, choice)
        for tool_call in delta.tool_calls or ():
            self._tool_call(tool_call, choice)
        if delta.function_call is not None:
            # The legacy form: one call a choice, without an id.
            self._tool_call(_ToolCallDelta(index=0, function=delta.function_call), choice)

    def _content(self, content: Any, choice: int) -> None:
        if isinstance(content, str):
            self._transcript.append_text(content, choice)
            return
        for part in content if isinstance(content, list) else ():  # Mistral's form
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                self._transcript.append_text(part["text"], choice)
            elif isinstance(part, dict) and isinstance(part.get("thinking"), list):
                for thought in part["thinking"]:
                    if isinstance(thought, dict) and isinstance(thought.get("text"), str):
                        self._transcript.append_reasoning(thought["text"], choice)

    def _tool_call(self, delta: _ToolCallDelta, choice: int) -> None:
        calls = self._calls.setdefault(choice, [])
        provider_id = None if delta.id is None or str(delta.id).strip() in NO_ID else str(delta.id)
        index = _number(delta.index)
        if delta.custom is not None:
            name, text = delta.custom.name, delta.custom.input or ""
        else:
            function = delta.function or _Function()
            name, text = function.name, text_of(function.arguments)
        call = _attributed(calls, index, provider_id, name or None, text)
        if call is None:
            encoding: Encoding = "text" if delta.custom is not None else "json"
            call = self._transcript.open_call(None, provider_id, encoding=encoding, choice=choice)
            calls.append((index, call))
        if call.name is None:
            self._name(call, name or "", is_last=bool(text))
        self._transcript.piece_of(call)
        self._transcript.append_args(call, text)

    def _name(self, call: WireCall, piece: str, *, is_last: bool) -> None:
        """A piece of a call's name. Some servers cut names; then only the tools that the request declares show its end."""
        name = self._half_names.pop(call, "") + piece
        if not name:
            return
        if not is_last and name not in self._tools and any(tool.startswith(name) for tool in self._tools):
            self._half_names[call] = name
        else:
            self._transcript.name_call(call, name)

    def _finish(self, choice: _Choice) -> None:
        for call in list(self._half_names):
            self._name(call, "", is_last=True)
        self._finish_reason = choice.finish_reason
        index = choice.index or 0
        said = (choice.finish_reason or "").lower().replace("-", "_")
        native = (choice.native_finish_reason or "").lower()
        reason: DiscardReason = "malformed" if MALFORMED & {said, native} else "truncated"
        cut = bool(CUT & {said, native})
        if cut:
            for _, call in self._calls.get(index, [])[:-1]:
                self._transcript.complete_whole(call)
        normal = said in NORMAL_FINISHES and not cut and reason != "malformed"
        detail = f"finish_reason {choice.native_finish_reason or choice.finish_reason}"
        self._transcript.finish_calls(normal=normal, reason=reason, detail=detail, choice=index)

    def _end_of_body(self) -> None:
        if self._ends_with_body:
            self._done()
        else:
            super()._end_of_body()

    def _done(self) -> None:
        """The response may have ended without a finish reason."""
        for call in list(self._half_names):
            self._name(call, "", is_last=True)
        for call in self._transcript.open_calls():
            if call.encoding == "json":  # whether free text is whole cannot be known
                self._transcript.complete_whole(call)
        super()._end_of_body()

    def _read_whole(self, body: bytes) -> None:
        answer: _Completion = self._decoded(body, self._payloads)
        self._raise_error_in(answer)
        if answer.choices is None:
            raise WireError(f"expected a chat completion with choices, got {outline(body)}")
        self._in_response = True
        self._transcript.response_message_id = answer.id if isinstance(answer.id, str) else None
        self._usage = answer.usage
        for choice in answer.choices:
            if choice.message is not None:
                self._delta(choice.message, choice.index or 0)
            if choice.error:
                raise reported(choice.error)
            if choice.finish_reason:
                self._finish(choice)
        self._done()


def _attributed(
    calls: list[tuple[int | None, WireCall]], index: int | None, provider_id: str | None, name: str | None, text: str
) -> WireCall | None:
    """The call of the choice that a delta belongs to, None if the delta begins a new one.

    - An id that is known names its call, even if it is repeated on every delta (TGI, Kimi), unless the delta has a name
      and the index or the name says that the id was used twice.
    - An id that is new begins a call if the delta has a name, whatever the index says (Cerebras and Gemini through
      OpenRouter send 0 for all), unless the call of that name is in the middle of its text; without a name it is the
      open call under an id that changed.
    - Without an id the index tells; without either the open call goes on, and so it does under an index that nothing
      began, if it is in the middle of its text. A name then begins a new call if the one before has another name, or
      has all its arguments (whole calls without ids).
    """
    if provider_id is not None:
        for known_index, call in reversed(calls):
            differ = index is not None and known_index is not None and known_index != index
            if call.provider_id == provider_id and (name is None or (call.name in (None, name) and not differ)):
                return call
    for known_index, call in reversed(calls):
        if index is not None and known_index is not None and known_index != index:
            continue
        if name is None:
            return call
        if provider_id is not None:
            return call if name == call.name and not (call.text.is_blank or _is_whole(call)) else None
        if call.name is None:
            return call
        return None if name != call.name or (text and _is_whole(call)) else call
    begun = calls[-1][1] if calls and name is None and provider_id is None else None
    return None if begun is None or _is_whole(begun) else begun


def _says_something(delta: _Delta) -> bool:
    thoughts = delta.reasoning_content or delta.reasoning or delta.reasoning_text
    return bool(delta.content or thoughts or delta.refusal or delta.tool_calls or delta.function_call)


def _number(index: int | str | None) -> int | None:
    """The index as a number, which some servers write as text. A negative one, or any other text, counts as none."""
    if isinstance(index, str):
        return int(index) if index.isascii() and index.isdecimal() and len(index) < 10 else None
    return None if index is None or index < 0 else index


def _is_whole(call: WireCall) -> bool:
    return call.final or (call.text.ends_with("}") and codec.is_strict(call.text.join()))
