"""The official AG-UI client as a judge: one Node process that takes event streams and says what it made of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import npm
from tests.npm import Unavailable

__all__ = ["FOLDER", "Judge", "Unavailable", "install"]

FOLDER = Path(__file__).parent / "client"


def install() -> None:
    """Installs the official client beside its package.json, unless that very version is there."""
    npm.install(FOLDER)


class Judge:
    """``judge(steps)`` lives through a client's steps and returns the verdict on each: see ``client/judge.mjs``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", "judge.mjs"],
            cwd=FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __call__(self, *steps: dict[str, Any], messages: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.poll() is None, "the judge has died"
        self._process.stdin.write(json.dumps({"steps": steps, "messages": messages or []}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the judge has died"
        verdicts: list[dict[str, Any]] = json.loads(line)
        return verdicts

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
