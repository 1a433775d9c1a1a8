"""JSON text from values at paths: what a value is, the document itself, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.errors import UsageError, WireError
from callstream.jsontext.writer import EMPTY, JsonWriter

from .pieces import written

# -- what a value is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (1e20, "100000000000000000000"), (0.5, "0.5"), (1e-7, "1e-07"), (-3, "-3"), (True, "true"),
     (2**64, "18446744073709551616"), (False, "false"), (None, "null"), ("", '""')],
)  # fmt: skip
def test_scalars(value: Any, text: str) -> None:
    assert "".join(written([("$.a", value, False)])) == f'{{"a":{text}}}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks(value: float) -> None:
    with pytest.raises(WireError, match="number that JSON can express"):
        JsonWriter().write("$.a", value, False)


def test_a_value_that_is_no_piece() -> None:
    with pytest.raises(UsageError, match="got dict"):
        JsonWriter().write("$.a", {}, False)  # type: ignore[arg-type]


def test_nothing_written_is_an_empty_object() -> None:
    assert written([]) == ["{}"]
    assert "".join(written([("$", EMPTY, False)])) == "{}"
    assert "".join(written([("$.a", EMPTY, True)])) == "{}"


def test_an_empty_container_is_an_object_until_an_index_comes() -> None:
    assert "".join(written([("$.a", EMPTY, False), ("$.b", 1, False)])) == '{"a":{},"b":1}'
    assert "".join(written([("$.a", EMPTY, False), ("$.a[0]", 1, False)])) == '{"a":[1]}'
    assert "".join(written([("$.a", EMPTY, False), ("$.a.x", 1, False), ("$.a", EMPTY, False)])) == '{"a":{"x":1}}'
    late = written([("$.a", EMPTY, False), ("$.b", 1, False), ("$.a[0]", 2, False)])
    assert "".join(late) == '{"a":{},"b":1,"a":[2]}'
    late = written([("$.c.a", 1, False), ("$.b", 1, False), ("$.c.d", EMPTY, False)], {})
    assert "".join(late) == '{"c":{"a":1},"b":1,"c":{"a":1,"d":{}}}'


def test_no_value_ends_a_string() -> None:
    writes = [
        ("$.a", "x", True),
        ("$.b", "y", True),
        ("$.b", EMPTY, False),
        ("$.a", EMPTY, False),
        ("$.a", EMPTY, True),
    ]
    assert written(writes) == ['{"a":"x', "", "", '","b":"y"', "", "}"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "array"}}}, "[]"),
        ({"properties": {"a": {"type": "ARRAY"}}}, "[]"),
        ({"properties": {"a": {"type": ["null", "array"]}}}, "[]"),
        ({"properties": {"a": {"items": {}}}}, "[]"),
        ({"properties": {"a": {"properties": {}}}}, "{}"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x~1y"}]}}, "$defs": {"x/y": {"type": "array"}}}, "[]"),
        ({"properties": {"a": {"oneOf": [{"type": "object"}, {"type": "array"}]}}}, "{}"),
        ({"additionalProperties": {"type": "array"}}, "[]"),
        ({"additionalProperties": True}, "{}"),
        ({"allOf": [{"$ref": "#"}, {"properties": {"a": {"type": "array"}}}]}, "[]"),
        ({"properties": {"a": {"$ref": "#/$defs/none/deeper"}}}, "{}"),
        ({"properties": {"a": {"$ref": "https://example.com/schema"}}}, "{}"),
        (None, "{}"),
    ],
)  # fmt: skip
def test_the_schema_says_what_an_empty_container_is(schema: Any, text: str) -> None:
    assert "".join(written([("$.a", EMPTY, False)], schema)) == f'{{"a":{text}}}'


def test_the_schema_of_items() -> None:
    schema = {"properties": {"a": {"prefixItems": [{"type": "array"}], "items": {"type": "object"}}}}
    assert "".join(written([("$.a[0]", EMPTY, False), ("$.a[1]", EMPTY, False)], schema)) == '{"a":[[],{}]}'


# -- the document itself ------------------------------------------------------------------------------------------------


def test_the_document_is_an_array_when_the_first_step_is_an_index() -> None:
    assert written([("$[0]", "x", True), ("$[0]", "y", False), ("$[1].a", 1, False)]) == ['["x', 'y"', ',{"a":1', "}]"]
    assert "".join(written([("$[1]", 1, False)])) == "[null,1]"


def test_the_document_is_a_single_value() -> None:
    assert written([("$", "x", True), ("$", "y", False)]) == ['"x', 'y"', ""]
    assert written([("$", "x", True)]) == ['"x', '"']
    assert written([("$", 1, False)]) == ["1", ""]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (("$.a", 1), ("$.a.b", 2), r"\$\.a\.b goes into \$\.a, which holds 1"),
        (("$.a", "text"), ("$.a[0].b", 2), r'\$\.a\[0\]\.b goes into \$\.a, which holds "text"'),
        (("$.a.b", 1), ("$.a", 2), r"\$\.a is given 2, but holds an object"),
        (("$.a[0]", 1), ("$.a", "x"), r"\$\.a is given 'x', but holds an array"),
        (("$.a[0]", 1), ("$.a.b", 2), r"\$\.a\.b goes into \$\.a, which holds an array"),
        (("$.a", 1), ("$[0]", 2), r"\$\[0\] goes into \$, which holds an object"),
        (("$", 1), ("$.a", 2), r"\$\.a goes into \$, which holds 1"),
        (("$", 1), ("$", 2), r"\$ is given 2, but holds 1"),
        (("$.a", 1), ("$", 2), r"\$ is given 2, but holds an object"),
    ],
)
def test_a_contradiction_names_both(first: tuple[str, Any], second: tuple[str, Any], both: str) -> None:
    writer = JsonWriter()
    writer.write(*first, False)
    with pytest.raises(WireError, match=both):
        writer.write(*second, False)


def test_a_late_item_of_the_document_cannot_be_written() -> None:
    writer = JsonWriter()
    for path in ("$[0].a", "$[1]", "$[0].b"):
        writer.write(path, 1, False)
    with pytest.raises(WireError, match=r"\$\[0\]\.b came late"):
        writer.close()


def test_depth_and_size_limits() -> None:
    with pytest.raises(WireError, match=r"indices below 100000, got \$\.a\[1000000000\]"):
        JsonWriter().write("$.a[1000000000]", 1, False)
    with pytest.raises(WireError, match="indices below 100000"):
        JsonWriter().write(("a", -1), 1, False)
    with pytest.raises(WireError, match="at most 256 steps, got one of 257"):
        JsonWriter().write(("a",) * 257, 1, False)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(WireError, match="at most 256 steps"):
        JsonWriter().grow(deep, False)
    writer = JsonWriter(max_depth=3, max_items=10)
    writer.write("$.a.b[9]", 1, False)
    writer.write("$.c[3]", 1, False)
    with pytest.raises(WireError, match=r"at most 10 missing items, more in \$\.c"):
        writer.close()


def test_a_hostile_order_stays_linear() -> None:
    """Members of closed containers, again and again: everything is written twice at most."""
    writer = JsonWriter()
    text = ""
    for number in range(2_000):
        text += writer.write(("a", f"k{number}"), number, False) + writer.write(("b", f"k{number}"), number, False)
    text += writer.close()
    assert len(json.loads(text)["a"]) == 2_000
    assert len(text) < 2 * len(json.dumps(json.loads(text)))
