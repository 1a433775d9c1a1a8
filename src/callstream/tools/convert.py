"""Values of a tool's annotated types, made from the JSON that a model wrote.

msgspec converts the types that it knows: builtins, date and datetime, UUID, Literal, Enum, TypedDict, dataclasses, structs,
and ``Annotated`` with its ``Meta``. pydantic converts annotations that contain something from pydantic: a model, one of its
dataclasses, ``Field``; or an Enum that msgspec does not know, whose values are neither all strings nor all integers. It is
only imported for these, so other programs do not need it. Both are strict, as for JSON: ``"5"`` is not an integer, but
``5.0`` is one, and ``"2026-01-31"`` is a date. A pydantic model follows its own config, but true is never its choice 1.

A value that already has its type passes, because some frameworks convert first. Values that neither library can judge pass
as well: those of parameters without annotation, or of unknown classes, such as a framework's context.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, TypeAlias, is_typeddict

import msgspec

from callstream.errors import InvalidArguments, WireError, message_of
from callstream.jsontext.path import Path, parse_path
from callstream.tools.check import Fault, Misfit, StreamCheck, UnknownArgument, WrongChoice, describe, nearest, show
from callstream.tools.check import faults as find_faults
from callstream.tools.keywords import TYPE_WORDS, choices_of
from callstream.tools.parameters import Filled, Streamed
from callstream.tools.schema import (
    FORMATS,
    REF,
    has_odd_enum,
    has_pydantic,
    is_of_pydantic,
    judged_schema,
    model_schema,
    msgspec_schema,
    parts_of,
    uses_pydantic,
)

Convert: TypeAlias = Callable[[Any], Any]
"""Returns the value in the annotated type, or raises ``Misfit``."""

_AT: Final = re.compile(r" - at `(?:key in )?(\$[^`]*)`$")
_EXPECTED: Final = re.compile(r"^Expected `([^`]+)`, got `[^`]+`$")
_TEXTS: Final = {
    "Invalid RFC3339 encoded datetime": FORMATS["date-time"][0],
    "Invalid RFC3339 encoded date": FORMATS["date"][0],
    "Invalid RFC3339 encoded time": FORMATS["time"][0],
    "Invalid ISO8601 duration": FORMATS["duration"][0],
    "Invalid UUID": FORMATS["uuid"][0],
    "Invalid base64 encoded string": FORMATS["base64"][0],
    "Invalid decimal string": FORMATS["decimal"][0],
}


typed_arguments: ContextVar[Mapping[str, Any] | None] = ContextVar("callstream_typed_arguments", default=None)
"""The arguments of the call in this context, if they have their types already: no value is converted twice."""


class Arguments:
    """The arguments of one tool: how each parameter's value is made from what a model wrote.

    Nothing is built before the first call, because a class may not have its fields yet when the tool is declared.
    """

    def __init__(self, tool_name: str, signature: Signature) -> None:
        self._tool_name = tool_name
        self.parameters = {
            p.name: p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        self._converts: dict[str, Convert | None] = {}
        self._judged: dict[str, Any] | None = None

    def convert(self, args: Mapping[str, Any], *, check_names: bool = True) -> dict[str, Any]:
        """All arguments of a call, with values of the annotated types. Raises ``InvalidArguments`` with every fault.

        ``check_names=False`` refuses no argument because of its name: a host fills in some itself. If a value does not fit,
        wrong names are still reported with it.
        """
        converted, faults = self.convert_values(args)
        if check_names or faults:
            faults = self._name_faults(args, is_hosts=not check_names) + faults
        if faults:
            raise self._invalid(faults)
        return converted

    def convert_one(self, name: str, value: Any) -> Any:
        """The value of one parameter. Raises ``InvalidArguments``."""
        converted, faults = self.convert_values({name: value})
        if faults:
            raise self._invalid(faults)
        return converted[name]

    def convert_values(self, args: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
        """The values that fit, and the faults of the others."""
        typed = typed_arguments.get() or {}
        converted: dict[str, Any] = {}
        faults: list[Fault] = []
        for name, value in args.items():
            try:
                converted[name] = value if name in typed and typed[name] is value else self._convert(name, value)
            except Misfit as misfit:
                faults += misfit.within((name,))
        return converted, faults

    def fill(self, names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Filled:
        """The arguments of a Python call, converted. ``names`` are those of the positional parameters."""
        placed = dict(zip(names, args, strict=False))
        if placed.keys() & kwargs.keys():
            return args, kwargs  # Python's own error
        converted, faults = self.convert_values({**placed, **kwargs})
        if faults:
            raise self._invalid(faults)
        beyond = args[len(placed) :]
        return (*(converted[name] for name in placed), *beyond), {name: converted[name] for name in kwargs}

    def stream_check(self) -> StreamCheck:
        """A check that judges arguments of the tool while they are written."""
        if self._judged is None:
            self._judged = judged_schema(self._tool_name, self.parameters.values(), takes_all=self.takes_all)
        return StreamCheck(self._judged)

    def _invalid(self, faults: Sequence[Fault]) -> InvalidArguments:
        return InvalidArguments(self._tool_name, describe(faults, self.parameters), faults)

    def _convert(self, name: str, value: Any) -> Any:
        parameter = self.parameters.get(name)
        if parameter is None or isinstance(value, Streamed):
            return value
        convert = self._converter(name)
        if convert is None:
            return value
        try:
            return convert(value)
        except Misfit:
            if value is None and parameter.default is not parameter.empty:
                return parameter.default  # models write null for arguments that they leave out
            raise

    def missing(self, args: Mapping[str, Any]) -> list[str]:
        """The required parameters without a value: the model left them out, or a host passes them when it calls the tool."""
        return [name for name, p in self.parameters.items() if p.default is p.empty and name not in args]

    def _converter(self, name: str) -> Convert | None:
        if name not in self._converts:
            self._converts[name] = converter(self.parameters[name].annotation)
        return self._converts[name]

    def _name_faults(self, args: Mapping[str, Any], *, is_hosts: bool) -> list[Fault]:
        missing = self.missing(args)
        if is_hosts:  # a host fills in values that no model can write
            missing = [name for name in missing if self._converter(name) is not None]
        unknown = [] if self.takes_all else [name for name in args if name not in self.parameters]
        return [Fault((name,), "a value") for name in missing] + [
            UnknownArgument((name,), "nothing", show(args[name])) for name in unknown
        ]


def converter(annotation: Any) -> Convert | None:
    """The converter for values of the annotation; None if there is nothing to convert or to judge."""
    if annotation is Any or annotation is Parameter.empty or isinstance(annotation, str):
        return None
    convert = model_converter(annotation) if uses_pydantic(annotation) else None
    convert = convert or _msgspec_converter(annotation) or _refusal(annotation)
    if convert is None:
        return None
    is_class = isinstance(annotation, type) and annotation.__module__ != "builtins" and not is_typeddict(annotation)

    def convert_contained(value: Any) -> Any:
        if is_class and isinstance(value, annotation):
            return value
        try:
            try:
                return convert(value)
            except Misfit:
                whole = _with_integers(value) if is_json(value) else value
                if whole is value:
                    raise
                return convert(whole)
        except Misfit:
            raise
        except Exception as error:  # a bug in a validator; the call must not run, but the stream must not break
            rule = f"it could not be validated ({type(error).__name__}: {message_of(error)})"
            raise Misfit([Fault((), "a valid value", show(value), rule)]) from error

    return convert_contained


def _refusal(annotation: Any) -> Convert | None:
    """Refuses every value if neither library can make one only because of an enum; else None."""
    if not has_odd_enum(annotation):
        return None
    why = "cannot read the rest of the type" if has_pydantic() else "is not installed"
    rule = f"no value fits its type, which has an enum that only pydantic can read, and pydantic {why}"

    def refuse(value: Any) -> Any:
        raise Misfit([Fault((), "nothing", show(value), rule)])

    return refuse


def _with_integers(value: Any) -> Any:
    """The value with integers instead of whole floats: to JSON Schema 5.0 is an integer, and models write that.

    Returns the value itself if it has no such float.
    """
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            members = {name: _with_integers(member) for name, member in value.items()}
            return value if all(members[name] is member for name, member in value.items()) else members
        case list():
            items = [_with_integers(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        case _:
            return value


# -- msgspec --


def _msgspec_converter(annotation: Any) -> Convert | None:
    models: dict[type, Convert | None] = {}
    unknown: list[type] = []  # a Meta may describe a class that cannot be made

    def convert_model(class_: type, value: Any) -> Any:
        convert = models[class_]
        return value if convert is None else convert(value)

    def note_model(class_: type) -> dict[str, Any]:
        if not is_of_pydantic(class_):
            unknown.append(class_)
            raise NotImplementedError
        models[class_] = converter(class_)
        return {"type": "object"}

    try:  # this shows which types msgspec knows
        schema, definitions = msgspec_schema(annotation, note_model)
    except (TypeError, NotImplementedError, NameError):
        return None
    if unknown:
        return None
    root = {"allOf": [schema], "$defs": definitions}

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, annotation, strict=True, str_keys=True, dec_hook=convert_model)
        except msgspec.ValidationError as error:
            text, path = _split_path(str(error))
            # msgspec names only the first fault, and no keys; the schema finds all faults but those of models.
            found = find_faults(root, value, lenient=False, formats=True) if is_json(value) else []
            if isinstance(error.__cause__, Misfit):
                found += error.__cause__.within(path)
            raise Misfit(found or [_msgspec_fault(text, path, value)]) from None

    return convert


def _split_path(text: str) -> tuple[str, Path]:
    """msgspec's message, and the place that it names, up to the first ``[...]``, which it writes for any key."""
    at = _AT.search(text)
    if at is None:
        return text, ()
    try:
        return text[: at.start()], parse_path(at[1].split("[...]")[0])
    except WireError:  # msgspec writes names unescaped
        return text[: at.start()], ()


def _msgspec_fault(text: str, path: Path, value: Any) -> Fault:
    try:
        for part in path:
            value = value[part]
    except (KeyError, IndexError, TypeError):
        path = ()
    expected = _EXPECTED.match(text)
    if expected is not None:
        return Fault(path, " or ".join(TYPE_WORDS.get(name, name) for name in expected[1].split(" | ")), show(value))
    if text in _TEXTS:
        return Fault(path, _TEXTS[text], show(value))
    return Fault(path, text, show(value), rule=text[0].lower() + text[1:])


# -- pydantic --


_PYDANTIC_WORDS: Final = {
    **TYPE_WORDS,
    **dict.fromkeys(("list", "tuple", "set"), TYPE_WORDS["array"]),
    **dict.fromkeys(("dict", "model", "dataclass"), TYPE_WORDS["object"]),
    "date": FORMATS["date"][0],
    "datetime": FORMATS["date-time"][0],
    "time": FORMATS["time"][0],
    "time_delta": FORMATS["duration"][0],
    "uuid": FORMATS["uuid"][0],
    "decimal": FORMATS["decimal"][0],
    "int_from_float": TYPE_WORDS["integer"],
    "none_required": TYPE_WORDS["null"],
    "date_from_datetime": FORMATS["date"][0],
    "datetime_from_date": FORMATS["date-time"][0],
    "greater_than_equal": "at least {ge}",
    "greater_than": "greater than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_pattern_mismatch": "a string that matches {pattern!r}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
}
"""Our words for pydantic's errors, by the type's name: for a wrong type (``…_type``), or a failed parse (``…_parsing``)."""
_JSON: Final = (str, int, float, bool, type(None))


def model_converter(annotation: Any) -> Callable[[Any], Any] | None:
    """pydantic's converter for values of the annotation; None if it cannot."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:  # in a tuple, because a config can only be passed for a type that has none of its own
        adapter: Any = TypeAdapter(tuple[annotation], config=ConfigDict(strict=True))
    except (PydanticUserError, NameError):
        return None

    @cache
    def schemas() -> tuple[Any, Any]:
        schema = model_schema(annotation)
        return schema, _with_equals(schema)

    def convert(value: Any) -> Any:
        try:
            converted = _validate(adapter, value)[0]
        except ValidationError as error:
            found = _pydantic_faults(error.errors(include_url=False), value)
            raise Misfit(_with_known_fields(found, annotation, value)) from None
        mistaken = _mistaken_choices(*schemas(), value) if is_json(value) else []
        if mistaken:
            raise Misfit(mistaken)
        return converted

    return convert


def _mistaken_choices(schema: Any, loose: Any, value: Any) -> list[Fault]:
    """The faults of values that pydantic takes for a choice because Python does: true for 1, and 1 for true.

    ``loose`` is the schema ``_with_equals``. What does not fit that either is left to the model's own config.
    """
    if loose == schema:
        return []
    others = {fault.path for fault in find_faults(loose, value, lenient=False)}
    return [fault for fault in find_faults(schema, value, lenient=False) if fault.path not in others]


def _with_equals(schema: Any) -> Any:
    """The schema, with true beside each choice 1, and so on: with every value that Python takes for a choice."""
    if isinstance(schema, list):
        return [_with_equals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    choices = choices_of(schema) or []
    equals = [int(each) if isinstance(each, bool) else bool(each) for each in choices if each in (0, 1)]
    if equals:
        schema = {word: part for word, part in schema.items() if word not in ("const", "type")}
        return {**schema, "enum": [*choices, *equals]}
    return {word: _with_equals(part) for word, part in schema.items()}


def _with_known_fields(faults: list[Fault], annotation: Any, value: Any) -> list[Fault]:
    """The faults, with the known names added to those about unknown ones: pydantic's schema has them, its errors do not."""
    if not any(isinstance(fault, UnknownArgument) for fault in faults) or not is_json(value):
        return faults
    by_schema = {
        fault.path: fault
        for fault in find_faults(model_schema(annotation), value, lenient=False)
        if isinstance(fault, UnknownArgument)
    }
    return [by_schema.get(fault.path, fault) if isinstance(fault, UnknownArgument) else fault for fault in faults]


def _validate(adapter: Any, value: Any) -> Any:
    if is_json(value):
        try:
            text = json.dumps([value], ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot express
            return adapter.validate_python((value,))
        return adapter.validate_json(text)
    return adapter.validate_python((value,))


def is_json(value: Any) -> bool:
    """Whether a value is JSON, as a model wrote it, and not made by a framework."""
    if type(value) is dict:
        return all(type(name) is str and is_json(member) for name, member in value.items())
    if type(value) is list:
        return all(map(is_json, value))
    return type(value) in _JSON


def _expected(kind: str, limits: Mapping[str, Any]) -> str | None:
    """What was expected, in the words of every other fault; None for errors that only pydantic has words for."""
    words = _PYDANTIC_WORDS.get(kind.removesuffix("_type").removesuffix("_parsing"))
    try:
        return None if words is None else words.format_map(limits)
    except KeyError:  # a validator may raise an error of that kind without its limit
        return None


def _pydantic_faults(errors: Sequence[Mapping[str, Any]], value: Any) -> list[Fault]:
    """The faults of a value. For a union pydantic reports every alternative: only the best fit's faults are kept."""
    found: list[Fault] = []
    unions: dict[Path, dict[str, list[Fault]]] = {}
    for error in errors:
        path, label = _place_in(value, error) if is_json(value) else (tuple(error["loc"][1:]), None)
        fault = _pydantic_fault(error, path)
        if label is None:
            found.append(fault)
        else:
            unions.setdefault(label[:-1], {}).setdefault(str(label[-1]), []).append(fault)
    return found + [
        fault for union, alternatives in unions.items() for fault in nearest([*alternatives.values()], union)
    ]


def _place_in(value: Any, error: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Where an error is, and the first of its steps that is not part of the path, such as an alternative's name."""
    steps: Path = tuple(error["loc"][1:])
    path: Path = ()
    label: Path | None = None
    for number, step in enumerate(steps, 1):
        is_missing = number == len(steps) and error["type"] == "missing"
        if isinstance(step, int) or is_missing or _has(value, step):
            path = (*path, step)
            value = value[step] if _has(value, step) else None
        else:
            label = label or (*path, step)
    return path, label


def _has(value: Any, step: str | int) -> bool:
    return step in value if isinstance(value, dict) else isinstance(value, list) and step in range(len(value))


def _pydantic_fault(error: Mapping[str, Any], path: Path) -> Fault:
    message: str = error["msg"]
    expected = _expected(error["type"], error.get("ctx", {}))
    if expected is not None:
        return Fault(path, expected, show(error["input"]))
    match error["type"]:
        case "union_tag_invalid" | "union_tag_not_found" if isinstance(error["input"], dict):
            return _tag_fault(error, path)
        case "missing":
            return Fault(path, "a value")
        case "extra_forbidden":
            return UnknownArgument(path, "nothing", show(error["input"]))
        case "literal_error" | "enum":
            return WrongChoice(path, message.removeprefix("Input should be "), show(error["input"]))
        case _ if message.startswith("Input should be "):
            return Fault(path, message.removeprefix("Input should be "), show(error["input"]))
        case "value_error":
            return Fault(path, message, show(error["input"]), rule=message.removeprefix("Value error, "))
        case _:
            return Fault(path, message, show(error["input"]), rule=message[0].lower() + message[1:])


def _tag_fault(error: Mapping[str, Any], path: Path) -> Fault:
    """The fault of the field that should say which alternative of a union is meant."""
    field = error["ctx"]["discriminator"].strip("'")
    if field not in error["input"]:
        return Fault((*path, field), "a value")
    return WrongChoice((*path, field), f"one of {error['ctx']['expected_tags']}", show(error["input"][field]))


# -- annotations that msgspec knows and pydantic does not, explained to pydantic ---------------------------------------
# Frameworks that describe functions with pydantic (google-adk, Pydantic AI, LangChain, …) fail on structs and, before
# Python 3.12, on ``typing.TypedDict``; they do not see the limits in ``Meta``. So the signature that a tool shows them has
# such annotations in ``Annotated``, with an object of pydantic's own protocol. For other readers their meaning is the same.


class _Explained:
    """Tells pydantic what a value is, and how to make it."""

    def __init__(self, annotation: Any, convert: Callable[[Any], Any]) -> None:
        self._annotation = annotation
        self._convert = convert

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self._convert)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        models: dict[str, Any] = {}

        def describe(class_: type) -> dict[str, Any]:  # a model in a field of a struct
            described = model_schema(class_) or {"type": "object"}
            models.update(described.pop("$defs", {}))
            return described

        (written,), definitions = msgspec.json.schema_components(
            [self._annotation], schema_hook=describe, ref_template=REF + "{name}"
        )
        inlined: dict[str, Any] = _inline(written, {**models, **definitions}, frozenset())
        return inlined


def explain_annotations(signature: inspect.Signature) -> inspect.Signature:
    """The signature for frameworks."""
    return signature.replace(
        parameters=[p.replace(annotation=_explain(p.annotation)) for p in signature.parameters.values()]
    )


def _explain(annotation: Any) -> Any:
    if not any(map(_is_strange, parts_of(annotation))) or uses_pydantic(annotation):
        return annotation
    convert = converter(annotation)
    return annotation if convert is None else Annotated[annotation, _Explained(annotation, convert)]


def _is_strange(part: Any) -> bool:
    if isinstance(part, msgspec.Meta) or (isinstance(part, type) and issubclass(part, msgspec.Struct)):
        return True
    return sys.version_info < (3, 12) and is_typeddict(part) and type(part).__module__ == "typing"


def _inline(schema: Any, definitions: Mapping[str, Any], within: frozenset[str]) -> Any:
    """The schema with its definitions inlined. A definition that contains itself becomes some object."""
    if isinstance(schema, list):
        return [_inline(each, definitions, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix(REF)
    if name in within:
        return {"type": "object"}
    if name in definitions:
        return _inline(definitions[name], definitions, within | {name})
    return {key: _inline(value, definitions, within) for key, value in schema.items()}
