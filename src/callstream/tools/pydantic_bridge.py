"""Annotations that msgspec knows and pydantic does not, explained to pydantic.

Frameworks that describe functions by pydantic (google-adk, Pydantic AI, LangChain, …) fail on structs and, before Python
3.12, on ``typing.TypedDict``; the limits of ``Meta`` they do not see. So the signature that a tool shows them has such
annotations in ``Annotated``, beside an object of pydantic's own protocol. To anything else they mean what they meant.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, is_typeddict

import msgspec

from callstream.tools.convert import converter
from callstream.tools.models import model_schema, parts_of, uses_pydantic

_REF = "#/$defs/"


class Explained:
    """Tells pydantic what a value is, and how it is made."""

    def __init__(self, annotation: Any, convert: Callable[[Any], Any]) -> None:
        self._annotation = annotation
        self._convert = convert

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self._convert)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        models: dict[str, Any] = {}

        def describe(class_: type) -> dict[str, Any]:  # a model in a field of a struct
            described = model_schema(class_, _REF + "{model}") or {"type": "object"}
            models.update(described.pop("$defs", {}))
            return described

        (written,), definitions = msgspec.json.schema_components(
            [self._annotation], schema_hook=describe, ref_template=_REF + "{name}"
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
    return annotation if convert is None else Annotated[annotation, Explained(annotation, convert)]


def _is_strange(part: Any) -> bool:
    if isinstance(part, msgspec.Meta) or (isinstance(part, type) and issubclass(part, msgspec.Struct)):
        return True
    return sys.version_info < (3, 12) and is_typeddict(part) and type(part).__module__ == "typing"


def _inline(schema: Any, definitions: Mapping[str, Any], within: frozenset[str]) -> Any:
    """The schema with its definitions in their places. One that contains itself is some object."""
    if isinstance(schema, list):
        return [_inline(each, definitions, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix(_REF)
    if name in within:
        return {"type": "object"}
    if name in definitions:
        return _inline(definitions[name], definitions, within | {name})
    return {key: _inline(value, definitions, within) for key, value in schema.items()}
