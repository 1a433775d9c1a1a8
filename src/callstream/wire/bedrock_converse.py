"""Amazon Bedrock, Converse: ``POST /model/{id}/converse-stream`` and ``/converse``, for the models of all makers.

Events of an AWS event stream, whose type is in the headers. A call is a content block whose start has a ``toolUse``;
``server_tool_use`` runs on the provider's side and is not a client call. Blocks are told apart by ``contentBlockIndex``;
those of text and reasoning have no start. ``messageStop`` says how the message ended; ``metadata`` with the usage follows
it, or comes before it.

A guardrail, or the service that found the model's tool use malformed, objects to a call whose block was stopped before:
such a call does not count, even if its text parses. So the end of the last block is believed when anything else follows:
another block, the end of the message or of the body, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import DiscardReason, RequestEvent, ResultReceived, WireEvent
from callstream.wire.anthropic import add_beta
from callstream.wire.argtext import text_of
from callstream.wire.blocks import BlockCollapser, NewMessage, Part
from callstream.wire.collapsing import IsLeftOut, Passing, Reasoning, kept
from callstream.wire.decoder import Decoder
from callstream.wire.eventstream import CONTENT_TYPE, EventStreamFraming
from callstream.wire.framing import Frame, Framing
from callstream.wire.provider import Provider
from callstream.wire.requests import MODEL, Asks, Request, Turn, all_tools, objects_in, read_body, schemas, user_message
from callstream.wire.transcript import WireCall

NORMAL_STOPS = frozenset({"tool_use", "end_turn", "stop_sequence"})
OBJECTIONS: dict[str | None, DiscardReason] = {
    "malformed_tool_use": "malformed",
    "malformed_model_output": "malformed",
    "guardrail_intervened": "truncated",
    "content_filtered": "truncated",
}
"""Stop reasons that object to the message's last block, and why a call in it does not count."""

_MORE = "additionalModelRequestFields"

# -- decoding ----------------------------------------------------------------------------------------------------------


class ToolUseBlock(msgspec.Struct):
    toolUseId: str | None = None  # noqa: N815
    name: str | None = None
    type: str | None = None
    input: Any = None


class ReasoningText(msgspec.Struct):
    text: str | None = None


class ReasoningContent(msgspec.Struct):
    text: str | None = None
    reasoningText: ReasoningText | None = None  # noqa: N815


class Block(msgspec.Struct):
    """A block of a whole message, the start of one, or a piece of one."""

    toolUse: ToolUseBlock | None = None  # noqa: N815
    text: str | None = None
    reasoningContent: ReasoningContent | None = None  # noqa: N815


class StreamEvent(msgspec.Struct):
    contentBlockIndex: int | None = None  # noqa: N815
    start: Block | None = None
    delta: Block | None = None
    stopReason: str | None = None  # noqa: N815
    usage: Any = None


class Message(msgspec.Struct):
    content: list[Block] = []


class WholeOutput(msgspec.Struct):
    message: Message | None = None


class Answer(msgspec.Struct):
    output: WholeOutput | None = None
    stopReason: str | None = None  # noqa: N815
    usage: Any = None


class ConverseDecoder(Decoder[StreamEvent]):
    wire = "bedrock_converse"
    _payloads = msgspec.json.Decoder(StreamEvent)
    _answers = msgspec.json.Decoder(Answer)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._event = b""  # the type of the event being read
        self._forget_response()

    def _framing(self) -> Framing:
        return EventStreamFraming()

    def _forget_response(self) -> None:
        self._in_message = False
        self._blocks: dict[int | None, WireCall | None] = {}  # those with a start: a client call, or another block
        self._stopped: list[WireCall] = []  # whose blocks were stopped, until that is believed
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] | None = None

    def _read(self, frame: Frame) -> None:
        self._event = frame.event
        super()._read(frame)

    def _broken(self, error: WireError) -> list[WireEvent]:
        self._believe_stops()
        return super()._broken(error)

    def _chunk(self, chunk: StreamEvent) -> None:
        match self._event:
            case b"contentBlockDelta":
                self._believe_stops()
                self._block_delta(chunk.contentBlockIndex, chunk.delta or Block())
            case b"contentBlockStart":
                self._believe_stops()
                self._block_start(chunk.contentBlockIndex, chunk.start or Block())
            case b"contentBlockStop":
                self._block_stop(chunk.contentBlockIndex)
            case b"messageStart":
                if self._in_message:
                    self._end_of_body()  # another message in the same body
                self._in_message = True
            case b"messageStop":
                self._in_message = True
                self._stop(chunk.stopReason)
            case b"metadata":
                self._in_message = True
                self._usage = chunk.usage if isinstance(chunk.usage, dict) else {}
                if self._stop_reason is not None:
                    self._end_response()
            case _:
                pass  # events that are newer than this code

    def _block_start(self, index: int | None, block: Block) -> None:
        self._in_message = True
        self._transcript.believe_ends()
        self._blocks[index] = None
        if block.toolUse is not None and block.toolUse.type in (None, "tool_use"):
            call = self._transcript.open_call(block.toolUse.name, block.toolUse.toolUseId)
            self._blocks[index] = call
            self._transcript.piece_of(call)

    def _block_delta(self, index: int | None, delta: Block) -> None:
        self._in_message = True
        if delta.toolUse is not None:
            if index not in self._blocks:
                raise WireError(
                    f"expected contentBlockStart before the arguments of block {index}, got a piece of them"
                )
            call = self._blocks[index]
            if call is not None:
                self._transcript.piece_of(call)
                self._transcript.append_args(call, text_of(delta.toolUse.input))
        elif delta.text:
            self._transcript.append_text(delta.text)
        elif delta.reasoningContent is not None and delta.reasoningContent.text:
            self._transcript.append_reasoning(delta.reasoningContent.text)

    def _block_stop(self, index: int | None) -> None:
        call = self._blocks.pop(index, None)
        if call is not None:
            self._transcript.piece_of(call)
            self._stopped.append(call)

    def _believe_stops(self) -> None:
        for call in self._stopped:
            self._transcript.end_call(call)
        self._stopped.clear()

    def _stop(self, reason: str | None) -> None:
        """The message is over; its stop reason says how."""
        self._stop_reason = reason or ""
        if reason in OBJECTIONS:
            for call in self._stopped:
                self._transcript.discard_call(call, OBJECTIONS[reason], f"stopReason {reason}")
            self._stopped.clear()
        self._believe_stops()
        self._transcript.finish_calls(normal=reason in NORMAL_STOPS, detail=f"stopReason {reason}")
        if self._usage is not None:
            self._end_response()

    def _end_of_body(self) -> None:
        if self._stop_reason is None and self._in_message:
            self._believe_stops()
            self._transcript.finish_calls(normal=False, detail="the stream ended in the middle of the message")
        if self._in_message:
            self._end_response()

    def _end_response(self) -> None:
        self._transcript.end_response(self._stop_reason or None, self._usage)
        self._forget_response()

    def _read_whole(self, body: bytes) -> None:
        answer: Answer = self._decoded(body, self._answers)
        if answer.output is None or answer.output.message is None:
            raise WireError(f"expected an answer with a message, got {body[:200]!r}")
        content = answer.output.message.content
        self._usage = answer.usage if isinstance(answer.usage, dict) else {}
        cut = answer.stopReason is not None and answer.stopReason not in NORMAL_STOPS
        for index, block in enumerate(content):
            self._believe_stops()
            if block.toolUse is not None:
                self._block_start(index, block)
                if block.toolUse.input is not None:
                    self._block_delta(index, block)
            elif block.reasoningContent is not None and block.reasoningContent.reasoningText is not None:
                self._block_delta(
                    index, Block(reasoningContent=ReasoningContent(block.reasoningContent.reasoningText.text))
                )
            else:
                self._block_delta(index, Block(text=block.text))
            # A cut answer holds its last call as far as it came, closed so that it looks whole.
            if not cut or index < len(content) - 1:
                self._block_stop(index)
        self._stop(answer.stopReason)


# -- collapsing --------------------------------------------------------------------------------------------------------


class ConverseCollapser(BlockCollapser):
    """Reasoning is held until what follows is decided, as on Anthropic's own wire: a message that ends in reasoning is
    refused when it is sent back, and so is a call whose reasoning is missing.
    """

    _number = "contentBlockIndex"

    def _take(self, frame: Frame, chunk: StreamEvent | None, pieces: Sequence[str | None]) -> None:
        if chunk is None:
            self._add_aside(frame)
            return
        index = chunk.contentBlockIndex
        call = self._calls.get(pieces[0]) if pieces else None
        if call is not None and call.collapsed:
            self._withhold(call, _PARTS[frame.event], index, frame)
            return
        match frame.event:
            case b"contentBlockDelta" if index in self._reasoning:
                self._add_reasoning(self._reasoning[index], frame, is_last=False)
            case b"contentBlockDelta" if chunk.delta is not None and chunk.delta.reasoningContent is not None:
                reasoning = self._reasoning[index] = Reasoning(frame, index)
                self._slots.append(reasoning)
            case b"contentBlockStop" if index in self._reasoning:
                self._add_reasoning(self._reasoning.pop(index), frame, is_last=True)
            case b"messageStart":
                self._reasoning.clear()
                self._slots.append(NewMessage(frame, counts=False))
            case b"contentBlockStart" | b"contentBlockDelta" | b"contentBlockStop":
                self._slots.append(Passing(frame))
            case _:
                self._add_aside(frame)

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return {**delta, "delta": {"toolUse": {**delta["delta"]["toolUse"], "input": text}}}


_PARTS: dict[bytes, Part] = {b"contentBlockStart": "start", b"contentBlockDelta": "delta", b"contentBlockStop": "stop"}


# -- requests ----------------------------------------------------------------------------------------------------------


class ResultBlock(msgspec.Struct):
    toolUseId: str | None = None  # noqa: N815
    content: Any = None
    status: str | None = None


class Media(msgspec.Struct):
    format: str | None = None


class RequestBlock(msgspec.Struct):
    text: str | None = None
    toolUse: ToolUseBlock | None = None  # noqa: N815
    toolResult: ResultBlock | None = None  # noqa: N815
    image: Media | None = None
    document: Media | None = None
    video: Media | None = None


class RequestMessage(msgspec.Struct):
    role: str = ""
    content: list[RequestBlock] = []


class ConverseRequest(msgspec.Struct):
    messages: list[RequestMessage] = []


def _turns(body: bytes) -> Iterator[Turn]:
    for message in read_body("bedrock_converse", body, ConverseRequest).messages:
        blocks = message.content
        if message.role == "assistant":
            used = [block.toolUse for block in blocks if block.toolUse is not None]
            yield Turn(MODEL, [], [(use.toolUseId, use.name or "") for use in used])
            continue
        results = [block.toolResult for block in blocks if block.toolResult is not None]
        events: list[RequestEvent] = [
            ResultReceived(result.toolUseId, None, result.content, is_error=result.status == "error")
            for result in results
        ]
        text = "".join(block.text for block in blocks if block.text)
        yield Turn("user", [*events, *user_message(text, [kind for block in blocks for kind in _media_types(block)])])


def _media_types(block: RequestBlock) -> Iterator[str]:
    for kind, media in (("image", block.image), ("application", block.document), ("video", block.video)):
        if media is not None:
            yield f"{kind}/{media.format}" if media.format else kind


# -- all of it ---------------------------------------------------------------------------------------------------------


class BedrockConverse(Provider):
    wire = "bedrock_converse"
    path = re.compile(r"/model/.+/converse(?:-stream)?$")
    decoder = ConverseDecoder
    collapser = ConverseCollapser
    stream_types = (CONTENT_TYPE,)
    pieces_field = re.compile(rb"invalid beta flag|fine-grained-tool-streaming")

    def turns(self, body: bytes) -> Iterator[Turn]:
        return _turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        config = request.fields.get("toolConfig")
        tools = objects_in(config.get("tools")) if isinstance(config, dict) else []
        specs = [spec for tool in tools if isinstance(spec := tool.get("toolSpec"), dict)]
        return schemas((spec, _json_schema(spec.get("inputSchema"))) for spec in specs)

    def is_streamed(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        """For Anthropic's models alone. The path of an application's own profile does not say whose model it is."""
        names = self.declared_tools(request)
        more = request.fields.get(_MORE)
        more = {} if more is None else more
        if "anthropic." not in request.path or not names or not all(map(asks, names)) or not isinstance(more, dict):
            return request
        request.fields[_MORE] = more
        return request.rewritten() if add_beta(more) else request

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        message = answer["output"]["message"]
        message["content"] = list(
            kept(
                message["content"],
                is_left_out=lambda block: _is_client_call(block.get("toolUse")) and is_left_out(),
                is_reasoning=lambda block: "reasoningContent" in block,
            )
        )


def _json_schema(schema: Any) -> Any:
    return schema.get("json") if isinstance(schema, dict) else None


def _is_client_call(use: Any) -> bool:
    return isinstance(use, dict) and use.get("type") in (None, "tool_use")
