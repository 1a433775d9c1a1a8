"""What the real SDKs make of encoded scripts, and what is in the frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import anthropic
import httpx
import httpx2
import openai
from google import genai
from google.genai import types as genai_types

from callstream.jsontext.writer import EMPTY, JsonWriter
from callstream.testing import (
    Parallel,
    Script,
    ToolCall,
    encode,
    encode_whole,
)
from callstream.testing.encoders import ENCODERS
from callstream.wire import decoder_for
from tests.sdks import READ


class Answer(NamedTuple):
    thought: str
    text: str
    calls: list[tuple[str | None, str, Any]]
    finish: str | None


def transport(library: Any, script: Script, wire: str, stream: bool, status: int = 200) -> Any:
    body = b"".join(encode(wire, script)) if stream else encode_whole(wire, script)
    kind = "text/event-stream" if stream else "application/json"

    def handle(_request: Any) -> Any:
        return library.Response(status, headers={"content-type": kind}, content=body)

    return library.Client(transport=library.MockTransport(handle))


def anthropic_answer(script: Script, stream: bool) -> Answer:
    client = anthropic.Anthropic(
        api_key="-", base_url="http://test", http_client=transport(httpx2, script, "anthropic", stream), max_retries=0
    )
    request: Any = {"model": "-", "max_tokens": 1, "messages": [{"role": "user", "content": "-"}]}
    if stream:
        with client.messages.stream(**request) as running:
            message: Any = running.get_final_message()
    else:
        message = client.messages.create(**request)
    blocks = message.content
    return Answer(
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        "".join(block.text for block in blocks if block.type == "text"),
        [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
        message.stop_reason,
    )


def openai_client(script: Script, wire: str, stream: bool) -> openai.OpenAI:
    client = transport(httpx, script, wire, stream)
    return openai.OpenAI(api_key="-", base_url="http://test/v1", http_client=client, max_retries=0)


def chat_answer(script: Script, stream: bool) -> Answer:
    completions = openai_client(script, "openai_chat", stream).chat.completions
    request: Any = {"model": "-", "messages": [{"role": "user", "content": "-"}]}
    if stream:
        with completions.stream(**request) as running:
            completion: Any = running.get_final_completion()
    else:
        completion = completions.create(**request)
    choice = completion.choices[0]
    message = choice.message
    return Answer(
        getattr(message, "reasoning_content", ""),
        message.content or "",
        [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()],
        choice.finish_reason,
    )


def responses_answer(script: Script, stream: bool) -> Answer:
    responses = openai_client(script, "openai_responses", stream).responses
    if stream:
        with responses.stream(model="-", input="-") as running:
            response: Any = running.get_final_response()
    else:
        response = responses.create(model="-", input="-")
    items = response.output
    return Answer(
        "".join(part.text for item in items if item.type == "reasoning" for part in item.summary),
        response.output_text,
        [(item.call_id, item.name, json.loads(item.arguments)) for item in items if item.type == "function_call"],
        response.status,
    )


def gemini_chunks(script: Script, stream: bool) -> Iterator[genai_types.GenerateContentResponse]:
    options = genai_types.HttpOptions(httpx_client=transport(httpx, script, "gemini", stream))
    models = genai.Client(vertexai=True, api_key="-", http_options=options).models
    if stream:
        yield from models.generate_content_stream(model="gemini-3-pro-preview", contents="-")
    else:
        yield models.generate_content(model="gemini-3-pro-preview", contents="-")


def partial_value(piece: genai_types.PartialArg) -> Any:
    if piece.null_value is not None:
        return None
    for value in (piece.string_value, piece.bool_value, piece.number_value):
        if value is not None:
            return value
    return EMPTY


def gemini_answer(script: Script, stream: bool) -> Answer:
    """google-genai hands the pieces on; put together they are what JsonWriter makes of them."""
    thought = text = finish = ""
    calls: list[tuple[str | None, str, Any]] = []
    wanted = [call for step in script for call in (step.calls if isinstance(step, Parallel) else [step])]
    schemas = [schema_of(call.args) for call in wanted if isinstance(call, ToolCall)]
    writing: JsonWriter | None = None
    written = ""
    for chunk in gemini_chunks(script, stream):
        assert chunk.candidates is not None
        candidate = chunk.candidates[0]
        assert candidate.content is not None
        finish = candidate.finish_reason.value if candidate.finish_reason else finish
        for part in candidate.content.parts or ():
            thought += (part.text or "") if part.thought else ""
            text += "" if part.thought else (part.text or "")
            if part.function_call is None:
                continue
            call = part.function_call
            if call.name is not None:
                calls.append((call.id, call.name, call.args or {}))
                writing, written = JsonWriter(schemas[len(calls) - 1]), ""
            assert writing is not None
            for piece in call.partial_args or ():
                written += writing.write(piece.json_path or "", partial_value(piece), bool(piece.will_continue))
            if not call.will_continue and written:
                calls[-1] = (*calls[-1][:2], json.loads(written + writing.close()))
    return Answer(thought, text, calls, finish)


def schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    return {"type": "array", "prefixItems": [schema_of(item) for item in value]} if isinstance(value, list) else {}


def sdk_answer(wire: str, script: Script, stream: bool) -> Answer:
    body = b"".join(encode(wire, script)) if stream else encode_whole(wire, script)
    made = READ[wire](body, stream=stream)
    return Answer(made.thoughts, made.text, made.calls, made.finish)


ANSWER: dict[str, Callable[[Script, bool], Answer]] = {
    "gemini": gemini_answer,
    "anthropic": anthropic_answer,
    "openai_chat": chat_answer,
    "openai_responses": responses_answer,
    **{
        wire: partial(sdk_answer, wire)
        for wire in ("cohere", "gemini_interactions", "ollama", "bedrock_converse", "bedrock_invoke")
    },
}
IDS = {
    "gemini": [None, None],
    "ollama": [None, None],  # its client drops them
    "anthropic": ["toolu_1", "toolu_2"],
    "cohere": ["get_weather_1", "get_time_2"],
    "bedrock_converse": ["tooluse_1", "tooluse_2"],
    "bedrock_invoke": ["toolu_1", "toolu_2"],
    "gemini_interactions": ["fc_1", "fc_2"],
}
CALLED = {
    "gemini": "STOP",
    "anthropic": "tool_use",
    "openai_chat": "tool_calls",
    "openai_responses": "completed",
    "cohere": "TOOL_CALL",
    "bedrock_converse": "tool_use",
    "bedrock_invoke": "tool_use",
    "gemini_interactions": "requires_action",
    "ollama": "stop",
}
SAID = {
    "gemini": "STOP",
    "anthropic": "end_turn",
    "openai_chat": "stop",
    "openai_responses": "completed",
    "cohere": "COMPLETE",
    "bedrock_converse": "end_turn",
    "bedrock_invoke": "end_turn",
    "gemini_interactions": "completed",
    "ollama": "stop",
}
LENGTH = {
    "gemini": "MAX_TOKENS",
    "anthropic": "max_tokens",
    "openai_chat": "length",
    "openai_responses": "incomplete",
    "cohere": "MAX_TOKENS",
    "bedrock_converse": "max_tokens",
    "bedrock_invoke": "max_tokens",
    "gemini_interactions": "incomplete",
    "ollama": "length",
}


def payloads(wire: str, script: Script, first_id: int = 1) -> list[dict[str, Any]]:
    frames = decoder_for(wire).framing.feed(b"".join(encode(wire, script, first_id=first_id)))
    return [json.loads(frame.payload) for frame in frames if frame.payload and frame.payload != b"[DONE]"]


def sent_by(wire: str, chunks: list[bytes]) -> bytes:
    """What the chunks say: themselves, or where they are not text the payloads in them."""
    if ENCODERS[wire].is_text:
        return b"".join(chunks)
    return b"".join(frame.payload or b"" for frame in decoder_for(wire).framing.feed(b"".join(chunks)))
