"""Which declared tool a call without a name can mean.

A tool fits when its schema has every place that the call's arguments have named so far. The schemas are JSON Schema, or
Gemini's dialect of it; a schema that says nothing about a place does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from callstream.jsonpath import Path

Schema = Mapping[str, Any]


def tools_that_fit(tools: Mapping[str, Schema], paths: Iterable[Path]) -> list[str]:
    """The names of the tools that have all of these paths, in the order of the declarations."""
    seen = list(paths)
    return [name for name, schema in tools.items() if all(_has(schema, path, schema) for path in seen)]


def _has(schema: Schema, path: Path, root: Schema) -> bool:
    if not path:
        return True
    for branches in ("anyOf", "oneOf", "allOf"):
        if any(isinstance(branch, Mapping) and _has(branch, path, root) for branch in schema.get(branches) or ()):
            return True
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _has(_resolved(reference, root), path, root)
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        below = schema.get("items")
    else:
        below = (schema.get("properties") or {}).get(step, schema.get("additionalProperties"))
    return below is True or (isinstance(below, Mapping) and _has(below, rest, root))


def _resolved(reference: str, root: Schema) -> Schema:
    """The definition that ``#/$defs/Name`` points to; one that has no place at all where it points nowhere."""
    target: Any = root
    for step in reference.removeprefix("#/").split("/"):
        target = target.get(step) if isinstance(target, Mapping) else None
    return target if isinstance(target, Mapping) else {}
