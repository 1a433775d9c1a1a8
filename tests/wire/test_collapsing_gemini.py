from __future__ import annotations

import json
from typing import Any

import pytest

from tests.decoding import sse
from tests.wire.collapsing import Tap, named, no, payloads, tapped, tapped_at_any_split

Chunk = dict[str, Any]


def chunk(*parts: Any, finish: str | None = None, usage: int | None = None, **fields: Any) -> Chunk:
    candidate: Chunk = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    if finish is not None:
        candidate["finishReason"] = finish
    made: Chunk = {"candidates": [candidate], "modelVersion": "g", "responseId": "r1", **fields}
    if usage is not None:
        made["usageMetadata"] = {"totalTokenCount": usage}
    return made


def begin(name: str = "write", signature: str | None = None, **fields: Any) -> Chunk:
    part: Chunk = {"functionCall": {"name": name, "willContinue": True, **fields}}
    return part if signature is None else {**part, "thoughtSignature": signature}


def piece(text: str, *, more: bool = True, outer: bool = True, path: str = "$.text") -> Chunk:
    argument: Chunk = {"jsonPath": path, "stringValue": text}
    if more:
        argument["willContinue"] = True
    call: Chunk = {"partialArgs": [argument]}
    return {"functionCall": {**call, "willContinue": True} if outer else call}


END: Chunk = {"functionCall": {}}
STREAMED = (
    chunk(begin(signature="s1"), usage=1),
    chunk(piece("Hel"), usage=2),
    chunk(piece("lo"), usage=3),
    chunk(piece("", more=False), usage=4),
    chunk(END, usage=5),
)


def parts(body: bytes) -> list[Any]:
    return [
        part
        for each in payloads(body)
        for candidate in each["candidates"]
        for part in candidate.get("content", {}).get("parts", [])
    ]


def test_streamed_call_becomes_one_part_with_args_id_and_signature() -> None:
    result = tapped_at_any_split("gemini", sse(*STREAMED, chunk(finish="STOP", usage=9)))
    call = {"functionCall": {"name": "write", "args": {"text": "Hello"}, "id": "call_1"}, "thoughtSignature": "s1"}
    assert payloads(result.body) == [chunk(call, usage=5), chunk(finish="STOP", usage=9)]
    assert [output.call_ids for output in result.outputs] == [("call_1",), ()]


def test_arguments_are_the_exact_text_that_the_decoder_completed() -> None:
    number = {"functionCall": {"partialArgs": [{"jsonPath": "$.n", "numberValue": 1e300}], "willContinue": True}}
    result = tapped("gemini", [sse(chunk(begin()), chunk(number), chunk(END), chunk(finish="STOP"))])
    [completed] = [event.args_json for event in result.events if hasattr(event, "args_json")]
    assert f'"args":{completed}'.encode() in result.body


def test_id_of_the_provider_is_kept() -> None:
    result = tapped("gemini", [sse(chunk(begin(id="p7")), chunk(piece("x", more=False)), chunk(END, finish="STOP"))])
    assert parts(result.body) == [{"functionCall": {"name": "write", "args": {"text": "x"}, "id": "p7"}}]


def test_pieces_are_withheld_and_what_follows_waits() -> None:
    tap = Tap("gemini")
    before, after = sse(chunk({"text": "before"})), sse(chunk({"text": "after"}))
    assert tap.feed(before) == before
    for each in STREAMED[:-1]:
        assert tap.feed(sse(each)) == b""
    assert tap.collapser.is_holding
    second = sse(chunk(begin("other", id="b")), chunk({"text": "between"}))
    assert b"write" in tap.feed(sse(STREAMED[-1]) + second)
    assert tap.feed(after) == b""
    assert tap.feed(sse(chunk(END))) == b""
    end = sse(chunk(finish="STOP"))
    assert b"between" in (left := tap.feed(end))
    assert left.endswith(after + end)
    assert left.index(b"other") < left.index(b"between")
    assert tap.end() == b""


def test_call_that_is_not_collapsed_passes_byte_for_byte() -> None:
    other = (chunk(begin("other")), chunk(piece("a")), chunk(piece("", more=False)), chunk(END))
    body = sse(*other, *STREAMED, chunk(finish="STOP"))
    result = tapped_at_any_split("gemini", body, named("write"))
    assert result.body.startswith(sse(*other))
    assert tapped_at_any_split("gemini", body, no).body == body


def test_parts_beside_the_call_keep_their_place() -> None:
    mixed = chunk({"text": "a"}, begin(), {"text": "b"}, usage=1)
    last = chunk(
        {"text": "c"}, piece("x", more=False, outer=False), {"text": "d", "thought": True}, finish="STOP", usage=2
    )
    tap = Tap("gemini")
    assert payloads(tap.feed(sse(mixed))) == [chunk({"text": "a"})]
    call = {"functionCall": {"name": "write", "args": {"text": "x"}, "id": "call_1"}}
    assert payloads(tap.feed(sse(last))) == [
        chunk(call),
        chunk({"text": "b"}, usage=1),
        chunk({"text": "c"}, {"text": "d", "thought": True}, finish="STOP", usage=2),
    ]


def test_whole_calls_stay_in_their_chunk_and_get_an_id_if_they_have_none() -> None:
    with_id = {"functionCall": {"name": "a", "args": {"x": 1.50}, "id": "p1"}, "thoughtSignature": "s"}
    without = {"functionCall": {"name": "b", "args": {}}}
    body = sse(chunk({"text": "t"}, with_id, finish="STOP"))
    assert tapped("gemini", [body]).body == body
    result = tapped("gemini", [sse(chunk({"text": "t"}, with_id, without, finish="STOP"))])
    minted = {"functionCall": {"name": "b", "args": {}, "id": "call_1"}}
    assert payloads(result.body) == [chunk({"text": "t"}, with_id, minted, finish="STOP")]
    assert [output.call_ids for output in result.outputs] == [("p1", "call_1")]
    body = sse(chunk(without, finish="STOP"))
    assert tapped("gemini", [body], named("a")).body == body


def test_whole_call_after_a_streamed_one_waits_for_it() -> None:
    tap = Tap("gemini")
    whole = {"functionCall": {"name": "b", "args": {}, "id": "p1"}}
    for each in STREAMED[:2]:
        tap.feed(sse(each))
    assert tap.feed(sse(chunk({**begin("c"), "functionCall": {"name": "c", "id": "p3", "willContinue": True}}))) == b""
    assert tap.feed(sse(chunk(whole))) == b""
    assert tap.tapped.call_ids == []
    tap.feed(sse(chunk({"functionCall": {"id": "p3"}}), chunk(END), chunk(finish="STOP")))
    assert sorted(tap.tapped.call_ids) == ["call_1", "p1", "p3"]


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "MALFORMED_FUNCTION_CALL"])
def test_truncated_never_runs_call_is_left_out_and_the_finish_reason_kept(reason: str) -> None:
    last = chunk(piece("lo"), finish=reason, usage=3)
    result = tapped_at_any_split("gemini", sse(chunk({"text": "t"}), *STREAMED[:2], last))
    assert payloads(result.body) == [
        chunk({"text": "t"}),
        {
            **chunk(usage=3),
            "candidates": [{"content": {"role": "model"}, "finishReason": reason}],
        },
    ]
    assert result.call_ids == []


def test_end_of_the_body_leaves_an_open_call_out() -> None:
    text = sse(chunk({"text": "t"}))
    assert tapped_at_any_split("gemini", text + sse(*STREAMED[:3])).body == text


def test_signature_of_a_left_out_call_moves_to_the_next_forwarded_one() -> None:
    for collapse, id_ in ((lambda name: True, "call_2"), (named("write"), None)):
        cut = chunk(begin("write", "s1", id="p1"))
        whole: Chunk = {"functionCall": {"name": "next", "args": {}}}
        other: Chunk = {"functionCall": {"name": "third", "args": {}, "id": "p3"}}
        result = tapped("gemini", [sse(cut, chunk(whole, other, {"text": "."}), chunk(finish="MAX_TOKENS"))], collapse)
        named_next = {**whole["functionCall"], "id": "call_1"} if id_ else whole["functionCall"]
        assert parts(result.body) == [{"functionCall": named_next, "thoughtSignature": "s1"}, other, {"text": "."}]


def test_signature_moves_to_a_streamed_call_but_replaces_none() -> None:
    lost = chunk(begin("a", "s1", id="p1"))
    bad = chunk(
        {"functionCall": {"id": "p1", "partialArgs": [{"jsonPath": "$.x", "stringValue": "u"}], "willContinue": True}}
    )
    streamed = (chunk(begin("b", id="p2")), chunk({"functionCall": {"id": "p2"}}))
    signed = (chunk(begin("b", "s2", id="p2")), chunk({"functionCall": {"id": "p2"}}))
    for following, expected in ((streamed, "s1"), (signed, "s2")):
        result = tapped("gemini", [sse(lost, bad, *following, chunk({"text": "."}), chunk(finish="MAX_TOKENS"))])
        part, _ = parts(result.body)
        assert (part["functionCall"]["id"], part["thoughtSignature"]) == ("p2", expected)


def test_signature_that_no_call_can_take_is_lost_with_its_response() -> None:
    cut = sse(chunk(begin(signature="s1"), responseId="r1"), chunk(finish="MAX_TOKENS", responseId="r1"))
    whole = {"functionCall": {"name": "b", "args": {}, "id": "p1"}}
    result = tapped("gemini", [cut + sse(chunk(whole, finish="STOP", responseId="r2"))])
    assert b"s1" not in result.body
    assert parts(result.body) == [whole]


def test_signature_that_comes_late_is_not_lost() -> None:
    """While the call waits it gets it; once it has left, an empty text takes it."""
    late = {"functionCall": {}, "thoughtSignature": "s9"}
    call = (chunk(begin()), chunk(piece("x", more=False)), chunk(END))
    [part] = parts(tapped("gemini", [sse(*call, chunk(late), chunk(END))]).body)
    assert part["thoughtSignature"] == "s9"
    result = tapped("gemini", [sse(*call, chunk({"text": "."}), chunk(late), chunk(END))])
    assert parts(result.body)[1:] == [{"text": "."}, {"text": "", "thoughtSignature": "s9"}]
    held = sse(chunk(begin(id="p1")), chunk(begin("b", id="p2")), chunk({"functionCall": {"id": "p2"}}))
    end = sse(chunk({**late, "functionCall": {"id": "p1"}}), chunk(finish="STOP"))
    assert [part.get("thoughtSignature") for part in parts(tapped("gemini", [held + end]).body)] == ["s9", None]


def test_what_the_pieces_bring_beside_the_call_leaves_with_it() -> None:
    graded = chunk(piece("x", more=False))
    graded["candidates"][0]["safetyRatings"] = ["ok"]
    graded["candidates"][0]["index"] = 0
    start = chunk(begin())
    start["candidates"][0]["index"] = 0
    result = tapped("gemini", [sse(start, graded, chunk(END, usage=7), chunk(finish="STOP"))])
    call = payloads(result.body)[0]
    assert call["candidates"][0]["safetyRatings"] == ["ok"]
    assert call["candidates"][0]["index"] == 0
    assert call["usageMetadata"] == {"totalTokenCount": 7}


def test_candidates_are_kept_apart() -> None:
    def of(index: int, *parts_: Chunk, finish: str | None = None) -> Chunk:
        made = chunk(*parts_, finish=finish)["candidates"][0]
        return {**made, "index": index}

    one = {"candidates": [of(0, begin()), of(1, {"text": "b"})]}
    two = {"candidates": [of(0, piece("x", more=False)), of(1, begin("other"))]}
    three = {"candidates": [of(0, END, finish="STOP"), of(1, END)]}
    four = {"candidates": [of(1, finish="STOP")]}
    beside = {"candidates": [of(0, begin()), of(1, finish="STOP")]}
    assert payloads(tapped("gemini", [sse(beside)]).body) == [{"candidates": [of(1, finish="STOP")]}]
    result = tapped_at_any_split("gemini", sse(one, two, three, four))
    made = [(each["candidates"][0]["index"], each["candidates"][0]) for each in payloads(result.body)]
    assert [index for index, _ in made] == [0, 1, 1, 0, 1]
    assert made[0][1]["content"]["parts"][0]["functionCall"]["args"] == {"text": "x"}
    assert made[2][1]["content"]["parts"][0]["functionCall"]["name"] == "other"


def test_all_in_one_chunk_without_will_continue() -> None:
    part = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.n", "numberValue": 2}]}}
    result = tapped("gemini", [sse(chunk(part, finish="STOP", usage=3))])
    call = {"functionCall": {"name": "f", "args": {"n": 2}, "id": "call_1"}}
    assert payloads(result.body) == [chunk(call, finish="STOP", usage=3)]


def test_nameless_held_until_the_name_is_known() -> None:
    text = {"type": "string"}
    tools = {
        "write": {"type": "object", "properties": {"text": text, "title": text}},
        "read": {"type": "object", "properties": {"text": text, "path": text}},
    }
    nameless = chunk(piece("x", more=False))
    known = chunk(piece("y", more=False, path="$.title"))
    for collapse, passes in ((no, True), (lambda name: True, False)):
        tap = Tap("gemini", collapse, tools=tools)
        assert tap.feed(sse(nameless)) == b""
        assert tap.collapser.is_holding
        assert tap.feed(sse(chunk({"text": "t"}))) == b""
        left = tap.feed(sse(known))
        assert (left == sse(nameless, chunk({"text": "t"}), known)) == passes
        tap.feed(sse(chunk(END), chunk(finish="STOP")))
        assert tap.tapped.call_ids == ([] if passes else ["call_1"])


def test_call_that_never_gets_a_name_is_left_out() -> None:
    body = sse(chunk(piece("x")), chunk({"text": "t"}), chunk(finish="STOP"))
    assert payloads(tapped_at_any_split("gemini", body).body) == [chunk({"text": "t"}), chunk(finish="STOP")]
    tap = Tap("gemini")
    tap.feed(sse(chunk(piece("x")), chunk({"text": "t"})))
    assert payloads(tap.end()) == [chunk({"text": "t"})]


def test_end_of_no_call_passes() -> None:
    body = sse(chunk(END), chunk(finish="STOP"))
    assert tapped("gemini", [body]).body == body


def test_error_object_passes_after_the_open_call_was_left_out() -> None:
    error = sse({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}})
    result = tapped_at_any_split("gemini", sse(*STREAMED[:2]) + error)
    assert result.body == error
    assert result.error is not None
    assert result.error.provider_message == "overloaded"


def test_rest_of_a_chunk_that_breaks_the_wire_has_no_owner() -> None:
    broken = {"functionCall": {"partialArgs": [{"jsonPath": "not a path [", "stringValue": "x"}], "willContinue": True}}
    whole = {"functionCall": {"name": "b", "args": {}, "id": "p1"}}
    result = tapped("gemini", [sse(chunk(begin()), chunk({"text": "t"}, broken, whole))])
    assert result.error is not None
    assert parts(result.body) == [{"text": "t"}]


def test_array_separators_fit_what_has_left() -> None:
    def array(*chunks: Chunk) -> bytes:
        return b"[" + b",\r\n".join(json.dumps(each).encode() for each in chunks) + b"\r\n]\n"

    text = chunk({"text": "t"})
    result = tapped_at_any_split("gemini", array(*STREAMED, text, chunk(finish="STOP")))
    assert [json.loads(result.body)[0]["candidates"][0]["content"]["parts"][0]["functionCall"]["name"]] == ["write"]
    assert result.body.endswith(b",\r\n" + json.dumps(chunk(finish="STOP")).encode() + b"\r\n]\n")
    mixed = chunk({"text": "a"}, {"functionCall": {"name": "f", "partialArgs": []}}, {"text": "b"})
    assert len(json.loads(tapped_at_any_split("gemini", array(mixed, chunk(finish="STOP"))).body)) == 4
    assert json.loads(tapped_at_any_split("gemini", array(*STREAMED[:2])).body) == []
    assert tapped("gemini", [b"[]"]).body == b"[]"
    marked = b"\xef\xbb\xbf" + array(*STREAMED, text, chunk(finish="STOP"))
    assert json.loads(tapped_at_any_split("gemini", marked).body) == json.loads(result.body)
    assert tapped("gemini", [array(text)[:-9]]).body == array(text)[:-9]


def test_several_pieces_in_one_chunk_are_looked_at() -> None:
    """More than one part, or a field that is not known, and the chunk is taken apart."""
    two = chunk(piece("a"), piece("b", more=False))
    odd = chunk({**piece("c", path="$.more", more=False), "futureField": 1})
    result = tapped("gemini", [sse(chunk(begin()), two, odd, chunk(END), chunk(finish="STOP"))])
    [part] = parts(result.body)
    assert part["functionCall"]["args"] == {"text": "ab", "more": "c"}
    assert part["futureField"] == 1


def test_growing_args_are_withheld_too() -> None:
    grown = [{"functionCall": {"name": "f", "args": {"t": text}, "willContinue": True}} for text in ("a", "ab")]
    last = {"functionCall": {"name": "f", "args": {"t": "abc"}}}
    result = tapped("gemini", [sse(chunk(grown[0]), chunk(grown[1]), chunk(last, finish="STOP"))])
    [part] = parts(result.body)
    assert part == {"functionCall": {"name": "f", "args": {"t": "abc"}, "id": "call_1"}}


def test_a_whole_call_without_arguments_stays_without() -> None:
    called = {"functionCall": {"name": "f", "id": "p1"}}
    result = tapped_at_any_split("gemini", sse(chunk(called), chunk({"text": "."}), chunk(finish="STOP")))
    assert parts(result.body) == [called, {"text": "."}]
    assert result.call_ids == ["p1"]
