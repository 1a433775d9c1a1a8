"""Schemas of clients' tools, as Gemini takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.tools.schema import gemini_schema

from .clienttools import SCHEMA


def test_gemini_schema() -> None:
    assert gemini_schema(SCHEMA) == {
        "type": "object",
        "properties": {
            "color": {"type": "string", "enum": ["red"]},
            "size": {"nullable": True, "type": "integer", "minimum": 1},
        },
        "required": ["color"],
    }
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}}
    assert "$ref" not in json.dumps(gemini_schema(endless))
    assert gemini_schema({"oneOf": [{"type": "string"}, {"enum": [1, 2]}]}) == {
        "anyOf": [{"type": "string"}, {"type": "integer", "description": "One of: 1, 2."}]
    }
    assert gemini_schema({"enum": [True, "b", {"c": 1}]})["description"] == 'One of: true, "b", {"c": 1}.'


def test_gemini_schema_of_what_only_a_tool_s_author_used_to_get() -> None:
    """Both kinds of schemas are written by the same rules."""
    assert gemini_schema(
        {
            "allOf": [{"$ref": "#/$defs/named"}],
            "properties": {
                "mail": {"type": "string", "format": "email"},
                "when": {"type": "string", "format": "date-time", "default": "now"},
                "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "$defs": {"named": {"type": "object", "required": ["mail"]}},
        }
    ) == {
        "type": "object",
        "required": ["mail"],
        "properties": {
            "mail": {"type": "string"},
            "when": {"type": "string", "format": "date-time", "default": "now"},
            "pair": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
            "maybe": {"type": "string", "nullable": True},
        },
    }


@pytest.mark.parametrize("wrong", [[], "object", 1, None, {"properties": 3}, {"allOf": 1, "anyOf": [None], "enum": 2}])
def test_gemini_schema_of_anything(wrong: Any) -> None:
    gemini_schema(wrong)
    gemini_schema({"properties": {"a": wrong}, "items": wrong, "$defs": wrong, "anyOf": [wrong]})


def test_gemini_schema_of_definitions_that_use_each_other() -> None:
    """Unfolded, these would have millions of entries."""
    reference = {"$ref": "#/$defs/node"}
    node = {"type": "object", "properties": {"name": {"type": "string"}, **dict.fromkeys("abcdef", reference)}}
    made = gemini_schema({**node, "$defs": {"node": node}})
    assert made["properties"]["f"]["properties"]["f"]["properties"]["name"] == {"type": "string"}
    assert len(json.dumps(made)) < 100_000
    chain = {f"d{n}": {"properties": {f"p{i}": {"$ref": f"#/$defs/d{n + 1}"} for i in range(8)}} for n in range(9)}
    assert len(json.dumps(gemini_schema({"$ref": "#/$defs/d0", "$defs": chain}))) < 100_000


@pytest.mark.parametrize(
    "long",
    [
        {"properties": {f"p{n}": {} for n in range(2000)}},
        {"type": "string", "enum": ["x" * 20] * 1000},
        {"description": "x" * 20_000},
    ],
)
def test_gemini_schema_of_a_long_definition_that_is_used_often(long: dict[str, Any]) -> None:
    """A client must not make a server's memory many times as large as what it sends."""
    properties = {f"r{n}": {"$ref": "#/$defs/long"} for n in range(250)}
    schema = {"type": "object", "properties": properties, "$defs": {"long": long}}
    made = gemini_schema(schema)
    assert made["properties"]["r0"] == long
    assert made["properties"]["r249"] == {"type": "object"}
    assert len(json.dumps(made)) < 3 * len(json.dumps(schema)) + 70_000
