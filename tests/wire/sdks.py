"""What the real SDKs make of a body: each through its streaming helper and its raw stream, over a transport of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from google import genai
from google.genai import types

Made = dict[str, Any]
"""What an SDK accumulated; or ``error``, where it raised."""


def made_by(read: Callable[[bytes, Made], None], body: bytes) -> Made:
    """What the SDK made of it, as far as it came."""
    made: Made = {}
    try:
        read(body, made)
    except (openai.OpenAIError, anthropic.AnthropicError, genai.errors.APIError) as error:
        made["error"] = f"{type(error).__name__}: {error}"
    except (RuntimeError, IndexError, AssertionError, TypeError, ValueError) as error:
        made["error"] = type(error).__name__  # not one that an SDK means to raise: it got lost
    return made


# -- chat completions -------------------------------------------------------------------------------------------------


def _openai(body: bytes) -> openai.OpenAI:
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    client = httpx.Client(transport=httpx.MockTransport(lambda request: answer))
    return openai.OpenAI(api_key="none", base_url="http://test/v1", http_client=client, max_retries=0)


def chat_raw(body: bytes, made: Made) -> None:
    """The chunks of the raw stream, folded by index as frameworks do it."""
    choices = made["choices"] = {}
    with (
        _openai(body) as client,
        client.chat.completions.create(model="m", messages=[], stream=True) as stream,
    ):
        for chunk in stream:
            if chunk.usage is not None:
                made["usage"] = chunk.usage.to_dict()
            for choice in chunk.choices or ():
                folded = choices.setdefault(choice.index or 0, {"text": "", "other": {}, "calls": {}, "finish": None})
                folded["finish"] = choice.finish_reason or folded["finish"]
                if choice.delta is not None:
                    _fold_delta(folded, choice.delta.to_dict())


def _fold_delta(made: Made, delta: dict[str, Any]) -> None:
    for field, value in delta.items():
        match field, value:
            case "tool_calls", list():
                for entry in value:
                    call = made["calls"].setdefault(entry.get("index"), {"id": None, "name": None, "text": ""})
                    _fold_call(call, entry, entry.get("function") or entry.get("custom") or {})
            case "function_call", dict():
                _fold_call(made["calls"].setdefault("legacy", {"id": None, "name": None, "text": ""}), {}, value)
            case "content", str():
                made["text"] += value
            case "role", str():
                made["role"] = value
            case _ if value:
                made["other"].setdefault(field, []).append(value)
            case _:
                pass


def _fold_call(call: Made, entry: dict[str, Any], function: dict[str, Any]) -> None:
    call["id"] = call["id"] or entry.get("id")
    call["name"] = call["name"] or function.get("name")
    call["text"] += function.get("arguments") or function.get("input") or ""
    for field in entry.keys() - {"index", "id", "type", "function", "custom"}:
        call[field] = entry[field]


def chat_helper(body: bytes, made: Made) -> None:
    with (
        _openai(body) as client,
        client.chat.completions.stream(model="m", messages=[]) as stream,
    ):
        completion = stream.get_final_completion()
    choices = made["choices"] = {}
    for choice in completion.choices:
        message = choice.message.to_dict()
        calls = {
            place: {"id": call.get("id"), "name": call["function"]["name"], "text": call["function"]["arguments"]}
            for place, call in enumerate(message.pop("tool_calls", None) or ())
        }
        content = message.pop("content", None) or ""
        message.pop("parsed", None)
        # A server that repeats the role on every delta makes the helper repeat it too; with fewer deltas, less often.
        role = re.sub("^(assistant)+$", "assistant", message.pop("role", None) or "")
        choices[choice.index or 0] = {
            "text": content,
            "calls": calls,
            "role": role,
            "other": {field: value for field, value in message.items() if value},
            "finish": choice.finish_reason,
        }
    if completion.usage is not None:
        made["usage"] = completion.usage.to_dict()


# -- responses --------------------------------------------------------------------------------------------------------


def responses_helper(body: bytes, made: Made) -> None:
    with _openai(body) as client, client.responses.stream(model="m", input="") as stream:
        made["events"] = [event.type for event in stream if not event.type.endswith((".delta", ".done"))]
        response = stream.get_final_response().to_dict()
    for item in response["output"]:
        item.pop("parsed_arguments", None)
    made["response"] = response


def responses_raw(body: bytes, made: Made) -> None:
    """The raw events: the items when they are done, their texts as the deltas make them, and the final responses."""
    made |= {"items": [], "texts": {}, "final": [], "numbers": []}
    with (
        _openai(body) as client,
        client.responses.create(model="m", input="", stream=True) as stream,
    ):
        for event in stream:
            fields = event.to_dict()
            made["numbers"].append(fields.get("sequence_number"))
            if event.type == "response.output_item.done":
                made["items"].append((fields.get("output_index"), fields["item"]))
            elif event.type.endswith(".delta"):
                key = (fields.get("output_index"), event.type, fields.get("content_index"), fields.get("summary_index"))
                made["texts"][key] = made["texts"].get(key, "") + str(fields["delta"])
            elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                made["final"].append(fields["response"])


# -- anthropic --------------------------------------------------------------------------------------------------------


def _anthropic(body: bytes) -> anthropic.Anthropic:
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    return anthropic.Anthropic(api_key="none", base_url="http://test", http_client=client, max_retries=0)


def anthropic_helper(body: bytes, made: Made) -> None:
    with (
        _anthropic(body) as client,
        client.messages.stream(model="m", max_tokens=1, messages=[]) as stream,
    ):
        made["message"] = stream.get_final_message().to_dict()


def anthropic_raw(body: bytes, made: Made) -> None:
    """The raw events, folded by block."""
    messages = made["messages"] = []
    with (
        _anthropic(body) as client,
        client.messages.create(model="m", max_tokens=1, messages=[], stream=True) as stream,
    ):
        for event in stream:
            fields = event.to_dict()
            if event.type == "message_start":
                messages.append({"blocks": {}, "start": fields["message"]})
            elif event.type == "content_block_start":
                messages[-1]["blocks"][event.index] = {"block": fields["content_block"], "json": "", "stopped": False}
            elif event.type == "content_block_delta":
                block = messages[-1]["blocks"][event.index]
                if event.delta.type == "input_json_delta":
                    block["json"] += event.delta.partial_json
                else:
                    block.setdefault("deltas", []).append(fields["delta"])
            elif event.type == "content_block_stop":
                messages[-1]["blocks"][event.index]["stopped"] = True
            elif event.type == "message_delta":
                messages[-1]["end"] = fields
    for message in messages:
        for block in message["blocks"].values():
            text = block.pop("json")
            if "input" in block["block"] and text:
                block["block"]["input"] = json.loads(text, strict=False)


# -- gemini -----------------------------------------------------------------------------------------------------------


def gemini(body: bytes, made: Made) -> None:
    """The parts of all chunks: texts joined, calls as they are. google-genai accumulates nothing itself."""
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    client = httpx.Client(transport=httpx.MockTransport(lambda request: answer))
    options = types.HttpOptions(httpx_client=client, base_url="http://test")
    made |= {"parts": [], "finish": [], "ids": set()}
    with genai.Client(api_key="none", http_options=options) as sdk:
        for chunk in sdk.models.generate_content_stream(model="m", contents="x"):
            made["ids"].add((chunk.response_id, chunk.model_version))
            if chunk.usage_metadata is not None:
                made["usage"] = chunk.usage_metadata.to_json_dict()
            for candidate in chunk.candidates or ():
                if candidate.finish_reason is not None:
                    made["finish"].append(candidate.finish_reason)
                for part in (candidate.content and candidate.content.parts) or ():
                    _fold_part(made["parts"], part.to_json_dict())


def _fold_part(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    last = parts[-1] if parts else {}
    if part.keys() <= {"text", "thought"} and last.keys() == part.keys() and part.get("thought") == last.get("thought"):
        last["text"] += part["text"]
    elif part:
        parts.append(part)


READERS: dict[str, tuple[Callable[[bytes, Made], None], ...]] = {
    "gemini": (gemini,),
    "anthropic": (anthropic_raw, anthropic_helper),
    "openai_chat": (chat_raw, chat_helper),
    "openai_responses": (responses_raw, responses_helper),
}
