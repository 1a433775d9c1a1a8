"""The script that shows whether a test failed on older sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import before

SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["src"]\n'
TESTS = """
import thing

def test_the_bug():
    assert thing.answer() == 42

def test_what_was_right():
    assert isinstance(thing.answer(), int)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Its first revision has a bug; the working tree has the cure, and a test that nobody has committed."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / "src/thing.py").write_text("def answer():\n    return 41\n")
    (tmp_path / "tests/test_gone.py").write_text("def test_gone():\n    assert False\n")
    git = ["git", "-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    (tmp_path / "src/thing.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "tests/test_gone.py").unlink()
    (tmp_path / "tests/test_thing.py").write_text(TESTS)
    return tmp_path


@pytest.mark.slow
@pytest.mark.subprocess
def test_what_failed_on_older_sources_is_printed(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert before.main(["HEAD", "tests/test_thing.py::test_the_bug"], repository) == 0
    assert "FAILED tests/test_thing.py::test_the_bug" in capfd.readouterr().out
    assert before.main(["HEAD", "tests"], repository) == 1
    printed = capfd.readouterr().out
    assert "PASSED tests/test_thing.py::test_what_was_right" in printed
    assert "test_gone" not in printed
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, check=True, capture_output=True, text=True)
    assert len(worktrees.stdout.splitlines()) == 1


def test_a_revision_and_tests_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert before.main(["HEAD"]) == 2
    assert "REVISION TEST" in capsys.readouterr().err
