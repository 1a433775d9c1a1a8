"""The named queries of a dialect, from its .sql files. Every query is found under the same name in each dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*$", re.MULTILINE)


@cache
def queries(dialect: Dialect) -> Mapping[str, str]:
    """Name to SQL. A query begins with a line ``-- name: …`` and ends at the next comment that begins a line."""
    parts = _NAME.split(_text(dialect, "queries.sql"))
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: _COMMENT.sub("", text).strip() for name, text in named.items()}


def schema(dialect: Dialect, version: int) -> str:
    """The statements that bring a store from the version before to this one."""
    return _text(dialect, f"schema_{version}.sql")


def _text(dialect: Dialect, name: str) -> str:
    return resources.files("callstream.journal.sql").joinpath(dialect, name).read_text("utf-8")
