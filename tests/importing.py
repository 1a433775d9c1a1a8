"""Who imports whom in a package, read from its files: late imports and those for types alone included."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

Imports: TypeAlias = dict[str, set[str]]
"""By module, without the name of the package: what it imports of the package."""


@cache
def imports_of(package: Path) -> Imports:
    files = {_module(file.relative_to(package)): file for file in sorted(package.rglob("*.py"))}
    found: Imports = {}
    for module, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        named = {name for node in ast.walk(tree) for name in _names(node, package.name, files)}
        found[module] = named - {module}
    return found


def rooms_of(imports: Imports) -> Imports:
    """The same between the top-level modules of the package."""
    found: Imports = {}
    for module, imported in imports.items():
        room = module.partition(".")[0]
        if room:  # the front door of the package leads everywhere
            found.setdefault(room, set()).update({name.partition(".")[0] for name in imported} - {room, ""})
    return found


def circles(imports: Imports) -> list[list[str]]:
    """One circle after the other, each without what was found in those before it."""
    left = {module: set(imported) for module, imported in imports.items()}
    found = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = sorted(set(error.args[1]))
            found.append(circle)
            left = {module: imported - set(circle) for module, imported in left.items() if module not in circle}
        else:
            return found


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names(node: ast.AST, package: str, modules: Collection[str]) -> set[str]:
    if isinstance(node, ast.Import):
        paths = [(alias.name,) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        paths = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
    else:
        return set()
    found = set()
    for spellings in paths:  # of "from a import b", b is a module or a name in the module a
        inside = [
            path.removeprefix(package).removeprefix(".") for path in spellings if f"{path}.".startswith(f"{package}.")
        ]
        found |= {next((path for path in inside if path in modules), "")} if inside else set()
    return found
