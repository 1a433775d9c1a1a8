"""Arguments judged while they are written: as early as a fault is certain, and never before."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.tools.check import Fault, StreamCheck, UnknownArgument, faults


def read(schema: Any, text: str, *, lenient: bool = False) -> tuple[str | None, list[Fault]]:
    """What had been written when the fault was certain (None: nothing was), and the fault."""
    check = StreamCheck(schema, lenient=lenient)
    for place, character in enumerate(text):
        if check.feed(character):
            assert check.feed("more") is True, "it stays refused"
            return text[: place + 1], check.faults
    return (text, check.faults) if check.end() else (None, [])


NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "text", "until", "sentence"),
    [
        (NUMBERS, '{"n": "5", "s": "x"}', '{"n": "', "the argument 'n' should be an integer, got a string"),
        (NUMBERS, '{"n": [5]}', '{"n": [', "the argument 'n' should be an integer, got an array"),
        (NUMBERS, '{"n": 5.5}', '{"n": 5.5}', "the argument 'n' should be an integer, got the number 5.5"),
        (NUMBERS, '{"s": "x"}', '{"s": "x"}', "the argument 'n' is missing"),
        (NUMBERS, '[{"n": 1}]', "[", "the arguments should be an object, got an array"),
        (
            {"additionalProperties": False, "properties": {"a": {}}},
            '{"a": 1, "b": {"c": 1}}',
            '{"a": 1, "b": {',
            "there is no argument 'b'",
        ),
        (
            {"properties": {"a": {"additionalProperties": False}}},
            '{"a": {"b": 1}}',
            '{"a": {"b": 1}',
            "there is no field 'b' in the argument 'a'",
        ),
        (
            {"properties": {"mode": {"enum": ["fast", "slow", 1]}}},
            '{"mode": "fancy"}',
            '{"mode": "fan',
            "the argument 'mode' should be one of \"fast\", \"slow\", 1, got a string that begins with 'fan'",
        ),
        ({"properties": {"mode": {"enum": ["fast", "slow"]}}}, '{"mode": "fas"}', '{"mode": "fas"', "got the string 'fas'"),
        ({"properties": {"mode": {"const": "fast"}}}, '{"mode": 1}', '{"mode": 1}', 'should be "fast", got the number 1'),
        ({"properties": {"mode": {"const": {"a": 1}}}}, '{"mode": {"a": 2}}', '{"mode": {"a": 2}', "got an object"),
        ({"properties": {"mode": {"const": "a", "enum": ["b"]}}}, '{"mode": "a"}', '{"mode": "', "should be one of "),
        (
            {"properties": {"s": {"maxLength": 3}}},
            '{"s": "long and longer"}',
            '{"s": "long',
            "the argument 's' should be at most 3 characters long, got a string of more than 3 characters",
        ),
        ({"properties": {"s": {"minLength": 3}}}, '{"s": "ab"}', '{"s": "ab"', "should be at least 3 characters long"),
        ({"properties": {"s": {"pattern": "^a"}}}, '{"s": "bc"}', '{"s": "bc"', "should be a string that matches '^a'"),
        ({"properties": {"n": {"minimum": 3}}}, '{"n": 2, "m": 1}', '{"n": 2,', "should be at least 3, got the number 2"),
        ({"properties": {"n": {"exclusiveMaximum": 3}}}, '{"n": 3}', '{"n": 3}', "should be less than 3, got the number 3"),
        ({"properties": {"n": {"multipleOf": 0.1}}}, '{"n": 0.25}', '{"n": 0.25}', "should be a multiple of 0.1"),
        (
            {"properties": {"l": {"maxItems": 2}}},
            '{"l": [1, 2, 3, 4]}',
            '{"l": [1, 2, 3,',
            "the argument 'l' should be an array of at most 2 items, got more than 2 items",
        ),
        ({"maxProperties": 1}, '{"a": "", "b": ""}', '{"a": "", "b": "', "should be an object of at most 1"),
        ({"properties": {"l": {"uniqueItems": True}}}, '{"l": [1, 1.0, 2]}', '{"l": [1, 1.0,', "without equal items"),
        (
            {"properties": {"l": {"contains": {"type": "string"}, "maxContains": 1}}},
            '{"l": ["a", "b", 1]}',
            '{"l": ["a", "b"',
            "an array with at most 1 items",
        ),
        (
            {"properties": {"l": {"contains": {"type": "string"}}}},
            '{"l": [1, 2]}',
            '{"l": [1, 2]',
            "an array with at least 1 items of one kind, got one with 0",
        ),
        ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}', '{"a": 1}', "the argument 'b' is missing"),
        (
            {"properties": {"o": {"anyOf": [NUMBERS, {"type": "null"}]}}},
            '{"o": {"n": "5", "s": 1}}',
            '{"o": {"n": "',
            "the argument 'o.n' should be an integer, got a string",
        ),
        (
            {"properties": {"o": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}},
            '{"o": [1, 2]}',
            '{"o": [',
            "the argument 'o' should be a string or an integer, got an array",
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            '{"a": 1, "b": 2}',
            '{"a": 1, "b": 2}',
            "should be what only one of the alternatives allows",
        ),
        ({"not": {"required": ["a"]}}, '{"a": 1}', '{"a": 1}', "something that the schema does not exclude"),
        (
            {
                "if": {"properties": {"kind": {"const": "a"}}},
                "then": {"required": ["x"]},
                "else": {"properties": {"y": {"type": "string"}}},
            },
            '{"kind": "b", "y": 5, "z": 1}',
            '{"kind": "b", "y": 5,',
            "the argument 'y' should be a string, got the number 5",
        ),
        (
            {"if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "else": False},
            '{"kind": "a"}',
            '{"kind": "a"}',
            "the argument 'x' is missing",
        ),
        (
            {"if": {"properties": {"kind": {"const": "a"}}}, "else": {"properties": {"y": {"type": "string"}}}},
            '{"y": 5, "kind": "b"}',
            '{"y": 5, "kind": "b',
            "the argument 'y' should be a string, got the number 5",
        ),
        (
            {"properties": {"l": {"prefixItems": [{"type": "string"}], "items": False}}},
            '{"l": ["a", 2]}',
            '{"l": ["a", 2]',
            "the argument 'l[1]' should be left out, got the number 2",
        ),
        (
            {"$ref": "#/$defs/N", "$defs": {"N": NUMBERS}},
            '{"n": true}',
            '{"n": true',
            "the argument 'n' should be an integer, got true",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_found_as_early_as_it_is_certain(schema: Any, text: str, until: str, sentence: str) -> None:
    written, found = read(schema, text)
    assert written == until
    assert sentence in str(found[0])
    assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert faults(schema, json.loads(text), lenient=False) != []


def test_a_number_at_the_end_of_the_text() -> None:
    assert read({"type": "string"}, "5")[0] == "5"
    assert read({"type": "integer"}, "5") == (None, [])
    assert read({"type": "integer"}, "5 ") == (None, [])


def test_a_name_that_comes_twice() -> None:
    check = StreamCheck({"properties": {"a": {"type": "string"}}})
    assert check.feed('{"o": {"a": 1}, "a": "x", "a": 5') is False, "the number may continue"
    assert check.feed("}") is True
    assert (check.duplicate, check.faults) == ("a", [])


def test_what_is_no_json_is_judged_elsewhere() -> None:
    check = StreamCheck({"type": "object"})
    assert check.feed('{"a": nonsense') is False
    assert check.feed("}") is False
    assert check.end() is False


def test_an_optional_argument_may_be_null() -> None:
    schema = {**NUMBERS, "additionalProperties": False}
    assert read(schema, '{"n": 1, "s": null}', lenient=True) == (None, [])
    assert read(schema, '{"n": null, "s": "a"}', lenient=True)[0] == '{"n": null'
    assert isinstance(read(schema, '{"n": 1, "t": null}', lenient=True)[1][0], UnknownArgument)


def test_what_cannot_be_judged_fits() -> None:
    for schema in (
        {"pattern": "("},
        {"$ref": "https://example.com/elsewhere"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"multipleOf": 0},
        {"minimum": "5", "maxLength": True, "enum": "abc", "required": "a", "properties": [], "allOf": 5, "anyOf": []},
        {"type": "text"},
        {"type": "STRING", "nullable": True, "enum": ["a"]},
        True,
        None,
    ):
        assert read(schema, "null") == (None, [])
    assert faults({"multipleOf": 5}, float("inf"), lenient=False) == []
    assert faults({"$ref": "#/$defs/l/1", "$defs": {"l": [0, {"type": "string"}]}}, 5, lenient=False) != []


def test_all_faults_are_told_when_the_value_is_whole() -> None:
    schema = {"properties": {"o": {"anyOf": [NUMBERS, {"type": "null"}]}, "l": {"items": {"type": "string"}}}}
    value = {"o": {"s": 5}, "l": ["a", 1, 2]}
    assert [fault.path for fault in faults(schema, value)] == [("o", "s"), ("o", "n"), ("l", 1), ("l", 2)]


def test_of_very_many_faults_some_are_kept() -> None:
    assert len(faults({"items": {"type": "string"}}, [*range(50_000)])) == 100


def test_a_schema_that_leads_to_itself_many_times_is_judged_once_per_value() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}}}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [node, dict(node), dict(node), {"type": "string"}]}}}
    text = '{"next": ' * 60 + '"end"' + "}" * 60
    assert read(schema, text) == (None, [])
    assert read(schema, text.replace('"end"', "5"))[0] == '{"next": ' * 60 + "5}"


# -- random schemas --

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5]) | st.text("ab", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    part, parts = inner, st.lists(inner, min_size=1, max_size=3)
    members = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    names = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
    types = ["null", "boolean", "integer", "number", "string", "array", "object"]
    known: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(types) | st.lists(st.sampled_from(types), min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "properties": members,
        "required": names,
        "additionalProperties": part,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^b", "[bc]"]), inner, max_size=2),
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), names, max_size=2),
        "items": part,
        "prefixItems": parts,
        "contains": part,
        "not": part,
        "if": part,
        "then": part,
        "else": part,
        "allOf": parts,
        "anyOf": parts,
        "oneOf": parts,
        "pattern": st.sampled_from(["a", "^b", "b$"]),
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 2)),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNTS),
        **dict.fromkeys(("minContains", "maxContains"), COUNTS),
    }
    return st.fixed_dictionaries({}, optional=known).map(_few)


def _few(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of all keywords at once refuses everything."""
    return dict(sorted(schema.items(), key=lambda item: crc32(str(item).encode()))[:3])


LEAVES = st.booleans() | keywords(st.just(True))
NAMED = st.recursive(LEAVES, keywords, max_leaves=4)  # it does not refer to itself: jsonschema would never end
SCHEMAS = st.recursive(LEAVES | st.just({"$ref": "#/$defs/a"}), keywords, max_leaves=5)


@given(SCHEMAS, NAMED, VALUES)
def test_the_verdict_is_that_of_jsonschema_for_any_schema(schema: Any, named: Any, value: Any) -> None:
    root = {"allOf": [schema], "$defs": {"a": named}}
    fits = jsonschema.Draft202012Validator(root).is_valid(value)
    text = json.dumps(value)
    written, found = read(root, text)
    assert (written is None) is fits
    assert bool(found) is not fits
    assert (faults(root, value, lenient=False) == []) is fits
