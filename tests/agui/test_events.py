from __future__ import annotations

import json
import re

import pytest

from callstream.agui import AguiEvent, Position, encode, encode_sse, merge
from callstream.agui.events import (
    ActivitySnapshot,
    ReasoningMessageContent,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
)
from callstream.agui.messages import Metadata


def text(delta: str, seq: int, message_id: str = "m") -> AguiEvent:
    return TextMessageContent(message_id=message_id, delta=delta, metadata=Metadata(seq))


def args(delta: str, seq: int, call_id: str = "c") -> AguiEvent:
    return ToolCallArgs(tool_call_id=call_id, delta=delta, metadata=Metadata(seq))


def progress(data: int, seq: int, call_id: str) -> AguiEvent:
    return ActivitySnapshot(
        message_id=f"progress-{call_id}",
        activity_type="tool_progress",
        content={"progress": data},
        replace=True,
        metadata=Metadata(seq),
    )


def end(call_id: str, seq: int) -> AguiEvent:
    return ToolCallEnd(tool_call_id=call_id, metadata=Metadata(seq))


# -- on the wire --


def test_sse_is_an_id_and_data_and_two_line_feeds() -> None:
    events = [text("é\n\r\u2028", 7), text("x", 7)]
    assert (
        encode_sse(events, 7)
        == (
            "id: 7.1\n"
            'data: {"type":"TEXT_MESSAGE_CONTENT","metadata":{"seq":7},"messageId":"m","delta":"é\\n\\r\u2028"}\n\n'
            "id: 7\n"
            'data: {"type":"TEXT_MESSAGE_CONTENT","metadata":{"seq":7},"messageId":"m","delta":"x"}\n\n'
        ).encode()
    )
    assert encode_sse([], 7) == b""
    assert encode_sse(events, 7, skip=1) == encode_sse(events[1:], 7)
    assert encode_sse(events) == re.sub(rb"id: [\d.]+\n", b"", encode_sse(events, 7))
    assert encode_sse(events, 7, first=4).startswith(b"id: 7.1.4\n")
    assert encode_sse(events, 7, first=7) == encode_sse(events, 7)


@pytest.mark.parametrize(
    ("text", "position", "whole"),
    [
        ("0", Position(0), 0),
        ("7", Position(7), 7),
        ("7.2", Position(7, 2), 6),
        ("7.2.4", Position(7, 2, 4), 3),
        ("999999999999999999", Position(999999999999999999), 999999999999999999),
    ],
)
def test_positions(text: str, position: Position, whole: int) -> None:
    assert Position.parse(text) == position
    assert position.whole == whole


@pytest.mark.parametrize("text", ["", "x", "-1", "7.", "7.0", "7.2.8", "7.2.0", "1" * 19, "7.1.2.3", "٣", " 7", "7\n"])
def test_what_is_no_position(text: str) -> None:
    assert Position.parse(text) is None


def test_there_are_no_nulls_but_those_that_mean_something() -> None:
    assert json.loads(encode(ToolCallResult(message_id="r", tool_call_id="c", content=""))) == {
        "type": "TOOL_CALL_RESULT",
        "messageId": "r",
        "toolCallId": "c",
        "content": "",
    }


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    """A model that cuts UTF-16 text in two sends such halves; joined by the client they are whole again."""
    pieces = [json.loads(encode(text(half, 1)))["delta"] for half in ("\ud83c", "\udf88")]
    assert encode(text("\ud83c", 1)).endswith(b'"delta":"\\ud83c"}')
    assert "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16") == "🎈"


# -- merged --


def test_slow_reader_merged_joins_deltas_of_one_call_and_keeps_the_last_number() -> None:
    assert merge([args("a", 1), args("b", 2), args("c", 3), end("c", 4)]) == [args("abc", 3), end("c", 4)]
    assert merge([text("a", 1), text("b", 2)]) == [text("ab", 2)]


def test_slow_reader_merged_joins_deltas_of_parallel_calls() -> None:
    assert merge([args("a", 1, "c"), args("x", 2, "d"), args("b", 3, "c"), args("y", 4, "d"), args("c", 5, "c")]) == [
        args("xy", 4, "d"),
        args("abc", 5, "c"),
    ]


def test_slow_reader_merged_tells_text_from_reasoning() -> None:
    thought = ReasoningMessageContent(message_id="m", delta="t", metadata=Metadata(2))
    assert merge([text("a", 1), thought, text("b", 3)]) == [thought, text("ab", 3)]


def test_slow_reader_merged_moves_nothing_over_anything_else() -> None:
    start = TextMessageStart(message_id="n", role="assistant", metadata=Metadata(2))
    events = [args("a", 1), start, args("b", 3), end("d", 4), args("c", 5)]
    assert merge(events) == events
    assert merge([]) == []


def test_slow_reader_merged_keeps_the_last_progress_and_the_order_of_the_first() -> None:
    assert merge([progress(1, 1, "a"), args("x", 2), progress(2, 3, "a")]) == [args("x", 2), progress(2, 3, "a")]
    events = [progress(1, 1, "a"), progress(1, 2, "b"), progress(2, 3, "a")]
    assert merge(events) == events
