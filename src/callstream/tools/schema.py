"""What a provider is told about a tool: its name, its description and the JSON Schema of its parameters.

The schema comes from the annotations through msgspec (builtins, Literal, Enum, TypedDict, dataclasses, structs) and,
where a class has one, from its own ``model_json_schema``. Gemini takes a subset of OpenAPI's schema objects only, so
for it references are written out and what its API refuses is left out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from callstream.errors import UsageError

Provider: TypeAlias = Literal["anthropic", "openai", "openai_chat", "openai_responses", "gemini"]
"""``openai`` and ``openai_chat`` are the same: Chat Completions."""
Schema: TypeAlias = dict[str, Any]

_REF = "#/$defs/"
GEMINI_KEYS = frozenset(
    {
        "type", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf", "pattern",
        "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum",
    }
)  # fmt: skip
"""The words of JSON Schema that Gemini is told as they are."""
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


def declaration(provider: Provider, name: str, description: str, parameters: Schema) -> Schema:
    """The declaration in the form that the provider's own SDK takes in its ``tools``."""
    match provider:
        case "anthropic":
            return {
                "name": name,
                "description": description,
                "input_schema": parameters,
            }
        case "openai" | "openai_chat":
            function = {
                "name": name,
                "description": description,
                "parameters": parameters,
            }
            return {"type": "function", "function": function}
        case "openai_responses":
            # The Responses API makes every schema strict unless told otherwise, and strict forbids optional parameters.
            plain = {"name": name, "description": description, "parameters": parameters}
            return {"type": "function", **plain, "strict": False}
        case "gemini":
            told = {"name": name, "description": description}
            # Gemini refuses an object without properties, so a tool without parameters declares none.
            return {**told, "parameters": _for_gemini(parameters)} if parameters["properties"] else told
        case _:
            raise UsageError(f"expected one of the providers {', '.join(get_args(Provider))}, got {provider!r}")


def parameters_schema(tool_name: str, signature: inspect.Signature, described: Mapping[str, str]) -> Schema:
    """The JSON Schema of a tool's arguments. ``described`` gives texts for parameters whose annotation has none."""
    definitions: dict[str, Schema] = {}
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool {tool_name!r} takes {parameter}, which no schema can describe; name its parameters")
        properties[parameter.name] = _property(tool_name, parameter, described.get(parameter.name), definitions)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if definitions:
        schema["$defs"] = definitions
    return schema


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
    try:
        (schema,), found = msgspec.json.schema_components(
            [annotation],
            schema_hook=_model_schema_into(definitions),
            ref_template=_REF + "{name}",
        )
    except (TypeError, NotImplementedError) as error:
        raise UsageError(f"{where}: no JSON Schema can be made of {annotation!r} ({error})") from error
    for name, definition in found.items():
        _define(definitions, name, definition, where)
    if text:
        schema = {**schema, "description": text}
    default = _json_default(parameter.default)
    return schema if default is msgspec.UNSET else {**schema, "default": default}


def _model_schema_into(definitions: dict[str, Schema]) -> Callable[[type], Schema]:
    """A schema hook for classes that describe themselves; the parts that they refer to go into the definitions."""

    def model_schema(model: type) -> Schema:
        describe: Callable[[], Schema] | None = getattr(model, "model_json_schema", None)
        if describe is None:
            raise NotImplementedError
        schema = describe()
        for name, definition in schema.pop("$defs", {}).items():
            _define(definitions, name, definition, f"model {model.__name__!r}")
        return schema

    return model_schema


def _define(definitions: dict[str, Schema], name: str, definition: Schema, where: str) -> None:
    known = definitions.setdefault(name, definition)
    if known != definition:
        raise UsageError(f"{where}: two different types are named {name!r}; rename one, since a schema names it once")


def _json_default(default: Any) -> Any:
    """The default as JSON, or UNSET where there is none to show."""
    if default is inspect.Parameter.empty or default is None:
        return msgspec.UNSET
    try:
        return msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, NotImplementedError):
        return msgspec.UNSET


def _for_gemini(schema: Schema) -> Schema:
    """Strict, for the tool's author can mend his schema: it raises UsageError where one contains itself."""
    return _plain(schema, schema.get("$defs", {}), ())


def _plain(schema: Schema, definitions: dict[str, Schema], inside: tuple[str, ...]) -> Schema:
    """The schema without references and in Gemini's words alone."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        if name in inside:
            raise UsageError(f"Gemini takes no recursive schema, and {name!r} contains itself; flatten it")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**definitions[name], **beside}, definitions, (*inside, name))
    for part in schema.get("allOf", ()):
        schema = {**_plain(part, definitions, inside), **schema}
    plain = {key: value for key, value in schema.items() if key in GEMINI_KEYS}
    if "properties" in plain:
        properties = plain["properties"].items()
        plain["properties"] = {name: _plain(part, definitions, inside) for name, part in properties}
    _plain_items(plain, schema, definitions, inside)
    _plain_alternatives(plain, schema, definitions, inside)
    _plain_enum(plain, schema)
    if schema.get("format") in _GEMINI_FORMATS.get(plain.get("type", ""), ()):
        plain["format"] = schema["format"]
    return plain


def _plain_items(
    plain: Schema,
    schema: Schema,
    definitions: dict[str, Schema],
    inside: tuple[str, ...],
) -> None:
    """One schema for all items, because Gemini knows no tuples."""
    places = [_plain(part, definitions, inside) for part in schema.get("prefixItems", ())]
    if isinstance(schema.get("items"), dict):
        places.append(_plain(schema["items"], definitions, inside))
    distinct = list(_distinct(places))
    if distinct:
        plain["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    else:
        plain.pop("items", None)


def _plain_alternatives(
    plain: Schema,
    schema: Schema,
    definitions: dict[str, Schema],
    inside: tuple[str, ...],
) -> None:
    """Alternatives without null, which Gemini calls nullable."""
    types = schema.get("type")
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if isinstance(types, list):
        del plain["type"]
        alternatives += [{"type": kind} for kind in types]
    if not alternatives:
        return
    plain.pop("anyOf", None)
    others = [part for part in alternatives if part.get("type") != "null"]
    if len(others) < len(alternatives):
        plain["nullable"] = True
    if len(others) == 1:
        for key, value in _plain(others[0], definitions, inside).items():
            plain.setdefault(key, value)
    else:
        plain["anyOf"] = [_plain(part, definitions, inside) for part in others]


def _plain_enum(plain: Schema, schema: Schema) -> None:
    """Gemini takes an enum of strings only; other choices are told in the description."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is None:
        return
    plain.pop("enum", None)
    values = [choice for choice in choices if choice is not None]
    if len(values) < len(choices):
        plain["nullable"] = True
    kinds = {name for value in values for kind, name in _TYPE_NAMES if type(value) is kind}
    if len(kinds) == 1:
        plain["type"] = kinds.pop()
    if plain.get("type") == "string":
        plain["enum"] = values
    else:
        text = "One of: " + ", ".join(str(value) for value in values) + "."
        plain["description"] = f"{plain['description']} {text}" if plain.get("description") else text


def _distinct(schemas: list[Schema]) -> Iterator[Schema]:
    seen: list[Schema] = []
    for schema in schemas:
        if schema not in seen:
            seen.append(schema)
            yield schema


# -- schemas that clients send --

_CLIENT_KEYS = GEMINI_KEYS | {"format", "default", "propertyOrdering"}
_MAX_NESTED = 3
_MAX_REFERENCES = 256
_UNFOLDED = 64 * 1024
"""Characters of JSON that references may add to a schema, beside twice its own."""


class _Definitions:
    """What a schema's references mean.

    Definitions that refer to each other unfold to many times their size, and those that refer to themselves for ever. So
    one is put into itself no more than ``_MAX_NESTED`` deep, and no schema gets more than ``_MAX_REFERENCES`` in all, nor
    grows by more than ``_UNFOLDED`` and twice its size; any other reference is some object.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        definitions = schema.get("$defs") or schema.get("definitions") or {}
        self._known: dict[str, Any] = definitions if isinstance(definitions, dict) else {}
        self._sizes: dict[str, int] = {}
        self._left = _MAX_REFERENCES
        self._room = _UNFOLDED + 2 * _size(schema) if self._known else 0

    def resolve(self, name: str, within: tuple[str, ...]) -> dict[str, Any] | None:
        """What the name means inside of the definitions ``within``; None for some object."""
        target = self._known.get(name)
        if not isinstance(target, dict) or not self._left or within.count(name) >= _MAX_NESTED:
            return None
        if name not in self._sizes:
            self._sizes[name] = _size(target)
        if self._sizes[name] > self._room:
            return None
        self._left -= 1
        self._room -= self._sizes[name]
        return target


def _size(schema: dict[str, Any]) -> int:
    return len(json.dumps(schema, default=str))


def gemini_schema(schema: Any) -> dict[str, Any]:
    """A client's JSON Schema in the words that Gemini takes. References are put in their places, to a limit.

    This is lenient where ``declaration`` is strict: a tool's author can mend a recursive schema, while a client's schema
    may be anything and is not ours to mend. It must not grow without bound; the rest of it stays as the client wrote it.
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    return _clean_object(schema, _Definitions(schema), ())


def _clean_object(schema: dict[str, Any], definitions: _Definitions, within: tuple[str, ...]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rsplit("/", 1)[-1]
        target = definitions.resolve(name, within)
        if target is None:
            return {"type": "object"}
        described = {key: value for key, value in schema.items() if key in ("description", "title", "default")}
        return _clean_object({**target, **described}, definitions, (*within, name))
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            cleaned[key] = {name: _clean(each, definitions, within) for name, each in value.items()}
        elif key == "items":
            cleaned[key] = _clean(value, definitions, within)
        elif key in ("anyOf", "oneOf") and isinstance(value, list):
            cleaned["anyOf"] = [_clean(each, definitions, within) for each in value]
        elif key == "const":
            cleaned["enum"] = [value]
        elif key == "type" and isinstance(value, list):
            _choose_type(cleaned, value)
        elif key in _CLIENT_KEYS:
            cleaned[key] = value
    if not all(isinstance(value, str) for value in cleaned.get("enum", ())):
        del cleaned["enum"]  # Gemini knows enumerations of strings alone
    return cleaned


def _clean(schema: Any, definitions: _Definitions, within: tuple[str, ...]) -> dict[str, Any]:
    return _clean_object(schema, definitions, within) if isinstance(schema, dict) else {}


def _choose_type(cleaned: dict[str, Any], kinds: list[Any]) -> None:
    real = [kind for kind in kinds if kind != "null"]
    if len(real) < len(kinds):
        cleaned["nullable"] = True
    if len(real) == 1:
        cleaned["type"] = real[0]
    elif real:
        cleaned["anyOf"] = [{"type": kind} for kind in real]
