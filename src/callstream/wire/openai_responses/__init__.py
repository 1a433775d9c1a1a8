"""OpenAI Responses: ``POST /v1/responses``, and the servers that speak it. This is the writing side.

``decoding`` is the reading side: the provider's answers, and the conversation in a request. Together they would be over
1,000 lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from callstream import codec
from callstream.wire.collapsing import NumberedCollapser, changed, read_json
from callstream.wire.decoder import Decoder, Strict
from callstream.wire.framing import Frame
from callstream.wire.joining import Joint, Saying, add_usage
from callstream.wire.openai_responses.decoding import (
    CALL_ITEMS,
    DELTAS,
    ENDS,
    OWN_TOOLS,
    OpenAIResponsesDecoder,
    StreamEvent,
    is_call,
    read_turns,
)
from callstream.wire.provider import IsLeftOut, Provider, kept
from callstream.wire.requests import (
    LoneReasoning,
    Notes,
    RefusedCall,
    Request,
    RequestTurn,
    insert_after_last,
    note_text,
    objects_in,
    schemas,
)
from callstream.wire.slots import Aside, NumberedCall, Output, Passage, Passing, Reasoning, TextForm

ADDED = "response.output_item.added"
DONE = "response.output_item.done"
ASIDES = ("response.in_progress", "response.queued", "response.failed")
_BEGINNINGS = ("response.created", "response.in_progress", "response.queued")

# -- collapsing --------------------------------------------------------------------------------------------------------


class _ItemCall(NumberedCall):
    """A call and the frames of its item that leave with it. Those of OpenAI's own tools leave as they came (``frames``)."""

    added: Frame | None = None
    delta: Frame | None = None  # the first one
    text_done: Frame | None = None
    item_done: Frame | None = None
    frames: list[Frame] = msgspec.field(default_factory=list)
    is_own_tool: bool = False

    @property
    def text_field(self) -> str:
        return "arguments" if self.encoding == "json" else "input"


class _TextEvent(Strict):
    type: str
    delta: str
    item_id: Any = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    sequence_number: Any = None
    obfuscation: Any = None
    logprobs: list[Any] | None = None


_TEXTS = ("response.output_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta")


def _passage_of(event: _TextEvent) -> Passage | None:
    if event.type not in _TEXTS or event.logprobs:
        return None
    return (event.type, event.output_index, event.content_index, event.summary_index)


def _with_text(event: dict[str, Any], text: str) -> dict[str, Any]:
    made = {**event, "delta": text}
    made.pop("obfuscation", None)
    return made


class _OpenAIResponsesCollapser(NumberedCollapser[_ItemCall]):
    """A whole call is the events of its item, the deltas among them folded into one.

    The events are those that the server sent, with its own sequence numbers; where a server sends only some of them (no
    deltas, or the finished item alone, or nothing but the final response), no others are added. Two things are made
    consistent: the item's id, which some servers change from event to event, and the arguments, which may hold characters
    that JSON forbids. Sequence numbers stay strictly increasing, and frames are only renumbered where calls were
    interleaved.

    A call that is left out is left out of the final response too, since that is where programs take calls from. Reasoning
    stays there, as in the events; it is identified by its item's id, and by its encrypted content.

    A response that the server stores is its own copy, and still holds the call that was left out. Whether the server then
    accepts a next turn without an answer to that call is up to the server; handing the call out as if it could be executed
    would be worse.
    """

    _call_type = _ItemCall
    text_form = TextForm(msgspec.json.Decoder(_TextEvent), _passage_of, _with_text)

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._floor: int | None = None  # the last sequence number that left, while later frames may have lower ones
        self._sign_of_life: bytes | None = None
        self._ended_items: list[Frame | dict[str, Any]] = []  # calls as they left, all else as it came

    @property
    def items(self) -> list[Any]:
        return [each if isinstance(each, dict) else read_json(each.payload)["item"] for each in self._ended_items]

    @property
    def keep_alive(self) -> bytes:
        """The event that OpenAI's API sends itself: clients that count events count it, and none takes it for content.

        An event with a response in it would do for most, but openai's SDK for Node takes that for all there is so far.
        """
        return self._sign_of_life or super().keep_alive

    def _is_mere_delta(self, call: _ItemCall, frame: Frame, chunk: Any) -> bool:
        return call.delta is not None and chunk.type in DELTAS

    # -- places --

    def _place(self, frame: Frame, chunk: StreamEvent | None, pieces: Sequence[str | None]) -> None:
        if chunk is None:
            self._slots.append(Aside(frame))
        elif chunk.type in ENDS:
            new = [call for piece in pieces if (call := self._calls[piece]).collapsed and not call.placed]
            for call in new:
                call.placed = call.gone = True
            first_seen = tuple(call.call_id for call in new if call.state == "completed")
            self._slots.append(Aside(frame, partial(self._ended, frame, pieces, first_seen)))
        elif pieces and (call := self._calls[pieces[0]]).collapsed:
            call.is_own_tool = call.is_own_tool or (chunk.item is not None and chunk.item.type in OWN_TOOLS)
            self._withhold(call, chunk, frame)
        else:
            if chunk.type == DONE and chunk.item is not None:
                self._ended_items.append(frame)
            if not self._is_reasoning(chunk, frame):
                self._pass_on(chunk, frame)

    def _withhold(self, call: _ItemCall, event: StreamEvent, frame: Frame) -> None:
        if call.gone:  # a server repeats itself
            if call.state == "completed":
                self._slots.append(Passing(frame))
            return
        if call.index is None:
            call.index = event.output_index
        match event.type:
            case _ if call.is_own_tool:
                call.frames.append(frame)
            case kind if kind == ADDED:
                call.added = call.added or frame
            case kind if kind == DONE:
                call.item_done = frame
            case kind if kind.endswith(".delta"):
                call.delta = call.delta or frame
            case _:
                call.text_done = frame
        if not call.placed:
            self._slots.place(call)

    def _is_reasoning(self, event: StreamEvent, frame: Frame) -> bool:
        """Places a frame of a reasoning item; false if it belongs to something else."""
        if event.item is not None and event.item.type == "reasoning":
            (self._reasoning.discard if event.type == DONE else self._reasoning.add)(event.output_index)
            self._slots.append(Reasoning(frame, names=(event.item.id, event.item.encrypted_content)))
        elif event.output_index in self._reasoning or event.type.startswith("response.reasoning"):
            self._slots.append(Reasoning(frame))
        else:
            return False
        return True

    def _pass_on(self, event: StreamEvent, frame: Frame) -> None:
        if event.type == "response.created":
            self._sign_of_life = _keepalive(event)
            self._reasoning.clear()
            self._slots.append(Aside(frame, partial(self._begin_message, frame)))
        elif event.type in ASIDES or not event.type.startswith("response."):
            self._slots.append(Aside(frame))
        else:
            self._slots.append(Passing(frame))

    # -- leaving --

    def _whole(self, call: _ItemCall) -> list[Output]:
        item_id: str | None = None
        leaving = []
        for frame in call.frames or (call.added, call.delta, call.text_done, call.item_done):
            if frame is None:
                continue
            event = read_json(frame.payload)
            item = event.get("item")
            item_id = item_id or (item["id"] if item and item.get("id") else event.get("item_id"))
            numbered = self._numbered(event if call.is_own_tool else self._unified(call, event, item_id))
            leaving.append(super()._passed(frame, changed(event, numbered)))
            self._floor = numbered.get("sequence_number", self._floor)
            if numbered.get("type") == DONE:
                self._ended_items.append(numbered["item"])
        return [Output(b"".join(leaving), (call.call_id,))]

    def _unified(self, call: _ItemCall, event: dict[str, Any], item_id: str | None) -> dict[str, Any]:
        """The event with the whole arguments, or with none before they come, and with the one id of its item."""
        event = dict(event)
        field = call.text_field
        item = event.get("item")
        if event.get("item_id") and item_id:
            event["item_id"] = item_id
        if item is not None:
            event["item"] = item = dict(item)
            if event["type"] == DONE or (item.get(field) and call.delta is None):
                item[field] = call.args_text
            elif item.get(field):
                item[field] = ""
            if item.get("id"):
                item["id"] = item_id
        elif event["type"].endswith(".delta"):
            event["delta"] = call.args_text
            event.pop("obfuscation", None)  # padding to the length of the delta that it came with
        else:
            event[field] = call.args_text
        return event

    def _begin_message(self, frame: Frame) -> list[Output]:
        self._floor = None
        return super()._begin_message(frame)

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        if not self._missing and self._floor is None:
            return super()._passed(frame, value)
        event = read_json(frame.payload) if value is None else value
        if not isinstance(event, dict):
            return super()._passed(frame)
        numbered = self._numbered(event)
        number = numbered.get("sequence_number")
        if isinstance(number, int):
            self._floor = None if number == event["sequence_number"] else number
        return super()._passed(frame, changed(event, numbered) or value)

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with numbers that follow those that have left."""
        event = dict(event)
        index = event.get("output_index")
        if isinstance(index, int):
            event["output_index"] = self._moved_up(index)
        number = event.get("sequence_number")
        if self._floor is not None and isinstance(number, int) and number <= self._floor:
            event["sequence_number"] = self._floor + 1
        return event

    def _ended(self, frame: Frame, pieces: Sequence[str | None], first_seen: tuple[str, ...]) -> list[Output]:
        """The final response. ``pieces``: the calls in its output; ``first_seen``: those that no earlier event had."""
        event = read_json(frame.payload)
        output = (event.get("response") or {}).get("output")
        after = self._numbered(event)
        if isinstance(output, list):
            after["response"] = {**event["response"], "output": self._kept(output, list(pieces))}
        self._missing.clear()
        return [Output(super()._passed(frame, changed(event, after)), first_seen)]

    def _kept(self, output: list[dict[str, Any]], pieces: list[str | None]) -> list[dict[str, Any]]:
        """The items of the final response without calls that were left out, and with the calls' own arguments."""
        found = [(item, self._call_of(item, pieces)) for item in output]
        return [
            item if call is None or item.get("type") in OWN_TOOLS else {**item, call.text_field: call.args_text}
            for item, call in found
            if call is None or call.state != "left_out"
        ]

    def _call_of(self, item: dict[str, Any], pieces: list[str | None]) -> _ItemCall | None:
        """The collapsed call that an item is. The pieces of a second end are not attributed: there the ids decide."""
        if not is_call(item.get("type"), item.get("environment")):
            return None
        call = self._calls.get(pieces.pop(0) if pieces else item.get("call_id") or item.get("id"))
        return call if call is not None and call.collapsed else None


def _keepalive(created: StreamEvent) -> bytes:
    number = {} if created.sequence_number is None else {"sequence_number": created.sequence_number}
    return b"event: keepalive\ndata: %b\n\n" % codec.encode_line({"type": "keepalive", **number})


# -- two answers as one ------------------------------------------------------------------------------------------------


class _OpenAIResponsesJoint(Joint):
    """The final response is the second one, from whose id the server continues, with the items of both."""

    _number = "output_index"
    _response_id: Any = None
    _sequence = -1  # the last number that left
    _items: Sequence[Any] = ()  # of the first response

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        if value.get("type") in ENDS:
            response = value.get("response") or {}
            self._response_id = response.get("id")
            self._items = self._kept(response.get("output") or [])
            self._usage = response.get("usage") or {}
            return None, value
        return self._numbered(value, -self._missing_before(value)), None

    def continue_at(self, number: int, items: Sequence[Any] = ()) -> None:
        super().continue_at(number, items)
        if not self._end:  # it was not read to its end
            self._items = self._kept(items)

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        return value if value.get("type") in ENDS else super()._without_dropped(value)

    def _unjoined(self, value: dict[str, Any]) -> dict[str, Any]:
        after = self._numbered(value, 0)
        after["response"] = {**(value.get("response") or {}), "output": self._items}
        return after

    def _kept(self, items: Sequence[Any]) -> list[Any]:
        return [item for item in items if not (item.get("type") in CALL_ITEMS and item.get("call_id") in self._dropped)]

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        message = _message(self._response_id, text)
        begun = {**message, "status": "in_progress", "content": []}
        (part,) = message["content"]
        where = {"item_id": message["id"], "output_index": len(self._items), "content_index": 0}
        item = {"output_index": len(self._items)}
        events = [
            {"type": "response.output_item.added", **item, "item": begun},
            {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **where, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **where, "part": part},
            {"type": "response.output_item.done", **item, "item": message},
        ]
        for event in events:
            self._sequence += 1
            yield {**event, "sequence_number": self._sequence}
        self._items = [*self._items, message]

    def _made_end(self, finish: Literal["stop", "calls"]) -> Iterable[dict[str, Any]]:
        response = {**(self._begun.get("response") or {}), "status": "completed", "output": self._items}
        self._sequence += 1
        yield {"type": "response.completed", "response": response, "sequence_number": self._sequence}

    def _cut_after(self, values: Sequence[dict[str, Any]]) -> None:
        self._response_id = (self._begun.get("response") or {}).get("id")
        numbers = [value["sequence_number"] for value in values if isinstance(value.get("sequence_number"), int)]
        self._sequence = max([self._sequence, *numbers])

    @classmethod
    def _add_text(cls, answer: dict[str, Any], saying: Saying) -> None:
        answer["output"].append(_message(answer.get("id"), saying.text))

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if value.get("type") in _BEGINNINGS:
            return None
        after = self._numbered(value, len(self._items))
        response = value.get("response")
        if value.get("type") in ENDS and isinstance(response, dict):
            after["response"] = {**response, "output": [*self._items, *(response.get("output") or [])]}
            if response.get("usage"):
                after["response"]["usage"] = add_usage(self._usage, response["usage"])
        return after

    def _numbered(self, value: dict[str, Any], by: int) -> dict[str, Any]:
        after = dict(value)
        if isinstance(value.get("output_index"), int):
            after["output_index"] = value["output_index"] + by
        if isinstance(value.get("sequence_number"), int):
            self._sequence = after["sequence_number"] = max(self._sequence + 1, value["sequence_number"])
        return after


def _message(response_id: Any, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_of_{response_id}",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


# -- requests ----------------------------------------------------------------------------------------------------------


def _input_items(fields: dict[str, Any]) -> list[Any] | None:
    """The input of a request as items; None where it has none."""
    said = fields.get("input")
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return items if isinstance(items, list) else None


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _is_models(item: Any) -> bool:
    """Whether an item of a request was written by the model."""
    if not isinstance(item, dict) or item.get("type", "message") == "message":
        return isinstance(item, dict) and item.get("role") == "assistant"
    return not str(item["type"]).endswith("_output")


def _is_one_of(item: Any, kind: str, call_ids: Sequence[str]) -> bool:
    return isinstance(item, dict) and item.get("type") == kind and item.get("call_id") in call_ids


def _item(call: RefusedCall, own: Collection[Any] = ()) -> dict[str, Any]:
    """``own``: which of OpenAI's own tools the request offers."""
    kind = f"{call.name}_call"
    if call.name in own and kind in OWN_TOOLS:
        return {"type": kind, "call_id": call.wire_id, "status": "completed", OWN_TOOLS[kind]: call.args}
    return {"type": "function_call", "call_id": call.wire_id, "name": call.name, "arguments": call.args_json}


def _output(call: RefusedCall, own: Collection[Any] = ()) -> dict[str, Any]:
    match call.name if call.name in own else "":
        case "apply_patch":
            failed = {"type": "apply_patch_call_output", "call_id": call.wire_id, "status": "failed"}
            return {**failed, "output": call.text}
        case "shell":
            outcome = {"type": "exit", "exit_code": 1}
            output = [{"stdout": "", "stderr": call.text, "outcome": outcome}]
            return {"type": "shell_call_output", "call_id": call.wire_id, "output": output}
        case "local_shell":
            return {"type": "local_shell_call_output", "id": call.wire_id, "output": call.text}
    return {"type": "function_call_output", "call_id": call.wire_id, "output": call.text}


# -- the provider ------------------------------------------------------------------------------------------------------


class OpenAIResponses(Provider):
    wire = "openai_responses"
    path = re.compile(r"/responses$")
    resumed_path = re.compile(r"/responses/[^/]+$")
    has_background = True
    decoder = OpenAIResponsesDecoder
    collapser = _OpenAIResponsesCollapser
    joint = _OpenAIResponsesJoint

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        return read_turns(body)

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return schemas((tool, tool.get("parameters")) for tool in objects_in(request.fields.get("tools")))

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """Includes those in namespaces, and OpenAI's own tools. With a tool search, the model may find any others."""
        tools = objects_in(request.fields.get("tools"))
        if any(tool.get("type") == "tool_search" for tool in tools):
            return ()
        inner = [each for tool in tools if tool.get("type") == "namespace" for each in objects_in(tool.get("tools"))]
        own = [tool["type"] for tool in tools if f"{tool.get('type')}_call" in OWN_TOOLS]
        return tuple({**self.declared_tools(request), **schemas((each, None) for each in inner), **dict.fromkeys(own)})

    def is_stored(self, request: Request) -> bool:
        fields = request.fields
        return fields.get("store") is not False or bool(
            fields.get("previous_response_id") or fields.get("conversation")
        )

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A user message. Where the server's own copy is continued, the calls are in it, and each needs an output."""
        fields = request.fields
        items = _input_items(fields)
        if not items:
            return None
        if fields.get("previous_response_id") or fields.get("conversation"):
            kind = "function_call_output"
            outputs = [{"type": kind, "call_id": wire_id, "output": text} for wire_id, text in notes.items()]
            fields["input"] = [*outputs, *items]
        else:
            fields["input"] = [*items, {"role": "user", "content": note_text(notes)}]
        return request.rewritten()

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        """The items of the request, and after them the calls that the model made and their refusals.

        Calls are written without the ids of their items, so that no reasoning has to come with them. A conversation already
        has the request and the calls.
        """
        fields = request.fields
        items = _input_items(fields)
        if items is None:
            return None
        own = {tool.get("type") for tool in objects_in(fields.get("tools"))}
        outputs = [_output(call, own) for call in refused]
        if fields.get("conversation"):
            fields["input"] = outputs
        else:
            answer = [{"role": "assistant", "content": said}] if said else []
            fields["input"] = [*items, *answer, *(_item(call, own) for call in refused), *outputs]
        return request.rewritten()

    def _restore(self, request: Request, refused: RefusedCall) -> bool:
        items = request.fields.get("input")
        if not isinstance(items, list):
            return False
        called = [place for place, item in enumerate(items) if _is_one_of(item, "function_call", refused.beside)]
        answered = [
            place for place, item in enumerate(items) if _is_one_of(item, "function_call_output", refused.beside)
        ]
        if not called or not answered or answered[0] < called[-1]:
            return False
        insert_after_last(items, answered[0], _output(refused), lambda item: str(item.get("type")).endswith("_output"))
        items.insert(called[-1] + 1, _item(refused))
        return True

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        """The request without reasoning that is not followed by what it led to: OpenAI refuses that."""
        items = request.fields.get("input")
        if not isinstance(items, list):
            return request
        left: list[Any] = []
        for item in reversed(items):
            is_last = not left or not _is_models(left[-1])
            if not (_is_reasoning(item) and (is_last or lone.has(item.get("id"), item.get("encrypted_content")))):
                left.append(item)
        if len(left) == len(items):
            return request
        request.fields["input"] = left[::-1]
        return request.rewritten()

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        answer["output"] = kept(
            answer["output"],
            is_left_out=lambda item: is_call(item.get("type"), item.get("environment")) and is_left_out(),
            is_reasoning=lambda item: item.get("type") == "reasoning" and not stored,
        )
