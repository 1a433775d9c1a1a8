"""JSON text from a value that grows, and the shapes of Gemini's streamed arguments."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.errors import UsageError, WireError
from callstream.jsontext.writer import EMPTY, JsonWriter

from .pieces import documents, exact, loads_unique, shown, written


def prefixes(value: Any) -> list[Any]:
    """How a value looks while it is being written, in order."""
    if isinstance(value, dict):
        names = list(value)
        return [{}] + [
            {**{name: value[name] for name in names[:number]}, last: part}
            for number, last in enumerate(names)
            for part in prefixes(value[last])
        ]
    if isinstance(value, list):
        return [[]] + [[*value[:number], part] for number, last in enumerate(value) for part in prefixes(last)]
    if isinstance(value, str):
        return [value[:number] for number in range(len(value) + 1)]
    if isinstance(value, int) and value > 9 and not isinstance(value, bool):
        return [None, value // 10, value]
    return [None, value]


# -- a value that grows -------------------------------------------------------------------------------------------------


@given(documents, st.data())
def test_accumulated_args_give_the_difference(document: Any, data: st.DataObject) -> None:
    steps = prefixes(document)
    chosen = sorted(data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=20)))
    writer = JsonWriter()
    text = ""
    for number in chosen:
        text += writer.grow(steps[number], True)
        shown(text)
        assert writer.grow(steps[number], True) == ""
    text += writer.grow(document, False)
    assert exact(shown(text)) == exact(document)
    assert writer.grow(document, False) == ""
    assert exact(loads_unique(text + writer.close())) == exact(document)


def test_accumulated_args_are_eager_up_to_a_number_or_null() -> None:
    writer = JsonWriter()
    values = [
        {"a": 1},
        {"a": 12},
        {"a": 12, "b": "x"},
        {"a": 12, "b": "xy", "c": {}},
        {"a": 12, "b": "xy", "c": {"d": [None]}},
    ]
    texts = [writer.grow(value, True) for value in values]
    assert texts == ["{", "", '"a":12,"b":"x', 'y","c":{', ""]
    assert writer.grow(values[-1], False) == '"d":[null'
    assert writer.close() == "]}}"


def test_accumulated_args_that_end_without_a_word_keep_what_was_held_back() -> None:
    writer = JsonWriter()
    assert writer.grow({"a": "x", "b": [1]}, True) == '{"a":"x"'
    assert writer.close() == ',"b":[1]}'


def test_accumulated_args_do_not_depend_on_the_order_of_names() -> None:
    writer = JsonWriter()
    text = writer.grow({"a": True, "b": "x"}, True)
    text += writer.grow({"c": 1, "b": "xy", "a": True}, False) + writer.close()
    assert text == '{"a":true,"b":"xy","c":1}'


def test_accumulated_args_may_be_changed_by_the_caller_afterwards() -> None:
    writer = JsonWriter()
    args: dict[str, Any] = {"a": "x"}
    text = writer.grow(args, True)
    args["a"] += "y"
    args["b"] = []
    text += writer.grow(args, True)
    args["b"].append(1)
    assert text + writer.grow(args, False) + writer.close() == '{"a":"xy","b":[1]}'


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ({"a": "x"}, {"a": "y"}, r"\$\.a changed from \"x\" to 'y'"),
        ({"a": "x", "b": True}, {"a": "xy", "b": True}, r"\$\.a changed from \"x\" to 'xy'"),
        ({"a": 1, "b": True}, {"a": 12, "b": True}, r"\$\.a changed from 1 to 12"),
        ({"a": 1, "b": True}, {"a": "1", "b": True}, r"\$\.a changed from 1 to '1'"),
        ({"a": True}, {"a": 1}, r"\$\.a changed from true to 1"),
        ({"a": "x"}, {"a": None}, r"\$\.a changed from \"x\" to None"),
        ({"a": "x"}, {}, r"\$\.a changed from \"x\" to nothing"),
        ({"a": "x"}, {"b": "x"}, r"\$\.a changed from \"x\" to nothing"),
        ({"a": [True, True]}, {"a": [True]}, r"\$\.a\[1\] changed from true to nothing"),
        ({"a": [True], "b": "x"}, {"a": [True, "z"], "b": "x"}, r"\$\.a\[1\] changed from nothing to 'z'"),
        ({"a": {}, "b": "x"}, {"a": {"c": {}}, "b": "x"}, r"\$\.a\.c changed from nothing to {}"),
        ({"a": {"b": "x"}}, {"a": "x"}, r"\$\.a changed from an object to 'x'"),
        ({"a": {}}, {"a": []}, r"\$\.a changed from an object to \[\]"),
        ({"a": "x"}, {"a": {}}, r"\$\.a changed from \"x\" to {}"),
    ],
)
def test_accumulated_args_that_are_no_extension(first: Any, second: Any, change: str) -> None:
    writer = JsonWriter()
    writer.grow(first, True)
    with pytest.raises(WireError, match=change):
        writer.grow(second, True)


def test_accumulated_args_are_an_object() -> None:
    with pytest.raises(WireError, match="expected an object of arguments, got 'x'"):
        JsonWriter().grow("x", True)


def test_the_dialects_are_not_mixed() -> None:
    writer = JsonWriter()
    writer.write("$.a", 1, False)
    with pytest.raises(UsageError, match=r"grow\(\) does not go with .* write\(\)"):
        writer.grow({"a": 1}, True)
    writer.close()
    assert writer.close() == ""
    with pytest.raises(UsageError, match=r"write\(\) does not go with .* close\(\)"):
        writer.write("$.b", 1, False)


SHAPES: dict[str, tuple[list[tuple[str, Any, bool]], Any]] = {
    "one string": ([("$.a", "Bos", True), ("$.a", "ton", True), ("$.a", "", False)], {"a": "Boston"}),
    "two strings": ([("$.a", "x", True), ("$.a", "", False), ("$.b", "y", True), ("$.b", "", False)], {"a": "x", "b": "y"}),
    "interleaved": ([("$.a", "x", True), ("$.b", "1", True), ("$.a", "y", False), ("$.b", "2", False)], {"a": "xy", "b": "12"}),
    "nested": ([("$.a.b", "x", False)], {"a": {"b": "x"}}),
    "item": ([("$.items[0]", "x", False)], {"items": ["x"]}),
    "two items": ([("$.items[0]", "x", True), ("$.items[0]", "", False), ("$.items[1]", "y", False)], {"items": ["x", "y"]}),
    "quoted key": ([("$['my key']", "x", False)], {"my key": "x"}),
    "number": ([("$.n", 3.0, False)], {"n": 3}),
    "bool": ([("$.b", True, False)], {"b": True}),
    "null": ([("$.z", None, False)], {"z": None}),
    "string and number": ([("$.a", "x", True), ("$.a", "", False), ("$.n", 0.5, False)], {"a": "x", "n": 0.5}),
    "end with data": ([("$.a", "x", True), ("$.a", "y", False)], {"a": "xy"}),
    "whole without arguments": ([], {}),
    "awkward text": ([("$.a", '"q"\n\U0001f600\u2028', False)], {"a": '"q"\n\U0001f600\u2028'}),
    "empty string": ([("$.a", "", False)], {"a": ""}),
    "empty container": ([("$.a", EMPTY, False)], {"a": {}}),
    "reference key": ([("$['$ref']", "x", False)], {"$ref": "x"}),
}  # fmt: skip


# -- the shapes that Gemini's streamed arguments come in ------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_gemini_shapes_as_text(name: str) -> None:
    writes, document = SHAPES[name]
    assert loads_unique("".join(written(writes))) == document


def test_parse_linear_every_piece_of_the_open_string_costs_the_same() -> None:
    """Counted in calls of Python code: a piece costs as many at the end of a long string as at its beginning."""

    def calls_of(write: Any) -> int:
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            write("$.a.b[0]", "12345678", True)
        finally:
            sys.setprofile(None)
        return count

    writer = JsonWriter()
    writer.write("$.a.b[0]", "", True)
    early = calls_of(writer.write)
    for _ in range(5_000):
        writer.write("$.a.b[0]", "12345678", True)
    assert calls_of(writer.write) == early
