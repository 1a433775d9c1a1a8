"""Gemini's Interactions API: ``POST /interactions``, on AI Studio and on Vertex, and ``GET /interactions/{id}``, streamed.

An interaction is a list of steps. A call is a step of type ``function_call``; its arguments come as text, in deltas, and
``step.stop`` alone ends it. Server-side steps are not client calls. The signature of a call is on the thought step
before it.

A response that reached the decode limit of one request ends with the status ``requires_continuation``, and the SDK sends
another request for the rest; whether that can cut a call in two is not known, so an open call is truncated. A stream
that is resumed (``GET``) may begin in the middle: steps whose start is not in it are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import ResultReceived
from callstream.wire.collapsing import BlockCollapser, Part, changed, read_json
from callstream.wire.decoder import BlockDecoder, reported
from callstream.wire.framing import Frame
from callstream.wire.provider import IsLeftOut, Provider, kept
from callstream.wire.requests import (
    MODEL,
    LoneReasoning,
    Notes,
    Request,
    RequestTurn,
    note_text,
    objects_in,
    read_body,
    schemas,
    user_message,
)
from callstream.wire.slots import Aside, Output

CONTINUES = "requires_continuation"
CALL, THOUGHT = "function_call", "thought"
CONTENTS = ("text", "image", "audio", "video", "document")

# -- decoding ----------------------------------------------------------------------------------------------------------


class _InteractionStep(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    signature: str | None = None
    content: Any = None
    summary: Any = None


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    arguments: str | None = None
    text: str | None = None
    signature: str | None = None
    content: Any = None


class _Interaction(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    usage: Any = None
    steps: list[_InteractionStep] | None = None
    error: Any = None


class StreamEvent(msgspec.Struct, gc=False):
    type: str = msgspec.field(name="event_type", default="")
    index: int | None = None
    step: _InteractionStep | None = None
    delta: _Delta | None = None
    interaction: _Interaction | None = None
    status: str | None = None
    error: Any = None


class _GeminiInteractionsDecoder(BlockDecoder[StreamEvent]):
    wire = "gemini_interactions"
    _payloads = msgspec.json.Decoder(StreamEvent)
    _interactions = msgspec.json.Decoder(_Interaction)
    _unended = "the stream ended in the middle of the interaction"
    _start = "step.start"
    _block = "step"
    _reason_name = "status"
    _normal_reasons = frozenset({"completed", "requires_action"})
    _began = False  # the beginning of the interaction is in this body

    def _forget_response(self) -> None:
        super()._forget_response()
        self._signature: str | None = None  # of the thought before, until a call has taken it

    def _chunk(self, chunk: StreamEvent) -> None:
        match chunk.type:
            case "step.delta":
                self._in_response = True
                self._step_delta(chunk.index, chunk.delta or _Delta())
            case "step.start":
                self._in_response = True
                self._transcript.believe_ends()
                self._start_step(chunk.index, chunk.step or _InteractionStep())
            case "step.stop":
                self._stop_block(chunk.index)
            case "interaction.created":
                if self._in_response:
                    self._finish()
                self._began = self._in_response = True
                self._transcript.response_message_id = chunk.interaction.id if chunk.interaction else None
            case "interaction.completed":
                interaction = chunk.interaction or _Interaction()
                self._raise_if_failed(interaction.status, interaction.error)
                self._end(interaction)
            case "interaction.status_update":
                self._raise_if_failed(chunk.status, chunk.error)
            case _ if chunk.error or chunk.type == "error":
                raise reported(chunk.error or "no reason was given")
            case "":
                got = outline(codec.encode(chunk))
                raise WireError(
                    f"expected an event of the gemini_interactions wire, which has an event_type, got {got}"
                )
            case _:
                pass  # events that are newer than this code

    def _start_step(self, index: int | None, step: _InteractionStep) -> None:
        if step.type == CALL:
            self._open_block(index, step.name, step.id, step.arguments, signature=step.signature or self._signature)
            self._signature = None
            return
        self._signature = step.signature
        self._append(step.content, is_thought=False)
        self._append(step.summary, is_thought=True)

    def _step_delta(self, index: int | None, delta: _Delta) -> None:
        match delta.type:
            case "arguments_delta":
                call = self._blocks.get(index)
                if call is None and self._began:
                    raise self._unbegun(index)
                self._transcript.piece_of(call)
                if call is not None:
                    self._transcript.append_args(call, delta.arguments or "")
            case "text":
                self._append(delta.text, is_thought=False)
            case "thought_summary":
                self._append(delta.content, is_thought=True)
            case "thought_signature":
                self._signature = delta.signature or self._signature
            case _:
                pass  # media, server-side calls and results, and deltas that are newer than this code

    def _append(self, content: Any, *, is_thought: bool) -> None:
        """Appends the text of a content, or of a list of them."""
        for text in _texts(content):
            if is_thought:
                self._transcript.append_reasoning(text)
            else:
                self._transcript.append_text(text)

    def _raise_if_failed(self, status: str | None, error: Any) -> None:
        if status == "failed":
            raise reported(error or "the interaction failed")

    def _end(self, interaction: _Interaction) -> None:
        """The interaction is over, for this request. If it goes on in another, the calls that were ended are whole."""
        self._finish_reason, self._usage = interaction.status, interaction.usage
        if interaction.status == CONTINUES:
            self._transcript.believe_ends()
        self._finish()

    def _read_whole(self, body: bytes) -> None:
        interaction: _Interaction = self._decoded(body, self._interactions)
        if interaction.error and interaction.status is None:
            raise reported(interaction.error)
        if interaction.steps is None and interaction.status is None:
            raise WireError(f"expected an interaction with steps or a status, got {outline(body)}")
        self._raise_if_failed(interaction.status, interaction.error)
        self._transcript.response_message_id = interaction.id
        for index, step in enumerate(interaction.steps or ()):
            self._transcript.believe_ends()
            if step.type in (CALL, THOUGHT, "model_output"):
                self._start_step(index, step)
            self._stop_block(index)
        self._end(interaction)


def _texts(content: Any) -> Iterator[str]:
    """The texts in a content, which may be a text, an object that has one, or a list of either."""
    for each in content if isinstance(content, list) else [content]:
        text = each.get("text") if isinstance(each, dict) else each
        if text and isinstance(text, str):
            yield text


# -- collapsing --------------------------------------------------------------------------------------------------------


class _GeminiInteractionsCollapser(BlockCollapser):
    """A call that is left out is left out of the final steps too. Thoughts are identified by their signatures.

    What the server stores is its own copy, which still has that call.
    """

    _delta_event = b"step.delta"
    _parts: ClassVar[Mapping[str, Part]] = {
        "step.start": "start",
        "step.delta": "delta",
        "step.stop": "stop",
        "interaction.created": "message",
    }

    def _names_of(self, part: Part, index: int | None, chunk: StreamEvent) -> Sequence[object] | None:
        if part == "start":
            return (chunk.step.signature,) if chunk.step is not None and chunk.step.type == THOUGHT else None
        return (chunk.delta and chunk.delta.signature,) if part == "delta" and index in self._reasoning else None

    def _place(self, frame: Frame, chunk: StreamEvent | None, pieces: Sequence[str | None]) -> None:
        if chunk is not None and chunk.type == "interaction.completed":
            self._slots.append(Aside(frame, partial(self._completed, frame)))
        else:
            super()._place(frame, chunk, pieces)

    def _without_arguments(self, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        step = start["step"]
        if not step.get("arguments"):
            return None
        delta = {"event_type": "step.delta", "delta": {"type": "arguments_delta", "arguments": ""}}
        return {**start, "step": {**step, "arguments": {}}}, delta

    def _with_arguments(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        return {**delta, "delta": {**delta["delta"], "arguments": text}}

    def _completed(self, frame: Frame) -> list[Output]:
        """The end of an interaction, which may have all steps once more."""
        event = read_json(frame.payload)
        left_out = {call.wire_id for call in self._calls.values() if call.collapsed and call.state == "left_out"}
        interaction = event.get("interaction")
        steps = interaction.get("steps") if isinstance(interaction, dict) else None
        if not left_out or not isinstance(steps, list):
            return [Output(self._passed(frame))]
        found = [step for step in objects_in(steps) if step.get("type") != CALL or step.get("id") not in left_out]
        written = {**event, "interaction": {**interaction, "steps": found}}
        return [Output(self._passed(frame, changed(event, written)))]


# -- requests ----------------------------------------------------------------------------------------------------------


class _CreateRequest(msgspec.Struct):
    input: str | list[Any] | dict[str, Any] | None = None


def _message(content: Any) -> list[Any]:
    parts = content if isinstance(content, list) else [content]
    media = [part for part in objects_in(parts) if part.get("type", "text") != "text"]
    return user_message("".join(_texts(parts)), [_text(part.get("mime_type")) or str(part["type"]) for part in media])


def _steps(sent: Any) -> list[Any]:
    """The input as steps: contents that are not wrapped in a step are a user message."""
    entries = sent if isinstance(sent, list) else [sent]
    contents = [{"type": "text", "text": entry} if isinstance(entry, str) else entry for entry in entries]
    if all(entry.get("type") in CONTENTS for entry in objects_in(contents)):
        return [{"type": "user_input", "content": contents}]
    return contents


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# -- the provider ------------------------------------------------------------------------------------------------------


class GeminiInteractions(Provider):
    wire = "gemini_interactions"
    goes_on = (CONTINUES,)
    path = re.compile(r"/interactions$")
    resumed_path = re.compile(r"/interactions/[^/]+$")
    has_background = True
    decoder = _GeminiInteractionsDecoder
    collapser = _GeminiInteractionsCollapser

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        said = read_body(self.wire, body, _CreateRequest).input
        contents: list[Any] = []  # of one message, which are not wrapped into a step
        for entry in said if isinstance(said, list) else [said]:
            step = entry if isinstance(entry, dict) else {"type": "text", "text": entry}
            match step.get("type"):
                case "user_input":
                    yield RequestTurn("user", _message(step.get("content")))
                case "function_result":
                    result = ResultReceived(
                        _text(step.get("call_id")),
                        _text(step.get("name")),
                        step.get("result"),
                        is_error=step.get("is_error") is True,
                    )
                    yield RequestTurn("tool", [result])
                case kind if kind in CONTENTS:
                    contents.append(step)
                case str(kind):
                    calls = [(_text(step.get("id")), _text(step.get("name")) or "")] if kind == CALL else []
                    yield RequestTurn(MODEL, [], calls)
                case _:
                    pass
        if contents:
            yield RequestTurn("user", _message(contents))

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        tools = [tool for tool in objects_in(request.fields.get("tools")) if tool.get("type") == "function"]
        return schemas((tool, tool.get("parameters")) for tool in tools)

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """Empty where the model may use a computer: those functions are declared nowhere."""
        kinds = [tool.get("type") for tool in objects_in(request.fields.get("tools"))]
        return () if "computer_use" in kinds else super().offered_names(request)

    def is_stored(self, request: Request) -> bool:
        return request.fields.get("store") is not False

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A user message. Where an interaction is continued, the calls are in it, and each needs a result."""
        fields = request.fields
        if not fields.get("input"):
            return None
        steps = _steps(fields["input"])
        if fields.get("previous_interaction_id"):
            kind = "function_result"
            results = [{"type": kind, "call_id": id_, "result": text, "is_error": True} for id_, text in notes.items()]
            fields["input"] = [*results, *steps]
        else:
            note = {"type": "text", "text": note_text(notes)}
            fields["input"] = [*steps, {"type": "user_input", "content": [note]}]
        return request.rewritten()

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        steps = request.fields.get("input")
        found = [step for step in objects_in(steps) if step.get("type") == THOUGHT and lone.has(step.get("signature"))]
        if not isinstance(steps, list) or not found:
            return request
        request.fields["input"] = [step for step in steps if step not in found]
        return request.rewritten()

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        answer["steps"] = kept(
            answer["steps"],
            is_left_out=lambda step: step.get("type") == CALL and is_left_out(),
            is_reasoning=lambda step: step.get("type") == THOUGHT and not stored,
        )
