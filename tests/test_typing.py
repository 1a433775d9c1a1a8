from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import ROOT


@pytest.mark.parametrize("name", ["typing_tools.py"])
def test_types_are_what_users_see(name: str, tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    told, errors, status = api.run([*options, str(ROOT / "tests" / name)])
    assert status == 0, told + errors
