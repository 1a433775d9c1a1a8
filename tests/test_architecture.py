from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from callstream.wire import WIRES
from tests.captures import ROOT
from tests.importing import circles, imports_of, rooms_of
from tests.purity import BANNED_CALLS, BANNED_IMPORTS, PURE, offences, rooms_imported

PACKAGE = ROOT / "src" / "callstream"

# The order of docs/design.md: a row may import the rows after it. Written down here once more, so that an edit of the
# contracts or of the document alone does not pass unseen.
ORDER = (
    ("cli", "ag_ui_adk"),
    ("gateway",),
    ("server", "adk", "testing"),
    ("callstream",),
    ("tap",),
    ("runtime",),
    ("hooks", "guards"),
    ("journal",),
    ("view", "agui", "uistream", "wire"),
    ("calls", "tools", "jsontext"),
    ("codec", "events"),
    ("errors", "logtext", "waits"),
)
PACKAGES = frozenset(
    {"view", "hooks", "tools", "jsontext", "server", "adk", "testing", "tap", "runtime", "journal", "wire"}
)
# Where an external package may be imported, and a place that is near enough to be tempting where it may not.
ALLOWED_EXTERNALS = {
    "google": (("adk.plugin",), ("runtime", "testing", "ag_ui_adk", "cli")),
    "starlette": (("gateway.app", "server.app", "testing.provider"), ("tap", "adk", "cli", "ag_ui_adk")),
    "fastapi": (("ag_ui_adk",), ("server.app", "adk", "cli")),
    "sqlite3": (("journal.sqlite",), ("journal", "journal.memory", "runtime", "cli")),
    "asyncpg": (("journal.postgres",), ("journal", "journal.sqlite", "cli")),
    "nats": (("journal.nats",), ("journal", "journal.postgres", "cli")),
    "obstore": (("journal.archive.s3",), ("journal", "journal.postgres", "cli")),
    "opentelemetry": (("runtime.telemetry",), ("runtime", "server.app", "adk", "cli")),
    "httpx": (("tap", "tap.transport", "testing.provider"), ("runtime", "adk", "server.app", "wire")),
    "httpx2": (("tap", "tap.transport", "testing.provider"), ("runtime", "adk", "server.app", "wire")),
}


# -- the import contracts ----------------------------------------------------------------------------------------------


def lint_imports(source_root: Path) -> subprocess.CompletedProcess[str]:
    """Checks the contracts of pyproject.toml against the package found under ``source_root``."""
    program = (
        "import sys; from importlinter.cli import lint_imports as lint; sys.exit(lint(sys.argv[1], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, ROOT / "pyproject.toml"],
        cwd=source_root,
        env={**os.environ, "PYTHONPATH": str(source_root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def skeleton(root: Path, imports: list[tuple[str, str]]) -> Path:
    """A package with every room of the design, all empty but for these imports (importing module, imported module)."""
    package = root / "callstream"
    modules = {room for row in ORDER for room in row} | {importer for importer, _ in imports}
    for module in sorted(modules):
        folder = package.joinpath(*module.split(".")[:-1])
        is_package = module in PACKAGES
        file = folder / module.split(".")[-1] / "__init__.py" if is_package else folder / f"{module.split('.')[-1]}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"import {imported}\n" for importer, imported in imports if importer == module]
        file.write_text("".join(lines))
    (package / "__init__.py").touch()
    return root


@pytest.mark.subprocess
def test_contracts_hold() -> None:
    run = lint_imports(PACKAGE.parent)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.subprocess
def test_contracts_allow_what_the_design_allows(tmp_path: Path) -> None:
    downward = [
        (upper, f"callstream.{lower}")
        for index, row in enumerate(ORDER)
        for upper in row
        for lower_row in ORDER[index + 1 :]
        for lower in lower_row
    ]
    external = [(place, name) for name, (places, _) in ALLOWED_EXTERNALS.items() for place in places]
    run = lint_imports(skeleton(tmp_path, downward + external))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.subprocess
def test_contracts_refuse_every_import_upwards(tmp_path: Path) -> None:
    upward = [(lower, upper) for upper_row, lower_row in pairwise(ORDER) for upper in upper_row for lower in lower_row]
    run = lint_imports(skeleton(tmp_path, [(lower, f"callstream.{upper}") for lower, upper in upward]))
    assert run.returncode == 1, run.stdout + run.stderr
    for lower, upper in upward:
        assert f"callstream.{lower} is not allowed to import callstream.{upper}:" in run.stdout


@pytest.mark.subprocess
@pytest.mark.parametrize("name", ALLOWED_EXTERNALS)
def test_contracts_refuse_an_external_package_elsewhere(name: str, tmp_path: Path) -> None:
    _, refused = ALLOWED_EXTERNALS[name]
    run = lint_imports(skeleton(tmp_path, [(place, name) for place in refused]))
    assert run.returncode == 1, run.stdout + run.stderr
    for place in refused:
        assert f"callstream.{place} -> {name} " in run.stdout


@pytest.mark.subprocess
def test_contracts_refuse_a_room_without_a_place(tmp_path: Path) -> None:
    run = lint_imports(skeleton(tmp_path, [("utils", "callstream.errors")]))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "utils" in run.stdout


@pytest.mark.subprocess
def test_contracts_refuse_a_forbidden_import_in_the_real_package(tmp_path: Path) -> None:
    """The package as it is, copied, with one line added to its lowest room."""
    for file in PACKAGE.rglob("*.py"):
        copy = tmp_path / file.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert lint_imports(tmp_path).returncode == 0
    with (tmp_path / "callstream" / "errors.py").open("a", encoding="utf-8") as errors:
        errors.write("\nimport sqlite3\nimport callstream.calls\n")
    run = lint_imports(tmp_path)
    assert run.returncode == 1
    assert "imports point one way BROKEN" in run.stdout
    assert "sqlite3 is imported in journal.sqlite only BROKEN" in run.stdout


def test_contracts_are_written_in_the_order_of_the_design() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [layers] = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    design = {room for row in ORDER for room in row}
    written = [tuple(room for room in re.findall(r"\w+", row) if room in design) for row in layers["layers"]]
    assert [row for row in written if row] == list(ORDER)


def test_design_document_shows_the_same_order_and_the_same_pure_rooms() -> None:
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", design, re.MULTILINE)
    assert [tuple(re.findall(r"`(\w+)`", row)) for row in rows] == list(ORDER)
    [named] = re.findall(r"^(`errors`.*) are pure:", design, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == set(PURE) & {room for row in ORDER for room in row}


# -- circles, type imports included ------------------------------------------------------------------------------------


def test_imports_for_types_point_the_same_way() -> None:
    place = {room: number for number, row in enumerate(ORDER) for room in row}
    imports = rooms_of(imports_of(PACKAGE))
    assert {room for room in imports if room not in place} == {"__main__"}
    upward = [(room, name) for room in place for name in imports[room] if place[name] < place[room]]
    assert upward == []


def test_no_two_files_import_each_other_not_even_for_types() -> None:
    assert circles(imports_of(PACKAGE)) == []


def test_no_two_rooms_import_each_other_not_even_for_types() -> None:
    assert circles(rooms_of(imports_of(PACKAGE))) == []


@pytest.mark.parametrize(
    ("calls", "hooks", "files", "rooms"),
    [
        ("import callstream.hooks.thread", "x = 1", [], []),
        (
            "import callstream.hooks.thread",
            "from callstream import calls",
            [["calls", "hooks.thread"]],
            [["calls", "hooks"]],
        ),
        (
            "from callstream.hooks import thread",
            "import callstream.calls as c",
            [["calls", "hooks.thread"]],
            [["calls", "hooks"]],
        ),
        (
            "from callstream.hooks.thread import T",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from callstream.calls import Call",
            [["calls", "hooks.thread"]],
            [["calls", "hooks"]],
        ),
        ("def f():\n  import callstream.hooks", "import callstream.calls", [], [["calls", "hooks"]]),
    ],
    ids=["one way", "each other", "by their packages", "for types", "late, in another file of the room"],
)
def test_a_circle_is_found(
    calls: str, hooks: str, files: list[list[str]], rooms: list[list[str]], tmp_path: Path
) -> None:
    package = tmp_path / "callstream"
    (package / "hooks").mkdir(parents=True)
    for name, source in {"calls": calls, "hooks/__init__": "", "hooks/thread": hooks, "__init__": ""}.items():
        (package / f"{name}.py").write_text(source)
    imports = imports_of(package)
    assert circles(imports) == files
    assert circles(rooms_of(imports)) == rooms


# -- purity ------------------------------------------------------------------------------------------------------------


def pure_modules() -> list[Path]:
    found = []
    for room in PURE:
        found += [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").is_file() else []
        found += sorted((PACKAGE / room).rglob("*.py"))
    return found


@pytest.mark.parametrize("file", pure_modules(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_pure_modules_are_pure(file: Path) -> None:
    assert offences(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT))) == []


@pytest.mark.parametrize("file", pure_modules(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_pure_modules_stand_on_pure_modules(file: Path) -> None:
    assert rooms_imported(file.read_text(encoding="utf-8")) - set(PURE) == set()


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import callstream", {""}),
        ("import json, callstream.hooks.queue", {"hooks"}),
        ("from callstream import hooks, errors", {"hooks", "errors"}),
        ("from callstream.wire.sse import Lines", {"wire"}),
        ("from json import loads", set()),
    ],
)
def test_rooms_imported_are_found(source: str, rooms: set[str]) -> None:
    assert rooms_imported(source) == rooms


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(): pass", "async def f"),
        ("async def f(x): await x", "await"),
        ("async def f(x):\n async for y in x: pass", "async for"),
        ("async def f(x):\n async with x: pass", "async with"),
        ("async def f(x): return [y async for y in x]", "async for in a comprehension"),
        ("def f():\n  class A:\n    import os.path as p", "import os.path"),
        ("import json, time", "import time"),
        ("from datetime import datetime", "from datetime import …"),
        ("from asyncio.queues import Queue", "from asyncio.queues import …"),
        ("if TYPE_CHECKING:\n  import logging", "import logging"),
        *((f"import {name}", f"import {name}") for name in sorted(BANNED_IMPORTS)),
        *((f"{name}('x')", f"{name}()") for name in sorted(BANNED_CALLS)),
    ],
)
def test_purity_check_finds_an_offence(source: str, found: str) -> None:
    assert any(offence.endswith(f": {found}") for offence in offences(source, "m.py"))


def test_purity_check_says_where() -> None:
    assert offences("x = 1\nimport time\n\nprint(x)\n", "m.py") == ["m.py:2: import time", "m.py:4: print()"]


@pytest.mark.parametrize(
    "source",
    [
        "import json, re, msgspec",
        "from callstream.events import Event",
        "class Reader:\n  def open(self): return self.open()",
        "timeout = 1\n'''import os'''",
        "import timeit_like\nfrom ioniser import x",
    ],
)
def test_purity_check_leaves_pure_code_alone(source: str) -> None:
    assert offences(source) == []


def test_pure_rooms_of_the_design_are_those_that_the_makefile_covers() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [line] = re.findall(r"^PURE = (.*)$", makefile, re.MULTILINE)
    assert {Path(glob.removesuffix("/*")).stem for glob in line.split(",")} == set(PURE)


@pytest.mark.parametrize("path", sorted((PACKAGE / "tap").glob("*.py")), ids=lambda path: path.name)
def test_the_tap_knows_no_provider(path: Path) -> None:
    """A new provider is one module in ``wire``: the transport asks what it needs of whatever the registry has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants.isdisjoint(WIRES)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported for wire in WIRES if module.startswith(f"callstream.wire.{wire}")]


def test_no_private_name_of_google_adk_is_asked_for_by_text() -> None:
    """What is written as an attribute the linter sees; ``getattr`` with a text it does not."""
    asked = [
        (path.name, argument.value)
        for path in sorted((PACKAGE / "adk").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        for argument in node.args[1:2]
        if isinstance(argument, ast.Constant) and re.match(r"_(?!_)", str(argument.value))
    ]
    assert asked == []
