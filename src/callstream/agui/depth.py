"""How deep a JSON value nests. What others send is measured without recursion, and before anything recurses into it."""

from __future__ import annotations

from typing import Any


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays nest more than ``depth`` deep."""
    level = [value]
    for _ in range(depth):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
