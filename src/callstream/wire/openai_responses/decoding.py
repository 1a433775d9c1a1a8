"""OpenAI Responses: ``POST /v1/responses``, and the servers that speak it.

A call is an output item of type ``function_call``, or ``custom_tool_call`` with free text, or that of one of OpenAI's own
tools that the client runs: ``apply_patch_call``, ``local_shell_call``, and ``shell_call`` unless the server has an
environment for it. Their arguments are an object, which comes with the finished item; its long strings come as deltas
before. All other items are the server's own.

Items are distinguished by item id, then by output index, because some servers change the id from event to event. Arguments
come as deltas, or only with a ``done`` event, or only in the final response: whatever comes first is taken, and the rest
must agree with it. A cut response ends its items too, with the status ``incomplete``.

A stream that is resumed (``GET``) may begin in the middle: calls whose start is not in it come with their finished items,
and have no pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream import codec
from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import Encoding, ResultReceived
from callstream.jsontext.path import Path
from callstream.jsontext.writer import JsonWriter
from callstream.wire.decoder import Decoder, reported
from callstream.wire.requests import MODEL, RequestTurn, content_message, content_text, read_body
from callstream.wire.transcript import ArgumentText, WireCall, text_of

CALL_ITEMS: dict[str, Encoding] = {"function_call": "json", "custom_tool_call": "text"}
OWN_TOOLS = {"apply_patch_call": "operation", "shell_call": "action", "local_shell_call": "action"}
"""OpenAI's own tools that the client runs, by the type of their items: the field that has the arguments."""
DELTAS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_PARTS = ("response.apply_patch_call_operation_diff.", "response.shell_call_command.")
_FAILED = "the provider reported that the response failed"
ENDS = {"response.completed", "response.incomplete", "response.cancelled", "response.done"}


class _Item(msgspec.Struct):
    """An output item of any type. Only fields on which all types agree are typed here."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    status: str | None = None
    arguments: Any = None
    input: Any = None
    content: Any = None
    summary: Any = None
    encrypted_content: Any = None
    operation: Any = None
    action: Any = None
    environment: Any = None

    @property
    def is_call(self) -> bool:
        return is_call(self.type, self.environment)

    @property
    def tool_name(self) -> str | None:
        """The name of the tool. OpenAI's own tools are named after their item's type."""
        return self.type.removesuffix("_call") if self.type in OWN_TOOLS else self.name

    @property
    def own_args(self) -> dict[str, Any] | None:
        """The arguments of a call of one of OpenAI's own tools."""
        value = self.operation if self.type == "apply_patch_call" else self.action
        return value if self.type in OWN_TOOLS and isinstance(value, dict) else None

    @property
    def args_text(self) -> str:
        """The arguments or the input of a call, as far as the item has them."""
        return text_of(self.input if self.type == "custom_tool_call" else self.arguments)

    @property
    def kind(self) -> str:
        """What kind of text the item has; empty if it has none."""
        return {"message": "text", "reasoning": "reasoning"}.get(self.type, "")

    def spoken(self) -> Iterator[str]:
        """The texts of a message or a reasoning item."""
        for parts in (self.summary, self.content):
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    yield _text(part.get("text")) or _text(part.get("refusal"))


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _ResponseBody(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    output: list[_Item] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: _IncompleteDetails | None = None


class StreamEvent(msgspec.Struct, gc=False):  # one per delta, in no cycle: the GC need not track them
    type: str = ""
    item_id: str | None = None
    call_id: str | None = None
    output_index: int | None = None
    item: _Item | None = None
    delta: Any = None
    arguments: Any = None
    input: Any = None
    command: Any = None
    command_index: int | None = None
    sequence_number: Any = None
    response: _ResponseBody | None = None
    error: Any = None
    message: Any = None
    code: Any = None


class _OutputCall(msgspec.Struct, eq=False):
    """A call item and the names that events may use for it."""

    call: WireCall
    item_id: str | None
    output_index: int | None
    writer: JsonWriter | None  # of the arguments of one of OpenAI's own tools
    announced: str = ""  # arguments that came with the item itself
    cut: bool = False  # the item ended, but not its arguments
    commands: set[int | None] = msgspec.field(default_factory=set)  # the indices of those that have had a piece

    def announced_text(self) -> str:
        """The arguments that came with the item, if none have come since: {} may just announce those that follow."""
        return self.announced if self.call.text.is_blank else ""


class OpenAIResponsesDecoder(Decoder[StreamEvent]):
    wire = "openai_responses"
    _payloads = msgspec.json.Decoder(StreamEvent)
    _responses = msgspec.json.Decoder(_ResponseBody)
    _unended = "the stream ended in the middle of the response"
    _ended_id: str | None = None

    def _forget_response(self) -> None:
        super()._forget_response()
        self._has_start = False  # the beginning of the response is in this body
        self._response_id: str | None = None
        self._calls: list[_OutputCall] = []
        self._spoken: set[tuple[int | None, str]] = set()  # (output index, kind) of items whose text came as deltas

    def _chunk(self, chunk: StreamEvent) -> None:
        match chunk.type:
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                if (output := self._call_of(chunk)) is not None:
                    self._transcript.append_args(output.call, text_of(chunk.delta))
            case "response.output_text.delta" | "response.refusal.delta":
                self._say(chunk, "text")
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                self._say(chunk, "reasoning")
            case "response.function_call_arguments.done":
                if (output := self._call_of(chunk)) is not None:
                    self._agree(output, text_of(chunk.arguments))
            case "response.custom_tool_call_input.done":
                if (output := self._call_of(chunk)) is not None:
                    self._agree(output, text_of(chunk.input))
            case part if part.startswith(_PARTS):
                self._own_tool(chunk)
            case "response.output_item.added":
                if chunk.item is not None:
                    self._item_added(chunk.item, chunk.output_index)
            case "response.output_item.done":
                if chunk.item is not None:
                    self._item_done(chunk.item, chunk.output_index)
            case "response.created" | "response.in_progress" | "response.queued":
                self._response_began(chunk.response)
            case "response.failed":
                failure = chunk.response.error if chunk.response is not None else None
                raise reported(failure, _FAILED)
            case end if end in ENDS:
                self._response_ended(chunk.response or _ResponseBody(), chunk.type)
            case _ if chunk.type == "error" or (chunk.error and not chunk.type.startswith("response.")):
                raise reported(chunk.error, "the provider reported an error", message=chunk.message, code=chunk.code)
            case "":
                raise WireError(
                    f"expected an event of the openai_responses wire, which has a type, got {outline(codec.encode(chunk))}"
                )
            case _:
                pass  # the parts of items, server-side tools, and events that are newer than this code

    # -- calls --

    def _call_of(self, chunk: StreamEvent) -> _OutputCall | None:
        known = self._calls[-1] if self._calls else None
        if known is None or not chunk.item_id or known.item_id != chunk.item_id:  # it is nearly always the last one
            known = self._known(chunk.item_id, chunk.output_index, chunk.call_id)
        if known is None and not self._has_start and chunk.sequence_number:
            return None  # its start was before this body
        if known is None:
            raise WireError(
                f"expected response.output_item.added before {chunk.type}, got item {chunk.item_id!r} at output index "
                f"{chunk.output_index}"
            )
        self._transcript.piece_of(known.call)
        return known

    def _known(
        self, item_id: str | None, output_index: int | None, provider_id: str | None = None
    ) -> _OutputCall | None:
        for output in reversed(self._calls):
            if (item_id and output.item_id == item_id) or (provider_id and output.call.provider_id == provider_id):
                return output
        if output_index is not None:
            return next((output for output in reversed(self._calls) if output.output_index == output_index), None)
        if provider_id is not None:
            return None
        unfinished = [output for output in self._calls if not output.call.final]
        return unfinished[0] if len(unfinished) == 1 else None

    def _open(self, item: _Item, output_index: int | None) -> _OutputCall:
        encoding = CALL_ITEMS.get(item.type, "json")
        call = self._transcript.open_call(item.tool_name, item.call_id or item.id, encoding=encoding)
        output = _OutputCall(call, item.id, output_index, JsonWriter() if item.type in OWN_TOOLS else None)
        self._calls.append(output)
        return output

    def _agree(self, output: _OutputCall, text: str) -> None:
        """The whole text of the call: whatever the deltas have not brought is appended; a contradiction is malformed."""
        call = output.call
        if call.final or not text:
            return
        whole = ArgumentText().append(text) if call.encoding == "json" else text
        so_far = call.text.join()
        if whole.startswith(so_far):
            self._transcript.append_args(call, text if not so_far else whole[len(so_far) :])
        elif call.text.is_blank:
            self._transcript.append_args(call, text)
        elif not _same_json(so_far, whole):
            self._transcript.discard_call(call, "malformed", "the deltas and the final arguments differ")

    def _item_added(self, item: _Item, output_index: int | None) -> None:
        self._in_response = True
        self._transcript.believe_ends()
        if not item.is_call:
            return
        again = (known for known in self._calls if known.call.provider_id == item.call_id and not known.call.final)
        output = None if item.call_id is None else next(again, None)  # an item may be announced twice
        if output is None:
            output = self._open(item, output_index)
            output.announced = item.args_text
            for name, value in (item.own_args or {}).items():
                if value and isinstance(value, str):  # empty strings are written later, with the rest
                    self._append_written(output, (name,), value, more=False)
        self._transcript.piece_of(output.call)

    def _item_done(self, item: _Item, output_index: int | None, known: _OutputCall | None = None) -> WireCall | None:
        if not item.is_call:
            if item.kind and not self._spoken & {(output_index, item.kind), (None, item.kind)}:
                self._spoken.add((output_index, item.kind))  # its deltas never came
                self._say_whole(item)
            return None
        self._in_response = True
        output = known or self._known(item.id, output_index, item.call_id) or self._open(item, output_index)
        self._transcript.piece_of(output.call)
        if output.call.name is None and item.tool_name:
            self._transcript.name_call(output.call, item.tool_name)
        output.cut = item.status == "incomplete"
        if output.writer is None:
            self._agree(output, item.args_text or output.announced_text())
        elif item.own_args is not None and not output.cut:
            self._complete_written(output, item.own_args)
        if not output.cut:
            self._transcript.end_call(output.call)
        return output.call

    # -- calls of OpenAI's own tools --

    def _own_tool(self, chunk: StreamEvent) -> None:
        """A part of the arguments of such a call. The end event of some parts says nothing new, nor the first of others."""
        match chunk.type.removeprefix("response."):
            case "apply_patch_call_operation_diff.delta":
                self._write_part(chunk, ("diff",), text_of(chunk.delta), more=True)
            case "shell_call_command.delta" | "shell_call_command.done":
                self._write_command(chunk)
            case _:
                self._write_part(chunk, (), "", more=True)

    def _write_command(self, chunk: StreamEvent) -> None:
        """A piece of a shell command, or its end, which has all of it."""
        output = self._known(chunk.item_id, chunk.output_index) if chunk.output_index is not None else None
        index = chunk.command_index or 0
        if chunk.type.endswith(".delta"):
            text = text_of(chunk.delta)
        else:
            text = "" if output is not None and index in output.commands else text_of(chunk.command)
        if output is not None:
            output.commands.add(index)
        self._write_part(chunk, ("commands", index), text, more=chunk.type.endswith(".delta"))

    def _write_part(self, chunk: StreamEvent, path: Path, text: str, *, more: bool) -> None:
        """A part of the arguments. Those of a tool that the server runs itself belong to no call."""
        output = self._known(chunk.item_id, chunk.output_index)
        if output is None or output.writer is None:
            return
        self._transcript.piece_of(output.call)
        if path and not output.call.ended and not output.call.final:
            self._append_written(output, path, text, more=more)

    def _append_written(self, output: _OutputCall, path: Path, text: str, *, more: bool) -> None:
        assert output.writer is not None
        self._transcript.append_args(output.call, output.writer.write(path, text, more))

    def _complete_written(self, output: _OutputCall, args: dict[str, Any]) -> None:
        """The whole arguments of the call; whatever was not written yet is appended."""
        assert output.writer is not None
        if output.call.final or output.call.ended:
            return
        try:
            self._transcript.append_args(output.call, output.writer.complete(args))
        except WireError:
            self._transcript.discard_call(output.call, "malformed", "the deltas and the final arguments differ")

    # -- text --

    def _say(self, chunk: StreamEvent, kind: str) -> None:
        self._in_response = True
        self._spoken.add((chunk.output_index, kind))
        self._append_spoken(kind, _text(chunk.delta))

    def _say_whole(self, item: _Item) -> None:
        for text in item.spoken():
            self._append_spoken(item.kind, text)

    def _append_spoken(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "text":
            self._transcript.append_text(text)
        else:
            self._transcript.append_reasoning(text)

    # -- the response --

    def _response_began(self, response: _ResponseBody | None) -> None:
        if response is not None and response.id:
            if self._response_id not in (None, response.id):
                self._end_of_body()  # another response in the same body
            self._response_id = self._transcript.response_message_id = response.id
        self._in_response = self._has_start = True

    def _response_ended(self, response: _ResponseBody, how: str) -> None:
        if not self._in_response and self._transcript.any_response and response.id in (None, self._ended_id):
            return  # a second end of the previous response: some servers send completed and done
        self._ended_id = response.id or self._response_id
        self._apply_final_list(response.output or ())
        status = response.status or how.removeprefix("response.")
        details = response.incomplete_details
        finish_reason = (details.reason if details is not None else None) or status
        self._finish_reason, self._usage = finish_reason, response.usage
        normal = status in ("completed", "done")
        for output in self._calls:
            is_cut = output.cut or (output.writer is not None and not output.call.ended)
            if is_cut and not output.call.final:
                self._transcript.discard_call(output.call, "truncated", f"response {finish_reason}")
            elif normal:
                self._agree(output, output.announced_text())
        self._transcript.finish_calls(normal=normal, detail=f"response {finish_reason}")
        self._end_response()

    def _apply_final_list(self, items: Sequence[_Item]) -> None:
        """Adds what events have not brought. The list may leave items out, and some servers give calls new ids in it."""
        spoken = {kind for _, kind in self._spoken}
        streamed = list(self._calls)
        last: WireCall | None = None  # the call before, if it is the item before
        for item in items:
            if last is not None:
                self._transcript.believe_end(last)
            last = None
            if item.is_call:
                known = self._known(item.id, None, item.call_id)
                if known is None:
                    known = next((output for output in streamed if output.call.name == item.tool_name), None)
                if known in streamed:
                    streamed.remove(known)
                last = self._item_done(item, None, known)
            elif item.kind and item.kind not in spoken:
                self._say_whole(item)

    def _read_whole(self, body: bytes) -> None:
        response: _ResponseBody = self._decoded(body, self._responses)
        if response.error or response.status == "failed":
            raise reported(response.error, _FAILED)
        if response.output is None:
            raise WireError(f"expected a response with output, got {outline(body)}")
        self._response_began(response)
        self._response_ended(response, "response.completed")


def is_call(kind: Any, environment: Any = None) -> bool:
    """Whether an item is a call that the client has to answer. Where a shell has an environment, the server runs it."""
    is_hosted = isinstance(environment, dict) and environment.get("type") != "local"
    return kind in CALL_ITEMS or (kind in OWN_TOOLS and not is_hosted)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _same_json(one: str, other: str) -> bool:
    return codec.is_strict(one) and codec.is_strict(other) and json.loads(one) == json.loads(other)


# -- what a request says -----------------------------------------------------------------------------------------------


class _InputItem(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    output: Any = None


class _ResponsesRequest(msgspec.Struct):
    input: str | list[_InputItem] | None = None


def read_turns(body: bytes) -> Iterator[RequestTurn]:
    said = read_body("openai_responses", body, _ResponsesRequest).input or []
    items = [_InputItem(role="user", content=said)] if isinstance(said, str) else said
    for item in items:
        match item.type or "message":
            case "function_call_output" | "custom_tool_call_output":
                yield RequestTurn("tool", [ResultReceived(item.call_id, None, content_text(item.output))])
            case "apply_patch_call_output" | "shell_call_output" | "local_shell_call_output":
                is_error = item.status == "failed"
                yield RequestTurn(
                    "tool", [ResultReceived(item.call_id or item.id, None, item.output, is_error=is_error)]
                )
            case "message" if item.role == "user":
                yield RequestTurn("user", content_message(item.content))
            case "message" if item.role != "assistant":
                pass  # system and developer messages are the program's own
            case other if other.endswith("_output") or other == "mcp_approval_response":
                yield RequestTurn("tool", [])  # an answer to the server's own tools
            case "function_call" | "custom_tool_call":
                yield RequestTurn(MODEL, [], [(item.call_id, item.name or "")])
            case own if own in OWN_TOOLS:
                yield RequestTurn(MODEL, [], [(item.call_id, own.removesuffix("_call"))])
            case _:
                yield RequestTurn(MODEL, [])
