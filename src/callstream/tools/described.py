"""The JSON Schema that msgspec makes of an annotation, with what msgspec leaves out of it.

msgspec writes ``datetime`` and ``time`` without a format, because they need no offset, and sorts the values of ``Literal``
and ``Enum``. Here dates have their formats, and choices are in the order in which they were declared.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import inspect as types

REF = "#/$defs/"
_FORMATS: dict[type[types.Type], str] = {types.DateTimeType: "date-time", types.TimeType: "time"}


def msgspec_schema(annotation: Any, hook: Callable[[type], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema, and the definitions that it refers to. ``hook`` describes classes that msgspec does not know."""
    (schema,), definitions = msgspec.json.schema_components([annotation], schema_hook=hook, ref_template=REF + "{name}")
    _add_formats(types.type_info(annotation), schema, definitions, set())
    orders = {frozenset(map(repr, order)): order for order in reversed(list(_declared_orders(annotation, set())))}
    for part in (schema, *definitions.values()):
        _order_choices(part, orders)
    return schema, definitions


def _add_formats(info: types.Type, schema: Any, definitions: dict[str, Any], done: set[str]) -> None:
    while isinstance(info, types.Metadata):
        info = info.type
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REF)
        if name in done:
            return
        done.add(name)
        schema = definitions[name]
    for part, inner in _parts(info, schema):
        _add_formats(part, inner, definitions, done)
    if type(info) in _FORMATS:
        schema.setdefault("format", _FORMATS[type(info)])


def _parts(info: types.Type, schema: dict[str, Any]) -> Iterator[tuple[types.Type, Any]]:
    """The types inside of a type, each with its schema."""
    match info:
        case types.UnionType():
            yield from zip(_in_order_of_schema(info), _alternatives(schema), strict=False)
        case types.CollectionType():
            yield info.item_type, schema.get("items")
        case types.TupleType():
            yield from zip(info.item_types, schema.get("prefixItems", ()), strict=False)
        case types.DictType():
            yield info.value_type, schema.get("additionalProperties")
        case types.StructType() | types.TypedDictType() | types.DataclassType() | types.NamedTupleType():
            places = schema.get("prefixItems", ())
            for number, field in enumerate(info.fields):
                by_name = schema.get("properties", {}).get(field.encode_name)
                yield field.type, places[number] if number < len(places) else by_name


def _in_order_of_schema(info: types.UnionType) -> list[types.Type]:
    """msgspec writes structs after other types, and null last."""

    def rank(member: types.Type) -> int:
        while isinstance(member, types.Metadata):
            member = member.type
        if isinstance(member, types.NoneType):
            return 2
        return int(isinstance(member, types.StructType) and not member.array_like)

    return sorted(info.types, key=rank)


def _alternatives(schema: dict[str, Any]) -> Iterator[Any]:
    for part in schema.get("anyOf", ()):
        yield from part["anyOf"] if "discriminator" in part else [part]


def _declared_orders(annotation: Any, done: set[Any]) -> Iterator[list[Any]]:
    """The values of each ``Literal`` and ``Enum`` in an annotation and in the fields of its classes."""
    if get_origin(annotation) is Literal:
        yield list(get_args(annotation))
        return
    for argument in get_args(annotation):
        yield from _declared_orders(argument, done)
    if not isinstance(annotation, type) or annotation in done:
        return
    done.add(annotation)
    if issubclass(annotation, enum.Enum):
        yield [member.value for member in annotation]
    elif _has_fields(annotation):
        for hint in get_type_hints(annotation, include_extras=True).values():
            yield from _declared_orders(hint, done)


def _has_fields(class_: type) -> bool:
    is_tuple = issubclass(class_, tuple) and hasattr(class_, "_fields")
    return dataclasses.is_dataclass(class_) or is_typeddict(class_) or issubclass(class_, msgspec.Struct) or is_tuple


def _order_choices(schema: Any, orders: dict[frozenset[str], list[Any]]) -> None:
    if isinstance(schema, list):
        for part in schema:
            _order_choices(part, orders)
    elif isinstance(schema, dict):
        for word, part in schema.items():
            if word == "enum" and isinstance(part, list):
                schema[word] = orders.get(frozenset(map(repr, part)), part)
            elif word not in ("default", "const", "examples"):
                _order_choices(part, orders)
