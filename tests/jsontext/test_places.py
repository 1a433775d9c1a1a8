"""Where a schema has no place for a path."""

from __future__ import annotations

from typing import Any

import pytest

from callstream.jsontext.path import lacks_place

CLOSED = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}


@pytest.mark.parametrize(
    ("schema", "path", "lacks"),
    [
        (CLOSED, ("a", "b"), False),
        (CLOSED, ("a", "c"), True),
        (CLOSED, ("d",), True),
        ({"type": "object"}, ("anything",), False),
        ({"type": "object", "additionalProperties": True, "properties": {}}, ("anything", "below"), False),
        ({}, ("anything",), False),
        ({"enum": [1]}, ("anything",), True),
        ({"type": "array"}, (0,), False),
        ({"type": "array", "items": {"type": "string"}}, (0, "a"), True),
        ({"type": "array", "items": {"type": "string"}}, ("a",), True),
    ],
)
def test_a_path_lacks_a_place_where_all_that_may_be_there_is_described(
    schema: dict[str, Any], path: tuple[str | int, ...], lacks: bool
) -> None:
    assert lacks_place(schema, path) is lacks
