from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.postgres]


@pytest.mark.parametrize("workers", [1, 2], ids=["replicas", "workers"])
def test_chaos_in_short(workers: int) -> None:
    """``make chaos`` with a few threads: nothing is lost, doubled or hung."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.server.chaos"]
    run = subprocess.run(
        [*command, "--threads", "4", "--turns", "1", "--kills", "2", "--lease", "2", "--workers", str(workers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    told = run.stdout + run.stderr
    last = run.stdout.strip().splitlines()[-1]
    counted = json.loads(
        "{" + ", ".join(f'"{name}": {count}' for name, count in map(str.split, last.split(", "))) + "}"
    )
    assert counted.pop("joins") > 8, told
    assert counted == {"threads": 4, "kills": 2, "lost": 0, "doubled": 0, "hung": 0}, told
    assert run.returncode == 0, told
