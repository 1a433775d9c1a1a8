"""Cohere's Chat API, version 2: ``POST /v2/chat``. The older ``/v1/chat`` is a different wire.

A call is announced by ``tool-call-start``, its arguments come as text in ``tool-call-delta`` and ``tool-call-end`` ends it.
Contents and calls are numbered separately. ``tool_plan`` is reasoning in words, as is content of type ``thinking``. A call
without arguments has a start and an end, and no delta. With the finish reason ``ERROR`` the end of the message carries the
error as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.wire.collapsing import BlockCollapser, Part
from callstream.wire.decoder import BlockDecoder, reported
from callstream.wire.provider import ChatProvider
from callstream.wire.transcript import text_of

# -- decoding ----------------------------------------------------------------------------------------------------------


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _CohereToolCall(msgspec.Struct, gc=False):
    id: str | None = None
    function: _Function | None = None


class _Content(msgspec.Struct, gc=False):
    text: str | None = None
    thinking: str | None = None


class _MessageDelta(msgspec.Struct, gc=False):
    """What an event adds to the message. Its start has lists where the other events have one object."""

    content: _Content | list[Any] | str | None = None
    tool_plan: str | None = None
    tool_calls: _CohereToolCall | list[Any] | None = None


class _Delta(msgspec.Struct, gc=False):
    message: _MessageDelta | None = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class StreamEvent(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    index: int | None = None
    delta: _Delta | None = None
    message: Any = None
    error: Any = None


class _Message(msgspec.Struct):
    content: list[_Content] | str | None = None
    tool_plan: str | None = None
    tool_calls: list[_CohereToolCall] | None = None


class _ChatAnswer(msgspec.Struct):
    id: str | None = None
    finish_reason: str | None = None
    message: _Message | str | None = None
    usage: Any = None
    error: Any = None


class _CohereDecoder(BlockDecoder[StreamEvent]):
    wire = "cohere"
    _payloads = msgspec.json.Decoder(StreamEvent)
    _answers = msgspec.json.Decoder(_ChatAnswer)
    _start = "tool-call-start"
    _block = "call"
    _reason_name = "finish_reason"
    _normal_reasons = frozenset({"COMPLETE", "STOP_SEQUENCE", "TOOL_CALL"})

    def _chunk(self, chunk: StreamEvent) -> None:
        delta = chunk.delta or _Delta()
        message = delta.message or _MessageDelta()
        match chunk.type:
            case "tool-call-delta":
                self._call_delta(chunk.index, message)
            case "tool-plan-delta":
                self._in_response = True
                self._transcript.append_reasoning(message.tool_plan or "")
            case "content-start" | "content-delta":
                self._in_response = True
                self._content(message.content)
            case "tool-call-start":
                self._in_response = True
                self._start_call(chunk.index, message.tool_calls)
            case "tool-call-end":
                self._stop_block(chunk.index)
            case "message-start":
                if self._in_response:
                    self._finish()  # another message in the same body
                self._in_response = True
                self._transcript.response_message_id = chunk.id
            case "message-end":
                if delta.error or delta.finish_reason == "ERROR":
                    raise reported(delta.error or delta.finish_reason)
                if self._in_response:
                    self._finish_reason, self._usage = delta.finish_reason, delta.usage
                    self._finish()
            case "":
                expected = f"expected an event of the cohere wire, which has a type, got {outline(codec.encode(chunk))}"
                raise reported(chunk.error, expected, message=chunk.message)
            case _:
                pass  # citations, the end of a content, and events that are newer than this code

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            content = _Content(text=content)
        if isinstance(content, _Content):
            if content.text:
                self._transcript.append_text(content.text)
            if content.thinking:
                self._transcript.append_reasoning(content.thinking)

    def _start_call(self, index: int | None, started: Any) -> None:
        if not isinstance(started, _CohereToolCall):
            raise WireError(f"expected the call of tool-call-start {index}, got {outline(codec.encode(started))}")
        self._transcript.believe_ends()
        function = started.function or _Function()
        call = self._open_block(index, function.name, started.id)
        self._transcript.append_args(call, text_of(function.arguments))

    def _call_delta(self, index: int | None, message: _MessageDelta) -> None:
        call = self._blocks.get(index)
        if call is None:
            raise self._unbegun(index)
        self._transcript.piece_of(call)
        if isinstance(message.tool_calls, _CohereToolCall) and message.tool_calls.function is not None:
            self._transcript.append_args(call, text_of(message.tool_calls.function.arguments))

    def _read_whole(self, body: bytes) -> None:
        answer: _ChatAnswer = self._decoded(body, self._answers)
        if not isinstance(answer.message, _Message):
            expected = f"expected an answer with a message, got {outline(body)}"
            raise reported(answer.error, expected, message=answer.message)
        message = answer.message
        self._transcript.response_message_id = answer.id
        if message.tool_plan:
            self._transcript.append_reasoning(message.tool_plan)
        for content in [message.content] if isinstance(message.content, str) else message.content or []:
            self._content(content)
        for index, call in enumerate(message.tool_calls or ()):
            self._start_call(index, call)
            self._stop_block(index)
        self._finish_reason, self._usage = answer.finish_reason, answer.usage
        self._finish()


# -- collapsing --------------------------------------------------------------------------------------------------------


class _CohereCollapser(BlockCollapser):
    """Plans and thinking need no tracking: Cohere accepts back a message that has them and no call."""

    _delta_event = b"tool-call-delta"
    _parts: ClassVar[Mapping[str, Part]] = {
        "tool-call-start": "start",
        "tool-call-delta": "delta",
        "tool-call-end": "stop",
        "message-start": "message",
    }

    def _without_arguments(self, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not start["delta"]["message"]["tool_calls"]["function"].get("arguments"):
            return None
        delta = {"message": {"tool_calls": {"function": {"arguments": ""}}}}
        return _with_text(start, ""), {"type": "tool-call-delta", "delta": delta}

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return _with_text(delta, text)

    def _has_number(self, event: dict[str, Any]) -> bool:
        return super()._has_number(event) and event.get("type") in self._parts


def _with_text(event: dict[str, Any], text: str) -> dict[str, Any]:
    """An event about a call with other arguments."""
    message = event["delta"]["message"]
    call = message["tool_calls"]
    call = {**call, "function": {**call["function"], "arguments": text}}
    return {**event, "delta": {**event["delta"], "message": {**message, "tool_calls": call}}}


# -- the provider ------------------------------------------------------------------------------------------------------


class Cohere(ChatProvider):
    wire = "cohere"
    path = re.compile(r"/v2/chat$")
    decoder = _CohereDecoder
    collapser = _CohereCollapser
