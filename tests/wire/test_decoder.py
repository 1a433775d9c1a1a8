"""What holds for every wire: errors, limits, characters, and who completes a call."""

from __future__ import annotations

from typing import Any

import pytest

from callstream.errors import WireError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, CallStarted, MessageEnded, ResponseEnded
from callstream.testing import ToolCall, encode
from callstream.wire import WIRES, decoder_for
from callstream.wire.framing import SseFraming, SseOrArrayFraming
from tests.decoding import decode, failure, fed, only_call, reasoning, sse, text
from tests.wire.payloads import (
    added,
    args_delta,
    arguments,
    call_delta,
    call_start,
    called,
    cohere_end,
    cohere_event,
    cohere_start,
    completed,
    created,
    custom_call,
    done,
    event,
    function,
    function_call,
    generated,
    input_delta,
    interaction,
    message_delta,
    message_start,
    partial_json,
    piece,
    pieces,
    said,
    step_delta,
    step_start,
    text_delta,
    tool_calls,
    tool_use,
)

SSE_WIRES = tuple(wire for wire in WIRES if isinstance(decoder_for(wire).framing, SseFraming | SseOrArrayFraming))
"""The others have tests of their own: their frames are not text."""
every_wire = pytest.mark.parametrize("wire", SSE_WIRES)


def opened(wire: str, *texts: str) -> list[dict[str, Any]]:
    """The payloads of a call that has begun and got these pieces of text (Gemini: of the string ``a``), but no end."""
    match wire:
        case "anthropic":
            return [message_start(), tool_use(), *(partial_json(text) for text in texts)]
        case "openai_chat":
            return [tool_calls(called("", "f", "1")), *(tool_calls(called(text)) for text in texts)]
        case "openai_responses":
            return [created(), added(function_call()), *(args_delta(text) for text in texts)]
        case "cohere":
            return [cohere_start(), call_start(), *(call_delta(text) for text in texts)]
        case "gemini_interactions":
            return [interaction("created"), step_start(), *(arguments(text) for text in texts)]
        case _:
            return [
                generated(function(name="f", more=True)),
                *(generated(pieces(piece("$.a", text, more=True))) for text in texts),
            ]


def spoken(wire: str, text: str, kind: str = "text") -> dict[str, Any]:
    match wire, kind:
        case "anthropic", "text":
            return text_delta(text)
        case "anthropic", _:
            return {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}
        case "openai_chat", _:
            return said(**{"content" if kind == "text" else "reasoning": text})
        case "openai_responses", _:
            return event("output_text.delta" if kind == "text" else "reasoning_text.delta", output_index=0, delta=text)
        case "cohere", "text":
            return cohere_event("content-delta", 0, content={"text": text})
        case "cohere", _:
            return cohere_event("tool-plan-delta", tool_plan=text)
        case "gemini_interactions", "text":
            return step_delta(0, "text", text=text)
        case "gemini_interactions", _:
            return step_delta(0, "thought_summary", content={"type": "text", "text": text})
        case _:
            return generated({"text": text, "thought": kind != "text"})


def ends(wire: str, *, normal: bool) -> list[dict[str, Any]]:
    match wire:
        case "anthropic":
            return [message_delta("tool_use" if normal else "max_tokens"), {"type": "message_stop"}]
        case "openai_chat":
            return [said("tool_calls" if normal else "length")]
        case "openai_responses":
            return [completed(status="completed" if normal else "incomplete")]
        case "cohere":
            return [cohere_end("TOOL_CALL" if normal else "MAX_TOKENS")]
        case "gemini_interactions":
            return [interaction("completed", "requires_action" if normal else "requires_continuation")]
        case _:
            return [generated(finish="STOP" if normal else "MAX_TOKENS")]


# -- who completes a call --


@every_wire
def test_never_completed_by_parse(wire: str) -> None:
    """Text that is whole JSON completes nothing before the wire's end; a cut then discards it."""
    body = sse(*opened(wire, "" if wire == "gemini" else '{"a": 1}'))
    decoder = decoder_for(wire)
    before = decoder.feed(body)
    assert only_call(before).outcome == "open"
    after = decoder.end()
    assert [item.reason for item in after if isinstance(item, CallDiscarded)] == ["truncated"]
    assert only_call(decode(wire, body + sse(*ends(wire, normal=False)))).outcome == "truncated"
    assert only_call(decode(wire, body + sse(*ends(wire, normal=True)))).outcome == "completed"


@every_wire
def test_blank_arguments_at_a_cut_are_not_an_empty_object(wire: str) -> None:
    for payloads in (opened(wire), opened(wire, "") if wire != "gemini" else opened(wire)):
        assert only_call(decode(wire, sse(*payloads))).outcome == "truncated"
        assert only_call(decode(wire, sse(*payloads, *ends(wire, normal=False)))).outcome == "truncated"
        assert only_call(decode(wire, sse(*payloads, *ends(wire, normal=True)))).args == {}


@every_wire
def test_message_ends_once_and_before_the_response(wire: str) -> None:
    call = opened(wire, "x" if wire == "gemini" else "{}")
    events = decode(wire, sse(*call, spoken(wire, "Hi"), *ends(wire, normal=True)))
    kinds = [type(item) for item in events]
    assert kinds.count(MessageEnded) == kinds.count(ResponseEnded) == 1
    assert kinds[-2:] == [MessageEnded, ResponseEnded]


def test_custom_tool_text_is_never_parsed() -> None:
    body = sse(
        created(), added(custom_call()), input_delta("{}"), input_delta("{not json"), done(custom_call("{}{not json"))
    )
    call = only_call(decode("openai_responses", body + sse(completed())))
    assert (call.text, call.args_json) == ("{}{not json", '"{}{not json"')


# -- characters --


@every_wire
@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_halves_of_a_character_are_never_shown(wire: str, kind: str) -> None:
    parts = ["a\ud83d", "\ude00b", "\ud83d", "c\ude00", "d\ud83d"]
    body = sse(*(spoken(wire, part, kind) for part in parts), *ends(wire, normal=True))
    assert (text if kind == "text" else reasoning)(decode(wire, body)) == "a😀b\ufffdc\ufffdd\ufffd"
    broken, _ = failure(wire, sse(*(spoken(wire, part, kind) for part in parts)) + b"data: oops\n\n")
    assert (text if kind == "text" else reasoning)(broken) == "a😀b\ufffdc\ufffdd\ufffd"


@every_wire
def test_halves_of_a_character_in_arguments_make_one(wire: str) -> None:
    texts = ["x\ud83d", "\ude00y"] if wire == "gemini" else ['{"a":"x\ud83d', '\ude00y"}']
    assert only_call(decode(wire, sse(*opened(wire, *texts), *ends(wire, normal=True)))).args == {"a": "x😀y"}
    alone = ["x\ud83d", "y"] if wire == "gemini" else ['{"a":"x\ud83d', 'y"}']
    assert only_call(decode(wire, sse(*opened(wire, *alone), *ends(wire, normal=True)))).args == {"a": "x\ud83dy"}


def test_halves_of_a_character_in_free_text_make_one() -> None:
    for texts, expected in ((["x\ud83d", "\ude00y"], "x😀y"), (["x\ud83d"], "x\ufffd")):
        body = sse(created(), added(custom_call()), *map(input_delta, texts), completed())
        call = only_call(decode("openai_responses", body))
        assert (call.text, call.args) == (expected, expected)


@pytest.mark.parametrize("wire", [wire for wire in SSE_WIRES if wire != "gemini"])
def test_escape_cut_in_two_passes_unchanged(wire: str) -> None:
    whole_text = '{"a":"\\ud83d\\ude00 \\u00e9 \\\\ \\" \n"}'
    for at in range(len(whole_text)):
        payloads = [*opened(wire, whole_text[:at], whole_text[at:]), *ends(wire, normal=True)]
        events, error = fed(decoder_for(wire), [sse(*payloads)])
        assert error is None
        call = only_call(events)
        assert call.text == call.args_json == whole_text.replace("\n", "\\n")


def test_surrogates_beside_fields_of_the_wrong_type() -> None:
    body = b'data: {"x": "\\ud83d", "candidates": 7}\n\n'
    with pytest.raises(WireError, match="expected gemini data, got something else"):
        decoder_for("gemini").feed(body)


@pytest.mark.parametrize("wire", WIRES)
def test_the_text_of_an_open_call_is_that_of_its_pieces(wire: str) -> None:
    decoder = decoder_for(wire)
    joined: dict[str, str] = {}
    whole: set[str] = set()
    for frame in encode(wire, [ToolCall("write", {"title": "Überblick", "content": "one\ntwo " * 9}, size=7)]):
        for read in decoder.feed(frame):
            match read:
                case CallStarted(call_id=call_id):
                    joined[call_id] = ""
                case ArgsAppended(call_id=call_id, text=piece):
                    joined[call_id] += piece
                case CallCompleted(call_id=call_id):
                    whole.add(call_id)
        for call_id, pieces_so_far in joined.items():
            known = decoder.text_of(call_id)
            assert (None if known is None else known.join()) == (None if call_id in whole else pieces_so_far)
    decoder.end()
    assert joined
    assert [decoder.text_of(call_id) for call_id in joined] == [None]
    assert decoder.text_of("unknown") is None
