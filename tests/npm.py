"""Packages of npm that tests use: exact versions from a package.json, no lock file."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path


class Unavailable(Exception):
    """The packages cannot be had here; the text says why."""


def install(folder: Path) -> None:
    """Installs what the folder's package.json names, unless those very versions are there."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Unavailable(f"{folder.parent.name}/{folder.name} needs node and npm, and they are not here")
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    with (folder / ".installing").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        # "npm:ai@6.0.1" is version 6.0.1 of a package under another name.
        if any(_version(folder, name) != version.rpartition("@")[2] for name, version in wanted.items()):
            _run_npm(npm, folder)


def _run_npm(npm: str, folder: Path) -> None:
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        raise Unavailable("npm install took longer than five minutes") from None
    if run.returncode:
        raise Unavailable(f"npm install failed: {run.stderr[-500:]}")


def _version(folder: Path, name: str) -> str | None:
    try:
        return str(json.loads((folder / "node_modules" / name / "package.json").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError):
        return None
