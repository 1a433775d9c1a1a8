"""Answers that were not streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callstream import CallState, Callstream
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall, encode, encode_whole
from callstream.wire import decoder_for, provider_of
from tests.decoding import calls, cut, decode
from tests.sdks import SDKS
from tests.tap.clients import sdk
from tests.wire.collapsing import every, tapped

WIRES = ("anthropic", "openai_chat", "openai_responses", "cohere", "gemini_interactions")


async def calls_of(wire: str, client: Any) -> list[str]:
    """The names of the calls that a program finds in a whole answer, which was cut."""
    answer = await SDKS[wire].whole(client)
    assert answer.finish in ("max_tokens", "length", "incomplete", "MAX_TOKENS")
    return [name for _, name, _ in answer.calls]


@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs_on_a_whole_answer(wire: str) -> None:
    cut = ToolCall("write", {"title": "Notes", "content": "long"}, call_id="c1", stop_after=2)
    async with Callstream() as cs, ScriptedProvider(wire, [Text("Hello."), cut, Finish("length")]) as provider:
        async with sdk(wire, provider, cs, collapse="all", ask_again=0) as client:
            assert await calls_of(wire, client) == []
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert (kept.state, kept.reason) == (CallState.DISCARDED, "truncated")
        async with sdk(wire, provider, cs, collapse="known") as client:
            assert await calls_of(wire, client) == ["write"]


@pytest.mark.parametrize(
    "wire", ["openai_chat", "openai_responses", "cohere"]
)  # the others have arguments as an object
async def test_malformed_never_runs_on_a_whole_answer(wire: str) -> None:
    script = [
        ToolCall("write", text='{"title": nothing}', call_id="c1"),
        ToolCall("other", {}, call_id="c2"),
        Finish("length"),
    ]
    async with Callstream() as cs, ScriptedProvider(wire, script) as provider:
        async with sdk(wire, provider, cs, collapse="all", ask_again=0) as client:
            assert "write" not in await calls_of(wire, client)
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert kept.state is CallState.DISCARDED


def forwarded(wire: str, answer: dict[str, Any], **settings: Any) -> Any:
    decoder = decoder_for(wire)
    body = json.dumps(answer).encode()
    events = decoder.whole(body)
    options = {"collapse": lambda name: True, **settings}
    made = provider_of(wire).without_unfinished(body, decoder, events, **options)
    return made if made == body else json.loads(made)


def message(*content: dict[str, Any], stop_reason: str = "max_tokens") -> dict[str, Any]:
    return {"id": "m", "type": "message", "role": "assistant", "content": list(content), "stop_reason": stop_reason}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "write", "input": {}}


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


def test_a_whole_answer_that_lacks_nothing_passes_byte_for_byte() -> None:
    assert isinstance(forwarded("anthropic", message(THOUGHT, use("a"), stop_reason="tool_use")), bytes)
    assert isinstance(forwarded("anthropic", message(use("a")), collapse=lambda name: False), bytes)


def test_thinking_goes_with_the_call_that_it_led_to() -> None:
    assert forwarded("anthropic", message(THOUGHT, use("a")))["content"] == []
    both = forwarded("anthropic", message(THOUGHT, use("a"), use("b")))
    assert both["content"] == [THOUGHT, use("a")]
    text = {"type": "text", "text": "Hello."}
    assert forwarded("anthropic", message(THOUGHT, text, use("a")))["content"] == [THOUGHT, text]


def item(call_id: str, status: str) -> dict[str, Any]:
    text = "{}" if status == "completed" else '{"title'
    return {"type": "function_call", "call_id": call_id, "name": "write", "arguments": text, "status": status}


def response(*output: dict[str, Any]) -> dict[str, Any]:
    details = {"reason": "max_output_tokens"}
    return {
        "id": "r",
        "object": "response",
        "status": "incomplete",
        "incomplete_details": details,
        "output": list(output),
    }


def test_a_reasoning_item_goes_with_its_call_unless_the_server_keeps_it() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": []}
    answer = response(reasoning, item("a", "completed"), {**reasoning, "id": "rs2"}, item("b", "incomplete"))
    assert forwarded("openai_responses", answer)["output"] == [reasoning, item("a", "completed")]
    assert forwarded("openai_responses", answer, stored=True)["output"] == answer["output"][:3]
    message = {"type": "message", "id": "m", "content": []}
    answer = response(reasoning, item("b", "incomplete"), {**reasoning, "id": "rs2"}, item("a", "completed"), message)
    assert forwarded("openai_responses", answer)["output"] == answer["output"][2:]


def test_the_legacy_call_of_a_chat_is_left_out() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "write", "arguments": '{"ti'}}
    answer = {"id": "x", "choices": [{"index": 0, "message": said, "finish_reason": "length"}]}
    assert forwarded("openai_chat", answer)["choices"][0]["message"] == {"role": "assistant", "content": None}


def test_a_signature_of_geminis_moves_to_the_next_call() -> None:
    def answer(finish: str, *calls: dict[str, Any]) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{"functionCall": call} for call in calls]
        parts[0]["thoughtSignature"] = "c2ln"
        return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}]}

    nameless, whole = {"args": {"z": 1}}, {"name": "write", "args": {"title": "x"}}
    made = forwarded("gemini", answer("STOP", nameless, whole))
    assert made["candidates"][0]["content"]["parts"] == [{"functionCall": whole, "thoughtSignature": "c2ln"}]
    assert isinstance(forwarded("gemini", answer("STOP", whole, whole)), bytes)
    malformed = forwarded("gemini", answer("MALFORMED_FUNCTION_CALL", whole))
    assert malformed["candidates"][0]["content"]["parts"] == []


BAD_ENDS = {
    "anthropic": ["max_tokens", "refusal", "model_context_window_exceeded"],
    "bedrock_converse": ["max_tokens", "guardrail_intervened", "content_filtered", "malformed_tool_use"],
    "bedrock_invoke": ["max_tokens", "refusal"],
    "cohere": ["MAX_TOKENS"],
    "gemini": ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL"],
    "gemini_interactions": ["incomplete", "cancelled"],
    "ollama": ["length"],
    "openai_chat": ["length", "content_filter"],
    "openai_responses": ["max_output_tokens", "content_filter"],
}


@pytest.mark.parametrize(("wire", "reason"), [(wire, end) for wire, ends in BAD_ENDS.items() for end in (None, *ends)])
@settings(max_examples=25)
@given(said=st.lists(st.booleans(), min_size=1, max_size=4), position=st.integers(0))
def test_what_runs_is_the_same_for_a_streamed_answer_and_a_whole_one(
    wire: str, reason: str | None, said: list[bool], position: int
) -> None:
    """However whole the calls are: the last of a response that ended badly never runs."""
    steps: list[Any] = [
        ToolCall("write", {"a": place}, call_id=f"c{place}") if is_call else Text(f"{place}. ")
        for place, is_call in enumerate(said)
    ]
    script = [*steps, Finish(reason)]
    body = b"".join(encode(wire, script))
    streamed = tapped(wire, cut(body, [position % len(body)]))
    runs = [(json.loads(call.text), call.outcome) for call in calls(streamed.events)]
    assert [(json.loads(call.text), call.outcome) for call in calls(decode(wire, body))] == runs
    whole = encode_whole(wire, script)
    decoder = decoder_for(wire)
    found = decoder.whole(whole)
    assert [(json.loads(call.text), call.outcome) for call in calls(found)] == runs
    assert len(streamed.call_ids) == len([outcome for _, outcome in runs if outcome == "completed"])
    left = provider_of(wire).without_unfinished(whole, decoder, found, collapse=every)
    assert len(calls(decoder_for(wire).whole(left))) == len(streamed.call_ids)
    if reason is not None and said[-1]:
        assert runs[-1][1] != "completed"
    if reason is None:
        assert all(outcome == "completed" for _, outcome in runs)
