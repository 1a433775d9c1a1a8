"""What must be true of the repository itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import types
from importlib import resources
from pathlib import Path

import pytest

import callstream
from callstream import UsageError, open_journal
from tests.captures import ROOT

# Spelled in pieces, so that this file does not offend against itself.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:" + "root|work|opt|srv|(?:home|Users)/" + r"\w+)/|\b[A-Z]:\\" + "Users")
REGISTRY = re.compile(
    r"https?://[\w.@:-]*(?:" + "py" + "pi|python" + "hosted|registry|artifactory|nexus|dev" + "pi)"
    r"|\b(?:py" + "pi|python" + r"hosted)\.org"
)
INDEX_OPTION = re.compile("--(?:extra-)?index" + "-url|--find" + "-links|--trusted" + "-host")


def tracked_files() -> list[Path]:
    """What git tracks and what it would add; where git cannot tell, every file outside hidden folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        hidden = re.compile(r"(?:^|/)(?:\.(?!ci/)|__pycache__/)")
        files = [file for file in ROOT.rglob("*") if not hidden.search(file.relative_to(ROOT).as_posix())]
    return [file for file in files if file.is_symlink() or file.is_file()]


def told(text: str) -> list[str]:
    """What a text tells about the machine that it was written on."""
    return [match[0] for pattern in (MACHINE_PATH, REGISTRY, INDEX_OPTION) for match in pattern.finditer(text)]


def test_no_link_is_committed() -> None:
    """A link to a place outside the repository is broken in every other clone."""
    assert [str(file.relative_to(ROOT)) for file in tracked_files() if file.is_symlink()] == []


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    found = {}
    for file in tracked_files():
        if file.is_symlink():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if tells := told(text):
            found[str(file.relative_to(ROOT))] = tells
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/thing/x.py",
        "'/" + "home/ann/callstream'",
        "-e /" + "root/callstream",
        "C:\\" + "Users\\ann",
        "https://files.python" + "hosted.org/packages/x.whl",
        "https://py" + "pi.example.org/simple",
        "https://" + "registry.example.org/x",
        "pip install --index" + "-url x",
    ],
)
def test_machine_check_finds_an_offence(text: str) -> None:
    assert told(text)


@pytest.mark.parametrize(
    "text",
    ["GET /runs/1/events", "../shared/wires", "src/work/x", "https://example.org/work/a", "for x in registry.y:"],
)
def test_machine_check_leaves_other_text_alone(text: str) -> None:
    assert told(text) == []


def test_public_names_are_few_and_all_declared() -> None:
    declared = list(getattr(callstream, "__all__", []))
    assert len(declared) <= 33
    assert len(set(declared)) == len(declared)
    assert [name for name in declared if not hasattr(callstream, name)] == []
    found = {
        name
        for name, value in vars(callstream).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert found <= set(declared)


def test_package_is_typed() -> None:
    assert resources.files(callstream).joinpath("py.typed").is_file()


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("room", "absent", "extra"),
    [
        ("callstream.adk", "google.adk", "adk"),
        ("callstream.adk", "ag_ui", "adk"),
        ("callstream.ag_ui_adk", "google.adk", "adk"),
        ("callstream.ag_ui_adk", "ag_ui", "adk"),
        ("callstream.server", "starlette", "server"),
        ("callstream.server", "ag_ui", "server"),
        ("callstream.gateway", "starlette", "server"),
        ("callstream.gateway", "ag_ui", "server"),
        ("callstream.server.serving", "uvicorn", "server"),
        ("callstream.testing.provider", "h11", "testing"),
    ],
)
def test_a_room_whose_extra_is_missing_names_it(room: str, absent: str, extra: str) -> None:
    program = f"import sys; sys.modules[{absent!r}] = None; import {room}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"pip install 'callstream[{extra}]'" in done.stderr.splitlines()[-1]


def test_a_missing_extra_is_a_usage_error_and_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callstream.journal.postgres", None)
    with pytest.raises(UsageError, match=r"needs asyncpg: pip install 'callstream\[postgres\]'") as raised:
        open_journal("postgresql://db/calls")
    assert isinstance(raised.value, ImportError)


def test_the_source_distribution_has_every_folder() -> None:
    """Its tests run the examples and read the documentation, so they must be there too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    places = [file.relative_to(ROOT).parts for file in tracked_files()]
    folders = {f"/{parts[0]}" for parts in places if len(parts) > 1}
    assert folders - set(included) == set()


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_are_exact_versions_and_nothing_else(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert "callstream" not in {_normal(pin) for pin in pins}


def test_constraints_pin_every_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        _normal(requirement)
        for group in (project["dependencies"], *project["optional-dependencies"].values())
        for requirement in group
    } - {"callstream"}
    pinned = {_normal(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert wanted - pinned == set()


def test_oldest_versions_are_the_declared_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["adk"]]
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for requirement in declared:
        name, _, bound = requirement.partition(">=")
        assert pinned[name].startswith(f"{bound}."), requirement


def _normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()
