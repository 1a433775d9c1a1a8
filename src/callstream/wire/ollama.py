"""Ollama's ``POST /api/chat``: JSON lines, streamed unless the request says ``"stream": false``.

A call comes whole, in a line of its own or with others, and that line is its end; the finish reason does not mention calls.
Older servers send no ids, and Ollama's own client drops those that newer ones send, so results come back by the name of
the tool, or in order. Many other applications use the same path, so the content type decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import ResultReceived
from callstream.wire.collapsing import ChunkCall, ChunkCollapser, Split, changed
from callstream.wire.decoder import Decoder, reported
from callstream.wire.framing import JsonLinesFraming
from callstream.wire.provider import AnswerKind, ChatProvider
from callstream.wire.requests import (
    MODEL,
    Request,
    RequestTurn,
    content_message,
    content_text,
    read_body,
    user_message,
)
from callstream.wire.slots import Output
from callstream.wire.transcript import text_of

# -- decoding ----------------------------------------------------------------------------------------------------------


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _OllamaToolCall(msgspec.Struct):
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_OllamaToolCall] | None = None


class Line(msgspec.Struct):
    message: _Message | None = None
    done: bool = False
    done_reason: str | None = None
    error: Any = None
    total_duration: Any = None
    load_duration: Any = None
    prompt_eval_count: Any = None
    prompt_eval_duration: Any = None
    eval_count: Any = None
    eval_duration: Any = None


_COUNTS = tuple(name for name in Line.__struct_fields__ if name.endswith(("_duration", "_count")))


class _OllamaDecoder(Decoder[Line]):
    wire = "ollama"
    _framing = JsonLinesFraming
    _payloads = msgspec.json.Decoder(Line)
    _unended = "the stream ended without a last line"

    def _chunk(self, chunk: Line) -> None:
        if chunk.error:
            raise reported(chunk.error)
        if chunk.message is None and not chunk.done:
            raise WireError(f"expected a line of the ollama wire, with a message, got {outline(codec.encode(chunk))}")
        self._in_response = True
        message = chunk.message or _Message()
        if message.thinking:
            self._transcript.append_reasoning(message.thinking)
        if message.content:
            self._transcript.append_text(message.content)
        for entry in message.tool_calls or ():
            self._transcript.believe_ends()
            function = entry.function or _Function()
            call = self._transcript.open_call(function.name, entry.id)
            self._transcript.piece_of(call)
            self._transcript.append_args(call, text_of(function.arguments) or "{}")
            self._transcript.end_call(call)
        if chunk.done:
            self._finish_reason = chunk.done_reason
            counts = {name: getattr(chunk, name) for name in _COUNTS if getattr(chunk, name) is not None}
            self._usage = counts or None
            normal = chunk.done_reason != "length"
            self._transcript.finish_calls(normal=normal, detail=f"done_reason {chunk.done_reason}")
            self._end_response()

    def _read_whole(self, body: bytes) -> None:
        answer: Line = self._decoded(body, self._payloads)
        self._chunk(answer)
        self._end_of_body()


# -- collapsing --------------------------------------------------------------------------------------------------------


class _LineCall(ChunkCall):
    """A call and the line that it leaves in, alone."""

    line: dict[str, Any] = msgspec.field(default_factory=dict)

    def add(self, part: dict[str, Any]) -> None:
        self.line = part


class _OllamaCollapser(ChunkCollapser[_LineCall]):
    """Calls are whole already. A line with several calls is cut into one for each; the rest of it goes into the last.

    A collapsed call without an id gets one, so that a program that keeps ids has the journal's.
    """

    _call_type = _LineCall

    def _split(self, chunk: dict[str, Any], calls: Sequence[_LineCall | None]) -> Iterator[Split]:
        if not any(call is not None and call.collapsed for call in calls):
            yield Split(chunk)
            return
        message = chunk["message"]
        entries = message["tool_calls"]
        first: dict[str, Any] = {name: chunk[name] for name in ("model", "created_at") if name in chunk}
        for number, (call, entry) in enumerate(zip(calls, entries, strict=True), 1):
            if number == len(entries):
                line = {**chunk, "message": {**message, "tool_calls": [entry]}}
            else:
                said = {"role": message.get("role"), "content": "", "tool_calls": [entry]}
                line = {**first, "message": said, "done": False}
            yield Split(line, call if call is not None and call.collapsed else None)

    def _whole(self, call: _LineCall) -> list[Output]:
        (entry,) = call.line["message"]["tool_calls"]
        named = {"id": None, **entry} | {"id": call.wire_id}
        written = {**call.line, "message": {**call.line["message"], "tool_calls": [named]}}
        return [Output(self._passed(call.frame, changed(call.began_in, written)), (call.call_id,))]

    def _left_out(self, call: _LineCall) -> list[Output]:
        message = {name: value for name, value in call.line["message"].items() if name != "tool_calls"}
        if not (call.line.get("done") or message.get("content") or message.get("thinking")):
            return []
        return [Output(self._passed(call.frame, {**call.line, "message": message}))]


# -- requests ----------------------------------------------------------------------------------------------------------


class _RequestMessage(msgspec.Struct):
    role: str = ""
    content: Any = None
    images: list[Any] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_OllamaToolCall] | None = None


class _OllamaRequest(msgspec.Struct):
    messages: list[_RequestMessage] = []


def _answered(message: _RequestMessage, unanswered: list[tuple[str | None, str]]) -> tuple[str | None, str | None]:
    """The id and the name of the call that a result answers: by its id, else by its name, else the next in order."""
    for number, (call_id, name) in enumerate(unanswered):
        if message.tool_call_id in (None, call_id) and message.tool_name in (None, name):
            del unanswered[number]
            return call_id, name or None
    return message.tool_call_id, message.tool_name


# -- the provider ------------------------------------------------------------------------------------------------------


class Ollama(ChatProvider):
    wire = "ollama"
    path = re.compile(r"/api/chat$")
    decoder = _OllamaDecoder
    collapser = _OllamaCollapser
    stream_types = ("application/x-ndjson",)

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        unanswered: list[tuple[str | None, str]] = []  # ids and names of the calls before
        for message in read_body(self.wire, body, _OllamaRequest).messages:
            match message.role:
                case "assistant":
                    calls = [(call.id, (call.function or _Function()).name or "") for call in message.tool_calls or ()]
                    unanswered = list(calls)
                    yield RequestTurn(MODEL, [], calls)
                case "tool":
                    call_id, name = _answered(message, unanswered)
                    yield RequestTurn("tool", [ResultReceived(call_id, name, content_text(message.content))])
                case "user":
                    images = ["image"] * len(message.images or ())
                    text = message.content if isinstance(message.content, str) else ""
                    yield RequestTurn(
                        "user", user_message(text, images) if images else content_message(message.content)
                    )
                case _:
                    pass  # the program's own

    def is_streamed(self, request: Request) -> bool:
        return request.fields.get("stream") is not False

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        kind = super().answer_kind(request, status, content_type)
        return None if kind == "whole" and self.is_streamed(request) else kind
