from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import npm
from tests.captures import ROOT

PAGES = ["README.md", "docs/quickstart/plain-sdk.md"]


@pytest.mark.slow
def test_types_are_what_users_see(tmp_path: Path) -> None:
    """For the public names, and for the code of the first pages. In one go, with the cache of `make types`: the SDKs' types
    are many.
    """
    api = pytest.importorskip("mypy.api")
    files = [ROOT / "tests" / "typing_tools.py"]
    for number, page in enumerate(PAGES):
        text = (ROOT / page).read_text(encoding="utf-8")
        code = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        files.append(tmp_path / f"page_{number}.py")
        files[-1].write_text(code, encoding="utf-8")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    told, errors, status = api.run([*options, *map(str, files)])
    assert status == 0, told + errors


@pytest.mark.slow
def test_pyright_sees_the_same_types() -> None:
    folder = ROOT / "tests" / "pyright"
    try:
        npm.install(folder)
    except npm.Unavailable as why:
        pytest.skip(str(why))
    pyright = folder / "node_modules" / "pyright" / "index.js"
    command = ["node", str(pyright), "--pythonpath", sys.executable, str(ROOT / "tests" / "typing_tools.py")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
