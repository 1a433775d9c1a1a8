"""Amazon Bedrock: Converse, and InvokeModel. Both answer with an AWS event stream.

Converse: ``POST /model/{id}/converse-stream`` and ``/converse``, for the models of all vendors.

Events of an AWS event stream, whose type is in the headers. A call is a content block whose start has a ``toolUse``;
``server_tool_use`` runs on the provider's side and is not a client call. Blocks are distinguished by ``contentBlockIndex``;
those of text and reasoning have no start. ``messageStop`` says how the message ended; ``metadata`` with the usage follows
it, or comes before it.

A guardrail, or the service when it finds the model's tool use malformed, may object to a call after its block was stopped:
such a call does not count, even if its text parses. So the end of the last block is believed only when something follows
it: another block, the end of the message or of the body, or an error.

InvokeModel: ``POST /model/{id}/invoke-with-response-stream`` and ``/invoke``, for Anthropic's models.

Each chunk of the AWS event stream holds one event of Anthropic's Messages wire; requests and whole answers are those of
Messages as well. The path does not say whose model answers, and each vendor has its own format; Anthropic's requests are
recognised by their ``anthropic_version``. Answers to all others pass unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import DiscardReason, RequestEvent, ResultReceived
from callstream.wire.anthropic import Anthropic, AnthropicDecoder, add_beta
from callstream.wire.collapsing import BlockCollapser, Part
from callstream.wire.decoder import BlockDecoder
from callstream.wire.eventstream import CONTENT_TYPE, ChunkFraming, EventStreamFraming
from callstream.wire.framing import Frame
from callstream.wire.provider import AnswerKind, IsLeftOut, Provider, kept
from callstream.wire.requests import (
    MODEL,
    Asks,
    LoneReasoning,
    Notes,
    Request,
    RequestTurn,
    all_tools,
    note_text,
    objects_in,
    read_body,
    schemas,
    user_message,
    without_blocks,
)
from callstream.wire.transcript import text_of

# -- decoding ----------------------------------------------------------------------------------------------------------

OBJECTIONS: dict[str | None, DiscardReason] = {
    "malformed_tool_use": "malformed",
    "malformed_model_output": "malformed",
    "guardrail_intervened": "truncated",
    "content_filtered": "truncated",
}
"""Stop reasons that object to the message's last block, and why a call in it does not count."""


class _ToolUseBlock(msgspec.Struct):
    toolUseId: str | None = None  # noqa: N815
    name: str | None = None
    type: str | None = None
    input: Any = None


class _ReasoningText(msgspec.Struct):
    text: str | None = None


class _ReasoningContent(msgspec.Struct):
    text: str | None = None
    reasoningText: _ReasoningText | None = None  # noqa: N815
    signature: Any = None
    redactedContent: Any = None  # noqa: N815


class _Block(msgspec.Struct):
    """A block of a whole message, the start of one, or a piece of one."""

    toolUse: _ToolUseBlock | None = None  # noqa: N815
    text: str | None = None
    reasoningContent: _ReasoningContent | None = None  # noqa: N815


class StreamEvent(msgspec.Struct):
    contentBlockIndex: int | None = None  # noqa: N815
    start: _Block | None = None
    delta: _Block | None = None
    stopReason: str | None = None  # noqa: N815
    usage: Any = None


class _Message(msgspec.Struct):
    content: list[_Block] = []


class _WholeOutput(msgspec.Struct):
    message: _Message | None = None


class _ConverseAnswer(msgspec.Struct):
    output: _WholeOutput | None = None
    stopReason: str | None = None  # noqa: N815
    usage: Any = None


class _ConverseDecoder(BlockDecoder[StreamEvent]):
    wire = "bedrock_converse"
    _framing = EventStreamFraming
    _payloads = msgspec.json.Decoder(StreamEvent)
    _answers = msgspec.json.Decoder(_ConverseAnswer)
    _start = "contentBlockStart"
    _normal_reasons = frozenset({"tool_use", "end_turn", "stop_sequence"})
    _event = b""  # the type of the event being read

    def _forget_response(self) -> None:
        super()._forget_response()
        self._has_stopped = False

    def _read(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._event = frame.event
            super()._read((frame,))

    def _chunk(self, chunk: StreamEvent) -> None:
        match self._event:
            case b"contentBlockDelta":
                self._transcript.believe_ends()
                self._block_delta(chunk.contentBlockIndex, chunk.delta or _Block())
            case b"contentBlockStart":
                self._block_start(chunk.contentBlockIndex, chunk.start or _Block())
            case b"contentBlockStop":
                self._stop_block(chunk.contentBlockIndex)
            case b"messageStart":
                if self._in_response:
                    self._end_of_body()  # another message in the same body
                self._in_response = True
            case b"messageStop":
                self._in_response = True
                self._stop(chunk.stopReason)
            case b"metadata":
                self._in_response = True
                self._usage = chunk.usage if isinstance(chunk.usage, dict) else {}
                if self._has_stopped:
                    self._end_response()
            case _:
                pass  # events that are newer than this code

    def _block_start(self, index: int | None, block: _Block) -> None:
        self._in_response = True
        self._transcript.believe_ends()
        self._blocks[index] = None
        if block.toolUse is not None and block.toolUse.type in (None, "tool_use"):
            self._open_block(index, block.toolUse.name, block.toolUse.toolUseId)

    def _block_delta(self, index: int | None, delta: _Block) -> None:
        self._in_response = True
        if delta.toolUse is not None:
            if index not in self._blocks:
                raise self._unbegun(index)
            call = self._blocks[index]
            if call is not None:
                self._transcript.piece_of(call)
                self._transcript.append_args(call, text_of(delta.toolUse.input))
        elif delta.text:
            self._transcript.append_text(delta.text)
        elif delta.reasoningContent is not None and delta.reasoningContent.text:
            self._transcript.append_reasoning(delta.reasoningContent.text)

    def _stop(self, reason: str | None) -> None:
        """The message is over; its stop reason says how."""
        self._finish_reason, self._has_stopped = reason or None, True
        normal, why = reason in self._normal_reasons, OBJECTIONS.get(reason, "truncated")
        self._transcript.finish_calls(normal=normal, reason=why, detail=f"stopReason {reason}")
        if self._usage is not None:
            self._end_response()

    def _read_whole(self, body: bytes) -> None:
        answer: _ConverseAnswer = self._decoded(body, self._answers)
        if answer.output is None or answer.output.message is None:
            raise WireError(f"expected an answer with a message, got {outline(body)}")
        content = answer.output.message.content
        self._usage = answer.usage if isinstance(answer.usage, dict) else {}
        for index, block in enumerate(content):
            self._transcript.believe_ends()
            thought = block.reasoningContent and block.reasoningContent.reasoningText
            if block.toolUse is not None:
                self._block_start(index, block)
                if block.toolUse.input is not None:
                    self._block_delta(index, block)
            elif thought is not None and thought.text:
                self._transcript.append_reasoning(thought.text)
            elif block.text:
                self._transcript.append_text(block.text)
            self._stop_block(index)
        self._stop(answer.stopReason)


# -- collapsing --------------------------------------------------------------------------------------------------------


class _ConverseCollapser(BlockCollapser):
    """Reasoning is identified by its signature or its redacted content, as on Anthropic's own wire."""

    _number = "contentBlockIndex"

    def _seen(self, frame: Frame, chunk: StreamEvent) -> tuple[Part | None, int | None]:
        return _PARTS.get(frame.event), chunk.contentBlockIndex

    def _names_of(self, part: Part, index: int | None, chunk: StreamEvent) -> Sequence[object] | None:
        thought = None if chunk.delta is None else chunk.delta.reasoningContent
        return (thought.signature, thought.redactedContent) if part == "delta" and thought is not None else None

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return {**delta, "delta": {"toolUse": {**delta["delta"]["toolUse"], "input": text}}}


_PARTS: dict[bytes, Part] = {
    b"contentBlockStart": "start",
    b"contentBlockDelta": "delta",
    b"contentBlockStop": "stop",
    b"messageStart": "message",
}


# -- requests ----------------------------------------------------------------------------------------------------------

_MORE = "additionalModelRequestFields"


class _ResultBlock(msgspec.Struct):
    toolUseId: str | None = None  # noqa: N815
    content: Any = None
    status: str | None = None


class _Media(msgspec.Struct):
    format: str | None = None


class _RequestBlock(msgspec.Struct):
    text: str | None = None
    toolUse: _ToolUseBlock | None = None  # noqa: N815
    toolResult: _ResultBlock | None = None  # noqa: N815
    image: _Media | None = None
    document: _Media | None = None
    video: _Media | None = None


class _RequestMessage(msgspec.Struct):
    role: str = ""
    content: list[_RequestBlock] = []


class _ConverseRequest(msgspec.Struct):
    messages: list[_RequestMessage] = []


def _media_types(block: _RequestBlock) -> Iterator[str]:
    for kind, media in (("image", block.image), ("application", block.document), ("video", block.video)):
        if media is not None:
            yield f"{kind}/{media.format}" if media.format else kind


def _json_schema(schema: Any) -> Any:
    return schema.get("json") if isinstance(schema, dict) else None


def _is_lone(reasoning: Any, lone: LoneReasoning) -> bool:
    if not isinstance(reasoning, dict):
        return False
    text = reasoning.get("reasoningText")
    return lone.has(reasoning.get("redactedContent"), text.get("signature") if isinstance(text, dict) else None)


# -- all of Converse ---------------------------------------------------------------------------------------------------


class BedrockConverse(Provider):
    wire = "bedrock_converse"
    path = re.compile(r"/model/.+/converse(?:-stream)?$")
    decoder = _ConverseDecoder
    collapser = _ConverseCollapser
    stream_types = (CONTENT_TYPE,)
    pieces_field = re.compile(rb"invalid beta flag|fine-grained-tool-streaming")

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        for message in read_body(self.wire, body, _ConverseRequest).messages:
            blocks = message.content
            if message.role == "assistant":
                used = [block.toolUse for block in blocks if block.toolUse is not None]
                yield RequestTurn(MODEL, [], [(use.toolUseId, use.name or "") for use in used])
                continue
            results = [block.toolResult for block in blocks if block.toolResult is not None]
            events: list[RequestEvent] = [
                ResultReceived(result.toolUseId, None, result.content, is_error=result.status == "error")
                for result in results
            ]
            text = "".join(block.text for block in blocks if block.text)
            yield RequestTurn(
                "user", [*events, *user_message(text, [kind for block in blocks for kind in _media_types(block)])]
            )

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        config = request.fields.get("toolConfig")
        tools = objects_in(config.get("tools")) if isinstance(config, dict) else []
        specs = [spec for tool in tools if isinstance(spec := tool.get("toolSpec"), dict)]
        return schemas((spec, _json_schema(spec.get("inputSchema"))) for spec in specs)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        """Only for Anthropic's models. The path of an application's own profile does not say whose model it is."""
        names = self.declared_tools(request)
        more = request.fields.get(_MORE)
        more = {} if more is None else more
        if "anthropic." not in request.path or not names or not all(map(asks, names)) or not isinstance(more, dict):
            return request
        request.fields[_MORE] = more
        return request.rewritten() if add_beta(more) else request

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A note at the end of the user's last message, unless the model has spoken since."""
        last = objects_in(request.fields.get("messages"))[-1:]
        if not last or last[0].get("role") != "user" or not isinstance(content := last[0].get("content"), list):
            return None
        content.append({"text": note_text(notes)})
        return request.rewritten()

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        return without_blocks(request, lambda block: _is_lone(block.get("reasoningContent"), lone))

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        message = answer["output"]["message"]
        message["content"] = kept(
            message["content"],
            is_left_out=lambda block: _is_client_call(block.get("toolUse")) and is_left_out(),
            is_reasoning=lambda block: "reasoningContent" in block,
        )


def _is_client_call(use: Any) -> bool:
    return isinstance(use, dict) and use.get("type") in (None, "tool_use")


# -- InvokeModel -------------------------------------------------------------------------------------------------------


class _BedrockInvokeDecoder(AnthropicDecoder):
    wire = "bedrock_invoke"
    _framing = ChunkFraming


class BedrockInvoke(Anthropic):
    wire = "bedrock_invoke"
    path = re.compile(r"/model/.+/invoke(?:-with-response-stream)?$")
    decoder = _BedrockInvokeDecoder
    joint = None  # its frames are not server-sent events
    stream_types = (CONTENT_TYPE,)
    pieces_field = re.compile(rb"invalid beta flag|fine-grained-tool-streaming")

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return super().declared_tools(request) if _is_anthropic(request) else {}

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        return request  # Bedrock refuses the field with which Anthropic's own API is asked

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/invoke-with-response-stream")

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        names = self.declared_tools(request)
        if not names or not all(map(asks, names)) or not add_beta(request.fields):
            return request
        return request.rewritten()

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        return super().answer_kind(request, status, content_type) if _is_anthropic(request) else None


def _is_anthropic(request: Request) -> bool:
    return "anthropic_version" in request.fields
