"""A program whose code is run as a user would run it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callstream.adk import ADKAgent


class Program:
    """A program's names, and the providers's answers to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._made: dict[str, Any] = {}

    def run(self, source: str, base_url: str) -> dict[str, Any]:
        self._monkeypatch.setenv("GOOGLE_API_KEY", "none")
        self._monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", base_url)
        self._made = {"__name__": "program"}
        exec(compile(inspect.cleandoc(source), "program", "exec"), self._made)
        return self._made

    async def aclose(self) -> None:
        for made in self._made.values():
            if isinstance(made, ADKAgent):
                await made.close()


@pytest.fixture
async def program(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Program]:
    made = Program(monkeypatch)
    yield made
    await made.aclose()
