"""Shows that a test failed before: runs this tree's tests on the sources of an older revision.

    python -m tests.before REVISION TEST... (options of pytest too)

pytest prints what failed there and what passed. The exit status is 0 if every test that ran failed. A file whose imports the
older sources do not have is an error as a whole, and says nothing of their behaviour.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# Nothing here imports Callstream: which one it would be is what this is about.
ROOT = Path(__file__).resolve().parents[1]
_BROUGHT = ("tests", "bench")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    if len(arguments) < 2:
        print("usage: python -m tests.before REVISION TEST...", file=sys.stderr)
        return 2
    revision, *tests = arguments
    with _checked_out(root, revision) as older:
        _bring_tests(root, older)
        # The path comes before what is installed, in the processes that tests start too.
        environment = os.environ | {"PYTHONPATH": str(older / "src")}
        options = [
            "-q",
            "--no-header",
            "--tb=line",
            "-rfEp",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        ]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with subprocess.Popen(command, cwd=older, env=environment, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            passed = failed = 0
            for line in run.stdout:
                print(line, end="", flush=True)
                passed += line.startswith("PASSED ")
                failed += line.startswith(("FAILED ", "ERROR "))
    return int(passed > 0 or not failed)


@contextmanager
def _checked_out(root: Path, revision: str) -> Iterator[Path]:
    with TemporaryDirectory(prefix="callstream-before-") as folder:
        older = Path(folder).resolve() / "tree"
        _git(root, "worktree", "add", "--quiet", "--detach", str(older), revision)
        try:
            yield older
        finally:
            _git(root, "worktree", "remove", "--force", str(older))


def _bring_tests(root: Path, older: Path) -> None:
    """The tests and the benches, which they use, with what they have installed, and the settings of pytest."""
    for folder in _BROUGHT:
        shutil.rmtree(older / folder, ignore_errors=True)
    for name in _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_BROUGHT).split("\0"):
        if name and (root / name).is_file():
            (older / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, older / name)
    for modules in (root / "tests").glob("*/*/node_modules"):
        (older / modules.relative_to(root)).symlink_to(modules)
    shutil.copy2(root / "pyproject.toml", older / "pyproject.toml")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
