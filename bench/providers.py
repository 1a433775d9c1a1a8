"""Scripted providers in processes of their own, so that what they cost is not measured."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callstream.testing.script import script_to_json


@contextmanager
def provider(wire: str, scripts: list[Any], *options: str) -> Iterator[str]:
    """Serves scripts until it is left; the base URL for the SDK."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.json"
        file.write_bytes(script_to_json(scripts))
        command = [sys.executable, "-m", "callstream.testing.provider", "--wire", wire, "--script", str(file), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(10)
