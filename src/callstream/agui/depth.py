"""How deep a JSON value nests. What others send is measured without recursion, and before anything recurses into it."""

from __future__ import annotations

from typing import Any


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays nest more than ``depth`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
    return bool(level)
