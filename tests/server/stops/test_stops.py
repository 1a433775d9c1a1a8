from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.postgres]


def test_stops_in_short() -> None:
    """``make stops`` with a few: every thread runs afterwards, and no lock, cursor or task is left."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.server.stops", "--stops", "80", "--soak", "10"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    told = run.stdout + run.stderr
    assert run.returncode == 0, told
    for kind in ("sqlite", "postgres"):
        stops, soak = [line for line in run.stdout.splitlines() if line.startswith(kind)]
        assert f"{kind}: 40 stops" in stops, told
        assert "0 failures, 0 locks, 0 open cursors, 0 tasks left" in stops, told
        assert "0 failed runs, 0 locks, 0 open cursors, 0 tasks left" in soak, told
