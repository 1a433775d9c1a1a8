"""Writes the table of the server's settings into docs/howto/server.md, between its two markers."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import msgspec

from callstream.server import settings
from callstream.server.settings import PREFIX, ServerSettings

PAGE = Path(__file__).parent / "howto" / "server.md"
BEGIN = "<!-- settings: written by docs/settings.py -->"
END = "<!-- end of settings -->"


def described() -> dict[str, str]:
    """What the source says below each field."""
    tree = ast.parse(inspect.getsource(settings))
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerSettings"]
    found: dict[str, str] = {}
    for field, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[field.target.id] = " ".join(str(after.value.value).split()) if is_text else ""  # type: ignore[union-attr]
    return found


def table() -> str:
    """One row a setting."""
    texts = described()
    lines = ["| setting | variable | default | |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(ServerSettings):
        shown = texts[field.name].replace("``", "`")
        lines.append(f"| `{field.name}` | `{PREFIX}{field.name.upper()}` | {_default(field.default)} | {shown} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it is today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _default(value: Any) -> str:
    mib = 1024 * 1024
    if isinstance(value, int) and not isinstance(value, bool) and value and value % mib == 0:
        return f"{value // mib} MiB"
    if isinstance(value, float):
        return f"{value:g} s"
    if value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
