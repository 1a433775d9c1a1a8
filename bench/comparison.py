"""The environment in which ag_ui_adk is installed, and programs that run there.

It is one of its own because ag_ui_adk brings aiohttp, which google-genai prefers to httpx wherever it finds it: in the
usual environment it would change what the other tables measure. Callstream is installed there too, so that both are
measured beside the same versions. ``make .venv-ag-ui-adk/.installed`` makes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def interpreter(maker: str = "") -> str:
    """The Python of that environment. litellm needs another openai than the rest, so it has one more such environment."""
    name = ".venv-ag-ui-adk-litellm" if maker == "litellm" else ".venv-ag-ui-adk"
    python = ROOT / name / "bin" / "python"
    if not python.exists():
        sys.exit(f"{name} is not there; make it with: make {name}/.installed")
    return str(python)


@contextmanager
def worker(module: str, *options: str) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """A module that runs there and answers each line of JSON with another: a function that asks it."""
    command = [interpreter(), "-m", module, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"{module} {' '.join(options)} ended with status {process.wait(10)} in place of an answer"
            )
        return dict(json.loads(answer))

    try:
        yield ask
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait(10)
