"""Anthropic Messages: ``POST /v1/messages``, also on Vertex, Azure and compatible servers.

A call is a content block of type ``tool_use``; server-side blocks (``server_tool_use``, ``mcp_tool_use``, …) are not
client calls. Blocks are distinguished by their index. When ``max_tokens`` cuts the last call, its block still gets a stop,
and only the stop reason shows the cut. Compatible servers leave out the stop of a block, the stop reason, or both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import RequestEvent, ResultReceived
from callstream.wire.collapsing import BlockCollapser, Part
from callstream.wire.decoder import BlockDecoder, Strict, reported
from callstream.wire.framing import SseFraming
from callstream.wire.joining import Joint, Saying, add_usage
from callstream.wire.provider import IsLeftOut, Provider, kept
from callstream.wire.requests import (
    MODEL,
    Asks,
    LoneReasoning,
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
    without_blocks,
)
from callstream.wire.slots import Passage, TextForm

THINKING = ("thinking", "redacted_thinking")
EAGER = "eager_input_streaming"
"""Without it the API holds back each value of the arguments until it is whole and valid."""
BETA = "fine-grained-tool-streaming-2025-05-14"
"""The field's predecessor: a beta for all tools of a request that do not set the field. Bedrock knows nothing else."""
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'

# -- decoding ----------------------------------------------------------------------------------------------------------


class _Block(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None


class _Delta(msgspec.Struct, gc=False):  # two objects per delta, in no cycle: the GC need not track them
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: Any = None
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: Any = None
    type: str = ""
    error: Any = None


class StreamEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int | None = None
    message: Any = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None


class AnthropicDecoder(BlockDecoder[StreamEvent]):
    wire = "anthropic"
    _payloads = msgspec.json.Decoder(StreamEvent)
    _messages = msgspec.json.Decoder(_Message)
    _start = "content_block_start"
    _reason_name = "stop_reason"
    _normal_reasons = frozenset({"tool_use", "end_turn", "stop_sequence", "pause_turn"})

    def _chunk(self, chunk: StreamEvent) -> None:
        match chunk.type:
            case "content_block_delta":
                if chunk.delta is not None:
                    self._block_delta(chunk.index, chunk.delta)
            case "content_block_start":
                if chunk.content_block is not None:
                    self._block_start(chunk.index, chunk.content_block)
            case "content_block_stop":
                self._stop_block(chunk.index)
            case "message_start":
                self._message_start(chunk.message)
            case "message_delta":
                self._in_response = True
                if chunk.delta is not None and chunk.delta.stop_reason is not None:
                    self._finish_reason = chunk.delta.stop_reason
                self._add_usage(chunk.usage)
            case "message_stop":
                if self._in_response:
                    self._finish()
            case _ if chunk.error or chunk.type == "error":
                raise reported(chunk.error, "the provider reported an error", message=chunk.message)
            case "":
                raise WireError(
                    f"expected an event of the anthropic wire, which has a type, got {outline(codec.encode(chunk))}"
                )
            case _:
                pass  # ping, and events that are newer than this code

    def _message_start(self, message: Any) -> None:
        if self._in_response:
            self._finish()  # another message in the same body
        self._in_response = True
        if isinstance(message, dict):
            message_id = message.get("id")
            self._transcript.response_message_id = message_id if isinstance(message_id, str) else None
            self._add_usage(message.get("usage"))

    def _block_start(self, index: int | None, block: _Block) -> None:
        self._in_response = True
        self._transcript.believe_ends()
        if block.type == "tool_use":
            # Programmatic calls bring their whole input here and no delta; the usual {} announces deltas.
            self._open_block(index, block.name, block.id, block.input)
            return
        self._blocks[index] = None
        if block.type == "text" and block.text and isinstance(block.text, str):
            self._transcript.append_text(block.text)
        elif block.type == "thinking" and block.thinking and isinstance(block.thinking, str):
            self._transcript.append_reasoning(block.thinking)

    def _block_delta(self, index: int | None, delta: _Delta) -> None:
        if delta.type == "input_json_delta":
            call = self._blocks.get(index)
            if call is not None:
                transcript = self._transcript
                transcript.pieces.append(call.call_id)  # piece_of, without a call for every delta
                transcript.append_args(call, delta.partial_json or "")
            elif index not in self._blocks:
                raise self._unbegun(index)
            return
        self._in_response = True
        if delta.text and delta.type == "text_delta":
            self._transcript.append_text(delta.text)
        elif delta.thinking and delta.type == "thinking_delta":
            self._transcript.append_reasoning(delta.thinking)

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage = (self._usage or {}) | usage

    def _end_of_body(self) -> None:
        if self._finish_reason is not None:
            self._finish()
        else:
            super()._end_of_body()

    def _read_whole(self, body: bytes) -> None:
        message: _Message = self._decoded(body, self._messages)
        if message.error or message.type == "error":
            raise reported(message.error, f"the provider reported an error: {outline(body)}")
        if message.content is None:
            raise WireError(f"expected a message with content, got {outline(body)}")
        self._transcript.response_message_id = message.id
        self._finish_reason = message.stop_reason
        self._add_usage(message.usage)
        for index, block in enumerate(message.content):
            self._block_start(index, block)
            self._stop_block(index)
        self._finish()


# -- collapsing --------------------------------------------------------------------------------------------------------


class _TextDelta(Strict):
    type: str
    text: str | None = None
    thinking: str | None = None


class _TextEvent(Strict):
    type: str
    delta: _TextDelta
    index: int | None = None


_TEXTS = {"text_delta": "text", "thinking_delta": "thinking"}
"""The field that has the text, by the type of a delta."""


def _passage_of(event: _TextEvent) -> Passage | None:
    is_text = event.type == "content_block_delta" and event.delta.type in _TEXTS
    return (event.index, event.delta.type) if is_text else None


def _with_text(event: dict[str, Any], text: str) -> dict[str, Any]:
    delta = event["delta"]
    return {**event, "delta": {**delta, _TEXTS[delta["type"]]: text}}


class _AnthropicCollapser(BlockCollapser):
    """Thinking is identified by its signature, redacted thinking by its data. The API refuses a message sent back that
    ends in either, and a call whose thinking is missing.
    """

    text_form = TextForm(msgspec.json.Decoder(_TextEvent), _passage_of, _with_text)
    _delta_event = b"content_block_delta"
    _parts: ClassVar[Mapping[str, Part]] = {
        "content_block_start": "start",
        "content_block_delta": "delta",
        "content_block_stop": "stop",
        "message_start": "message",
    }

    @property
    def keep_alive(self) -> bytes:
        return _PING if isinstance(self._framing, SseFraming) else super().keep_alive  # Bedrock has frames of its own

    def _names_of(self, part: Part, index: int | None, chunk: StreamEvent) -> Sequence[object] | None:
        block = chunk.content_block
        if part == "start":
            return (block.signature, block.data) if block is not None and block.type in THINKING else None
        return (chunk.delta and chunk.delta.signature,) if part == "delta" and index in self._reasoning else None

    def _without_arguments(self, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        block = start["content_block"]
        if not block.get("input"):
            return None
        delta = {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}
        return {**start, "content_block": {**block, "input": {}}}, delta

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return {**delta, "delta": {**delta["delta"], "partial_json": text}}


# -- two answers as one ------------------------------------------------------------------------------------------------


class _AnthropicJoint(Joint):
    """The blocks of the second message follow those of the first; one start, the first, and one end serve for both."""

    _number = "index"
    _moved_by = 0

    def continue_at(self, number: int, items: Sequence[Any] = ()) -> None:
        super().continue_at(number, items)
        self._moved_by = number - len(self._missing)

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        match value.get("type"):
            case "message_delta":
                self._usage = value.get("usage") or {}
                return None, value
            case "message_stop":
                return None, value
            case _:
                return _moved(value, -self._missing_before(value)), None

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        index = self._moved_by
        yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
        yield {"type": "content_block_stop", "index": index}

    def _made_end(self, finish: Literal["stop", "calls"]) -> Iterable[dict[str, Any]]:
        delta = {"stop_reason": "end_turn" if finish == "stop" else "tool_use", "stop_sequence": None}
        usage = (self._begun.get("message") or {}).get("usage") or {"output_tokens": 0}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type") != "message_delta" or (value.get("delta") or {}).get("stop_reason") != "tool_use":
            return value
        return {**value, "delta": {**value["delta"], "stop_reason": "end_turn"}}

    @classmethod
    def _add_text(cls, answer: dict[str, Any], saying: Saying) -> None:
        answer["content"].append({"type": "text", "text": saying.text})
        if saying.is_last_word and answer.get("stop_reason") == "tool_use":
            answer["stop_reason"] = "end_turn"

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        match value.get("type"):
            case "message_start":
                return None
            case "message_delta":
                return {**value, "usage": add_usage(self._usage, value.get("usage"))}
            case _:
                return _moved(value, self._moved_by)


def _moved(value: dict[str, Any], by: int) -> dict[str, Any]:
    return {**value, "index": value["index"] + by} if isinstance(value.get("index"), int) else value


# -- requests ----------------------------------------------------------------------------------------------------------


class _RequestBlock(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    source: Any = None


class _RequestMessage(msgspec.Struct):
    role: str = ""
    content: str | list[_RequestBlock] | None = None


class _MessagesRequest(msgspec.Struct):
    messages: list[_RequestMessage] = []


def _media_type(block: _RequestBlock) -> str:
    found = block.source.get("media_type") if isinstance(block.source, dict) else None
    return found if isinstance(found, str) else block.type


def _is_users(tool: dict[str, Any]) -> bool:
    """Whether a tool is the program's own."""
    return "input_schema" in tool and tool.get("type") in (None, "custom") and isinstance(tool.get("name"), str)


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _tool_use(call: RefusedCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.wire_id, "name": call.name, "input": call.args}


def _tool_result(call: RefusedCall) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call.wire_id, "content": call.text, "is_error": True}


def add_beta(fields: dict[str, Any]) -> bool:
    """Adds the beta to those of a request on Bedrock. False if it is already among them, or if they cannot be read."""
    betas = fields.get("anthropic_beta")
    if not isinstance(betas, list | None) or BETA in (betas or ()):
        return False
    fields["anthropic_beta"] = [*(betas or ()), BETA]
    return True


# -- the provider ------------------------------------------------------------------------------------------------------


class Anthropic(Provider):
    wire = "anthropic"
    path = re.compile(r"/messages$|/publishers/anthropic/models/[^/]+:(?:streamRawPredict|rawPredict)$")
    decoder = AnthropicDecoder
    collapser = _AnthropicCollapser
    joint: ClassVar[type[Joint] | None] = _AnthropicJoint
    sdk_error = "anthropic.AnthropicError"
    pieces_field = re.compile(EAGER.encode())

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        for message in read_body(self.wire, body, _MessagesRequest).messages:
            content = message.content or []
            blocks = [_RequestBlock("text", text=content)] if isinstance(content, str) else content
            if message.role == "assistant":
                yield RequestTurn(
                    MODEL, [], [(block.id, block.name or "") for block in blocks if block.type == "tool_use"]
                )
                continue
            if message.role != "user":
                continue  # the program's own
            events: list[RequestEvent] = [
                ResultReceived(block.tool_use_id, None, block.content, is_error=bool(block.is_error))
                for block in blocks
                if block.type == "tool_result"
            ]
            text = "".join(block.text for block in blocks if block.type == "text" and block.text)
            media = [_media_type(block) for block in blocks if block.type in ("image", "document")]
            events += user_message(text, media)
            yield RequestTurn("user", events)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return schemas((tool, tool.get("input_schema")) for tool in objects_in(request.fields.get("tools")))

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        """Asks tool by tool, also in requests that are not streamed: the prompt cache is keyed on the tools as sent.

        Anthropic's own tools do not have the field.
        """
        tools = [tool for tool in objects_in(request.fields.get("tools")) if _is_users(tool) and asks(tool["name"])]
        silent = [tool for tool in tools if EAGER not in tool]
        for tool in silent:
            tool[EAGER] = True
        return request.rewritten() if silent else request

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A note at the end of the user's last message, unless the model has spoken since."""
        for message in reversed(objects_in(request.fields.get("messages"))):
            content = message.get("content")
            if message.get("role") == "user" and content:
                blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
                message["content"] = [*blocks, {"type": "text", "text": note_text(notes)}]
                return request.rewritten()
            if message.get("role") == "assistant":
                break
        return None

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        """The messages, and after them the calls that the model made and their refusals.

        With thinking enabled, a message with calls has to begin with the thoughts that led to them. These are not kept, so
        the refusals become a note instead.
        """
        fields = request.fields
        messages = objects_in(fields.get("messages"))
        thinks = isinstance(fields.get("thinking"), dict) and fields["thinking"].get("type") != "disabled"
        if thinks or not messages or messages[-1].get("role") != "user":
            return super().ask_again(request, said, refused)
        text = [{"type": "text", "text": said}] if said.strip() else []
        answer = {"role": "assistant", "content": [*text, *map(_tool_use, refused)]}
        fields["messages"] = [*messages, answer, {"role": "user", "content": list(map(_tool_result, refused))}]
        return request.rewritten()

    def _restore(self, request: Request, refused: RefusedCall) -> bool:
        messages = objects_in(request.fields.get("messages"))
        for called, answered in pairwise(messages):
            blocks, results = called.get("content"), answered.get("content")
            if not (isinstance(blocks, list) and isinstance(results, list)):
                continue
            is_beside = any(
                block.get("type") == "tool_use" and block.get("id") in refused.beside for block in objects_in(blocks)
            )
            found = [place for place, block in enumerate(results) if _is_result(block)]
            if is_beside and found:
                results.insert(found[-1] + 1, _tool_result(refused))
                blocks.append(_tool_use(refused))
                return True
        return False

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        return without_blocks(
            request,
            lambda block: block.get("type") in THINKING and lone.has(block.get("signature"), block.get("data")),
        )

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        answer["content"] = kept(
            answer["content"],
            is_left_out=lambda block: block.get("type") == "tool_use" and is_left_out(),
            is_reasoning=lambda block: block.get("type") in THINKING,
        )
