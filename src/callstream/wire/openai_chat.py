"""OpenAI chat completions: ``POST /v1/chat/completions``, and the many servers that speak it in their own way.

Calls of a choice are told apart by id, then by index, then by name and order; ``_attributed`` says how, quirk by quirk.
A finish reason ends the choice; servers that never send one end with ``[DONE]``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import DiscardReason, Encoding
from callstream.wire.argtext import is_strict_json, json_text
from callstream.wire.decoder import Decoder, error_in
from callstream.wire.transcript import WireCall

# "stop" comes despite calls, too; the others are what compatible servers send for the same.
NORMAL_FINISHES = frozenset(
    {"stop", "tool_calls", "function_call", "tool_use", "tool_call", "end_turn", "stop_sequence"}
    | {"eos", "eos_token", "complete", "completed", "finished"}
)
# OpenRouter translates the finish reasons of others, sometimes into a normal one; the native one is the true one.
CUT_NATIVELY = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
MALFORMED_NATIVELY = frozenset({"MALFORMED_FUNCTION_CALL"})
# text-generation-inference names itself so; it ends a stream of calls with neither a finish reason nor a sentinel of its own.
TEXT_GENERATION_INFERENCE = re.compile(r"\d+\.\d+\.\d+\S*-(?:native|sha-\w+)")


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None

    @property
    def text(self) -> str:
        """The arguments as text; some servers send them as an object, or null."""
        if isinstance(self.arguments, str):
            return self.arguments
        return "" if self.arguments is None else json_text(self.arguments)


class Custom(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | int | None = None
    function: Function | None = None
    custom: Custom | None = None


class Delta(msgspec.Struct):
    """What a chunk adds to a choice; a whole answer's message has the same fields."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None


class Completion(msgspec.Struct):
    """A chunk, or a whole answer."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: Any = None
    system_fingerprint: str | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


class OpenAIChatDecoder(Decoder[Completion]):
    wire = "openai_chat"
    _payloads = msgspec.json.Decoder(Completion)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._forget_response()

    def _forget_response(self) -> None:
        self._begun = False
        self._calls: dict[int, list[tuple[int | None, WireCall]]] = {}  # by choice: the index and the call
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._ends_with_body = False

    def _chunk(self, chunk: Completion) -> None:
        self._begun = True
        if chunk.id:
            self._transcript.response_message_id = chunk.id
        if isinstance(chunk.usage, dict):
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.delta is not None:
                self._delta(choice.delta, choice.index or 0)
                if choice.delta.tool_calls and chunk.id == "" and chunk.system_fingerprint:
                    self._ends_with_body = bool(TEXT_GENERATION_INFERENCE.fullmatch(chunk.system_fingerprint))
            if choice.finish_reason:
                self._finish(choice)
        self._raise_error_in(chunk)

    def _raise_error_in(self, chunk: Completion) -> None:
        if chunk.error is not None:
            raise error_in(chunk.error) or WireError(f"the provider reported an error: {chunk.error}")
        if chunk.object == "error":
            raise WireError(f"the provider reported an error: {chunk.message}", provider_message=str(chunk.message))

    def _delta(self, delta: Delta, choice: int) -> None:
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and isinstance(reasoning, str):
            self._transcript.append_reasoning(reasoning, choice)
        if delta.content:
            self._content(delta.content, choice)
        if delta.refusal:
            self._transcript.append_text(delta.refusal, choice)
        for tool_call in delta.tool_calls or ():
            self._tool_call(tool_call, choice)
        if delta.function_call is not None:
            # The legacy form: one call a choice, without an id.
            self._tool_call(ToolCall(index=0, function=delta.function_call), choice)

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

    def _tool_call(self, delta: ToolCall, choice: int) -> None:
        calls = self._calls.setdefault(choice, [])
        provider_id = str(delta.id) if delta.id not in (None, "") else None
        index = delta.index if delta.index is not None and delta.index >= 0 else None
        if delta.custom is not None:
            name, text = delta.custom.name, delta.custom.input or ""
        else:
            function = delta.function or Function()
            name, text = function.name, function.text
        call = _attributed(calls, index, provider_id, name or None, text)
        if call is None:
            encoding: Encoding = "text" if delta.custom is not None else "json"
            call = self._transcript.open_call(name, provider_id, encoding=encoding, choice=choice)
            calls.append((index, call))
        elif call.name is None and name:
            self._transcript.name_call(call, name)
        self._transcript.append_args(call, text)

    def _finish(self, choice: Choice) -> None:
        self._finish_reason = self._finish_reason or choice.finish_reason
        reason: DiscardReason = "malformed" if choice.native_finish_reason in MALFORMED_NATIVELY else "truncated"
        normal = (choice.finish_reason or "").lower() in NORMAL_FINISHES and not (
            choice.native_finish_reason in CUT_NATIVELY or reason == "malformed"
        )
        detail = f"finish_reason {choice.native_finish_reason or choice.finish_reason}"
        self._transcript.finish_calls(normal=normal, reason=reason, detail=detail, choice=choice.index or 0)

    def _done(self) -> None:
        self._end(normal=True)

    def _end_of_body(self) -> None:
        if self._begun:
            self._end(normal=self._ends_with_body)

    def _end(self, *, normal: bool) -> None:
        self._transcript.finish_calls(normal=normal, detail="the stream ended without a finish reason")
        self._transcript.end_response(self._finish_reason, self._usage)
        self._forget_response()

    def _read_whole(self, body: bytes) -> None:
        answer: Completion = self._decoded(body, self._payloads)
        self._raise_error_in(answer)
        if answer.choices is None:
            raise WireError(f"expected a chat completion with choices, got {body[:200]!r}")
        self._transcript.response_message_id = answer.id
        self._usage = answer.usage if isinstance(answer.usage, dict) else None
        for choice in answer.choices:
            if choice.message is not None:
                self._delta(choice.message, choice.index or 0)
            self._finish(choice)
        self._end(normal=False)


def _attributed(
    calls: list[tuple[int | None, WireCall]], index: int | None, provider_id: str | None, name: str | None, text: str
) -> WireCall | None:
    """The call of the choice that a delta belongs to, None if it begins one.

    - An id that is known names its call, even if it is repeated on every delta (TGI, Kimi), unless the index or the name
      says that the id was used twice.
    - An id that is new begins a call if the delta has a name, whatever the index says (Cerebras and Gemini through
      OpenRouter send 0 for all); without a name it is the open call under an id that changed.
    - Without an id the index tells; without either the open call goes on. A name then begins a new call if the one
      before has another name, or has all its arguments (whole calls without ids).
    """
    if provider_id is not None:
        for known_index, call in reversed(calls):
            if call.provider_id == provider_id and known_index == index and name in (None, call.name):
                return call
        if name is not None:
            return None
    for known_index, call in reversed(calls):
        if index is not None and known_index is not None and known_index != index:
            continue
        if name is None or call.name is None:
            return call
        begins_another = name != call.name or (text and is_strict_json(call.text.join()))
        return None if begins_another else call
    return None
