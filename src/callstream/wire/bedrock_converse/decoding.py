"""What the events of a Converse stream mean, and its whole answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import DiscardReason
from callstream.wire.argtext import text_of
from callstream.wire.decoder import Decoder
from callstream.wire.eventstream import EventStreamFraming
from callstream.wire.framing import Frame, Framing
from callstream.wire.transcript import WireCall

NORMAL_STOPS = frozenset({"tool_use", "end_turn", "stop_sequence"})
OBJECTIONS: dict[str | None, DiscardReason] = {
    "malformed_tool_use": "malformed",
    "malformed_model_output": "malformed",
    "guardrail_intervened": "truncated",
    "content_filtered": "truncated",
}
"""Stop reasons that object to the message's last block, and why a call in it does not count."""


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
    signature: Any = None
    redactedContent: Any = None  # noqa: N815


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
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] | None = None

    def _read(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._event = frame.event
            super()._read((frame,))

    def _chunk(self, chunk: StreamEvent) -> None:
        match self._event:
            case b"contentBlockDelta":
                self._transcript.believe_ends()
                self._block_delta(chunk.contentBlockIndex, chunk.delta or Block())
            case b"contentBlockStart":
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
            self._transcript.end_call(call)

    def _stop(self, reason: str | None) -> None:
        """The message is over; its stop reason says how."""
        self._stop_reason = reason or ""
        why = OBJECTIONS.get(reason, "truncated")
        self._transcript.finish_calls(normal=reason in NORMAL_STOPS, reason=why, detail=f"stopReason {reason}")
        if self._usage is not None:
            self._end_response()

    def _end_of_body(self) -> None:
        if self._stop_reason is None and self._in_message:
            self._transcript.finish_unsaid("the stream ended in the middle of the message")
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
        for index, block in enumerate(content):
            self._transcript.believe_ends()
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
            self._block_stop(index)
        self._stop(answer.stopReason)
