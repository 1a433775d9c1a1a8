"""Which declared tool a call without a name can mean: one whose schema has every place that its arguments name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from callstream.jsonpath import Path
from callstream.jsonshape import has_place


def tools_that_fit(tools: Mapping[str, Mapping[str, Any]], paths: Iterable[Path]) -> list[str]:
    """The names of the tools that have all of these paths, in the order of the declarations."""
    seen = list(paths)
    return [name for name, schema in tools.items() if all(has_place(schema, path) for path in seen)]
