"""What a pure module may not do, found in its source: wait, look at a clock, take a chance, or touch the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator

PURE = ("errors", "events", "codec", "jsontext", "wire", "calls", "view", "agui", "uistream")
"""The pure rooms: a module, or a package with everything in it."""

BANNED_IMPORTS = frozenset(
    {
        "asyncio",
        "contextvars",
        "datetime",
        "importlib",
        "io",
        "logging",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)
BANNED_CALLS = frozenset({"open", "print", "input", "__import__", "exec", "eval"})


def offences(source: str, name: str = "<source>") -> list[str]:
    """Every impurity of a module, each as ``name:line: what``."""
    found = sorted(_impurities(ast.parse(source, name)))
    return [f"{name}:{line}: {what}" for line, what in found]


def rooms_imported(source: str) -> set[str]:
    """The rooms of Callstream that a module imports, by their first name. The package itself is an empty name."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules += [alias.name for alias in names]
            case ast.ImportFrom(module="callstream", names=names, level=0):
                modules += [f"callstream.{alias.name}" for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules.append(module)
            case _:
                pass
    parts = [module.split(".") for module in modules]
    return {[*part, ""][1] for part in parts if part[0] == "callstream"}


def _impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef(name=name):
                yield node.lineno, f"async def {name}"
            case ast.Await():
                yield node.lineno, "await"
            case ast.AsyncFor():
                yield node.lineno, "async for"
            case ast.AsyncWith():
                yield node.lineno, "async with"
            case ast.comprehension(is_async=1):
                yield node.target.lineno, "async for in a comprehension"
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.partition(".")[0] in BANNED_IMPORTS:
                        yield node.lineno, f"import {alias.name}"
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in BANNED_IMPORTS:
                yield node.lineno, f"from {module} import …"
            case ast.Call(func=ast.Name(id=called)) if called in BANNED_CALLS:
                yield node.lineno, f"{called}()"
            case _:
                pass
