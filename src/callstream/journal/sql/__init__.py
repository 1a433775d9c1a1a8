"""The journal in an SQL database. What databases have in common is here. They differ in the named queries of a dialect, in
its .sql files, and in how a connection is used (``session``). A query has the same name in each dialect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*$", re.MULTILINE)
_NOW: Mapping[Dialect, str] = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400",
    "postgres": "extract(epoch FROM clock_timestamp())::double precision",
}


@cache
def queries(dialect: Dialect) -> Mapping[str, str]:
    """Name to SQL. A query begins with a line ``-- name: …`` and ends at the next comment that begins a line."""
    parts = _NAME.split(_text(dialect, "queries.sql").replace("{now}", _NOW[dialect]))
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: _COMMENT.sub("", text).strip() for name, text in named.items()}


def schema(dialect: Dialect, version: int) -> str:
    """The statements that bring a store from the previous version to this one."""
    return _text(dialect, f"schema_{version}.sql")


def _text(dialect: Dialect, name: str) -> str:
    return resources.files("callstream.journal.sql").joinpath(dialect, name).read_text("utf-8")
