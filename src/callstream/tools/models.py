"""Annotations in which something of pydantic's occurs: a model, one of its dataclasses, ``Field``.

pydantic is imported for these alone, so a program without it needs none. All else is strict, as for JSON; a model
follows its own config.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from callstream.jsontext.path import Path
from callstream.tools.check import Fault, Misfit, UnknownArgument, show
from callstream.tools.check import faults as find_faults
from callstream.tools.keywords import FORMATS, TYPE_WORDS

_EXPECTED: Final = {
    **TYPE_WORDS,
    **dict.fromkeys(("list", "tuple", "set"), TYPE_WORDS["array"]),
    **dict.fromkeys(("dict", "model", "dataclass"), TYPE_WORDS["object"]),
    "date": FORMATS["date"][0],
    "datetime": FORMATS["date-time"][0],
    "time": FORMATS["time"][0],
    "time_delta": FORMATS["duration"][0],
    "uuid": FORMATS["uuid"][0],
    "decimal": FORMATS["decimal"][0],
}
"""What pydantic's errors of a type, or of reading one, say in our words."""
_OTHERS: Final = {
    "int_from_float": TYPE_WORDS["integer"],
    "none_required": TYPE_WORDS["null"],
    "date_from_datetime_parsing": FORMATS["date"][0],
    "datetime_from_date_parsing": FORMATS["date-time"][0],
}
_JSON: Final = (str, int, float, bool, type(None))


def uses_pydantic(annotation: Any) -> bool:
    """Whether something of pydantic's occurs in the annotation, or in a field of its dataclasses and typed dicts."""
    return any(is_of_pydantic(each) for each in parts_of(annotation))


def parts_of(annotation: Any, within: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """The annotation, all that it is made of, and the annotations of its fields."""
    yield annotation
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    for argument in get_args(annotation):
        if isinstance(argument, type) or get_origin(argument) is not None:
            yield from parts_of(argument, within)
    has_fields = dataclasses.is_dataclass(annotation) or is_typeddict(annotation)
    if isinstance(annotation, type) and has_fields and annotation not in within:
        try:
            hints = get_type_hints(annotation, include_extras=True)
        except (NameError, TypeError):
            return
        for hint in hints.values():
            yield from parts_of(hint, within | {annotation})


def is_of_pydantic(part: Any) -> bool:
    """Whether a class or a note in ``Annotated`` is for pydantic."""
    if hasattr(part, "__get_pydantic_core_schema__") or hasattr(part, "__pydantic_core_schema__"):
        return True
    return type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def model_converter(annotation: Any) -> Callable[[Any], Any] | None:
    """How pydantic makes values of the annotation; None if it cannot."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:  # in a tuple, because only what has no config of its own can be given one
        adapter: Any = TypeAdapter(tuple[annotation], config=ConfigDict(strict=True))
    except (PydanticUserError, NameError):
        return None

    def convert(value: Any) -> Any:
        try:
            return _validate(adapter, value)[0]
        except ValidationError as error:
            found = [_pydantic_fault(each) for each in error.errors(include_url=False)]
            raise Misfit(_with_known_fields(found, annotation, value)) from None

    return convert


def _with_known_fields(faults: list[Fault], annotation: Any, value: Any) -> list[Fault]:
    """The faults, where those of names that are not known say which are: pydantic does not, its schema does."""
    if not any(isinstance(fault, UnknownArgument) for fault in faults) or not is_json(value):
        return faults
    by_schema = {
        fault.path: fault
        for fault in find_faults(model_schema(annotation, "#/$defs/{model}"), value, lenient=False)
        if isinstance(fault, UnknownArgument)
    }
    return [by_schema.get(fault.path, fault) if isinstance(fault, UnknownArgument) else fault for fault in faults]


def _validate(adapter: Any, value: Any) -> Any:
    if is_json(value):
        try:
            text = json.dumps([value], ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which no UTF-8 can carry
            return adapter.validate_python((value,))
        return adapter.validate_json(text)
    return adapter.validate_python((value,))


def is_json(value: Any) -> bool:
    """Whether a value is what a model wrote, not made by a framework."""
    if type(value) is dict:
        return all(type(name) is str and is_json(member) for name, member in value.items())
    if type(value) is list:
        return all(map(is_json, value))
    return type(value) in _JSON


def _expected(kind: str, limits: Mapping[str, Any]) -> str | None:
    """What should have been there, in the words of every other fault; None for what only pydantic has words for."""
    try:
        match kind:
            case "greater_than_equal":
                return f"at least {limits['ge']}"
            case "greater_than":
                return f"greater than {limits['gt']}"
            case "less_than_equal":
                return f"at most {limits['le']}"
            case "less_than":
                return f"less than {limits['lt']}"
            case "string_pattern_mismatch":
                return f"a string that matches {limits['pattern']!r}"
            case "string_too_short":
                return f"at least {limits['min_length']} characters long"
            case "string_too_long":
                return f"at most {limits['max_length']} characters long"
    except KeyError:
        return None
    return _OTHERS.get(kind) or _EXPECTED.get(kind.removesuffix("_type").removesuffix("_parsing"))


def _pydantic_fault(error: Mapping[str, Any]) -> Fault:
    path: Path = tuple(error["loc"][1:])
    message: str = error["msg"]
    expected = _expected(error["type"], error.get("ctx", {}))
    if expected is not None:
        return Fault(path, expected, show(error["input"]))
    match error["type"]:
        case "missing":
            return Fault(path, "a value")
        case "extra_forbidden":
            return UnknownArgument(path, "nothing", show(error["input"]))
        case _ if message.startswith("Input should be "):
            return Fault(path, message.removeprefix("Input should be "), show(error["input"]))
        case "value_error":
            return Fault(path, message, show(error["input"]), rule=message.removeprefix("Value error, "))
        case _:
            return Fault(path, message, show(error["input"]), rule=message[0].lower() + message[1:])


def model_schema(annotation: Any, ref_template: str) -> dict[str, Any] | None:
    """The JSON Schema that pydantic makes of the annotation; None if it cannot."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(annotation).json_schema(ref_template=ref_template)
    except (PydanticUserError, NameError):
        return None
