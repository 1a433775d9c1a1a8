"""Which arguments fit a declared schema: what is required, and the types of the arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.tools.check import Fault, argument_names, describe
from callstream.tools.check import outline_faults as faults
from tests.captures import NOT_THERE, captures, declared_tools, folder


def misfit_of(schema: Any, value: Any) -> str | None:
    found = faults(schema, value)
    return describe(found, argument_names(schema)) if found else None


def only(schema: Any, *, required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"it": schema}, "required": ["it"] if required else []}


VALUES: dict[str, list[Any]] = {
    "string": ["", "text"],
    "integer": [0, -7, 5.0, 10**30],
    "number": [0, 1.5, 5.0],
    "boolean": [True, False],
    "array": [[], [1]],
    "object": [{}, {"a": 1}],
    "null": [None],
}
ALSO = {("integer", "number"), ("number", "integer")}


@pytest.mark.parametrize("declared", VALUES)
@pytest.mark.parametrize("given", VALUES)
@pytest.mark.parametrize("spelling", [str.lower, str.upper])
def test_each_type_takes_its_own_values(declared: str, given: str, spelling: Any) -> None:
    for value in VALUES[given]:
        fits = declared == given or (declared, given) in ALSO
        if (declared, value) == ("integer", 1.5):
            fits = False
        assert (faults(only({"type": spelling(declared)}), {"it": value}) == []) is fits


def test_what_is_required_has_to_be_there() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    assert faults(schema, {"a": 1, "b": None}) == []
    assert faults(schema, {"b": 1}) == [Fault(("a",), "a value")]
    assert misfit_of(schema, {}) == "the argument 'a' is missing. The argument 'b' is missing; its arguments are a, b"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["string", "null"]}, None),
        ({"type": "STRING", "nullable": True}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "x"),
        ({"$ref": "#/$defs/Name"}, "x"),
        ({"$ref": "#/$defs/Again"}, "x"),
        ({"$ref": "#/$defs/a~1b~0c"}, 1),
        ({"$ref": "#/$defs/Missing"}, 1),
        ({"$ref": "https://example.com/schema"}, 1),
        ({"$ref": 7}, 1),
        ({"$ref": "#/$defs/Name/type/deeper"}, 1),
        ({"$ref": "#/$defs/Self"}, 1),
        ({"enum": ["a", "b"]}, "c"),
        ({"type": "string", "minLength": 3}, ""),
        ({"type": "text"}, 1),
        ({"type": ["string", "date"]}, 1),
        ({"type": 7}, 1),
        ({"type": "array", "items": {"type": "string"}}, [1]),
        ({"type": "object", "required": ["a"]}, {}),
        ({"anyOf": [True, {"type": "string"}]}, 1),
        ({"anyOf": "odd"}, 1),
        (True, 1),
        ({}, 1),
    ],
)
def test_what_cannot_be_told_fits(schema: Any, value: Any) -> None:
    named = {"Name": {"type": "string"}, "Again": {"$ref": "#/$defs/Name"}, "a/b~c": {"type": "integer"}}
    defined = {**only(schema), "$defs": {**named, "Self": {"$ref": "#/$defs/Self"}}}
    assert faults(defined, {"it": value}) == []


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        ({"type": "integer"}, "three", "should be an integer, got the string 'three'"),
        ({"type": "integer"}, True, "should be an integer, got true"),
        ({"type": "number"}, False, "should be a number, got false"),
        ({"type": "string"}, 7, "should be a string, got the number 7"),
        ({"type": "string"}, None, "should be a string, got null"),
        ({"type": ["string", "null"]}, {}, "should be a string or null, got an object"),
        ({"type": "boolean"}, [], "should be true or false, got an array"),
        ({"type": "array"}, "x" * 50, f"should be an array, got the string '{'x' * 40}'…"),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "a", "should be an array or null, got the string 'a'"),
        ({"$ref": "#/$defs/Name"}, 1, "should be a string, got the number 1"),
        ({"allOf": [{}, {"type": "string"}]}, 1, "should be a string, got the number 1"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(schema: Any, value: Any, sentence: str) -> None:
    defined = {**only(schema), "$defs": {"Name": {"type": "string"}}}
    assert misfit_of(defined, {"it": value}) == f"the argument 'it' {sentence}; its arguments are it"


def test_an_optional_argument_may_be_null() -> None:
    assert faults(only({"type": "string"}, required=False), {"it": None}) == []
    assert faults(only({"type": "string"}, required=False), {}) == []
    assert faults(only({"type": "string"}, required=False), {"it": 1}) != []


def test_the_arguments_themselves() -> None:
    assert misfit_of({"type": "object"}, [1]) == "the arguments should be an object, got an array"
    assert str(Fault(("a", 0), "a string", "null")) == "the argument 'a[0]' should be a string, got null"
    root = {"$ref": "#/$defs/Args", "$defs": {"Args": only({"type": "string"})}}
    assert [fault.path for fault in faults(root, {})] == [("it",)]
    for schema in (None, True, {"required": "it", "properties": []}, {"required": [7]}):
        assert misfit_of(schema, {"it": 1}) is None


def test_of_several_forms_of_arguments_one_has_to_fit() -> None:
    forms = {"anyOf": [only({"type": "string"}), {"type": "object", "required": ["a", "b"]}]}
    assert faults(forms, {"it": "x"}) == []
    assert faults(forms, {"a": 1, "b": 2}) == []
    assert faults(forms, {"a": 1}) == [Fault(("it",), "a value")]


def test_what_is_inside_of_an_argument_may_be_deep() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert faults(only({"type": "array"}), {"it": deep}) == []
    assert faults(only({"type": "object"}), {"it": deep}) != []


def test_extra_arguments_fit() -> None:
    assert faults({**only({}), "additionalProperties": False}, {"it": 1, "more": 2}) == []


# Calls that models really made, and that do not fit what was declared.
KNOWN = {
    "cricket_player_names": "the declaration has a name with a colon, and requires it without",
    "structured_output": "the model wrote an empty object",
    "lookup_harbor_label": "the model wrote null for no arguments",
    "lookup_orchard_label": "the model wrote null for no arguments",
}


@pytest.mark.wires
@pytest.mark.skipif(folder() is None, reason=NOT_THERE)
def test_recorded_calls_fit_what_was_declared() -> None:
    checked = 0
    for capture in captures():
        declared = {tool["name"]: tool.get("schema") for tool in declared_tools(capture)}
        for call in capture.tool_calls:
            if call.name in declared and call.final_args_json is not None:
                checked += 1
                found = faults(declared[call.name], json.loads(call.final_args_json))
                assert not found or call.name in KNOWN, (capture.file, call.name, found)
    assert checked > 300


def test_an_outline_knows_dates_and_decimals_by_their_format() -> None:
    schema = {
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "price": {"type": "string", "format": "decimal"},
        },
    }
    assert faults(schema, {"at": "whenever", "price": 1.5}) == []
    [fault] = faults(schema, {"at": 5})
    assert fault.expected == "a date and time such as 2026-01-31T09:30:00Z"
