"""The official AG-UI client as a judge: one Node process that takes event streams and says what it made of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import npm
from tests.npm import Unavailable

__all__ = ["FOLDER", "Judge", "NodeProgram", "Unavailable", "install"]

FOLDER = Path(__file__).parent / "client"


def install() -> None:
    """Installs the official client beside its package.json, unless that very version is there."""
    npm.install(FOLDER)


class NodeProgram:
    """A program of node that answers a line with a line; beside the official client, unless another folder is named."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self._process = subprocess.Popen(
            ["node", name],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.poll() is None, "the judge has died"
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the judge has died"
        return json.loads(line)

    def __enter__(self) -> Self:
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


class Judge(NodeProgram):
    """``judge(steps)`` lives through a client's steps and returns the verdict on each: see ``client/judge.mjs``."""

    def __init__(self) -> None:
        super().__init__("judge.mjs")

    def __call__(self, *steps: dict[str, Any], messages: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        verdicts: list[dict[str, Any]] = self.ask({"steps": steps, "messages": messages or []})
        return verdicts


class LiveJudge(NodeProgram):
    """The official client against a server on a real port: see ``client/live.mjs``."""

    def __init__(self) -> None:
        super().__init__("live.mjs")

    async def __call__(self, url: str, thread_id: str, *steps: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
        question = {"url": url, "threadId": thread_id, "steps": steps, **given}
        verdicts: list[dict[str, Any]] = await asyncio.to_thread(self.ask, question)
        return verdicts
