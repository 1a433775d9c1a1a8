"""The npm package: its own tests, its size, and the reader that the inspector uses too."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from callstream.server.app import PAGE
from tests import npm

ROOT = Path(__file__).parents[2]
JS = ROOT / "js"
CLIENT = Path(__file__).parent / "client"
REACT = ("react.js", "growingtext.js")
KIB = 1024


def size(*names: str) -> int:
    """Bytes of modules when they are sent, compressed: without comments and spaces, but with all names as they are written.

    A minifier, which shortens names too, makes a fifth less of it.
    """
    text = "".join([(JS / name).read_text(encoding="utf-8") for name in names])
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*//.*$|^\s+", "", text, flags=re.MULTILINE)
    text = re.sub(r" ?([=<>?:+*&|{}(),-]+) ?", r"\1", text)
    return len(gzip.compress(text.encode(), 9))


@pytest.mark.skipif(shutil.which("node") is None, reason="the npm package's tests need node")
def test_the_packages_own_tests_pass() -> None:
    run_tests("test/", JS)


@pytest.mark.skipif(not (CLIENT / "node_modules").is_dir(), reason="`make js` installs what the package is used with")
@pytest.mark.parametrize("what", ["mcpapp.test.mjs", "suite.test.mjs"])
def test_other_packages_judge_it(what: str) -> None:
    """Both ends of an MCP App, and JSONTestSuite's files."""
    run_tests(what, CLIENT)


def run_tests(what: str, folder: Path) -> None:
    run = subprocess.run(["node", "--test", what], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.slow
def test_the_types_are_those_of_the_sources(tmp_path: Path) -> None:
    """``make js`` writes them anew."""
    try:
        npm.install(JS / "demo")
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have TypeScript: {reason}")
        pytest.skip(str(reason))
    command = ["demo/node_modules/.bin/tsc", "-p", ".", "--outDir", str(tmp_path)]
    run = subprocess.run(command, cwd=JS, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout
    made, kept = ({each.name: each.read_text() for each in folder.iterdir()} for folder in (tmp_path, JS / "types"))
    assert kept == made


def test_the_package_is_small() -> None:
    reader = size("jsonreader.js", "jsonstream.js")
    everything = size(*(path.name for path in sorted(JS.glob("*.js")) if path.name not in REACT))
    print(f"gzipped: the reader {reader} bytes, everything without React {everything} bytes")
    assert reader <= 3 * KIB
    assert everything <= 8.5 * KIB


def test_the_wheel_gets_the_packages_reader() -> None:
    """There is one file: a wheel takes it among the inspector's, and a checkout's server sends it (tests/server/test_api)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copies = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert copies == {"js/jsonreader.js": "callstream/server/page/jsonreader.js"}
    assert not (PAGE / "jsonreader.js").exists()


def test_every_export_is_there_and_nothing_is_needed() -> None:
    package = json.loads((JS / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    assert "npm install --install-links" in (JS / "README.md").read_text(encoding="utf-8")  # a link does not find react
    for each in package["exports"].values():
        assert (JS / (each if isinstance(each, str) else each["import"])).is_file()
        if not isinstance(each, str):
            assert (JS / each["types"]).is_file()  # they are in the repository, so that nothing has to be built
