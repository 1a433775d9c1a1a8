"""Pieces of the wires, as short as they can be and still real."""

from __future__ import annotations

from typing import Any

# -- Anthropic --


def block_start(index: int = 0, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def tool_use(index: int = 0, name: str = "f", call_id: str = "toolu_1", given: Any = None) -> dict[str, Any]:
    return block_start(index, type="tool_use", id=call_id, name=name, input={} if given is None else given)


def partial_json(text: str, index: int = 0) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "input_json_delta", "partial_json": text},
    }


def text_delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


def block_stop(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def message_start(message_id: str = "msg_1") -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {"id": message_id, "type": "message", "content": [], "usage": {"input_tokens": 9}},
    }


def message_delta(stop_reason: str | None = "tool_use") -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 5}}


MESSAGE_STOP = {"type": "message_stop"}


def message(*events: dict[str, Any], stop_reason: str | None = "tool_use") -> list[dict[str, Any]]:
    """A message from its start to its stop."""
    return [message_start(), *events, message_delta(stop_reason), MESSAGE_STOP]


# -- OpenAI chat completions --


def choice(
    delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any
) -> dict[str, Any]:
    return {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish, **more}


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": list(choices), **more}


def said(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of one choice, with this delta."""
    return chunk(choice(delta, finish))


def called(
    arguments: Any = None, name: str | None = None, call_id: str | None = None, index: int | None = 0, **more: Any
) -> dict[str, Any]:
    """The delta of one tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    head = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return {**head, "function": function, **more}


def tool_calls(*deltas: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return said(finish, tool_calls=list(deltas))


# -- OpenAI Responses --


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def function_call(arguments: Any = "", *, number: int = 1, name: str = "f", **more: Any) -> dict[str, Any]:
    """An item. Its ids are made from the number."""
    ids = {"id": f"fc_{number}", "call_id": f"call_{number}"}
    return {"type": "function_call", **ids, "name": name, "arguments": arguments, "status": "completed", **more}


def custom_call(text: str = "", *, number: int = 1, name: str = "patch", **more: Any) -> dict[str, Any]:
    ids = {"id": f"ctc_{number}", "call_id": f"call_{number}"}
    return {"type": "custom_tool_call", **ids, "name": name, "input": text, "status": "completed", **more}


def added(item: dict[str, Any], output_index: int = 0) -> dict[str, Any]:
    return event("output_item.added", output_index=output_index, item=item)


def done(item: dict[str, Any], output_index: int = 0) -> dict[str, Any]:
    return event("output_item.done", output_index=output_index, item=item)


def args_delta(text: Any, *, number: int = 1, output_index: int = 0) -> dict[str, Any]:
    return event("function_call_arguments.delta", item_id=f"fc_{number}", output_index=output_index, delta=text)


def input_delta(text: str, *, number: int = 1, output_index: int = 0) -> dict[str, Any]:
    return event("custom_tool_call_input.delta", item_id=f"ctc_{number}", output_index=output_index, delta=text)


def created(response_id: str = "resp_1") -> dict[str, Any]:
    return event("created", response={"id": response_id, "status": "in_progress", "output": []})


def completed(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "status": status, "output": list(output), "usage": {"output_tokens": 5}, **more}
    return event(status, response=response)


# -- Gemini --


def candidate(*parts: dict[str, Any], finish: str | None = None, index: int | None = None) -> dict[str, Any]:
    head: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    head |= {} if finish is None else {"finishReason": finish}
    return head | ({} if index is None else {"index": index})


def generated(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with one candidate."""
    return {"candidates": [candidate(*parts, finish=finish)], "responseId": "resp-1", **more}


def function(signature: str | None = None, **fields: Any) -> dict[str, Any]:
    """A functionCall part. ``more`` is its willContinue."""
    if "more" in fields:
        fields["willContinue"] = fields.pop("more")
    return {"functionCall": fields} | ({} if signature is None else {"thoughtSignature": signature})


def piece(path: str, value: Any = ..., *, more: bool | None = None) -> dict[str, Any]:
    """An entry of partialArgs, its value under the field of its type; without a value it is an empty container."""
    fields: dict[str, Any] = {"jsonPath": path}
    match value:
        case str():
            fields["stringValue"] = value
        case bool():
            fields["boolValue"] = value
        case int() | float():
            fields["numberValue"] = value
        case None:
            fields["nullValue"] = "NULL_VALUE"
        case _:
            pass
    return fields | ({} if more is None else {"willContinue": more})


def pieces(*entries: dict[str, Any], more: bool | None = True, **fields: Any) -> dict[str, Any]:
    """A functionCall part with these partialArgs."""
    return function(partialArgs=list(entries), **({} if more is None else {"more": more}), **fields)


# -- Cohere --


def cohere_event(kind: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    """An event that adds to the message, or one about the block of that number."""
    numbered = {} if index is None else {"index": index}
    return {"type": kind, **numbered, **({"delta": {"message": message}} if message else {})}


def cohere_start(message_id: str = "m1") -> dict[str, Any]:
    message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    return {"id": message_id, "type": "message-start", "delta": {"message": message}}


def call_start(index: int = 0, name: str = "f", call_id: str | None = "f_1", text: str = "") -> dict[str, Any]:
    named = {} if call_id is None else {"id": call_id}
    call = {**named, "type": "function", "function": {"name": name, "arguments": text}}
    return cohere_event("tool-call-start", index, tool_calls=call)


def call_delta(text: str, index: int = 0) -> dict[str, Any]:
    return cohere_event("tool-call-delta", index, tool_calls={"function": {"arguments": text}})


def call_end(index: int = 0) -> dict[str, Any]:
    return cohere_event("tool-call-end", index)


def cohere_end(finish: str | None = "TOOL_CALL", **more: Any) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": finish, "usage": {"tokens": {}}, **more}}


# -- Gemini's Interactions --


def interaction(kind: str, status: str | None = "in_progress", **more: Any) -> dict[str, Any]:
    return {"event_type": f"interaction.{kind}", "interaction": {"id": "v1_1", "status": status, **more}}


def step(kind: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"event_type": f"step.{kind}", "index": index, **more}


def step_start(index: int = 0, kind: str = "function_call", **fields: Any) -> dict[str, Any]:
    given = {"id": f"fc_{index}", "name": "f", "arguments": {}} if kind == "function_call" else {}
    return step("start", index, step={"type": kind, **given, **fields})


def step_delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return step("delta", index, delta={"type": kind, **fields})


def arguments(text: str, index: int = 0) -> dict[str, Any]:
    return step_delta(index, "arguments_delta", arguments=text)
