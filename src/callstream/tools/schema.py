"""What a provider learns about a tool: its name, its description and the JSON Schema of its parameters.

The schema is made from the annotations by msgspec (builtins, Literal, Enum, TypedDict, dataclasses, structs) or, if an
annotation contains something from pydantic or an Enum that msgspec does not know, by pydantic. Gemini only takes a subset of
OpenAPI's schema objects, so for Gemini references are inlined and anything that its API refuses is left out.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

import msgspec
from msgspec import inspect as types

from callstream.errors import UsageError

Provider: TypeAlias = Literal[
    "anthropic", "openai", "openai_chat", "openai_responses", "gemini", "gemini_interactions",
    "bedrock", "bedrock_converse", "bedrock_invoke", "cohere", "ollama",
]  # fmt: skip
"""All wires, and short names for two: ``openai`` is Chat Completions, ``bedrock`` is Converse."""
Schema: TypeAlias = dict[str, Any]

GEMINI_KEYS = frozenset(
    {
        "type", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf", "pattern",
        "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum",
    }
)  # fmt: skip
"""The keywords of JSON Schema that Gemini gets as they are."""
FORMATS: Final[dict[str, tuple[str, type]]] = {
    "date-time": ("a date and time such as 2026-01-31T09:30:00Z", datetime),
    "date": ("a date such as 2026-01-31", date),
    "time": ("a time such as 09:30:00Z", time),
    "partial-time": ("a time such as 09:30:00", time),
    "duration": ("a duration such as PT5M", timedelta),
    "uuid": ("a UUID such as 123e4567-e89b-42d3-a456-426614174000", UUID),
    "decimal": ("a decimal number such as 12.50", Decimal),
    "base64": ("a base64 string", bytes),
}
"""The string formats of a tool's types: the words for each, and the type that reads it."""
_GEMINI_FORMATS = {
    "string": {"date-time"},
    "integer": {"int32", "int64"},
    "number": {"float", "double"},
}
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
)


def part_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def part_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def limit(schema: dict[str, Any], word: str) -> float | None:
    """The number that a keyword states."""
    value = schema.get(word)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def declaration(provider: Provider, name: str, description: str, parameters: Schema) -> Schema:
    """The declaration in the form that the provider's own SDK expects in ``tools``."""
    named = (
        {"name": name, "description": description} if description else {"name": name}
    )  # Bedrock refuses an empty one
    match provider:
        case "anthropic" | "bedrock_invoke":
            return {**named, "input_schema": parameters}
        case "openai" | "openai_chat" | "cohere" | "ollama":
            return {"type": "function", "function": {**named, "parameters": parameters}}
        case "openai_responses":
            # The Responses API makes every schema strict unless asked otherwise, and strict forbids optional parameters.
            return {"type": "function", **named, "parameters": parameters, "strict": False}
        case "gemini_interactions":
            return {"type": "function", **named, "parameters": parameters}
        case "bedrock" | "bedrock_converse":
            return {"toolSpec": {**named, "inputSchema": {"json": parameters}}}
        case "gemini":
            # Gemini refuses an object without properties, so a tool without parameters declares none.
            return (
                {**named, "parameters": _GeminiSchema(parameters).write(parameters)}
                if parameters["properties"]
                else named
            )
        case _:
            raise UsageError(f"expected one of the providers {', '.join(get_args(Provider))}, got {provider!r}")


def parameters_schema(tool_name: str, signature: inspect.Signature, described: Mapping[str, str]) -> Schema:
    """The JSON Schema of a tool's arguments. ``described`` has texts for parameters whose annotation has none."""
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool {tool_name!r} takes {parameter}, which no schema can describe; name its parameters")
    schema = _object(tool_name, signature.parameters.values(), described)
    return {word: part for word, part in schema.items() if part or word == "properties"}


def judged_schema(tool_name: str, parameters: Iterable[inspect.Parameter], *, takes_all: bool) -> Schema:
    """The schema by which a tool's arguments are judged: that of its declaration, with no other names allowed.

    Parameters that no schema can describe are left to a framework to fill in.
    """
    return {**_object(tool_name, parameters, {}, is_lenient=True), "additionalProperties": takes_all}


def _object(
    tool_name: str, parameters: Iterable[inspect.Parameter], described: Mapping[str, str], *, is_lenient: bool = False
) -> Schema:
    """``is_lenient``: a parameter that no schema can describe may be anything."""
    definitions: dict[str, Schema] = {}
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for parameter in parameters:
        try:
            properties[parameter.name] = _property(tool_name, parameter, described.get(parameter.name), definitions)
        except UsageError:
            if not is_lenient:
                raise
            properties[parameter.name] = {}
            continue
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    _drop_odd_defaults([*properties.values(), *definitions.values()])
    return {"type": "object", "properties": properties, "required": required, "$defs": definitions}


def _property(
    tool_name: str,
    parameter: inspect.Parameter,
    described: str | None,
    definitions: dict[str, Schema],
) -> Schema:
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    where = f"parameter {parameter.name!r} of tool {tool_name!r}"
    if isinstance(annotation, str):
        raise UsageError(f"{where}: its annotation {annotation!r} names nothing that the function's module knows")
    text = described
    if get_origin(annotation) is Annotated:
        text = next((note for note in get_args(annotation)[1:] if isinstance(note, str)), text)
    schema = model_schema(annotation) if uses_pydantic(annotation) else None
    if schema is not None:
        found = schema.pop("$defs", {})
    else:
        try:
            schema, found = msgspec_schema(annotation, _model_schema_into(definitions))
        except (TypeError, NameError, RuntimeError) as error:
            # The class may not have its fields yet, such as a model that names another; pydantic's errors are RuntimeErrors.
            raise UsageError(f"{where}: no JSON Schema can be made of {_short(annotation)}{_reason(error)}") from error
    for name, definition in found.items():
        _define(definitions, name, definition, where)
    if text:
        schema = {**schema, "description": text}
    default = _json_default(parameter.default)
    return schema if default is msgspec.UNSET else {**schema, "default": default}


def _short(annotation: Any) -> str:
    """The annotation as written in a program, without modules."""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation).replace("<locals>.", ""))


def _reason(error: Exception) -> str:
    if "schema_hook" in str(error):  # msgspec's advice, which does not help the author of a tool
        return "; take a dataclass, a TypedDict, a msgspec struct or a pydantic model"
    first_line = str(error).partition("\n")[0]
    return f" ({first_line})"


def _model_schema_into(definitions: dict[str, Schema]) -> Callable[[type], Schema]:
    """A schema hook for classes that describe themselves; the parts that these refer to go into the definitions."""

    def describe_model(model: type) -> Schema:
        describe: Callable[[], Schema] | None = getattr(model, "model_json_schema", None)
        if describe is None:
            raise NotImplementedError
        schema = describe()
        for name, definition in schema.pop("$defs", {}).items():
            _define(definitions, name, definition, f"model {model.__name__!r}")
        return schema

    return describe_model


def _define(definitions: dict[str, Schema], name: str, definition: Schema, where: str) -> None:
    known = definitions.setdefault(name, definition)
    if known != definition:
        raise UsageError(f"{where}: two different types are named {name!r}; rename one, since a schema names it once")


def _json_default(default: Any) -> Any:
    """The default as JSON, or UNSET if there is none to show."""
    if default is inspect.Parameter.empty or default is None:
        return msgspec.UNSET
    try:
        return json.loads(json.dumps(msgspec.to_builtins(default, str_keys=True), allow_nan=False))
    except (TypeError, NotImplementedError, ValueError):
        return msgspec.UNSET


def _drop_odd_defaults(part: Any) -> None:
    """Removes defaults that JSON cannot express, such as infinity: with them no request could be written."""
    if isinstance(part, list):
        for each in part:
            _drop_odd_defaults(each)
    elif isinstance(part, dict):
        for each in part.values():
            _drop_odd_defaults(each)
        if "default" in part and not _is_json(part["default"]):
            del part["default"]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


# -- Gemini --


class _GeminiSchema:
    """Writes schemas in Gemini's dialect: with references inlined, and without anything that its API refuses.

    This class is strict, since a tool's author can change the schema. Parts that are not a schema are left out.
    """

    keys = GEMINI_KEYS

    def __init__(self, schema: Schema) -> None:
        definitions = schema.get("$defs") or schema.get("definitions")
        self._definitions: Mapping[str, Any] = definitions if isinstance(definitions, dict) else {}

    def resolve(self, name: str, within: tuple[str, ...]) -> Schema | None:
        """The definition of that name, inside those named ``within``; None for any object."""
        if name in within:
            raise UsageError(f"Gemini takes no recursive schema, and {name!r} contains itself; flatten it")
        definition = self._definitions.get(name)
        return definition if isinstance(definition, dict) else None

    def write(self, schema: Any, within: tuple[str, ...] = ()) -> Schema:
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.rsplit("/", 1)[-1]
            target = self.resolve(name, within)
            if target is None:
                return {"type": "object"}
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self.write({**target, **beside}, (*within, name))
        for part in part_list(schema.get("allOf")):
            schema = {**self.write(part, within), **schema}
        written = {key: value for key, value in schema.items() if key in self.keys}
        properties = written.pop("properties", None)
        if isinstance(properties, dict):
            written["properties"] = {name: self.write(part, within) for name, part in properties.items()}
        self._write_items(written, schema, within)
        self._write_alternatives(written, schema, within)
        _write_enum(written, schema)
        kind = written.get("type")
        if isinstance(kind, str) and schema.get("format") in _GEMINI_FORMATS.get(kind, ()):
            written["format"] = schema["format"]
        elif kind == "string" and schema.get("format") in FORMATS:
            _add_text(written, f"Expected: {FORMATS[schema['format']][0]}.")
        _write_limits(written, schema)
        return written

    def _write_items(self, written: Schema, schema: Schema, within: tuple[str, ...]) -> None:
        """One schema for all items, because Gemini has no tuples."""
        places = [self.write(part, within) for part in part_list(schema.get("prefixItems"))]
        if isinstance(schema.get("items"), dict):
            places.append(self.write(schema["items"], within))
        distinct = [place for number, place in enumerate(places) if place not in places[:number]]
        written.pop("items", None)
        if distinct:
            written["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}

    def _write_alternatives(self, written: Schema, schema: Schema, within: tuple[str, ...]) -> None:
        """Alternatives without null, for which Gemini has ``nullable``."""
        alternatives = [*part_list(schema.get("anyOf")), *part_list(schema.get("oneOf"))]
        if isinstance(schema.get("type"), list):
            del written["type"]
            alternatives += [{"type": kind} for kind in schema["type"]]
        if not alternatives:
            return
        written.pop("anyOf", None)
        others = [part for part in alternatives if not (isinstance(part, dict) and part.get("type") == "null")]
        if len(others) < len(alternatives):
            written["nullable"] = True
        if len(others) == 1:
            for key, value in self.write(others[0], within).items():
                written.setdefault(key, value)
        else:
            written["anyOf"] = [self.write(part, within) for part in others]


def _write_enum(written: Schema, schema: Schema) -> None:
    """Gemini only takes enums of strings; other choices are named in the description."""
    choices = [schema["const"]] if "const" in schema else part_list(schema.get("enum"))
    written.pop("enum", None)
    if not choices:
        return
    values = [choice for choice in choices if choice is not None]
    if len(values) < len(choices):
        written["nullable"] = True
    kinds = {name for value in values for kind, name in _TYPE_NAMES if type(value) is kind}
    if len(kinds) == 1:
        written["type"] = kinds.pop()
    if written.get("type") == "string":
        written["enum"] = values
    else:
        _add_text(written, "One of: " + ", ".join(json.dumps(value, ensure_ascii=False) for value in values) + ".")


def _write_limits(written: Schema, schema: Schema) -> None:
    """Gemini has no exclusive limits: those of integers are moved by one, others are named in the description."""
    is_integer = written.get("type") == "integer"
    least, above = limit(schema, "minimum"), limit(schema, "exclusiveMinimum")
    if above is not None and is_integer and math.isfinite(above):
        written["minimum"] = math.floor(above) + 1 if least is None else max(math.floor(above) + 1, least)
    elif above is not None:
        _add_text(written, f"Greater than {above}.")
    most, below = limit(schema, "maximum"), limit(schema, "exclusiveMaximum")
    if below is not None and is_integer and math.isfinite(below):
        written["maximum"] = math.ceil(below) - 1 if most is None else min(math.ceil(below) - 1, most)
    elif below is not None:
        _add_text(written, f"Less than {below}.")
    step = limit(schema, "multipleOf")
    if step is not None:
        _add_text(written, f"A multiple of {step}.")


def _add_text(written: Schema, text: str) -> None:
    known = written.get("description")
    written["description"] = f"{known} {text}" if isinstance(known, str) and known else text


_MAX_NESTED = 3
_MAX_REFERENCES = 256
_UNFOLDED = 64 * 1024
"""Characters of JSON that references may add to a schema, in addition to twice its own size."""


class _ClientSchema(_GeminiSchema):
    """A schema sent by a client, which may be anything and cannot be changed here, and must not grow without bound.

    Definitions that refer to each other unfold to many times their size, and those that refer to themselves without end.
    So a definition is put into itself at most ``_MAX_NESTED`` deep, and no schema gets more than ``_MAX_REFERENCES`` in
    all, or grows by more than ``_UNFOLDED`` plus twice its size; any further reference becomes some object.
    """

    keys = GEMINI_KEYS | {"default", "propertyOrdering"}

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._sizes: dict[str, int] = {}
        self._left = _MAX_REFERENCES
        self._room = _UNFOLDED + 2 * _size(schema) if self._definitions else 0

    def resolve(self, name: str, within: tuple[str, ...]) -> Schema | None:
        target = self._definitions.get(name)
        if not isinstance(target, dict) or not self._left or within.count(name) >= _MAX_NESTED:
            return None
        if name not in self._sizes:
            self._sizes[name] = _size(target)
        if self._sizes[name] > self._room:
            return None
        self._left -= 1
        self._room -= self._sizes[name]
        return target


def _size(schema: Schema) -> int:
    return len(json.dumps(schema, default=str))


def gemini_schema(schema: Any) -> Schema:
    """A client's JSON Schema in Gemini's dialect. References are inlined, up to a limit."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    return _ClientSchema(schema).write(schema)


# -- what msgspec leaves out of a schema -------------------------------------------------------------------------------
#
# msgspec writes datetime and time without a format, because they need no offset, and sorts the values of Literal and Enum.
# Here dates have their formats, and choices are in the order in which they were declared.


REF = "#/$defs/"
_FORMATS: dict[type[types.Type], str] = {types.DateTimeType: "date-time", types.TimeType: "time"}


def msgspec_schema(annotation: Any, hook: Callable[[type], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema, and the definitions that it refers to. ``hook`` describes classes that msgspec does not know."""
    (schema,), definitions = msgspec.json.schema_components([annotation], schema_hook=hook, ref_template=REF + "{name}")
    _add_formats(types.type_info(annotation), schema, definitions, set())
    orders = {frozenset(map(repr, order)): order for order in reversed(list(_declared_orders(annotation)))}
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
    """The members as msgspec writes them: structs after other types, and null last."""

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


def _declared_orders(annotation: Any) -> Iterator[list[Any]]:
    """The values of each ``Literal`` and ``Enum`` in an annotation and in the fields of its classes."""
    for part in parts_of(annotation, has_fields=_is_described_by_fields):
        if get_origin(part) is Literal:
            yield list(get_args(part))
        elif isinstance(part, type) and issubclass(part, enum.Enum):
            yield [member.value for member in part]


def _is_described_by_fields(class_: type) -> bool:
    is_tuple = issubclass(class_, tuple) and hasattr(class_, "_fields")
    return _may_be_pydantics(class_) or issubclass(class_, msgspec.Struct) or is_tuple


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


# -- annotations that contain something from pydantic ------------------------------------------------------------------
#
# pydantic is only imported for these, so a program without them does not need it.


def uses_pydantic(annotation: Any) -> bool:
    """Whether something for pydantic occurs in the annotation, or in a field of its dataclasses and typed dicts.

    That is something of its own, or an enum that msgspec does not know, if pydantic is there.
    """
    parts = [*parts_of(annotation)]
    return any(map(is_of_pydantic, parts)) or (has_pydantic() and any(map(_is_odd_enum, parts)))


def has_odd_enum(annotation: Any) -> bool:
    """Whether an enum that msgspec does not know occurs in the annotation, or in a field of its classes."""
    return any(map(_is_odd_enum, parts_of(annotation, has_fields=_is_described_by_fields)))


def has_pydantic() -> bool:
    return importlib.util.find_spec("pydantic") is not None


def _is_odd_enum(part: Any) -> bool:
    """Whether it is an enum that msgspec does not know: its values are neither all strings nor all integers."""
    if not (isinstance(part, type) and issubclass(part, enum.Enum) and len(part)):
        return False
    try:
        msgspec.json.Decoder(part)
    except TypeError:
        return True
    return False


def _may_be_pydantics(class_: type) -> bool:
    return dataclasses.is_dataclass(class_) or is_typeddict(class_)


def parts_of(
    annotation: Any, *, has_fields: Callable[[type], bool] = _may_be_pydantics, done: set[type] | None = None
) -> Iterator[Any]:
    """The annotation, all its parts, and the annotations of its fields. Each class is looked into once."""
    done = set() if done is None else done
    yield annotation
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    inner = [each for each in get_args(annotation) if isinstance(each, type) or get_origin(each) is not None]
    if isinstance(annotation, type) and annotation not in done and has_fields(annotation):
        done.add(annotation)
        try:
            inner += get_type_hints(annotation, include_extras=True).values()
        except (NameError, TypeError):
            pass  # names that perhaps only a type checker knows
    for part in inner:
        yield from parts_of(part, has_fields=has_fields, done=done)


def is_of_pydantic(part: Any) -> bool:
    """Whether a class or a note in ``Annotated`` is for pydantic."""
    if hasattr(part, "__get_pydantic_core_schema__") or hasattr(part, "__pydantic_core_schema__"):
        return True
    return type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def model_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema that pydantic makes for the annotation; None if it cannot."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic_core import PydanticSerializationError

    try:
        return TypeAdapter(annotation).json_schema(ref_template=REF + "{model}")
    except (PydanticUserError, PydanticSerializationError, NameError):
        return None
