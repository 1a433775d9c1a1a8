from __future__ import annotations

from typing import Any

import pytest

from callstream.events import ResponseEnded
from callstream.wire import decoder_for
from tests.decoding import Folded, calls, decode, ended, only_call, reasoning, sse, text
from tests.wire.payloads import called, choice, chunk, said, tool_calls

FINISH = said("tool_calls")


def read(*payloads: Any, done: bool = True) -> Any:
    return decode("openai_chat", sse(*payloads, done=done))


def found(*payloads: Any, done: bool = True) -> list[tuple[str, str | None, str]]:
    """Name, id and completed arguments of each call."""
    return [(call.name, call.provider_id, call.args_json or call.outcome) for call in calls(read(*payloads, done=done))]


def test_text_reasoning_and_a_call() -> None:
    usage = {"completion_tokens": 5}
    events = read(
        said(role="assistant", content=""),
        said(reasoning_content="Hm."),
        said(content="I look."),
        tool_calls(called("", "f", "call_1", type="function")),
        tool_calls(called('{"a"')),
        tool_calls(called(": 1}")),
        FINISH,
        chunk(usage=usage),
    )
    assert (reasoning(events), text(events)) == ("Hm.", "I look.")
    assert only_call(events) == Folded("f", "call_1", '{"a": 1}', '{"a": 1}', "completed", message_id="chatcmpl-1")
    assert ended(events) == [ResponseEnded("tool_calls", usage)]


# -- which call a delta belongs to --


def test_interleaved_by_index() -> None:
    assert found(
        tool_calls(called("", "a", "1", 0), called("", "b", "2", 1)),
        tool_calls(called('{"x":', index=0), called('{"y":', index=1)),
        tool_calls(called("2}", index=1)),
        tool_calls(called("1}", index=0)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]


@pytest.mark.parametrize("index", [None, -1, 0, 1, "0"])
def test_index_missing_negative_from_one_or_the_same_for_all(index: Any) -> None:
    assert found(
        tool_calls(called('{"x"', "a", "1", index)),
        tool_calls(called(":1}", index=index)),
        tool_calls(called("", "a", "2", index)),
        tool_calls(called("{}", index=index)),
        tool_calls(called("{}", "b", "3", index)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("a", "2", "{}"), ("b", "3", "{}")]


@pytest.mark.parametrize("later_id", ["1", "", " ", "null", None])
@pytest.mark.parametrize("later_name", ["a", "", None])
@pytest.mark.parametrize("later_index", [0, None])
def test_id_and_name_repeated_empty_or_left_out(later_id: Any, later_name: Any, later_index: Any) -> None:
    later = {"id": later_id, "index": later_index, "function": {"name": later_name, "arguments": ""}}
    texts = ['{"x"', ':{"y":', "1}", "}"]
    payloads = [tool_calls(later | {"function": {"name": later_name, "arguments": part}}) for part in texts]
    assert found(tool_calls(called("", "a", "1")), *payloads, tool_calls(later), FINISH) == [
        ("a", "1", '{"x":{"y":1}}')
    ]


def test_id_repeated_without_its_index_still_tells() -> None:
    assert found(
        tool_calls(called("", "a", "1", 0), called("", "b", "2", 1)),
        tool_calls(called('{"x":1}', None, "1", None)),
        tool_calls(called('{"y":2}', "b", "2", None)),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]


@pytest.mark.parametrize("name", ["a", None])
def test_id_that_changes_with_every_delta(name: str | None) -> None:
    later = ['"x":{"y":1', "}", "}"]
    assert found(
        tool_calls(called('{"w":0,', "a", "first")),
        *(tool_calls(called(part, name, f"id_{number}")) for number, part in enumerate(later)),
        FINISH,
    ) == [("a", "first", '{"w":0,"x":{"y":1}}')]


def test_index_that_does_not_fit_the_id_or_the_head_of_the_call() -> None:
    # Seen behind gateways: the head of a second call under the first one's index, its tail under one of its own.
    heads = [tool_calls(called('{"x":1}', "a", "1", 0)), tool_calls(called('{"y"', "b", "2", 0))]
    expected = [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]
    assert found(*heads, tool_calls(called(":2}", index=1)), FINISH) == expected
    assert found(*heads, tool_calls(called(":2}", None, "2", 1)), FINISH) == expected
    # A call that has all its text does not go on: this is one without a name.
    events = read(heads[0], tool_calls(called("{}", index=1)), FINISH)
    assert only_call(events).args == {"x": 1}
    assert any(getattr(event, "reason", None) == "malformed" for event in events)


def test_id_used_twice_is_two_calls() -> None:
    assert found(
        tool_calls(called('{"x":1}', "a", "0", 0)),
        tool_calls(called('{"y":2}', "b", "0", 1)),
        FINISH,
    ) == [("a", "0", '{"x":1}'), ("b", "0", '{"y":2}')]


def test_whole_calls_without_ids() -> None:
    assert found(
        tool_calls(called('{"x":1}', "a", index=None)),
        tool_calls(called('{"x":2}', "a", index=None)),
        tool_calls(called("{}", "b", index=None), called("{}", "b", index=None)),
        FINISH,
    ) == [("a", None, '{"x":1}'), ("a", None, '{"x":2}'), ("b", None, "{}"), ("b", None, "{}")]


def test_index_written_as_text_tells_interleaved_calls_apart() -> None:
    assert found(
        tool_calls(called("", "a", "1", index="0"), called("", "b", "2", index="1")),
        tool_calls(called('{"x":', index="0"), called('{"y":', index="1")),
        tool_calls(called("1}", index="0"), called("2}", index="1")),
        FINISH,
    ) == [("a", "1", '{"x":1}'), ("b", "2", '{"y":2}')]
    assert found(tool_calls(called("{", "a", "1", index="")), tool_calls(called("}", index="")), FINISH) == [
        ("a", "1", "{}")
    ]


def test_name_that_comes_after_arguments() -> None:
    events = read(tool_calls(called('{"a":', call_id="1")), tool_calls(called("1}", "f")), FINISH)
    assert (only_call(events).name, only_call(events).text) == ("f", '{"a":1}')


def test_nameless_call_is_never_started() -> None:
    events = read(tool_calls(called("{}", call_id="1")), FINISH)
    assert calls(events) == []
    assert [event.detail for event in events if hasattr(event, "detail")] == ["the call never got a name"]


def test_empty_and_null_tool_calls_are_nothing() -> None:
    bare = chunk({"index": 0, "finish_reason": None}, choice(None))
    events = read(said(tool_calls=[], content="Hi"), said(tool_calls=None), bare, said("stop"))
    assert (text(events), calls(events)) == ("Hi", [])


def test_name_that_comes_after_the_end_starts_nothing() -> None:
    late = tool_calls(called("", "f"))
    assert found(tool_calls(called('{"a": 1}')), FINISH, late) == []


def test_delta_without_start_opens_the_call_that_its_name_attributes() -> None:
    assert found(tool_calls({"function": {"name": "f", "arguments": "{}"}}), FINISH) == [("f", None, "{}")]


def test_numeric_ids() -> None:
    events = read(chunk(choice({"tool_calls": [called("{}", "f", None) | {"id": 7}]}), id=12), FINISH)
    assert only_call(events).provider_id == "7"


# -- arguments --


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"a": [1]}, '{"a":[1]}'), ({}, "{}"), (None, "{}"), ("", "{}"), (" \n", " \n{}"), ("null", "null")],
)
def test_arguments_as_object_null_or_blank(arguments: Any, expected: str) -> None:
    function = {"name": "f", "arguments": arguments}
    assert found(tool_calls({"index": 0, "id": "1", "function": function}), FINISH) == [("f", "1", expected)]


def test_function_missing_in_a_delta() -> None:
    assert found(tool_calls(called("{}", "f", "1")), tool_calls({"index": 0}), FINISH) == [("f", "1", "{}")]


def test_legacy_function_call() -> None:
    deltas = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    payloads = [said(function_call=delta) for delta in deltas]
    assert found(*payloads, said("function_call")) == [("f", None, '{"a":1}')]


def test_custom_tool_text() -> None:
    def custom(text: str, **more: Any) -> Any:
        return tool_calls({"index": 0, "custom": {"input": text, **more}, "type": "custom"})

    start = tool_calls({"index": 0, "id": "1", "type": "custom", "custom": {"name": "sql", "input": ""}})
    deltas = [start, custom('SELECT "a'), custom('\n" FROM b')]
    call = only_call(read(*deltas, FINISH))
    assert (call.encoding, call.text, call.args) == ("text", 'SELECT "a\n" FROM b', 'SELECT "a\n" FROM b')
    assert only_call(read(*deltas, said("length"))).outcome == "truncated"
    assert only_call(read(*deltas)).outcome == "truncated"


# -- names that are cut --


def named(*pieces: Any, declared: tuple[str, ...] = ("get_weather", "get_wind")) -> list[tuple[str, str]]:
    """Name and outcome of each call, read with these tools declared."""
    decoder = decoder_for("openai_chat", tools={name: {} for name in declared})
    events = decoder.feed(sse(*pieces, FINISH, done=True)) + decoder.end()
    return [(call.name, call.args_json or call.outcome) for call in calls(events)]


@pytest.mark.parametrize("call_id", [None, "call_1"])
def test_a_name_in_two_deltas_is_one_name(call_id: str | None) -> None:
    pieces = [tool_calls(called("", "get_", "call_1")), tool_calls(called("", "weather", call_id))]
    assert named(*pieces, tool_calls(called('{"a": 1}'))) == [("get_weather", '{"a": 1}')]


def test_a_name_that_is_never_whole_is_what_came() -> None:
    assert named(tool_calls(called("", "get_", "call_1")), tool_calls(called("{}"))) == [("get_", "{}")]
    assert named(tool_calls(called("", "get_", "call_1"))) == [("get_", "{}")]
    assert named(tool_calls(called("", None, "call_1")), tool_calls(called("{}", "get_wind"))) == [("get_wind", "{}")]
    assert named(tool_calls(called("{}", "get_", "call_1"))) == [("get_", "{}")]
