"""A tool that reads a streamed argument, and responses that bring it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from callstream import (
    ArgumentsAborted,
    Streamed,
    tool,
)
from callstream.runtime.response import Response
from callstream.testing import Cut, Failure, Finish, Truncated, encode

WIRE = "anthropic"
ARGS = {"title": "Notes", "content": "one two three four"}


class Item(msgspec.Struct):
    name: str
    count: int = 1


class Desk:
    """A tool that writes down what it sees. ``begun`` is set when it starts, ``first`` with its first piece."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.first = asyncio.Event()
        self.runs: list[dict[str, Any]] = []
        self.pieces: list[Any] = []
        self.aborted: list[str] = []
        self.details: list[str | None] = []

    def write(self) -> Any:
        desk = self

        @tool
        async def write(title: str, content: Streamed[str], style: str = "plain") -> dict[str, int]:
            desk.runs.append({"title": title, "style": style})
            desk.begun.set()
            try:
                async for piece in content:
                    desk.pieces.append(piece)
                    desk.first.set()
            except ArgumentsAborted as error:
                desk.aborted.append(error.reason)
                desk.details.append(error.detail)
                raise
            return {"characters": len(content.text)}

        return write


def chunks(*steps: Any) -> list[bytes]:
    return list(
        encode(WIRE, [*steps] if isinstance(steps[-1], Finish | Truncated | Failure | Cut) else [*steps, Finish()])
    )


async def feed(response: Response, data: Iterable[bytes]) -> None:
    for chunk in data:
        await response.feed(chunk)


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await event.wait()
