from __future__ import annotations

from typing import Any

import pytest

from callstream.jsontext.path import parse_path
from callstream.wire.transcript import tools_that_fit

TREE: dict[str, Any] = {
    "properties": {
        "plain": {"type": "string"},
        "nested": {"properties": {"inner": {"type": "integer"}}},
        "list": {"items": {"properties": {"x": {}}}},
        "any": {"anyOf": [True, {"type": "null"}, {"$ref": "#/$defs/Node"}]},
        "all": {"allOf": [{"properties": {"y": {}}}]},
        "map": {"additionalProperties": {"properties": {"z": {}}}},
        "free": {"additionalProperties": True},
        "closed": {"additionalProperties": False},
        "lost": {"$ref": "#/$defs/Missing/deeper"},
    },
    "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}, "value": {}}}},
}


@pytest.mark.parametrize(
    "path",
    [
        "$",
        "$.plain",
        "$.nested.inner",
        "$.list[3].x",
        "$.any.next.next.value",
        "$.all.y",
        "$.map.whatever.z",
        "$.free.whatever",
    ],
)
def test_places_that_a_schema_has(path: str) -> None:
    assert tools_that_fit({"f": TREE, "g": {"properties": {"other": {}}}}, [parse_path(path), ("plain",)]) == ["f"]


@pytest.mark.parametrize(
    "path",
    ["$.other", "$[0]", "$.plain.x", "$.nested[0]", "$.list.x", "$.any.other", "$.closed.x", "$.lost.x", "$.map.a.b"],
)
def test_places_that_a_schema_does_not_have(path: str) -> None:
    assert tools_that_fit({"f": TREE}, [parse_path(path)]) == []


def test_all_tools_fit_as_long_as_nothing_is_known() -> None:
    assert tools_that_fit({"b": {}, "a": TREE}, []) == ["b", "a"]
